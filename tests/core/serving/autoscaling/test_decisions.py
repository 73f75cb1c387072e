"""What the policy is given of a server, and what it answers where something is missing."""

import msgspec
import pytest

from builders.serverfacts import changed_facts, server_facts
from tessera.core.serving.autoscaling.autoscaler import ReplicaProposal
from tessera.core.serving.autoscaling.decisions import (
    KEPT_S,
    DecisionReport,
    LastDecision,
    ScalingDecision,
    ScalingState,
    decide_replicas,
    keep_last,
    report_of,
)
from tessera.core.serving.autoscaling.serverfacts import ServerFacts
from tessera.core.serving.metrics.counters import Unmeasured
from tessera.core.serving.metrics.load import Load

FACTS = server_facts(replicas=2)
BAD = Unmeasured("1 of 1 pods (a): no answer")


def load(at_s: float = 0.0, *, in_flight: int = 0, replicas: int = 2) -> Load:
    return Load(at_s=at_s, arrived=0, completed=0, served_s=0.0, in_flight=in_flight, replicas=replicas, ready=replicas)


def run(facts: ServerFacts, *, in_flight: int, passes: int = 40) -> ScalingDecision:
    """Return the decision after ten minutes of so many requests in flight."""
    state, found = ScalingState(), None
    for number in range(passes):
        state, found = decide_replicas(state, facts, load(15.0 * number, in_flight=in_flight), 15.0 * number)
    assert found is not None
    return found


def test_a_full_server_gets_more_replicas() -> None:
    found = run(FACTS, in_flight=40)
    assert found.replicas == 3, "one more than there are in each pass"
    assert not found.bad


@pytest.mark.parametrize(
    ("facts", "want"),
    [
        (ServerFacts(pods=2), "no HorizontalPodAutoscaler targets its Deployment, so there are no bounds"),
        (
            msgspec.structs.replace(FACTS, bounds=None),
            "no HorizontalPodAutoscaler targets Deployment llm, so there are no bounds",
        ),
        (
            changed_facts(FACTS, slots=None, uses_tessera_replicas=False),
            "annotate Deployment llm with serving.tessera.dev/slots",
        ),
    ],
)
def test_without_bounds_or_slots_there_is_no_decision(facts: ServerFacts, want: str) -> None:
    state, found = decide_replicas(ScalingState(), facts, load(), 0.0)
    assert state == ScalingState()
    assert (found.replicas, found.bad) == (None, False)
    assert found.reason.endswith(want)


def test_an_annotation_that_cannot_be_read_is_bad_input_and_reported() -> None:
    facts = changed_facts(FACTS, problem="annotation x: 'y' is not a number")
    _, found = decide_replicas(ScalingState(), facts, load(), 0.0)
    assert (found.replicas, found.reason, found.bad) == (None, "annotation x: 'y' is not a number", True)


def test_bad_input_keeps_the_decision_and_what_was_learned() -> None:
    state, good = decide_replicas(ScalingState(), FACTS, load(), 0.0)
    kept, found = decide_replicas(state, FACTS, BAD, 15.0)
    assert (found.replicas, found.bad) == (good.replicas, True)
    assert kept == state
    _, late = decide_replicas(kept, FACTS, BAD, 300.0)
    assert (late.replicas, late.bad) == (None, True)


def test_while_a_pod_is_unschedulable_no_more_replicas_are_requested() -> None:
    found = run(changed_facts(FACTS, unschedulable=1), in_flight=40)
    assert found.replicas == 2
    assert found.reason.endswith("; limited to 2: 1 pod is unschedulable")


def burst(facts: ServerFacts) -> ScalingDecision:
    """Return the decision when so many requests come that ten replicas are needed."""
    state, found = ScalingState(), None
    for number in range(40):
        now = msgspec.structs.replace(
            load(15.0 * number, in_flight=8), arrived=number * 200, completed=number * 200, served_s=number * 600.0
        )
        state, found = decide_replicas(state, facts, now, now.at_s)
    assert found is not None
    return found


@pytest.mark.parametrize(("room", "want"), [(0, 3), (1, 4), (2, 5), (3, 5), (64, 5), (None, 5)])
def test_at_most_one_replica_beyond_the_room_is_requested(room: int | None, want: int) -> None:
    found = burst(changed_facts(FACTS, room=room))
    assert found.replicas == want
    now = f"the GPUs have room for {room} more" if room else "the GPUs have no room for more"
    suffix = f"; limited to {want}: {now}, and another one is requested so that MIG instances or a node are added"
    assert found.reason.endswith(suffix) is (want < 5)


