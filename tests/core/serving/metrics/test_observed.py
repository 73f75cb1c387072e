"""A server's sums over pods that come, restart and go: they never go back, and what cannot be read has a reason."""

import math
from collections.abc import Mapping
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.serverfacts import server_facts
from tessera.core.serving.autoscaling.decisions import ScalingState, decide_replicas
from tessera.core.serving.autoscaling.hpa import HpaHistory, ReplicaBounds, advance, average_metric
from tessera.core.serving.autoscaling.hpabehavior import scaling_behavior
from tessera.core.serving.metrics.counters import Counters, Unmeasured
from tessera.core.serving.metrics.load import Load
from tessera.core.serving.metrics.observed import ServerObservation, ServerState, observe

DOWN = Unmeasured("connection refused")


def sample(
    at_s: float, ended: float, *, in_flight: float = 0.0, waits_s: float = 0.0, started_s: float = 0.0
) -> Counters:
    return Counters(
        at_s=at_s,
        started_s=started_s,
        queued_s=ended * waits_s,
        dequeued=ended,
        served_s=2 * ended,
        completed=ended,
        waiting=in_flight / 2,
        running=in_flight / 2,
    )


def run_passes(*each: Mapping[str, Counters | Unmeasured]) -> ServerObservation:
    """Return what the last of some passes measures, 15 s apart, with as many ready pods as there are."""
    known, found = ServerState(), None
    for number, pods in enumerate(each, 1):
        known, found = observe(known, pods, at_s=15.0 * number, replicas=len(pods), ready=pods.keys())
    assert found is not None
    return found


def test_two_pods() -> None:
    found = run_passes(
        {"a": sample(15, 10), "b": sample(15, 10)},
        {"a": sample(30, 14, in_flight=6, waits_s=1), "b": sample(30, 10, in_flight=2)},
    )
    assert found.load == Load(
        at_s=30.0,
        arrived=32,
        completed=24,
        served_s=48.0,
        in_flight=8,
        waiting=4,
        saturated=2.0,
        queued=True,
        replicas=2,
        ready=2,
    )
    assert (found.waiting, found.in_flight) == (4.0, 8.0)
    assert found.queue_time_s == pytest.approx(3.5), "14 s by 4 requests: the wait of the former ten was not known"


def test_the_capacity_is_that_of_the_pods_in_which_requests_wait() -> None:
    """Clients keep their connections to one pod: that the other serves one request says nothing."""
    one = {"a": sample(15, 10), "b": sample(15, 10)}
    two = {"a": sample(30, 14, in_flight=40), "b": msgspec.structs.replace(sample(30, 10), running=1.0)}
    found = run_passes(one, two).load
    assert isinstance(found, Load)
    assert (found.in_flight, found.waiting, found.saturated) == (41, 20, 20.0)


@pytest.mark.parametrize(("slow", "want"), [(1, None), (5, None), (6, 1.0), (10, 1.0)])
def test_requests_that_wait_in_few_pods_say_nothing_of_the_capacity_of_all(slow: int, want: float | None) -> None:
    """Others serve four at once, and none waits; those serve one while three wait: slow GPUs, or long requests."""
    first = {f"pod-{number}": sample(15, 10) for number in range(10)}
    well = msgspec.structs.replace(sample(30, 12), running=4.0, waiting=0.0)
    now = dict.fromkeys(first, well) | {
        f"pod-{number}": msgspec.structs.replace(well, running=1.0, waiting=3.0) for number in range(slow)
    }
    found = run_passes(first, now).load
    assert isinstance(found, Load)
    assert (found.saturated, found.queued) == (want, True)


@pytest.mark.parametrize(
    ("others", "want"), [(15.0, None), (16.0, 20.0), (19.0, 20.0), (20.0, 20.0), (25.0, 20.0), (26.0, None)]
)
def test_where_requests_wait_in_one_pod_and_the_others_are_as_full_all_are(others: float, want: float | None) -> None:
    """As full is what serves at least four fifths of the other."""
    first = {name: sample(15, 10) for name in "abcd"}
    full = msgspec.structs.replace(sample(30, 12), running=others, waiting=0.0)
    now = dict.fromkeys(first, full) | {"a": msgspec.structs.replace(full, running=20.0, waiting=1.0)}
    found = run_passes(first, now).load
    assert isinstance(found, Load)
    assert found.saturated == want


