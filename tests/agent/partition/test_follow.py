"""The label is followed: what is done, what is reported, and what is left alone."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from builders.gpufacts import at, gpu_facts
from harness.machines import Machine
from harness.virtualtime import run
from tessera.agent.partition import Follower, Partitioner, RebootRecord
from tessera.clients.gpu import MemoryDriver
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.inventory import GpuFacts
from tessera.core.gpu.mig import Placement
from tessera.core.node.layouts import Group, LayoutLimits, LayoutRequest, LayoutState, Recorded
from tessera.errors import Conflict, InvalidInput, Unavailable

A100 = model("A100-40GB")
SEVEN = at(A100, *(("1g.5gb", start) for start in range(7)))
HALVES = at(A100, ("3g.20gb", 0), ("3g.20gb", 4))
LIMITS = LayoutLimits(pending_s=100, rebooting_s=1000, retry_s=10, retry_most_s=40)


class Scene:
    """A follower on a machine, with all that it told."""

    def __init__(
        self, *gpus: GpuFacts, limits: LayoutLimits = LIMITS, force: bool = False, record: RebootRecord | None = None
    ) -> None:
        self.driver = MemoryDriver(gpus)
        self.machine = Machine(self.driver)
        self.told: list[tuple[str | None, str]] = []
        self.written: list[tuple[Recorded, ...]] = []
        self.evicted: list[tuple[float, str]] = []
        self.reboots = 0
        self.reboot_works = True
        self.quick: dict[str, tuple[str, Placement | None]] = {}
        """Pods that come when the node is about to reboot."""
        self.deafens = ""
        """A call that is refused from then on."""
        self.budget = 0
        self.deaf = False
        self.file: Mapping[str, tuple[Group, ...]] | InvalidInput = {}
        self.partitioner = Partitioner(self.machine.gpus, remember=self.remember)
        self.limits, self.force, self.record = limits, force, record
        self.follower = self.started()

    def started(self) -> Follower:
        """Return the follower of an agent that starts."""
        return Follower(
            self.partitioner,
            self,
            self.limits,
            evict=self.evict if self.force else None,
            reboot=self.reboot if self.limits.may_reboot else None,
            record=self.record,
        )

    def configurations(self) -> Mapping[str, tuple[Group, ...]]:
        if isinstance(self.file, InvalidInput):
            raise self.file
        return self.file

    async def report(self, request: LayoutRequest) -> None:
        await asyncio.sleep(0)
        if self.deaf:
            raise Unavailable("the API", found="no answer", expected="an answer")
        if request.state is LayoutState.REBOOTING:
            self.machine.pods |= self.quick
            self.quick = {}
            self.machine.refuses |= {self.deafens} - {""}
        said = request.condition
        self.told.append((request.state, said.reason if said else ""))

    async def remember(self, recorded: tuple[Recorded, ...]) -> None:
        await asyncio.sleep(0)
        self.written.append(recorded)

    async def reboot(self) -> None:
        await asyncio.sleep(0)
        self.reboots += 1
        if not self.reboot_works:
            raise Unavailable("/sbin/reboot", found="exit status 1", expected="an answer")

    async def evict(self, name: str, namespace: str) -> None:
        await asyncio.sleep(0)
        self.evicted.append((asyncio.get_running_loop().time(), f"{namespace}/{name}"))
        if self.budget:
            self.budget -= 1
            raise Unavailable("pod", found="a PodDisruptionBudget that forbids it", expected="an eviction")
        del self.machine.pods[f"{namespace}/{name}"]

    async def follow(self, name: str, seconds: float = 1) -> None:
        """Follow a label for so long."""
        end_s = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end_s:
            await self.follower.follow(name)
            await asyncio.sleep(5)

    def offers(self) -> object:
        return self.machine.offered["GPU-0"]

    async def layout(self) -> object:
        return (await self.machine.layouts())["GPU-0"]


PENDING, DONE = ("pending", "LayoutPending"), ("success", "LayoutApplied")
BLOCKED, FAILED = ("pending", "LayoutBlocked"), ("failed", "LayoutFailed")
HELD = ("failed", "LayoutBlocked")


def test_a_label_is_followed_and_what_was_cut_written_down() -> None:
    async def scene() -> None:
        it = Scene(gpu_facts(), gpu_facts("T4", index=1))
        await it.follow("all-1g.5gb")
        assert await it.layout() == SEVEN
        assert it.told == [PENDING, DONE]
        assert [each.placements for each in it.written[-1]] == [SEVEN]
        await it.follow("all-3g.20gb")
        assert it.told == [PENDING, DONE, PENDING, DONE]
        await it.follow("")
        assert it.told[-1] == (None, "")
        assert await it.layout() == HALVES

    run(scene())


def test_a_layout_that_is_there_already_is_written_down_too() -> None:
    async def scene() -> None:
        it = Scene(gpu_facts(layout=SEVEN))
        await it.follow("all-1g.5gb", 100)
        assert it.told == [DONE]
        assert len(it.written) == 1
        assert it.machine.destroyed == []

    run(scene())


def test_somebody_cut_the_gpu_by_hand() -> None:
    async def scene() -> None:
        it = Scene(gpu_facts(layout=SEVEN))
        await it.follow("all-1g.5gb")
        await it.machine.driver.destroy_instance("GPU-0", SEVEN[2])
        await it.follow("all-1g.5gb")
        assert await it.layout() == SEVEN
        assert it.told == [DONE, PENDING, DONE]

    run(scene())


@pytest.mark.parametrize(
    ("name", "file", "want"),
    [
        (
            "halves",
            {},
            "MIG configuration: 'halves' is not the name of a configuration that this node can have:",
        ),
        (
            "mine",
            {"mine": (Group(enabled=True, instances=(("1g.5gb", 8),)),)},
            "configuration mine, GPU 0 (A100-40GB): 8 x 1g.5gb do not fit on one",
        ),
        (
            "mine",
            InvalidInput("mig.yaml", found="a list", expected="a mapping"),
            "mig.yaml: a list is not a mapping",
        ),
    ],
)
def test_a_label_that_means_nothing_fails_and_changes_nothing(
    name: str, file: Mapping[str, tuple[Group, ...]] | InvalidInput, want: str
) -> None:
    async def scene() -> None:
        it = Scene(gpu_facts(layout=HALVES))
        it.file = file
        await it.follow(name, 100)
        assert it.told == [FAILED]
        assert it.follower.request.reason.startswith(want)
        assert await it.layout() == HALVES
        it.file = {name: (Group(enabled=False),)}
        await it.follow(name, 10)
        assert it.told == [FAILED, PENDING, DONE]

    run(scene())


def test_used_instances_stay_and_are_offered_no_more_until_the_deadline() -> None:
    async def scene() -> None:
        it = Scene(gpu_facts(layout=SEVEN))
        it.machine.pods = {f"ns/p{start}": ("GPU-0", SEVEN[start]) for start in range(4)}
        await it.follow("all-3g.20gb")
        assert it.told == [BLOCKED]
        assert it.offers() == ()
        await it.follow("all-3g.20gb", 100)
        assert it.told == [BLOCKED, HELD]
        assert "pod ns/p0 on 1g.5gb at 0, pod ns/p1 on 1g.5gb at 1" in it.follower.request.reason
        assert it.offers() is None
        assert await it.layout() == SEVEN
        it.machine.pods.clear()
        await it.follow("all-3g.20gb")
        assert it.told == [BLOCKED, HELD, PENDING, DONE]
        assert await it.layout() == HALVES

    run(scene())


def test_once_the_users_have_gone_nobody_else_comes_before_the_gpu_is_cut() -> None:
    """The kubelet gives away whatever is offered, at every chance it gets."""

    async def scene() -> None:
        it = Scene(gpu_facts(layout=SEVEN))
        it.machine.pods = {"ns/p": ("GPU-0", SEVEN[0])}
        await it.follow("all-3g.20gb")
        it.machine.eager = True
        del it.machine.pods["ns/p"]
        await it.follow("all-3g.20gb")
        assert it.told == [BLOCKED, PENDING, DONE]
        assert await it.layout() == HALVES

    run(scene())


def test_gpus_that_nobody_blocks_are_cut_while_others_wait() -> None:
    async def scene() -> None:
        it = Scene(gpu_facts(layout=SEVEN), gpu_facts(index=1, layout=SEVEN))
        it.machine.pods = {"ns/p": ("GPU-1", SEVEN[0])}
        await it.follow("all-3g.20gb", 200)
        assert await it.machine.layouts() == {"GPU-0": HALVES, "GPU-1": SEVEN}
        assert it.told == [PENDING, BLOCKED, HELD]

    run(scene())


def test_by_force_pods_in_the_way_are_evicted_less_and_less_often() -> None:
    async def scene() -> None:
        it = Scene(gpu_facts(layout=SEVEN), force=True)
        it.machine.pods = {"ns/stay": ("GPU-0", SEVEN[6]), "ns/go": ("GPU-0", SEVEN[0])}
        it.budget = 2
        it.file = {"mine": (Group(enabled=True, instances=(("4g.20gb", 1), ("1g.5gb", 1))),)}
        await it.follow("mine", 60)
        assert it.evicted == [(0, "ns/go"), (5, "ns/go"), (15, "ns/go")]
        assert it.told[0] == BLOCKED
        assert it.told[-1] == DONE
        assert await it.layout() == (*at(A100, ("4g.20gb", 0)), SEVEN[6])

    run(scene())


def test_a_budget_that_never_allows_it_and_a_process_that_nobody_can_evict_end_in_failed() -> None:
    async def scene() -> None:
        it = Scene(gpu_facts(layout=SEVEN), force=True)
        it.machine.pods = {"ns/go": ("GPU-0", SEVEN[0])}
        it.driver.start_process("GPU-0", 77, SEVEN[4])
        it.budget = 99
        await it.follow("all-3g.20gb", 200)
        assert it.told == [BLOCKED, BLOCKED, HELD]
        assert "pod ns/go is not evicted: a PodDisruptionBudget that forbids it" in it.follower.request.reason
        assert "process 77 on 1g.5gb at 4" in it.follower.request.reason
        assert await it.layout() == SEVEN

    run(scene())


def test_a_step_that_fails_is_tried_again_after_a_pause() -> None:
    async def scene() -> None:
        it = Scene(gpu_facts(layout=SEVEN))
        it.driver.fail("create_instance", Conflict("GPU 0", found="a fault", expected="none"))
        await it.follow("all-3g.20gb", 10)
        assert it.told == [PENDING, FAILED]
        assert it.follower.request.reason.startswith("GPU 0: creating 3g.20gb at 0 failed: a fault")
        assert await it.layout() == SEVEN
        await it.follow("all-3g.20gb", 30)
        assert it.told == [PENDING, FAILED, PENDING, DONE]

    run(scene())


@pytest.mark.parametrize("call", ["held", "inventory"])
def test_a_kubelet_or_driver_that_is_silent_is_waited_for(call: str) -> None:
    async def scene() -> None:
        for kind in ("hangs", "refuses"):
            it = Scene(gpu_facts(layout=SEVEN))
            getattr(it.machine, kind).add(call)
            await it.follow("all-3g.20gb", 200)
            assert it.told == [PENDING, FAILED]
            getattr(it.machine, kind).clear()
            await it.follow("all-3g.20gb", 10)
            assert it.told == [PENDING, FAILED, PENDING, DONE]

    run(scene())


def test_what_could_not_be_reported_is_reported_later() -> None:
    async def scene() -> None:
        it = Scene(gpu_facts(layout=SEVEN))
        it.deaf = True
        await it.follow("all-1g.5gb")
        it.deaf = False
        await it.follow("all-1g.5gb")
        assert it.told == [DONE]

    run(scene())


def test_a_gpu_that_needs_a_reset_fails_with_what_to_do() -> None:
    async def scene() -> None:
        it = Scene(gpu_facts())
        it.driver.hold_mode_changes("GPU-0")
        await it.follow("all-3g.20gb", 100)
        assert it.told == [PENDING, FAILED]
        assert it.follower.request.reason.startswith(
            "GPU 0: MIG is switched on with the next reset: drain the node and reboot"
        )
        it.driver.reset("GPU-0")
        await it.follow("all-3g.20gb", 10)
        assert it.told == [PENDING, FAILED, PENDING, DONE]

    run(scene())


REBOOTS = msgspec.structs.replace(LIMITS, may_reboot=True)
REBOOTING = ("rebooting", "LayoutRebooting")


def rebooting_scene(folder: Path, *gpus: GpuFacts) -> Scene:
    """Return a node whose first GPU switches MIG with a reset alone, and that may be rebooted."""
    it = Scene(*(gpus or (gpu_facts(),)), limits=REBOOTS, record=RebootRecord(folder / "rebooted"))
    it.driver.hold_mode_changes("GPU-0")
    return it


def test_where_it_is_allowed_the_node_is_rebooted_once_nobody_uses_it(tmp_path: Path) -> None:
    async def scene() -> None:
        it = rebooting_scene(tmp_path, gpu_facts(), gpu_facts("T4", index=1))
        it.machine.pods = {"ns/p": ("GPU-1", None)}
        await it.follow("all-3g.20gb", 20)
        assert (it.told, it.reboots) == ([PENDING, BLOCKED], 0)
        it.machine.pods.clear()
        it.deaf = True
        await it.follow("all-3g.20gb", 20)
        assert it.reboots == 0
        it.deaf = False
        await it.follow("all-3g.20gb", 20)
        assert it.told == [PENDING, BLOCKED, REBOOTING]
        assert it.reboots == 1
        assert it.machine.offered == {"GPU-0": (), "GPU-1": ()}
        it.driver.reset("GPU-0")
        after = it.started()
        after.resume("all-3g.20gb", "rebooting")
        await after.follow("all-3g.20gb")
        assert it.told[2:] == [REBOOTING, PENDING, DONE]
        assert it.reboots == 1

    run(scene())


def test_a_reboot_that_does_not_help_is_not_tried_again_by_any_agent(tmp_path: Path) -> None:
    async def scene() -> None:
        it = rebooting_scene(tmp_path)
        await it.follow("all-3g.20gb", 1020)
        assert (it.told, it.reboots) == ([PENDING, REBOOTING, FAILED], 1)
        assert it.follower.request.reason.startswith("the reboot did not help; GPU 0: MIG is switched on")
        assert it.offers() is None
        for _ in range(2):
            it.follower = it.started()
            it.follower.resume("all-3g.20gb", "failed")
            await it.follow("all-3g.20gb", 200)
        assert it.reboots == 1
        await it.follow("all-1g.5gb", 20)
        assert it.reboots == 2

    run(scene())


def test_a_label_taken_away_and_set_again_may_reboot_again(tmp_path: Path) -> None:
    async def scene() -> None:
        it = rebooting_scene(tmp_path)
        await it.follow("all-3g.20gb", 20)
        await it.follow("", 20)
        assert not (tmp_path / "rebooted").exists()
        assert it.offers() is None
        await it.follow("all-3g.20gb", 20)
        assert it.reboots == 2

    run(scene())


def test_a_pod_that_comes_just_before_the_reboot_runs_on(tmp_path: Path) -> None:
    async def scene() -> None:
        it = rebooting_scene(tmp_path, gpu_facts(), gpu_facts("T4", index=1))
        it.quick = {"ns/quick": ("GPU-1", None)}
        await it.follow("all-3g.20gb", 50)
        assert (it.told, it.reboots) == ([PENDING, REBOOTING, HELD], 0)
        it.machine.pods.clear()
        await it.follow("all-3g.20gb", 20)
        assert (it.told[3:], it.reboots) == ([REBOOTING], 1)

    run(scene())


@pytest.mark.parametrize(
    ("trouble", "want"),
    [
        ("offer", "GPUs could not be withdrawn from the pods before the reboot; GPU 0: MIG is switched"),
        ("record", "the reboot failed: {}: Is a directory"),
        ("command", "the reboot failed: /sbin/reboot: exit status 1 is not an answer; GPU 0: MIG is switched"),
    ],
)
def test_a_reboot_that_cannot_be_had_fails_and_says_why(trouble: str, want: str, tmp_path: Path) -> None:
    async def scene() -> None:
        it = rebooting_scene(tmp_path, gpu_facts(pending=True))
        it.reboot_works = trouble != "command"
        if trouble == "record":
            (tmp_path / "rebooted").mkdir()
        if trouble == "offer":
            it.machine.refuses.add("offer")
        await it.follow("all-3g.20gb")
        assert it.told == [REBOOTING, FAILED if trouble == "command" else HELD]
        assert it.follower.request.reason.startswith(want.format(tmp_path / "rebooted"))
        assert it.reboots == (trouble == "command")
        it.machine.refuses.clear()
        it.reboot_works = True
        await it.follow("all-3g.20gb", 100)
        assert it.reboots == (trouble != "record")

    run(scene())


def test_nothing_is_rebooted_while_driver_or_kubelet_do_not_answer(tmp_path: Path) -> None:
    async def scene() -> None:
        it = rebooting_scene(tmp_path, gpu_facts(pending=True))
        it.deafens = "held"
        await it.follow("all-3g.20gb")
        assert (it.told, it.reboots) == ([REBOOTING, HELD], 0)
        assert "the users of the GPUs are unknown" in it.follower.request.reason

    run(scene())


def test_without_a_label_nobody_is_asked_and_what_was_withdrawn_is_offered_again() -> None:
    async def scene() -> None:
        it = Scene(gpu_facts(layout=SEVEN))
        it.machine.pods = {"ns/p": ("GPU-0", SEVEN[0])}
        await it.follow("all-3g.20gb")
        it.machine.refuses.update({"held", "inventory"})
        await it.follow("")
        assert it.offers() is None
        assert it.told == [BLOCKED, (None, "")]

    run(scene())


def test_the_plugin_does_not_answer_when_blocked_instances_are_withdrawn_and_given_back() -> None:
    async def scene() -> None:
        it = Scene(gpu_facts(layout=SEVEN))
        it.machine.pods = {"ns/p": ("GPU-0", SEVEN[0])}
        it.machine.refuses.add("offer")
        await it.follow("all-3g.20gb")
        it.machine.refuses.clear()
        await it.follow("all-3g.20gb")
        assert it.offers() == ()
        it.machine.refuses.add("offer")
        await it.follow("all-1g.5gb")
        it.machine.refuses.clear()
        await it.follow("all-1g.5gb")
        assert it.offers() is None

    run(scene())
