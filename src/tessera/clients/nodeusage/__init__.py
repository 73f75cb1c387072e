"""The agents' reports of GPU usage, and their history in Prometheus."""

from tessera.clients.nodeusage.memory import MemoryUsage
from tessera.clients.nodeusage.prometheus import PrometheusUsage
from tessera.clients.nodeusage.protocol import NodeReports, UsageSource
from tessera.clients.nodeusage.proxied import ProxiedUsage
from tessera.clients.nodeusage.real import HttpUsage

__all__ = ["HttpUsage", "MemoryUsage", "NodeReports", "PrometheusUsage", "ProxiedUsage", "UsageSource"]
