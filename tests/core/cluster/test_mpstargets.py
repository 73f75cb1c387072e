"""Which daemons must run, and with which limits."""

import msgspec

from builders.mpsnodes import GPUS, NODE, SECOND
from builders.shares import share
from tessera.core.cluster.mpstargets import MpsTarget, mps_targets
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.sharing import Mode

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
