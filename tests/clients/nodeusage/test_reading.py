"""Reads of several agents: one that does not answer delays the others once, and no report is of an earlier read."""

import asyncio
from functools import partial

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from builders.usagereports import REPORT
from harness import virtualtime
from tessera.clients.nodeusage import NodeReports
from tessera.clients.nodeusage.reading import AgentReads
from tessera.core.usage.usagereport import UsageReport
from tessera.errors import Unavailable

pytestmark = pytest.mark.anyio
AWAY = Unavailable("agent b", found="no answer", hint="try again")
SOON_S = 5.0
"""Much longer than a read that waits for nobody, much shorter than for ever."""


class Agent:
    """Gives one answer, once that is ready."""

    def __init__(self, answer: UsageReport | Exception) -> None:
        self.answer = answer
        self.ready = asyncio.Event()
        self.ready.set()
        self.asked = 0

    async def __call__(self) -> UsageReport:
        self.asked += 1
        await self.ready.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def read(reads: AgentReads, agents: dict[str, Agent]) -> NodeReports:
    with anyio.fail_after(SOON_S):
        return await reads.read(agents)


async def test_reports_are_sorted_by_node_and_the_silent_are_named() -> None:
    first = UsageReport(node="a")
    found = await AgentReads().read({"n1": Agent(REPORT), "b": Agent(AWAY), "a": Agent(first)})
    assert found == NodeReports((first, REPORT), (AWAY,))
    assert found.some() == (first, REPORT)


@pytest.mark.parametrize("before", [REPORT, AWAY])
async def test_a_defect_in_reading_one_report_is_that_agent_s_silence_and_is_logged(
    before: UsageReport | Exception,
) -> None:
    """Of an agent that answered at the last read, and of one that did not."""
    reads, good, agent = AgentReads(), Agent(UsageReport(node="good")), Agent(before)
    await reads.read({"good": good, "agent b": agent})
    agent.answer = ZeroDivisionError()
    with capture_logs() as logs:
        found = await reads.read({"good": good, "agent b": agent})
    assert found.reports == (good.answer,)
    assert [str(each) for each in found.silent] == [
        "agent b: a defect in reading its report: ZeroDivisionError: report it"
    ]
    assert [(each["event"], each["exc_info"], each["reason"]) for each in logs] == [
        ("agent_not_read", agent.answer, "agent b: ZeroDivisionError")
    ]
    await reads.close()


DELAYS_S = st.sampled_from([0.0, 0.1, 0.3, 1.0, 1.9, 3.0, 6.0, 9.0, 30.0])
STEPS = st.lists(st.lists(DELAYS_S, min_size=7, max_size=7), min_size=1, max_size=8)


