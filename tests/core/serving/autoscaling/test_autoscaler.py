"""Tessera's autoscaling policy: what it requests under smooth, growing, bursty and absent traffic."""

import math
import random
import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tessera.core.serving.autoscaling.autoscaler import AutoscalerState, ReplicaProposal, ScaledServer, propose, serves
from tessera.core.serving.metrics.load import Load

SERVER = ScaledServer(slots=8, cold_start_s=120.0)
SERVICE_S = 4.0


def load_of(at_s: float, arrived: int, done: int, flying: int, replicas: int) -> Load:
    return Load(
        at_s=at_s,
        arrived=arrived,
        completed=done,
        served_s=done * SERVICE_S,
        in_flight=flying,
        replicas=replicas,
        ready=replicas,
    )


def run_passes(
    rate: Callable[[float], float], hours: float, server: ScaledServer = SERVER, replicas: int = 1
) -> Iterable[tuple[float, ReplicaProposal]]:
    """Yield what is requested each 15 s under so many requests a second, all of them served at once."""
    state, arrived = AutoscalerState(), 0.0
    for step in range(int(hours * 240)):
        at_s = 15.0 * step
        arrived += 15 * rate(at_s)
        flying = min(round(rate(at_s) * SERVICE_S), int(arrived))
        done = int(arrived) - flying
        load = load_of(at_s, int(arrived), done, flying, replicas)
        state, found = propose(state, load, server)
        replicas = found.replicas
        yield at_s, found


def last(rate: Callable[[float], float], hours: float, server: ScaledServer = SERVER, replicas: int = 1) -> int:
    return [found.replicas for _, found in run_passes(rate, hours, server, replicas)][-1]


def test_steady_traffic_gets_what_it_needs_and_little_more() -> None:
    """10 requests a second of 4 s each take 40 slots, 5 replicas; requests in flight may take 80 % of the slots."""
    assert last(lambda _: 10.0, 3, replicas=12) == 7


def test_growth_is_met_before_it_comes() -> None:
    """A rate that grows by 1 a second in 10 minutes: what is requested now holds what comes in two minutes."""
    for at_s, found in run_passes(lambda at_s: 4 + at_s / 600, 2, replicas=4):
        if at_s > 1800:
            assert found.replicas * SERVER.slots >= (4 + (at_s + SERVER.cold_start_s) / 600) * SERVICE_S


def test_bursts_get_a_margin_that_smooth_traffic_of_the_same_mean_does_not() -> None:
    bursty = last(lambda at_s: 24.0 if at_s % 600 < 120 else 1.0, 4, replicas=6)
    assert last(lambda _: 5.6, 4, replicas=6) < bursty


def busy(at_s: float, *, running: int, waiting: int, replicas: int = 1) -> Load:
    """Return the load of a server whose replicas serve so many requests in all; the others wait in each of them."""
    flying = running + waiting
    return Load(
        at_s=at_s,
        arrived=int(at_s) + flying,
        completed=int(at_s),
        served_s=at_s * SERVICE_S,
        in_flight=flying,
        waiting=waiting,
        saturated=running / replicas if waiting else None,
        queued=waiting > 0,
        replicas=replicas,
        ready=replicas,
    )


def test_requests_that_wait_in_replicas_that_could_serve_more_by_their_spec_get_replicas() -> None:
    """vLLM's --max-num-seqs is 256, but the KV cache holds 20."""
    server = ScaledServer(slots=256, cold_start_s=120.0)
    found = [asked_last([busy(15.0 * n, running=20, waiting=130) for n in range(count)], server) for count in (3, 4)]
    assert [each.replicas for each in found] == [1, 2]
    measured = "1 replica with 20 slots, measured while requests waited (256 by the spec)"
    served = (
        "150 requests in flight for a minute: 10 replicas at 80 % of their slots; limited to 2: one more than are ready"
    )
    assert found[1].reason.endswith(f"{measured}; {served}")


