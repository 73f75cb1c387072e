"""Whatever fails, and whenever the agent dies: no used instance is destroyed, and the label ends in time."""

import asyncio
import itertools
import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from builders.configlabels import MineLabel
from builders.gpufacts import at, gpu_facts
from harness.machines import Death, Machine
from harness.virtualtime import run
from tessera.agent.partition import Follower, Partitioner, RebootRecord
from tessera.clients.gpu import MemoryDriver
from tessera.core.gpu.gpumodels import CATALOG, model
from tessera.core.gpu.mig import Layout, all_layouts, counts_of
from tessera.core.node.layouts import (
    Group,
    LayoutCause,
    LayoutLimits,
    LayoutRequest,
    LayoutState,
    LayoutTarget,
    differences,
    exact,
)
from tessera.core.node.repartition import restorable
from tessera.errors import Unavailable

MIG_MODELS = [each.name for each in CATALOG if each.memory_slices]
LIMITS = LayoutLimits(pending_s=120, retry_s=10, retry_most_s=40)
SLACK_S = 400
"""What is under way when a deadline passes ends, and restores, within so many seconds."""


@st.composite
def situations(draw: st.DrawFn) -> tuple[str, Layout | None, Layout | None, Layout]:
    name = draw(st.sampled_from(MIG_MODELS))
    layouts = st.sampled_from(all_layouts(model(name)))
    present, desired = draw(st.none() | layouts), draw(st.none() | layouts)
    used = tuple(itertools.compress(present or (), draw(st.lists(st.booleans(), min_size=8, max_size=8))))
    return name, present, desired, used


FATES = st.lists(st.sampled_from([0, 0, 0, 0, 1, 2, 3, 4, 7]), max_size=40)
"""What happens to one call after the other; see `machines.Machine`."""

Situation = tuple[str, Layout | None, Layout | None, Layout]


def machine_of(situation: Situation, fate: Iterable[int]) -> Machine:
    name, present, _, used = situation
    left = iter(fate)
    machine = Machine(MemoryDriver((gpu_facts(name, layout=present),)), lambda: next(left, 0))
    machine.pods = {f"ns/p{number}": ("GPU-0", each) for number, each in enumerate(used)}
    return machine


def target_of(situation: Situation, *, places: bool) -> LayoutTarget:
    name, _, desired, _ = situation
    target = exact(gpu_facts(name), desired)
    if places or desired is None:
        return target
    return LayoutTarget(gpu="GPU-0", index=0, mig=True, counts=counts_of(model(name), desired))


async def is_met(machine: Machine, target: LayoutTarget) -> bool:
    return not differences(await machine.driver.inventory(), (target,))


def used_layout(machine: Machine) -> Layout:
    return tuple(sorted(place for _, place in machine.pods.values() if place))


def now() -> float:
    return asyncio.get_running_loop().time()


@settings(max_examples=200)
@given(situations(), st.integers(0, 60), st.sampled_from([1, 2, 3, 4, 7]), st.booleans())
def test_after_one_fault_the_gpu_has_the_target_or_the_former_layout(
    situation: Situation, number: int, kind: int, places: bool
) -> None:
    name, present, _, used = situation
    target = target_of(situation, places=places)

    async def attempt() -> None:
        machine = machine_of(situation, [*[0] * number, kind])
        partitioner = Partitioner(machine.gpus)
        failures = await partitioner.apply((target,), 120.0)
        await partitioner.retry_unfinished(now() + 120)
        assert now() < 120 + SLACK_S
        assert set(used) <= set(used_layout(machine))
        layout = (await machine.layouts())["GPU-0"]
        if not await is_met(machine, target):
            assert layout == (present and restorable(model(name), present, used_layout(machine)))
            assert layout == present or failures
        assert (await machine.driver.inventory()).gpus[0].incomplete == ()
        assert machine.offered.get("GPU-0") is None

    run(attempt())


@settings(max_examples=200)
@given(situations(), FATES, st.booleans())
@example(situation=("A30-24GB", (), at(model("A30-24GB"), ("1g.6gb", 0)), ()), fate=[0, 0, 1, 2], places=False)
def test_after_many_faults_nothing_used_is_gone_and_all_is_offered_again(
    situation: Situation, fate: list[int], places: bool
) -> None:
    async def attempt() -> None:
        machine = machine_of(situation, fate)
        partitioner = Partitioner(machine.gpus)
        await partitioner.apply((target_of(situation, places=places),), 120.0)
        assert now() < 120 + SLACK_S
        machine.fate = lambda: 0
        await partitioner.retry_unfinished(now() + 120)
        assert set(situation[3]) <= set(used_layout(machine))
        layout = (await machine.layouts())["GPU-0"]
        assert set(used_layout(machine)) <= set(layout or ())
        assert machine.offered.get("GPU-0") is None

    run(attempt())


