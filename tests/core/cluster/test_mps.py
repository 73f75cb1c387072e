"""Which daemons must run, what is offered without them, and what is enforced."""

import msgspec

from builders.nodefacts import gpu, node_of
from builders.shares import share
from tessera.core.cluster.mps import Level, MpsTarget, enforceable, enforcements, mps_key, mps_targets
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import AUTO, Mode, Sharing
from tessera.core.node.nodesharing import GpuSettings, NodeSharing, SharingEntry, effective

CUT = gpu(1, "A100-40GB", "all-3g.20gb")
NODE = node_of(gpu(0), CUT, gpu(2, "A100-40GB"), gpu(3), memory_limits=True)
FIRST, SECOND = Placement(0, 4, "3g.20gb"), Placement(4, 4, "3g.20gb")
SAID = NodeSharing(
    entries=(
        SharingEntry(resource="nvidia.com/gpu", mode=Mode.MPS, replicas=4, devices=("0",)),
        SharingEntry(resource="nvidia.com/mig-3g.20gb", mode=Mode.MPS, replicas=2, devices=("1:1",)),
    ),
    policies=(
        GpuSettings(uuid="GPU-2", sharing=AUTO),
        GpuSettings(uuid="GPU-3", sharing=Sharing(modes=(Mode.MEMORY_SHARE,))),
    ),
)
GPUS = effective(NODE, SAID)


WHOLE = MpsTarget(key="GPU-0", gpu="GPU-0", visible="GPU-0", memory_limit_mib=3840, thread_percent=25)
INSTANCE = MpsTarget(
    key="GPU-1-4-4",
    gpu="GPU-1",
    visible="MIG-1-1",
    memory_limit_mib=GPUS[1].devices[1].memory_mib,
    thread_percent=50,
    exclusive=False,
)


def test_devices_with_mps_replicas_have_a_daemon_and_amounts_while_a_pod_uses_them() -> None:
    assert mps_targets(GPUS, NODE) == (WHOLE, INSTANCE)
    shares = [
        share(0, mode=Mode.MPS),
        share(2, mode=Mode.MPS),
        share(1, mode=Mode.MPS),
        share(3, mode=Mode.MEMORY_SHARE),
    ]
    amount = MpsTarget(key="GPU-2", gpu="GPU-2", visible="GPU-2")
    assert mps_targets(GPUS, NODE, shares) == (WHOLE, INSTANCE, amount)


def test_clients_keep_their_limits_where_their_devices_are_to_be_divided_into_another_number() -> None:
    former = {DeviceId("GPU-0"): 2, DeviceId("GPU-1", SECOND): 4, DeviceId("GPU-2"): 8}
    whole, instance = mps_targets(GPUS, NODE, former=former)
    assert whole == msgspec.structs.replace(WHOLE, memory_limit_mib=7680, thread_percent=50)
    half_mib = INSTANCE.memory_limit_mib // 2
    assert instance == msgspec.structs.replace(INSTANCE, memory_limit_mib=half_mib, thread_percent=25)


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
