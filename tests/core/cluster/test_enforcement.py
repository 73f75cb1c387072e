"""What is offered where MPS daemons do not run, and what is enforced."""

import msgspec

from builders.mpsnodes import CUT, FIRST, GPUS, NODE, SECOND
from builders.nodefacts import gpu, node_of
from tessera.core.cluster.enforcement import Level, enforceable, enforcements
from tessera.core.cluster.mpstargets import mps_key, mps_targets
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.node.nodesharing import GpuSettings, NodeSharing, SharingEntry, effective


def test_what_cannot_be_enforced_is_not_offered() -> None:
    ready = {mps_key("GPU-0"), mps_key("GPU-1", SECOND), mps_key("GPU-2")}
    assert enforceable(GPUS, ready) == GPUS
    cut, auto = enforceable(GPUS, {"GPU-0"})[1:3]
    assert [(device.placement, device.mode) for device in cut.devices] == [(FIRST, Mode.MIG)]
    assert auto.sharing.modes == (Mode.WHOLE, Mode.MIG, Mode.MEMORY_SHARE)
    assert enforceable(GPUS, ())[0].devices == ()
    assert mps_targets(enforceable(GPUS, ()), NODE) == ()


def test_instances_of_a_policy_are_withheld_too() -> None:
    sharing = Sharing(
        modes=(Mode.MIG, Mode.MIG_MPS), layout=CUT.layout, allow_repartition=False, replicas=(("3g.20gb", 2),)
    )
    said = NodeSharing(policies=(GpuSettings(uuid="GPU-1", sharing=sharing),))
    gpus = effective(node_of(CUT), said)
    assert [target.key for target in mps_targets(gpus, node_of(CUT))] == ["GPU-1-0-4", "GPU-1-4-4"]
    (kept,) = enforceable(gpus, {"GPU-1-0-4"})
    assert [device.placement for device in kept.devices] == [FIRST]


def test_what_is_enforced_on_each_device() -> None:
    got = [(each.gpu, each.placement, each.mode, each.level) for each in enforcements(GPUS, NODE)]
    assert got == [
        ("GPU-0", None, Mode.MPS, Level.DRIVER_MPS),
        ("GPU-1", FIRST, Mode.MIG, Level.HARDWARE),
        ("GPU-1", SECOND, Mode.MIG_MPS, Level.DRIVER_MPS),
        ("GPU-2", None, Mode.WHOLE, Level.HARDWARE),
        ("GPU-2", None, Mode.MPS, Level.DRIVER_MPS),
        ("GPU-2", None, Mode.MEMORY_SHARE, Level.DRIVER_DMEM),
        ("GPU-3", None, Mode.MEMORY_SHARE, Level.DRIVER_DMEM),
    ]
    without = msgspec.structs.replace(NODE, memory_limits=False)
    assert [each.level for each in enforcements(GPUS, without)][-2:] == [Level.NONE, Level.NONE]
    sliced = effective(
        node_of(gpu(0)),
        NodeSharing(entries=(SharingEntry(resource="nvidia.com/gpu", mode=Mode.TIME_SLICING, replicas=2),)),
    )
    assert [each.level for each in enforcements(sliced, NODE)] == [Level.NONE]
