"""Objects in memory with versions, their recent history, and their watches: a small etcd and watch cache.

A change is delivered only to matching watchers, so that ten thousand pods and a
thousand agents, each watching its own, cost what changes.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tessera.clients.kube.protocol import (
    Expired,
    Kind,
    Object,
    Selection,
    WatchEvent,
    labels_of,
    name_of,
)
from tessera.errors import TesseraError, Unavailable

__all__ = ["Backup", "Key", "Storage"]

Key = tuple[str, str]
"""Namespace and name."""

_REMEMBERED = 10_000
"""Changes of a kind that are kept; a watch from an older version expires."""
_NAME = "metadata.name"
_PLACE = "spec.nodeName"
"""The field by which objects are indexed: a node's pods."""


class _Change:
    """One event, and the object before it."""

    __slots__ = ("before", "event", "version")

    def __init__(self, version: int, event: WatchEvent, before: Object | None) -> None:
        self.version = version
        self.event = event
        self.before = before

    def event_for(self, selection: Selection) -> WatchEvent | None:
        """Return the event as a selection's watcher sees it: an object that left it is deleted."""
        was = self.before is not None and _selects(selection, self.before)
        stays = not self.event.gone and _selects(selection, self.event.object)
        return WatchEvent(object=self.event.object, gone=not stays) if was or stays else None


class _Watcher:
    """The pending events of one watch."""

    def __init__(self, selection: Selection, since: int) -> None:
        self.selection = selection
        self.since = since
        self.events: deque[WatchEvent] = deque()
        self.end: TesseraError | None = None
        self.news = asyncio.Event()

    def take(self, change: _Change) -> None:
        event = change.event_for(self.selection)
        if event and change.version > self.since:
            self.events.append(event)
            self.news.set()

    def stop(self, why: TesseraError) -> None:
        self.end = why
        self.news.set()


class _Shelf:
    """The objects of one kind."""

    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self.history: deque[_Change] = deque(maxlen=_REMEMBERED)
        self.placed: dict[str, set[Key]] = {}
        self.watchers: dict[tuple[str, str], dict[_Watcher, None]] = {}
        """By the first field of their selection, or by none; in order of arrival."""
        self.forgotten = 0
        """The last version that is no longer in the history."""

    def record(self, change: _Change) -> None:
        if len(self.history) == _REMEMBERED:
            self.forgotten = self.history[0].version
        self.history.append(change)
        self._place(change.before, change.event)
        for place in self._concerned(change):
            for watcher in self.watchers.get(place, ()):
                watcher.take(change)

    def _place(self, before: Object | None, event: WatchEvent) -> None:
        key = name_of(event.object)
        if before is not None:
            self.placed.get(_at(before, _PLACE), set()).discard(key)
        if not event.gone:
            self.placed.setdefault(_at(event.object, _PLACE), set()).add(key)

    def _concerned(self, change: _Change) -> dict[tuple[str, str], None]:
        states = [change.event.object] if change.before is None else [change.before, change.event.object]
        paths = dict.fromkeys(path for path, _ in self.watchers)
        return {(path, _at(state, path) if path else ""): None for path in paths for state in states}

    def candidates(self, selection: Selection) -> Iterable[Key]:
        """Return candidate keys for a selection, as few as the index gives."""
        fields = dict(selection.fields)
        if _PLACE in fields:
            return self.placed.get(fields[_PLACE], set())
        key = (selection.namespace, fields.get(_NAME, ""))
        return (key,) if key in self.objects else self.objects

    def replace(self, objects: Mapping[Key, Object]) -> None:
        self.objects, self.placed, self.forgotten = dict(objects), {}, 0
        self.history.clear()
        for key, each in objects.items():
            self.placed.setdefault(_at(each, _PLACE), set()).add(key)

    def since(self, version: int) -> Iterator[_Change]:
        later: list[_Change] = []
        for change in reversed(self.history):
            if change.version <= version:
                break
            later.append(change)
        return reversed(later)

    def everyone(self) -> list[_Watcher]:
        return [watcher for group in self.watchers.values() for watcher in group]


class Backup(NamedTuple):
    """All objects at one version."""

    version: int
    objects: Mapping[Kind, Mapping[Key, Object]]


