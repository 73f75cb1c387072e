"""Metrics over HTTP: of pods, and of Prometheus' API; real and in-memory."""

from tessera.clients.prometheus.memory import MemoryMetrics
from tessera.clients.prometheus.protocol import AnswerTooLarge, MetricsClient, Prometheus
from tessera.clients.prometheus.real import HttpMetrics

__all__ = ["AnswerTooLarge", "HttpMetrics", "MemoryMetrics", "MetricsClient", "Prometheus"]
