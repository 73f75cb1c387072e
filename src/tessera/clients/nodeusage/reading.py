"""Reads of several agents, in which one that does not answer, or late, is waited for once."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeAlias

from tessera.clients.nodeusage.protocol import NodeReports
from tessera.core.usage.usagereport import UsageReport
from tessera.errors import Unavailable

__all__ = ["AgentReads", "Ask"]

_AT_ONCE = 32
_SILENT_AT_ONCE = 16
"""Less, and apart: agents that do not answer leave the others their turns, and the API server's connections."""
_GRACE_S = 0.5
_LATE_S = 2.0

Ask: TypeAlias = Callable[[], Awaitable[UsageReport]]
"""Returns an agent's report; raises `Unavailable` if the agent does not answer."""
_Answer: TypeAlias = UsageReport | Unavailable


class AgentReads:
    """Reads of the same agents, one after the other.

    The first read waits for every agent. A later one waits for an agent that answered at the last read twice as long as
    half of them take, and `late_s`: one that is later is silent. An agent that did not answer at the last read is asked
    in the background and does not delay the others: a read waits for it no longer than for them, or for the grace. Only
    an answer that arrives during a read is used. A defect in reading an agent's report is its silence, and is logged.

    Args:
        grace_s: how long a read waits for agents that did not answer at the last one.
        late_s: how much later than the others an agent may answer.

    """

    def __init__(self, grace_s: float = _GRACE_S, late_s: float = _LATE_S) -> None:
        self._grace_s = grace_s
        self._late_s = late_s
        self._first = True
        self._silent: dict[str, Unavailable] = {}
        """Why an agent did not answer, by its name."""
        self._asked: dict[str, asyncio.Task[_Answer]] = {}
        """Of those, the requests in the background."""
        self._turns, self._silent_turns = asyncio.Semaphore(_AT_ONCE), asyncio.Semaphore(_SILENT_AT_ONCE)

    async def read(self, agents: Mapping[str, Ask]) -> NodeReports:
        """Return the report of each agent.

        Args:
            agents: how each is asked, by what it is called in errors.

        """
        self._forget_others(agents)
        self._ask_silent(agents)
        others = {name: ask for name, ask in agents.items() if name not in self._silent}
        _, found = await asyncio.gather(self._grace(), self._in_time(others))
        answers: dict[str, _Answer] = {**self._silent, **self._answered(), **found}
        self._first = False
        self._silent = {name: each for name in agents if isinstance(each := answers[name], Unavailable)}
        reports = (each for each in answers.values() if isinstance(each, UsageReport))
        return NodeReports(tuple(sorted(reports, key=lambda each: each.node)), tuple(self._silent.values()))

    async def _in_time(self, agents: Mapping[str, Ask]) -> dict[str, _Answer]:
        """Ask each, and return the answers and who is late; the requests of these end, and leave others their turns."""
        began_s = asyncio.get_running_loop().time()
        asked = {name: asyncio.create_task(_answer(name, ask, self._turns)) for name, ask in agents.items()}
        waiting: set[asyncio.Task[_Answer]] = {*asked.values()}
        try:
            until_s = None
            while waiting:
                now_s = asyncio.get_running_loop().time()
                if until_s is None and not self._first and _half(asked.values()):
                    until_s = now_s + (now_s - began_s) + self._late_s
                left_s = None if until_s is None else until_s - now_s
                done, waiting = await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
        finally:
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        return {name: _late(name) if task in waiting else task.result() for name, task in asked.items()}

    def _forget_others(self, agents: Mapping[str, Ask]) -> None:
        for name in self._silent.keys() - agents.keys():
            del self._silent[name]
            if name in self._asked:
                self._asked.pop(name).cancel()

    def _ask_silent(self, agents: Mapping[str, Ask]) -> None:
        """Ask the silent agents in the background; those that answered between two reads are asked with the others."""
        for name, answer in self._answered().items():
            if isinstance(answer, Unavailable):
                self._silent[name] = answer
            else:  # the report is old by now
                del self._silent[name]
        for name in self._silent.keys() - self._asked.keys():
            self._asked[name] = asyncio.create_task(_answer(name, agents[name], self._silent_turns))

    def _answered(self) -> dict[str, _Answer]:
        """Take what has arrived in the background."""
        done = {name: task for name, task in self._asked.items() if task.done()}
        for name in done:
            del self._asked[name]
        return {name: task.result() for name, task in done.items()}

    async def _grace(self) -> None:
        if self._asked:
            await asyncio.wait(self._asked.values(), timeout=self._grace_s)

    async def close(self) -> None:
        """End all requests."""
        asked = [*self._asked.values()]
        self._asked, self._silent = {}, {}
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


def _half(asked: Iterable[asyncio.Task[_Answer]]) -> bool:
    """Return whether half of those that may still report have reported."""
    answers = [each.result() if each.done() else None for each in asked]
    reports = sum(isinstance(each, UsageReport) for each in answers)
    return 2 * reports >= sum(not isinstance(each, Unavailable) for each in answers)


def _late(name: str) -> Unavailable:
    return Unavailable(name, found="no answer yet, long after others answered", hint="it is queried again")


async def _answer(name: str, ask: Ask, turns: asyncio.Semaphore) -> _Answer:
    try:
        async with turns:
            return await ask()
    except Unavailable as error:
        return error
    except Exception as error:  # noqa: BLE001 a defect about one agent must not hide the others
        from tessera.log import logger  # noqa: PLC0415 - slow to import, and commands that follow a Job read reports

        logger().error("agent_not_read", reason=f"{name}: {str(error) or type(error).__name__}", exc_info=error)
        return Unavailable(name, found=f"a defect in reading its report: {type(error).__name__}", hint="report it")