def test_the_capacity_outlasts_counters_that_go_back_and_the_absence_of_replicas() -> None:
    server = ScaledServer(slots=256, cold_start_s=120.0, min_replicas=0)
    state = AutoscalerState()
    for number in range(8):
        state, _ = propose(state, busy(15.0 * number, running=20, waiting=130), server)
    again, _ = propose(state, idle(120.0), server)
    without, _ = propose(again, idle(135.0, replicas=0, ready=0), server)
    assert [each.capacity and each.capacity.requests for each in (state, again, without)] == [20.0, 20.0, 20.0]
    other, _ = propose(again, idle(135.0), msgspec.structs.replace(server, revision="2"))
    assert other.capacity is not None
    assert other.capacity.carried


_NONE = (0, 0, 0, 0)
_LEARNED_EARLIER = [
    *[_NONE] * 11,
    (1, 0, 1, 0), (1, 1, 0, 0), (0, 0, 1, 0), (0, 0, 1, 0), (1, 0, 1, 0),
    *[_NONE] * 3,
    (1, 1, 0, 0), (0, 1, 0, 0), (0, 3, 0, 1), (1, 1, 0, 0), (1, 1, 0, 0), (0, 0, 0, 3),
]  # fmt: skip
"""With more that wait a replica's capacity is known sooner, which is no reason for a smaller margin later."""


@example(steps=_LEARNED_EARLIER, replicas=1, slots=277)
@example(steps=[*[_NONE] * 25, (3, 0, 2, 1), _NONE, _NONE], replicas=1, slots=2)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 300), st.sampled_from([0, 0, 1, 9, 200]), st.integers(0, 300), st.integers(0, 90)),
        min_size=1,
        max_size=60,
    ),
    replicas=st.integers(1, 6),
    slots=st.integers(1, 300),
)
def test_more_waiting_never_gives_fewer_replicas(
    steps: list[tuple[int, int, int, int]], replicas: int, slots: int
) -> None:
    """Two histories with the same arrivals, ends and requests in service, one with more that wait."""
    server = ScaledServer(slots=slots, cold_start_s=60.0, max_replicas=1000)

    def proposed(extra: int) -> list[int]:
        state, arrived, found = AutoscalerState(), 0, list[int]()
        for number, (running, waiting, added, came) in enumerate(steps):
            arrived += came
            load = msgspec.structs.replace(
                busy(15.0 * number, running=running * replicas, waiting=waiting + extra * added, replicas=replicas),
                arrived=10**6 + arrived,
                completed=arrived,
                served_s=arrived * SERVICE_S,
            )
            state, proposal = propose(state, load, server)
            found.append(proposal.replicas)
        return found

    assert all(more >= less for less, more in zip(proposed(0), proposed(1), strict=True))


@pytest.mark.search
@example(slots=8, replicas=3, factor=2.1, idle_looks=10)
@given(slots=st.integers(1, 64), replicas=st.integers(1, 8), factor=st.floats(1.01, 20), idle_looks=st.integers(1, 300))
def test_an_overload_is_decided_within_four_passes_and_a_large_one_in_the_first(
    slots: int, replicas: int, factor: float, idle_looks: int
) -> None:
    """Requests pile up that nothing announced, and none of them ends, so nothing is known of the time they take."""
    server = ScaledServer(slots=slots, cold_start_s=120.0, max_replicas=16)
    flying = math.floor(factor * slots * replicas) + 1
    state, found = AutoscalerState(), ReplicaProposal(0, "")
    for look in range(-idle_looks, 4):
        load = load_of(15.0 * look, 0 if look < 0 else flying, 0, 0 if look < 0 else flying, replicas)
        state, found = propose(state, load, server)
        if look >= 0 and found.replicas > replicas:
            break
    assert found.replicas > replicas
    assert look == 0 if flying > 2 * slots * replicas else 0 <= look <= 3


