"""GPU usage: who is on which GPU, and what is left there."""

from builders.fleets import A100, T4, amount, gpu, node, pod_of
from builders.gpufacts import at
from builders.shares import mig_share, share, whole
from tessera.core.cluster.occupancy import occupancy
from tessera.core.cluster.snapshot import Assignment, Running, Share, Snapshot
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.workload.need import PodKey


def assigned(pod: str, on: str, *shares: Share) -> Assignment:
    return Assignment(pod=PodKey(pod), node=node(on).name, shares=shares)


def test_running_pods_come_before_planned_ones_each_on_its_gpu() -> None:
    first = assigned("ns/first", "a", share(1, 4096))
    snapshot = Snapshot(
        nodes=(node("a", gpu(0, T4), gpu(1, T4)), node("b", gpu(0, T4))),
        running=(Running(pod=pod_of(amount(4096), "ns/first"), assignment=first),),
    )
    got = occupancy(snapshot, [assigned("ns/planned", "a", share(1, 2048)), assigned("ns/other", "b", whole(0))])
    assert list(got) == ["a", "b"]
    assert [held.clients(None) for held in got[node("a").name]] == [(), ("ns/first", "ns/planned")]
    assert got[node("b").name][0].clients(None) == ("ns/other",)


def test_what_is_left_for_an_amount() -> None:
    shared = Sharing(modes=(Mode.MEMORY_SHARE,))
    snapshot = Snapshot(nodes=(node("a", gpu(0, T4, shared), gpu(1, T4), gpu(2, T4, shared)),))
    planned = [assigned("ns/p", "a", share(0, 4096, percent=30)), assigned("ns/w", "a", whole(1, T4.memory_mib))]
    amounts, held, free = occupancy(snapshot, planned)[node("a").name]
    assert (amounts.amounts, amounts.left_mib, amounts.left_percent) == (Mode.MEMORY_SHARE, T4.memory_mib - 4096, 70)
    assert (held.amounts, held.left_mib, held.left_percent) == (None, 0, 0)
    assert (free.allocated_mib, free.left_mib, free.left_percent) == (0, T4.memory_mib, 100)


def test_instances_after_the_plan_are_those_held_and_existing_ones_beside_them() -> None:
    there = at(A100, ("3g.20gb", 0), ("3g.20gb", 4))
    fixed = gpu(0, A100, Sharing(modes=(Mode.MIG,), layout=there))
    snapshot = Snapshot(nodes=(node("a", fixed),))
    (held,) = occupancy(snapshot, [assigned("ns/p", "a", mig_share(0, "1g.5gb", 0))])[node("a").name]
    assert held.instances == at(A100, ("1g.5gb", 0), ("3g.20gb", 4))
    assert held.clients(at(A100, ("1g.5gb", 0))[0]) == ("ns/p",)
    (taken,) = occupancy(snapshot, [assigned("ns/w", "a", whole(0, A100.memory_mib))])[node("a").name]
    assert taken.instances == ()
