"""The arrivals one seed makes of a trace.

`filling` is the published protocol: the trace in random order, up to a multiple of the capacity, and none departs.
`departing` adds time: pods come and go around a load. The randomness is `random.Random(seed)`, used in the order the
functions say, so that anyone can make the same arrivals.
"""

import random

import msgspec

from tessera.errors import InvalidInput
from tessera.sim.workloads.records import Arrival, Trace, Workload, positive

__all__ = ["departing", "filling"]

_MOST = 100.0


def filling(trace: Trace, seed: int, ratio: float = 1.3) -> Workload:
    """Return the arrivals of the published protocol, one each virtual second; none departs.

    The pods sorted by name are shuffled. If they demand less GPU than `ratio` times the capacity, uniform draws with
    replacement from the sorted list are appended, up to the first draw whose demand on one GPU would pass the target;
    if they demand more, uniformly chosen entries are deleted until they do not. Then the nodes' order of ties is
    shuffled.

    Source: the artifact of "Beware of Fragmentation" (Weng et al., USENIX ATC 2023), workload tuning ratio.
    """
    target = positive("ratio of arrivals to capacity", ratio, _MOST) * trace.capacity_milli
    rng = random.Random(seed)
    pods = list(range(len(trace.names)))
    rng.shuffle(pods)
    milli = _milli(trace)
    demand = sum(milli[pod] for pod in pods)
    if demand < target:
        pods.extend(_draws(trace, rng, demand, target))
    else:
        while demand > target:
            demand -= milli[pods.pop(rng.randrange(len(pods)))]
    arrivals = [_arrival(trace, pod, float(at)) for at, pod in enumerate(pods)]
    return Workload.of(trace, seed, arrivals, _rank(trace, rng))


def departing(
    trace: Trace, seed: int, load: float = 1.0, *, lifetimes: float = 2.0, lifetime_s: float = 3600.0
) -> Workload:
    """Return pods that come and go: Poisson arrivals and exponential stays, around an offered load.

    The offered load is the GPU demand that would run at once if every pod were placed, over the capacity. At time 0 the
    cluster is offered pods up to that load; these are not measured. Then pods drawn uniformly with replacement from
    the trace arrive for `lifetimes` mean stays. Stream: the first pods, up to the first draw whose demand on one GPU
    would pass the load; the stay of each; then the time to the next arrival, its pod and its stay, in turn; then the
    nodes' order of ties.
    """
    target = positive("offered load", load, _MOST) * trace.capacity_milli
    end_s = positive("lifetimes measured", lifetimes, 1000) * positive("mean stay in seconds", lifetime_s, 1e9)
    rng = random.Random(seed)
    first = [_arrival(trace, pod, 0.0) for pod in _draws(trace, rng, 0, target)]
    arrivals = [arrival._replace(stay_s=rng.expovariate(1 / lifetime_s)) for arrival in first]
    milli = _milli(trace)
    per_s = target * len(milli) / (sum(milli) * lifetime_s)
    at_s = rng.expovariate(per_s)
    while at_s < end_s:
        arrival = _arrival(trace, rng.randrange(len(milli)), at_s)
        arrivals.append(arrival._replace(stay_s=rng.expovariate(1 / lifetime_s)))
        at_s += rng.expovariate(per_s)
    workload = Workload.of(trace, seed, arrivals, _rank(trace, rng))
    return msgspec.structs.replace(workload, warm=len(first), end_s=end_s)


def _milli(trace: Trace) -> list[int]:
    """Return the GPU demand of each pod of the trace."""
    demands = trace.demands
    return [demands[kind].milli for kind in trace.kind_of]


def _draws(trace: Trace, rng: random.Random, demand: int, target: float) -> list[int]:
    """Return uniform draws of pods, up to the first whose demand on one GPU would take `demand` past the target."""
    demands = trace.demands
    if not any(kind.milli for kind in demands):
        raise InvalidInput(
            f"trace {trace.name}", found="it has no pod that requests GPUs", hint="name one with at least one"
        )
    pods: list[int] = []
    while True:
        pod = rng.randrange(len(trace.names))
        drawn = demands[trace.kind_of[pod]]
        if demand + drawn.milli_each > target:
            return pods
        pods.append(pod)
        demand += drawn.milli


def _arrival(trace: Trace, pod: int, at_s: float) -> Arrival:
    return Arrival(trace.names[pod], trace.kind_of[pod], at_s)


def _rank(trace: Trace, rng: random.Random) -> list[int]:
    rank = list(range(len(trace.nodes)))
    rng.shuffle(rank)
    return rank
