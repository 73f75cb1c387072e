"""The loops that numba compiles give the scores of the array form, bit by bit, compiled or not."""

import random
import sys

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.fleets import A30, A100, T4, amount, gpu, node, plain_share
from tessera.core.cluster.snapshot import Node
from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.packing.fit import Demand, Fleet
from tessera.core.packing.pack import Packer
from tessera.core.packing.pack.kernels import Kernels, compiled, plain
from tessera.core.packing.pack.tessera import Tessera
from tessera.core.workload.need import DeviceRequest, Need

FRESH = compiled.__wrapped__
SHARED = Sharing(modes=(Mode.WHOLE, Mode.MEMORY_SHARE, Mode.MPS))
NEEDS = st.builds(
    lambda need, cpu, models: Need(cpu_milli=cpu, requests=need.requests, models=models),
    st.one_of(
        st.builds(amount, st.integers(500, 16_000), count=st.integers(1, 2), compute_percent=st.integers(0, 100)),
        st.builds(plain_share, st.integers(500, 16_000)),
        st.builds(lambda n: Need(requests=(DeviceRequest(resource="nvidia.com/gpu", count=n),)), st.integers(1, 4)),
        st.just(Need()),
    ),
    st.integers(0, 20_000),
    st.sampled_from(((), (), (A100.name, A30.name))),
)
Shapes = list[tuple[list[GpuModel], int]]
NODES = st.lists(
    st.tuples(st.lists(st.sampled_from((A30, A100, T4)), max_size=4), st.integers(0, 64_000)), min_size=1, max_size=6
).filter(lambda shapes: any(kinds for kinds, _ in shapes))


def fleet_of(shapes: Shapes) -> tuple[Node, ...]:
    return tuple(
        node(f"n{n}", *(gpu(i, kind, SHARED) for i, kind in enumerate(kinds)), cpu_milli=cpu)
        for n, (kinds, cpu) in enumerate(shapes)
    )


def assert_same_choices(fleet: Fleet, kernels: Kernels, kinds: list[Need], leaving_permille: int) -> None:
    mix = tuple((need, 1 + i) for i, need in enumerate(dict.fromkeys(kinds)))
    arrays, loops = Tessera(fleet), Tessera(fleet, kernels)
    for policy in (arrays, loops):
        policy.learn(mix, leaving_permille)
    nodes = np.arange(len(fleet.nodes))
    for need in kinds:
        demand = Demand(need, fleet)
        room = demand.room(fleet, nodes)
        fits = demand.fits(fleet, nodes, room)
        want, got = (policy.choices(demand, nodes, room) for policy in (arrays, loops))
        assert got[0][fits].tolist() == want[0][fits].tolist()
        again = loops.choices(demand, nodes, room)
        assert [each.tolist() for each in again] == [each.tolist() for each in got]
        if demand.sole is not None:
            assert got[1][fits].tolist() == want[1][fits].tolist()


@pytest.mark.parametrize("seed", range(6))
def test_on_random_fleets(seed: int) -> None:
    """Every kind of pod on fleets with some of them; `test_uncompiled` looks for more."""
    rng = random.Random(seed)
    shapes = [(rng.choices((A30, A100, T4), k=rng.randint(1, 4)), rng.randint(4_000, 64_000)) for _ in range(4)]
    kinds = [
        amount(6_000, compute_percent=30),
        plain_share(9_000),
        Need(cpu_milli=4_000),
        *(Need(cpu_milli=8_000, requests=(DeviceRequest(resource="nvidia.com/gpu", count=n),)) for n in (1, 2, 4)),
    ]
    fleet = Fleet(fleet_of(shapes))
    packer = Packer(fleet, "first-fit")
    for need in rng.choices(kinds, k=seed):
        packer.place(packer.intern(need))
    assert_same_choices(fleet, plain, kinds, 1000 * (seed % 2))


@pytest.mark.search
@settings(max_examples=150, deadline=None)
@given(NODES, st.lists(NEEDS, min_size=1, max_size=5), st.sampled_from((0, 1000)), st.randoms(use_true_random=False))
def test_uncompiled(shapes: Shapes, kinds: list[Need], leaving_permille: int, rng: random.Random) -> None:
    fleet = Fleet(fleet_of(shapes))
    packer = Packer(fleet, "first-fit")
    for need in rng.choices(kinds, k=6):
        packer.place(packer.intern(need))
    assert_same_choices(fleet, plain, kinds, leaving_permille)


def test_a_pod_that_asks_for_a_gpu_and_for_an_amount() -> None:
    both = Need(requests=(DeviceRequest(resource="nvidia.com/gpu"), *amount(6_000).requests))
    assert_same_choices(Fleet(fleet_of([([A100], 8_000), ([A100, T4, A30], 8_000), ([T4, T4], 0)])), plain, [both], 0)


@pytest.mark.search
def test_compiled_on_a_fleet_that_is_large_enough_for_it() -> None:
    rng = random.Random(3)
    shapes = [(rng.choices((A30, A100, T4), k=rng.choice((1, 4, 8))), rng.randrange(96_000)) for _ in range(1000)]
    fleet = Fleet(fleet_of(shapes))
    kinds = [
        amount(6_000, compute_percent=30),
        plain_share(9_000),
        amount(3_000),
        Need(cpu_milli=4_000),
        *(Need(cpu_milli=8_000, requests=(DeviceRequest(resource="nvidia.com/gpu", count=n),)) for n in (1, 2, 4)),
    ]
    packer = Packer(fleet, "tessera")
    for need in rng.choices(kinds, k=1500):
        packer.place(packer.intern(need))
    kernels = compiled()
    assert kernels is not None
    assert isinstance(packer.policy, Tessera)
    assert packer.policy._kernels is kernels
    assert_same_choices(fleet, kernels, kinds, 0)


def test_without_numba_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    assert FRESH() is None


def test_where_nothing_can_be_kept_they_are_compiled_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = numba.njit

    def nowhere(*, cache: bool = False) -> object:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return kept()

    monkeypatch.setattr(numba, "njit", nowhere)
    made = FRESH()
    assert made is not None
    assert made.amounts is not plain.amounts
