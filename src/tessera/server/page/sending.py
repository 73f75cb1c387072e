"""Answers that are sent in pieces: how many at once, to each viewer and in all, and no longer than they are read."""

import asyncio
from collections.abc import AsyncGenerator, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tessera.log import Logger
from tessera.server.listening import ABORT
from tessera.server.settings import PageLimits

__all__ = ["AnswerSlot", "AnswerSlots", "SentInPieces", "SlotsTaken", "pieces_of"]

_PIECE = 1 << 16
"""Bytes of an answer that are sent at once."""


class AnswerSlot:
    """Room for one answer while it is sent.

    Args:
        siblings: all of the viewer, this one among them.
        began_s: when it was taken.

    """

    def __init__(self, siblings: "list[AnswerSlot]", began_s: float) -> None:
        self._siblings = siblings
        self.began_s = began_s
        self.replaced = asyncio.Event()
        """Set when another answer has taken it."""

    def free(self) -> None:
        """Free it for others; a second time does nothing."""
        if self in self._siblings:
            self._siblings.remove(self)


class SlotsTaken(Exception):
    """No slot is free: the viewer has taken all of theirs (`per_viewer`), or all viewers have taken all."""

    def __init__(self, *, per_viewer: bool) -> None:
        super().__init__()
        self.per_viewer = per_viewer


class AnswerSlots:
    """The answers that may be sent at the same time, to each viewer and in all.

    Args:
        limits: how many.
        replace_s: a viewer's oldest that is older than this gives way to another.
        clock_s: a monotonic clock.

    """

    def __init__(self, limits: PageLimits, replace_s: float, clock_s: Callable[[], float]) -> None:
        self._limits = limits
        self._replace_s = replace_s
        self._clock_s = clock_s
        self._by_viewer: dict[str, list[AnswerSlot]] = {}
        """By the viewer's name, oldest first."""

    def take(self, name: str, *, signed_in: bool) -> AnswerSlot:
        """Return a slot for an answer to a viewer.

        Raises:
            SlotsTaken: there is none.

        """
        now_s = self._clock_s()
        self._by_viewer = {viewer: each for viewer, each in self._by_viewer.items() if each}
        slots = self._by_viewer.setdefault(name, [])
        most = self._limits.streams_per_viewer if signed_in else self._limits.streams
        if len(slots) >= most and now_s - slots[0].began_s > self._replace_s:
            slots.pop(0).replaced.set()
        if signed_in and len(slots) >= most:
            raise SlotsTaken(per_viewer=True)
        if sum(map(len, self._by_viewer.values())) >= self._limits.streams:
            raise SlotsTaken(per_viewer=False)
        slot = AnswerSlot(slots, now_s)
        slots.append(slot)
        return slot


class SentInPieces(Response):
    """A response in pieces, which ends where its reader stops reading: nothing of it is kept then.

    Args:
        pieces: a generator.
        media_type: what they are.
        send_s: longest time until a piece is taken.
        slot: freed at the end.
        log: for defects of the generator.

    """

    def __init__(
        self, pieces: AsyncGenerator[bytes], media_type: str, send_s: float, slot: AnswerSlot, log: Logger
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-store"}, media_type=media_type)
        self._pieces = pieces
        self._send_s = send_s
        self._slot = slot
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the pieces until they end, or the viewer disconnects, stops reading, or needs the slot for another."""
        headers = [each for each in self.raw_headers if each[0] != b"content-length"]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            complete = await self._sent(scope["path"], receive, send)
        finally:
            self._slot.free()
        if not complete:
            scope[ABORT]()
            await asyncio.sleep(0)  # the server learns that the connection has ended

    async def _sent(self, path: str, receive: Receive, send: Send) -> bool:
        """Return whether the response was sent to its end."""
        sending = asyncio.ensure_future(self._send(send))
        others = asyncio.ensure_future(_until_gone(receive)), asyncio.ensure_future(self._slot.replaced.wait())
        try:
            await asyncio.wait((sending, *others), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, *others):
                task.cancel()
            result, *_ = await asyncio.gather(sending, *others, return_exceptions=True)
        if isinstance(result, Exception) and not isinstance(result, TimeoutError | OSError):
            self._log.error("defect", path=path, exc_info=result)
        if not self._slot.replaced.is_set():
            return result is None
        try:
            await self._piece(send, b"", more=False)
        except TimeoutError:
            return False
        return True

    async def _send(self, send: Send) -> None:
        try:
            async for each in self._pieces:
                await self._piece(send, each, more=True)
            await self._piece(send, b"", more=False)
        finally:
            await self._pieces.aclose()

    async def _piece(self, send: Send, content: bytes, *, more: bool) -> None:
        async with asyncio.timeout(self._send_s):
            await send({"type": "http.response.body", "body": content, "more_body": more})


async def pieces_of(content: bytes) -> AsyncGenerator[bytes]:
    """Yield a content in pieces."""
    for begin in range(0, len(content), _PIECE):
        yield content[begin : begin + _PIECE]


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