def follower_of(machine: Machine, target: LayoutTarget, told: list[LayoutRequest]) -> Follower:
    group = Group(enabled=target.mig, instances=target.counts)

    async def report(request: LayoutRequest) -> None:
        await asyncio.sleep(0)
        told.append(request)

    return Follower(Partitioner(machine.gpus), MineLabel(group, report), LIMITS)


@settings(max_examples=150)
@given(situations(), st.lists(st.sampled_from([0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7]), max_size=60))
def test_the_label_ends_in_success_or_failed_though_the_agent_dies_again_and_again(
    situation: Situation, fate: list[int]
) -> None:
    """It may die at any call, before or after the deed; the next agent knows nothing and goes on from what it sees."""
    target = target_of(situation, places=False)

    async def life(machine: Machine, seconds: float) -> list[LayoutRequest]:
        told: list[LayoutRequest] = []
        follower = follower_of(machine, target, told)
        machine.offered.clear()
        end_s = now() + seconds
        died = False
        try:
            while now() < end_s:
                await follower.follow("mine")
                await asyncio.sleep(5)
        except* Death:
            died = True
        return await life(machine, seconds) if died else told

    async def lifetimes() -> None:
        machine = machine_of(situation, fate)
        told = await life(machine, LIMITS.pending_s + SLACK_S + 2 * LIMITS.retry_most_s)
        last = told[-1]
        met = await is_met(machine, target)
        assert set(situation[3]) <= set(used_layout(machine))
        assert last.state is (LayoutState.SUCCESS if met else LayoutState.FAILED)
        if not met:
            assert last.cause is LayoutCause.BLOCKED, last
        assert machine.offered.get("GPU-0") is None

    run(lifetimes())


@settings(max_examples=150)
@given(
    situations(),
    st.lists(st.sampled_from([0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6]), max_size=60),
    st.sampled_from(["works", "fails", "does nothing"]),
)
def test_the_node_is_rebooted_once_at_most_and_never_under_a_pod(
    situation: Situation, fate: list[int], outcome: str
) -> None:
    """MIG is switched with a reset alone; agents die at any call and of the reboot, whose record alone they leave."""
    target = target_of(situation, places=False)
    group = Group(enabled=target.mig, instances=target.counts)
    machine = machine_of(situation, fate)
    driver = machine.driver
    assert isinstance(driver, MemoryDriver)
    reboots, labels = [], [""]

    async def reboot() -> None:
        await asyncio.sleep(0)
        assert not machine.pods, "a node is rebooted under a pod"
        reboots.append(now())
        if outcome == "fails":
            raise Unavailable("reboot", found="a fault", expected="no fault")
        if outcome == "works":
            driver.reboot()
            raise Death

    async def report(request: LayoutRequest) -> None:
        await asyncio.sleep(0)
        labels.append(request.state or "")

    async def life(record: RebootRecord, end_s: float) -> None:
        machine.offered.clear()
        limits = msgspec.structs.replace(LIMITS, may_reboot=True, rebooting_s=300)
        partitioner = Partitioner(machine.gpus)
        follower = Follower(partitioner, MineLabel(group, report), limits, reboot=reboot, record=record)
        follower.resume("mine", labels[-1])
        while now() < end_s:
            await follower.follow("mine")
            await asyncio.sleep(5)

    async def lifetimes(folder: Path) -> None:
        driver.hold_mode_changes("GPU-0")
        record = RebootRecord(folder / "rebooted")
        died = True
        while died:
            try:
                await life(record, now() + 1200)
                died = False
            except* Death:
                died = True
        assert labels[-1] == (LayoutState.SUCCESS if await is_met(machine, target) else LayoutState.FAILED)
        assert len(reboots) <= 1
        assert set(situation[3]) <= set(used_layout(machine))

    with tempfile.TemporaryDirectory() as folder:
        run(lifetimes(Path(folder)))


@settings(max_examples=30)
@given(situations(), st.lists(st.sampled_from([0, 1, 2, 3, 4, 7]), min_size=1, max_size=30))
def test_no_state_but_success_and_failed_is_reported_for_long(situation: Situation, fate: list[int]) -> None:
    """The faults come again and again, for half an hour."""

    async def half_an_hour() -> None:
        told: list[tuple[float, LayoutRequest]] = []

        async def report(request: LayoutRequest) -> None:
            await asyncio.sleep(0)
            told.append((now(), request))

        target = target_of(situation, places=False)
        group = Group(enabled=target.mig, instances=target.counts)
        machine = machine_of(situation, itertools.cycle(fate))
        follower = Follower(Partitioner(machine.gpus), MineLabel(group, report), LIMITS)
        while now() < 1800:
            await follower.follow("mine")
            await asyncio.sleep(5)
        since = None
        for moment, request in [*told, (now(), None)]:
            if since is not None and (request is None or request.state is not LayoutState.PENDING):
                assert moment - since < LIMITS.pending_s + SLACK_S
                since = None
            if request is not None and request.state is LayoutState.PENDING and since is None:
                since = moment

    run(half_an_hour())
