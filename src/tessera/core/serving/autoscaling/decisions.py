"""The decision on the replicas of a model server: by the cluster's state, the measurements, and the policy.

It never requests more replicas while the scheduler has no place for one of the present ones: more would not help. Of
those that do not fit on the present GPUs it requests one: a pending pod is what MIG instances are created for, and what
makes a cluster autoscaler add a node.

While the input is invalid the last valid decision counts for a while, then there is none, and the reason says why. No
answer is safe: a HorizontalPodAutoscaler whose metric cannot be read leaves the replicas as they are, reports it in its
condition `ScalingActive`, and does not scale down by its other metrics either.
"""

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

import msgspec

from tessera.core.serving.autoscaling.autoscaler import (
    AutoscalerState,
    ReplicaProposal,
    ScaledServer,
    propose,
    replicas_text,
    serves,
)
from tessera.core.serving.autoscaling.scaletozero import IDLE_S
from tessera.core.serving.autoscaling.serverfacts import ModelDeployment, ServerFacts
from tessera.core.serving.metrics.counters import Unmeasured
from tessera.core.serving.metrics.load import Load

__all__ = [
    "KEPT_S",
    "DecisionReport",
    "LastDecision",
    "ScalingDecision",
    "ScalingState",
    "decide_replicas",
    "keep_last",
    "report_of",
]

_COLD_START_S: Final = 120.0
"""Before one was measured. Source: llm-d measured 100 to 139 s for a vLLM with an 8B model."""
_LEAST_COLD_START_S, _MOST_COLD_START_S = 5.0, 1800.0
KEPT_S: Final = 300.0
"""A decision is valid this long without a new one: as long as Kubernetes' own stabilization window for scaling down."""


class ScalingDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The autoscaler's answer."""

    replicas: int | None
    """None for no answer: the replicas stay as they are."""
    reason: str
    bad: bool = False
    """Whether the input was invalid: not if it is only too early."""
    earlier: bool = False
    """Whether it is an earlier decision that still counts."""


class LastDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The last valid decision."""

    at_s: float
    replicas: int
    reason: str


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
    deployment = facts.deployment
    named = "its Deployment" if deployment is None else f"Deployment {deployment.name}"
    if deployment is None or facts.bounds is None:
        return ScalingState(), _none(f"no HorizontalPodAutoscaler targets {named}, so there are no bounds")
    if deployment.problem:
        return ScalingState(), ScalingDecision(replicas=None, reason=deployment.problem, bad=True)
    if deployment.slots is None:
        reason = (
            f"the number of requests that a replica serves at once is unknown; annotate {named} with "
            "serving.tessera.dev/slots"
        )
        return ScalingState(), ScalingDecision(replicas=None, reason=reason, bad=facts.uses_decision)
    if facts.replicas == 0 and facts.min_replicas > 0:
        return ScalingState(), _none(f"{named} was scaled to zero by hand, and its autoscaler does not change that")
    bounds = facts.bounds
    server = ScaledServer(
        slots=deployment.slots,
        revision=deployment.revision,
        cold_start_s=_cold_start_s(deployment, facts.started_s),
        min_replicas=facts.min_replicas,
        idle_s=IDLE_S if deployment.idle_s is None else deployment.idle_s,
        max_replicas=bounds.max_replicas,
        one_by_one=deployment.one_by_one,
    )
    load = _with_deployment(former.autoscaler, facts, deployment, load, now_s)
    return _decide_by_load(former, facts, server, load, now_s)


def _decide_by_load(
    former: ScalingState, facts: ServerFacts, server: ScaledServer, load: Load | Unmeasured, now_s: float
) -> tuple[ScalingState, ScalingDecision]:
    """Return the new state, and the decision by what is measured; without a measurement the last one counts."""
    if isinstance(load, Unmeasured):
        decided, decision = keep_last(former.decided, load, now_s)
        return ScalingState(autoscaler=former.autoscaler, decided=decided), decision
    autoscaler, proposal = propose(former.autoscaler, load, _limit_to_room(facts, server))
    if facts.pending_requests is None and not facts.ready and not proposal.replicas:
        proposal = ReplicaProposal(0, "the wake-up query failed, and nothing else woke it")
    decided, decision = keep_last(former.decided, proposal, now_s)
    return ScalingState(autoscaler=autoscaler, decided=decided), decision


def _with_deployment(
    autoscaler: AutoscalerState,
    facts: ServerFacts,
    deployment: ModelDeployment,
    load: Load | Unmeasured,
    now_s: float,
) -> Load | Unmeasured:
    """Return the load as measured, with what the Deployment says of it; while no replica serves, that of the queue."""
    if facts.min_replicas == 0:
        unserved = Load(
            at_s=now_s,
            arrived=0,
            completed=0,
            served_s=0.0,
            in_flight=math.ceil(facts.pending_requests or 0),
            replicas=facts.replicas,
            ready=facts.ready,
        )
        if not serves(autoscaler, unserved if isinstance(load, Unmeasured) else load):
            load = unserved  # only an external source counts then
    if isinstance(load, Unmeasured):
        return load
    woken_s = deployment.woken_s if facts.min_replicas == 0 else load.woken_s
    return msgspec.structs.replace(load, woken_s=woken_s, revision=None if deployment.rolling else deployment.revision)


def _limit_to_room(facts: ServerFacts, server: ScaledServer) -> ScaledServer:
    """Return the server with the most replicas to request, and why these are fewer than the user's, if they are."""
    there = max(facts.replicas, 1)
    most = there if facts.unschedulable else there + facts.room + 1 if facts.room is not None else server.max_replicas
    if most > server.max_replicas or (most == server.max_replicas and not facts.unschedulable):
        return server
    if facts.unschedulable:
        text = "1 pod is unschedulable" if facts.unschedulable == 1 else f"{facts.unschedulable} pods are unschedulable"
    elif facts.room_problem:
        text = f"room on the GPUs is unknown ({facts.room_problem}), and one more is requested"
    else:
        room = f"room for {facts.room} more" if facts.room else "no room for more"
        text = f"the GPUs have {room}, and another one is requested so that MIG instances or a node are added"
    return msgspec.structs.replace(
        server, min_replicas=min(server.min_replicas, most), max_replicas=most, limited_because=text
    )