class Slow:
    """An agent that always answers, after a time of its own at each request."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.delay_s = 0.0
        self.took_s = 0.0
        self.answered_s: float | None = None
        self.asked = False

    async def __call__(self) -> UsageReport:
        self.asked, delay_s = True, self.delay_s
        await asyncio.sleep(delay_s)
        self.asked, self.took_s, self.answered_s = False, delay_s, asyncio.get_running_loop().time()
        return UsageReport(node=self.node, age_s=0.0)


@given(STEPS, st.sampled_from([1.0, 5.0, 60.0]))
def test_law_who_always_answers_is_in_each_read_and_delays_none_but_the_first(
    steps: list[list[float]], every_s: float
) -> None:
    """However late: as of its last answer. A read lasts twice as long as half of the prompt ones take, and 2 s."""
    virtualtime.run(_slow(steps, every_s))


async def _slow(steps: list[list[float]], every_s: float) -> None:
    reads, now = AgentReads(), asyncio.get_running_loop().time
    agents = {name: Slow(name) for name in "abcdefg"}
    for number, delays_s in enumerate(steps):
        for each, delay_s in zip(agents.values(), delays_s, strict=True):
            each.delay_s = delay_s
        prompt = sorted(each.delay_s for each in agents.values() if not each.asked and each.took_s <= 2.0)
        began_s = now()
        found = await reads.read(agents)
        took_s = now() - began_s
        if not number:
            assert took_s == max(delays_s)
        else:
            half_s = prompt[(len(prompt) - 1) // 2] if prompt else 0.0
            assert took_s <= 2 * half_s + 2.0 + 0.001
            assert took_s >= min(max(prompt, default=0.0), 2 * half_s + 2.0) - 0.001, "it waits for the prompt ones"
        assert (len(found.reports), found.silent) == (7, ())
        for report in found.reports:
            answered_s = agents[report.node].answered_s
            assert answered_s is not None
            assert report.age_s == pytest.approx(0.0 if answered_s >= began_s else now() - answered_s)
            assert report.answered_s == report.age_s, "the observation was new when the agent answered"
        # No request of an earlier read ends in the very moment in which a later one begins.
        await asyncio.sleep(every_s + 0.017)
    await reads.close()


def test_a_report_of_long_ago_is_not_used() -> None:
    async def story() -> list[tuple[int, str]]:
        reads, slow = AgentReads(), Slow("slow")
        found = list[tuple[int, str]]()
        for delay_s, pause_s in ((0.0, 115), (9.0, 4), (9.0, 3600), (9.0, 5), (0.0, 0)):
            slow.delay_s = delay_s
            answer = await reads.read({"slow": slow, "b": partial(_report_after, "b", 0.1)})
            found.append((len(answer.reports), "".join(str(each) for each in answer.silent)))
            await asyncio.sleep(pause_s)
        await reads.close()
        return found

    late = "slow: no answer yet, long after others answered: it is queried again"
    assert virtualtime.run(story()) == [(2, ""), (2, ""), (1, late), (1, late), (1, late)]


def test_those_that_fail_at_once_are_none_of_the_half_that_answers() -> None:
    async def story() -> float:
        reads, now = AgentReads(), asyncio.get_running_loop().time
        names = [f"bad-{number}" for number in range(9)]
        await reads.read({name: partial(_report_after, name, 0) for name in [*names, "good", "hung"]})
        bad = {name: partial(_raise_after, 0) for name in names}
        began_s = now()
        good, hung = partial(_report_after, "good", 0.5), partial(_report_after, "hung", 100)
        assert len((await reads.read({**bad, "good": good, "hung": hung})).silent) == 9
        took_s = now() - began_s
        await reads.close()
        return took_s

    assert virtualtime.run(story()) == pytest.approx(3.0)


def test_many_agents_that_hang_at_once_take_no_turn_of_a_later_read() -> None:
    async def story() -> tuple[float, int]:
        reads, now = AgentReads(), asyncio.get_running_loop().time
        names = [f"{number:03}" for number in range(90)]
        await reads.read({name: partial(_report_after, name, 0) for name in names})
        hung = {name: partial(_report_after, name, 100) for name in names[60:]}
        agents = {name: partial(_report_after, name, 0.1) for name in names[:60]} | hung
        await reads.read(agents)
        began_s = now()
        found = await reads.read(agents)
        took_s = now() - began_s
        await reads.close()
        return took_s, sum(each.age_s == 0.0 for each in found.reports)

    took_s, present = virtualtime.run(story())
    assert took_s == pytest.approx(0.5)
    assert present == 60


async def _report_after(node: str, delay_s: float) -> UsageReport:
    await asyncio.sleep(delay_s)
    return UsageReport(node=node, age_s=0.0)


async def _raise_after(delay_s: float) -> UsageReport:
    await asyncio.sleep(delay_s)
    raise AWAY


def test_agents_that_fail_at_once_do_not_shorten_the_wait_for_those_that_answer() -> None:
    async def story() -> NodeReports:
        reads = AgentReads()
        names = [f"bad-{number}" for number in range(9)]
        await reads.read({name: partial(_report_after, name, 0) for name in [*names, "good"]})
        bad = {name: partial(_raise_after, 0) for name in names}
        return await reads.read({**bad, "good": partial(_report_after, "good", 8)})

    found = virtualtime.run(story())
    assert ([each.node for each in found.reports], len(found.silent)) == (["good"], 9)


def test_one_that_answered_between_two_reads_is_waited_for_longer_than_the_grace() -> None:
    async def story() -> list[int]:
        reads = AgentReads()
        await reads.read({"slow": partial(_raise_after, 0)})
        found = list[int]()
        for _ in range(2):
            found.append(len((await reads.read({"slow": partial(_report_after, "slow", 1)})).reports))
            await asyncio.sleep(5)
        return found

    assert virtualtime.run(story()) == [0, 1]


async def test_one_that_does_not_answer_delays_the_others_once() -> None:
    reads, good, bad = AgentReads(grace_s=0.0), Agent(REPORT), Agent(AWAY)
    agents = {"bad": bad, "good": good}
    await reads.read(agents)
    bad.ready.clear()
    for number in range(3):
        assert await read(reads, agents) == NodeReports((REPORT,), (AWAY,))
        assert (good.asked, bad.asked) == (number + 2, 2), "it is asked again only when its request has ended"
    await reads.close()


async def test_an_answer_that_arrives_while_others_are_read_is_used() -> None:
    reads, good, bad = AgentReads(grace_s=0.0), Agent(REPORT), Agent(AWAY)
    agents = {"bad": bad, "good": good}
    await reads.read(agents)
    bad.ready.clear()
    good.ready.clear()
    reading = asyncio.create_task(reads.read(agents))
    await anyio.wait_all_tasks_blocked()
    bad.answer = UsageReport(node="b")
    bad.ready.set()
    await anyio.wait_all_tasks_blocked()
    good.ready.set()
    assert await reading == NodeReports((bad.answer, REPORT))


async def test_an_agent_that_answered_between_two_reads_is_waited_for_again() -> None:
    reads, bad = AgentReads(grace_s=0.0), Agent(AWAY)
    agents = {"bad": bad}
    await reads.read(agents)
    bad.ready.clear()
    assert await read(reads, agents) == NodeReports(silent=(AWAY,))
    bad.answer = UsageReport(node="old")
    bad.ready.set()
    await anyio.wait_all_tasks_blocked()
    bad.answer = UsageReport(node="new")
    assert await read(reads, agents) == NodeReports((bad.answer,))


async def test_the_reason_is_the_newest() -> None:
    reads, bad = AgentReads(grace_s=0.0), Agent(AWAY)
    await reads.read({"bad": bad})
    bad.ready.clear()
    await read(reads, {"bad": bad})
    bad.answer = Unavailable("agent b", found="HTTP 500", hint="try again")
    bad.ready.set()
    await anyio.wait_all_tasks_blocked()
    bad.ready.clear()
    assert await read(reads, {"bad": bad}) == NodeReports(silent=(bad.answer,))
    await reads.close()


async def test_an_agent_that_answers_again_within_the_grace_is_read_at_once() -> None:
    reads, bad = AgentReads(grace_s=SOON_S), Agent(AWAY)
    await reads.read({"bad": bad})
    bad.answer = REPORT
    assert await read(reads, {"bad": bad}) == NodeReports((REPORT,))


async def test_agents_that_do_not_answer_take_no_turn_of_the_others() -> None:
    silent = {f"bad-{number}": Agent(AWAY) for number in range(100)}
    reads, agents = AgentReads(grace_s=0.0), {**silent, "good": Agent(REPORT)}
    await reads.read(agents)
    for each in silent.values():
        each.ready.clear()
    for _ in range(3):
        assert (await read(reads, agents)).reports == (REPORT,)
    assert sum(each.asked for each in silent.values()) == 100 + 16
    await reads.close()


@pytest.mark.parametrize("end", ["close", "gone"])
async def test_a_request_in_the_background_ends_with_its_agent_and_with_the_source(end: str) -> None:
    reads, bad = AgentReads(grace_s=0.0), Agent(AWAY)
    await reads.read({"bad": bad, "other": Agent(AWAY)})
    bad.ready.clear()
    others = len(asyncio.all_tasks())
    await read(reads, {"bad": bad})
    assert len(asyncio.all_tasks()) == others + 1
    if end == "close":
        await reads.close()
    else:
        assert await read(reads, {}) == NodeReports()
        await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == others


async def test_a_read_that_is_cancelled_leaves_no_request() -> None:
    reads, agent = AgentReads(), Agent(REPORT)
    agent.ready.clear()
    others = len(asyncio.all_tasks())
    with anyio.move_on_after(0.01):
        await reads.read({"agent": agent})
    assert len(asyncio.all_tasks()) == others


class Stamped:
    """An agent whose report says when it was asked and when it answered, as numbers of reads."""

    def __init__(self) -> None:
        self.behavior = "answers"
        self.read = 0
        self.asked = list[int]()
        self.released = asyncio.Event()

    async def __call__(self) -> UsageReport:
        self.asked.append(self.read)
        if self.behavior == "hangs":
            await self.released.wait()
        if self.behavior == "away":
            raise AWAY
        return UsageReport(node="n", age_s=float(self.read))


BEHAVIORS = st.sampled_from(["answers", "away", "hangs"])


@given(st.lists(st.lists(BEHAVIORS, min_size=3, max_size=3), min_size=1, max_size=12))
def test_law_each_agent_is_in_one_place_with_a_report_of_this_read(steps: list[list[str]]) -> None:
    """And who answered at the last read is asked at this one: nobody is left out because of somebody else."""
    asyncio.run(_law(steps))


async def _law(steps: list[list[str]]) -> None:
    agents = {name: Stamped() for name in "abc"}
    reads, silent = AgentReads(grace_s=0.0), set[str]()
    for number, behaviors in enumerate(steps):
        for (name, agent), behavior in zip(agents.items(), behaviors, strict=True):
            agent.behavior = "away" if behavior == "hangs" and name not in silent else behavior
            agent.read = number
            if agent.behavior != "hangs":
                agent.released.set()  # whoever hung answers before the read, or during it
                agent.released = asyncio.Event()
        if number % 2:
            await anyio.wait_all_tasks_blocked()
        found = await read(reads, agents)  # type: ignore[arg-type]
        assert len(found.reports) + len(found.silent) == len(agents)
        if "hangs" not in behaviors:
            assert {each.age_s for each in found.reports} <= {float(number)}
        away = {name for name, each in zip(agents, behaviors, strict=True) if each == "away"}
        assert len(found.silent) >= len(away)
        for name, agent in agents.items():
            if name not in silent:
                assert agent.asked[-1] == number
        silent = {str(each).partition(":")[0] for each in found.silent}
    await reads.close()
