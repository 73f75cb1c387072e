"""Stranded capacity equals what the packer says, one device of the mix and one GPU at a time."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from builders.fleets import amount, node, pods, slices
from builders.kubeobjects import gpu, mig_share, share
from tessera.core.cluster.snapshot import Assignment, Gpu, NodeName, Running, Share, Snapshot
from tessera.core.gpu.sharing import Mode
from tessera.core.packing.fit import Fleet
from tessera.core.packing.pack.packer import Packer
from tessera.core.packing.stranded import Stranded, stranded
from tessera.core.workload.need import Need

HELD: list[tuple[Share, ...]] = [
    (),
    (share(0, 40960, Mode.WHOLE, percent=100),),
    (share(0, 20000), share(0, 10000)),
    (share(0, 20000, Mode.MPS, percent=80),),
    (mig_share(0, "1g.5gb", 0),),
    (mig_share(0, "1g.5gb", 1), mig_share(0, "1g.5gb", 5)),
    (mig_share(0, "3g.20gb", 4),),
    (mig_share(0, "4g.20gb", 0), mig_share(0, "3g.20gb", 4)),
]
NEEDS = [slices("1g.5gb"), slices("3g.20gb", 2), slices("7g.40gb"), amount(15000), amount(1000), amount(99999)]


def running(held: tuple[Share, ...]) -> tuple[Running, ...]:
    return tuple(
        Running(pod=pod, assignment=Assignment(pod=pod.key, node=NodeName("a"), shares=(each,)))
        for pod, each in zip(pods(Need(), len(held)), held, strict=True)
    )


def fits(need: Need, given_gpu: Gpu, held: tuple[Share, ...]) -> bool:
    """Return whether the packer finds a place for one device of the need on a node with this GPU alone."""
    one = Need(requests=(msgspec.structs.replace(need.requests[0], count=1),))
    packer = Packer(Fleet.of(Snapshot(nodes=(node("a", given_gpu),), running=running(held))), "first-fit")
    return packer.place(packer.intern(one)) is not None


@given(st.lists(st.sampled_from(HELD), max_size=4), st.lists(st.sampled_from(NEEDS), max_size=6))
def test_fragmentation_is_what_the_packer_cannot_place(held: list[tuple[Share, ...]], needs: list[Need]) -> None:
    got = stranded([(gpu(0), each) for each in held], needs)
    for each, found in zip(held, got, strict=True):
        weights = [(need.requests[0].count, fits(need, gpu(0), ()), fits(need, gpu(0), each)) for need in needs]
        could = sum(count for count, empty, _ in weights if empty)
        lost = sum(count for count, empty, now in weights if empty and not now)
        assert (found.fragmentation_percent is None) == (not could or not found.free_percent)
        if found.fragmentation_percent is not None:
            assert found.fragmentation_percent == round(100 * lost / could)
        assert found.free_percent == 100 or each


def test_gpus_that_cannot_have_given_what_is_held_have_nothing_free() -> None:
    broken = (mig_share(0, "3g.20gb", 0), mig_share(0, "2g.10gb", 2))
    got = stranded([(gpu(0), held) for held in ((), broken, (), broken, ())], [slices("1g.5gb")])
    assert [each == Stranded() for each in got] == [False, True, False, True, False]


def test_no_gpus() -> None:
    assert stranded([], NEEDS) == ()