class Storage:
    """Objects of every kind under one count of versions."""

    def __init__(self) -> None:
        self.version = 0
        self._shelves: dict[Kind, _Shelf] = {}
        self._compacted = 0

    def get(self, kind: Kind, key: Key) -> Object | None:
        """Return an object; None where there is none."""
        return self._shelf(kind).objects.get(key)

    def select(self, kind: Kind, selection: Selection) -> tuple[Object, ...]:
        """Return the objects of a selection, sorted by namespace and name."""
        shelf = self._shelf(kind)
        keys = shelf.candidates(selection)
        return tuple(
            shelf.objects[key] for key in sorted(key for key in keys if _selects(selection, shelf.objects[key]))
        )

    def put(self, kind: Kind, key: Key, stored: Object) -> Object:
        """Store an object under the next version and return it as stored."""
        shelf = self._shelf(kind)
        stored = self._versioned(stored)
        before = shelf.objects.get(key)
        shelf.objects[key] = stored
        shelf.record(_Change(self.version, WatchEvent(object=stored), before))
        return stored

    def remove(self, kind: Kind, key: Key) -> None:
        """Remove an object; nothing happens where there is none."""
        shelf = self._shelf(kind)
        before = shelf.objects.pop(key, None)
        if before is not None:
            last = self._versioned(before)
            shelf.record(_Change(self.version, WatchEvent(object=last, gone=True), before))

    async def watch(self, kind: Kind, since: int, selection: Selection) -> AsyncIterator[WatchEvent]:
        """Yield the changes after a version; see the Protocol."""
        shelf, watcher = self._shelf(kind), _Watcher(selection, since)
        if since < max(self._compacted, shelf.forgotten):
            raise _expired(kind)
        for change in shelf.since(since):
            watcher.take(change)
        group = shelf.watchers.setdefault(selection.fields[0] if selection.fields else ("", ""), {})
        group[watcher] = None
        try:
            while True:
                while watcher.events:
                    yield watcher.events.popleft()
                if watcher.end:
                    raise watcher.end
                watcher.news.clear()
                await watcher.news.wait()
        finally:
            del group[watcher]

    def backup(self) -> Backup:
        """Return a copy of all objects."""
        return Backup(self.version, {kind: dict(shelf.objects) for kind, shelf in self._shelves.items()})

    def restore(self, backup: Backup) -> None:
        """Replace all objects, and go on with the backup's version: a watch from a later one is silent until then."""
        self.version = self._compacted = backup.version
        for kind, shelf in self._shelves.items():
            shelf.replace(backup.objects.get(kind, {}))

    def compact(self) -> None:
        """Drop the history: watchers that are behind expire."""
        self._compacted = self.version
        for kind, shelf in self._shelves.items():
            shelf.history.clear()
            for watcher in shelf.everyone():
                if watcher.events:
                    watcher.events.clear()
                    watcher.stop(_expired(kind))

    def break_watches(self) -> None:
        """End every watch; pending events are still yielded."""
        for kind, shelf in self._shelves.items():
            for watcher in shelf.everyone():
                watcher.stop(Unavailable(f"watch of {kind.plural}", found="the stream ended", hint="watch again"))

    def _shelf(self, kind: Kind) -> _Shelf:
        return self._shelves.setdefault(kind, _Shelf())

    def _versioned(self, stored: Object) -> Object:
        self.version += 1
        return stored | {"metadata": stored["metadata"] | {"resourceVersion": str(self.version)}}


def _expired(kind: Kind) -> Expired:
    return Expired(f"watch of {kind.plural}", found="the version is no longer remembered", hint="list again")


def _selects(selection: Selection, obj: Object) -> bool:
    if selection.namespace and selection.namespace != name_of(obj)[0]:
        return False
    if selection.labels and not set(selection.labels) <= labels_of(obj).items():
        return False
    if not set(selection.having) <= labels_of(obj).keys():
        return False
    if any(_at(obj, path) == value for path, value in selection.other_fields):
        return False
    return all(_at(obj, path) == value for path, value in selection.fields)


def _at(obj: Object, path: str) -> str:
    value: Any = obj
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return "" if value is None else str(value)
