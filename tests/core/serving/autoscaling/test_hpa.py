"""The HorizontalPodAutoscaler's arithmetic, case by case as kube-controller-manager's own tests have it, and laws.

The numbers are those of replica_calculator_test.go and horizontal_test.go of kubernetes/kubernetes, written anew, and
what the real controller answered in sequences of syncs (tests/data/hpa).
"""

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tessera.core.serving.autoscaling.hpa import (
    DOWN,
    UP,
    Behavior,
    HpaHistory,
    HpaPod,
    HpaRecommendation,
    LimitReason,
    PodState,
    ReplicaBounds,
    ScaleEvent,
    ScalingPolicy,
    ScalingRules,
    Tolerance,
    Utilization,
    advance,
    average_metric,
    highest_proposal,
    object_metric,
    pods_metric,
)
from tessera.errors import InvalidInput, Unavailable

READY, PENDING, GONE = PodState.READY, PodState.UNREADY, PodState.IGNORED


def pods(*values: int | None, pending: int = 0, gone: int = 0, request: int = 0) -> tuple[HpaPod, ...]:
    return (
        *(HpaPod(value=value, request=request) for value in values),
        *(HpaPod(state=PENDING, value=values[0] if values else 1, request=request) for _ in range(pending)),
        *(HpaPod(state=GONE, value=10**6, request=request) for _ in range(gone)),
    )


# Keyed by a sentence: pods, target, replicas now, replicas proposed.
MEANS: dict[str, tuple[tuple[HpaPod, ...], int, int, int]] = {
    "above the target": (pods(20000, 10000, 30000), 15000, 3, 4),
    "far above": (pods(50000, 50000, 50000), 10000, 3, 15),
    "just above, within tolerance": (pods(20000, 21000, 21000), 20000, 3, 3),
    "the mean is cut to an integer": (pods(2, 2, 3), 2, 3, 3),
    "at the upper edge of tolerance": (pods(11000), 10000, 1, 1),
    "beyond the upper edge": (pods(11001), 10000, 1, 2),
    "at the lower edge": (pods(9000, 9000), 10000, 2, 2),
    "beyond the lower edge, rounded up": (pods(8999, 8999), 10000, 2, 2),
    "below the target": (pods(12000, 12000, 12000, 12000, 12000), 20000, 5, 3),
    "far below": (pods(1000, 1000, 1000, 1000), 10000, 4, 1),
    "nothing is used": (pods(0, 0, 0), 10000, 3, 0),
    "a ready count below the spec": (pods(20000, 20000), 10000, 3, 4),
    "pending pods dampen growth": (pods(20000, 10000, 30000, pending=1), 15000, 4, 4),
    "pending pods that would turn the direction": (pods(12000, pending=3), 10000, 4, 4),
    "pending pods do not matter on the way down": (pods(1000, pending=4), 5000, 5, 1),
    "pods that are deleted are not counted": (pods(20000, 20000, gone=2), 10000, 4, 4),
    "failed pods are not counted on the way down": (pods(5000, 5000, gone=3), 10000, 2, 1),
    "a missing metric counts as nothing on the way up": (pods(30000, 30000, None), 15000, 3, 4),
    "a missing metric counts as the target on the way down": (pods(4000, None, None, 4000), 10000, 4, 3),
    "missing metrics that would turn the direction": (pods(15000, None), 10000, 2, 2),
    "a missing metric where the others are at the target": (pods(10000, None), 10000, 2, 2),
    "missing metrics bring it within tolerance": (pods(12000, 12000, 12000, 12000, 12000, None), 10000, 6, 6),
    "missing and pending on the way up": (pods(60000, None, pending=1), 10000, 3, 6),
    "missing and pending on the way down": (pods(1000, None, pending=1), 10000, 3, 2),
    "a pod more than the spec says on the way down": (pods(9500, None, None, None), 10500, 4, 4),
    "filled, it would propose more on the way down": (pods(5000, None, None, None), 10000, 2, 2),
    "filled, it would propose fewer on the way up": (pods(30000, 30000, None), 20000, 5, 5),
}


