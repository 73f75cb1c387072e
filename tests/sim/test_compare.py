"""Policies on one workload: the same arrivals, each with what it may know, and the same log each time."""

import pytest

from builders.runs import PAIR, WHOLE, workload_of
from tessera.errors import InvalidInput
from tessera.sim.compare import KNOW_THE_MIX, simulate
from tessera.sim.engine import RunRules

FULL = workload_of((2, 3), [(WHOLE, 1.0 * at, 10.0) for at in range(3)] + [(PAIR, 4.0, 10.0), (WHOLE, 5.0, 10.0)])


@pytest.mark.parametrize("policy", ["tessera", "random", *KNOW_THE_MIX])
def test_a_policy_gives_the_same_log_each_time_on_a_fleet_of_its_own(policy: str) -> None:
    first, again = (simulate(FULL, policy, RunRules()) for _ in range(2))
    assert first == again
    assert (first.policy, first.workload) == (policy, FULL)
    assert sum(spot is not None for spot in first.spots) >= 3


def test_a_policy_that_does_not_exist_is_named() -> None:
    with pytest.raises(InvalidInput, match="best"):
        simulate(FULL, "best", RunRules())
