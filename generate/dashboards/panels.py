"""A dashboard as its panels, and what several of them ask for."""

from typing import Literal

import msgspec

__all__ = ["ALLOCATED", "GPU_MEMORY", "OF_CONTAINERS", "OWN", "RATE", "TESSERA", "Dashboard", "Panel"]

RATE = "[$__rate_interval]"
TESSERA = 'Hostname!="", hostname!=""'
"""Of Tessera alone: DCGM exporter has one of both."""
OF_CONTAINERS = f'pod_uid!="", {TESSERA}'
OWN = "(namespace, pod, container, pod_uid, UUID, GPU_I_ID)"
"""By UID, so that a pod has no history of an earlier one of its name."""
ALLOCATED = "tessera_container_memory_allocated_bytes"
GPU_MEMORY = "max by (UUID) (tessera_gpu_memory_bytes)"


class Panel(msgspec.Struct, frozen=True):
    """One panel: its title, its unit as Grafana names it, and its queries with their legends."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: Literal["timeseries", "stat"] = "timeseries"
    text: str = ""
    """What the title does not say."""


class Dashboard(msgspec.Struct, frozen=True):
    """One dashboard."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    by_node: bool = False
    """Whether its panels are of the nodes that are chosen."""
