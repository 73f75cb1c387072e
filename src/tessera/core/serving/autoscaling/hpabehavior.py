"""How fast a HorizontalPodAutoscaler scales a model server: `behavior`, as it is rendered and simulated."""

from typing import Final, Literal

from tessera.core.serving.autoscaling.hpa import UP, Behavior, ScalingPolicy, ScalingRules

__all__ = ["scaling_behavior"]

_START_S: Final = 180
"""Seconds between two replicas that queue time adds one by one, without a controller that waits until the first one is
ready: starts that take longer overlap."""
_REMOVED_S: Final = 60
"""Seconds between two removed replicas, or parts of them."""
_REMOVED_PERCENT: Final = 20
"""How many of the replicas `tessera_replicas` removes at once, rounded up: up to five go one by one. Removing
one at a time would keep a surplus of ten for ten minutes (docs/decisions/0039-constants-of-the-autoscaler.md)."""
_WINDOW_S: Final = 600
"""Queue time does not show idle replicas, so scale down slowly. `tessera_replicas` already includes a delay."""


def scaling_behavior(metric: Literal["tessera", "queue-time"], *, one_by_one: bool) -> Behavior:
    """Return how fast replicas are added and removed: as Kubernetes does by default up, a few a minute down.

    Args:
        metric: what the server is scaled by.
        one_by_one: whether replicas must start one by one, and nothing but the time between them sees to it.

    """
    paced = one_by_one and metric == "queue-time"
    up = ScalingRules(policies=(ScalingPolicy(type="Pods", value=1, period_s=_START_S),)) if paced else UP
    if metric == "tessera":
        removed = ScalingPolicy(type="Percent", value=_REMOVED_PERCENT, period_s=_REMOVED_S)
        return Behavior(up=up, down=ScalingRules(policies=(removed,)))
    removed = ScalingPolicy(type="Pods", value=1, period_s=_REMOVED_S)
    return Behavior(up=up, down=ScalingRules(window_s=_WINDOW_S, policies=(removed,)))