@pytest.mark.parametrize("case", MEANS)
def test_the_mean_of_the_pods(case: str) -> None:
    each, target, current, want = MEANS[case]
    assert pods_metric(each, target, current=current) == want


# Keyed by a sentence: pods, percent of their request, replicas now, replicas proposed.
PERCENT: dict[str, tuple[tuple[HpaPod, ...], int, int, int]] = {
    "30, 50 and 70 % of 30": (pods(300, 500, 700, request=1000), 30, 3, 5),
    "two ready of three": (pods(500, 700, pending=1, request=1000), 30, 3, 4),
    "all pending but one, on the way down": (pods(100, pending=4, request=1000), 50, 5, 1),
    "within tolerance": (pods(1010, 1030, 1020, request=1000), 100, 3, 3),
    "one of two missing, exactly at the target": (pods(1000, None, request=1000), 100, 2, 2),
    "one of two missing, above it": (pods(1900, None, request=1000), 100, 2, 2),
    "one of two missing, below it": (pods(600, None, request=1000), 100, 2, 2),
    "24 % of 100, two of four missing": (pods(240, 240, None, None, request=1000), 100, 4, 3),
    "missing pods count as their whole request where the target is lower": (pods(100, None, request=1000), 50, 2, 2),
    "and as the target where it is higher": (pods(100, 100, None, request=1000), 150, 3, 2),
    "different requests": ((HpaPod(value=300, request=1000), HpaPod(value=300, request=500)), 20, 2, 4),
}


@pytest.mark.parametrize("case", PERCENT)
def test_percent_of_the_requests(case: str) -> None:
    each, percent, current, want = PERCENT[case]
    assert pods_metric(each, Utilization(percent), current=current) == want


def test_metrics_of_pods_that_the_selector_does_not_match_count_in_the_mean_alone() -> None:
    four = pods(*(5000,) * 4)
    assert pods_metric(four, 1000, current=4, superfluous=(8000, 8000)) == 24, "four times a mean of 6"


@pytest.mark.parametrize(
    ("each", "cause"), [((), "no pods"), (pods(pending=2), "unready"), (pods(None, gone=1), "unready")]
)
def test_without_metrics_nothing_is_proposed(each: tuple[HpaPod, ...], cause: str) -> None:
    with pytest.raises(Unavailable, match=cause):
        pods_metric(each, 1000, current=2)


def test_a_share_of_no_request_proposes_nothing() -> None:
    with pytest.raises(Unavailable, match="request nothing"):
        pods_metric((HpaPod(value=5),), Utilization(50), current=2)


@pytest.mark.parametrize(
    ("value", "target", "current", "ready", "want"),
    [
        (20000, 15000, 3, 3, 4),
        (50000, 10000, 3, 1, 5),
        (8600, 4400, 3, 1, 2),
        (8600, 4400, 3, 3, 6),
        (20500, 20000, 3, 3, 3),
        (12000, 20000, 5, 5, 3),
        (0, 100, 3, 3, 0),
        (0, 100, 0, 0, 0),
        (1, 100, 0, 0, 1),
        (250, 100, 0, 0, 3),
        (105, 100, 0, 0, 2),
        (9000, 10000, 4, 4, 4),
        (8999, 10000, 10, 10, 9),
        (11000, 10000, 4, 4, 4),
        (11001, 10000, 4, 4, 5),
    ],
)
def test_a_value_of_an_object(value: int, target: int, current: int, ready: int, want: int) -> None:
    assert object_metric(value, target, current=current, ready=ready) == want