def test_a_pod_that_hangs_has_no_capacity() -> None:
    """Requests wait in it and none is in service: it does not halve what the others were measured to serve."""
    hung = msgspec.structs.replace(sample(30, 10), waiting=9.0)
    one = {name: sample(15, 10) for name in "abc"}
    for busy, want in ((40, 20.0), (0, None)):
        found = run_passes(one, {"a": sample(30, 14, in_flight=busy), "b": hung, "c": hung}).load
        assert isinstance(found, Load)
        assert (found.waiting, found.saturated) == (busy / 2 + 18, want)


def test_a_pod_that_terminates_has_no_capacity() -> None:
    """It may be of an earlier template."""
    pods = {"a": sample(15, 10, in_flight=40), "b": sample(15, 10, in_flight=8)}
    _, found = observe(ServerState(), pods, at_s=15.0, replicas=1, ready={"a"})
    assert isinstance(found.load, Load)
    assert (found.load.in_flight, found.load.saturated) == (48, 20.0)


def test_an_idle_server_waits_for_nothing() -> None:
    assert run_passes({"a": sample(15, 10)}, {"a": sample(30, 10)}).queue_time_s == 0.0


def test_a_pod_that_is_gone_answered_what_it_had() -> None:
    found = run_passes(
        {"a": sample(15, 10, in_flight=4), "b": sample(15, 10, in_flight=2)},
        {"a": sample(30, 12, in_flight=4)},
    )
    assert isinstance(found.load, Load)
    assert (found.load.completed, found.load.arrived, found.load.in_flight) == (24, 28, 4)


def test_a_pod_that_cannot_be_read_is_as_busy_as_the_others_and_pays_later() -> None:
    one = {"a": sample(15, 10, in_flight=4), "b": sample(15, 10, in_flight=4)}
    two: dict[str, Counters | Unmeasured] = {"a": sample(30, 20, in_flight=6), "b": DOWN}
    found = run_passes(one, two)
    assert isinstance(found.load, Load)
    assert (found.load.in_flight, found.load.completed, found.load.served_s) == (12, 40, 80.0)
    assert found.pods["b"] == DOWN
    for ended, want in ((30, 60), (26, 56), (15, 50), (10, 50)):
        again = run_passes(one, two, {"a": sample(45, 30, in_flight=6), "b": sample(45, ended, in_flight=6)})
        assert isinstance(again.load, Load)
        assert again.load.completed == want, "of those of b what is beyond the ten that counted before"


READ = st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=4, max_size=24)
"""Whether each of four pods is read, in each pass."""


@given(READ, st.integers(1, 60), st.integers(0, 20))
def test_scrapes_that_fail_change_no_rate(read: list[list[bool]], rate: int, in_flight: int) -> None:
    """Each pod ends as many requests in each pass, and one at least is read."""
    state, arrived = ServerState(), list[float]()
    for number, passed in enumerate(read, 1):
        at_s = 1000.0 + 15 * number
        one = sample(at_s, 1000 + rate * number, in_flight=in_flight)
        both = number <= 2  # the samples that all others are compared with
        pods: dict[str, Counters | Unmeasured] = {
            str(pod): one if both or pod == 0 or answered else DOWN for pod, answered in enumerate(passed)
        }
        state, _ = observe(state, pods, at_s=at_s, replicas=4, ready=pods.keys())
        arrived.append(state.arrived)
    assert [after - before for before, after in pairwise(arrived[1:])] == pytest.approx([4 * rate] * (len(read) - 2))


