"""The forecast of a model server's demand: rate, trend, jumps, margin, and the queue."""

import math
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.serving.autoscaling.forecast import (
    ForecastState,
    SlotDemand,
    StartingReplicas,
    forecast_demand,
    list_starting,
)
from tessera.core.serving.metrics.load import Load

SERVICE_S = 4.0


def loads_of(rate: Callable[[float], float], passes: int, *, waiting: int = 0, ready: int = 4) -> list[Load]:
    """Return the loads of so many passes under so many requests a second, all but the waiting ones served at once."""
    found, arrived = list[Load](), 0.0
    for number in range(passes):
        at_s = 15.0 * number
        arrived += 15 * rate(at_s)
        flying = min(round(rate(at_s) * SERVICE_S), int(arrived)) + waiting
        done = max(int(arrived) - flying, 0)
        load = Load(
            at_s=at_s,
            arrived=int(arrived),
            completed=done,
            served_s=done * SERVICE_S,
            in_flight=flying,
            waiting=waiting,
            replicas=4,
            ready=ready,
        )
        found.append(load)
    return found


def last(loads: list[Load], *, cold_start_s: float = 120.0) -> tuple[ForecastState, SlotDemand]:
    """Return the state and the demand after all passes."""
    state, demand = ForecastState(), SlotDemand(forecast=0.0, margin=0.0, draining=0.0)
    for number in range(1, len(loads) + 1):
        state, demand = forecast_demand(state, loads[:number], slots=8, cold_start_s=cold_start_s)
    return state, demand


def test_at_a_constant_rate_the_forecast_is_what_is_in_flight() -> None:
    _, demand = last(loads_of(lambda _: 5.0, 20))
    assert demand.forecast == pytest.approx(20, abs=1)
    assert demand.draining == 0
    assert demand.slots == math.ceil(demand.forecast + demand.margin)


def test_the_margin_is_a_guess_until_forecasts_were_judged_and_then_their_error() -> None:
    _, early = last(loads_of(lambda _: 5.0, 20))
    assert early.margin == pytest.approx(math.sqrt(2.5 * early.forecast))
    state, steady = last(loads_of(lambda _: 5.0, 200))
    assert steady.margin == pytest.approx(0.5 * math.sqrt(steady.forecast)), "no error, so the smallest margin"
    assert all(abs(each.slots) < 1 for each in state.errors[-20:])
    _, bursty = last(loads_of(lambda at_s: 20.0 if at_s % 600 < 120 else 1.0, 200))
    assert bursty.margin > 5 * steady.margin


def test_a_trend_is_continued_by_three_quarters_until_a_replica_would_be_ready() -> None:
    rates = loads_of(lambda at_s: 5 + at_s / 600, 120)
    (_, soon), (_, late) = (last(rates, cold_start_s=seconds) for seconds in (60.0, 600.0))
    assert late.forecast - soon.forecast == pytest.approx(0.75 * 540 / 600 * SERVICE_S, rel=0.2)


def test_a_queue_is_drained_within_a_minute_less_what_starting_replicas_serve() -> None:
    waits = loads_of(lambda _: 8.0, 40, waiting=300)
    _, demand = last(waits)
    assert demand.draining > 0
    _, longer = last(loads_of(lambda _: 8.0, 40, waiting=600))
    assert longer.draining > demand.draining
    _, none = last(loads_of(lambda _: 8.0, 40))
    assert none.draining == 0


def test_replicas_that_start_are_those_requested_within_two_cold_starts() -> None:
    def requested(seconds: int) -> list[Load]:
        """Return loads in which two more replicas were requested so many seconds ago."""
        load = loads_of(lambda _: 1.0, 41)
        last_s = load[-1].at_s
        return [
            Load(
                at_s=each.at_s,
                arrived=each.arrived,
                completed=each.completed,
                served_s=each.served_s,
                in_flight=each.in_flight,
                replicas=3 if each.at_s > last_s - seconds else 1,
                ready=1,
            )
            for each in load
        ]

    assert list_starting(requested(60), 120.0) == [StartingReplicas(2, 60.0)]
    assert list_starting(requested(240), 120.0) == [StartingReplicas(2, 240.0)]
    assert list_starting(requested(255), 120.0) == [], "they may never be ready"


@given(
    passes=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), min_size=1, max_size=12),
    cold_start_s=st.sampled_from([10.0, 60.0, 4000.0]),
)
def test_each_replica_that_starts_was_requested_when_fewer_were(
    passes: list[tuple[int, int, bool]], cold_start_s: float
) -> None:
    loads = [
        Load(
            at_s=15.0 * number,
            arrived=0,
            completed=0,
            served_s=0.0,
            in_flight=0,
            replicas=replicas,
            ready=ready,
            revision=None if rolling else "a",
        )
        for number, (replicas, ready, rolling) in enumerate(passes)
    ]
    now, want = loads[-1], list[float]()
    for replica in range(now.ready + 1, now.replicas + 1):
        fewer = [each for each in loads if each.replicas < replica or (now.revision is None and each.ready >= replica)]
        want.append(now.at_s - (fewer[-1] if fewer else loads[0]).at_s)
    found = [each.requested_s for each in list_starting(loads, cold_start_s) for _ in range(each.count)]
    assert sorted(found) == sorted(each for each in want if each <= min(2 * cold_start_s, 3540))


def test_any_number_of_replicas_is_counted_at_once() -> None:
    load = loads_of(lambda _: 1.0, 41)
    many = [msgspec.structs.replace(each, replicas=1 << 31, ready=1, in_flight=9) for each in load]
    assert sum(each.count for each in list_starting([*load[:-2], *many[-2:]], 120.0)) == (1 << 31) - 4
    _, demand = last([*load[:-2], *many[-2:]])
    assert demand.draining == 0