def _none(reason: str) -> ScalingDecision:
    return ScalingDecision(replicas=None, reason=reason)


def _cold_start_s(deployment: ModelDeployment, started_s: Sequence[float]) -> float:
    usual = median(started_s) if started_s else _COLD_START_S
    return min(max(deployment.cold_start_s or usual, _LEAST_COLD_START_S), _MOST_COLD_START_S)


def keep_last(
    former: LastDecision | None, proposed: ReplicaProposal | Unmeasured, now_s: float
) -> tuple[LastDecision | None, ScalingDecision]:
    """Return the decision to remember, and the decision: the last one counts for a while where there is no proposal.

    Args:
        former: the last valid decision; None for none.
        proposed: a proposal, or why there is none.
        now_s: the time.

    """
    if isinstance(proposed, ReplicaProposal):
        return LastDecision(at_s=now_s, replicas=proposed.replicas, reason=proposed.reason), ScalingDecision(
            replicas=proposed.replicas, reason=proposed.reason
        )
    # Zero is not kept: it would remove the last replica of a server that may serve, and cannot be observed.
    if former is not None and former.replicas and 0 <= now_s - former.at_s < KEPT_S:
        kept = f"the decision of {now_s - former.at_s:.0f} s ago is kept for {KEPT_S / 60:.0f} minutes"
        reason = f"{proposed.reason}; {kept}"
        return former, ScalingDecision(
            replicas=former.replicas, reason=reason, bad=not proposed.too_early, earlier=True
        )
    reason = f"{proposed.reason}; the replicas do not change"
    return None, ScalingDecision(replicas=None, reason=reason, bad=not proposed.too_early)


class DecisionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The event of a decision."""

    reason: str
    message: str
    warning: bool


def report_of(facts: ServerFacts, decision: ScalingDecision) -> DecisionReport | None:
    """Return the event of a decision; None where nothing uses it, or it is too early for one."""
    if not facts.uses_decision or (decision.replicas is None and not decision.bad):
        return None
    count = "no number of replicas" if decision.replicas is None else replicas_text(decision.replicas)
    return DecisionReport(
        reason="ScalingInputBad" if decision.bad else "ReplicasProposed",
        message=f"{count}: {decision.reason}",
        warning=decision.bad,
    )