@pytest.mark.parametrize(
    ("value", "target", "replicas", "want"),
    [
        (8600, 2150, 3, 4),
        (8600, 2867, 3, 3),
        (6000, 2000, 3, 3),
        (6599, 2000, 3, 3),
        (6601, 2000, 3, 4),
        (5399, 2000, 3, 3),
        (5300, 2000, 3, 3),
        (3900, 2000, 3, 2),
        (0, 2000, 3, 0),
        (0, 2000, 0, 0),
        (1, 2000, 0, 1),
        (10001, 1000, 4, 11),
        (10000, 1000, 4, 10),
        (2**62, 1, 1, 2**62),
    ],
)
def test_a_value_shared_by_the_replicas(value: int, target: int, replicas: int, want: int) -> None:
    assert average_metric(value, target, replicas=replicas) == want


def test_a_tolerance_for_each_direction() -> None:
    none = Tolerance(down=0.0, up=0.0)
    assert average_metric(10001, 1000, replicas=10, tolerance=none) == 11
    assert average_metric(9000, 1000, replicas=10, tolerance=Tolerance(down=0.2)) == 10
    assert average_metric(11500, 1000, replicas=10, tolerance=Tolerance(up=0.2)) == 10
    assert average_metric(8900, 1000, replicas=10, tolerance=Tolerance(up=0.2)) == 9


@pytest.mark.parametrize(
    ("proposals", "current", "want"),
    [((3, 5, 2), 4, 5), ((1,), 4, 1), ((6, None), 4, 6), ((4, None), 4, 4), ((0, 0), 2, 0)],
)
def test_the_highest_proposal(proposals: tuple[int | None, ...], current: int, want: int) -> None:
    assert highest_proposal(proposals, current=current) == want


@pytest.mark.parametrize(("proposals", "current"), [((None,), 1), ((None, None), 3), ((3, None), 4), ((), 1)])
def test_nothing_shrinks_while_a_metric_fails(proposals: tuple[int | None, ...], current: int) -> None:
    with pytest.raises(Unavailable):
        highest_proposal(proposals, current=current)


# What happens after the proposal

NOW = 10_000.0


def pods_limit(value: int, period_s: float = 60) -> ScalingPolicy:
    return ScalingPolicy(type="Pods", value=value, period_s=period_s)


def percent_limit(value: int, period_s: float = 60) -> ScalingPolicy:
    return ScalingPolicy(type="Percent", value=value, period_s=period_s)


def up(*policies: ScalingPolicy, window_s: float = 0.0, select: str = "Max") -> Behavior:
    return Behavior(up=ScalingRules(window_s=window_s, select=select, policies=policies))  # type: ignore[arg-type]


def down(*policies: ScalingPolicy, window_s: float = 0.0, select: str = "Max") -> Behavior:
    return Behavior(down=ScalingRules(window_s=window_s, select=select, policies=policies))  # type: ignore[arg-type]


def past(*recommended: tuple[float, int], events: tuple[tuple[float, int], ...] = ()) -> HpaHistory:
    """Return a history of recommendations and changes so many seconds ago."""
    return HpaHistory(
        recommendations=tuple(HpaRecommendation(NOW - ago, count) for ago, count in recommended),
        added=tuple(ScaleEvent(NOW - ago, change) for ago, change in events if change > 0),
        removed=tuple(ScaleEvent(NOW - ago, change) for ago, change in events if change < 0),
    )


