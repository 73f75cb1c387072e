"""Laws of the packer on small fleets that mix all modes and all ask forms, against a judge written independently."""

import random

import numpy as np
import pytest
from hypothesis import given, settings

from builders.mixedclusters import T4, Judge, World, worlds
from tessera.core.cluster.gputypes import Ints
from tessera.core.cluster.snapshot import Assignment, Gpu, Node, NodeName, Running, Snapshot
from tessera.core.packing.fit import Fleet
from tessera.core.packing.fit.onenode import serve
from tessera.core.packing.pack import POLICIES, UNFIT, Choice, Packer
from tessera.core.workload.need import DeviceRequest, Form, Need, Pod, PodKey


def arrays(fleet: Fleet) -> list[Ints]:
    names = ("room", "serves", "compute_left", "memory_left", "amounts", "remaining", "used", "clients", "offers")
    return [getattr(fleet, name).copy() for name in names]


def same(one: list[Ints], other: list[Ints]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.search
@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=100, deadline=None)
@given(world=worlds)
def test_grants_are_allowed_refusals_are_forced_and_kept_scores_are_full_scores(policy: str, world: World) -> None:
    nodes, kinds, rng = world
    fleet = Fleet.of(Snapshot(nodes=nodes))
    rank = list(range(len(nodes)))
    rng.shuffle(rank)
    packer = Packer(fleet, policy, rank=rank, rng=random.Random(1))
    ids = [packer.intern(need) for need in kinds]
    judge, start = Judge(nodes), arrays(fleet)
    placed: list[tuple[int, Choice]] = []
    for _ in range(14):
        if placed and rng.random() < 0.25:
            kind, gone = placed.pop(rng.randrange(len(placed)))
            packer.release(ids[kind], gone)
            judge.held[gone.node].remove((kinds[kind], gone.shares))
            continue
        kind = rng.randrange(len(kinds))
        choice = packer.place(ids[kind])
        if choice is None:
            alike = (node for node in range(len(nodes)) if not judge.mixed(node, kinds[kind]))
            assert not any(judge.fits(node, kinds[kind]) for node in alike)
            continue
        assert judge.allows(choice.node, kinds[kind], choice.shares)
        assert not judge.mixed(choice.node, kinds[kind])
        judge.held[choice.node].append((kinds[kind], choice.shares))
        placed.append((kind, choice))
        for own in ids:
            every = packer.scores(own, np.arange(len(nodes)))
            assert packer.row(own)[rank].tolist() == every.tolist()
    rng.shuffle(placed)
    for kind, gone in placed:
        packer.release(ids[kind], gone)
    assert same(arrays(fleet), start)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=20, deadline=None)
@given(world=worlds)
def test_choices_are_the_same_with_every_node_rescored(policy: str, world: World) -> None:
    nodes, kinds, rng = world
    order = [rng.randrange(len(kinds)) for _ in range(12)]
    runs = []
    for keep in (True, False):
        packer = Packer(Fleet(nodes), policy, keep_scores=keep, rng=random.Random(3))
        ids = [packer.intern(need) for need in kinds]
        runs.append([packer.place(ids[kind]) for kind in order])
    assert runs[0] == runs[1]


@pytest.mark.parametrize("policy", ["fgd", "tessera"])
@settings(max_examples=20, deadline=None)
@given(world=worlds)
def test_gpus_named_with_the_scores_are_those_the_policy_puts_first(policy: str, world: World) -> None:
    nodes, kinds, rng = world
    packer = Packer(Fleet(nodes), policy, mix=tuple((need, 1) for need in dict.fromkeys(kinds)))
    ids = [packer.intern(need) for need in kinds]
    for kind in rng.choices(ids, k=12):
        row = packer.row(kind)
        first = packer.policy.pick(row)
        want = serve(packer.fleet, packer.demand(kind), first, packer.policy) if row[first] != UNFIT else None
        choice = packer.place(kind)
        assert want is None or choice == Choice(first, want)


@pytest.mark.parametrize("policy", ["first-fit", "fgd", "tessera"])
def test_kept_scores_are_full_scores_on_a_fleet_that_fills_up(policy: str) -> None:
    two = tuple(Gpu(index=i, model=T4, memory_mib=T4.memory_mib) for i in range(2))
    nodes = tuple(
        Node(name=NodeName(f"n{i}"), cpu_milli=8_000, memory_mib=32_000, gpus=two[: 1 + i % 2]) for i in range(100)
    )
    share = DeviceRequest(resource="tessera.dev/gpu-memory", form=Form.NEED, memory_mib=6_000)
    kinds = [
        Need(cpu_milli=1_000, memory_mib=1_000, requests=(share,)),
        Need(cpu_milli=4_000, memory_mib=9_000, requests=(DeviceRequest(resource="nvidia.com/gpu"),)),
        Need(cpu_milli=3_000, memory_mib=500),
    ]
    rank = list(range(len(nodes)))
    random.Random(5).shuffle(rank)
    packer = Packer(Fleet(nodes), policy, rank=rank)
    ids = [packer.intern(need) for need in kinds]
    for arrival in range(400):
        packer.place(ids[0 if arrival % 20 else 1 + arrival // 20 % 2])
        if arrival % 50 == 0:
            for kind in ids:
                assert packer.row(kind)[rank].tolist() == packer.scores(kind, np.arange(len(nodes))).tolist()
    assert packer.place(ids[0]) is None


@settings(max_examples=60, deadline=None)
@given(world=worlds)
def test_a_copy_is_independent_and_running_pods_hold_what_they_held(world: World) -> None:
    nodes, kinds, _ = world
    fleet = Fleet(nodes)
    before = arrays(fleet)
    packer = Packer(fleet.copy(), "first-fit")
    running = []
    for number, need in enumerate(kinds * 2):
        choice = packer.place(packer.intern(need))
        if choice is not None:
            key = PodKey(f"default/pod-{number}")
            held = Assignment(pod=key, node=nodes[choice.node].name, shares=choice.shares)
            running.append(Running(pod=Pod(key=key, need=need), assignment=held))
    assert same(arrays(fleet), before)
    resumed = Fleet.of(Snapshot(nodes=nodes, running=tuple(running)))
    assert same(arrays(resumed), arrays(packer.fleet))
    assert resumed.layouts() == packer.fleet.layouts()
    for node, spec in enumerate(nodes):
        for gpu, layout in zip(spec.gpus, resumed.layouts()[node], strict=True):
            shares = [s for r in running if r.assignment.node == spec.name for s in r.assignment.shares]
            cut = {(s.start, s.profile) for s in shares if s.gpu == gpu.index and s.profile}
            assert cut <= {(p.start, p.profile) for p in layout}
            assert sum(p.mask for p in layout).bit_count() == sum(p.size for p in layout)


def test_a_fleet_without_nodes_places_nothing() -> None:
    packer = Packer(Fleet(()), "tessera")
    assert packer.place(packer.intern(Need())) is None
