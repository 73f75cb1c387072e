"""Which chunks of wrong objects are fetched again, and from whom.

An object is wrong whose checksum is not the store's. First goes what peers served that were wrong before. Then other
other peers send the same chunks until one differs: the first one's chunks of all wrong objects go. Where none
differs, everything that peers served is read from the store.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from tessera.core.storage.models.peers import order_of_doubt
from tessera.core.storage.models.provenance import EARLIER, Provenance

__all__ = ["Chunk", "Suspect", "discarded", "from_store_alone", "is_stale", "suspects"]

Chunk: TypeAlias = tuple[int, int]
"""An object and one of its chunks."""


class Suspect(NamedTuple):
    """A chunk of a wrong object to request from another peer."""

    object_index: int
    chunk: int
    giver: str
    """The peer that served it."""


def suspects(wrong: Mapping[int, Provenance]) -> Iterator[Suspect]:
    """Yield the chunks to request from other peers, until one differs: of the object with the fewest peers first.

    An object is checked at its turn: chunks that the store has replaced by then are not requested.
    """
    for index in sorted(wrong, key=lambda index: (len(set(wrong[index].unproven.values())), index)):
        heard = {chunk: giver for chunk, giver in wrong[index].unproven.items() if giver != EARLIER}
        yield from (Suspect(index, chunk, heard[chunk]) for chunk in order_of_doubt(heard))


def discarded(wrong: Mapping[int, Provenance], peers: Iterable[str]) -> list[Chunk]:
    """Discard the chunks that peers served of wrong objects, for which they are not asked again; return these."""
    peers, found = tuple(peers), []
    for index, each in wrong.items():
        for peer in peers:
            each.doubted.add(peer)
            found += [(index, chunk) for chunk in each.drop(peer)]
    return found


def is_stale(wrong: Mapping[int, Provenance]) -> bool:
    """Return whether a chunk was replaced after it was summed: then the checksums say nothing yet."""
    return any(each.stale for each in wrong.values())


def from_store_alone(wrong: Mapping[int, Provenance]) -> list[Chunk]:
    """Ask no peer for wrong objects any more, and return what is to be read from the store; nothing if all is its own.

    What an earlier attempt has left is read, too: nobody knows who served it.
    """
    found = [(index, chunk) for index, each in wrong.items() for chunk in each.unproven]
    for each in wrong.values():
        each.alone = each.alone or bool(found)
    return found