@pytest.mark.search
@given(
    cold_start_s=st.sampled_from([60.0, 120.0, 300.0, 900.0]),
    rate=st.integers(1, 5),
    burst=st.integers(0, 2000),
    replicas=st.integers(1, 4),
)
def test_while_nothing_new_arrives_slow_starts_give_no_more_replicas(
    cold_start_s: float, rate: int, burst: int, replicas: int
) -> None:
    """Steady traffic, then a burst; after it nothing arrives or ends, and for two cold starts none becomes ready."""
    server = ScaledServer(slots=8, cold_start_s=cold_start_s, min_replicas=replicas, max_replicas=1000)
    flying = min(rate * 4, 8 * replicas)
    loads = [load_of(15.0 * n, 15 * rate * n + flying, 15 * rate * n, flying, replicas) for n in range(120)]
    state, proposed, desired = AutoscalerState(), list[int](), replicas
    for load in loads:
        state, _ = propose(state, load, server)
    for number in range(120, 121 + int(2 * cold_start_s / 15)):
        stuck = msgspec.structs.replace(
            loads[-1],
            at_s=15.0 * number,
            arrived=loads[-1].arrived + burst,
            in_flight=flying + burst,
            waiting=max(flying + burst - 8 * replicas, 0),
            replicas=desired,
        )
        state, found = propose(state, stuck, server)
        desired = found.replicas
        proposed.append(desired)
    # A jump is certain in the second pass, requests in flight in the fourth.
    assert max(proposed) == max(proposed[:4])


def broken(minutes: float, *, rolling: bool = False, max_replicas: int = 16) -> list[ReplicaProposal]:
    """Return what is proposed so long with five replicas of which two break after an hour; later ones do not start."""
    server = ScaledServer(slots=8, cold_start_s=120.0, max_replicas=max_replicas)
    state, replicas, proposed = AutoscalerState(), 5, list[ReplicaProposal]()
    for number in range(240 + int(minutes * 4)):
        breaks = number >= 240
        load = load_of(15.0 * number, 90 * number + 30, 90 * number, 30, replicas)
        if breaks:
            load = msgspec.structs.replace(load, ready=3, revision=None if rolling else "")
        state, found = propose(state, load, server)
        if breaks:
            replicas = found.replicas
            proposed.append(found)
    return proposed


def test_replicas_that_never_become_ready_are_replaced_within_the_bounds() -> None:
    proposed = broken(60)
    assert [each.replicas for each in proposed[:3]] == [5, 5, 6], "two passes without them may be a probe that failed"
    assert proposed[16].replicas == 6, "the sixth may still become ready"
    assert proposed[2].reason.endswith(
        "; 30 requests in flight for a minute: 5 replicas at 80 % of their slots"
        ", and 2 in place of replicas that are not ready"
        "; limited to 6: one more than are ready"
    )
    assert proposed[20].replicas == 7, "nor did that"
    assert ", and 3 in place of replicas" in proposed[20].reason
    assert {each.replicas for each in broken(60, max_replicas=6)[2:]} == {6}
    assert broken(60, max_replicas=6)[-1].reason.endswith("; at most 6")


def test_replicas_that_never_become_ready_are_replaced_once_and_not_for_ever() -> None:
    """As under a quota that admits three pods: the others do not even exist."""
    asked = broken(600, max_replicas=1000)
    assert {each.replicas for each in asked[-1000:]} == {9}
    assert asked[-1].reason.endswith(
        "5 replicas at 80 % of their slots, and 5 in place of replicas that are not ready"
        "; limited to 9: one more than are ready"
    )


def test_a_rollout_has_two_cold_starts_for_the_pods_that_it_replaces() -> None:
    proposed = [each.replicas for each in broken(10, rolling=True)]
    assert set(proposed[:16]) == {5}
    assert proposed[18] == 6, "a template that never becomes ready"


