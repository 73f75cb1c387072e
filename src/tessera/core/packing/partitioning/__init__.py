"""Demand-driven partitioning: the desired devices of managed GPUs for pods with exact requests.

Such pods are scheduled by what nodes advertise, so a device must be advertised before its pod can be bound. This module
decides which: a batch of pending pods is planned as `core.packing.plan` plans any pods, with desired devices as
existing ones, so that nothing is created where an idle one serves. What the plan assigns to exact
requests is desired; idle devices stay desired for a while, unless they are in the way. Devices in use are never
destroyed.

Needs and memory shares are placed by the scheduler's extender without this module, which makes room for those that
only idle desired devices block.

The node's agent executes it (`spec.desired` of its GPUNode) and decides in the end: an instance
in use is never destroyed, and a pod's assignment takes precedence over a desired device.
"""

from tessera.core.packing.partitioning.observing import observe_cluster
from tessera.core.packing.partitioning.policies import ChangeBudget, PartitioningPolicy, advance_all, applying
from tessera.core.packing.partitioning.records import (
    NodeEvent,
    PartitioningDecision,
    PartitioningLimits,
    PartitioningMemory,
    PartitioningState,
)
from tessera.core.packing.partitioning.turn import advance

__all__ = [
    "ChangeBudget",
    "NodeEvent",
    "PartitioningDecision",
    "PartitioningLimits",
    "PartitioningMemory",
    "PartitioningPolicy",
    "PartitioningState",
    "advance",
    "advance_all",
    "applying",
    "observe_cluster",
]