@given(READ, st.lists(st.integers(0, 60), min_size=4, max_size=4))
def test_what_pods_that_were_not_read_end_counts_once(read: list[list[bool]], rates: list[int]) -> None:
    """Pods differ, and at times none is read; no gap is too long for a window."""
    state = ServerState()
    for number, passed in enumerate([[True] * 4, *read, [True] * 4], 1):
        at_s, all_s = 1000.0 + 15 * number, number % 7 == 0 or number in (1, len(read) + 2)
        pods: dict[str, Counters | Unmeasured] = {
            str(pod): sample(at_s, 1000 + rate * number) if answered or all_s else DOWN
            for pod, (answered, rate) in enumerate(zip(passed, rates, strict=True))
        }
        state, _ = observe(state, pods, at_s=at_s, replicas=4, ready=pods.keys())
    passes = len(read) + 1
    assert state.completed - sum(each.completed for _, each in state.owed) == pytest.approx(sum(rates) * passes)
    assert state.served_s - sum(each.served_s for _, each in state.owed) == pytest.approx(2 * sum(rates) * passes)


def test_after_a_gap_too_long_for_a_window_a_pod_owes_nothing() -> None:
    state, arrived = ServerState(), list[float]()
    for number in range(24):
        at_s = 1000.0 + 15 * number
        one = sample(at_s, 1000 + 30 * number)
        pods: dict[str, Counters | Unmeasured] = {"a": one, "b": DOWN if 4 <= number < 14 else one}
        state, _ = observe(state, pods, at_s=at_s, replicas=2, ready=pods.keys())
        arrived.append(state.arrived)
    assert state.owed == ()
    assert {after - before for before, after in pairwise(arrived[1:])} == {60.0}


def test_a_pod_that_was_never_read_is_as_busy_as_the_others_and_its_first_sample_pays_nothing() -> None:
    state, arrived = ServerState(), list[float]()
    for number in range(12):
        at_s = 1000.0 + 15 * number
        one = sample(at_s, 1000 + 30 * number, in_flight=8)
        pods: dict[str, Counters | Unmeasured] = {"a": one, "b": DOWN if number < 6 else one}
        state, _ = observe(state, pods, at_s=at_s, replicas=2, ready=pods.keys())
        arrived.append(state.arrived)
    assert {after - before for before, after in pairwise(arrived[1:])} == {60.0}
    assert state.owed == ()


def test_what_a_deleted_pod_owes_is_forgotten() -> None:
    one = {"a": sample(15, 10, in_flight=4), "b": sample(15, 10, in_flight=4)}
    two: dict[str, Counters | Unmeasured] = {"a": sample(30, 20, in_flight=4), "b": DOWN}
    found = run_passes(one, two, {"a": sample(45, 30, in_flight=4)}).load
    assert isinstance(found, Load)
    assert (found.completed, found.arrived) == (54, 58), "of b the ten that were assumed, and those in flight"
    state = ServerState()
    passes: tuple[Mapping[str, Counters | Unmeasured], ...] = (one, two, {"a": sample(45, 30)})
    for number, pods in enumerate(passes, 1):
        state, _ = observe(state, pods, at_s=15.0 * number, replicas=1, ready=pods.keys())
    assert state.owed == ()


def test_a_pod_that_is_not_ready_is_not_assumed_to_serve() -> None:
    state = ServerState()
    for number in range(1, 4):
        pods: dict[str, Counters | Unmeasured] = {"a": sample(15.0 * number, 10.0 * number, in_flight=4), "b": DOWN}
        state, found = observe(state, pods, at_s=15.0 * number, replicas=2, ready={"a"})
        assert isinstance(found.load, Load)
        assert (found.load.in_flight, found.load.completed) == (4, 10 * number)


