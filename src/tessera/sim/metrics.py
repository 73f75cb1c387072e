"""What a run is measured by: unallocated GPUs, fragmentation, and the guards that keep the first one honest.

A is the GPU demand of all pods that arrived so far, including dropped ones; U is the allocation of placed pods; C is
the capacity. Source of the definitions: the artifact of "Beware of Fragmentation" (Weng et al., USENIX ATC 2023) for
curves and bins.
"""

import math
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from tessera.sim.engine import Log
from tessera.sim.replay import Replayed
from tessera.sim.workloads import MILLI, PodDemand
from tessera.sim.workloads.records import allocated_milli

__all__ = [
    "CLASSES",
    "HEADLINES",
    "MOMENTS",
    "Curve",
    "Dropped",
    "RunMetrics",
    "bin_means",
    "bins",
    "group_of",
    "measure",
    "moments",
]

CLASSES = ("without GPU", "part of a GPU", "one GPU", "several GPUs")
"""Classes of pods, by their GPU requests."""

HEADLINES = (100, 130)
"""Arrivals in percent of capacity at which the published numbers are read."""

MOMENTS = 241
"""Points of a curve over time."""

_LEAST_IDLE = 1e-9
"""Divides if nothing is idle and so nothing fragmented."""
_MULTI = 3
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Utilization of the fleet, over arrivals or over time."""

    axis: Literal["arrived_percent", "time_s"]
    """Over arrivals, a point is the bin of those with round(100 A/C) = x; over time, one of evenly spaced moments."""
    x: tuple[float, ...]
    allocated_percent: tuple[float, ...]
    """Mean over the bin of round(100 U/C, 2); over time, 100 U/C at that moment."""
    fragmented_percent: tuple[float, ...] = ()
    """100 F/C likewise, F being idle GPU milli that the mix cannot use; empty if it was not computed."""
    fragmented_of_idle_percent: tuple[float, ...] = ()
    """100 F/idle likewise."""


class Dropped(msgspec.Struct, frozen=True, kw_only=True):
    """Pods of one class that were never placed."""

    group: str
    """One of `CLASSES`."""
    arrived: int
    dropped: int
    demand_milli: int
    """GPU demand of those that arrived."""
    dropped_milli: int

    @property
    def percent(self) -> float:
        """Dropped demand in percent of the class's demand; for pods without GPU, of their number."""
        part, whole = (self.dropped_milli, self.demand_milli) if self.demand_milli else (self.dropped, self.arrived)
        return 100 * part / whole if whole else 0.0


class RunMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The measures of one run."""

    workload: str
    policy: str
    seed: int
    arrived: int
    """Pods measured: all but those that only filled the cluster before time 0."""
    dropped: int
    """Of these, pods that were never placed."""
    dropped_demand_percent: float
    """Dropped GPU demand in percent of all GPU demand that arrived."""
    groups: tuple[Dropped, ...]
    """The dropped pods, in the order of `CLASSES`."""
    first_drop_percent: float | None
    """100 A/C at the first dropped pod; None without one."""
    unallocated_percent: dict[int, float]
    """At the arrivals of `HEADLINES`, where the run came that far; empty where pods depart."""
    mean_unallocated_percent: float | None
    """Average over time; None where no pod departs."""
    mean_wait_s: float
    """Mean time from arrival to placement."""
    longest_wait_s: float
    moves: int
    instances_created: int
    refused_though_fitting: int | None = None
    """Pods dropped though some node fitted them; 0 means work conservation, None that it was not checked."""
    curve: Curve
    """Over arrivals where none departs, else over time."""

    @property
    def dropped_multi_gpu_percent(self) -> float:
        """Share of the demand for several GPUs that was dropped."""
        return self.groups[_MULTI].percent

    @property
    def dropped_without_gpu(self) -> int:
        """How many pods without a GPU request were dropped."""
        return self.groups[0].dropped


def measure(log: Log, replayed: Replayed | None = None) -> RunMetrics:
    """Return the measures of a run; fragmentation and work conservation only if it was replayed too."""
    workload = log.workload
    capacity = workload.capacity_milli
    demand = np.array([workload.demands[arrival.kind].milli for arrival in workload.arrivals], dtype=np.int64)
    placed = np.array([spot is not None for spot in log.spots], dtype=np.bool_)
    allocated = _allocated(log)
    lost, requested = ~placed[workload.warm :], demand[workload.warm :]
    total = int(requested.sum())
    departs = workload.departs
    curve = _over_time(log, allocated, replayed) if departs else _over_arrivals(log, demand, allocated, replayed)
    waits = _waits(log)
    return RunMetrics(
        workload=workload.name,
        policy=log.policy,
        seed=workload.seed,
        arrived=len(requested),
        dropped=int(lost.sum()),
        dropped_demand_percent=100 * int(requested[lost].sum()) / total if total else 0.0,
        groups=_groups(log, lost, requested),
        first_drop_percent=None if departs else _first_drop(demand, placed, capacity),
        unallocated_percent=_headlines(curve),
        mean_unallocated_percent=_mean_unallocated(log, allocated) if departs else None,
        mean_wait_s=sum(waits) / len(waits) if waits else 0.0,
        longest_wait_s=max(waits, default=0.0),
        moves=len(log.moves),
        instances_created=log.instances_created,
        refused_though_fitting=None if replayed is None else replayed.refused_though_fitting,
        curve=curve,
    )


def group_of(demand: PodDemand) -> int:
    """Return the class of a pod with these GPU requests, as an index into `CLASSES`."""
    if not demand.gpus:
        return 0
    return 3 if demand.gpus > 1 else 1 + (demand.milli >= MILLI)


def bins(arrived_percent: Floats) -> tuple[Ints, Ints]:
    """Return the bins that occur, and for each arrival the position of its bin among them."""
    numbers, positions = np.unique(np.rint(arrived_percent).astype(np.int64), return_inverse=True)
    return numbers, positions


def bin_means(positions: Ints, values: Floats) -> tuple[float, ...]:
    """Return the mean of the values in each bin."""
    return tuple((np.bincount(positions, values) / np.bincount(positions)).tolist())


def moments(log: Log) -> Floats:
    """Return the sampled moments of a run with departures, from 0 to the end of measuring, `(MOMENTS,)`."""
    left_s = np.array(log.left_s)
    end_s = log.workload.end_s if log.workload.end_s < math.inf else float(left_s[left_s < math.inf].max(initial=0.0))
    return np.linspace(0.0, end_s, MOMENTS)


def _allocated(log: Log) -> Ints:
    """Return each pod's GPU allocation in its first place, in milli; 0 if it never had one."""
    gpus = [{gpu.index: gpu for gpu in node.gpus} for node in log.workload.snapshot.nodes]
    allocated = [0 if spot is None else allocated_milli(gpus[spot.node], spot.shares) for spot in log.spots]
    return np.array(allocated, dtype=np.int64)


