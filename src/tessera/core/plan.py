"""The plan: where every pending pod goes, what each GPU is cut into, what waits and why."""

import msgspec

from tessera.core.mig import Placement
from tessera.core.need import PodKey
from tessera.core.sharing import Mode
from tessera.core.snapshot import Assignment, NodeName

__all__ = ["Bound", "GpuLayout", "Plan", "Slice", "Waiting"]


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that fits nowhere now, and why."""

    pod: PodKey
    reason: str
    """One sentence for people: what is needed, what stands in the way and where."""


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a planned GPU: the whole GPU or one MIG instance, and the pods that hold it."""

    placement: Placement | None
    """None where the device is the whole GPU."""
    mode: Mode
    memory_mib: int
    """Memory of the device."""
    clients: int
    """How many pods may hold it at once; 0 where amounts decide."""
    pods: tuple[PodKey, ...] = ()
    exists: bool = False
    """Whether the instance is there already, so that nothing must be cut."""


class GpuLayout(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU after the plan."""

    node: NodeName
    gpu: int
    model: str
    memory_mib: int
    units: int
    """Length of the MIG placement axis; 0 without MIG."""
    granted_mib: int
    mig: bool
    """Whether the GPU is in MIG mode after the plan."""
    slices: tuple[Slice, ...] = ()
    """Sorted by start; empty for a GPU nothing was decided about."""


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """What the exact solver proved."""

    placed: int
    """Pods placed by the solution returned."""
    at_most: int
    """No assignment places more pods than this."""
    optimal: bool


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All decisions for one snapshot, with the reasons."""

    policy: str
    assignments: tuple[Assignment, ...] = ()
    """Pods placed by this plan, in order of arrival; running pods are not repeated."""
    waiting: tuple[Waiting, ...] = ()
    layouts: tuple[GpuLayout, ...] = ()
    """Every GPU of the fleet, in order of node and index."""
    warnings: tuple[str, ...] = ()
    """What an administrator should know: isolation that is not in force, memory that can be exhausted."""
    bound: Bound | None = None
    """Set by the exact solver."""
