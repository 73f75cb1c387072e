"""What a node advertises, by the whole agent in this process: what is declared, can be enforced and is healthy."""

import asyncio
import contextlib
import json
import os
import shutil
import signal

import msgspec
import pytest
from structlog.testing import capture_logs

from builders.formerkind import FormerKind
from builders.kubeobjects import share
from harness.agentlogs import SHARING, until_logged
from harness.agentmachine import Machine
from tessera.agent.declarations.configuration import APPLIED
from tessera.agent.run import Agent
from tessera.agent.settings import AgentSettings
from tessera.api.tessera.v1alpha1.gpunodes import desired_field
from tessera.clients.kube import GPU_NODES, NODES, PODS, annotations_of
from tessera.core.cluster.gpunodestate import DesiredDevices
from tessera.core.cluster.snapshot import Share
from tessera.core.gpu.inventory import ComputeMode, GpuEvent
from tessera.core.gpu.sharing import Mode
from tessera.errors import Conflict
from tessera.sim.mpscontrol import install

pytestmark = pytest.mark.anyio

AUTO = """
apiVersion: tessera.dev/v1alpha1
kind: NodePolicy
gpus:
- sharing: auto
"""
UNITS = "tessera.dev/gpu-memory"


async def test_a_sharing_file_takes_effect_when_its_content_changes(machine: Machine) -> None:
    async with machine.agent():
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
        (machine.folder / "sharing" / "default").write_text(SHARING)
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 6)
        applied = annotations_of(await machine.until(lambda node: APPLIED in annotations_of(node)))[APPLIED]
        (machine.folder / "sharing" / "default").write_text(SHARING.replace("3", "4"))
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 8)
        await machine.until(lambda node: annotations_of(node)[APPLIED] != applied)


async def test_a_gpu_that_a_pod_has_whole_is_not_offered_as_replicas_until_the_pod_has_ended(machine: Machine) -> None:
    async with machine.agent():
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
        await machine.pod("p", {"nvidia.com/gpu": 1})
        env = await machine.start("p", "nvidia.com/gpu")
        with capture_logs() as logs:
            (machine.folder / "sharing" / "default").write_text(SHARING)
            await machine.kubelet.until_allocatable("nvidia.com/gpu", 3)
            used = env["NVIDIA_VISIBLE_DEVICES"]
            holder = "container c of pod default/p"
            text = f"GPU {used}: {holder} still uses it in another form than the present nvidia.com/gpu"
            await until_logged(logs, "impaired", what="other-form", reason=[text])
        assert text in await machine.event("ResourceNotAdvertised")
        for name in ("a", "b", "c"):
            await machine.pod(name, {"nvidia.com/gpu": 1})
            assert (await machine.start(name, "nvidia.com/gpu"))["NVIDIA_VISIBLE_DEVICES"] != used
        await machine.kube.delete(PODS, "p", namespace="default")
        machine.kubelet.remove("default", "p")
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 6)


class Serving(Machine, kw_only=True):
    """A machine with the program of MPS."""

    @property
    def settings(self) -> AgentSettings:
        given = super().settings
        program = str(install(self.folder / "bin"))
        return msgspec.structs.replace(given, mps=msgspec.structs.replace(given.mps, program=program))

    def end_daemons(self) -> None:
        """End the daemons, which outlive an agent."""
        for each in (self.folder / "mps").glob("*/daemon.json"):
            os.kill(json.loads(each.read_text())["pid"], signal.SIGTERM)


# what a pod has: (what the sharing file says at first, what it asks, what it is assigned)
WITHOUT_MPS: dict[str, tuple[str, dict[str, int], tuple[Share, ...]]] = {
    "a whole GPU": ("", {"nvidia.com/gpu": 1}, ()),
    "turns on one": (SHARING, {"nvidia.com/gpu": 1}, ()),
    "a whole one for an amount": ("", {UNITS: 40}, (share(0, 40960, Mode.WHOLE),)),
    "memory that nothing limits": ("", {UNITS: 5}, (share(0, 5120, Mode.MEMORY_SHARE),)),
}


