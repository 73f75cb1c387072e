"""Policies by name: each can be made, and what cannot is refused with what to give instead."""

import random

import pytest

from builders.fleets import T4, amount, gpu, node
from tessera.core.cluster.snapshot import Snapshot
from tessera.core.packing.fit import Fleet
from tessera.core.packing.pack import Packer
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


def test_random_takes_any_gpu_of_any_node_that_fits() -> None:
    nodes = (node("a", gpu(0), gpu(1, T4)), node("b", gpu(0), gpu(1, T4)), node("c"))
    found = set()
    for seed in range(60):
        packer = Packer(Fleet(nodes), "random", rng=random.Random(seed))
        choice = packer.place(packer.intern(amount(4_000)))
        assert choice is not None
        found.add((nodes[choice.node].name, choice.shares[0].gpu))
    assert found == {("a", 0), ("a", 1), ("b", 0), ("b", 1)}