@given(
    slots=st.integers(1, 64),
    replicas=st.integers(1, 20),
    used=st.floats(0, 2),
    flaps=st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(0, 20), min_size=1, max_size=2)), max_size=12),
    min_replicas=st.integers(0, 1),
)
def test_what_is_unready_for_one_or_two_passes_changes_nothing(
    slots: int, replicas: int, used: float, flaps: list[tuple[int, list[int]]], min_replicas: int
) -> None:
    """After each flap all are ready for some passes. Requests of the replicas that are left may be more than slots."""
    server = ScaledServer(slots=slots, cold_start_s=120.0, min_replicas=min_replicas, max_replicas=1000)
    flying = math.floor(used * slots * replicas)
    unready = [0] * 10 + [count for passes, flap in flaps for count in (*flap, *[0] * passes)]

    def proposed(counts: list[int]) -> list[ReplicaProposal]:
        state, found, desired = AutoscalerState(), list[ReplicaProposal](), replicas
        for number, count in enumerate(counts):
            load = load_of(15.0 * number, 15 * flying * number + flying, 15 * flying * number, flying, desired)
            load = msgspec.structs.replace(
                load, ready=max(desired - count, 0), waiting=max(flying - slots * replicas, 0)
            )
            state, proposal = propose(state, load, server)
            found.append(proposal)
        return found

    assert proposed(unready) == proposed([0] * len(unready))


@pytest.mark.search
@given(
    slots=st.integers(1, 64),
    unready=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 100)), min_size=1, max_size=20),
    replicas=st.integers(1, 8),
    rate=st.integers(0, 20),
)
def test_a_server_that_may_scale_to_zero_is_scaled_as_any_other_while_it_has_requests(
    slots: int, unready: list[tuple[int, int]], replicas: int, rate: int
) -> None:
    """For passes all replicas are unready and have so many requests, then all are ready again for as many."""
    loads = [
        (ready, flying)
        for passes, flying in unready
        for ready, count in ((True, passes), (False, passes))
        for _ in range(count)
    ]

    def proposed(min_replicas: int) -> list[ReplicaProposal]:
        server = ScaledServer(slots=slots, cold_start_s=120.0, min_replicas=min_replicas, max_replicas=1000)
        state, found, desired = AutoscalerState(), list[ReplicaProposal](), replicas
        for number, (ready, flying) in enumerate(loads):
            load = load_of(15.0 * number, 200 + 15 * rate * number, 200 + 15 * rate * number - flying, flying, desired)
            load = load if ready else msgspec.structs.replace(load, ready=0, unready_in_flight=flying)
            load = msgspec.structs.replace(load, waiting=max(flying - slots * replicas, 0))
            state, proposal = propose(state, load, server)
            desired = proposal.replicas
            found.append(proposal)
        return found

    assert proposed(0) == proposed(1)


def test_what_was_learned_outlasts_minutes_in_which_no_replica_serves() -> None:
    """Unready for three minutes, without a request since none is sent to them; then as before."""
    server, state = ScaledServer(slots=8, cold_start_s=120.0, min_replicas=0), AutoscalerState()
    for number in range(240):
        state, _ = propose(state, load_of(15.0 * number, 15 * number + 6, 15 * number, 6, 2), server)
    began, errors = state.began_s, len(state.forecast.errors)
    unready = msgspec.structs.replace(load_of(0.0, 3591, 3591, 0, 2), ready=0)
    for number in range(240, 252):
        state, _ = propose(state, msgspec.structs.replace(unready, at_s=15.0 * number), server)
    state, found = propose(state, msgspec.structs.replace(unready, at_s=15.0 * 252), server)
    assert found == ReplicaProposal(2, "no replica is ready: 2 are starting or unready")
    state, _ = propose(state, load_of(15.0 * 253, 3600, 3594, 6, 2), server)
    assert (state.began_s, state.busy_s) == (began, 15.0 * 253)
    assert len(state.forecast.errors) > errors - 20


