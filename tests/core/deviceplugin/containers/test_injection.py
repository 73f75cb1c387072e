"""How devices are handed to a container."""

import pytest
from msgspec.structs import replace

from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice
from tessera.core.deviceplugin.containerresponse import ContainerMount, ContainerResponse, DeviceNode
from tessera.core.deviceplugin.containers.edits import ShareEdits
from tessera.core.deviceplugin.containers.injection import GPU_KIND, answered, by_cdi, container_response, share_name
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.node.liststrategies import DeviceInjection
from tessera.core.node.nodesharing import ListStrategy

EDITS = ShareEdits(
    env=(("A", "1"),),
    mounts=(ContainerMount(host_path="/h", container_path="/c"),),
    device_nodes=("/dev/nvidia0", "/dev/nvidiactl"),
)
TWO = ("GPU-a", "MIG-b")
KEY = f"cdi.k8s.io/tessera_{share_name(GPU_KIND, TWO)}"
NAMES = ("tessera.dev/gpu=GPU-a", "tessera.dev/gpu=MIG-b")

# sentence: (how, NVIDIA_VISIBLE_DEVICES, container paths of mounts, annotations, CDI devices, device nodes)
HOW = {
    "by environment": (DeviceInjection(), "GPU-a,MIG-b", ["/c"], (), (), []),
    "by mounts": (
        DeviceInjection(strategies=("volume-mounts",)),
        "/var/run/nvidia-container-devices",
        ["/var/run/nvidia-container-devices/GPU-a", "/var/run/nvidia-container-devices/MIG-b", "/c"],
        (),
        (),
        [],
    ),
    "by CDI annotations": (
        DeviceInjection(strategies=("cdi-annotations",)),
        None,
        ["/c"],
        ((KEY, ",".join(NAMES)),),
        (),
        [],
    ),
    "by CDI names": (DeviceInjection(strategies=("cdi-cri",)), None, ["/c"], (), NAMES, []),
    "by environment and CDI names": (
        DeviceInjection(strategies=("envvar", "cdi-cri")),
        "GPU-a,MIG-b",
        ["/c"],
        (),
        NAMES,
        [],
    ),
    "with the driver's folder, where no runtime of NVIDIA's makes the device nodes": (
        DeviceInjection(driver_folder="/opt/driver"),
        "GPU-a,MIG-b",
        ["/usr/local/nvidia", "/c"],
        (),
        (),
        [
            DeviceNode(host_path="/dev/nvidia0", container_path="/dev/nvidia0"),
            DeviceNode(host_path="/dev/nvidiactl", container_path="/dev/nvidiactl"),
        ],
    ),
    "by CDI names, the specification having the driver's folder": (
        DeviceInjection(strategies=("cdi-cri",), driver_folder="/opt/driver"),
        None,
        ["/c"],
        (),
        NAMES,
        [],
    ),
    "with device nodes": (
        DeviceInjection(pass_device_specs=True),
        "GPU-a,MIG-b",
        ["/c"],
        (),
        (),
        [
            DeviceNode(host_path="/dev/nvidia0", container_path="/dev/nvidia0"),
            DeviceNode(host_path="/dev/nvidiactl", container_path="/dev/nvidiactl"),
        ],
    ),
    "with device nodes of a driver elsewhere": (
        DeviceInjection(pass_device_specs=True, dev_root="/run/nvidia/driver/"),
        "GPU-a,MIG-b",
        ["/c"],
        (),
        (),
        [
            DeviceNode(host_path="/run/nvidia/driver/dev/nvidia0", container_path="/dev/nvidia0"),
            DeviceNode(host_path="/run/nvidia/driver/dev/nvidiactl", container_path="/dev/nvidiactl"),
        ],
    ),
}


@pytest.mark.parametrize("case", HOW)
def test_what_a_container_gets(case: str) -> None:
    how, visible, mounts, annotations, names, nodes = HOW[case]
    got = container_response(how, by_cdi(how, GPU_KIND, TWO), TWO, EDITS)
    assert dict(got.env) == ({"A": "1"} if visible is None else {"NVIDIA_VISIBLE_DEVICES": visible, "A": "1"})
    assert [mount.container_path for mount in got.mounts] == mounts
    assert (got.annotations, got.cdi_devices, list(got.device_nodes)) == (annotations, names, nodes)


def test_a_share_s_name_is_the_same_for_the_same_ids_alone() -> None:
    assert share_name("r", ["a", "b"]) == share_name("r", ["b", "a"])
    assert len({share_name("r", ["a", "b"]), share_name("r", ["ab"]), share_name("r2", ["a", "b"])}) == 3
    assert share_name("r/../x", ["../../etc"]).isalnum()
    assert by_cdi(DeviceInjection(), GPU_KIND, TWO) == ContainerResponse()


ENTRY = AgentAllocation(resource="r", ids=("a",), uid="u", pod="ns/p", container="c", started=True)
# sentence: (what the record has, whether an answer that named devices is kept, the strategies where it is CDI now)
ANSWERED: dict[str, tuple[tuple[AgentAllocation, ...], bool, tuple[ListStrategy, ...]]] = {
    "an unknown answer is as of now": ((), False, ("cdi-cri",)),
    "an entry of a former version says nothing": ((ENTRY,), False, ("cdi-cri",)),
    "an entry says it": ((replace(ENTRY, strategies=("volume-mounts",)),), False, ("volume-mounts",)),
    "of other ids it says nothing": ((replace(ENTRY, ids=("b",), strategies=("envvar",)),), False, ("cdi-cri",)),
    "of another pod it says nothing": ((replace(ENTRY, uid="v", strategies=("envvar",)),), False, ("cdi-cri",)),
    "the answer itself says it": (
        (
            replace(
                ENTRY,
                uid="",
                presumed=True,
                uses=(AllocatedDevice(device=DeviceId("g")),),
                strategies=("envvar", "cdi-cri"),
            ),
        ),
        True,
        ("envvar", "cdi-cri"),
    ),
    "devices on record were named": (
        (replace(ENTRY, presumed=True, uses=(AllocatedDevice(device=DeviceId("g")),)),),
        False,
        ("envvar",),
    ),
    "devices that are kept were named": ((), True, ("envvar",)),
}


@pytest.mark.parametrize("case", ANSWERED)
def test_a_container_is_handed_what_it_was_answered(case: str) -> None:
    record, told, strategies = ANSWERED[case]
    present = DeviceInjection(strategies=("cdi-cri",), dev_root="/run/driver")
    found = answered(record, replace(ENTRY, started=False), present, named_at_allocate=told)
    assert found == replace(present, strategies=strategies)
