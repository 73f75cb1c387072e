"""The fleet as the dashboard page shows it, and the changes between two moments."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from tessera.core.usage.rightsizing import Recommendation

__all__ = [
    "ContentionView",
    "FleetChange",
    "FleetView",
    "GpuPart",
    "GpuView",
    "ImageView",
    "ModelServerHistory",
    "ModelView",
    "NodeView",
    "PartState",
    "PendingView",
    "PodView",
    "ScalePoint",
    "WorkloadRecommendation",
    "changes",
]

PartState = Literal["allocated", "unused", "desired", "free"]


class ScalePoint(msgspec.Struct, frozen=True):
    """A model server at one moment."""

    at_s: float
    """Seconds since 1970."""
    desired: int
    """Replicas requested."""
    ready: int
    in_flight: float
    """Requests being served or queued."""


class ModelServerHistory(msgspec.Struct, frozen=True, kw_only=True):
    """A model server that is scaled, over time."""

    namespace: str
    name: str
    points: tuple[ScalePoint, ...]
    """Newest last."""


class PodView(msgspec.Struct, frozen=True, kw_only=True):
    """A pod on a device; one of a hidden namespace has no name."""

    namespace: str = ""
    pod: str = ""
    workload: str = ""
    """Name of its Deployment, Job or other controller; empty for a bare pod."""
    phase: str = ""
    ending: bool = False
    unrecorded: bool = False
    """Whether its devices are not recorded."""
    isolation: str = ""
    memory_mib: int = 0


class ContentionView(msgspec.Struct, frozen=True, kw_only=True):
    """Why pods on a GPU are slow, and which of them cause it."""

    cause: str
    """Reasons of lowered clocks, such as `thermal`; or `saturated`."""
    caused_by: tuple[PodView, ...] = ()
    """The busiest first; empty where unknown."""
    nobody: bool = False
    """Whether no pod causes it: the cause is cooling or power supply."""
    scope: Literal["gpu", "node"] = "gpu"
    """Where these are."""
    evenly: tuple[PodView, ...] = ()
    """Of a saturated device that none of them saturates alone: the pods that use it about equally."""
    ended: bool = False
    """Whether processes that exited, of pods that are unknown, make some of the load."""


class GpuPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a GPU: a MIG instance, a share, or free memory."""

    start: int
    """In memory slices with MIG, else in MiB."""
    size: int
    label: str = ""
    state: PartState
    exists: bool = True
    """False for a planned MIG instance that is not created yet."""
    idle: bool = False
    """Whether it is allocated, and known to be unused."""
    pods: tuple[PodView, ...] = ()


class GpuView(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, as a strip of its parts."""

    index: int
    uuid: str = ""
    model: str
    memory_mib: int
    width: int
    """The sum of the sizes of its parts."""
    mode: str
    health: str
    parts: tuple[GpuPart, ...]
    allocated_mib: int = 0
    used_mib: int | None = None
    problems: tuple[str, ...] = ()
    """Why it is unhealthy, and conflicting allocations."""
    contention: tuple[ContentionView, ...] = ()
    throttled: tuple[str, ...] = ()
    """Reasons of lowered clocks, also those that slow down no other pod."""


class ImageView(msgspec.Struct, frozen=True, kw_only=True):
    """An image that a node has or should have."""

    image: str
    state: str
    bytes: int = 0


class ModelView(msgspec.Struct, frozen=True, kw_only=True):
    """A model that a node has or should have."""

    model: str
    state: str
    """`Ready` also while a later revision is fetched, or if that failed."""
    revision: str = ""
    bytes: int = 0
    containers: int = 0
    fetched_percent: int | None = None
    """Of the current fetch."""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One node with its GPUs."""

    name: str
    ready: bool = True
    driver: str = ""
    policy: str = ""
    problem: str = ""
    gpus: tuple[GpuView, ...] = ()
    unplaced: tuple[PodView, ...] = ()
    """Pods on the node whose GPU is unknown."""
    images: tuple[ImageView, ...] = ()
    models: tuple[ModelView, ...] = ()


class PendingView(msgspec.Struct, frozen=True, kw_only=True):
    """A pending pod and the reason."""

    namespace: str
    pod: str
    workload: str = ""
    """As of `PodView`."""
    need: str
    reason: str = ""
    created_on: tuple[str, ...] = ()
    """Nodes on which MIG instances that it requests by name are planned and do not exist yet."""


class WorkloadRecommendation(Recommendation, frozen=True, kw_only=True):
    """A recommendation for a container, with its pod's workload."""

    workload: str = ""
    """As of `PodView`."""


class FleetView(msgspec.Struct, frozen=True, kw_only=True):
    """The page at one moment."""

    nodes: tuple[NodeView, ...]
    pending: tuple[PendingView, ...] = ()
    pending_elsewhere: int = 0
    """Pending pods of hidden namespaces."""
    model_servers: tuple[ModelServerHistory, ...] = ()
    recommendations: tuple[WorkloadRecommendation, ...] = ()
    """For containers with too much or too little GPU memory allocated; the most urgent first."""
    activity: dict[str, int] = {}
    """Compute used by pods, `namespace/pod`, in percent of their GPU or MIG instance.

    Without those for which it is unknown.
    """
    memory_mib: dict[str, dict[str, int]] = {}
    """Memory that pods, `namespace/pod`, use of a GPU, by its UUID. Without those of which it is unknown."""
    namespaces: tuple[str, ...] = ()
    """Namespaces with pods that use GPUs and that the viewer may see; sorted."""
    partial: bool = False
    """Whether the viewer may not see everything."""
    notes: tuple[str, ...] = ()


class FleetChange(msgspec.Struct, frozen=True, kw_only=True):
    """The difference between two views; None and empty for no change.

    Activity and memory in use are merge patches: what changed, and None for what is no longer there. Source: RFC 7386.
    """

    nodes: tuple[NodeView, ...] = ()
    """New or changed nodes."""
    gone: tuple[str, ...] = ()
    """Deleted nodes."""
    activity: dict[str, int | None] = {}
    memory_mib: dict[str, dict[str, int | None] | None] = {}
    rest: FleetView | None = None
    """The later view without nodes, activity and memory in use, if anything else changed."""

    def __bool__(self) -> bool:
        """Return whether anything changed."""
        return self != FleetChange()


def changes(before: FleetView, after: FleetView) -> FleetChange:
    """Return the difference from an earlier view, node by node."""
    known = {each.name: each for each in before.nodes}
    present = {each.name for each in after.nodes}
    former, rest = (msgspec.structs.replace(each, nodes=(), activity={}, memory_mib={}) for each in (before, after))
    return FleetChange(
        nodes=tuple(each for each in after.nodes if known.get(each.name) != each),
        gone=tuple(name for name in known if name not in present),
        activity=_merge_patch(before.activity, after.activity),
        memory_mib=_gone(before.memory_mib, after.memory_mib)
        | {
            gpu: _merge_patch(before.memory_mib.get(gpu, {}), pods)
            for gpu, pods in after.memory_mib.items()
            if before.memory_mib.get(gpu) != pods
        },
        rest=None if rest == former else rest,
    )


def _merge_patch(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int | None]:
    return _gone(before, after) | {name: value for name, value in after.items() if before.get(name) != value}


def _gone(before: Mapping[str, object], after: Mapping[str, object]) -> dict[str, None]:
    return {name: None for name in before if name not in after}