@pytest.mark.parametrize("case", WITHOUT_MPS)
async def test_a_gpu_that_a_pod_uses_in_another_way_is_not_made_mps_s_under_it(machine: Machine, case: str) -> None:
    """A daemon needs a compute mode in which no other process can start on the GPU."""
    file, limits, shares = WITHOUT_MPS[case]
    serving = Serving(driver=machine.driver, kube=machine.kube, kubelet=machine.kubelet, folder=machine.folder)
    if file:
        (machine.folder / "sharing" / "default").write_text(file)
    if shares:
        (machine.folder / "policy.yaml").write_text(AUTO)
    try:
        async with serving.agent():
            ((resource, count),) = limits.items()
            offered = {"nvidia.com/gpu": 6 if file else 2, UNITS: 80}[resource]
            await machine.kubelet.until_allocatable(resource, offered)
            await machine.pod("p", limits, shares)
            used = (await machine.start("p", resource, count))["NVIDIA_VISIBLE_DEVICES"]
            (machine.folder / "policy.yaml").unlink(missing_ok=True)
            (machine.folder / "sharing" / "default").write_text(SHARING.replace("timeSlicing", "mps"))
            text = await machine.event("EnforcementImpaired")
            assert f"MPS of {used}: pods still use the GPU in another mode" in text
            modes = {each.uuid: each.compute_mode for each in (await machine.driver.inventory()).gpus}
            assert {uuid for uuid, mode in modes.items() if mode is ComputeMode.DEFAULT} == {used}
            await machine.kubelet.until_allocatable("nvidia.com/gpu", 3)
            await machine.kube.delete(PODS, "p", namespace="default")
            machine.kubelet.remove("default", "p")
            await machine.kubelet.until_allocatable("nvidia.com/gpu", 6)
    finally:
        serving.end_daemons()


async def test_a_sharing_file_that_is_no_good_leaves_the_former_in_force(machine: Machine) -> None:
    (machine.folder / "sharing" / "default").write_text(SHARING)
    async with machine.agent():
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 6)
        with capture_logs() as logs:
            (machine.folder / "sharing" / "default").write_text("version: v9")
            await until_logged(logs, "impaired", what="configuration")
        machine.driver.report(GpuEvent(gpu=(await machine.driver.inventory()).gpus[0].uuid, xid=79))
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 3)
        assert machine.kubelet.capacity("nvidia.com/gpu") == 6


async def test_a_gpu_with_errors_is_offered_no_more(machine: Machine) -> None:
    async with machine.agent():
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
        (unhealthy, _) = (await machine.driver.inventory()).gpus
        machine.driver.report(GpuEvent(gpu=unhealthy.uuid, xid=13))
        machine.driver.report(GpuEvent(gpu=unhealthy.uuid, xid=79))
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 1)
        assert machine.kubelet.capacity("nvidia.com/gpu") == 2
        assert unhealthy.uuid in await machine.event("DeviceUnhealthy")


async def test_it_is_ready_when_it_offers_what_is_declared(machine: Machine) -> None:
    """An unreadable file advertises nothing, and the probe fails, so that an upgrade stops at this node."""
    file = machine.folder / "sharing" / "default"
    file.write_text("version: v7")
    agent = Agent(machine.settings, machine.driver, machine.kube)
    assert agent.waiting_for().startswith("reading the node, its pods and its GPUNode")
    running = asyncio.ensure_future(agent.run())
    try:
        async with asyncio.timeout(20):
            while agent.waiting_for() != "reading the GPUs and what is declared for them":  # noqa: ASYNC110 (nobody tells)
                await asyncio.sleep(0.02)
            file.write_text(SHARING)
            while agent.waiting_for():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 6)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_it_is_not_ready_and_says_why_where_nothing_can_be_offered_by_name(machine: Machine) -> None:
    kube = FormerKind()
    await kube.create(NODES, await machine.node())
    machine = msgspec.structs.replace(machine, kube=kube)
    agent = Agent(machine.settings, machine.driver, kube)
    running = asyncio.ensure_future(agent.run())
    try:
        assert "cannot be written to status.offered" in await machine.event("ResourceNotAdvertised")
        node = await machine.until(
            lambda node: any(each["reason"] == "Withheld" for each in (node.get("status") or {}).get("conditions", ()))
        )
        (condition,) = node["status"]["conditions"]
        assert condition["type"] == "TesseraConfigurationApplied"
        assert "nvidia.com/gpu is not offered: 2 devices cannot be written" in condition["message"]
        assert agent.waiting_for().startswith("nvidia.com/gpu is not offered: 2 devices cannot be written")
        kube.prunes = False
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
        async with asyncio.timeout(20):
            while agent.waiting_for():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_a_gpu_that_a_container_uses_is_not_offered_whatever_is_written_on_its_pod(machine: Machine) -> None:
    """The agent's own record is the evidence: the annotation makes the assignment one of more than is asked."""
    document = {"apiVersion": "tessera.dev/v1alpha1", "kind": "NodePolicy", "gpus": [{"sharing": "auto"}]}
    used, free = (await machine.driver.inventory()).gpus
    async with machine.agent():
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
        await machine.kube.patch(GPU_NODES, "n1", {"spec": {"policy": {"name": "p", "document": document}}})
        await machine.kubelet.until_allocatable("tessera.dev/gpu-memory", 80)
        await machine.pod("p", {"tessera.dev/gpu-memory": 16}, (share(0, 16384),))
        await machine.start("p", "tessera.dev/gpu-memory", 16)
        await machine.kube.patch(PODS, "p", {"status": {"phase": "Running"}}, namespace="default", subresource="status")
        found = await machine.kube.get(PODS, "p", "default") or {}
        (machine.folder / "proc/77").mkdir()
        (machine.folder / "proc/77/cgroup").write_text(f"0::/kubepods/pod{found['metadata']['uid']}/abc\n")
    unit = {"metadata": {"annotations": {"tessera.dev/gpu-memory-unit": "MiB"}}}
    await machine.kube.patch(PODS, "p", unit, namespace="default")
    both = desired_field([DesiredDevices(gpu=gpu.uuid, whole=True) for gpu in (used, free)])
    await machine.kube.patch(GPU_NODES, "n1", {"spec": {"desired": both}})
    async with machine.agent():
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 1)
        offered = (await machine.kube.get(GPU_NODES, "n1") or {})["status"]["offered"]
        assert [each["gpu"] for each in offered] == [free.uuid]


