"""GPUs in memory, and NVML over the simulated library, do and refuse the same, whatever is asked in whatever order."""

import random
from collections.abc import Awaitable, Callable

import pytest

from conformance.gpusuite import World, read
from harness.gpuworlds import QUICK, MemoryWorld, NvmlWorld, Start
from tessera.clients.gpu import NvmlDriver
from tessera.core.gpu.inventory import ComputeMode, GpuFacts
from tessera.core.gpu.mig import Placement, placements
from tessera.errors import TesseraError

STEPS = 120
Step = Callable[[World], Awaitable[object]]


def a_step(rng: random.Random, a100: GpuFacts) -> tuple[str, Step]:
    """Return something to do to a node, drawn so that GPUs are cut most of the time, and its name."""
    place = rng.choice((*placements(a100.model), Placement(1, 2, "2g.10gb"), *(a100.layout or ()) * 3))
    pid, index = rng.randrange(1, 1 << 20), rng.randrange(2)
    enabled, mode = rng.random() < 0.9, rng.choice(tuple(ComputeMode))
    range_mhz = rng.choice((None, (900, 600), (600, 900)))
    end_of_range, beyond = rng.choice((0, 1)), rng.choice((0, 0, 1))

    async def start(world: World) -> None:
        facts, _ = await read(world)
        if any(each.placement == place for each in facts.instances):
            world.start_process(facts, pid, place, 1)

    async def end(world: World) -> None:
        facts, _ = await read(world)
        for each in (await world.driver.processes(facts.uuid))[: 1 + beyond]:
            world.end_process(each.pid)

    async def cap(world: World) -> None:
        facts = (await read(world))[index]
        assert facts.power_range_watts is not None
        await world.driver.set_power_limit(facts.uuid, facts.power_range_watts[end_of_range] + beyond * 1000)

    async def uncap(world: World) -> None:
        await world.driver.set_power_limit((await read(world))[index].uuid, None)

    def on(name: str, *arguments: object, **named: object) -> Step:
        async def call(world: World) -> object:
            facts = (await read(world))[index if name.startswith(("set_", "lock_")) and name != "set_mig" else 0]
            return await getattr(world.driver, name)(facts.uuid, *arguments, **named)

        return call

    where = f"{place.profile} at {place.start}"
    return rng.choice(
        (
            *((f"create {where}", on("create_instance", place)),) * 6,
            *((f"destroy {where}", on("destroy_instance", place)),) * 3,
            (f"mig {enabled}", on("set_mig", enabled=enabled)),
            (f"mode {mode} on {index}", on("set_compute_mode", mode)),
            (f"power {end_of_range} and {beyond} kW on {index}", cap),
            (f"usual power on {index}", uncap),
            (f"clocks {range_mhz} on {index}", on("lock_clocks", range_mhz)),
            (f"limit on {index}", on("set_memory_limit", "/pod", 512)),
            (f"start {pid} on {where}", start),
            *((f"end {1 + beyond}", end),) * 2,
        )
    )


async def outcome(step: Step, world: World) -> str:
    """Return the kind of error, or that there was none."""
    try:
        await step(world)
    except TesseraError as error:
        return type(error).__name__
    return "done"


async def observed(world: World) -> object:
    """Return what must agree: UUIDs, ids and power differ."""
    gpus = await read(world)
    return [
        (
            each.mig,
            [(one.placement, one.memory_mib, one.multiprocessors) for one in each.instances],
            each.incomplete,
            each.compute_mode,
            each.lost,
            [(one.pid, one.memory_mib) for one in await world.driver.processes(each.uuid)],
            each.power_limit_watts == each.power_default_watts,
        )
        for each in gpus
    ]


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(6))
async def test_both_do_and_refuse_the_same(start: Start, seed: int) -> None:
    rng = random.Random(seed)
    memory, story = MemoryWorld(), list[str]()
    machine = start("A100-40GB", "T4")
    async with await NvmlDriver.open(deadlines=QUICK) as driver:
        nvml = NvmlWorld(machine, driver)
        for _ in range(STEPS):
            facts, _ = await read(memory)
            name, step = a_step(rng, facts)
            first, second = await outcome(step, memory), await outcome(step, nvml)
            story.append(f"{name}: {first}")
            assert first == second, story[-10:]
            assert await observed(memory) == await observed(nvml), story[-10:]
    assert {"done", "Conflict", "InvalidInput"} <= {each.rpartition(": ")[2] for each in story}
