"""Whose a token is, and what somebody may do: asked of the API server, a few at once, and remembered for a while.

A token is remembered by its digest alone: what a crash, a debugger or a dump of the memory shows of answers is no key
to the cluster.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

import msgspec

from tessera.api.kubernetes.reviews import Attributes, User, access_review, refusal, reviewed_user, token_review
from tessera.clients.kube import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, Kube

__all__ = ["Reviews"]

_REMEMBERED: Final = 4096
"""Answers that are remembered; strangers may ask with as many tokens as they like."""
_AT_ONCE: Final = 8
"""Tokens asked about at once, and as many rights: strangers with tokens of nobody do not delay who is known."""
_LONGEST_TOKEN: Final = 16 << 10
Answer = TypeVar("Answer")


class Reviews:
    """The API server's word on users.

    Args:
        kube: the Kubernetes API.
        kept_s: for how long an answer counts: so late is a revoked token or right noticed.
        clock_s: a clock that does not go back.

    """

    def __init__(self, kube: Kube, kept_s: float, clock_s: Callable[[], float]) -> None:
        self._kube = kube
        self._users = _Remembered[User | None](kept_s, clock_s)
        self._refusals = _Remembered[str | None](kept_s, clock_s)

    async def user(self, token: str) -> User | None:
        """Return whose token it is; None where it is nobody's.

        Raises:
            TesseraError: the API server does not say.

        """

        async def ask() -> User | None:
            return reviewed_user(await self._kube.create(TOKEN_REVIEWS, token_review(token)))

        if not token or len(token) > _LONGEST_TOKEN:
            return None
        return await self._users.get(token.encode(), ask)

    async def refusal(self, user: User, attributes: Attributes) -> str | None:
        """Return why somebody may not do something; None where they may.

        Raises:
            TesseraError: the API server does not say.

        """

        async def ask() -> str | None:
            return refusal(await self._kube.create(SUBJECT_ACCESS_REVIEWS, access_review(user, attributes)))

        return await self._refusals.get(msgspec.json.encode((user, attributes), order="deterministic"), ask)


class _Remembered(Generic[Answer]):
    """The latest answers to questions of one kind, each for a while."""

    def __init__(self, kept_s: float, clock_s: Callable[[], float]) -> None:
        self._kept_s = kept_s
        self._clock_s = clock_s
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._known: dict[bytes, tuple[float, Answer]] = {}

    async def get(self, question: bytes, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the answer that is known, or a new one."""
        key = hashlib.sha256(question).digest()
        if self._counts(key):
            return self._known[key][1]
        async with self._turns:
            if self._counts(key):  # asked by somebody else meanwhile
                return self._known[key][1]
            until_s, found = self._clock_s() + self._kept_s, await ask()
            self._known.pop(key, None)
            self._known[key] = until_s, found
            if len(self._known) > _REMEMBERED:
                del self._known[next(iter(self._known))]
            return found

    def _counts(self, key: bytes) -> bool:
        return key in self._known and self._known[key][0] > self._clock_s()
