"""The HorizontalPodAutoscaler (autoscaling/v2) as pure functions: from metrics to the number of replicas.

The work of kube-controller-manager every 15 seconds, in its order: each metric proposes a number of replicas
(`pods_metric`, `object_metric`, `average_metric`), `highest_proposal` chooses among them, and `advance` stabilizes,
limits the rate and keeps to the bounds. Metric values and targets are milli-units, integers, as in Kubernetes.

The simulator uses `pods_metric`, `average_metric` and `advance` with a `behavior`. Targets in percent of requests,
`object_metric`, `highest_proposal` and `advance` without a `behavior` complete the algorithm; only tests call them.

Source: kubernetes/kubernetes pkg/controller/podautoscaler (replica_calculator.go, horizontal.go), Kubernetes 1.36.3.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final, Literal

import msgspec

from tessera.errors import InvalidInput, Unavailable

__all__ = [
    "DOWN",
    "UP",
    "Behavior",
    "HpaDecision",
    "HpaHistory",
    "HpaPod",
    "HpaRecommendation",
    "LimitReason",
    "PodState",
    "ReplicaBounds",
    "ScaleEvent",
    "ScalingPolicy",
    "ScalingRules",
    "Tolerance",
    "Utilization",
    "advance",
    "average_metric",
    "highest_proposal",
    "object_metric",
    "pods_metric",
]


class PodState(StrEnum):
    """How a pod counts."""

    READY = "ready"
    """Running; for a CPU metric also past its initialization."""
    UNREADY = "unready"
    """Pending; for a CPU metric also one that is still initializing. Its metric is dropped."""
    IGNORED = "ignored"
    """Being deleted, or failed. Its metric is dropped."""


class HpaPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod of the target and its metric."""

    state: PodState = PodState.READY
    value: int | None = None
    """Milli-units; None where the metric is missing."""
    request: int = 0
    """Milli-units that the pod requests, for a target in percent of it."""


class Tolerance(msgspec.Struct, frozen=True, kw_only=True):
    """How far the ratio of metric to target may be from 1 without scaling."""

    down: float = 0.1
    up: float = 0.1

    def allows(self, ratio: float) -> bool:
        """Return whether a ratio is near enough to 1."""
        return 1.0 - self.down <= ratio <= 1.0 + self.up


class Utilization(msgspec.Struct, frozen=True):
    """A target in percent of what the pods request."""

    percent: int


_USUAL: Final = Tolerance()
Target = int | Utilization
"""Milli-units for each pod, or a percentage of its request."""


def pods_metric(
    pods: Sequence[HpaPod],
    target: Target,
    *,
    current: int,
    superfluous: Sequence[int] = (),
    tolerance: Tolerance = _USUAL,
) -> int:
    """Return the replicas that a metric of the pods themselves proposes.

    Args:
        pods: the pods that the target's selector matches.
        target: for the mean of the metric.
        current: replicas in the target's spec.
        superfluous: values of pods that the selector does not match; they count in the mean.
        tolerance: how far the mean may be from the target.

    Raises:
        Unavailable: no pod, no pod with a metric, or a share of requests where nothing is requested; the number of
            replicas stays.

    """
    if not pods:
        raise Unavailable("pods of the metric", found="no pods returned by the selector", hint="check the selector")
    alive = [each for each in pods if each.state is not PodState.IGNORED]
    unready = [each for each in alive if each.state is PodState.UNREADY]
    missing = [each for each in alive if each.state is PodState.READY and each.value is None]
    ready = [(each.value, each.request) for each in alive if each.state is PodState.READY and each.value is not None]
    known = [*ready, *((value, 0) for value in superfluous)]
    if not known:
        raise Unavailable(
            "metric of the pods",
            found="no metrics for the pods (they might be unready)",
            hint="wait until they are ready",
        )
    first = _ratio(known, target)
    rising = first > 1.0
    if not missing and not (unready and rising):
        return current if tolerance.allows(first) else math.ceil(first * len(ready))
    filled = [*known, *_assume_values(missing, unready, target, first)]
    second = _ratio(filled, target)
    if tolerance.allows(second) or (first < 1.0 < second) or (second < 1.0 < first):
        return current
    proposed = math.ceil(second * len(filled))
    turned = proposed > current if second < 1.0 else proposed < current
    return current if turned else proposed


