"""GPUs are brought to their targets, and what goes wrong is said and put right."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from builders.gpufacts import at, gpu_facts
from harness.machines import Machine
from harness.partitions import (
    A100,
    FAULT,
    FORMER,
    SEVEN,
    TWO,
    UNRESTORED,
    Between,
    apply,
    driver_of,
    machine_of,
)
from harness.virtualtime import run
from tessera.agent.partition import NodeLocks, Partitioner
from tessera.clients.gpu import MemoryDriver
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.inventory import GpuFacts, MigMode
from tessera.core.gpu.mig import Layout
from tessera.core.node.layouts import LayoutTarget, Recorded, exact
from tessera.core.node.repartition import Stage
from tessera.errors import Conflict, Unavailable
from tessera.log import configure

HALVES = at(A100, ("3g.20gb", 0), ("3g.20gb", 4))
OFF = LayoutTarget(gpu="GPU-0", index=0, mig=False)


def test_only_what_must_change_is_touched() -> None:
    machine = machine_of(
        gpu_facts(layout=(*SEVEN[:2], *at(A100, ("2g.10gb", 2), ("3g.20gb", 4)))), gpu_facts(index=1, layout=SEVEN)
    )
    machine.pods = {"ns/a": ("GPU-0", HALVES[1])}
    assert apply(machine, TWO) == ((), {"GPU-0": HALVES, "GPU-1": SEVEN})
    assert {place for _, place in machine.destroyed} == {*SEVEN[:2], *at(A100, ("2g.10gb", 2))}
    assert machine.offered == {"GPU-0": None}


def test_mig_is_switched_on_and_the_gpu_partitioned_and_off_again() -> None:
    machine = machine_of(gpu_facts())
    assert apply(machine, TWO) == ((), {"GPU-0": HALVES})
    assert apply(machine, OFF) == ((), {"GPU-0": None})
    assert apply(machine, OFF) == ((), {"GPU-0": None})


def test_what_is_incomplete_is_made_anew() -> None:
    machine = machine_of(gpu_facts(layout=HALVES[:1], incomplete=HALVES[1:]))
    assert apply(machine, TWO) == ((), {"GPU-0": HALVES})
    assert run(machine.driver.inventory()).gpus[0].incomplete == ()


def fails(method: str, after: int = 0) -> Callable[[Machine], None]:
    return lambda machine: driver_of(machine).fail(method, FAULT, after=after)


def half_done(method: str) -> Callable[[Machine], None]:
    return lambda machine: driver_of(machine).fail(method, FAULT, half_done=True)


def hangs(call: str) -> Callable[[Machine], None]:
    return lambda machine: machine.hangs.add(call)


def refuses(call: str) -> Callable[[Machine], None]:
    return lambda machine: machine.refuses.add(call)


def eager(machine: Machine) -> None:
    machine.eager = True


@pytest.mark.parametrize(
    ("gpu", "target", "spoil", "want"),
    [
        pytest.param(
            gpu_facts(layout=SEVEN),
            TWO,
            fails("create_instance", 1),
            f"creating 3g.20gb at 4 failed: a fault{FORMER}",
            id="an instance cannot be made",
        ),
        pytest.param(
            gpu_facts(layout=SEVEN),
            TWO,
            fails("destroy_instance"),
            f"destroying 1g.5gb at 0 failed: a fault{FORMER}",
            id="an instance cannot be destroyed",
        ),
        pytest.param(
            gpu_facts(layout=SEVEN),
            TWO,
            half_done("destroy_instance"),
            f"destroying 1g.5gb at 0 failed: a fault{FORMER}",
            id="an instance is destroyed by half",
        ),
        pytest.param(
            gpu_facts(layout=SEVEN),
            TWO,
            half_done("create_instance"),
            f"creating 3g.20gb at 0 failed: a fault{FORMER}",
            id="an instance is made by half",
        ),
        pytest.param(
            gpu_facts(layout=SEVEN),
            TWO,
            hangs("destroy_instance"),
            f"destroying 1g.5gb at 0 did not end in time{FORMER}",
            id="the driver does not answer",
        ),
        pytest.param(
            gpu_facts(layout=SEVEN),
            TWO,
            eager,
            f"1g.5gb at 0 was allocated before it was withdrawn{FORMER}",
            id="a pod was quicker",
        ),
        pytest.param(
            gpu_facts(layout=SEVEN),
            TWO,
            refuses("offer"),
            f"draining did not end in time{FORMER}",
            id="no plugin to withdraw it",
        ),
        pytest.param(
            gpu_facts(layout=HALVES[:1]),
            TWO,
            refuses("offer"),
            "the advertised devices could not be fixed; nothing was changed",
            id="no plugin to keep what is made from pods",
        ),
        pytest.param(
            gpu_facts(layout=SEVEN),
            OFF,
            fails("set_mig"),
            f"switching MIG off failed: a fault{FORMER}",
            id="MIG cannot be switched off",
        ),
        pytest.param(
            gpu_facts(layout=SEVEN),
            OFF,
            hangs("set_mig"),
            f"switching MIG off did not end in time{FORMER}",
            id="MIG is not switched off in time",
        ),
        pytest.param(
            gpu_facts(),
            TWO,
            fails("set_mig"),
            "switching MIG on failed: a fault; MIG is off as before",
            id="MIG cannot be switched on",
        ),
        pytest.param(
            gpu_facts(),
            TWO,
            fails("create_instance"),
            f"creating 3g.20gb at 0 failed: a fault{FORMER}; MIG is off as before",
            id="MIG is on but the GPU cannot be cut",
        ),
        pytest.param(
            gpu_facts(),
            TWO,
            refuses("offer"),
            "it could not be withdrawn from the pods; MIG is off as before",
            id="no plugin to withdraw the GPU",
        ),
        pytest.param(
            gpu_facts(layout=SEVEN), TWO, refuses("held"), "held: a fault is not no fault", id="no kubelet to ask"
        ),
        pytest.param(
            gpu_facts(layout=SEVEN),
            TWO,
            hangs("held"),
            "GPU driver and kubelet: no answer in time: try again; if it persists, see `tessera doctor`",
            id="a kubelet that does not answer",
        ),
        pytest.param(gpu_facts(index=1), TWO, lambda _: None, "the driver does not report it", id="gone"),
    ],
)
def test_a_failure_is_reported_and_the_former_layout_stays(
    gpu: GpuFacts, target: LayoutTarget, spoil: Callable[[Machine], None], want: str
) -> None:
    machine = machine_of(gpu)
    spoil(machine)
    failures, layouts = apply(machine, target)
    assert failures == (f"GPU 0: {want}",)
    assert layouts == {gpu.uuid: gpu.layout}
    assert run(machine.driver.inventory()).gpus[0].incomplete == ()


def test_a_gpu_that_waits_for_its_reset_keeps_its_instances_until_then() -> None:
    machine = machine_of(gpu_facts(layout=HALVES))
    driver_of(machine).hold_mode_changes("GPU-0")
    assert apply(machine, OFF) == ((), {"GPU-0": HALVES})
    assert run(machine.driver.inventory()).gpus[0].mig == MigMode(current=True, pending=False)
    machine.pods = {"ns/a": ("GPU-0", HALVES[0])}
    assert apply(machine, exact(gpu_facts(), HALVES)) == ((), {"GPU-0": HALVES})
    assert run(machine.driver.inventory()).gpus[0].mig == MigMode(current=True, pending=True)


def test_mig_is_not_switched_on_a_gpu_that_came_into_use() -> None:
    machine = machine_of(gpu_facts())

    async def come() -> tuple[str, ...]:
        apply = asyncio.create_task(Partitioner(machine.gpus).apply((TWO,), 200))
        await asyncio.sleep(1)
        driver_of(machine).start_process("GPU-0", 77)
        return await apply

    assert run(come()) == ("GPU 0: process 77 was admitted before MIG could be switched; MIG is off as before",)
    assert machine.offered == {"GPU-0": None}


def test_what_could_not_be_restored_is_restored_later_and_offered_only_then() -> None:
    machine = machine_of(gpu_facts(layout=SEVEN))
    driver = driver_of(machine)
    for _ in range(3):
        driver.fail("create_instance", FAULT)
    partitioner = Partitioner(machine.gpus)

    async def attempt() -> None:
        machine.pods = {}
        (failed,) = await partitioner.apply((TWO,), 200)
        assert failed.endswith(
            "the previous layout could not be restored; until it is, only devices in use are advertised"
        )
        assert machine.offered == {"GPU-0": ()}
        await partitioner.retry_unfinished(400)
        assert machine.offered == {"GPU-0": ()}
        machine.refuses.add("held")
        await partitioner.retry_unfinished(600)
        machine.refuses.clear()
        await partitioner.retry_unfinished(800)
        assert machine.offered == {"GPU-0": None}
        assert await machine.layouts() == {"GPU-0": SEVEN}
        assert partitioner.outcomes[Stage.FAILED] >= 1
        assert partitioner.outcomes[Stage.RESTORED] == 1

    run(attempt())


def test_a_gpu_that_another_process_changes_is_waited_for_and_left_alone(tmp_path: Path) -> None:
    machine = machine_of(gpu_facts(layout=SEVEN), gpu_facts(index=1, layout=SEVEN))
    partitioner, other = Partitioner(machine.gpus, across=NodeLocks(tmp_path)), NodeLocks(tmp_path)
    targets = (TWO, msgspec.structs.replace(TWO, gpu="GPU-1", index=1))

    async def attempt() -> None:
        async with other.hold("GPU-0", by_s=0.0):
            (failed,) = await partitioner.apply(targets, 200)
            assert "is changing its layout" in failed
            assert await machine.layouts() == {"GPU-0": SEVEN, "GPU-1": HALVES}
            with pytest.raises(Conflict, match="is changing its layout"):
                await partitioner.create_instance("GPU-0", HALVES[0], 20)
            assert not partitioner.busy("GPU-0")
        async with asyncio.TaskGroup() as tasks:
            async with other.hold("GPU-0", by_s=0.0):
                waiting = tasks.create_task(partitioner.apply((TWO,), 200))
                await asyncio.sleep(2)
            assert await waiting == ()
        assert await machine.layouts() == {"GPU-0": HALVES, "GPU-1": HALVES}

    run(attempt())


def test_what_could_not_be_restored_waits_for_the_process_that_changes_the_gpu(tmp_path: Path) -> None:
    machine = machine_of(gpu_facts(layout=SEVEN))
    for _ in range(3):
        driver_of(machine).fail("create_instance", FAULT)
    partitioner = Partitioner(machine.gpus, across=NodeLocks(tmp_path))

    async def attempt() -> None:
        assert await partitioner.apply((TWO,), 200)
        machine.refuses.clear()
        async with NodeLocks(tmp_path).hold("GPU-0", by_s=0.0):
            await partitioner.retry_unfinished(400)
            assert machine.offered == {"GPU-0": ()}
        await partitioner.retry_unfinished(600)
        await partitioner.retry_unfinished(800)
        assert machine.offered == {"GPU-0": None}

    run(attempt())


def test_where_there_can_be_no_lock_it_goes_on_and_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    configure()
    machine = machine_of(gpu_facts(layout=SEVEN))
    partitioner = Partitioner(machine.gpus, across=NodeLocks(tmp_path / "file"))

    async def attempt() -> None:
        with capture_logs() as logs:
            assert await partitioner.apply((TWO,), 200) == ()
            assert await partitioner.apply((TWO,), 200) == ()
        assert [each["event"] for each in logs].count("layout_not_locked") == 1

    run(attempt())


def test_what_could_not_be_put_back_is_forgotten_once_mig_is_off() -> None:
    machine = machine_of(gpu_facts(layout=SEVEN))
    driver = driver_of(machine)
    driver.fail("set_mig", FAULT)
    driver.fail("create_instance", FAULT)
    partitioner = Partitioner(machine.gpus)

    async def attempt() -> None:
        (failed,) = await partitioner.apply((OFF,), 200)
        assert failed.startswith("GPU 0: switching MIG off failed: ")
        assert "creating 1g.5gb at 0 failed" in failed
        assert machine.offered == {"GPU-0": ()}
        await driver.set_mig("GPU-0", enabled=False)
        await partitioner.retry_unfinished(400)
        assert machine.offered == {"GPU-0": None}

    run(attempt())


def test_one_instance_is_added_where_unused_ones_stand_in_its_way() -> None:
    machine = machine_of(gpu_facts(layout=SEVEN))
    machine.pods = {"ns/a": ("GPU-0", SEVEN[0])}
    (place,) = at(A100, ("2g.10gb", 2))

    async def add() -> None:
        partitioner = Partitioner(machine.gpus)
        await partitioner.create_instance("GPU-0", place, 200)
        await partitioner.create_instance("GPU-0", place, 200)
        assert await machine.layouts() == {"GPU-0": tuple(sorted((*SEVEN[:2], place, *SEVEN[4:])))}
        with pytest.raises(Conflict, match=r"1g.5gb at 0 is in use .*, needed for 4g.20gb at 0; used by pod ns/a"):
            await partitioner.create_instance("GPU-0", at(A100, ("4g.20gb", 0))[0], 200)
        with pytest.raises(Unavailable, match="lost, missing, or has no MIG"):
            await partitioner.create_instance("GPU-1", place, 200)
        want = {Stage.DONE: 1, Stage.RESTORED: 0, Stage.FAILED: 0}
        assert partitioner.outcomes == want, "what is there already is no repartition"

    run(add())


def test_mig_is_switched_on_for_one_more_instance() -> None:
    machine = machine_of(gpu_facts(), gpu_facts(index=1))
    machine.pods = {"ns/a": ("GPU-1", None)}

    async def add() -> None:
        partitioner = Partitioner(machine.gpus)
        await partitioner.create_instance("GPU-0", HALVES[1], 20)
        assert await machine.layouts() == {"GPU-0": HALVES[1:], "GPU-1": None}
        with pytest.raises(Conflict, match="switching MIG on requires an idle GPU; it is in use by pod ns/a"):
            await partitioner.create_instance("GPU-1", HALVES[1], 20)
        driver_of(machine).hold_mode_changes("GPU-1")
        machine.pods = {}
        for _ in range(2):
            with pytest.raises(Conflict, match="switches MIG with its next reset"):
                await partitioner.create_instance("GPU-1", HALVES[1], 100)

    run(add())


def test_mig_is_switched_off_for_those_who_use_the_whole_gpu() -> None:
    machine = machine_of(gpu_facts(layout=SEVEN), gpu_facts(index=1, layout=HALVES), gpu_facts(index=2))
    machine.pods = {"ns/a": ("GPU-1", HALVES[0])}

    async def free() -> None:
        partitioner = Partitioner(machine.gpus)
        for _ in range(2):
            await partitioner.disable_mig("GPU-0", 100)
            assert await machine.layouts() == {"GPU-0": None, "GPU-1": HALVES, "GPU-2": None}
        await partitioner.disable_mig("GPU-2", 100)
        with pytest.raises(Conflict, match=r"in use by pod ns/a on 3g.20gb at 0"):
            await partitioner.disable_mig("GPU-1", 100)
        machine.pods = {}
        driver_of(machine).fail("set_mig", FAULT)
        with pytest.raises(Conflict, match="switching MIG off failed: a fault"):
            await partitioner.disable_mig("GPU-1", 100)
        assert (await machine.layouts())["GPU-1"] == HALVES
        driver_of(machine).lose("GPU-1")
        with pytest.raises(Unavailable, match="lost or missing"):
            await partitioner.disable_mig("GPU-1", 100)

    run(free())


class Undone(Machine):
    """A machine whose administrator undoes each change as soon as all is offered again."""

    async def advertise(self, gpu: str, layout: Layout | None) -> None:
        await super().advertise(gpu, layout)
        (facts,) = (await self.driver.inventory()).gpus
        if layout is None and facts.layout is None:
            await self.driver.set_mig(gpu, enabled=True)
        elif layout is None:
            await self.driver.destroy_instance(gpu, facts.instances[-1].placement)


def test_what_others_undo_meanwhile_is_reported() -> None:
    async def act() -> None:
        partitioner = Partitioner(Undone(MemoryDriver((gpu_facts(layout=HALVES[:1]),))).gpus)
        with pytest.raises(Conflict, match="a layout other than the one created"):
            await partitioner.create_instance("GPU-0", HALVES[1], 100)
        with pytest.raises(Conflict, match="a layout other than the one created"):
            await partitioner.disable_mig("GPU-0", 100)

    run(act())


def test_an_instance_is_waited_for_no_longer_than_asked() -> None:
    machine = machine_of(gpu_facts(layout=SEVEN))
    machine.hangs.add("destroy_instance")

    async def add() -> None:
        partitioner = Partitioner(machine.gpus)
        change = asyncio.create_task(partitioner.apply((TWO,), 200))
        await asyncio.sleep(1)
        with pytest.raises(Unavailable, match="GPU GPU-0: its layout is being changed"):
            await partitioner.create_instance("GPU-0", SEVEN[0], 3)
        await change
        await partitioner.create_instance("GPU-0", SEVEN[0], 200)

    run(add())


def test_beside_media_engines_only_what_is_used_stays() -> None:
    gpu = model("RTX-PRO-6000-Blackwell-96GB")
    present = at(gpu, ("1g.24gb", 0), ("1g.24gb+gfx", 3))
    (place,) = at(gpu, ("1g.24gb+me.all", 6))
    machine = machine_of(gpu_facts(gpu.name, layout=present))

    async def add() -> None:
        await Partitioner(machine.gpus).create_instance("GPU-0", place, 200)
        assert await machine.layouts() == {"GPU-0": (place,)}

    run(add())


def test_what_a_reboot_took_comes_back_at_its_places_before_anything_is_offered() -> None:
    layout = at(A100, ("1g.5gb", 1), ("2g.10gb", 4))
    written: list[tuple[Recorded, ...]] = []

    async def remember(recorded: tuple[Recorded, ...]) -> None:
        await asyncio.sleep(0)
        written.append(recorded)

    async def reboot() -> None:
        machine = machine_of(gpu_facts(layout=()), gpu_facts(index=1), gpu_facts(index=2, layout=HALVES))
        target = exact(gpu_facts(), layout)
        first = Partitioner(machine.gpus, remember=remember)
        assert await first.apply((target, msgspec.structs.replace(target, gpu="GPU-1", index=1)), 200) == ()
        assert [each.placements for each in written[-1]] == [layout, layout]
        driver_of(machine).reset("GPU-0")
        driver_of(machine).reset("GPU-1")
        await driver_of(machine).set_mig("GPU-1", enabled=False)
        second = Partitioner(machine.gpus, written[-1], remember)
        assert await second.restore(200) == ()
        assert await machine.layouts() == {"GPU-0": layout, "GPU-1": layout, "GPU-2": HALVES}
        again = Partitioner(machine.gpus, (*written[-1], Recorded(uuid="GPU-9", model="A30", mig=True)), remember)
        assert await again.restore(200) == ("recorded GPU GPU-9 (A30) is missing; its record is kept",)

    run(reboot())


def test_a_layout_that_cannot_be_written_down_is_in_force_all_the_same() -> None:
    async def refuse(_recorded: tuple[Recorded, ...]) -> None:
        await asyncio.sleep(0)
        raise FAULT

    async def attempt() -> None:
        machine = machine_of(gpu_facts(layout=()))
        partitioner = Partitioner(machine.gpus, remember=refuse)
        assert await partitioner.apply((TWO,), 200) == ()
        assert await machine.layouts() == {"GPU-0": HALVES}

    run(attempt())


def test_what_cannot_be_cleared_away_is_made_anew_by_the_next_change() -> None:
    machine = machine_of(gpu_facts(layout=SEVEN))
    driver_of(machine).fail("destroy_instance", FAULT, half_done=True)
    driver_of(machine).fail("destroy_instance", FAULT)

    async def come() -> None:
        partitioner = Partitioner(machine.gpus)
        (failed,) = await partitioner.apply((TWO,), 200)
        assert failed.startswith("GPU 0: destroying 1g.5gb at 0 failed: a fault")
        assert (await machine.driver.inventory()).gpus[0].incomplete == SEVEN[:1]
        assert await partitioner.apply((exact(gpu_facts(), SEVEN),), 200) == ()
        assert (await machine.driver.inventory()).gpus[0].incomplete == ()

    run(come())


def test_the_former_layout_is_not_in_force_while_an_instance_is_incomplete() -> None:
    machine = machine_of(gpu_facts(layout=SEVEN))
    driver_of(machine).fail("destroy_instance", FAULT, half_done=True)
    driver_of(machine).fail("destroy_instance", FAULT)

    async def come() -> None:
        partitioner = Partitioner(machine.gpus)
        failures = await partitioner.apply((TWO,), 200)
        assert failures == (f"GPU 0: destroying 1g.5gb at 0 failed: a fault{UNRESTORED}",)
        assert machine.offered == {"GPU-0": ()}
        await partitioner.retry_unfinished(400)
        gpu = (await machine.driver.inventory()).gpus[0]
        assert (gpu.layout, gpu.incomplete) == (SEVEN, ())
        assert machine.offered == {"GPU-0": None}

    run(come())


def test_what_was_incomplete_before_is_reported_and_keeps_nothing_else_from_pods() -> None:
    machine = machine_of(gpu_facts(layout=HALVES[:1], incomplete=HALVES[1:]))
    for _ in range(2):
        driver_of(machine).fail("destroy_instance", FAULT)
    failures, _ = apply(machine, TWO)
    without = ", and without 3g.20gb at 4, incomplete as before"
    assert failures == (f"GPU 0: destroying 3g.20gb at 4 failed: a fault{FORMER}{without}",)
    assert machine.offered == {"GPU-0": None}


def test_a_gpu_that_is_lost_meanwhile_is_left_alone() -> None:
    machine = Between(MemoryDriver((gpu_facts(layout=SEVEN),)), lambda machine: driver_of(machine).lose("GPU-0"))
    (failed,), _ = apply(machine, TWO)
    assert failed.startswith("GPU 0: destroying 1g.5gb at 1 failed: ")
    assert failed.endswith("until it is, only devices in use are advertised")
