"""Reads of several agents, in which one that does not answer is waited for once."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from tessera.clients.nodeusage.protocol import NodeReports
from tessera.core.usage.usagereport import UsageReport
from tessera.errors import Unavailable

__all__ = ["AgentReads", "Ask"]

_AT_ONCE = 32
_SILENT_AT_ONCE = 16
"""Less, and apart: agents that do not answer leave the others their turns, and the API server's connections."""
_GRACE_S = 0.5

Ask: TypeAlias = Callable[[], Awaitable[UsageReport]]
"""Returns an agent's report; raises `Unavailable` if the agent does not answer."""
_Answer: TypeAlias = UsageReport | Unavailable


class AgentReads:
    """Reads of the same agents, one after the other.

    An agent that did not answer at the last read is asked in the background and does not delay the others: a read waits
    for it no longer than for them, or for the grace. Only an answer that arrives during a read is used.

    Args:
        grace_s: how long a read waits for agents that did not answer at the last one.

    """

    def __init__(self, grace_s: float = _GRACE_S) -> None:
        self._grace_s = grace_s
        self._silent: dict[str, Unavailable] = {}
        """Why an agent did not answer, by its name."""
        self._asked: dict[str, asyncio.Task[_Answer]] = {}
        """Of those, the requests in the background."""
        self._turns, self._silent_turns = asyncio.Semaphore(_AT_ONCE), asyncio.Semaphore(_SILENT_AT_ONCE)

    async def read(self, agents: Mapping[str, Ask]) -> NodeReports:
        """Return the report of each agent.

        Args:
            agents: how each is asked, by its name.

        """
        self._forget_others(agents)
        self._ask_silent(agents)
        others = {name: _answer(ask, self._turns) for name, ask in agents.items() if name not in self._silent}
        _, *found = await asyncio.gather(self._grace(), *others.values(), return_exceptions=True)
        answers: dict[str, _Answer] = {**self._silent, **self._answered()}
        for name, answer in zip(others, found, strict=True):
            if isinstance(answer, UsageReport | Unavailable):
                answers[name] = answer
            elif answer is not None:
                raise answer
        self._silent = {name: each for name in agents if isinstance(each := answers[name], Unavailable)}
        reports = (each for each in answers.values() if isinstance(each, UsageReport))
        return NodeReports(tuple(sorted(reports, key=lambda each: each.node)), tuple(self._silent.values()))

    def _forget_others(self, agents: Mapping[str, Ask]) -> None:
        for name in self._silent.keys() - agents.keys():
            del self._silent[name]
            if name in self._asked:
                self._asked.pop(name).cancel()

    def _ask_silent(self, agents: Mapping[str, Ask]) -> None:
        """Ask in the background who is not asked yet; who answered between two reads is asked with the others."""
        for name, answer in self._answered().items():
            if isinstance(answer, Unavailable):
                self._silent[name] = answer
            else:  # the report is old by now
                del self._silent[name]
        for name in self._silent.keys() - self._asked.keys():
            self._asked[name] = asyncio.create_task(_answer(agents[name], self._silent_turns))

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


async def _answer(ask: Ask, turns: asyncio.Semaphore) -> _Answer:
    try:
        async with turns:
            return await ask()
    except Unavailable as error:
        return error
