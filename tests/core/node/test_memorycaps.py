"""Which cgroup may hold how much of which GPU."""

import msgspec
import pytest

from builders.nodefacts import gpu, node_of
from builders.shares import share
from tessera.core.gpu.sharing import Mode
from tessera.core.node.memorycaps import CappedPod, MemoryCap, Qos, memory_caps, pod_cgroup

UID = "0a-1b"


@pytest.mark.parametrize(
    ("qos", "systemd", "want"),
    [
        ("Guaranteed", True, "/kubepods.slice/kubepods-pod0a_1b.slice"),
        ("Burstable", True, "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a_1b.slice"),
        ("BestEffort", True, "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod0a_1b.slice"),
        ("Guaranteed", False, "/kubepods/pod0a-1b"),
        ("Burstable", False, "/kubepods/burstable/pod0a-1b"),
    ],
)
def test_the_cgroup_of_a_pod(qos: Qos, systemd: bool, want: str) -> None:
    assert pod_cgroup(UID, qos, systemd=systemd) == want


def test_memory_shares_are_limited_where_the_driver_can() -> None:
    inventory = node_of(gpu(0), gpu(1), gpu(2, "A100-40GB", "all-enabled"), gpu(3, lost=True), memory_limits=True)
    pods = [
        CappedPod(uid="b", qos="Guaranteed", steps=((share(1, 100), share(0, 200), share(1, 300)), (share(0, 150),))),
        CappedPod(uid="a", qos="Guaranteed", steps=((share(0, 5, Mode.MPS), share(2, 5), share(3, 5), share(9, 5)),)),
    ]
    cgroup = pod_cgroup("b", "Guaranteed", systemd=True)
    assert memory_caps(pods, inventory) == (
        MemoryCap(gpu="GPU-0", cgroup=cgroup, hard_mib=200),
        MemoryCap(gpu="GPU-1", cgroup=cgroup, hard_mib=400),
    )
    assert memory_caps(pods, msgspec.structs.replace(inventory, memory_limits=False)) == ()
