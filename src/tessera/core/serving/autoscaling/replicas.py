"""The desired replicas of a model server now: by the cluster's state, the measurements, and the policy.

It never requests more replicas while the scheduler has no place for one of the present ones: more would not help. Of
those that do not fit on the present GPUs it requests one: a pending pod is what MIG instances are created for, and what
makes a cluster autoscaler add a node.
"""

import math
from statistics import median
from typing import Final

import msgspec

from tessera.core.serving.autoscaling.autoscaler import AutoscalerState, ReplicaProposal, ScaledServer, propose, serves
from tessera.core.serving.autoscaling.decisions import LastDecision, ScalingDecision, decide
from tessera.core.serving.autoscaling.serverfacts import ServerFacts
from tessera.core.serving.metrics.counters import Unmeasured
from tessera.core.serving.metrics.load import Load

__all__ = ["ScalingState", "decide_replicas"]

_COLD_START_S: Final = 120.0
"""Before one was measured. Source: llm-d measured 100 to 139 s for a vLLM with an 8B model."""
_LEAST_COLD_START_S, _MOST_COLD_START_S = 5.0, 1800.0


class ScalingState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a model server between passes."""

    autoscaler: AutoscalerState = AutoscalerState()
    decided: LastDecision | None = None


def decide_replicas(
    former: ScalingState, facts: ServerFacts, load: Load | Unmeasured, now_s: float
) -> tuple[ScalingState, ScalingDecision]:
    """Return the new state, and the desired replicas.

    Args:
        former: the state returned by the former pass; empty in the first.
        facts: of the server.
        load: as measured, or why it was not.
        now_s: the time.

    """
    deployment = f"Deployment {facts.deployment}" if facts.deployment else "its Deployment"
    if facts.max_replicas is None:
        return ScalingState(), _none(f"no HorizontalPodAutoscaler targets {deployment}, so there are no bounds")
    if facts.trouble:
        return ScalingState(), ScalingDecision(replicas=None, reason=facts.trouble, bad=True)
    if facts.slots is None:
        reason = (
            f"the number of requests that a replica serves at once is unknown; annotate {deployment} with "
            "serving.tessera.dev/slots"
        )
        return ScalingState(), ScalingDecision(replicas=None, reason=reason, bad=facts.decided)
    if facts.replicas == 0 and facts.min_replicas > 0:
        return ScalingState(), _none(
            f"{deployment} was scaled to zero by hand, and its autoscaler does not change that"
        )
    return _decide_by_load(former, facts, load, now_s, max_replicas=facts.max_replicas, slots=facts.slots)


def _decide_by_load(
    former: ScalingState, facts: ServerFacts, load: Load | Unmeasured, now_s: float, *, max_replicas: int, slots: int
) -> tuple[ScalingState, ScalingDecision]:
    """Return the new state, and the decision by what is measured, for a server with bounds and slots."""
    # 1. While no replica serves, the requests that wait in front count. Without a measurement the last decision does.
    load = _load_or_unserved(former.autoscaler, facts, load, now_s) if facts.min_replicas == 0 else load
    if isinstance(load, Unmeasured):
        decided, decision = decide(former.decided, load, now_s)
        return ScalingState(autoscaler=former.autoscaler, decided=decided), decision
    # 2. Propose replicas, at most as many as there is room for.
    max_replicas, limit_text = _limit_to_room(facts, max_replicas)
    server = ScaledServer(
        slots=slots,
        revision=facts.revision,
        cold_start_s=_cold_start_s(facts),
        min_replicas=min(facts.min_replicas, max_replicas),
        idle_s=facts.idle_s,
        max_replicas=max_replicas,
        one_by_one=facts.one_by_one,
    )
    load = msgspec.structs.replace(load, revision=None if facts.rolling else facts.revision)
    autoscaler, found = propose(former.autoscaler, load, server)
    # 3. Say what limits it, and keep the decision for passes without a measurement.
    proposal = ReplicaProposal(found.replicas, found.reason + limit_text) if found.replicas == max_replicas else found
    if facts.pending_requests is None and not facts.ready and not found.replicas:
        proposal = ReplicaProposal(0, "the wake-up query failed, and nothing else woke it")
    decided, decision = decide(former.decided, proposal, now_s)
    return ScalingState(autoscaler=autoscaler, decided=decided), decision


def _load_or_unserved(
    autoscaler: AutoscalerState, facts: ServerFacts, load: Load | Unmeasured, now_s: float
) -> Load | Unmeasured:
    """Return the load as measured, or of a server of which no replica serves: only an external source counts then."""
    pending = math.ceil(facts.pending_requests or 0)
    unserved = Load(
        at_s=now_s,
        arrived=0,
        completed=0,
        served_s=0.0,
        in_flight=pending,
        replicas=facts.replicas,
        ready=facts.ready,
    )
    if not serves(autoscaler, unserved if isinstance(load, Unmeasured) else load):
        load = unserved
    return load if isinstance(load, Unmeasured) else msgspec.structs.replace(load, woken_s=facts.woken_s)


def _limit_to_room(facts: ServerFacts, max_replicas: int) -> tuple[int, str]:
    """Return the most replicas to request, and the text of an event if the cluster has no more room."""
    there = max(facts.replicas, 1)
    if facts.unschedulable and there <= max_replicas:
        pods = "1 pod is" if facts.unschedulable == 1 else f"{facts.unschedulable} pods are"
        return there, f"; limited to {there}: {pods} unschedulable"
    if facts.room is None or there + facts.room + 1 >= max_replicas:
        return max_replicas, ""
    most = there + facts.room + 1
    if facts.room_unknown:
        text = "room on the GPUs is unknown (cluster not read in time); one more is requested"
    else:
        room = f"room for {facts.room} more" if facts.room else "no room for more"
        text = f"the GPUs have {room}; another one is requested so that MIG instances or a node are added"
    return most, f"; limited to {most}: {text}"


def _none(reason: str) -> ScalingDecision:
    return ScalingDecision(replicas=None, reason=reason)


def _cold_start_s(facts: ServerFacts) -> float:
    usual = median(facts.started_s) if facts.started_s else _COLD_START_S
    return min(max(facts.cold_start_s or usual, _LEAST_COLD_START_S), _MOST_COLD_START_S)
