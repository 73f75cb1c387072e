"""GPU usage as values: each node's GPUs with their layout, pods, memory, isolation, health and problems."""

import enum
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Literal

import msgspec

from tessera.core.cluster.cluster import Cluster, ObservedNode, ObservedPod, Phase, Record
from tessera.core.cluster.compatibility import faults
from tessera.core.cluster.enforcement import Level
from tessera.core.cluster.gpunodestate import GpuNodeState
from tessera.core.cluster.gputypes import GpuType
from tessera.core.cluster.snapshot import Gpu, NodeName, Share
from tessera.core.gpu.mig import Layout, Placement, mask, placements
from tessera.core.gpu.sharing import Mode
from tessera.core.packing.reasons import describe_need
from tessera.core.packing.stranded import Stranded, stranded
from tessera.core.workload.need import Form, PodKey

__all__ = [
    "GpuHealth",
    "GpuInspection",
    "InspectedShare",
    "InspectedSlices",
    "Inspection",
    "NodeInspection",
    "Unplaced",
    "UnscheduledPod",
    "inspect",
]

_LEVELS = {
    Mode.WHOLE: Level.HARDWARE,
    Mode.MIG: Level.HARDWARE,
    Mode.MIG_MPS: Level.DRIVER_MPS,
    Mode.MPS: Level.DRIVER_MPS,
}
"""The isolation of a mode where no agent reports it."""
_WEAKEST_FIRST = (Level.NONE, Level.DRIVER_DMEM, Level.DRIVER_MPS, Level.HARDWARE)


State = Literal["allocated", "unused", "desired", "free"]


class GpuHealth(enum.StrEnum):
    """Whether a GPU may be allocated to new pods."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    """The GPU or an instance of it is allocated to no new pod for now."""
    UNKNOWN = "unknown"
    """No agent reports it."""


class InspectedShare(msgspec.Struct, frozen=True, kw_only=True):
    """A share of a GPU, and the pod that is allocated it, with its state."""

    pod: PodKey
    phase: Phase
    ending: bool = False
    record: Record = Record.RECORDED
    level: Level
    """How its neighbors on the same device are kept out of its share."""
    share: Share


class InspectedSlices(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG instance, or a run of free memory slices."""

    start: int
    size: int
    profile: str = ""
    """Profile of the instance; empty for free memory slices."""
    state: State
    """Unused: the instance exists and no pod uses it. Desired: to be created for pods that request it by name."""
    pods: tuple[PodKey, ...] = ()


