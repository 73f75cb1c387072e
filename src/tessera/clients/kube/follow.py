"""Follow the objects of a kind for ever, missing nothing: expired moments, broken streams, server restarts."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec

from tessera.clients.kube.protocol import EVERYTHING, Expired, Kind, Kube, Object, Selection, name_of
from tessera.errors import Unavailable

__all__ = ["Change", "Store", "follow"]

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 10.0


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """An object that is there, new or changed, or is no more; or the word that all have been told."""

    object: Object | None = None
    """None when everything that existed has been told; this comes again after each recovery."""
    gone: bool = False
    """Whether the object is no more; it is then as it was last seen."""


async def follow(
    kube: Kube,
    kind: Kind,
    selection: Selection = EVERYTHING,
    *,
    on_trouble: Callable[[Exception], None] = lambda _: None,
) -> AsyncIterator[Change]:
    """Yield every object there is, then every change, without end.

    When the stream breaks, the objects are listed anew, after a pause that grows to 10 s, and the differences told:
    those that vanished meanwhile too. `on_trouble` is told each error that was recovered from.
    """
    known: dict[tuple[str, str], Object] = {}
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            listing = await kube.list(kind, selection)
            for change in _differences(known, listing.objects):
                yield change
            yield Change()
            pause_s = _FIRST_PAUSE_S
            async for event in kube.watch(kind, listing.resource_version, selection):
                yield _take(known, event.object, gone=event.gone)
        except Expired as error:
            on_trouble(error)
        except Unavailable as error:
            on_trouble(error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _differences(known: dict[tuple[str, str], Object], objects: tuple[Object, ...]) -> list[Change]:
    present = {name_of(each): each for each in objects}
    vanished = [known[name] for name in known.keys() - present.keys()]
    changed = [each for name, each in present.items() if _version(known.get(name)) != _version(each)]
    return [
        *(_take(known, each, gone=True) for each in vanished),
        *(_take(known, each, gone=False) for each in changed),
    ]


def _take(known: dict[tuple[str, str], Object], each: Object, *, gone: bool) -> Change:
    if gone:
        known.pop(name_of(each), None)
    else:
        known[name_of(each)] = each
    return Change(object=each, gone=gone)


def _version(each: Object | None) -> tuple[str, str]:
    metadata = (each or {}).get("metadata") or {}
    return metadata.get("uid", ""), metadata.get("resourceVersion", "")


class Store:
    """The objects of a kind as last seen, kept up to date by `run`.

    Args:
        kube: where they are.
        kind: their kind.
        selection: which of them.
        wake: called after each change, and when everything that existed has been told.
        on_trouble: told each error that was recovered from.

    """

    def __init__(
        self,
        kube: Kube,
        kind: Kind,
        selection: Selection = EVERYTHING,
        *,
        wake: Callable[[], None] = lambda: None,
        on_trouble: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self._source = follow(kube, kind, selection, on_trouble=on_trouble)
        self._wake = wake
        self._objects: dict[tuple[str, str], Object] = {}
        self._synced = asyncio.Event()

    @property
    def objects(self) -> Mapping[tuple[str, str], Object]:
        """The objects by namespace and name; a view of the present."""
        return self._objects

    async def synced(self) -> None:
        """Wait until everything that existed when `run` began has been seen."""
        await self._synced.wait()

    async def run(self) -> None:
        """Follow the objects until cancelled."""
        async for change in self._source:
            if change.object is None:
                self._synced.set()
            elif change.gone:
                self._objects.pop(name_of(change.object), None)
            else:
                self._objects[name_of(change.object)] = change.object
            self._wake()