def test_pods_that_end_start_no_replica() -> None:
    """A server was scaled to zero, and its last replica still answers."""
    ending = idle(0.0, replicas=0, ready=0, in_flight=3, unready_in_flight=3)
    assert not serves(AutoscalerState(), ending)


def test_replicas_that_stay_unready_are_missed_in_the_third_pass() -> None:
    loads = [load_of(15.0 * n, 60 * n + 60, 60 * n, 60, 10) for n in range(40)]
    lost = [msgspec.structs.replace(each, ready=4) if n >= 30 else each for n, each in enumerate(loads)]
    state, proposed = AutoscalerState(), list[int]()
    for load in lost:
        state, found = propose(state, load, ScaledServer(slots=8, cold_start_s=120.0, max_replicas=40))
        proposed.append(found.replicas)
    assert [count > 10 for count in proposed[29:34]] == [False, False, False, True, True]


def test_served_requests_are_no_queue_however_few_replicas_are_ready() -> None:
    """Ten of thirteen become unready, and serve what they have."""
    state, proposal = AutoscalerState(), ReplicaProposal(0, "")
    for number in range(260):
        load = load_of(15.0 * number, 300 * number + 80, 300 * number, 80, 13)
        load = msgspec.structs.replace(load, ready=3) if number >= 240 else load
        state, proposal = propose(state, load, ScaledServer(slots=8, cold_start_s=120.0, max_replicas=64))
        assert "drain the queue" not in proposal.reason
    assert "and 10 in place of replicas that are not ready" in proposal.reason


@pytest.mark.search
@given(
    passes=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 200)), min_size=30, max_size=60),
    starting=st.integers(0, 20),
)
def test_a_queue_behind_replicas_that_start_never_becomes_a_margin(
    passes: list[tuple[int, int]], starting: int
) -> None:
    """Two full replicas in which none or many wait, beside others that start: no forecast was lower for those."""
    server = ScaledServer(slots=8, cold_start_s=60.0, max_replicas=1000)

    def judged(waiting: int) -> list[float]:
        state, arrived = AutoscalerState(), 0
        for number, (came, more) in enumerate(passes):
            arrived += came
            load = load_of(15.0 * number, 10**6 + arrived, arrived, 16 + waiting * more, 2)
            load = msgspec.structs.replace(load, waiting=waiting * more, replicas=2 + starting)
            state, _ = propose(state, load, server)
        return [each.slots for each in state.forecast.errors]

    assert all(queued <= served for served, queued in zip(judged(0), judged(1), strict=True))


@given(
    gap_s=st.sampled_from([15.0, 30.0, 45.0, 60.0, 75.0, 120.0, 225.0]),
    flying=st.integers(0, 16),
    passes=st.integers(5, 100),
)
def test_one_pass_after_a_gap_is_not_a_minute(gap_s: float, flying: int, passes: int) -> None:
    """A request a second, four in flight; then no metrics, then one pass with up to twice as many as slots."""
    state = AutoscalerState()
    for number in range(passes):
        state, _ = propose(state, load_of(15.0 * number, 15 * number + 4, 15 * number, 4, 1), SERVER)
    at_s = 15.0 * (passes - 1) + gap_s
    _, found = propose(state, load_of(at_s, int(at_s) + 4, int(at_s) + 4 - flying, flying, 1), SERVER)
    assert found.replicas == 1


@pytest.mark.parametrize("factor", [2, 3, 4, 6])
def test_a_jump_of_the_rate_is_met_in_the_second_pass(factor: int) -> None:
    """Requests of 4 s come evenly, then at a multiple of that rate, as they would with slots for all of them."""
    proposed = dict(run_passes(lambda at_s: 3.0 if at_s < 7200 else 3.0 * factor, 2.1, replicas=2))
    # What comes in the 15 s before 7200 is still of the old rate.
    assert proposed[7200.0].replicas * SERVER.slots >= 12
    assert proposed[7230.0 - 15].replicas * SERVER.slots >= 12 * factor