@pytest.mark.parametrize("ready", [set(), {"a"}, {"a", "b"}])
def test_pods_whose_probes_fail_are_scaled_alike_whatever_the_least(ready: set[str]) -> None:
    """Two pods with 30 requests each and 8 slots, for ten minutes ready, then some of them unready for an hour."""

    def proposed(min_replicas: int) -> list[int | None]:
        known, scaling, found = ServerState(), ScalingState(), list[int | None]()
        for number in range(1, 280):
            now_ready = ready if number > 40 else {"a", "b"}
            pods = {name: sample(15.0 * number, 40.0 * number, in_flight=30) for name in "ab"}
            known, observation = observe(known, pods, at_s=15.0 * number, replicas=2, ready=now_ready)
            facts = server_facts(replicas=2, ready=len(now_ready), min_replicas=min_replicas, max_replicas=10)
            scaling, decision = decide_replicas(scaling, facts, observation.load, 15.0 * number)
            found.append(decision.replicas)
            if number > 40:
                assert isinstance(observation.load, Load)
                assert observation.load.unready_in_flight == 30 * len({"a", "b"} - ready)
        return found

    assert proposed(0) == proposed(1)
    assert (proposed(0)[-1] or 0) > 2


@pytest.mark.parametrize(
    ("new", "want"),
    [
        (sample(1015, 500), (12, 6)),
        (sample(1015, 500, in_flight=4), (16, 8)),
        (msgspec.structs.replace(sample(1015, 500, in_flight=4), running=None), (20, 8)),
        (msgspec.structs.replace(sample(1015, 500, in_flight=4), waiting=None), (20, 12)),
    ],
)
def test_a_new_pod_has_the_requests_that_it_reports(new: Counters, want: tuple[int, int]) -> None:
    """Its model loaded for minutes, so that its first sample is compared with none."""
    state, _ = observe(ServerState(), {"a": sample(1000, 10)}, at_s=1000.0, replicas=2, ready={"a"})
    pods = {"a": sample(1015, 40, in_flight=12), "b": new}
    state, found = observe(state, pods, at_s=1015.0, replicas=2, ready=pods.keys())
    assert isinstance(found.load, Load)
    assert (found.load.in_flight, found.load.waiting) == want
    assert found.load.completed == 30, "no one knows when those of its first sample ended"
    pods = {"a": sample(1030, 70, in_flight=12), "b": msgspec.structs.replace(new, at_s=1030.0, completed=505)}
    state, _ = observe(state, pods, at_s=1030.0, replicas=2, ready=pods.keys())
    assert state.completed == 65


@pytest.mark.parametrize(
    ("pods", "want"),
    [
        ({}, "it has no running pod"),
        ({"a": DOWN}, "1 of 1 pods (a): connection refused"),
        (
            {"a": DOWN, "b": Unmeasured("no series"), "c": DOWN},
            "2 of 3 pods (a): connection refused; 1 of 3 pods (b): no series",
        ),
        ({"a": sample(20_000, 1)}, "1 of 1 pods (a): scraped once so far; the next scrape compares"),
        (
            {f"pod-{number}": Unmeasured(f"HTTP 500, {number}") for number in range(7)},
            "; ".join(f"1 of 7 pods (pod-{number}): HTTP 500, {number}" for number in range(5)) + "; 2 more reasons",
        ),
    ],
)
def test_nothing_to_go_by(pods: dict[str, Counters | Unmeasured], want: str) -> None:
    found = run_passes(pods)
    early = "the next scrape compares" in want
    assert found.load == Unmeasured(want, too_early=early or not pods)
    for each in (found.queue_time_s, found.waiting, found.in_flight):
        assert each == Unmeasured(want, too_early=early)


def test_pods_that_do_not_take_requests_yet_need_not_say_how_many_they_have() -> None:
    for ready, early in ((set[str](), True), ({"a"}, False)):
        _, found = observe(ServerState(), {"a": DOWN}, at_s=15.0, replicas=1, ready=ready)
        assert found.load == Unmeasured("1 of 1 pods (a): connection refused", too_early=early)


def test_less_than_half_of_the_pods_is_too_few() -> None:
    found = run_passes({"a": sample(15, 1), "b": DOWN, "c": DOWN})
    assert isinstance(found.load, Unmeasured)
    assert found.queue_time_s == 0.0, "what is known of one is still shown"


