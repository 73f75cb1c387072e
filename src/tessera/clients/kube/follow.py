"""Follow the objects of a kind for ever, missing nothing: expired moments, broken streams, server restarts."""

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
    name_of,
    uid_of,
    version_of,
)
from tessera.errors import TesseraError, Unavailable
from tessera.measures import Measures

__all__ = ["Change", "Store", "follow", "watch_loop"]

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 10.0


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """An object that is there, new or changed, or is no more; or the mark that all have been yielded."""

    object: Object | None = None
    """None when everything that existed has been yielded; this comes again after each recovery by a list."""
    gone: bool = False
    """Whether the object is no more; it is then as it was last seen."""
    skipped: bool = False
    """Whether versions of it may have come and gone unseen before this one: it comes of a list, not of the watch.

    Objects that a list shows unchanged are not yielded again: there was no version between.
    """
    rewound: bool = False
    """Whether the list that it comes of is older than what was yielded before it: etcd was restored from a backup."""
    listing: Listing | None = None
    """With the mark that all have been yielded: the list. Whoever learned of an object otherwise, as by getting it, is
    shown no end that came before the list, and finds here that it is not there."""


async def follow(
    kube: Kube,
    kind: Kind,
    selection: Selection = EVERYTHING,
    *,
    on_trouble: Callable[[Exception], None] = lambda _: None,
    on_word: Callable[[], None] = lambda: None,
) -> AsyncIterator[Change]:
    """Yield every object there is, then every change, without end.

    A stream that ends or breaks is taken up again where it ended, and nothing is skipped. Only where the server no
    longer remembers that moment are the objects listed anew and the differences yielded: those that vanished meanwhile
    too, and as two objects what came under the name of another. After trouble, whatever the server answers, comes a
    pause that grows to 10 s, also while the server does not know the kind. `on_trouble` is given each error that was
    recovered from; `on_word` is called for each list and event, also the bookmarks by which a server says once a minute
    that nothing has changed.
    """
    known: dict[tuple[str, str], Object] = {}
    since, last, pauses = "", "", _Pauses()
    while True:
        pauses.begin()
        try:
            if not since:
                listing = await kube.list(kind, selection)
                on_word()
                rewound = _is_older(listing.resource_version, last)
                for change in _differences(known, listing.objects):
                    yield msgspec.structs.replace(change, rewound=rewound)
                since = last = listing.resource_version
                yield Change(listing=listing, rewound=rewound)
            async for event in kube.watch(kind, since, selection):
                pauses.progress()
                on_word()
                since = last = version_of(event.object) or since
                if not event.bookmark:
                    yield _take(known, event.object, gone=event.gone)
        except Unavailable as error:
            on_trouble(error)
        except TesseraError as error:  # an expired moment, a kind that is not served, a refusal that may be mended
            since = ""
            on_trouble(error)
        await asyncio.sleep(pauses.next())


class _Pauses:
    """How long to wait before each attempt: not after progress, longer and longer without."""

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._began_s = 0.0

    def begin(self) -> None:
        self._began_s = asyncio.get_running_loop().time()

    def progress(self) -> None:
        self._pause_s = 0.0

    def next(self) -> float:
        if asyncio.get_running_loop().time() - self._began_s > _LONGEST_PAUSE_S:
            self._pause_s = 0.0  # it went well for a while
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


def _take(known: dict[tuple[str, str], Object], each: Object, *, gone: bool, skipped: bool = False) -> Change:
    if gone:
        known.pop(name_of(each), None)
    else:
        known[name_of(each)] = each
    return Change(object=each, gone=gone, skipped=skipped)


def _is_older(version: str, other: str) -> bool:
    return version.isdecimal() and other.isdecimal() and int(version) < int(other)


def _state(each: Object | None) -> tuple[str, str]:
    return uid_of(each or {}), version_of(each or {})


class Store:
    """The objects of a kind as last seen, kept up to date by `run`.

    Args:
        kube: where they are.
        kind: their kind.
        selection: which of them.
        wake: called after each change, and when all that existed is there.
        on_change: given each change after the store has taken it; there one reads which versions may have been
            skipped.
        on_trouble: given each error that was recovered from.

    """

    def __init__(
        self,
        kube: Kube,
        kind: Kind,
        selection: Selection = EVERYTHING,
        *,
        wake: Callable[[], None] = lambda: None,
        on_change: Callable[[Change], None] = lambda _: None,
        on_trouble: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self._kind = kind
        self._follow = partial(follow, kube, kind, selection, on_trouble=on_trouble)
        self._wakes = [wake]
        self._on_change = on_change
        self._objects: dict[tuple[str, str], Object] = {}
        self._synced = asyncio.Event()

    @property
    def objects(self) -> Mapping[tuple[str, str], Object]:
        """The objects by namespace and name; a view of the present."""
        return self._objects

    def wake_also(self, wake: Callable[[], None]) -> None:
        """Call this, too, after each change."""
        self._wakes.append(wake)

    async def synced(self) -> None:
        """Wait until everything that existed when `run` began has been seen."""
        await self._synced.wait()

    async def run(self, measures: Measures | None = None) -> None:
        """Follow the objects until cancelled.

        Args:
            measures: has the age of what the server said last, be it that nothing has changed.

        """
        word = partial((measures or Measures()).turned, watch_loop(self._kind))
        async for change in self._follow(on_word=word):
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
    """Return the name of the loop that follows a kind, for its age."""
    return f"watch-{kind.plural}"
