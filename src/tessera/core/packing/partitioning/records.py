"""Input, state and result of demand-driven partitioning."""

import math
from collections.abc import Mapping

import msgspec

from tessera.core.cluster.gpunodestate import DesiredDevices, GpuNodeState
from tessera.core.cluster.snapshot import Node, NodeName, Running
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.packing.plan import PendingPod
from tessera.core.workload.need import Pod, PodKey

__all__ = ["NodeEvent", "PartitioningDecision", "PartitioningLimits", "PartitioningMemory", "PartitioningState"]


class PartitioningLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How soon, how often and how much may be changed."""

    idle_s: float = 1.0
    """A batch ends at the latest when no pod has come for this long; sooner if its pods came within a shorter time."""
    longest_s: float = 10.0
    """A batch ends in any case this long after its first pod."""
    keep_s: float = 300.0
    """How long a free desired device stays, if nothing else needs its place."""
    protect_s: float = 30.0
    """How long a device that has just become desired is kept from pods that need its place; against thrash. They are
    served elsewhere meanwhile, where they can be."""
    starving_s: float = 300.0
    """A pod that was pending for this long goes before others of its priority, and no protection delays it."""
    stuck_s: float = 300.0
    """A GPU that does not have its desired devices after this time is skipped for as long."""
    most_changing: int = 0
    """GPUs that may be changed at once; 0 for any number."""
    policy: str = "tessera"
    """Packing policy, of `core.packing.plan.PLAN_POLICIES`."""


class PartitioningState(msgspec.Struct, frozen=True, kw_only=True):
    """The input."""

    nodes: tuple[Node, ...] = ()
    """Their GPUs are those of the states."""
    states: tuple[GpuNodeState, ...] = ()
    running: tuple[Running, ...] = ()
    """Pods that are bound or claimed, with their devices. A pod whose devices from the kubelet are not recorded yet has
    no shares: it is assumed to use desired devices of its node."""
    pending: tuple[Pod, ...] = ()
    """In order of arrival."""
    fixed: frozenset[NodeName] = frozenset()
    """Nodes whose policy forbids repartitioning."""


class PartitioningMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The state between two passes, in times of one monotonic clock; losing it in a restart is harmless."""

    arrived: Mapping[PodKey, float] = {}
    """When a pending pod was first observed."""
    idle: Mapping[DeviceId, float] = {}
    """Since when a desired device is free."""
    desired: Mapping[DeviceId, float] = {}
    """Since when a device is desired."""
    served: frozenset[DeviceId] = frozenset()
    """Desired devices that a pod has used since they became desired."""
    left_alone: Mapping[str, float] = {}
    """Until when a GPU that did not get its desired devices is skipped."""
    planned_s: float = -math.inf
    """When a batch was planned last."""
    unplaced: frozenset[PodKey] = frozenset()
    """Pods that the last plan did not place."""


class NodeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A change and its reason, for an event of its node."""

    node: NodeName
    reason: str
    """One word in CamelCase: `DevicesDesired`, `DevicesReleased`, `DevicesNotCreated`."""
    message: str
    warning: bool = False


class PartitioningDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The decision."""

    desired: tuple[tuple[NodeName, tuple[DesiredDevices, ...]], ...] = ()
    """The complete desired devices of each node where they change."""
    events: tuple[NodeEvent, ...] = ()
    pending: tuple[PendingPod, ...] | None = None
    """Pods that no change would place, and why; None if no batch was planned."""
    again_s: float | None = None
    """When time alone may change the decision; None for never."""
