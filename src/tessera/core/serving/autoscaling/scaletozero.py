"""Scale to zero: how long a model server stays awake, and the steps between zero and one replica.

A HorizontalPodAutoscaler does neither with `minReplicas: 1`: it leaves a Deployment alone that is at zero, reports
`ScalingDisabled`, and continues when there is a replica again. So Tessera does the step between zero and one, in every
version of Kubernetes and without a feature gate, and the HorizontalPodAutoscaler all others.
"""

from typing import Final

import msgspec

__all__ = ["IDLE_S", "ReplicasMetric", "ZeroStep", "is_awake", "step"]

IDLE_S: Final = 1200
"""A server is idle after this long without a request, unless its spec says otherwise."""
_CONFIRMED_S: Final = 30.0
"""Between two measurements of zero: the second one counts the present replicas."""


class ReplicasMetric(msgspec.Struct, frozen=True, kw_only=True):
    """The value of the autoscaler's metric."""

    replicas: float
    at_s: float
    """When it was measured."""


class ZeroStep(msgspec.Struct, frozen=True, kw_only=True):
    """The step to take, and the state for the next one."""

    replicas: int | None
    """Replicas to set; None to leave them to the HorizontalPodAutoscaler."""
    zero_s: float | None = None
    """When the metric was first zero with the present replicas."""


def is_awake(woken_s: float | None, idle_s: float, now_s: float) -> bool:
    """Return whether a server was woken so recently that it is not idle yet.

    Args:
        woken_s: when it was last woken; None for never. A future time keeps it awake until then, too.
        idle_s: for how long it must have no requests.
        now_s: the time.

    """
    return woken_s is not None and now_s < woken_s + idle_s


def step(zero_s: float | None, replicas: int, desired: ReplicasMetric | None, *, woken: bool) -> ZeroStep:
    """Return the step between zero and one.

    A single measurement of zero removes no replica: it may be older than a replica that was just requested.

    Args:
        zero_s: `zero_s` of the former step; None in the first.
        replicas: desired by the Deployment now.
        desired: the metric; None where unknown.
        woken: whether the server was woken.

    """
    needed = woken or (desired is not None and desired.replicas > 0)
    if replicas == 0:
        return ZeroStep(replicas=1 if needed else None)
    if needed or desired is None:
        return ZeroStep(replicas=None)
    first_s = desired.at_s if zero_s is None else min(zero_s, desired.at_s)
    if desired.at_s - first_s < _CONFIRMED_S:
        return ZeroStep(replicas=None, zero_s=first_s)
    return ZeroStep(replicas=0)
