"""The laws again on NVML over the simulated library: each NVML function may fail at any call."""

import asyncio
import ctypes
import itertools
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders.configlabels import MineLabel
from harness.machines import TIMING, Machine
from tessera.agent.partition import Follower, NodeGpus, Partitioner, Timing
from tessera.clients.gpu import NvmlDriver
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.mig import Layout, all_layouts, counts_of
from tessera.core.node.layouts import Group, LayoutCause, LayoutLimits, LayoutRequest, LayoutState
from tessera.log import configure
from tessera.sim.nvmlsim import Machine as Simulated
from tessera.sim.nvmlsim import create_state, library

A100 = model("A100-40GB")
AT_ONCE: Timing = msgspec.structs.replace(TIMING, settle_s=0.0, poll_s=0.001, drain_s=0.02)
LIMITS = LayoutLimits(pending_s=2.0, retry_s=0.0, retry_most_s=0.0)
UNKNOWN = 999
FUNCTIONS = (
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstance*",
    "nvmlGpuInstanceCreateComputeInstance*",
    "nvmlGpuInstanceDestroy",
    "nvmlComputeInstanceDestroy",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetGpuInstances",
)
FAULTS = st.lists(st.tuples(st.sampled_from(FUNCTIONS), st.integers(0, 6), st.integers(1, 3)), max_size=3)
LAYOUTS = st.none() | st.sampled_from(all_layouts(A100))


class Instant(Machine):
    """The machine, with a kubelet that is quick enough to be waited for."""

    @property
    def gpus(self) -> NodeGpus:
        return msgspec.structs.replace(super().gpus, timing=AT_ONCE)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulated]:
    """Load the simulator before pynvml asks for it: one of the same name that is there already is not loaded again."""
    ctypes.CDLL(str(library()))
    state = tmp_path_factory.mktemp("machine") / "state"
    create_state(state, ("A100-40GB",))
    with pytest.MonkeyPatch.context() as patch, Simulated(state) as machine:
        patch.setenv("TESSERA_NVMLSIM_STATE", str(state))
        configure("error")
        yield machine


async def uuids(driver: NvmlDriver, used: Layout) -> dict[object, str]:
    """Return the MIG UUIDs of used instances: others, if they were recreated."""
    (gpu,) = (await driver.inventory()).gpus
    return {each.placement: each.uuid for each in gpu.instances if each.placement in used}


async def partition(driver: NvmlDriver, layout: Layout | None) -> str:
    """Give the GPU a layout to begin with, and return its UUID."""
    (gpu,) = (await driver.inventory()).gpus
    if layout is not None:
        await driver.set_mig(gpu.uuid, enabled=True)
        for each in layout:
            await driver.create_instance(gpu.uuid, each)
    return gpu.uuid


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LAYOUTS, LAYOUTS, st.lists(st.booleans(), min_size=8, max_size=8), FAULTS)
def test_whatever_nvml_refuses_what_is_used_stays_and_the_label_ends(
    simulated: Simulated,
    present: Layout | None,
    desired: Layout | None,
    chosen: list[bool],
    faults: list[tuple[str, int, int]],
) -> None:
    used = tuple(itertools.compress(present or (), chosen))

    async def scene() -> None:
        simulated.renew()
        async with await NvmlDriver.open() as driver:
            gpu = await partition(driver, present)
            before = await uuids(driver, used)
            machine = Instant(driver)
            machine.pods = {f"ns/p{number}": (gpu, each) for number, each in enumerate(used)}
            for function, skip, times in faults:
                simulated.fault(function, code=UNKNOWN, skip=skip, times=times)
            told = await follow(machine, desired)
            assert told[-1].state in {LayoutState.SUCCESS, LayoutState.FAILED}
            simulated.clear_faults()
            told = await follow(machine, desired)
            assert await uuids(driver, used) == before
            facts = (await driver.inventory()).gpus[0]
            met = (
                facts.layout == desired
                if desired is None
                else facts.layout is not None and counts_of(A100, facts.layout) == counts_of(A100, desired)
            )
            assert told[-1].state is (LayoutState.SUCCESS if met else LayoutState.FAILED), told[-1]
            assert met or told[-1].cause is LayoutCause.BLOCKED, told[-1]
            assert machine.offered.get(gpu) is None

    asyncio.run(scene())


async def follow(machine: Machine, desired: Layout | None) -> list[LayoutRequest]:
    """Follow a label until its state has ended, and a little longer."""
    told: list[LayoutRequest] = []

    async def report(request: LayoutRequest) -> None:
        await asyncio.sleep(0)
        told.append(request)

    group = Group(enabled=desired is not None, instances=() if desired is None else counts_of(A100, desired))
    limits = msgspec.structs.replace(LIMITS, pending_s=0.3)
    follower = Follower(Partitioner(machine.gpus), MineLabel(group, report), limits)
    async with asyncio.timeout(30):
        for _ in range(3):
            await follower.follow("mine")
        while follower.request.state is LayoutState.PENDING:
            await follower.follow("mine")
            await asyncio.sleep(0.01)
    return told
