"""Views of the fleet over time: one channel for all viewers with the same permissions, with its latest changes."""

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from tessera.api.tessera.page.fleetjson import write_change, write_event, write_fleet
from tessera.core.explain.fleetscope import Scope, in_scope
from tessera.core.explain.fleetview import FleetView, changes
from tessera.log import Logger
from tessera.measures import Measures
from tessera.wakeup import WakeUp

__all__ = ["Channel", "FleetFeed"]

_KEPT = 64
"""Changes that a viewer may have missed; a viewer who missed more gets the whole fleet again."""
_KEPT_BYTES = 1 << 20
"""Of all of them together: a change has all pending pods, where one of them changed, and the whole fleet is one piece
for all viewers. The last change is kept while there are viewers, however large it is."""
_CHANNELS = 64
"""Channels that are kept; the least recently used is dropped first."""
_DIGITS = 16
"""Above any revision; an event id comes from the client."""
_LEAST_S = 1.0
_REST = 5
"""Pause after a refresh, as a multiple of its duration: under constant change other requests still come first."""
_LONGEST_S = 30.0
"""Longest pause."""


class Channel:
    """The view of one scope, and the changes that led to it.

    Args:
        scope: the namespaces that its viewers may see.
        name: prefix of its event ids, so that no id of another channel matches.

    """

    def __init__(self, scope: Scope, name: str) -> None:
        self.scope = scope
        self.viewers = 0
        self.view: FleetView | None = None
        self._name = name
        self._revision = 0
        self._events: deque[tuple[int, bytes]] = deque(maxlen=_KEPT)
        self._fleet = b""
        """The whole view as JSON, once it was requested."""
        self._whole = b""
        """The event with it, once one was requested."""
        self._rests = False
        """Whether the view is of when the last viewer left."""
        self._refreshed = asyncio.Event()
        self._writing = asyncio.Lock()

    def take(self, view: FleetView, change: bytes) -> None:
        """Take the current view and the change that leads to it; empty for no change."""
        if change or self.view is None:
            self._revision += 1
            self._events.append((self._revision, write_event("change", change, self._id)))
            self._trim(1)
            self._fleet = self._whole = b""
        self.view = view
        self._rests = False
        self.wake()

    def _trim(self, least: int) -> None:
        """Drop the oldest changes until the others have few bytes, or until there are so many left."""
        while len(self._events) > least and sum(len(event) for _, event in self._events) > _KEPT_BYTES:
            self._events.popleft()

    def rest(self) -> None:
        """Keep only what one who reconnects needs: the last viewer has left."""
        self._trim(0)
        self._fleet = self._whole = b""
        self._rests = True

    async def fleet(self) -> bytes:
        """Return the whole view as JSON, written once for all who ask; empty where there is none."""
        async with self._writing:
            if self._fleet or self.view is None:
                return self._fleet
            view = self.view
            content = await asyncio.to_thread(write_fleet, view)
            if self.view is view and self.viewers:
                self._fleet = content
            return content

    def wake(self) -> None:
        """Wake everything that waits for a refresh."""
        self._refreshed.set()
        self._refreshed = asyncio.Event()

    async def refreshed(self) -> None:
        """Return after the next refresh, whether anything changed or not."""
        await self._refreshed.wait()

    @property
    def _id(self) -> str:
        return f"{self._name}-{self._revision}"

    def since(self, last: str) -> tuple[list[bytes], str]:
        """Return the events after the one with this id, and the id of the last.

        A viewer who is new or missed too much gets the whole fleet. After a rest there is nothing until the next view.
        """
        if self.view is None or self._rests or last == self._id:
            return [], last
        name, _, number = last.rpartition("-")
        revision_read = int(number) if name == self._name and number.isdecimal() and len(number) < _DIGITS else -1
        missed = [event for revision, event in self._events if revision > revision_read]
        if 0 < revision_read < self._revision and len(missed) == self._revision - revision_read:
            return missed, self._id
        if not self._whole:
            self._whole = write_event("fleet", self._fleet or write_fleet(self.view), self._id)
        return [self._whole], self._id


class FleetFeed:
    """Refreshes the fleet while the page is open, at most once a second.

    Args:
        observe: returns the full view.
        measures: has the age of the last refresh while the page is open.
        log: records failed refreshes.

    """

    def __init__(self, observe: Callable[[], Awaitable[FleetView]], measures: Measures, log: Logger) -> None:
        self._observe = observe
        self._measures = measures
        self._log = log
        self._wakeup = WakeUp()
        self._channels: dict[Scope, Channel] = {}
        self.namespaces: tuple[str, ...] = ()
        """All namespaces that use GPUs, as of the last refresh."""
        self.refreshed = asyncio.Event()
        """Set after the first refresh."""
        self.closed = False
        """Whether all streams should end."""

    def changed(self) -> None:
        """Refresh soon."""
        self._wakeup.set()

    def close(self) -> None:
        """End all streams."""
        self.closed = True
        for each in self._channels.values():
            each.wake()

    @property
    def viewers(self) -> int:
        """How many viewers are connected."""
        return sum(each.viewers for each in self._channels.values())

    @contextmanager
    def joined(self, scope: Scope) -> Iterator[Channel]:
        """Yield the channel of a scope, which is refreshed meanwhile."""
        channel = self._channels.pop(scope, None) or Channel(scope, secrets.token_hex(6))
        self._channels[scope] = channel
        idle = [each for each in self._channels.values() if not each.viewers and each is not channel]
        for each in idle[: max(0, len(self._channels) - _CHANNELS)]:
            del self._channels[each.scope]
        channel.viewers += 1
        self.changed()
        try:
            yield channel
        finally:
            channel.viewers -= 1
            if not channel.viewers:
                channel.rest()
            self.changed()  # the last viewer left: refreshing stops

    async def run(self) -> None:
        """Refresh on every change while the page is open, until canceled."""
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            try:
                await self._refresh()
                self._measures.turned("page")
            except Exception as error:  # noqa: BLE001 (an object that nobody thought of must not stop the server)
                self._log.error("page_not_renewed", exc_info=error)
            await asyncio.sleep(min(max(_LEAST_S, _REST * (loop.time() - began_s)), _LONGEST_S))
            await self._wakeup.wait(_LONGEST_S)
            while self.refreshed.is_set() and not self.viewers:
                self._measures.stopped("page")
                await self._wakeup.wait(_LONGEST_S)

    async def _refresh(self) -> None:
        view = await self._observe()
        self.namespaces = view.namespaces
        self.refreshed.set()
        for channel in [each for each in self._channels.values() if each.viewers]:
            shown, change = await asyncio.to_thread(_shown, view, channel.scope, channel.view)
            channel.take(shown, change)


def _shown(view: FleetView, scope: Scope, before: FleetView | None) -> tuple[FleetView, bytes]:
    """Return the part of a view in a scope, and what changed in it; empty for no change."""
    shown = in_scope(view, scope)
    found = changes(before or FleetView(nodes=()), shown)
    return shown, write_change(found) if found else b""