# Keyed by a sentence: history, behavior, replicas now, proposed, what is set, and what limited it.
RATES: dict[str, tuple[HpaHistory, Behavior | None, int, int, int, LimitReason]] = {
    "defaults: four pods at once": (past(), Behavior(), 1, 20, 5, LimitReason.UP),
    "defaults: or twice as many": (past(), Behavior(), 8, 40, 16, LimitReason.UP),
    "defaults: all that is requested within the limit": (past(), Behavior(), 8, 15, 15, LimitReason.NONE),
    "defaults: no more in the same 15 seconds": (
        past((10, 5), events=((10, 4),)),
        Behavior(),
        5,
        20,
        5,
        LimitReason.UP,
    ),
    "defaults: again after them": (past((16, 5), events=((15, 4),)), Behavior(), 5, 20, 10, LimitReason.UP),
    "700 % a minute from 3": (past(), up(percent_limit(700)), 3, 100, 24, LimitReason.UP),
    "700 % a minute from 3, at most 20": (past(), up(percent_limit(700)), 3, 1000, 24, LimitReason.UP),
    "a percentage is rounded up": (past(), up(percent_limit(10)), 1, 5, 2, LimitReason.UP),
    "the least change": (past(), up(pods_limit(1), percent_limit(100), select="Min"), 10, 30, 11, LimitReason.UP),
    "the most change": (past(), up(pods_limit(1), percent_limit(100)), 10, 30, 20, LimitReason.UP),
    "growth switched off": (past(), up(select="Disabled"), 3, 9, 3, LimitReason.UP),
    "no policy is none allowed": (past(), up(), 3, 9, 3, LimitReason.UP),
    "pods of the period count": (past(events=((30, 3),)), up(pods_limit(4)), 8, 20, 9, LimitReason.UP),
    "pods before the period do not": (past(events=((61, 3),)), up(pods_limit(4)), 8, 20, 12, LimitReason.UP),
    "what went in the period may come back": (past(events=((30, -5),)), up(pods_limit(4)), 5, 20, 14, LimitReason.UP),
    "the limit never shrinks": (past(events=((30, 9),)), up(pods_limit(2)), 10, 20, 10, LimitReason.UP),
    "all may go at once": (past(), down(percent_limit(100)), 10, 2, 2, LimitReason.NONE),
    "to the least that is allowed": (past(), down(percent_limit(100)), 10, 0, 1, LimitReason.MIN),
    "two pods a minute": (past(), down(pods_limit(2)), 10, 1, 8, LimitReason.DOWN),
    "half a minute's share is cut": (past(), down(percent_limit(15)), 10, 1, 8, LimitReason.DOWN),
    "the least change down": (past(), down(pods_limit(1), percent_limit(50), select="Min"), 10, 1, 9, LimitReason.DOWN),
    "the most change down": (past(), down(pods_limit(1), percent_limit(50)), 10, 1, 5, LimitReason.DOWN),
    "shrinking switched off": (past(), down(select="Disabled"), 10, 1, 10, LimitReason.DOWN),
    "what went counts": (past(events=((30, -2),)), down(pods_limit(3)), 8, 1, 7, LimitReason.DOWN),
    "what came may go again": (past(events=((30, 2),)), down(pods_limit(3)), 12, 1, 7, LimitReason.DOWN),
    "the limit never grows": (past(events=((30, -9),)), down(pods_limit(2)), 5, 1, 5, LimitReason.DOWN),
    "no change": (past(), Behavior(), 4, 4, 4, LimitReason.NONE),
    "v1: four from one": (past(), None, 1, 9, 4, LimitReason.UP),
    "v1: twice as many": (past(), None, 6, 30, 12, LimitReason.UP),
    "v1: at most": (past(), None, 60, 200, 100, LimitReason.MAX),
    "v1: at least": (past((400, 9)), None, 5, 0, 1, LimitReason.MIN),
    "v1: within": (past(), None, 6, 9, 9, LimitReason.NONE),
    "the most that is allowed": (past(), up(percent_limit(700)), 60, 500, 100, LimitReason.MAX),
}


@pytest.mark.parametrize("case", RATES)
def test_how_fast(case: str) -> None:
    history, behavior, current, proposed, want, limited = RATES[case]
    quick = history if history.recommendations else past((3000, current), events=())
    known = msgspec.structs.replace(history, recommendations=quick.recommendations)
    found = advance(known, proposed, NOW, current=current, bounds=ReplicaBounds(1, 100), behavior=behavior)
    assert (found.replicas, found.limited) == (want, limited)
    came = {*found.history.added, *found.history.removed} - {*known.added, *known.removed}
    assert came == ({ScaleEvent(NOW, want - current)} if want != current and behavior is not None else set())


