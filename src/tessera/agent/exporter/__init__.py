"""What Prometheus reads of a node: its GPUs, and who uses them."""

from tessera.agent.exporter.containers import NodeContainers
from tessera.agent.exporter.exporter import Exporter

__all__ = ["Exporter", "NodeContainers"]
