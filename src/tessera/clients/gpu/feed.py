"""Events from one source to every reader."""

import asyncio
import weakref
from collections.abc import AsyncIterator

from tessera.core.gpu.inventory import GpuEvent

__all__ = ["EventFeed"]

_UNREAD = 1024
"""Events kept for a slow reader; the oldest are dropped. Health needs only the last."""


class EventFeed:
    """Sends each event to all present streams."""

    def __init__(self) -> None:
        self._streams: weakref.WeakSet[_Stream] = weakref.WeakSet()
        self._closed = False

    def stream(self) -> AsyncIterator[GpuEvent]:
        """Yield the events published from now on, until the feed is closed."""
        stream = _Stream()
        self._streams.add(stream)
        if self._closed:
            stream.put(None)
        return stream

    def publish(self, event: GpuEvent) -> None:
        """Hand over an event."""
        for stream in self._streams:
            stream.put(event)

    def close(self) -> None:
        """End all streams, each after its pending events."""
        self._closed = True
        for stream in self._streams:
            stream.put(None)


class _Stream:
    """One reader's events; the feed forgets it when the reader does."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[GpuEvent | None] = asyncio.Queue()

    def put(self, event: GpuEvent | None) -> None:
        if self._waiting.qsize() >= _UNREAD:
            self._waiting.get_nowait()
        self._waiting.put_nowait(event)

    def __aiter__(self) -> "_Stream":
        return self

    async def __anext__(self) -> GpuEvent:
        event = await self._waiting.get()
        if event is None:
            self._waiting.put_nowait(None)
            raise StopAsyncIteration
        return event
