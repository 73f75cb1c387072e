"""Workloads as values: a trace (a fleet and the pods seen on it), and the arrivals one seed makes of it.

Pods are numbered by kind: equal needs are one kind, so that a policy scores a kind once, however many pods have it.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tessera.core.cluster.snapshot import Gpu, Node, Share, Snapshot
from tessera.core.gpu.sharing import Mode, Option
from tessera.core.packing.fit.admission import refusal
from tessera.core.workload.need import DeviceRequest, Form, Need
from tessera.errors import InvalidInput

__all__ = ["MILLI", "Arrival", "PodDemand", "Trace", "Workload", "allocated_milli", "demands"]

MILLI = 1000
"""GPU milli of one GPU."""


class PodDemand(NamedTuple):
    """GPU capacity a kind of pod requests."""

    gpus: int
    """Devices requested; 0 for a pod without GPU."""
    milli: int
    """Thousandths of a GPU, all devices together; see `demands`."""

    @property
    def milli_each(self) -> int:
        """Thousandths of a GPU for one device, rounded down."""
        return self.milli // self.gpus if self.gpus else 0


class Arrival(NamedTuple):
    """One pod coming in. The name may come again: the protocol draws pods of a trace with replacement."""

    pod: str
    kind: int
    """Index into the workload's kinds."""
    at_s: float
    stay_s: float = math.inf
    """Time it runs once placed."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet and the pods seen on it, sorted by name."""

    name: str
    nodes: tuple[Node, ...]
    names: tuple[str, ...]
    kind_of: tuple[int, ...]
    """Kind of each pod, in the order of `names`."""
    kinds: tuple[Need, ...]
    """Distinct needs, in order of first appearance."""
    demands: tuple[PodDemand, ...]
    """What each kind requests of GPUs."""

    @classmethod
    def of(cls, name: str, nodes: Sequence[Node], pods: Iterable[tuple[str, Need]]) -> "Trace":
        """Return a trace of named needs, sorted by name."""
        ordered = sorted(pods, key=lambda pod: pod[0])
        numbers: dict[Need, int] = {}
        kind_of = tuple(numbers.setdefault(need, len(numbers)) for _, need in ordered)
        names = tuple(pod for pod, _ in ordered)
        return cls(
            name=name,
            nodes=tuple(nodes),
            names=names,
            kind_of=kind_of,
            kinds=tuple(numbers),
            demands=demands(tuple(numbers), nodes),
        )

    @property
    def mix(self) -> tuple[tuple[Need, int], ...]:
        """Each distinct need with the number of pods that have it, the most frequent first, then by appearance."""
        return tuple((self.kinds[kind], count) for kind, count in Counter(self.kind_of).most_common())

    @property
    def capacity_milli(self) -> int:
        """GPU capacity of the fleet, 1000 for each GPU."""
        return MILLI * sum(len(node.gpus) for node in self.nodes)


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a run is made of but the policy: the same value gives the same log."""

    name: str
    seed: int
    snapshot: Snapshot
    """The fleet at time 0, with the pods that run on it already."""
    kinds: tuple[Need, ...]
    demands: tuple[PodDemand, ...]
    """What each kind requests of GPUs."""
    arrivals: tuple[Arrival, ...]
    """In order of time."""
    rank: tuple[int, ...]
    """Place of each node in the order in which ties go, 0 first."""
    mix: tuple[tuple[Need, int], ...]
    """Needs and their frequencies as known beforehand to policies that must know them."""
    warm: int = 0
    """Arrivals at the front that only fill the cluster; they are not measured."""
    end_s: float = math.inf
    """When measuring stops."""
    running_milli: int = 0
    """What the pods that run at time 0 hold of GPUs."""

    @classmethod
    def of(cls, trace: Trace, seed: int, arrivals: Iterable[Arrival], rank: Sequence[int] = ()) -> "Workload":
        """Return the workload of these arrivals on an empty fleet; without a rank, ties go in the order of nodes."""
        return cls(
            name=trace.name,
            seed=seed,
            snapshot=Snapshot(nodes=trace.nodes),
            kinds=trace.kinds,
            demands=trace.demands,
            arrivals=tuple(arrivals),
            rank=tuple(rank or range(len(trace.nodes))),
            mix=trace.mix,
        )

    @property
    def capacity_milli(self) -> int:
        """GPU capacity of the fleet, 1000 for each GPU."""
        return MILLI * sum(len(node.gpus) for node in self.snapshot.nodes)

    @property
    def departs(self) -> bool:
        """Whether any pod leaves."""
        return any(arrival.stay_s < math.inf for arrival in self.arrivals)


def demands(kinds: Sequence[Need], nodes: Sequence[Node]) -> tuple[PodDemand, ...]:
    """Return what each kind requests of GPUs, in thousandths of a GPU of this fleet.

    A device counts as in `allocated_milli`, on the nodes that admit the pod: an exact request on the GPU with the
    largest device of that name, a share on the GPU of which it takes the smallest part. A request that no GPU
    serves counts as whole GPUs.
    """
    alike = {(node.labels, node.taints, node.unschedulable, tuple(map(_looks, node.gpus))): node for node in nodes}
    return tuple(_demand(need, nodes if need.node_name else tuple(alike.values())) for need in kinds)


def _looks(gpu: Gpu) -> tuple[int, int, int]:
    """Return what distinguishes GPU types, quickly: records read together share their models."""
    return id(gpu.model), gpu.memory_mib, id(gpu.sharing)


def allocated_milli(gpus: Mapping[int, Gpu], shares: Iterable[Share]) -> int:
    """Return what shares take of a node's GPUs, given by index, in thousandths of a GPU.

    A MIG instance takes its part of the memory slices, amounts and replicas the larger part of memory and compute.
    """
    return sum(_milli(gpus[share.gpu], share) for share in shares)


def _milli(gpu: Gpu, part: Share | Option) -> int:
    if part.mode is Mode.WHOLE:
        return MILLI
    if part.mode is Mode.MIG:
        size = next(profile.size for profile in gpu.model.profiles if profile.name == part.profile)
        return MILLI * size // gpu.model.memory_slices
    memory = MILLI * part.memory_mib // gpu.memory_mib if gpu.memory_mib else 0
    return max(memory, MILLI * part.compute_percent // 100)


def _demand(need: Need, nodes: Sequence[Node]) -> PodDemand:
    gpus = {_looks(gpu): gpu for node in nodes if refusal(need, node) is None for gpu in node.gpus}
    allowed = [gpu for gpu in gpus.values() if not need.models or gpu.model.name in need.models]
    devices = sum(request.count for request in need.requests)
    return PodDemand(devices, sum(request.count * _requested(request, allowed) for request in need.requests))


def _requested(request: DeviceRequest, gpus: Sequence[Gpu]) -> int:
    served = [_milli(gpu, options[0]) for gpu in gpus for options in [gpu.options(request)] if options]
    pick = max if request.form is Form.EXACT else min
    return pick(served, default=MILLI)


def positive(name: str, value: float, most: float) -> float:
    """Return a setting of a workload that must be above 0 and at most `most`."""
    if not 0 < value <= most:
        raise InvalidInput(name, found=f"{value:g}", expected=f"a number above 0 and at most {most:g}")
    return value