@pytest.mark.search
def test_chance_is_no_jump() -> None:
    """A Poisson process of 10 requests a second of 4 s for a day: what is requested hardly changes."""
    rng = random.Random(1)
    rates = [sum(rng.expovariate(1) for _ in range(150)) / 15 for _ in range(5760)]
    proposed = [found.replicas for at_s, found in run_passes(lambda at_s: rates[int(at_s / 15)], 24, replicas=7)]
    settled = proposed[480:]
    assert set(settled) <= {6, 7}
    assert sum(a != b for a, b in pairwise(settled)) <= 20


def test_what_is_a_jump_in_smooth_traffic_is_none_in_traffic_that_always_jumps() -> None:
    """Twice the rate for half a minute: replicas for it where arrivals are regular, not where minutes always differ."""

    def proposed(irregular: float, *, doubled: bool) -> int:
        def rate(at_s: float) -> float:
            usual = 10 + irregular * (1 if at_s % 120 < 60 else -1)
            return 20.0 if doubled and at_s > 7185 else usual

        return last(rate, 2.01, replicas=8)

    assert proposed(0.0, doubled=True) >= proposed(0.0, doubled=False) + 3
    assert proposed(9.0, doubled=True) <= proposed(9.0, doubled=False) + 1


def test_fewer_only_after_a_while() -> None:
    """The load halves after two hours: nothing goes for twelve minutes, then about half."""
    proposed = dict(run_passes(lambda at_s: 12.0 if at_s < 7200 else 6.0, 4, replicas=7))
    before = proposed[7185.0].replicas
    assert all(proposed[7200.0 + 15 * step].replicas >= before for step in range(47))
    assert proposed[4 * 3600 - 15.0].replicas <= before // 2 + 1
    assert "were needed within 12 minutes" in proposed[7500.0].reason


def test_what_is_there_at_the_beginning_stays_at_first() -> None:
    proposed = [found.replicas for at_s, found in run_passes(lambda _: 1.0, 0.5, replicas=5) if at_s < 300 + 720 - 15]
    assert set(proposed) == {5}


def test_the_bounds_hold_and_the_event_names_them() -> None:
    busy = [
        found for _, found in run_passes(lambda _: 100.0, 1, ScaledServer(slots=8, cold_start_s=120.0, max_replicas=3))
    ]
    assert busy[-1].replicas == 3
    assert busy[-1].reason.endswith("; at most 3")
    server = ScaledServer(slots=8, cold_start_s=120.0, min_replicas=2)
    quiet = [found for _, found in run_passes(lambda _: 0.0, 1, server, replicas=4)]
    assert quiet[-1].replicas == 2
    assert quiet[-1].reason.endswith("; at least 2")


ZERO = ScaledServer(slots=8, cold_start_s=120.0, min_replicas=0)


def test_to_zero_and_back() -> None:
    """With no request for twenty minutes there are none; the first that waits brings one back."""
    proposed = dict(run_passes(lambda at_s: 2.0 if at_s < 3600 or at_s > 10_800 else 0.0, 3.5, ZERO, 2))
    last = max(at_s for at_s, found in proposed.items() if at_s < 10_800 and found.replicas > 0)
    assert last == 3585.0 + 1200 - 15, "the last request came at 3585 s"
    assert proposed[last + 15].reason == "no request for 1200 s, so no replica"
    assert proposed[10_800.0].reason == "idle: no request and no wake-up"
    back = proposed[10_815.0]
    assert (back.replicas, back.reason) == (1, "8 requests wait, and there is no replica")


def idle(at_s: float, **more: Any) -> Load:
    """Return the load of a replica that nobody asks anything."""
    given = {"arrived": 9, "completed": 9, "served_s": 1.0, "in_flight": 0, "replicas": 1, "ready": 1} | more
    return Load(at_s=at_s, **given)


