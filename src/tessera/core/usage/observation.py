"""What an agent observes of its node's GPUs at one moment."""

import msgspec

from tessera.core.gpu.deviceids import DeviceId
from tessera.core.usage.attribution import GpuUsage

__all__ = ["DeviceStatus", "GpuCounts", "NodeUsage"]


class DeviceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's facts about a device."""

    device: DeviceId
    healthy: bool = True
    orphaned: bool = False
    """Whether only processes of a deleted pod use it, and nothing else keeps new pods from it."""
    mode: str = ""
    """Empty where it is not advertised."""
    isolation: str = ""


class GpuCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's counts for a GPU since it started."""

    gpu: str
    """UUID."""
    last_xid: int = 0
    xids: tuple[tuple[str, int], ...] = ()
    """By class: application, hardware, other."""
    layout_changes: int = 0


class NodeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The observation of a node's GPUs at one moment."""

    node: str
    gpus: tuple[GpuUsage, ...] = ()
    statuses: tuple[DeviceStatus, ...] = ()
    counts: tuple[GpuCounts, ...] = ()
    unseen: tuple[int, ...] = ()
    """Indices of GPUs that were lost before the agent started, of which nothing else is known."""
    sees_processes: bool = True
    """Whether processes of other pods are visible."""
