"""What demand-driven partitioning looks at, remembers and decides."""

import math
from collections.abc import Mapping

import msgspec

from tessera.core.cluster.gpunodestate import DesiredDevices, GpuNodeState
from tessera.core.cluster.snapshot import Node, NodeName, Running
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.packing.plan import PendingPod
from tessera.core.workload.need import Pod, PodKey

__all__ = ["Memory", "NodeEvent", "PartitioningDecision", "PartitioningLimits", "PartitioningState"]


class PartitioningLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How soon, how often and how much may be changed."""

    idle_s: float = 1.0
    """A batch ends at the latest when so long no pod has come; sooner where pods have come for a shorter time."""
    longest_s: float = 10.0
    """A batch ends in any case so long after its first pod."""
    keep_s: float = 300.0
    """How long a desired device that is free stays, where nothing else needs its place."""
    rest_s: float = 30.0
    """How long a device that has just become desired is kept from pods that need its place; against thrash. They are
    served elsewhere meanwhile, where they can be."""
    starving_s: float = 300.0
    """A pod that has waited so long goes before others of its priority, and no rest holds it up."""
    stuck_s: float = 300.0
    """A GPU that does not have what is desired of it after so long is left alone for as long."""
    most_changing: int = 0
    """GPUs that may be under change at once; 0 for any number."""
    policy: str = "tessera"
    """Packing policy, of `core.packing.plan.PLAN_POLICIES`."""


class PartitioningState(msgspec.Struct, frozen=True, kw_only=True):
    """What is decided upon."""

    nodes: tuple[Node, ...] = ()
    """Their GPUs are those of the states."""
    states: tuple[GpuNodeState, ...] = ()
    running: tuple[Running, ...] = ()
    """Pods that are bound or claimed, with what is theirs. A pod that the kubelet has just given devices to, and whose
    record nobody has written yet, has no shares: it is taken to hold desired devices of its node."""
    pending: tuple[Pod, ...] = ()
    """In order of arrival."""
    fixed: frozenset[NodeName] = frozenset()
    """Nodes whose policy forbids to repartition them."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered between two looks, moments on one monotonic clock; lost at a restart without harm."""

    arrived: Mapping[PodKey, float] = {}
    """When a pending pod was first observed."""
    idle: Mapping[DeviceId, float] = {}
    """Since when a desired device is free."""
    desired: Mapping[DeviceId, float] = {}
    """Since when a device is desired."""
    served: frozenset[DeviceId] = frozenset()
    """Desired devices that a pod has had since they became desired."""
    left_alone: Mapping[str, float] = {}
    """Until when a GPU that did not get what was desired of it is left alone."""
    planned_s: float = -math.inf
    """When a batch was planned last."""
    left: frozenset[PodKey] = frozenset()
    """Pods that the last plan did not place."""


class NodeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One change and why, for an event of its node."""

    node: NodeName
    reason: str
    """One word in CamelCase: `DevicesDesired`, `DevicesReleased`, `DevicesNotMade`."""
    message: str
    warning: bool = False


class PartitioningDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What to write."""

    desired: tuple[tuple[NodeName, tuple[DesiredDevices, ...]], ...] = ()
    """All that is desired of each node where that changes."""
    events: tuple[NodeEvent, ...] = ()
    pending: tuple[PendingPod, ...] | None = None
    """Pods that no change would place, and why; None where no batch was planned."""
    again_s: float | None = None
    """When something may change though nothing new is observed; None for never."""