class GpuInspection(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU."""

    index: int
    uuid: str = ""
    model: str
    memory_mib: int
    """Memory that can be allocated."""
    memory_slices: int
    """Memory slices; 0 without MIG."""
    modes: tuple[Mode, ...] = ()
    """Modes in which it is allocated now; without pods, the allowed modes, if they are known."""
    auto: bool
    """Whether it is managed: Tessera chooses how it is shared; otherwise an administrator fixed that."""
    level: Level | None = None
    """The weakest isolation in force among its pods; None without pods."""
    slices: tuple[InspectedSlices, ...] = ()
    """All of its memory slices, in order; empty where MIG is off."""
    pods: tuple[InspectedShare, ...] = ()
    allocated_mib: int = 0
    allocated_percent: int = 0
    """Compute allocated."""
    used_mib: int | None = None
    """Memory in use as the driver counts it; None without an agent's report."""
    free_percent: int = 0
    """Unused memory; for amounts the scarcer of compute and memory."""
    fragmentation_percent: int | None = None
    """The part of the devices requested in the cluster that it could serve if it were empty, but cannot
    serve beside its allocations; None where nothing is free."""
    health: GpuHealth
    reasons: tuple[str, ...] = ()
    """Why it is unhealthy."""
    conflicts: tuple[str, ...] = ()
    """Conflicting allocations on it."""

    def in_units(self, mib: int, unit_mib: int) -> int:
        """Return memory in units, rounded up; what fits on a GPU is never more than its units."""
        units = -(-mib // unit_mib)
        return min(units, self.memory_mib // unit_mib) if mib <= self.memory_mib else units


class Unplaced(msgspec.Struct, frozen=True, kw_only=True):
    """A pod on a node that requests GPUs, and whose devices are unknown."""

    pod: PodKey
    phase: Phase
    memory_mib: int
    """Memory it requests by amount; 0 if it requests devices, or gets none."""
    problem: str = ""
    """Why its annotations do not count; empty where it has none."""


class NodeInspection(msgspec.Struct, frozen=True, kw_only=True):
    """A node that has GPUs, or should have."""

    name: NodeName
    address: str = ""
    ready: bool = True
    driver: str = ""
    policy: str = ""
    """The GPUPolicy that applies; empty for none."""
    unit_mib: int = 1024
    reported: bool = False
    """Whether an agent reports its GPUs; otherwise they are read from labels."""
    gpus: tuple[GpuInspection, ...] = ()
    unplaced: tuple[Unplaced, ...] = ()
    conflicts: tuple[str, ...] = ()
    """Allocations that the node does not have."""
    problem: str = ""

    @property
    def allocated_mib(self) -> int:
        """Memory allocated on all its GPUs."""
        return sum(gpu.allocated_mib for gpu in self.gpus)

    @property
    def memory_mib(self) -> int:
        """Memory that can be allocated on all its GPUs."""
        return sum(gpu.memory_mib for gpu in self.gpus)

    @property
    def unplaced_mib(self) -> int:
        """Memory of pods whose GPU is unknown."""
        return sum(each.memory_mib for each in self.unplaced)


class UnscheduledPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that requests GPUs and has no node yet."""

    pod: PodKey
    need: str
    scheduler: str
    message: str = ""
    """The scheduler's last message."""


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU usage of a cluster at one moment."""

    nodes: tuple[NodeInspection, ...]
    pending: tuple[UnscheduledPod, ...] = ()
    notes: tuple[str, ...] = ()


def inspect(
    cluster: Cluster, names: Collection[str] = (), *, labels: Iterable[tuple[str, str]] = (), namespace: str = ""
) -> Inspection:
    """Return the GPU usage of the nodes of these names or of all that have GPUs, in the cluster's order.

    Contradictions are shown and named in `conflicts`. Cost: linear in nodes, GPUs and pods.

    Args:
        cluster: the observation.
        names: nodes, also without GPUs; empty for all nodes with GPUs.
        labels: labels that the nodes must have.
        namespace: only nodes with pods of this namespace, and its pending pods; empty for all namespaces.

    """
    by_node = defaultdict[NodeName, list[ObservedPod]](list)
    for pod in cluster.pods:
        if pod.node is not None and (pod.shares or pod.pod.need.requests):
            by_node[pod.node].append(pod)
    desired = set(labels)
    chosen = [
        each
        for each in cluster.nodes
        if (each.node.name in names if names else each.node.gpus or each.problem or each.state)
        and desired.issubset(each.node.labels)
        and (not namespace or any(_within(pod, namespace) for pod in by_node[each.node.name]))
    ]
    views = [_NodeUsage(node, by_node[node.node.name]) for node in chosen]
    gpus = [(gpu, view.shares(gpu.index)) for view in views for gpu in view.observed.node.gpus]
    rest = iter(stranded(gpus, (pod.pod.need for pod in cluster.pods if pod.pod.need.requests)))
    pending = (pod for pod in cluster.pods if pod.node is None and pod.pod.need.requests)
    return Inspection(
        nodes=tuple(view.node([next(rest) for _ in view.observed.node.gpus]) for view in views),
        pending=tuple(
            UnscheduledPod(
                pod=pod.pod.key, need=describe_need(pod.pod.need), scheduler=pod.scheduler, message=pod.message
            )
            for pod in pending
            if not namespace or _within(pod, namespace)
        ),
        notes=(*cluster.notes, *_impaired(chosen)),
    )


def _impaired(chosen: Iterable[ObservedNode]) -> Iterator[str]:
    """Yield declarations for nodes that are not in force; equal ones of several nodes once."""
    nodes: dict[str, list[str]] = {}
    for node in chosen:
        for each in node.state.impaired if node.state else ():
            nodes.setdefault(each.message, []).append(node.node.name)
    yield from (f"{', '.join(names)}: {message}" for message, names in nodes.items())


def _within(pod: ObservedPod, namespace: str) -> bool:
    return pod.pod.key.startswith(f"{namespace}/")


class _NodeUsage:
    """One node during an inspection."""

    def __init__(self, observed: ObservedNode, pods: Sequence[ObservedPod]) -> None:
        self.observed = observed
        self._by_gpu = defaultdict[int, list[tuple[ObservedPod, Share]]](list)
        self._unplaced = []
        for pod in pods:
            # Guessed devices say nothing of amounts.
            amounts = any(request.form is not Form.EXACT for request in pod.pod.need.requests)
            if pod.shares and not (amounts and pod.record is Record.UNRECORDED):
                for share in pod.shares:
                    self._by_gpu[share.gpu].append((pod, share))
            else:
                self._unplaced.append(_unplaced(pod))

    def shares(self, index: int) -> tuple[Share, ...]:
        return tuple(share for _, share in self._by_gpu.get(index, ()))

    def node(self, rest: Sequence[Stranded]) -> NodeInspection:
        observed, state = self.observed, self.observed.state
        known = {gpu.index for gpu in observed.node.gpus}
        return NodeInspection(
            name=observed.node.name,
            address=observed.address,
            ready=observed.ready,
            driver=state.driver if state else "",
            policy=state.policy if state else "",
            unit_mib=observed.unit_mib or 1024,
            reported=bool(state and state.reported),
            gpus=tuple(self._gpu(gpu, free) for gpu, free in zip(observed.node.gpus, rest, strict=True)),
            unplaced=tuple(self._unplaced),
            conflicts=tuple(
                f"{pod.pod.key} is allocated GPU {index}, which the node does not have"
                for index, pods in sorted(self._by_gpu.items())
                if index not in known
                for pod, _ in pods
            ),
            problem=observed.problem,
        )

    def _gpu(self, gpu: Gpu, rest: Stranded) -> GpuInspection:
        pods = tuple(self._gpu_pod(gpu, pod, share) for pod, share in self._by_gpu.get(gpu.index, ()))
        state = self.observed.state if self.observed.state and self.observed.state.reported else None
        reasons = _reasons(gpu, state) if state else ()
        health = GpuHealth.UNKNOWN if state is None else GpuHealth.UNHEALTHY if reasons else GpuHealth.HEALTHY
        unmanaged = gpu.sharing.managed and state is None  # without an agent it is not partitioned
        by_pod = defaultdict[PodKey, list[Share]](list)
        for holder in pods:
            by_pod[holder.pod].append(holder.share)
        return GpuInspection(
            index=gpu.index,
            uuid=gpu.uuid,
            model=gpu.model.name,
            # Instances that fill a GPU have more than the driver says is usable of it without MIG.
            memory_mib=max(gpu.memory_mib, sum(each.share.memory_mib for each in pods if each.share.profile)),
            memory_slices=gpu.model.memory_slices,
            modes=tuple(dict.fromkeys(holder.share.mode for holder in pods))
            or tuple(dict.fromkeys(device.mode for device in gpu.devices))
            or (() if unmanaged else gpu.sharing.modes),
            auto=gpu.sharing.managed and not unmanaged,
            level=min((holder.level for holder in pods), key=_WEAKEST_FIRST.index, default=None),
            slices=_slices(gpu, pods, _desired(gpu, state)),
            pods=pods,
            allocated_mib=sum(holder.share.memory_mib for holder in pods),
            allocated_percent=sum(holder.share.compute_percent for holder in pods),
            used_mib=_used(gpu, state) if state else None,
            free_percent=rest.free_percent,
            fragmentation_percent=None if reasons else rest.fragmentation_percent,
            health=health,
            reasons=reasons,
            conflicts=(
                *(fault.sentence for fault in faults(GpuType.of(gpu), by_pod, recorded=True)),
                *(_absent(gpu, pods) if state else ()),
            ),
        )

    def _gpu_pod(self, gpu: Gpu, pod: ObservedPod, share: Share) -> InspectedShare:
        return InspectedShare(
            pod=pod.pod.key,
            phase=pod.phase,
            ending=pod.ending,
            record=pod.record,
            level=self._level(gpu, share),
            share=share,
        )

    def _level(self, gpu: Gpu, share: Share) -> Level:
        """Return the isolation of a share: as reported by the agent, else by its mode."""
        by_mode = _LEVELS.get(share.mode, Level.NONE)
        if not self.observed.enforcement or by_mode is Level.HARDWARE:
            return by_mode
        start = share.start if share.profile else None
        levels = (
            each.level
            for each in self.observed.enforcement
            if (each.gpu, each.mode) == (gpu.uuid, share.mode)
            and (each.placement.start if each.placement else None) == start
        )
        return next(levels, Level.NONE)


def _unplaced(pod: ObservedPod) -> Unplaced:
    requested = 0 if pod.problem else sum(request.memory_mib * request.count for request in pod.pod.need.requests)
    return Unplaced(pod=pod.pod.key, phase=pod.phase, memory_mib=requested, problem=pod.problem)


def _reasons(gpu: Gpu, state: GpuNodeState) -> tuple[str, ...]:
    return tuple(
        f"{each.device.placement.profile} at {each.device.placement.start}: {each.reason or 'unhealthy'}"
        if each.device.placement
        else each.reason or "unhealthy"
        for each in state.unhealthy
        if each.device.gpu == gpu.uuid
    )


def _used(gpu: Gpu, state: GpuNodeState) -> int | None:
    """Return the memory in use on a GPU: of the whole if that is reported, else of its instances together."""
    reported = {used.placement: used.memory_mib for used in state.used if used.gpu == gpu.uuid}
    return reported.get(None, sum(reported.values())) if reported else None


def _desired(gpu: Gpu, state: GpuNodeState | None) -> Layout:
    return tuple(place for each in state.desired if each.gpu == gpu.uuid for place in each.instances) if state else ()


def _absent(gpu: Gpu, pods: Sequence[InspectedShare]) -> Iterable[str]:
    """Yield the instances that running pods are allocated and the driver does not show."""
    there = {(each.profile, each.start) for each in gpu.sharing.layout or ()}
    for holder in pods:
        profile, start = holder.share.profile, holder.share.start
        if holder.phase is Phase.RUNNING and profile is not None and (profile, start) not in there:
            yield f"{holder.pod} is allocated {profile} at {start}, which does not exist"


def _slices(gpu: Gpu, pods: Sequence[InspectedShare], desired: Layout) -> tuple[InspectedSlices, ...]:
    """Return a GPU's memory slices, instance by instance; empty where MIG is off and no pod uses an instance."""
    known: dict[tuple[str | None, int | None], Placement] = {
        (each.profile, each.start): each for each in (*placements(gpu.model), *(gpu.sharing.layout or ()))
    }
    holders = defaultdict[Placement, list[PodKey]](list)
    for holder in pods:
        place = known.get((holder.share.profile, holder.share.start))
        if place is not None:
            holders[place].append(holder.pod)
    if gpu.sharing.layout is None and not holders and not desired:
        return ()
    found = [_instance(place, "allocated", tuple(pods)) for place, pods in holders.items()]
    found += _beside(found, gpu.sharing.layout or (), "unused")
    found += _beside(found, desired, "desired")
    return tuple(
        sorted(
            (*found, *_free(gpu.model.memory_slices, _occupied_slices(found))), key=lambda each: (each.start, each.size)
        )
    )


def _instance(place: Placement, state: State, pods: tuple[PodKey, ...] = ()) -> InspectedSlices:
    return InspectedSlices(start=place.start, size=place.size, profile=place.profile, state=state, pods=pods)


def _beside(taken_by: Sequence[InspectedSlices], places: Layout, state: State) -> list[InspectedSlices]:
    """Return existing instances that conflict with none in use."""
    occupied = _occupied_slices(taken_by)
    return [_instance(place, state) for place in places if not place.mask & occupied]


def _occupied_slices(instances: Iterable[InspectedSlices]) -> int:
    return mask(Placement(each.start, each.size, each.profile) for each in instances)


def _free(slices: int, occupied: int) -> Iterable[InspectedSlices]:
    """Yield the runs of memory slices without an instance."""
    for free, run in groupby(range(slices), key=lambda each: not occupied >> each & 1):
        if free:
            members = list(run)
            yield InspectedSlices(start=members[0], size=len(members), state="free")
