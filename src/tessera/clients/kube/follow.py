"""Watches the objects of a kind for ever, missing nothing: expired versions, broken streams, server restarts."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial

import msgspec

from tessera.clients.kube.protocol import (
    EVERYTHING,
    Kind,
    Kube,
    Listing,
    Object,
    Selection,
    Silent,
    name_of,
    uid_of,
    version_of,
)
from tessera.errors import Conflict, TesseraError, Unavailable
from tessera.measures import Measures

__all__ = ["Change", "HistoryRewound", "Store", "follow", "watch_loop"]

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 10.0


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A new, changed or deleted object; or the mark that all have been yielded."""

    object: Object | None = None
    """None when every existing object has been yielded; this is repeated after each recovery by a list."""
    gone: bool = False
    """Whether the object was deleted; it is then as last observed."""
    skipped: bool = False
    """Whether versions before this one may have been missed: it comes from a list, not from the watch.

    Objects unchanged in a list are not yielded again: there was no version between.
    """
    listing: Listing | None = None
    """With the mark that all have been yielded: the list. A caller that learned of an object otherwise, as by getting
    it, gets no deletion of before the list, and finds here that it is missing."""


class HistoryRewound(Conflict):
    """The objects are of before what was yielded: etcd was restored from a backup.

    What a process has observed and decided since then is of a cluster that is no more. It ends, and is started anew.
    """


async def follow(
    kube: Kube,
    kind: Kind,
    selection: Selection = EVERYTHING,
    *,
    on_error: Callable[[Exception], None] = lambda _: None,
    on_answer: Callable[[], None] = lambda: None,
) -> AsyncIterator[Change]:
    """Yield every object, then every change, without end.

    A stream that ends or breaks is resumed where it ended, and nothing is skipped. Only if the server no longer
    remembers that version are the objects listed again and the differences yielded: also deleted ones, and as two
    objects a recreated one. After an error there is a pause that grows to 10 s, also while the CRD is missing.
    `on_error` is called with each error that was recovered from; `on_answer` for each list and event, including the
    bookmarks by which a server says once a minute that nothing has changed.

    With an etcd restored from a backup a watch is silent until the new versions reach the old ones, then continues as
    if nothing was missed. So a watch is resumed only if the API server's version is no older, and not after silence.

    Raises:
        HistoryRewound: etcd was restored from a backup.

    """
    known: dict[tuple[str, str], Object] = {}
    since, last, pauses = "", "", _Pauses()
    while True:
        pauses.begin()
        try:
            if not since:
                listing = await kube.list(kind, selection)
                on_answer()
                _check_history(kind, listing, known, last)
                for change in _differences(known, listing.objects):
                    yield change
                since = last = listing.resource_version
                yield Change(listing=listing)
            else:
                await _require_no_older(kube, kind, selection, since)
            async for event in kube.watch(kind, since, selection):
                pauses.progress()
                on_answer()
                since = last = version_of(event.object) or since
                if not event.bookmark:
                    yield _take(known, event.object, gone=event.gone)
        except HistoryRewound:
            raise
        except Silent as error:
            since = ""
            on_error(error)
        except Unavailable as error:
            on_error(error)
        except TesseraError as error:  # an expired version, a missing CRD, a rejection that may be temporary
            since = ""
            on_error(error)
        await asyncio.sleep(pauses.next())


class _Pauses:
    """Backoff before each attempt: none after progress, growing without."""

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._began_s = 0.0

    def begin(self) -> None:
        self._began_s = asyncio.get_running_loop().time()

    def progress(self) -> None:
        self._pause_s = 0.0

    def next(self) -> float:
        if asyncio.get_running_loop().time() - self._began_s > _LONGEST_PAUSE_S:
            self._pause_s = 0.0  # there was progress
        pause_s = self._pause_s
        self._pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        return pause_s


