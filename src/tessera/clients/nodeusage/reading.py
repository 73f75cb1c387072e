"""Reads of several agents, in which one that does not answer, or late, is waited for once."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeAlias

import msgspec

from tessera.clients.nodeusage.protocol import NodeReports
from tessera.core.usage.usagereport import UsageReport
from tessera.errors import Unavailable

__all__ = ["AgentReads", "Ask"]

_AT_ONCE = 32
_SILENT_AT_ONCE = 16
"""Less, and apart: agents that do not answer leave the others their turns, and the API server's connections."""
_GRACE_S = 0.5
_LATE_S = 2.0
_OLD_S = 120.0
"""Age from which a report is not used."""

Ask: TypeAlias = Callable[[], Awaitable[UsageReport]]
"""Returns an agent's report; raises `Unavailable` if the agent does not answer."""


class AgentReads:
    """Reads of the same agents, one after the other.

    The first read waits for every agent. A later one waits for prompt agents alone: twice as long as the faster half of
    them takes, plus `late_s`. An agent is prompt if its last answer was a report, and took at most `late_s`. Others are
    waited for no longer than these, or for the grace. A request that takes longer goes on in the background; until it
    ends, its agent is shown as of its last report, whose `age_s` grows. A defect in reading an agent's report is its
    silence, and is logged.

    Args:
        grace_s: how long a read waits for agents that are not prompt.
        late_s: how much later than the others an agent may answer.

    """

    def __init__(self, grace_s: float = _GRACE_S, late_s: float = _LATE_S) -> None:
        self._grace_s = grace_s
        self._late_s = late_s
        self._first = True
        self._agents: dict[str, _Agent] = {}
        self._silent_turns = asyncio.Semaphore(_SILENT_AT_ONCE)

    async def read(self, agents: Mapping[str, Ask]) -> NodeReports:
        """Return the report of each agent.

        Args:
            agents: how each is asked, by what it is called in errors.

        """
        for name in self._agents.keys() - agents.keys():
            self._agents.pop(name).cancel()
        now = asyncio.get_running_loop().time
        began_s = now()
        turns = asyncio.Semaphore(_AT_ONCE)  # late requests of earlier reads take none of them
        prompt = set[asyncio.Task[bool]]()
        for name, ask in agents.items():
            agent = self._agents.setdefault(name, _Agent(name))
            if agent.asked is None or agent.asked.done():
                waits = agent.took_s <= self._late_s
                agent.asked = asyncio.create_task(agent.ask(ask, turns if waits else self._silent_turns))
                if waits:
                    prompt.add(agent.asked)
        try:
            await asyncio.gather(self._grace(), self._in_time(prompt))
        except asyncio.CancelledError:
            await self.close()
            raise
        self._first = False
        answers = [self._agents[name].answer(began_s, now()) for name in agents]
        reports = (each for each in answers if isinstance(each, UsageReport))
        silent = tuple(each for each in answers if isinstance(each, Unavailable))
        return NodeReports(tuple(sorted(reports, key=lambda each: each.node)), silent)

    async def _in_time(self, asked: set[asyncio.Task[bool]]) -> None:
        """Wait for those, but not much longer than half of them take."""
        began_s = asyncio.get_running_loop().time()
        waiting, until_s = asked, None
        while waiting:
            now_s = asyncio.get_running_loop().time()
            if until_s is None and not self._first and _half(asked):
                until_s = now_s + (now_s - began_s) + self._late_s
            left_s = None if until_s is None else until_s - now_s
            done, waiting = await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break

    async def _grace(self) -> None:
        waiting = [each.asked for each in self._agents.values() if each.asked and not each.asked.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=self._grace_s)

    async def close(self) -> None:
        """End all requests."""
        asked = [each.asked for each in self._agents.values() if each.asked]
        self._agents = {}
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


class _Agent:
    """What an agent answered last."""

    def __init__(self, name: str) -> None:
        self.asked: asyncio.Task[bool] | None = None
        self.took_s = 0.0
        """How long its last answer took from its turn; infinite if it was no report."""
        self._name = name
        self._answer: UsageReport | Unavailable | None = None
        self._answered_s = 0.0

    async def ask(self, ask: Ask, turns: asyncio.Semaphore) -> bool:
        """Take its answer; return whether it is a report."""
        now = asyncio.get_running_loop().time
        async with turns:
            began_s = now()
            self._answer = await _answer(self._name, ask)
        self._answered_s = now()
        reported = isinstance(self._answer, UsageReport)
        self.took_s = now() - began_s if reported else math.inf
        return reported

    def answer(self, began_s: float, now_s: float) -> UsageReport | Unavailable:
        """Return its last answer in a read that began then; a report of before has grown older."""
        found, since_s = self._answer, now_s - self._answered_s
        if not isinstance(found, UsageReport) or self._answered_s >= began_s:
            return found or self._late()
        if since_s > _OLD_S:
            return self._late()
        age_s = None if found.age_s is None else found.age_s + since_s
        return msgspec.structs.replace(found, age_s=age_s, answered_s=since_s)

    def _late(self) -> Unavailable:
        return Unavailable(self._name, found="no answer yet, long after others answered", hint="it is queried again")

    def cancel(self) -> None:
        """End its request."""
        if self.asked:
            self.asked.cancel()


def _half(asked: Iterable[asyncio.Task[bool]]) -> bool:
    """Return whether half of those that may still report have reported."""
    reports = [each.result() for each in asked if each.done()]
    return 2 * sum(reports) >= sum(not each.done() or each.result() for each in asked)


async def _answer(name: str, ask: Ask) -> UsageReport | Unavailable:
    try:
        return await ask()
    except Unavailable as error:
        return error
    except Exception as error:  # noqa: BLE001 a defect about one agent must not hide the others
        from tessera.log import logger  # noqa: PLC0415 - slow to import, and commands that follow a Job read reports

        logger().error("agent_not_read", reason=f"{name}: {str(error) or type(error).__name__}", exc_info=error)
        return Unavailable(name, found=f"a defect in reading its report: {type(error).__name__}", hint="report it")