def asked_last(loads: Iterable[Load], server: ScaledServer = ZERO) -> ReplicaProposal:
    state, found = AutoscalerState(), None
    for load in loads:
        state, found = propose(state, load, server)
    assert found is not None
    return found


STAYS: dict[str, dict[str, Any]] = {
    "a replica that cannot be read may have requests": {"unread": 1},
    "one long request is enough": {"in_flight": 1},
    "somebody woke it a while ago": {"woken_s": 4000.0},
    "somebody wants it awake until tomorrow": {"woken_s": 90_000.0},
}


@pytest.mark.parametrize("case", STAYS)
def test_what_keeps_a_server_from_zero(case: str) -> None:
    times = [15.0 * step for step in range(300)]
    assert asked_last(idle(at_s) for at_s in times).replicas == 0
    assert asked_last(idle(at_s, **STAYS[case]) for at_s in times).replicas == 1


def test_a_replica_that_starts_is_waited_for_however_long_it_takes() -> None:
    found = asked_last(idle(15.0 * step, ready=0) for step in range(1000))
    assert found == ReplicaProposal(1, "no replica is ready: 1 is starting or unready")


def test_without_a_replica_its_user_wakes_it() -> None:
    found = asked_last([idle(5000.0, replicas=0, ready=0, woken_s=4900.0)])
    assert found == ReplicaProposal(1, "woken")


@given(
    steps=st.lists(
        st.tuples(st.sampled_from([0, 0, 0, 0, 1, 7]), st.sampled_from([0, 0, 0, 0, 3]), st.booleans()),
        min_size=1,
        max_size=120,
    ),
    idle_s=st.sampled_from([60.0, 300.0, 900.0]),
    min_replicas=st.integers(0, 1),
)
def test_zero_exactly_when_there_was_no_request_for_the_idle_time(
    steps: list[tuple[int, int, bool]], idle_s: float, min_replicas: int
) -> None:
    """Requests that come, those in flight, and somebody who wakes the server, in passes every 15 s; replicas start in
    none."""
    server = ScaledServer(slots=8, cold_start_s=60.0, min_replicas=min_replicas, max_replicas=4, idle_s=idle_s)
    state, replicas, arrived, woken_s, busy_s = AutoscalerState(), 1, 0, None, 0.0
    for number, (came, flying, wakes) in enumerate(steps):
        at_s, arrived = 15.0 * number, arrived + came
        woken_s = at_s if wakes else woken_s
        load = idle(
            at_s,
            arrived=arrived,
            completed=max(0, arrived - flying),
            in_flight=flying,
            replicas=replicas,
            ready=replicas,
            woken_s=woken_s,
        )
        state, found = propose(state, load, server)
        if flying or wakes or (came and replicas):
            busy_s = at_s
        if min_replicas:
            assert found.replicas >= 1
        elif replicas == 0:
            assert (found.replicas > 0) is (flying > 0 or (woken_s is not None and at_s < woken_s + idle_s))
        else:
            assert (found.replicas == 0) is (at_s - busy_s >= idle_s)
        busy_s = at_s if not replicas else busy_s
        replicas = found.replicas


def test_counters_that_go_back_are_a_new_beginning() -> None:
    """Rather than a negative rate: what is there stays, as after a restart."""
    load = Load(at_s=0.0, arrived=900, completed=800, served_s=3200.0, in_flight=40, replicas=6, ready=6)
    state, _ = propose(AutoscalerState(), load, SERVER)
    again = Load(at_s=15.0, arrived=3, completed=0, served_s=0.0, in_flight=3, replicas=6, ready=6)
    state, found = propose(state, again, SERVER)
    assert (found.replicas, state.began_s, state.loads) == (6, 15.0, (again,))


def test_it_remembers_no_more_than_an_hour() -> None:
    state = AutoscalerState()
    for step in range(600):
        load = Load(at_s=15.0 * step, arrived=9, completed=9, served_s=1.0, in_flight=0, replicas=1, ready=1)
        state, _ = propose(state, load, SERVER)
    assert [len(state.loads), len(state.forecast.errors), len(state.forecast.forecasts), len(state.needs)] == [
        240,
        240,
        240,
        48,
    ]