def test_a_pod_that_never_answered_leaves_nothing_behind() -> None:
    known, _ = observe(ServerState(), {"a": DOWN}, at_s=15.0, replicas=1, ready={"a"})
    assert known == ServerState()


def test_a_repeated_scrape_counts_once() -> None:
    one, two = {"a": sample(10, 10)}, {"a": sample(40, 16, in_flight=4, waits_s=1)}
    found = run_passes(one, one, two, two, two)
    assert isinstance(found.load, Load)
    assert (found.load.completed, found.load.arrived, found.load.in_flight) == (16, 20, 4)
    assert found.pods == run_passes(one, one, two).pods


def test_a_sample_repeated_after_a_failed_scrape_counts_once() -> None:
    one, two = {"a": sample(10, 10)}, {"a": sample(40, 16)}
    found = run_passes(one, one, two, {"a": DOWN}, two)
    assert isinstance(found.load, Load)
    assert found.load.completed == 16


def test_a_repeated_first_scrape_waits_for_the_next() -> None:
    old = {"a": sample(1000, 10)}
    known, _ = observe(ServerState(), old, at_s=1001.0, replicas=1, ready={"a"})
    _, found = observe(known, old, at_s=1016.0, replicas=1, ready={"a"})
    assert found.load == Unmeasured("1 of 1 pods (a): scraped once so far; the next scrape compares", too_early=True)


def test_it_is_too_early_only_where_nothing_else_is_wrong() -> None:
    first = sample(20_000, 1)
    both, one = run_passes({"a": first, "b": first}), run_passes({"a": first, "b": DOWN})
    assert isinstance(both.load, Unmeasured)
    assert isinstance(one.load, Unmeasured)
    assert (both.load.too_early, one.load.too_early) == (True, False)


def test_unread_replicas_are_counted() -> None:
    pods: dict[str, Counters | Unmeasured] = {"a": sample(15, 10), "b": DOWN}
    assert [unread(pods, ready) for ready in ({"a"}, {"a", "b"})] == [1, 1]
    assert [unread({"a": sample(15, 10)}, ready) for ready in ({"a"}, {"a", "b"})] == [0, 1]


def unread(pods: Mapping[str, Counters | Unmeasured], ready: set[str]) -> int:
    _, found = observe(ServerState(), pods, at_s=15.0, replicas=2, ready=ready)
    return found.load.unread if isinstance(found.load, Load) else -1


def test_what_was_before_a_gap_does_not_come_back_after_it() -> None:
    known = ServerState()
    for at_s in (1000.0, 1015.0):
        known, _ = observe(known, {"a": sample(at_s, at_s, in_flight=90)}, at_s=at_s, replicas=1, ready={"a"})
    after = {"a": sample(1200, 1200, in_flight=2)}
    for at_s in (1200.0, 1210.0):
        known, found = observe(known, after, at_s=at_s, replicas=1, ready={"a"})
        assert isinstance(found.load, Unmeasured), at_s


def test_a_scrape_of_long_ago_says_nothing_of_now() -> None:
    one: Mapping[str, Counters | Unmeasured] = {"a": sample(15, 10)}
    assert run_passes(*[one] * 10).load == Unmeasured("1 of 1 pods (a): its last sample is 135 s old")


POD = st.one_of(
    st.none(),  # not there
    st.just(DOWN),
    st.tuples(st.integers(0, 50), st.floats(0, 20), st.booleans()),  # requests that ended, in flight, restarted
)


@given(st.lists(st.lists(POD, min_size=3, max_size=3), min_size=2, max_size=12))
def test_sums_never_go_back(rounds: list[list[tuple[int, float, bool] | Unmeasured | None]]) -> None:
    known, counted, started = ServerState(), dict[int, float](), dict[int, float]()
    for number, pods in enumerate(rounds, 1):
        at_s, former = 15.0 * number, known
        given: dict[str, Counters | Unmeasured] = {}
        for name, each in enumerate(pods):
            if isinstance(each, tuple):
                if each[2]:
                    counted[name], started[name] = 0.0, at_s - 1
                counted[name] = counted.get(name, 0.0) + each[0]
                given[str(name)] = sample(at_s, counted[name], in_flight=each[1], started_s=started.get(name, 0.0))
            elif each is not None:
                given[str(name)] = each
        known, found = observe(former, given, at_s=at_s, replicas=3, ready=given.keys())
        assert known.arrived >= former.arrived
        assert known.completed >= former.completed
        assert known.served_s >= former.served_s
        if isinstance(found.load, Load):
            assert found.load.arrived >= found.load.completed


