"""Bad input: the last good decision is kept for five minutes, then there is none; and each says why."""

from tessera.core.serving.autoscaling.autoscaler import ReplicaProposal
from tessera.core.serving.autoscaling.decisions import (
    KEPT_S,
    DecisionReport,
    LastDecision,
    ScalingDecision,
    decide,
    report_of,
)
from tessera.core.serving.autoscaling.serverfacts import ServerFacts
from tessera.core.serving.metrics.counters import Unmeasured

BAD = Unmeasured("1 of 1 pods (a): no answer")
GOOD = LastDecision(at_s=100.0, replicas=3, reason="why")


def test_a_proposal_is_the_decision() -> None:
    assert decide(None, ReplicaProposal(3, "why"), 100.0) == (GOOD, ScalingDecision(replicas=3, reason="why"))


def test_the_last_good_decision_is_kept_for_the_stated_time() -> None:
    reason = "1 of 1 pods (a): no answer; the decision of 299 s ago is kept for 5 minutes"
    assert decide(GOOD, BAD, 100.0 + KEPT_S - 1) == (
        GOOD,
        ScalingDecision(replicas=3, reason=reason, bad=True, earlier=True),
    )


def test_what_is_only_too_early_is_not_bad() -> None:
    early = Unmeasured("scraped once so far", too_early=True)
    assert [decide(former, early, 110.0)[1].bad for former in (GOOD, None)] == [False, False]


def test_then_there_is_none() -> None:
    reason = "1 of 1 pods (a): no answer; the replicas do not change"
    want = (None, ScalingDecision(replicas=None, reason=reason, bad=True))
    assert decide(GOOD, BAD, 100.0 + KEPT_S) == want
    assert decide(None, BAD, 100.0) == want
    assert decide(GOOD, BAD, 99.0) == want, "a clock that went back"


def test_zero_is_not_kept() -> None:
    want = ScalingDecision(replicas=None, reason="1 of 1 pods (a): no answer; the replicas do not change", bad=True)
    assert decide(LastDecision(at_s=100.0, replicas=0, reason="idle"), BAD, 101.0) == (None, want)


def test_a_decision_is_an_event_where_something_uses_it() -> None:
    good, bad = ScalingDecision(replicas=1, reason="why"), ScalingDecision(replicas=None, reason="no answer", bad=True)
    early, used = ScalingDecision(replicas=None, reason="scraped once so far"), ServerFacts(replicas=1, decided=True)
    assert [report_of(used, each) for each in (good, bad, early)] == [
        DecisionReport(reason="ReplicasProposed", message="1 replica: why", warning=False),
        DecisionReport(reason="ScalingInputBad", message="no number of replicas: no answer", warning=True),
        None,
    ]
    assert report_of(ServerFacts(replicas=1), good) is None
