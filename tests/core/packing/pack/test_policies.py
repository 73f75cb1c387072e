"""Policies by name: each can be made, and what cannot is refused with what to give instead."""

import random

import pytest

from builders.fleets import gpu, node
from tessera.core.cluster.snapshot import Snapshot
from tessera.core.packing.fit import Fleet
from tessera.core.packing.pack.policies import POLICIES, make_policy
from tessera.core.packing.pack.policy import Policy
from tessera.errors import InvalidInput


def fleet() -> Fleet:
    return Fleet.of(Snapshot(nodes=(node("a", gpu(0)),)))


@pytest.mark.parametrize("name", POLICIES)
def test_each_policy_is_made_by_its_name(name: str) -> None:
    assert isinstance(make_policy(name, fleet(), random.Random(1)), Policy)


@pytest.mark.parametrize("name", POLICIES)
def test_only_random_needs_a_generator(name: str) -> None:
    if name == "random":
        with pytest.raises(InvalidInput, match="it has no generator of random numbers: give one"):
            make_policy(name, fleet(), None)
    else:
        assert isinstance(make_policy(name, fleet(), None), Policy)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match="policy: tetris is not the name of a policy") as refused:
        make_policy("tetris", fleet(), None)
    assert all(name in refused.value.hint for name in POLICIES)
