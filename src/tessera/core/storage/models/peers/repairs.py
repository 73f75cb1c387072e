"""Which chunks of wrong objects are fetched again, and from which peer.

An object is wrong if its checksum is not the store's. First, chunks from banned peers are discarded. Then other peers
are asked for the same chunks until one differs; all chunks from the first peer are then discarded. Where none differs,
everything that peers served is read from the store.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from tessera.core.storage.models.peers.owners import recheck_order
from tessera.core.storage.models.peers.provenance import EARLIER, Provenance

__all__ = ["Chunk", "Suspect", "discarded", "from_store_alone", "is_stale", "suspects"]

Chunk: TypeAlias = tuple[int, int]
"""An object and one of its chunks."""


class Suspect(NamedTuple):
    """A chunk of a wrong object to request from another peer."""

    object_index: int
    chunk: int
    peer: str
    """The peer that served it."""


def suspects(wrong: Mapping[int, Provenance]) -> Iterator[Suspect]:
    """Yield the chunks to request from other peers, until one differs: of the object with the fewest peers first.

    An object is checked at its turn: chunks that the store has replaced by then are not requested.
    """
    for index in sorted(wrong, key=lambda index: (len(set(wrong[index].unproven.values())), index)):
        served = {chunk: peer for chunk, peer in wrong[index].unproven.items() if peer != EARLIER}
        yield from (Suspect(index, chunk, served[chunk]) for chunk in recheck_order(served))


def discarded(wrong: Mapping[int, Provenance], peers: Iterable[str]) -> list[Chunk]:
    """Discard the chunks that peers served of wrong objects, for which they are not asked again; return these."""
    peers, found = tuple(peers), []
    for index, each in wrong.items():
        for peer in peers:
            each.excluded.add(peer)
            found += [(index, chunk) for chunk in each.drop(peer)]
    return found


def is_stale(wrong: Mapping[int, Provenance]) -> bool:
    """Return whether a chunk was replaced after it was summed: then the checksums say nothing yet."""
    return any(each.stale for each in wrong.values())


def from_store_alone(wrong: Mapping[int, Provenance]) -> list[Chunk]:
    """Ask no peer for wrong objects any more, and return what is to be read from the store; nothing if all is its own.

    What an earlier attempt has left is read, too: it is unknown which peer served it.
    """
    found = [(index, chunk) for index, each in wrong.items() for chunk in each.unproven]
    for each in wrong.values():
        each.alone = each.alone or bool(found)
    return found
