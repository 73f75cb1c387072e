"""Metrics over HTTP: of pods, and of Prometheus' API; real and in-memory."""

from tessera.clients.prometheus.memory import MemoryMetrics
from tessera.clients.prometheus.protocol import MetricsClient
from tessera.clients.prometheus.real import HttpMetrics

__all__ = ["HttpMetrics", "MemoryMetrics", "MetricsClient"]
