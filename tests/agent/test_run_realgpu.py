"""The whole agent on a real GPU, with Kubernetes API and kubelet in memory, on which it changes no setting."""

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from builders.shares import share
from harness.agentmachine import Machine
from harness.realgpu import ReadOnlyDriver, RealGpu, note
from tessera.agent.run import Agent
from tessera.clients.kube import EVENTS, GPU_NODES, annotations_of, labels_of
from tessera.errors import Conflict

pytestmark = [pytest.mark.anyio, pytest.mark.gpu]
_RUNS_S = 30.0
_ENDED = "7f0b8a5e-6d0e-4c39-9a54-2f9c6f0c4e11"
"""The UID of a pod that was deleted by force."""


@contextlib.asynccontextmanager
async def running(machine: Machine, driver: ReadOnlyDriver, proc: Path = Path("/proc")) -> AsyncIterator[Agent]:
    """Run an agent with the intervals that it has on a node."""
    settings = machine.settings
    paths = msgspec.structs.replace(settings.paths, proc=proc)
    settings = msgspec.structs.replace(settings, paths=paths, interval_s=5.0, measure_s=5.0)
    one = Agent(settings, driver, machine.kube)
    task = asyncio.ensure_future(one.run())
    try:
        yield one
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_whole_gpu_is_offered_and_used(real_gpu: RealGpu, machine: Machine) -> None:
    with capture_logs() as logs:
        async with await real_gpu.driver() as driver, running(machine, driver) as agent:
            began, before = time.monotonic(), time.process_time()
            inventory = await driver.inventory()
            await machine.kubelet.until_allocatable("nvidia.com/gpu", len(inventory.gpus))
            offered_s = time.monotonic() - began
            await machine.pod("p1", {"nvidia.com/gpu": 1})
            env = await machine.start("p1", "nvidia.com/gpu")
            with real_gpu.cuda({"CUDA_VISIBLE_DEVICES": env["NVIDIA_VISIBLE_DEVICES"]}, mib=2048) as one:
                for _ in range(int(_RUNS_S / 5)):
                    one.tell("busy", seconds=2)
                    await asyncio.sleep(5)
                    one.answer()
            with real_gpu.cuda() as faulty:
                assert faulty.ask("wild")["result"] != 0
            await asyncio.sleep(6)  # an observation
            cpu = (time.process_time() - before) / (time.monotonic() - began)
            text = agent.exporter.render().decode()
            node, gpunode = await machine.node(), await machine.kube.get(GPU_NODES, "n1")
            events = [each["reason"] for each in (await machine.kube.list(EVENTS)).objects]
            refused = driver.refused
            allocatable = machine.kubelet.allocatable("nvidia.com/gpu")
    warnings = [each for each in logs if each["log_level"] in {"warning", "error"}]
    note(
        offered_after_s=round(offered_s, 2),
        core_percent=round(100 * cpu, 2),
        env=env,
        labels=labels_of(node),
        annotations=annotations_of(node),
        status=(gpunode or {}).get("status"),
        events=events,
        warnings=warnings,
        refused=refused,
        pod=[line for line in text.splitlines() if line.startswith("DCGM_FI_DEV_FB_USED")],
    )
    assert refused == ()
    assert env["NVIDIA_VISIBLE_DEVICES"] == inventory.gpus[0].uuid
    assert "tessera_exporter_failures_total 0\n" in text
    assert 'pod="p1"' in text
    # XID 31 is the program's own: it is counted, and the GPU stays healthy.
    errors = [line for line in text.splitlines() if "tessera_gpu_xid_errors_total" in line or "XID_ERRORS{" in line]
    note(errors=errors, healthy=[line for line in text.splitlines() if line.startswith("tessera_device_healthy{")])
    assert any('class="application"' in each and each.endswith(" 1") for each in errors)
    assert any(each.startswith("DCGM_FI_DEV_XID_ERRORS") and each.endswith(" 31") for each in errors)
    assert allocatable == len(inventory.gpus)
    assert not [each for each in warnings if each["log_level"] == "error"]


async def test_memory_shares_are_offered_and_given(real_gpu: RealGpu, machine: Machine) -> None:
    await machine.label(gpushare="true")
    async with await real_gpu.driver() as driver, running(machine, driver):
        facts = (await driver.inventory()).gpus[0]
        await machine.kubelet.until_allocatable("tessera.dev/gpu-memory", facts.memory_mib // 1024)
        await machine.pod("p0", {"tessera.dev/gpu-memory": 4}, (share(0, 4096, container="c"),))
        env = await machine.start("p0", "tessera.dev/gpu-memory", 4)
        note(units=facts.memory_mib // 1024, env=env, refused=driver.refused)
        assert (env["NVIDIA_VISIBLE_DEVICES"], env["TESSERA_GPU_MEMORY_MIB"]) == (facts.uuid, "4096")
        assert driver.refused == ()


@pytest.mark.parametrize("mib", [0, 2048], ids=["a context alone", "with memory"])
async def test_a_process_of_a_pod_that_was_deleted_by_force_keeps_the_gpu_without_a_record(
    real_gpu: RealGpu, machine: Machine, mib: int
) -> None:
    proc = machine.settings.paths.proc
    async with await real_gpu.driver() as driver, running(machine, driver, proc):
        gpus = (await driver.inventory()).gpus
        await machine.kubelet.until_allocatable("nvidia.com/gpu", len(gpus))
        await machine.pod("p1", {"nvidia.com/gpu": 1})
        with real_gpu.cuda(mib=mib) if mib else real_gpu.cuda() as left:
            cgroup = proc / str(left.pid) / "cgroup"
            cgroup.parent.mkdir()
            cgroup.write_text(f"0::/kubepods/besteffort/pod{_ENDED}/abc\n")
            told = f"process {left.pid} of pod {_ENDED}, which has ended, uses GPU {gpus[0].uuid}"
            with pytest.raises(Conflict, match=told):
                await machine.start("p1", "nvidia.com/gpu")
        note(told=told)
        shutil.rmtree(cgroup.parent)
        assert dict((await machine.kubelet.create("default", "p1", "c")).env)["NVIDIA_VISIBLE_DEVICES"] == gpus[0].uuid
        assert driver.refused == ()