@given(
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from([None, None, 0, 1, 2, 5])), min_size=2, max_size=15),
    st.sampled_from([0.0, -40.0]),
)
def test_no_request_counts_twice_however_late_a_restart_is_reported(
    passes: list[tuple[int, int | None]], clock_s: float
) -> None:
    """A pod is scraped directly each 15 s: requests that ended, and whether it restarted 10 s before, which its status
    says so many passes late, by a clock that differs from ours."""
    state, counted, ended, late = ServerState(), 0, 0, list[tuple[int, float]]()
    started_s = 1000.0 + clock_s
    for number, (came, restart) in enumerate(passes):
        at_s = 2000.0 + 15 * number
        if restart is not None:
            counted = 0
            late.append((number + restart, at_s - 10 + clock_s))
        counted, ended = counted + came, ended + (came if number or restart is not None else 0)
        started_s = max([started_s, *(each_s for due, each_s in late if due <= number)])
        pods = {"a": sample(at_s, counted, started_s=started_s)}
        state, _ = observe(state, pods, at_s=at_s, replicas=1, ready={"a"})
        assert state.completed <= ended


def test_a_model_that_is_unloaded_beside_others_adds_no_requests() -> None:
    """The sums over the models fall, though Triton runs on."""
    state, counted = ServerState(), (1_001_000, 1_001_030, 1_000_060, 1_000_090)
    loads = list[Load | Unmeasured]()
    for number, completed in enumerate(counted):
        pods = {"a": sample(2000.0 + 15 * number, completed)}
        state, found = observe(state, pods, at_s=2000.0 + 15 * number, replicas=1, ready={"a"})
        loads.append(found.load)
    assert state.completed == 60
    assert [isinstance(each, Load) for each in loads] == [False, True, False, True]
    assert isinstance(loads[2], Unmeasured)
    assert loads[2].too_early


def test_counters_that_go_back_in_every_scrape_are_bad_input() -> None:
    state, early = ServerState(), list[bool]()
    for number in range(5):
        pods = {"a": sample(2000.0 + 15 * number, 1000 - 10 * number)}
        state, found = observe(state, pods, at_s=2000.0 + 15 * number, replicas=1, ready={"a"})
        assert isinstance(found.load, Unmeasured)
        early.append(found.load.too_early)
    assert early == [True, True, False, False, False]


def test_load_that_follows_from_counters_is_capped_by_the_window_before() -> None:
    """Triton does not report its requests in service: one sum that leaps is not as many requests."""

    def triton(at_s: float, completed: float, served_s: float) -> Counters:
        return msgspec.structs.replace(sample(at_s, completed), served_s=served_s, running=None, waiting=None)

    found = run_passes({"a": triton(15, 100, 100)}, {"a": triton(30, 130, 130)}, {"a": triton(45, 160, 1_000_000)}).load
    assert isinstance(found, Load)
    assert found.in_flight <= 2 * (100 + 2 * (30 + 2)) + 2 * 100


