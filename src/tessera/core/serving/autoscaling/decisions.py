"""The autoscaler's answer while its input is invalid: the last valid decision for a while, then none, and why.

No answer is safe: a HorizontalPodAutoscaler whose metric cannot be read leaves the replicas as they are, reports it
in its condition `ScalingActive`, and does not scale down by its other metrics either.
"""

from typing import Final

import msgspec

from tessera.core.serving.autoscaling.autoscaler import ReplicaProposal, replicas_text
from tessera.core.serving.autoscaling.serverfacts import ServerFacts
from tessera.core.serving.metrics.counters import Unmeasured

__all__ = ["KEPT_S", "DecisionReport", "LastDecision", "ScalingDecision", "decide", "report_of"]

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


def decide(
    former: LastDecision | None, proposed: ReplicaProposal | Unmeasured, now_s: float
) -> tuple[LastDecision | None, ScalingDecision]:
    """Return the new state, and the decision.

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
    if not facts.decided or (decision.replicas is None and not decision.bad):
        return None
    count = "no number of replicas" if decision.replicas is None else replicas_text(decision.replicas)
    return DecisionReport(
        reason="ScalingInputBad" if decision.bad else "ReplicasProposed",
        message=f"{count}: {decision.reason}",
        warning=decision.bad,
    )
