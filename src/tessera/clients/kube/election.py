"""Leader election by a Lease: applies `core/cluster/protocols/leadership`, and runs the leader's work."""

import asyncio
import datetime as dt
import random
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from tessera.api.kubernetes.leases import read_lease, write_lease
from tessera.clients.kube.protocol import LEASES, Kube, Object
from tessera.core.cluster.protocols.leadership import (
    Candidate,
    Lease,
    Terms,
    acquired,
    claim,
    leads,
    observed,
    pause_s,
    released,
)
from tessera.errors import Conflict, TesseraError, Unavailable

__all__ = ["Election", "LeaseLock"]

_ATTEMPTS = 2
"""Timeout of an attempt, as a part of the time for renewals, so that a hung one leaves time for another."""
_RELEASE_S = 5.0


class LeaseLock(msgspec.Struct, frozen=True, kw_only=True):
    """The Lease of an election, and its terms."""

    lease: str
    """Name of the Lease object."""
    namespace: str
    terms: Terms = Terms()


class Election:
    """A candidate for leadership.

    Args:
        kube: of the Lease.
        lock: the Lease and its terms.
        name: shown to people as the holder, such as a pod's name; a unique suffix is added.
        on_error: called with each error of an attempt; the next attempt follows.
        on_answer: called after each attempt that the API server answered.

    """

    def __init__(
        self,
        kube: Kube,
        lock: LeaseLock,
        name: str,
        *,
        on_error: Callable[[Exception], None] = lambda _: None,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self._kube = kube
        self._lock = lock
        self._candidate = Candidate(identity=f"{name}_{uuid.uuid4()}", terms=lock.terms)
        self._on_error = on_error
        self._on_answer = on_answer
        self._random = random.SystemRandom()
        self._stamp = dt.datetime.fromtimestamp(0, dt.UTC)
        self.problem = "the Lease has not been read yet"
        """Why this process can neither lead nor stand by; empty when it can."""

    @property
    def identity(self) -> str:
        """This process's identity in the Lease."""
        return self._candidate.identity

    @property
    def leading(self) -> bool:
        """Whether this process may trust its leadership now; check it right before the leader's writes."""
        return leads(self._candidate, _now_s())

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work` whenever this process leads, and return when it returns by itself.

        It is canceled when leadership ends, `renew_s` after the last answered renewal; others may lead when the
        rest of the lease has passed, which is its time to end. It is restarted when this process leads again. When
        `run` is canceled, or `work` returns or raises, the lease is released after `work` has ended.
        """
        try:
            while True:
                while not self.leading:
                    await self._attempt()
                    if not self.leading:
                        await self._pause()
                if await self._led(work):
                    return
        finally:
            await self._release()

    async def _led(self, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Run `work` until leadership ends; return whether it returned by itself."""
        working = asyncio.create_task(work())
        renewing = asyncio.create_task(self._renew())
        try:
            await asyncio.wait({working, renewing}, return_when=asyncio.FIRST_COMPLETED)
            by_itself = working.done()
        finally:
            working.cancel()
            await self._ended(working)
            renewing.cancel()
            await asyncio.wait({renewing})
            for each in (working, renewing):
                if not each.cancelled():
                    each.result()
        return by_itself

    async def _ended(self, working: asyncio.Task[None]) -> None:
        """Wait until the work has ended; log if it takes so long that another may lead already."""
        terms = self._lock.terms
        _, late = await asyncio.wait({working}, timeout=terms.lease_s - terms.renew_s)
        if late:
            subject = f"leadership of {self._lock.lease}"
            self._on_error(
                Unavailable(
                    subject,
                    found="its work continues after it was canceled",
                    hint="the process ends before another may lead",
                )
            )
            await asyncio.wait({working})

    async def _renew(self) -> None:
        """Return when this process no longer leads."""
        while self.leading:
            await self._pause()
            if self.leading:
                await self._attempt()

    async def _pause(self) -> None:
        now_s = _now_s()
        wait_s = pause_s(self._candidate, now_s, self._random.random())
        if leads(self._candidate, now_s):
            wait_s = min(wait_s, self._until_s() - now_s)
        await asyncio.sleep(wait_s)

    def _until_s(self) -> float:
        return (self._candidate.sent_s or 0.0) + self._lock.terms.renew_s

    async def _attempt(self) -> None:
        """Read the lease and, if possible, write it; a leader replaces its last write, unread."""
        end_s = _now_s() + self._lock.terms.renew_s / _ATTEMPTS
        try:
            async with asyncio.timeout_at(min(end_s, self._until_s()) if self.leading else end_s):
                if not self.leading:
                    await self._observe()
                await self._write()
            self.problem = ""
            self._on_answer()
        except Conflict:
            await self._keep_observing()
        except TimeoutError as error:
            subject = f"Lease {self._lock.namespace}/{self._lock.lease}"
            self._on_failure(
                Unavailable(
                    subject,
                    found=str(error) or "no answer",
                    hint="it is retried; without an answer in time another process becomes leader",
                )
            )
        except TesseraError as error:
            self._on_failure(error)

    def _on_failure(self, error: TesseraError) -> None:
        self.problem = str(error)
        self._on_error(error)

    async def _keep_observing(self) -> None:
        try:
            async with asyncio.timeout(self._lock.terms.renew_s / _ATTEMPTS):
                await self._observe()
        except (TesseraError, TimeoutError) as error:
            self._on_error(error)

    async def _observe(self) -> None:
        found = await self._kube.get(LEASES, self._lock.lease, self._lock.namespace)
        self._candidate = observed(self._candidate, read_lease(found), _now_s())

    async def _write(self) -> None:
        sent_s = _now_s()
        lease = claim(self._candidate, sent_s)
        if lease is not None:
            stored = await self._store(lease, acquired=not leads(self._candidate, sent_s))
            self._candidate = acquired(self._candidate, read_lease(stored), sent_s, _now_s())

    async def _store(self, lease: Lease, *, acquired: bool) -> Object:
        self._stamp = max(dt.datetime.now(dt.UTC), self._stamp + dt.timedelta(microseconds=1))
        body, where = write_lease(lease, self._stamp, acquired=acquired), self._lock
        if lease.version:
            return await self._kube.patch(LEASES, where.lease, body, namespace=where.namespace)
        metadata = {"name": where.lease, "namespace": where.namespace}
        return await self._kube.create(LEASES, body | {"metadata": metadata})

    async def _release(self) -> None:
        """Release the lease; if that fails the others wait for its end."""
        self._candidate, lease = released(self._candidate)
        if lease is None:
            return
        try:
            async with asyncio.timeout(_RELEASE_S):
                await self._store(lease, acquired=False)
        except (TesseraError, TimeoutError) as error:
            self._on_error(error)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