def test_a_restart_that_is_reported_late_by_a_clock_ahead_of_ours_counts_once() -> None:
    """The counters went back two passes before the pod's status has the start of the new process. What it counted until
    it was scraped first is not known to be new: a model may have been unloaded."""
    state = ServerState()
    passes = ((100, 0.0), (7, 0.0), (8, 0.0), (9, 99_999.0), (10, 99_999.0))
    for number, (counted, started_s) in enumerate(passes):
        pods = {"a": sample(2000.0 + 15 * number, counted, started_s=started_s)}
        state, _ = observe(state, pods, at_s=2000.0 + 15 * number, replicas=1, ready={"a"})
    assert state.completed == 3
    _, found = observe(state, {"a": DOWN}, at_s=2075.0, replicas=1, ready={"a"})
    assert isinstance(found.load, Unmeasured)


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 20), st.integers(1, 4)), min_size=1, max_size=12))
def test_passes_more_frequent_than_scrapes_count_the_same(scrapes: list[tuple[int, float, int]]) -> None:
    once = often = ServerState()
    at_s, counted = 0.0, 0.0
    for ended, in_flight, times in scrapes:
        counted += ended
        scraped_s = at_s + 5
        given = {"a": sample(scraped_s, counted, in_flight=in_flight)}
        for _ in range(times - 1):
            at_s += 15
            often, _found = observe(often, given, at_s=at_s, replicas=1, ready={"a"})
        at_s += 15
        often, found = observe(often, given, at_s=at_s, replicas=1, ready={"a"})
        once, want = observe(once, given, at_s=at_s, replicas=1, ready={"a"})
        assert (found.pods, found.load) == (want.pods, want.load)
    assert often == once


@given(st.floats(0, 99_999), st.integers(1, 20), st.floats(0.1, 50))
def test_one_sample_of_too_many_requests_is_forgotten_within_minutes(wrong: float, at: int, rate: float) -> None:
    state, arrived = ServerState(), list[float]()
    for number in range(1, 61):
        pods = {"a": sample(15.0 * number, rate * 15 * number, in_flight=wrong if number == at else 4.0)}
        state, found = observe(state, pods, at_s=15.0 * number, replicas=1, ready={"a"})
        arrived.append(found.load.arrived if isinstance(found.load, Load) else 0)
    late = (arrived[-1] - arrived[-11]) / 150
    assert late == pytest.approx(rate, abs=100 / 150 + 0.1), "of the noise that is none, at most"
    assert arrived[-1] <= rate * 900 + 4 + 100


GAUGES = st.tuples(st.floats(0, 100_000), st.floats(0, 100_000))
"""Waiting and running."""


@given(
    pods=st.integers(1, 12),
    ended=st.integers(0, 300),
    in_flight=st.integers(0, 16),
    wrong=GAUGES,
    passes=st.integers(1, 3),
)
def test_what_an_absurd_gauge_reports_counts_once_it_is_confirmed(
    pods: int, ended: int, in_flight: int, wrong: tuple[float, float], passes: int
) -> None:
    """One pod of them reports it in one pass, or in some."""
    state, found = ServerState(), list[int]()
    for number in range(1, 11):
        good = sample(15.0 * number, ended * number, in_flight=in_flight)
        samples = {str(pod): good for pod in range(pods)}
        if 5 <= number < 5 + passes:
            samples["0"] = msgspec.structs.replace(good, waiting=wrong[0], running=wrong[1])
        state, observation = observe(state, samples, at_s=15.0 * number, replicas=pods, ready=samples.keys())
        found.append(observation.load.in_flight if isinstance(observation.load, Load) else 0)
    usual = pods * in_flight
    assert found[4] <= usual + 4 * max(100 / pods, 10) + 8 * (in_flight + ended) + 1
    assert found[5:] == [math.ceil(usual - in_flight + sum(wrong))] * (passes - 1) + [usual] * (6 - passes)


@settings(max_examples=40)
@given(pods=st.integers(10, 20), ended=st.integers(0, 30), in_flight=st.integers(0, 8), wrong=GAUGES)
def test_one_pass_of_an_absurd_gauge_in_one_pod_of_many_adds_one_replica(
    pods: int, ended: int, in_flight: int, wrong: tuple[float, float]
) -> None:
    """While none wait in the others, so that a replica is known to serve as many as its spec says."""
    facts = server_facts(replicas=pods, ready=pods, max_replicas=500)

    def max_replicas(absurd: int) -> int:
        state, scaling, decided = ServerState(), ScalingState(), list[int]()
        for number in range(1, 40):
            good = msgspec.structs.replace(sample(15.0 * number, ended * number), waiting=0.0, running=float(in_flight))
            samples = {str(pod): good for pod in range(pods)}
            if number == absurd:
                samples["0"] = msgspec.structs.replace(good, waiting=wrong[0], running=wrong[1])
            state, observation = observe(state, samples, at_s=15.0 * number, replicas=pods, ready=samples.keys())
            scaling, decision = decide_replicas(scaling, facts, observation.load, 15.0 * number)
            decided.append(decision.replicas or 0)
        return max(decided[21:])

    assert max_replicas(30) <= max_replicas(0) + 1