def _assume_values(
    missing: Iterable[HpaPod], unready: Iterable[HpaPod], target: Target, ratio: float
) -> list[tuple[int, int]]:
    """Return the values of pods without a metric: against the direction, as what the target allows or as nothing."""
    rising = ratio > 1.0
    found = [(0 if rising else _full(each, target), each.request) for each in missing] if ratio != 1.0 else []
    return found + [(0, each.request) for each in unready] if rising else found


def _ratio(known: Sequence[tuple[int, int]], target: Target) -> float:
    total = sum(value for value, _ in known)
    if isinstance(target, Utilization):
        requested = sum(request for _, request in known)
        if not requested:
            raise Unavailable(
                "metric of the pods", found="the pods request nothing", hint="set requests to compare with"
            )
        return (100 * total // requested) / target.percent
    return (total // len(known)) / target


def _full(pod: HpaPod, target: Target) -> int:
    return pod.request * max(100, target.percent) // 100 if isinstance(target, Utilization) else target


def object_metric(value: int, target: int, *, current: int, ready: int, tolerance: Tolerance = _USUAL) -> int:
    """Return the replicas that the value of one object, or an external metric, proposes (target type `Value`).

    Args:
        value: of the metric; of an external one the sum of its series.
        target: the value to keep to.
        current: replicas in the target's spec.
        ready: pods that are running and ready.
        tolerance: how far the value may be from the target.

    """
    ratio = value / target
    if current == 0:
        return math.ceil(ratio)
    return current if tolerance.allows(ratio) else math.ceil(ratio * ready)


def average_metric(value: int, target: int, *, replicas: int, tolerance: Tolerance = _USUAL) -> int:
    """Return the replicas that such a value proposes if it is shared by the replicas (target type `AverageValue`).

    Args:
        value: of the metric; of an external one the sum of its series.
        target: for each replica.
        replicas: in the target's status.
        tolerance: how far the value may be from the target.

    """
    if replicas and tolerance.allows(value / (target * replicas)):
        return replicas
    return math.ceil(value / target)


def highest_proposal(proposals: Iterable[int | None], *, current: int) -> int:
    """Return the desired replicas: the highest proposal.

    Args:
        proposals: of each metric; None for one that could not be read.
        current: replicas in the target's spec.

    Raises:
        Unavailable: no metric could be read, or not all, and the others propose fewer replicas than at present.

    """
    read = [*proposals]
    found = [each for each in read if each is not None]
    if not found or (len(found) < len(read) and max(found) < current):
        raise Unavailable(
            "metrics",
            found=f"{len(read) - len(found)} of {len(read)} are not readable",
            hint="see the events of the HorizontalPodAutoscaler",
        )
    return max(found)


class ScalingPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How many replicas may be added or removed in a period."""

    type: Literal["Pods", "Percent"]
    value: int
    period_s: float


class ScalingRules(msgspec.Struct, frozen=True, kw_only=True):
    """One direction of `behavior`."""

    window_s: float = 0.0
    """`stabilizationWindowSeconds`."""
    select: Literal["Max", "Min", "Disabled"] = "Max"
    policies: tuple[ScalingPolicy, ...] = ()


UP: Final = ScalingRules(
    policies=(
        ScalingPolicy(type="Pods", value=4, period_s=15),
        ScalingPolicy(type="Percent", value=100, period_s=15),
    )
)
"""What the API server fills in for `behavior.scaleUp`."""
DOWN: Final = ScalingRules(window_s=300, policies=(ScalingPolicy(type="Percent", value=100, period_s=15),))
"""What the API server fills in for `behavior.scaleDown`."""


class Behavior(msgspec.Struct, frozen=True, kw_only=True):
    """How fast replicas are added and removed."""

    up: ScalingRules = UP
    down: ScalingRules = DOWN


class HpaRecommendation(msgspec.Struct, frozen=True):
    """A proposed number of replicas, before stabilization."""

    at_s: float
    replicas: int


class ScaleEvent(msgspec.Struct, frozen=True):
    """A change of the number of replicas: positive for added, negative for removed ones."""

    at_s: float
    change: int


class HpaHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The controller's state of one HorizontalPodAutoscaler; lost when it restarts."""

    recommendations: tuple[HpaRecommendation, ...] = ()
    added: tuple[ScaleEvent, ...] = ()
    """With a `behavior`: in the order of Kubernetes, where an event replaces one that its direction no longer needs."""
    removed: tuple[ScaleEvent, ...] = ()


class LimitReason(StrEnum):
    """Reason of the condition `ScalingLimited`."""

    NONE = "DesiredWithinRange"
    UP = "ScaleUpLimit"
    DOWN = "ScaleDownLimit"
    MAX = "TooManyReplicas"
    MIN = "TooFewReplicas"


class HpaDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one sync, with its conditions."""

    replicas: int
    history: HpaHistory
    able: Literal["ReadyForNewScale", "ScaleUpStabilized", "ScaleDownStabilized"] = "ReadyForNewScale"
    """Reason of the condition `AbleToScale`."""
    limited: LimitReason = LimitReason.NONE


class ReplicaBounds(msgspec.Struct, frozen=True):
    """`minReplicas` and `maxReplicas`."""

    min_replicas: int
    max_replicas: int

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.max_replicas or self.max_replicas < 1:
            raise InvalidInput(
                "replicas",
                found=f"they are from {self.min_replicas} to {self.max_replicas}",
                hint="give 0 <= min_replicas <= max_replicas, and max_replicas at least 1",
            )


def advance(
    history: HpaHistory,
    proposed: int,
    now_s: float,
    *,
    current: int,
    bounds: ReplicaBounds,
    behavior: Behavior | None = None,
) -> HpaDecision:
    """Return the number of replicas to set, and the new history.

    Args:
        history: the state returned by the former sync; empty in the first.
        proposed: by the metrics.
        now_s: any clock's time.
        current: replicas in the target's spec.
        bounds: minimum and maximum of replicas.
        behavior: as the API server filled it in; None as before autoscaling/v2, with the controller's own window.

    """
    # The first recommendation is the present number, so that a restarted controller does not scale down at once.
    former = history.recommendations or (HpaRecommendation(now_s, current),)
    known = msgspec.structs.replace(history, recommendations=former)
    if current == 0 and bounds.min_replicas > 0:
        return HpaDecision(replicas=0, history=known)  # disabled by hand
    if not bounds.min_replicas <= current <= bounds.max_replicas:
        replicas = min(max(current, bounds.min_replicas), bounds.max_replicas)
        return HpaDecision(replicas=replicas, history=_with_event(known, now_s, replicas - current, behavior))
    if behavior is None:
        stable, able = _highest_of_window(former, proposed, now_s)
        replicas, limited = _clamp(stable, bounds, highest=max(2 * current, 4), lowest=0)
    else:
        stable, able = _stabilize(former, proposed, now_s, current=current, behavior=behavior)
        events = (*history.added, *history.removed)
        replicas, limited = _limit_rate(events, stable, now_s, current=current, bounds=bounds, behavior=behavior)
    kept = tuple(each for each in former if each.at_s > now_s - _LONGEST_S)
    known = msgspec.structs.replace(known, recommendations=(*kept, HpaRecommendation(now_s, proposed)))
    known = _with_event(known, now_s, replicas - current, behavior)
    return HpaDecision(replicas=replicas, history=known, able=able, limited=limited)


_LONGEST_S: Final = 3600
"""The longest window that Kubernetes allows."""
_WINDOW_S: Final = 300
"""`--horizontal-pod-autoscaler-downscale-stabilization`."""


def _with_event(history: HpaHistory, now_s: float, change: int, behavior: Behavior | None) -> HpaHistory:
    if not change or behavior is None:
        return history
    event = ScaleEvent(now_s, change)
    if change > 0:
        return msgspec.structs.replace(history, added=_stored(history.added, event, behavior.up))
    return msgspec.structs.replace(history, removed=_stored(history.removed, event, behavior.down))


def _stored(events: tuple[ScaleEvent, ...], event: ScaleEvent, scaling: ScalingRules) -> tuple[ScaleEvent, ...]:
    """Return the events of one direction with a new one, in the place of the last that its periods do not need.

    One event at a time is forgotten, and by the periods of its own direction alone: it does not count any more for a
    longer period of the other direction, while other old events still do.
    """
    longest_s = max((each.period_s for each in scaling.policies), default=0.0)
    old = [at for at, each in enumerate(events) if each.at_s < event.at_s - longest_s]
    place = old[-1] if old else len(events)
    return (*events[:place], event, *events[place + 1 :])


_Able = Literal["ReadyForNewScale", "ScaleUpStabilized", "ScaleDownStabilized"]


def _highest_of_window(former: Iterable[HpaRecommendation], proposed: int, now_s: float) -> tuple[int, _Able]:
    stable = max([proposed, *(each.replicas for each in former if each.at_s >= now_s - _WINDOW_S)])
    return stable, "ScaleDownStabilized" if stable != proposed else "ReadyForNewScale"


def _stabilize(
    former: Iterable[HpaRecommendation], proposed: int, now_s: float, *, current: int, behavior: Behavior
) -> tuple[int, _Able]:
    recent = [*former]
    lowest = min([proposed, *(each.replicas for each in recent if each.at_s > now_s - behavior.up.window_s)])
    largest = max([proposed, *(each.replicas for each in recent if each.at_s > now_s - behavior.down.window_s)])
    stable = min(max(current, lowest), largest)
    if stable == proposed:
        return stable, "ReadyForNewScale"
    return stable, "ScaleUpStabilized" if proposed >= current else "ScaleDownStabilized"


def _limit_rate(
    events: tuple[ScaleEvent, ...],
    stable: int,
    now_s: float,
    *,
    current: int,
    bounds: ReplicaBounds,
    behavior: Behavior,
) -> tuple[int, LimitReason]:
    if stable > current:
        highest = max(current, _rate_bound(behavior.up, events, now_s, current=current, up=True))
        return _clamp(stable, bounds, highest=highest, lowest=0)
    if stable < current:
        lowest = min(current, _rate_bound(behavior.down, events, now_s, current=current, up=False))
        return _clamp(stable, bounds, highest=bounds.max_replicas, lowest=lowest)
    return stable, LimitReason.NONE


def _rate_bound(scaling: ScalingRules, events: tuple[ScaleEvent, ...], now_s: float, *, current: int, up: bool) -> int:
    """Return the replicas that the rate allows: the most when scaling up, the fewest when scaling down."""
    if scaling.select == "Disabled" or not scaling.policies:
        return current
    proposals = []
    for policy in scaling.policies:
        begin = current - sum(each.change for each in events if each.at_s > now_s - policy.period_s)
        share = policy.value / 100 if policy.type == "Percent" else 0.0
        if policy.type == "Pods":
            proposals.append(begin + policy.value if up else begin - policy.value)
        elif up:
            proposals.append(math.ceil(begin * (1 + share)))  # rounded up, or few replicas would never grow
        else:
            proposals.append(int(begin * (1 - share)))
    most_change: Callable[[list[int]], int] = max if up else min
    least_change: Callable[[list[int]], int] = min if up else max
    return most_change(proposals) if scaling.select == "Max" else least_change(proposals)


def _clamp(stable: int, bounds: ReplicaBounds, *, highest: int, lowest: int) -> tuple[int, LimitReason]:
    """Return the replicas within the bounds and the rate, and which of them was the limit."""
    if stable > min(bounds.max_replicas, highest):
        by_rate = highest < bounds.max_replicas
        return (highest, LimitReason.UP) if by_rate else (bounds.max_replicas, LimitReason.MAX)
    if stable < max(bounds.min_replicas, lowest):
        by_rate = lowest > bounds.min_replicas
        return (lowest, LimitReason.DOWN) if by_rate else (bounds.min_replicas, LimitReason.MIN)
    return stable, LimitReason.NONE
