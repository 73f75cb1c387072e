"""Evicts pods in the way through the Eviction API, with exponential backoff while it is refused."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

from tessera.errors import TesseraError
from tessera.log import logger

__all__ = ["Evict", "Evictions"]

Evict = Callable[[str, str], Awaitable[None]]
"""Evicts a pod, by name and namespace; raises Unavailable while a PodDisruptionBudget forbids it."""

_PAUSE_S, _PAUSE_MOST_S = 5.0, 60.0
"""Backoff between two requests to evict one pod; doubles while a PodDisruptionBudget forbids it."""


class Evictions:
    """The requested evictions, and their answers.

    Args:
        evict: requests one eviction; None to evict nothing.
        deadline_s: for an answer.

    """

    def __init__(self, evict: Evict | None, deadline_s: float) -> None:
        self._evict = evict
        self._deadline_s = deadline_s
        self._due: dict[str, tuple[float, float]] = {}
        self._refused: dict[str, str] = {}
        self._log = logger()

    async def request(self, pods: Iterable[str]) -> None:
        """Request the eviction of each of these pods (`namespace/name`) that is due; "" stands for none."""
        now, pods = asyncio.get_running_loop().time, _named(pods)
        self._due = {pod: due for pod, due in self._due.items() if pod in pods}  # another pod may come by the same name
        due = [pod for pod in pods if now() >= self._due.get(pod, (0.0, 0.0))[0]] if self._evict else []
        for pod in due:
            _, pause_s = self._due.get(pod, (0.0, _PAUSE_S))
            self._due[pod] = (now() + pause_s, min(2 * pause_s, _PAUSE_MOST_S))
        # All at once: one answer that is late, as of an admission webhook, delays no other.
        await asyncio.gather(*map(self._request, due))

    async def _request(self, pod: str) -> None:
        assert self._evict is not None
        namespace, _, name = pod.partition("/")
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._evict(name, namespace)
        except (TesseraError, TimeoutError) as error:
            self._refused[pod] = error.found if isinstance(error, TesseraError) else "no answer in time"
            self._log.info("eviction_waits", pod=pod, reason=str(error) or "no answer in time")
        else:
            self._refused.pop(pod, None)
            self._log.info("pod_evicted", pod=pod)

    def refusals(self, pods: Iterable[str]) -> Mapping[str, str]:
        """Return why pods among these were not evicted at the last request, a sentence for each."""
        return {pod: f"pod {pod} is not evicted: {self._refused[pod]}" for pod in _named(pods) if pod in self._refused}

    def begin_anew(self) -> None:
        """Make each pod due at once."""
        self._due.clear()


def _named(pods: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(pod for pod in pods if pod))