def test_where_the_cluster_cannot_be_read_one_more_is_requested() -> None:
    found = burst(changed_facts(FACTS, room=0, room_problem="nodes: no right"))
    assert found.replicas == 3
    assert found.reason.endswith(
        "; limited to 3: room on the GPUs is unknown (nodes: no right), and one more is requested"
    )


IDLE = server_facts(replicas=1, ready=1, idle_s=600.0)


@pytest.mark.parametrize(
    ("facts", "want"),
    [
        (IDLE, 0),
        (changed_facts(IDLE, idle_s=None), 1),
        (changed_facts(IDLE, woken_s=2900.0), 1),
        (changed_facts(IDLE, idle_s=6000.0), 1),
    ],
)
def test_an_idle_server_may_go_to_zero_where_its_user_says_so(facts: ServerFacts, want: int) -> None:
    assert run(facts, in_flight=0, passes=200).replicas == want


NOT_READY = "no replica is ready: 1 is starting or unready"
WITHOUT = changed_facts(IDLE, replicas=0, ready=0)


@pytest.mark.parametrize(
    ("facts", "want", "reason"),
    [
        (WITHOUT, 0, "idle: no request and no wake-up"),
        (
            changed_facts(WITHOUT, pending_requests=None),
            0,
            "the wake-up query failed, and nothing else woke it",
        ),
        (changed_facts(WITHOUT, pending_requests=None, woken_s=0.0), 1, "woken"),
        (
            changed_facts(WITHOUT, pending_requests=None, replicas=1),
            1,
            NOT_READY,
        ),
        (changed_facts(WITHOUT, woken_s=0.0), 1, "woken"),
        (changed_facts(WITHOUT, pending_requests=0.4), 1, "1 request waits, and there is no replica"),
        (changed_facts(WITHOUT, replicas=1), 1, NOT_READY),
    ],
)
def test_without_a_replica_the_reason_names_what_wakes_it(facts: ServerFacts, want: int, reason: str) -> None:
    _, found = decide_replicas(ScalingState(), facts, Unmeasured("it has no running pod"), 15.0)
    assert (found.replicas, found.reason, found.bad) == (want, reason, False)


@pytest.mark.parametrize("min_replicas", [0, 1])
def test_a_probe_that_fails_for_a_moment_changes_nothing_whatever_the_minimum(min_replicas: int) -> None:
    """One replica, steady for an hour, then overload, and it is unready in every other pass."""

    def proposed(unready: bool) -> list[int | None]:
        state, found = ScalingState(), list[int | None]()
        for number in range(100):
            flying = 5 if number < 60 else 30
            facts = changed_facts(
                IDLE,
                idle_s=None if min_replicas else 600.0,
                max_replicas=10,
                ready=0 if unready and number >= 60 and number % 2 else 1,
            )
            measured = load(15.0 * number, in_flight=flying, replicas=1)
            now = msgspec.structs.replace(measured, ready=facts.ready, waiting=max(flying - 8, 0))
            state, decision = decide_replicas(state, facts, now, 15.0 * number)
            found.append(decision.replicas)
        return found

    assert proposed(unready=True) == proposed(unready=False)
    assert max(each or 0 for each in proposed(unready=True)) > 1


def test_a_failed_probe_of_a_pod_that_cannot_be_read_keeps_the_decision_for_a_moment() -> None:
    state, facts = ScalingState(), changed_facts(IDLE, replicas=2, ready=2)
    decision = decide_replicas(state, facts, load(in_flight=14), 0.0)[1]
    for number in range(40):
        state, decision = decide_replicas(state, facts, load(15.0 * number, in_flight=14), 15.0 * number)
    lost = changed_facts(facts, ready=0)
    decisions = list[tuple[int | None, str]]()
    for number in range(40, 43):
        state, found = decide_replicas(state, lost, Unmeasured("no answer"), 15.0 * number)
        decisions.append((found.replicas, found.reason.partition(";")[0]))
    assert decisions == [(3, "no answer"), (3, "no answer"), (2, NOT_READY.replace("1 is", "2 are"))]
    assert decision.replicas == 3
    gone = changed_facts(lost, replicas=0, pending_requests=3.0)
    assert decide_replicas(state, gone, Unmeasured("no answer"), 15.0 * 44)[1].replicas == 1, (
        "at zero nothing is awaited"
    )


