"""One policy under a trace of requests: it decides every 15 seconds, replicas start and drain, requests wait."""

import math
from collections.abc import Callable
from typing import Protocol

import msgspec

from tessera.core.serving.autoscaling.autoscaler import ReplicaProposal
from tessera.core.serving.metrics.load import PASS_S, Load
from tessera.sim.serving.replicamodel import ReplicaModel, Replicas
from tessera.sim.serving.traces import Floats

__all__ = ["ReplicaChange", "Scaler", "ServingRun", "run"]


class Scaler(Protocol):
    """A policy."""

    def propose(self, load: Load, replicas: Replicas, /) -> ReplicaProposal:
        """Return how many replicas to have, and why."""


class ReplicaChange(msgspec.Struct, frozen=True):
    """One line of the log."""

    time_s: float
    desired: int
    ready: int
    reason: str


class ServingRun(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a trace."""

    replica_hours: float
    """Desired replicas and those that drain, from the first to the last request; of a drain, whole periods of 15 s."""
    within_slo: float
    """Share of the requests that waited no longer than the objective, from 0 to 1."""
    lost: int
    """Requests that were cut off when the grace period of a replica was over."""
    log: tuple[ReplicaChange, ...]
    """Each change of the desired replicas; the first is what there is at time 0."""

    @property
    def changes(self) -> int:
        """How often the number of desired replicas changed."""
        return len(self.log) - 1


def run(
    arrival_s: Floats,
    service_s: Floats,
    model: ReplicaModel,
    scaler: Scaler,
    start: int,
    report: Callable[[int], None] = lambda _: None,
) -> ServingRun:
    """Return what becomes of requests under a policy.

    Args:
        arrival_s: when each request comes, in order, the first at 0.
        service_s: how long each takes in its slot.
        model: of the replicas.
        scaler: the policy.
        start: replicas that are ready at time 0.
        report: called with the requests of each period.

    """
    replicas = Replicas(model, start)
    log = [ReplicaChange(0.0, start, start, "ready when the trace begins")]
    charged_s, last_s, at = 0.0, float(arrival_s[-1]), 0
    times, services = arrival_s.tolist(), service_s.tolist()
    total = len(times)
    now_s = 0.0
    while at < total:
        end_s = min(now_s + PASS_S, last_s)
        before = at
        # 1. Requests of the period.
        while at < total and (times[at] < end_s or end_s == last_s):
            replicas.put(times[at], services[at])
            at += 1
        # 2. What ended; what was held because no replica was ready.
        replicas.advance_to(end_s)
        replicas.release(end_s)
        charged_s += (len(replicas.live) + len(replicas.draining)) * (end_s - now_s)
        report(at - before)
        now_s = end_s
        # 3. The policy decides.
        desired = len(replicas.live)
        found = scaler.propose(_load(replicas, now_s, at), replicas)
        if found.replicas != desired:
            replicas.scale(now_s, found.replicas, start_s=model.cold_start_s)
            log.append(ReplicaChange(now_s, found.replicas, replicas.ready(now_s), found.reason))
    replicas.advance_to(math.inf)  # what becomes of the last requests
    late = replicas.late + len(replicas.unassigned) // 2
    return ServingRun(replica_hours=charged_s / 3600, within_slo=1 - late / total, lost=replicas.lost, log=tuple(log))


def _load(replicas: Replicas, now_s: float, arrived: int) -> Load:
    return Load(
        at_s=now_s,
        arrived=arrived,
        completed=replicas.completed,
        served_s=replicas.served_s,
        in_flight=replicas.in_flight(),
        waiting=replicas.waiting(now_s),
        saturated=float(replicas.model.slots) if replicas.saturated(now_s) else None,
        queued=replicas.saturated(now_s),
        replicas=len(replicas.live),
        ready=replicas.ready(now_s),
    )
