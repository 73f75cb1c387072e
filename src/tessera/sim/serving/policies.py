"""The policies that are compared, by name: published rules on the HorizontalPodAutoscaler, and Tessera's own.

All of them go through the same HorizontalPodAutoscaler as Kubernetes runs it (`core/serving/autoscaling/hpa`), every
15 seconds, with the defaults of autoscaling/v2; Tessera's with the `behavior` that is rendered for a model server.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from tessera.core.serving.autoscaling.autoscaler import AutoscalerState, ReplicaProposal, ScaledServer, propose
from tessera.core.serving.autoscaling.hpa import (
    Behavior,
    HpaDecision,
    HpaHistory,
    HpaPod,
    ReplicaBounds,
    advance,
    average_metric,
    pods_metric,
)
from tessera.core.serving.autoscaling.hpabehavior import scaling_behavior
from tessera.core.serving.autoscaling.scaletozero import IDLE_S, ReplicasMetric, step
from tessera.core.serving.metrics.load import Load
from tessera.sim.serving.replicamodel import Replica, ReplicaModel, Replicas
from tessera.sim.serving.run import Scaler

__all__ = ["POLICIES", "Policy", "in_flight"]

_QUEUE_US: Final = 50
"""Target of the published rule: microseconds of queue time, as Triton's Helm chart has it."""
_WAITING: Final = 5
"""Target of vLLM production-stack: waiting requests for each replica."""
_BUSY: Final = 0.9
"""Slots in use for each replica: of the targets from 0.8 to 1.1 the cheapest that keeps 99 % of the requests within the
objective on each 24 h series of `scripts/bench serving`, which compares them."""
_MILLI: Final = 1000


class _Hpa:
    """A HorizontalPodAutoscaler and what its controller remembers."""

    def __init__(self, max_replicas: int) -> None:
        self._bounds = ReplicaBounds(1, max_replicas)
        self._history = HpaHistory()

    def decide(self, proposed: int, load: Load, behavior: Behavior | None = None) -> int:
        """Return the replicas to set for a proposal."""
        found: HpaDecision = advance(
            self._history,
            proposed,
            load.at_s,
            current=load.replicas,
            bounds=self._bounds,
            behavior=behavior or Behavior(),
        )
        self._history = found.history
        return found.replicas


class _Published:
    """`avg(delta(queue_us[30s]) / (1 + delta(count[30s])))` of the pods, kept at 50: Triton's Helm chart."""

    def __init__(self, _model: ReplicaModel, max_replicas: int) -> None:
        self._hpa = _Hpa(max_replicas)
        self._former: list[dict[Replica, tuple[float, int]]] = []

    def propose(self, load: Load, replicas: Replicas) -> ReplicaProposal:
        now = {each: (each.queued_s * 1e6, each.completed) for each in replicas.live if each.ready_s <= load.at_s}
        # A window of 30 s has two samples at a scrape interval of 15 s: this one and the one before.
        before = self._former[-1] if self._former else now
        self._former = [now]
        pods = [HpaPod(value=_milli_us(counters, before.get(each))) for each, counters in now.items()]
        if not any(pod.value is not None for pod in pods):
            return ReplicaProposal(load.replicas, "no pod with a metric: unchanged")
        proposed = pods_metric(pods, _QUEUE_US * _MILLI, current=load.replicas)
        mean = sum(pod.value or 0 for pod in pods) / len(pods) / _MILLI
        return ReplicaProposal(self._hpa.decide(proposed, load), f"{mean:.0f} us of queue time, target {_QUEUE_US}")


def _milli_us(now: tuple[float, int], before: tuple[float, int] | None) -> int | None:
    if before is None:
        return None
    return int(_MILLI * (now[0] - before[0]) / (1 + now[1] - before[1]))


class _Waiting:
    """Waiting requests, five for each replica: vLLM production-stack's KEDA trigger."""

    def __init__(self, _model: ReplicaModel, max_replicas: int) -> None:
        self._hpa = _Hpa(max_replicas)

    def propose(self, load: Load, replicas: Replicas) -> ReplicaProposal:
        waiting = replicas.waiting(load.at_s)
        proposed = average_metric(waiting * _MILLI, _WAITING * _MILLI, replicas=load.replicas)
        return ReplicaProposal(
            self._hpa.decide(proposed, load), f"{waiting} waiting, target {_WAITING} for each replica"
        )


class _InFlight:
    """Requests in flight, 90 % of the slots."""

    def __init__(self, model: ReplicaModel, max_replicas: int, part: float = _BUSY) -> None:
        self._hpa = _Hpa(max_replicas)
        self._target = int(part * model.declared_slots * _MILLI)

    def propose(self, load: Load, _replicas: Replicas) -> ReplicaProposal:
        proposed = average_metric(load.in_flight * _MILLI, self._target, replicas=load.replicas)
        reason = f"{load.in_flight} in flight, target {self._target / _MILLI:g} for each replica"
        return ReplicaProposal(self._hpa.decide(proposed, load), reason)


class _Tessera:
    """Tessera's policy, as the external metric of the HorizontalPodAutoscaler that is rendered.

    Where replicas may be idle, the step between none and one is Tessera's controller's, as in a cluster.
    """

    def __init__(self, model: ReplicaModel, max_replicas: int) -> None:
        self._hpa = _Hpa(max_replicas)
        self._behavior = scaling_behavior("tessera", one_by_one=model.one_by_one)
        self._server = ScaledServer(
            slots=model.declared_slots,
            cold_start_s=model.cold_start_s,
            min_replicas=1 if model.idle_s is None else 0,
            idle_s=IDLE_S if model.idle_s is None else model.idle_s,
            max_replicas=max_replicas,
            one_by_one=model.one_by_one,
        )
        self._state = AutoscalerState()
        self._zero_s: float | None = None

    def propose(self, load: Load, _replicas: Replicas) -> ReplicaProposal:
        self._state, found = propose(self._state, load, self._server)
        if self._server.min_replicas == 0:
            desired = ReplicasMetric(replicas=found.replicas, at_s=load.at_s)
            taken = step(self._zero_s, load.replicas, desired, woken=False)
            self._zero_s = taken.zero_s
            if taken.replicas is not None:
                return ReplicaProposal(taken.replicas, found.reason)
            if load.replicas == 0:
                return ReplicaProposal(0, found.reason)
        proposed = average_metric(found.replicas * _MILLI, _MILLI, replicas=load.replicas)
        return ReplicaProposal(self._hpa.decide(proposed, load, self._behavior), found.reason)


Policy = Callable[[ReplicaModel, int], Scaler]
POLICIES: Final[Mapping[str, Policy]] = {
    "published": _Published,
    "waiting": _Waiting,
    "in-flight": _InFlight,
    "tessera": _Tessera,
}
"""Makes a policy for replicas of a model, and at most so many of them."""


def in_flight(part: float) -> Policy:
    """Return policy `in-flight` with another target: so much of the slots."""
    return partial(_InFlight, part=part)
