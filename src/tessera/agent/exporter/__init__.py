"""The Prometheus metrics of a node: its GPUs and their users."""

from tessera.agent.exporter.containers import NodeContainers
from tessera.agent.exporter.exporter import Exporter

__all__ = ["Exporter", "NodeContainers"]