def _over_arrivals(log: Log, demand: Ints, allocated: Ints, replayed: Replayed | None) -> Curve:
    capacity = log.workload.capacity_milli
    numbers, positions = bins(100 * np.cumsum(demand) / capacity)
    total = log.workload.running_milli + np.cumsum(allocated)
    allocated_percent = np.round(100 * total / capacity, 2)
    curve = Curve(
        axis="arrived_percent",
        x=tuple(map(float, numbers)),
        allocated_percent=bin_means(positions, allocated_percent),
    )
    if replayed is None:
        return curve
    return msgspec.structs.replace(
        curve,
        fragmented_percent=bin_means(positions, replayed.fragmented_percent),
        fragmented_of_idle_percent=bin_means(positions, _of_idle(replayed)),
    )


def _over_time(log: Log, allocated: Ints, replayed: Replayed | None) -> Curve:
    at_s = moments(log)
    came = _allocated_at(np.array(log.placed_s), allocated, at_s)
    went = _allocated_at(np.array(log.left_s), allocated, at_s)
    percent = 100 * (log.workload.running_milli + came - went) / log.workload.capacity_milli
    curve = Curve(axis="time_s", x=tuple(at_s.tolist()), allocated_percent=tuple(percent.tolist()))
    if replayed is None:
        return curve
    step = np.maximum(np.searchsorted(replayed.at_s, at_s, side="right") - 1, 0)
    return msgspec.structs.replace(
        curve,
        fragmented_percent=tuple(replayed.fragmented_percent[step].tolist()),
        fragmented_of_idle_percent=tuple(_of_idle(replayed)[step].tolist()),
    )


def _of_idle(replayed: Replayed) -> Floats:
    """Return fragmented GPU in percent of idle GPU, after each step."""
    return 100 * replayed.fragmented_percent / np.maximum(replayed.idle_percent, _LEAST_IDLE)


def _allocated_at(since_s: Floats, allocated: Ints, at_s: Floats) -> Ints:
    """Return the total allocation until each moment."""
    order = np.argsort(since_s)
    total = np.concatenate(([0], np.cumsum(allocated[order])))
    return total[np.searchsorted(since_s[order], at_s, side="right")]


def _headlines(curve: Curve) -> dict[int, float]:
    if curve.axis == "time_s":
        return {}
    pairs = zip(curve.x, curve.allocated_percent, strict=True)
    return {int(x): round(100 - allocated, 6) for x, allocated in pairs if x in HEADLINES}


def _first_drop(demand: Ints, placed: NDArray[np.bool_], capacity: int) -> float | None:
    if placed.all():
        return None
    return 100 * int(demand[: int(np.argmin(placed)) + 1].sum()) / capacity


def _groups(log: Log, lost: NDArray[np.bool_], requested: Ints) -> tuple[Dropped, ...]:
    by_kind = np.array([group_of(demand) for demand in log.workload.demands], dtype=np.int64)
    group = by_kind[[arrival.kind for arrival in log.workload.arrivals[log.workload.warm :]]]
    sums = (np.ones_like(requested), lost, requested, requested * lost)
    counts = np.array([np.bincount(group, values, len(CLASSES)) for values in sums], dtype=np.int64)
    return tuple(
        Dropped(group=name, arrived=row[0], dropped=row[1], demand_milli=row[2], dropped_milli=row[3])
        for name, row in zip(CLASSES, counts.T.tolist(), strict=True)
    )


def _waits(log: Log) -> list[float]:
    pairs = zip(log.placed_s, log.workload.arrivals, strict=True)
    measured = list(pairs)[log.workload.warm :]
    return [placed_s - arrival.at_s for placed_s, arrival in measured if placed_s < math.inf]


def _mean_unallocated(log: Log, allocated: Ints) -> float:
    """Return the average over time, from 0 to the end of measuring or else to the last departure."""
    placed_s, left_s = np.array(log.placed_s), np.array(log.left_s)
    end_s = float(moments(log)[-1])
    stayed_s = np.clip(np.minimum(left_s, end_s) - np.minimum(placed_s, end_s), 0, None)
    whole = log.workload.capacity_milli * end_s
    return (
        100 - 100 * (log.workload.running_milli * end_s + float((stayed_s * allocated).sum())) / whole if whole else 0.0
    )