def _differences(known: dict[tuple[str, str], Object], objects: tuple[Object, ...]) -> list[Change]:
    present = {name_of(each): each for each in objects}
    vanished = [each for name, each in known.items() if uid_of(each) != uid_of(present.get(name, {}))]
    changed = [each for name, each in present.items() if _state(known.get(name)) != _state(each)]
    return [
        *(_take(known, each, gone=True, skipped=True) for each in vanished),
        *(_take(known, each, gone=False, skipped=True) for each in changed),
    ]


def _take(known: dict[tuple[str, str], Object], obj: Object, *, gone: bool, skipped: bool = False) -> Change:
    if gone:
        known.pop(name_of(obj), None)
    else:
        known[name_of(obj)] = obj
    return Change(object=obj, gone=gone, skipped=skipped)


def _check_history(kind: Kind, listing: Listing, known: Mapping[tuple[str, str], Object], last: str) -> None:
    """Raise where a list has what there was not when its objects had the versions that they have.

    Args:
        kind: of the objects.
        listing: what the API server has now.
        known: all objects as they were at version `last`.
        last: the last observed version; empty before the first.

    """
    changed = (each for each in listing.objects if _state(known.get(name_of(each))) != _state(each))
    versions = (listing.resource_version, *(version_of(each) for each in changed))
    if any(_is_older(each, last) for each in versions):
        raise _rewound(kind)


async def _require_no_older(kube: Kube, kind: Kind, selection: Selection, since: str) -> None:
    """Raise where the API server has an older version than a watch has shown."""
    if _is_older(await kube.version(kind, selection), since):
        raise _rewound(kind)


def _rewound(kind: Kind) -> HistoryRewound:
    return HistoryRewound(
        f"{kind.plural} of the cluster",
        found="they are older than those observed before, as after a restore of etcd from a backup",
        hint="this process ends, and has to be started again",
    )


def _is_older(version: str, other: str) -> bool:
    return version.isdecimal() and other.isdecimal() and int(version) < int(other)


def _state(obj: Object | None) -> tuple[str, str]:
    return uid_of(obj or {}), version_of(obj or {})


class Store:
    """The last observed objects of a kind, kept up to date by `run`.

    Args:
        kube: their API.
        kind: of the objects.
        selection: of the objects.
        wake: called after each change, and when all existing objects have been read.
        on_change: called with each change after the store has taken it, including whether versions may have been
            skipped.
        on_error: called with each error that was recovered from.

    """

    def __init__(
        self,
        kube: Kube,
        kind: Kind,
        selection: Selection = EVERYTHING,
        *,
        wake: Callable[[], None] = lambda: None,
        on_change: Callable[[Change], None] = lambda _: None,
        on_error: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self._kind = kind
        self._follow = partial(follow, kube, kind, selection, on_error=on_error)
        self._wakes = [wake]
        self._on_change = on_change
        self._objects: dict[tuple[str, str], Object] = {}
        self._synced = asyncio.Event()

    @property
    def objects(self) -> Mapping[tuple[str, str], Object]:
        """The objects by namespace and name; a live view."""
        return self._objects

    def wake_also(self, wake: Callable[[], None]) -> None:
        """Also call this after each change."""
        self._wakes.append(wake)

    async def synced(self) -> None:
        """Wait until everything that existed when `run` began has been read."""
        await self._synced.wait()

    async def run(self, measures: Measures | None = None) -> None:
        """Watch the objects until canceled.

        Args:
            measures: has the age of the server's last answer, even that nothing has changed.

        """
        answered = partial((measures or Measures()).turned, watch_loop(self._kind))
        async for change in self._follow(on_answer=answered):
            if change.object is None:
                self._synced.set()
            elif change.gone:
                self._objects.pop(name_of(change.object), None)
            else:
                self._objects[name_of(change.object)] = change.object
            self._on_change(change)
            for wake in self._wakes:
                wake()


def watch_loop(kind: Kind) -> str:
    """Return the name of a kind's watch loop, for its age."""
    return f"watch-{kind.plural}"