# Keyed by a sentence: recommendations so many seconds ago, window up and down, replicas now, proposed, set, and why.
WINDOWS: dict[str, tuple[tuple[tuple[float, int], ...], tuple[float, float], int, int, int, str]] = {
    "growth does not wait by default": (((10, 3),), (0, 300), 3, 6, 6, "ReadyForNewScale"),
    "growth waits for the lowest of its window": (((10, 4), (50, 5)), (60, 300), 3, 6, 4, "ScaleUpStabilized"),
    "older ones do not count": (((61, 4),), (60, 300), 3, 6, 6, "ReadyForNewScale"),
    "one at the edge does not count": (((60, 4),), (60, 300), 3, 6, 6, "ReadyForNewScale"),
    "growth waits where there was none": (((10, 3),), (60, 300), 3, 6, 3, "ScaleUpStabilized"),
    "shrinking waits for the highest": (((100, 7), (200, 5)), (0, 300), 8, 2, 7, "ScaleDownStabilized"),
    "shrinking to the highest of the window": (((100, 4), (299, 5)), (0, 300), 8, 2, 5, "ScaleDownStabilized"),
    "shrinking after the window": (((301, 8),), (0, 300), 8, 2, 2, "ReadyForNewScale"),
    "no window at all": (((1, 8),), (0, 0), 8, 2, 2, "ReadyForNewScale"),
    "the highest is above what there is": (((100, 12),), (0, 300), 8, 2, 8, "ScaleDownStabilized"),
    "both windows": (((10, 9), (20, 2)), (60, 300), 5, 7, 5, "ScaleUpStabilized"),
}


@pytest.mark.parametrize("case", WINDOWS)
def test_what_was_recommended_lately(case: str) -> None:
    recent, (up_s, down_s), current, proposed, want, able = WINDOWS[case]
    free = (percent_limit(1000, 15),)
    both = Behavior(
        up=ScalingRules(window_s=up_s, policies=free), down=ScalingRules(window_s=down_s, policies=DOWN.policies)
    )
    found = advance(past(*recent), proposed, NOW, current=current, bounds=ReplicaBounds(1, 100), behavior=both)
    assert (found.replicas, found.able) == (want, able)
    assert found.history.recommendations[-1] == HpaRecommendation(NOW, proposed)


def test_without_behavior_the_highest_of_five_minutes_holds() -> None:
    found = advance(past((299, 7), (301, 9)), 2, NOW, current=8, bounds=ReplicaBounds(1, 10))
    assert (found.replicas, found.able) == (7, "ScaleDownStabilized")


def test_a_restarted_controller_does_not_scale_down_at_once() -> None:
    found = advance(HpaHistory(), 1, NOW, current=9, bounds=ReplicaBounds(1, 10), behavior=Behavior())
    assert (found.replicas, found.able) == (9, "ScaleDownStabilized")
    assert found.history.recommendations == (HpaRecommendation(NOW, 9), HpaRecommendation(NOW, 1))
    later = advance(found.history, 1, NOW + 300, current=9, bounds=ReplicaBounds(1, 10), behavior=Behavior())
    assert later.replicas == 1


@pytest.mark.parametrize(
    ("current", "bounds", "want"),
    [
        (12, ReplicaBounds(1, 10), 10),
        (1, ReplicaBounds(3, 10), 3),
        (0, ReplicaBounds(1, 10), 0),
        (0, ReplicaBounds(0, 10), 4),
    ],
)
def test_outside_the_bounds_no_metric_counts(current: int, bounds: ReplicaBounds, want: int) -> None:
    """A target of 0 replicas is switched off, unless 0 is allowed."""
    assert advance(HpaHistory(), 4, NOW, current=current, bounds=bounds, behavior=Behavior()).replicas == want


def test_what_no_window_can_need_is_forgotten() -> None:
    old = past((3601, 5), (3599, 6))
    found = advance(old, 9, NOW, current=6, bounds=ReplicaBounds(1, 10), behavior=Behavior())
    assert [each.replicas for each in found.history.recommendations] == [6, 9]


