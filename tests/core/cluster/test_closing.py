"""What is unhealthy serves those who hold it and nobody else."""

import pytest

from builders.fleets import amount, node, plain_share, slices
from builders.kubeobjects import gpu, mig_share, place, share
from tessera.core.cluster.closing import without_new
from tessera.core.cluster.gpunodestate import UnhealthyDevice
from tessera.core.cluster.snapshot import Assignment, Gpu, NodeName, Running, Share, Snapshot
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.packing.fit import Demand, Fleet
from tessera.core.workload.need import Ask, Isolation, Need, Pod, PodKey

T4 = 15360
LAYOUT = (place("A100-40GB", "3g.20gb", 0), place("A100-40GB", "3g.20gb", 4))
FIXED = Sharing(
    modes=(Mode.MIG, Mode.MIG_TIME_SLICING), layout=LAYOUT, allow_repartition=False, replicas=(("3g.20gb", 2),)
)
WHOLE_SICK = (UnhealthyDevice(gpu="GPU-a-0", reason="Xid 79"),)
SECOND_SICK = (UnhealthyDevice(gpu="GPU-a-0", placement=LAYOUT[1], reason="Xid 43"),)
ANY = (
    amount(1024),
    amount(1024, Isolation.DRIVER),
    amount(1024, Isolation.HARDWARE),
    plain_share(1024),
    slices("1g.5gb"),
    slices("3g.20gb"),
    Need(asks=(Ask(resource="nvidia.com/gpu"),)),
    Need(asks=(Ask(resource="nvidia.com/mig-3g.20gb.shared"),)),
)


def replicated(start: int) -> Share:
    return mig_share(0, "3g.20gb", start, mode=Mode.MIG_TIME_SLICING)


# Keyed by a sentence: the GPU, what is unhealthy, what is held; desired is whether anything new is served.
CASES: dict[str, tuple[Gpu, tuple[UnhealthyDevice, ...], tuple[Share, ...], bool]] = {
    "a GPU that is well": (gpu(0), (), (), True),
    "the neighbor is unhealthy": (gpu(0), (UnhealthyDevice(gpu="GPU-a-1"),), (), True),
    "an empty GPU": (gpu(0), WHOLE_SICK, (), False),
    "a GPU held whole": (gpu(0), WHOLE_SICK, (share(0, 40000, Mode.WHOLE, percent=100),), False),
    "memory shares": (gpu(0), WHOLE_SICK, (share(0, 4096), share(0, 2048)), False),
    "shares by MPS": (gpu(0), WHOLE_SICK, (share(0, 4096, Mode.MPS, percent=10),), False),
    "instances that Tessera cut": (gpu(0), WHOLE_SICK, (mig_share(0, "1g.5gb", 6), mig_share(0, "2g.10gb", 0)), False),
    "replicas of the whole GPU": (
        gpu(0, sharing=Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 4),))),
        WHOLE_SICK,
        (share(0, 9000, Mode.TIME_SLICING, percent=25),),
        False,
    ),
    "replicas of an instance": (gpu(0, sharing=FIXED), WHOLE_SICK, (replicated(0),), False),
    "one instance of two, unused": (gpu(0, sharing=FIXED), SECOND_SICK, (replicated(0),), True),
    "one instance of two, held once of twice": (
        gpu(0, sharing=FIXED),
        SECOND_SICK,
        (replicated(0), replicated(0), replicated(4)),
        False,
    ),
    "an instance on a managed GPU, unused": (gpu(0, layout=LAYOUT), SECOND_SICK, (), True),
    "an instance on a managed GPU, held": (gpu(0, layout=LAYOUT), SECOND_SICK, (mig_share(0, "3g.20gb", 4),), True),
    "an instance that is no more": (gpu(0), SECOND_SICK, (), True),
}


@pytest.mark.parametrize("sentence", CASES)
def test_what_is_sick_serves_nobody_new(sentence: str) -> None:
    given, unhealthy, held, want = CASES[sentence]
    closed = without_new(given, unhealthy, held)
    running = tuple(
        Running(
            pod=Pod(key=PodKey(f"ns/{number}"), need=Need()),
            assignment=Assignment(pod=PodKey(f"ns/{number}"), node=NodeName("a"), shares=(each,)),
        )
        for number, each in enumerate(held)
    )
    fleet = Fleet.of(Snapshot(nodes=(node("a", closed),), running=running))  # those who hold it stay
    every = fleet.room[0] * 0
    assert any(bool(Demand(need, fleet).fits(fleet, every)[0]) for need in ANY) is want


def test_a_sick_instance_is_offered_to_nobody_and_its_neighbor_is() -> None:
    closed = without_new(gpu(0, sharing=FIXED), SECOND_SICK, ())
    assert [(device.placement, device.clients) for device in closed.devices] == [(LAYOUT[0], 2)]