async def test_where_allocations_cannot_be_recorded_nothing_is_offered_until_they_can(machine: Machine) -> None:
    """As on a full disk: one pod fails, no other is sent here, and what runs stays."""
    agent = Agent(machine.settings, machine.driver, machine.kube)
    running = asyncio.ensure_future(agent.run())
    full = machine.settings.paths.state / f".allocations.json.{os.getpid()}"
    try:
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
        for name in ("before", "refused", "after"):
            await machine.pod(name, {"nvidia.com/gpu": 1})
        await machine.start("before", "nvidia.com/gpu")
        allocatable = {"status": {"allocatable": {"nvidia.com/gpu": "2"}}}
        await machine.kube.patch(NODES, machine.settings.node, allocatable, subresource="status")
        full.mkdir()
        with pytest.raises(Conflict, match="no device is allocated before"):
            await machine.start("refused", "nvidia.com/gpu")
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 1)
        assert machine.kubelet.capacity("nvidia.com/gpu") == 2
        why = "allocations.json: Is a directory: give a --state-dir that the agent may write to, with room on its disk"
        assert why in await machine.event("ResourceNotAdvertised")
        node = await machine.until(
            lambda node: any(each["reason"] == "Withheld" for each in (node.get("status") or {}).get("conditions", ()))
        )
        assert f"nvidia.com/gpu is not offered: record of allocations {full.parent}/{why}" in str(node["status"])
        assert why in agent.waiting_for()
        assert node["status"]["allocatable"]["nvidia.com/gpu"] == "1", "the Node says so before the kubelet does"
        full.rmdir()
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
        async with asyncio.timeout(20):
            while agent.waiting_for():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await machine.start("after", "nvidia.com/gpu")
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_where_the_record_of_a_pod_s_devices_is_lost_nothing_more_is_offered_and_the_node_says_why(
    machine: Machine,
) -> None:
    """It was deleted by force while no agent ran, and a process of it does not end."""
    record, process = machine.settings.paths.state / "allocations.json", machine.folder / "proc/77"
    async with machine.agent():
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
        await machine.pod("p", {"nvidia.com/gpu": 1})
        await machine.start("p", "nvidia.com/gpu")
        uid = (await machine.kube.get(PODS, "p", "default") or {})["metadata"]["uid"]
        process.mkdir()
        (process / "cgroup").write_text(f"0::/kubepods/pod{uid}/abc\n")
    record.write_bytes(record.read_bytes()[:-9])
    await machine.kube.delete(PODS, "p", namespace="default")
    machine.kubelet.remove("default", "p")
    async with machine.agent():
        why = f"pod {uid}: it was deleted, its processes run, and the record of what it uses was unreadable"
        assert why in await machine.event("ResourceNotAdvertised")
        await machine.until(lambda node: why in str((node.get("status") or {}).get("conditions")))
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 0)
        assert machine.kubelet.capacity("nvidia.com/gpu") == 2
        shutil.rmtree(process)
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
