"""The processes of pods on GPUs, as a driver lists them and their control groups tell."""

from pathlib import Path

import pytest

from builders.gpunodes import facts, sevenths
from builders.nodepods import ListedPods
from builders.nodeviews import of_the_host
from tessera.agent.deviceplugin.allocations.deviceprocesses import DeviceProcesses
from tessera.agent.pods.podsview import PodsView
from tessera.clients.gpu import MemoryDriver
from tessera.clients.kube import Listing
from tessera.clients.kubelet import DeviceCheckpoint, PodResources
from tessera.core.deviceplugin.allocations.leftovers import DeviceProcess
from tessera.core.gpu.deviceids import DeviceId

pytestmark = pytest.mark.anyio

UID = "0f6e8f0a-1b2c-4d5e-8f90-a1b2c3d4e5f6"
MIG, WHOLE = facts(0, layout=sevenths()), facts(1)


def view(folder: Path) -> PodsView:
    async def relist() -> Listing:
        return Listing(objects=(), resource_version="1")

    resources = PodResources(folder / "pod-resources.sock")
    return PodsView(ListedPods(tuple, relist), DeviceCheckpoint(folder), resources, proc=folder / "proc")


def in_group(folder: Path, pid: int, group: str) -> None:
    (folder / f"proc/{pid}").mkdir(parents=True)
    (folder / f"proc/{pid}/cgroup").write_text(f"0::/{group}\n")


async def found(folder: Path, driver: MemoryDriver, *gpus: str) -> tuple[DeviceProcess, ...]:
    inventory = await driver.inventory()
    return await DeviceProcesses(driver.processes, view(folder), lambda: inventory).on(gpus)


async def test_processes_of_pods_are_found_with_their_instance_and_memory(tmp_path: Path) -> None:
    of_the_host(tmp_path / "proc")
    for pid in (10, 11):
        in_group(tmp_path, pid, f"kubepods/pod{UID}/a")
    in_group(tmp_path, 12, "system.slice/nvidia-dcgm.service")
    driver = MemoryDriver((MIG, WHOLE))
    instance = MIG.instances[2]
    driver.start_process(MIG.uuid, 10, instance.placement, memory_mib=300)
    driver.start_process(WHOLE.uuid, 11, memory_mib=500)
    driver.start_process(WHOLE.uuid, 12)
    assert await found(tmp_path, driver, WHOLE.uuid, MIG.uuid) == tuple(
        sorted(
            (
                DeviceProcess(pid=10, uid=UID, device=DeviceId(MIG.uuid, instance.placement), memory_mib=300),
                DeviceProcess(pid=11, uid=UID, device=DeviceId(WHOLE.uuid, None), memory_mib=500),
            ),
            key=lambda each: each.device.gpu,
        )
    )
    assert await found(tmp_path, driver) == (), "no GPU is asked for"


async def test_a_gpu_that_the_driver_does_not_have_has_no_processes(tmp_path: Path) -> None:
    of_the_host(tmp_path / "proc")
    assert await found(tmp_path, MemoryDriver((WHOLE,)), WHOLE.uuid, "GPU-of-another-node") == ()
