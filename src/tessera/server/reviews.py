"""Token reviews and access reviews: sent to the API server, a few at once, and cached for a while.

Only a token's digest is cached: no dump of the memory reveals a token through the
cache.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

import msgspec

from tessera.api.kubernetes.reviews import Attributes, ReviewedUser, access_review, refusal, reviewed_user, token_review
from tessera.clients.kube import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS, Kube

__all__ = ["Reviews"]

_REMEMBERED: Final = 4096
"""Cached answers; clients may send any number of tokens."""
_AT_ONCE: Final = 8
"""Concurrent reviews of tokens, and of access: clients with invalid tokens do not delay known users."""
_LONGEST_TOKEN: Final = 16 << 10
Answer = TypeVar("Answer")


class Reviews:
    """Authentication and authorization by the API server.

    Args:
        kube: the Kubernetes API.
        kept_s: how long an answer is cached: the delay before a revoked token or permission takes effect.
        clock_s: a monotonic clock.

    """

    def __init__(self, kube: Kube, kept_s: float, clock_s: Callable[[], float]) -> None:
        self._kube = kube
        self._users = _Remembered[ReviewedUser | None](kept_s, clock_s)
        self._refusals = _Remembered[str | None](kept_s, clock_s)

    async def user(self, token: str) -> ReviewedUser | None:
        """Return the user of a token; None for an invalid token.

        Raises:
            TesseraError: the API server does not answer.

        """

        async def ask() -> ReviewedUser | None:
            return reviewed_user(await self._kube.create(TOKEN_REVIEWS, token_review(token)))

        if not token or len(token) > _LONGEST_TOKEN:
            return None
        return await self._users.get(token.encode(), ask)

    async def refusal(self, user: ReviewedUser, attributes: Attributes) -> str | None:
        """Return why a user may not do something; None where they may.

        Raises:
            TesseraError: the API server does not answer.

        """

        async def ask() -> str | None:
            return refusal(await self._kube.create(SUBJECT_ACCESS_REVIEWS, access_review(user, attributes)))

        return await self._refusals.get(msgspec.json.encode((user, attributes), order="deterministic"), ask)


class _Remembered(Generic[Answer]):
    """A cache of answers of one kind."""

    def __init__(self, kept_s: float, clock_s: Callable[[], float]) -> None:
        self._kept_s = kept_s
        self._clock_s = clock_s
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._known: dict[bytes, tuple[float, Answer]] = {}

    async def get(self, question: bytes, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the cached answer, or a new one."""
        key = hashlib.sha256(question).digest()
        if self._counts(key):
            return self._known[key][1]
        async with self._turns:
            if self._counts(key):  # another request fetched it meanwhile
                return self._known[key][1]
            until_s, found = self._clock_s() + self._kept_s, await ask()
            self._known.pop(key, None)
            self._known[key] = until_s, found
            if len(self._known) > _REMEMBERED:
                del self._known[next(iter(self._known))]
            return found

    def _counts(self, key: bytes) -> bool:
        return key in self._known and self._known[key][0] > self._clock_s()
