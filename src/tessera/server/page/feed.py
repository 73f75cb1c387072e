"""Views of the fleet over time: one channel for all viewers who may see the same, with its latest changes."""

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from tessera.api.tessera.fleetviews import write_change, write_event, write_fleet
from tessera.core.explain.fleetscope import in_scope
from tessera.core.explain.fleetview import FleetView, Scope, changes
from tessera.log import Logger
from tessera.measures import Measures
from tessera.wakeup import WakeUp

__all__ = ["Channel", "Feed"]

_KEPT = 64
"""Changes that a viewer may have missed; who missed more gets the whole fleet again."""
_CHANNELS = 64
"""Channels that are kept, those that were left longest ago dropped first."""
_DIGITS = 16
"""More than any revision has; an id may come from anybody."""
_LEAST_S = 1.0
_REST = 5
"""Pause after a look, in times of what the look took: however much changes, others are answered first."""
_LONGEST_S = 30.0


class Channel:
    """What viewers of one scope see: the view now and the changes that led to it.

    Args:
        scope: what they may see.
        name: begins the ids of its events, so that no other channel's id is taken for one of them.

    """

    def __init__(self, scope: Scope, name: str) -> None:
        self.scope = scope
        self.viewers = 0
        self.view: FleetView | None = None
        self._name = name
        self._revision = 0
        self._events: deque[tuple[int, bytes]] = deque(maxlen=_KEPT)
        self._whole = b""
        """The event with all of the view, once somebody asked for it."""
        self._refreshed = asyncio.Event()

    def take(self, view: FleetView, change: bytes) -> None:
        """Take the view as it is now and the change that leads to it, which is empty where there is none."""
        if change or self.view is None:
            self._revision += 1
            self._events.append((self._revision, write_event("change", change, self._id)))
            self._whole = b""
        self.view = view
        self.wake()

    def wake(self) -> None:
        """End the waits for a look."""
        self._refreshed.set()
        self._refreshed = asyncio.Event()

    async def refreshed(self) -> None:
        """Return after the next look at the fleet, whether anything changed or not."""
        await self._refreshed.wait()

    @property
    def _id(self) -> str:
        return f"{self._name}-{self._revision}"

    def since(self, last: str) -> tuple[list[bytes], str]:
        """Return the events after the one with this id, and the id of the last.

        That is the whole fleet for who comes anew or missed too much.
        """
        if self.view is None or last == self._id:
            return [], last
        name, _, number = last.rpartition("-")
        seen = int(number) if name == self._name and number.isdecimal() and len(number) < _DIGITS else -1
        missed = [event for revision, event in self._events if revision > seen]
        if 0 < seen < self._revision and len(missed) == self._revision - seen:
            return missed, self._id
        if not self._whole:
            self._whole = write_event("fleet", write_fleet(self.view), self._id)
        return [self._whole], self._id


class Feed:
    """Looks at the fleet while somebody looks at the page, at most each second.

    Args:
        observe: returns the view of who sees everything.
        measures: has the age of its looks while somebody looks at the page.
        log: records looks that failed.

    """

    def __init__(self, observe: Callable[[], Awaitable[FleetView]], measures: Measures, log: Logger) -> None:
        self._observe = observe
        self._measures = measures
        self._log = log
        self._wakeup = WakeUp()
        self._channels: dict[Scope, Channel] = {}
        self.namespaces: tuple[str, ...] = ()
        """All namespaces that use GPUs, as of the last look."""
        self.refreshed = asyncio.Event()
        """Set once there was a look."""
        self.closed = False
        """Whether viewers shall go."""

    def changed(self) -> None:
        """Look again soon."""
        self._wakeup.set()

    def close(self) -> None:
        """Have the viewers go."""
        self.closed = True
        for each in self._channels.values():
            each.wake()

    @property
    def viewers(self) -> int:
        """How many look at the page."""
        return sum(each.viewers for each in self._channels.values())

    @contextmanager
    def joined(self, scope: Scope) -> Iterator[Channel]:
        """Give the channel of a scope, which is kept up to date meanwhile."""
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
            self.changed()  # the last one ends the looks

    async def run(self) -> None:
        """Look at the fleet whenever it changed and somebody looks at the page, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            try:
                await self._refresh()
                self._measures.turned("page")
            except Exception as error:  # noqa: BLE001 (an object that nobody thought of must not stop the server)
                self._log.error("page_not_renewed", exc_info=error)
            await asyncio.sleep(max(_LEAST_S, _REST * (loop.time() - began_s)))
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
    """Return the part of a view that is shown, and what of it changed; empty where nothing did."""
    shown = in_scope(view, scope)
    found = changes(before or FleetView(nodes=()), shown)
    return shown, write_change(found) if found else b""