def test_a_new_change_replaces_the_last_one_that_its_own_direction_does_not_need() -> None:
    old = past((10, 8), events=((40, 1), (16, 2), (15, 3), (50, -1)))
    found = advance(old, 9, NOW, current=6, bounds=ReplicaBounds(1, 10), behavior=Behavior())
    assert [each.change for each in found.history.added] == [1, 3, 3]
    assert [each.change for each in found.history.removed] == [-1]


RECORDED = Path(__file__).parents[3] / "data" / "hpa" / "sequences.jsonl"
SEQUENCES: list[dict[str, Any]] = [json.loads(line) for line in RECORDED.read_text().splitlines()]


@pytest.mark.parametrize(
    "recorded", [pytest.param(each, id=f"{at}-{each['class']}") for at, each in enumerate(SEQUENCES)]
)
def test_it_sets_what_the_controller_of_kubernetes_sets(recorded: dict[str, Any]) -> None:
    rules = {way: recorded[way] for way in ("up", "down")}
    behavior = None if recorded["up"] is None else msgspec.convert(rules, Behavior)
    bounds = ReplicaBounds(recorded["min"], recorded["max"])
    history, now_s, current = HpaHistory(), 0.0, recorded["start"]
    for pause_s, proposed, by_hand, replicas, able, limited in recorded["syncs"]:
        now_s += pause_s
        current = current if by_hand is None else by_hand
        found = advance(history, proposed, now_s, current=current, bounds=bounds, behavior=behavior)
        reasons = (found.able, found.limited) if able else (able, limited)
        assert (found.replicas, *reasons) == (replicas, able, limited), now_s
        history, current = found.history, found.replicas


@pytest.mark.parametrize(("min_replicas", "max_replicas"), [(3, 2), (0, 0), (-1, 4)])
def test_bounds_that_cannot_be(min_replicas: int, max_replicas: int) -> None:
    with pytest.raises(InvalidInput, match="replicas"):
        ReplicaBounds(min_replicas, max_replicas)


@example(
    proposals=[(2, 1.0), (0, 1.0), (0, 59.0), (0, 120.0), (0, 120.0), (6, 1.0)],
    min_replicas=1,
    max_replicas=10,
    modern=True,
)
@given(
    proposals=st.lists(st.tuples(st.integers(0, 40), st.floats(1, 120)), max_size=40),
    min_replicas=st.integers(1, 10),
    max_replicas=st.integers(10, 30),
    modern=st.booleans(),
)
def test_it_stays_within_its_bounds_and_rates(
    proposals: list[tuple[int, float]], min_replicas: int, max_replicas: int, *, modern: bool
) -> None:
    """Whatever is proposed: within the bounds, up by four or double at most, and with one steady wish it gets there.

    What was removed in the 15 s before counts as if it were there: Kubernetes compares with the start of the period.
    Source: `periodStartReplicas` in kubernetes `pkg/controller/podautoscaler/horizontal.go`.
    """
    bounds, behavior = ReplicaBounds(min_replicas, max_replicas), Behavior(up=UP, down=DOWN) if modern else None
    history, now_s, replicas, removed = HpaHistory(), 0.0, min_replicas, list[tuple[float, int]]()
    for proposed, pause_s in proposals:
        now_s += pause_s
        found = advance(history, proposed, now_s, current=replicas, bounds=bounds, behavior=behavior)
        assert min_replicas <= found.replicas <= max_replicas
        before = replicas + sum(count for at_s, count in removed if at_s > now_s - 15)
        assert found.replicas <= max(2 * before, before + 4)
        removed.append((now_s, max(replicas - found.replicas, 0)))
        history, replicas = found.history, found.replicas
    goal = max_replicas // 2 + 1
    for _ in range(math.ceil(400 / 15) + 10):
        now_s += 15.001
        found = advance(history, goal, now_s, current=replicas, bounds=bounds, behavior=behavior)
        history, replicas = found.history, found.replicas
    assert replicas == max(min_replicas, goal)