def test_a_server_scaled_to_zero_by_hand_stays_at_zero() -> None:
    _, found = decide_replicas(ScalingState(), changed_facts(FACTS, replicas=0), BAD, 15.0)
    assert (found.replicas, found.bad) == (None, False)
    assert "scaled to zero by hand" in found.reason


def test_a_rollout_keeps_the_capacity_and_measures_the_new_template_once_it_has_ended() -> None:
    """Requests wait in the pods, which serve four each by the old template and six by the new one."""
    facts, state = changed_facts(FACTS, slots=256, revision="1"), ScalingState()
    steps = [(6, "1", False), (20, "2", True), (4, "2", False), (1, "2", False)]
    limits = list[tuple[int, bool] | None]()
    at_s = 0.0
    for passes, revision, rolling in steps:
        serving = 4.0 if rolling or revision == "1" else 6.0
        now = changed_facts(facts, revision=revision, rolling=rolling)
        for _ in range(passes):
            at_s += 15
            busy = msgspec.structs.replace(load(at_s, in_flight=30), waiting=18, saturated=serving, queued=True)
            state, _ = decide_replicas(state, now, busy, at_s)
        capacity = state.autoscaler.capacity
        limits.append(None if capacity is None else (int(capacity.requests), capacity.carried))
    assert limits == [(4, False), (4, True), (4, True), (6, False)], "after a minute of the new pods alone it is theirs"


@pytest.mark.parametrize(
    ("facts", "want"),
    [
        (FACTS, "in 120 s"),
        (changed_facts(FACTS, started_s=(30.0, 50.0, 1000.0)), "in 50 s"),
        (changed_facts(FACTS, started_s=(0.1,)), "in 5 s"),
        (changed_facts(FACTS, started_s=(90_000.0,)), "in 1800 s"),
        (changed_facts(FACTS, started_s=(30.0,), cold_start_s=70.0), "in 70 s"),
    ],
)
def test_the_cold_start(facts: ServerFacts, want: str) -> None:
    _, found = decide_replicas(ScalingState(), facts, load(), 0.0)
    assert want in found.reason


LAST = LastDecision(at_s=100.0, replicas=3, reason="why")


def test_a_proposal_is_the_decision() -> None:
    assert keep_last(None, ReplicaProposal(3, "why"), 100.0) == (LAST, ScalingDecision(replicas=3, reason="why"))


def test_the_last_good_decision_is_kept_for_the_stated_time() -> None:
    reason = "1 of 1 pods (a): no answer; the decision of 299 s ago is kept for 5 minutes"
    assert keep_last(LAST, BAD, 100.0 + KEPT_S - 1) == (
        LAST,
        ScalingDecision(replicas=3, reason=reason, bad=True, earlier=True),
    )


def test_what_is_only_too_early_is_not_bad() -> None:
    early = Unmeasured("scraped once so far", too_early=True)
    assert [keep_last(former, early, 110.0)[1].bad for former in (LAST, None)] == [False, False]


def test_then_there_is_none() -> None:
    reason = "1 of 1 pods (a): no answer; the replicas do not change"
    want = (None, ScalingDecision(replicas=None, reason=reason, bad=True))
    assert keep_last(LAST, BAD, 100.0 + KEPT_S) == want
    assert keep_last(None, BAD, 100.0) == want
    assert keep_last(LAST, BAD, 99.0) == want, "a clock that went back"


def test_zero_is_not_kept() -> None:
    want = ScalingDecision(replicas=None, reason="1 of 1 pods (a): no answer; the replicas do not change", bad=True)
    assert keep_last(LastDecision(at_s=100.0, replicas=0, reason="idle"), BAD, 101.0) == (None, want)


def test_a_decision_is_an_event_where_something_uses_it() -> None:
    good, bad = ScalingDecision(replicas=1, reason="why"), ScalingDecision(replicas=None, reason="no answer", bad=True)
    early = ScalingDecision(replicas=None, reason="scraped once so far")
    assert [report_of(FACTS, each) for each in (good, bad, early)] == [
        DecisionReport(reason="ReplicasProposed", message="1 replica: why", warning=False),
        DecisionReport(reason="ScalingInputBad", message="no number of replicas: no answer", warning=True),
        None,
    ]
    assert report_of(changed_facts(FACTS, uses_tessera_replicas=False), good) is None
