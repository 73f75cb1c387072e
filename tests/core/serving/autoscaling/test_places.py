"""For which servers places on GPUs are counted, and who gets them."""

import pytest

from builders.serverfacts import changed_facts, server_facts
from tessera.core.serving.autoscaling.decisions import ScalingDecision
from tessera.core.serving.autoscaling.places import (
    PlacesToCount,
    order_in_turn,
    promised_places,
    to_count,
    with_room,
)

FACTS = server_facts(replicas=2, pods=2)


def decision(replicas: int | None, *, bad: bool = False) -> ScalingDecision:
    return ScalingDecision(replicas=replicas, reason="r", bad=bad)


def test_places_are_counted_for_more_than_one_replica_beyond_those_that_are_there() -> None:
    found = [to_count(FACTS, decision(number)) for number in (None, 1, 2, 3, 4, 5, 1 << 40)]
    assert [each and each.more for each in found] == [None, None, None, None, 1, 2, 64]
    assert to_count(FACTS, decision(5, bad=True)) is None
    assert to_count(changed_facts(FACTS, unschedulable=1), decision(5)) is None
    assert to_count(changed_facts(FACTS, uses_tessera_replicas=False), decision(5)) is None


@pytest.mark.parametrize(("pods", "coming"), [(0, 2), (1, 1), (2, 0), (3, 0)])
def test_desired_replicas_without_a_pod_take_the_places_first(pods: int, coming: int) -> None:
    places = to_count(changed_facts(FACTS, pods=pods), decision(6))
    assert places == PlacesToCount(more=3, coming=coming)
    assert places.total == 3 + coming
    assert [with_room(FACTS, places, found).room for found in (None, 0, 1, 5)] == [
        None,
        0,
        max(1 - coming, 0),
        5 - coming,
    ]


def test_others_do_not_count_the_places_that_a_server_gets() -> None:
    places = PlacesToCount(more=3, coming=1)
    got = [
        promised_places(changed_facts(FACTS, room=room), places, decision(replicas))
        for room, replicas in ((None, 5), (0, 5), (2, None), (2, 1), (2, 3), (2, 5), (9, 5))
    ]
    assert got == [0, 0, 0, 1, 2, 3, 4]


def test_places_are_counted_in_turn() -> None:
    """One of each namespace first; the one counted longest ago before others."""
    servers = [("many", "a"), ("many", "b"), ("many", "c"), ("one", "a")]
    assert order_in_turn(servers, {}) == [("many", "a"), ("one", "a"), ("many", "b"), ("many", "c")]
    counted_s = {("many", "a"): 15.0, ("one", "a"): 15.0, ("many", "b"): 0.0}
    assert order_in_turn(reversed(servers), counted_s) == [("many", "c"), ("one", "a"), ("many", "b"), ("many", "a")]