def replicas_after_an_absurd_gauge(pods: int, service_s: float) -> list[int]:
    """Return the replicas, from before it on, if one of some pods reports 90,000 waiting requests in one pass.

    Each pod has 4 requests in flight at first; replicas that are added serve their part after two minutes.
    """
    state, scaling, history = ServerState(), ScalingState(), HpaHistory()
    replicas, absurd, found = pods, 70, list[int]()
    ready_s, ended = [0.0] * pods, dict[str, float]()
    behavior = scaling_behavior("tessera", one_by_one=False)
    for number in range(1, absurd + 100):
        now_s = 15.0 * number
        ready_s = [*ready_s, *([now_s + 120] * (replicas - len(ready_s)))][:replicas]
        ready = [str(pod) for pod, since_s in enumerate(ready_s) if since_s <= now_s]
        running = 4 * pods / len(ready)
        ended = {name: ended.get(name, 0.0) + 15 * running / service_s for name in ready}
        samples = {
            name: Counters(
                at_s=now_s,
                started_s=ready_s[int(name)],
                queued_s=0.0,
                dequeued=count,
                served_s=count * service_s,
                completed=count,
                waiting=90_000.0 if (name, number) == ("0", absurd) else 0.0,
                running=running,
            )
            for name, count in ended.items()
        }
        state, observation = observe(state, samples, at_s=now_s, replicas=replicas, ready=samples.keys())
        facts = server_facts(replicas=replicas, ready=len(ready), max_replicas=100)
        scaling, decision = decide_replicas(scaling, facts, observation.load, now_s)
        if decision.replicas is not None:
            proposed = average_metric(1000 * decision.replicas, 1000, replicas=replicas)
            bounds = ReplicaBounds(1, 100)
            advanced = advance(history, proposed, now_s, current=replicas, bounds=bounds, behavior=behavior)
            history, replicas = advanced.history, advanced.replicas
        found.append(replicas)
    return found[absurd - 2 :]


@pytest.mark.parametrize(
    ("pods", "service_s", "most"), [(1, 10, [1, 5, *[10] * 48]), (1, 4, [1, *[5] * 48]), (3, 10, [3, *[7] * 48])]
)
def test_one_pass_of_an_absurd_gauge_in_one_pod_of_few_costs_replicas_for_minutes(
    pods: int, service_s: float, most: list[int]
) -> None:
    """As docs/metrics-api.md says: all stay for the 48 passes of twelve minutes, then a fifth goes each minute."""
    found = replicas_after_an_absurd_gauge(pods, service_s)
    assert found[: len(most)] == most
    fewer = [most[-1] * 4 // 5] * 4
    while fewer[-1] > pods:
        fewer += [max(fewer[-1] * 4 // 5, pods)] * 4
    assert found[len(most) :][: len(fewer)] == fewer


def test_a_pod_with_a_single_sample_reports_no_more_than_the_others_may_have() -> None:
    """It runs for long, so its first sample says nothing of what ended."""
    others = [{"a": sample(15.0 * number, 10 * number, in_flight=4, started_s=-900)} for number in (1, 2)]
    absurd = msgspec.structs.replace(sample(30, 9, started_s=-900), waiting=9e4, running=8e4)
    found = run_passes(others[0], others[1] | {"b": absurd}).load
    assert isinstance(found, Load)
    assert found.in_flight == 4 + 2 * (50 + 2 * 4)
