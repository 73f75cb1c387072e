"""Scale to zero: how long a model server stays awake, and who takes its last replica away and brings the first back.

A HorizontalPodAutoscaler does neither with `minReplicas: 1`: it leaves a Deployment alone that is at zero, says
`ScalingDisabled`, and goes on when there is a replica again. So the step between none and one is another's, in every
version of Kubernetes and with no feature gate, and all others stay the HorizontalPodAutoscaler's.
"""

from typing import Final

import msgspec

__all__ = ["IDLE_S", "ReplicasMetric", "Step", "awake", "step"]

IDLE_S: Final = 1200
"""A server is idle when no request came for so long, unless its user says otherwise."""
_SURE_S: Final = 30.0
"""Between two measurements that say zero: the second one saw the replicas that there are now."""


class ReplicasMetric(msgspec.Struct, frozen=True, kw_only=True):
    """The value of the autoscaler's metric."""

    replicas: float
    at_s: float
    """When it was measured."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done, and what is to be remembered for the next time."""

    replicas: int | None
    """Replicas to set; None to leave them to the HorizontalPodAutoscaler."""
    zero_s: float | None = None
    """When the metric was first zero with the replicas that there are."""


def awake(woken_s: float | None, idle_s: float, now_s: float) -> bool:
    """Return whether a server was woken so lately that it is not idle yet.

    Args:
        woken_s: when it was last woken; None for never. A time to come keeps it awake until then, too.
        idle_s: for how long it must have nothing to do.
        now_s: the time.

    """
    return woken_s is not None and now_s < woken_s + idle_s


def step(zero_s: float | None, replicas: int, asked: ReplicasMetric | None, *, woken: bool) -> Step:
    """Return what to do between none and one.

    A single measurement of zero takes no replica away: it may be older than a replica that somebody just asked for.

    Args:
        zero_s: `zero_s` of the step before; None at the first.
        replicas: that the Deployment asks for now.
        asked: what the metric said; None where nobody knows.
        woken: whether the server is awake by somebody's word.

    """
    needed = woken or (asked is not None and asked.replicas > 0)
    if replicas == 0:
        return Step(replicas=1 if needed else None)
    if needed or asked is None:
        return Step(replicas=None)
    first_s = asked.at_s if zero_s is None else min(zero_s, asked.at_s)
    if asked.at_s - first_s < _SURE_S:
        return Step(replicas=None, zero_s=first_s)
    return Step(replicas=0)