@given(
    passes=st.lists(
        st.tuples(st.integers(0, 500), st.integers(0, 500), st.integers(0, 8), st.booleans()), min_size=1, max_size=40
    ),
    min_replicas=st.integers(1, 3),
)
def test_of_replicas_that_start_one_by_one_there_is_at_most_one_more_than_are_ready(
    passes: list[tuple[int, int, int, bool]], min_replicas: int
) -> None:
    """Whatever the load, the probes and rollouts: more only while there are more already, or by the bounds."""
    server = ScaledServer(slots=4, cold_start_s=300.0, min_replicas=min_replicas, max_replicas=64, one_by_one=True)
    state, replicas, arrived = AutoscalerState(), min_replicas, 0
    for number, (came, flying, unready, rolling) in enumerate(passes):
        arrived += came
        load = load_of(15.0 * number, arrived, max(arrived - flying, 0), flying, replicas)
        ready = max(replicas - unready, 0)
        load = msgspec.structs.replace(load, ready=ready, revision=None if rolling else "")
        state, found = propose(state, load, server)
        assert found.replicas <= max(replicas, min_replicas, 0 if rolling else ready + 1)
        replicas = found.replicas


def test_an_event_says_that_replicas_start_one_by_one() -> None:
    server = ScaledServer(slots=8, cold_start_s=300.0, max_replicas=40, one_by_one=True)
    state, found = AutoscalerState(), ReplicaProposal(3, "")
    for number in range(40):
        state, found = propose(state, load_of(15.0 * number, 300 * number + 80, 300 * number, 80, 3), server)
    assert found.replicas == 4
    assert found.reason.endswith("; limited to 4: replicas start one by one, and 3 are ready")


def last_number(reason: str, replicas: int) -> int:
    """Return the replicas that follow from the numbers of a reason, as a reader would count them."""
    if reason.startswith("no replica is ready"):
        return replicas
    if "expects" not in reason:
        return {"idle: no request and no wake-up": 0}.get(reason, 0 if "so no" in reason else 1)
    expected, *further = reason.split("; ")
    demand, needed = expected.split(": ")
    parts = [int(each) for each in re.findall(r"(?:expects|margin of|plus) (\d+)", demand)]
    found, slots = (int(each) for each in re.findall(r"(\d+) (?:replicas?|slots?)", needed))
    assert found == math.ceil(sum(parts) / slots), reason
    for each in further:
        filled = re.search(r": (\d+) replicas? at \d+ %[^,]*(?:, and (\d+) in place)?", each)
        found = int(re.findall(r"\d+", each)[0])
        found = found if filled is None else sum(int(number or 0) for number in filled.groups())
    return found


@given(
    steps=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**5), st.floats(0.1, 600)), max_size=60),
    min_replicas=st.integers(0, 4),
    max_replicas=st.integers(4, 64),
    slots=st.integers(1, 256),
)
def test_whatever_the_input_it_stays_within_its_bounds(
    steps: list[tuple[int, int, float]], min_replicas: int, max_replicas: int, slots: int
) -> None:
    server = ScaledServer(slots=slots, cold_start_s=60.0, min_replicas=min_replicas, max_replicas=max_replicas)
    state, replicas, at_s, arrived = AutoscalerState(), min_replicas, 0.0, 0
    for came, flying, pause_s in steps:
        at_s, arrived = at_s + pause_s, arrived + came
        served = max(0, arrived - flying)
        load = load_of(at_s, arrived, served, flying, replicas)
        state, found = propose(state, load, server)
        assert min_replicas <= found.replicas <= max_replicas
        assert found.replicas == last_number(found.reason, replicas)
        assert math.isfinite(sum(slots for _, slots in state.forecast.forecasts))
        replicas = found.replicas
