"""The step between none and one replica: who is woken gets one, and only what was measured twice takes it away."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.serving.autoscaling.scaletozero import ReplicasMetric, ZeroStep, is_awake, step


def zero(at_s: float) -> ReplicasMetric:
    return ReplicasMetric(replicas=0, at_s=at_s)


CASES: dict[str, tuple[float | None, int, ReplicasMetric | None, bool, ZeroStep]] = {
    "none, and none is needed": (None, 0, zero(100), False, ZeroStep(replicas=None)),
    "none, and nobody knows": (None, 0, None, False, ZeroStep(replicas=None)),
    "none, and woken": (None, 0, zero(100), True, ZeroStep(replicas=1)),
    "none, woken, and nobody knows": (None, 0, None, True, ZeroStep(replicas=1)),
    "none, and three are requested: the autoscaler does the rest": (
        None,
        0,
        ReplicasMetric(replicas=3, at_s=100),
        False,
        ZeroStep(replicas=1),
    ),
    "zero, for the first time": (None, 2, zero(100), False, ZeroStep(replicas=None, zero_s=100)),
    "the same measurement again": (100, 2, zero(100), False, ZeroStep(replicas=None, zero_s=100)),
    "one measurement later": (100, 2, zero(115), False, ZeroStep(replicas=None, zero_s=100)),
    "two later": (100, 2, zero(130), False, ZeroStep(replicas=0)),
    "a clock that went back": (100, 2, zero(40), False, ZeroStep(replicas=None, zero_s=40)),
    "woken meanwhile": (100, 2, zero(130), True, ZeroStep(replicas=None)),
    "requested again": (100, 2, ReplicasMetric(replicas=1, at_s=130), False, ZeroStep(replicas=None)),
    "nobody knows any more": (100, 2, None, False, ZeroStep(replicas=None)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_step(case: str) -> None:
    zero_s, replicas, desired, woken, want = CASES[case]
    assert step(zero_s, replicas, desired, woken=woken) == want


@pytest.mark.parametrize(
    ("woken_s", "want"), [(None, False), (99.9, False), (100.1, True), (700.0, True), (9000.0, True)]
)
def test_who_was_woken_is_awake_until_it_may_be_idle(woken_s: float | None, want: bool) -> None:
    assert is_awake(woken_s, 600.0, 700.0) is want


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.sampled_from(["grow", "keep"])), max_size=60))
def test_a_replica_goes_only_by_two_measurements_of_zero_of_it(passes: list[tuple[int, bool, str]]) -> None:
    """Each look is a measurement, 15 s after the one before, and whether somebody wakes the server; others may add
    replicas at any time."""
    zero_s, replicas, measured = None, 1, list[int]()
    for number, (desired, woken, others) in enumerate(passes):
        replicas += others == "grow"
        measured.append(desired)
        found = step(zero_s, replicas, ReplicasMetric(replicas=desired, at_s=15.0 * number), woken=woken)
        if found.replicas == 0:
            assert not woken
            assert not any(measured[number - 2 :])
        if found.replicas == 1:
            assert replicas == 0
            assert woken or desired
        if replicas == 0 and (woken or desired):
            assert found.replicas == 1
        zero_s, replicas = found.zero_s, replicas if found.replicas is None else found.replicas
