"""Which node reads a chunk from the store for all, from which node the others request it, and when a peer is given up.

A node accepts from peers only what the store's own checksum of the whole object verifies in the end, and serves
only what it has read from the store itself, or what is verified: so a peer that served a wrong chunk made it wrong, and
is reported (docs/decisions/0034-nodes-share-models.md).
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

__all__ = [
    "LEAST_BYTES",
    "ContentChunks",
    "Owners",
    "PeerPatience",
    "Peers",
    "asking_order",
    "content_key",
    "recheck_order",
]

LEAST_BYTES = 64 * 1024
"""Smaller objects are read from the store: a request to a peer costs as much as one to the store."""
_PROOF = re.compile(r"(md5(-[0-9]+)?|sha1|sha256|git):.+")
_SLACK_PERCENT = 10
"""How much more than its share of an object a member owns at most. Without slack a member that leaves moves a tenth of
what others own, with 10 % a fiftieth."""
_TRIES = 3
_GOLDEN, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

_KEY_CHARACTERS = 64
_SCORES_AT_ONCE = 2**15
"""Scores in the processor's cache at once."""

_Words = npt.NDArray[np.uint64]
_Chunk = TypeVar("_Chunk", bound=Hashable)


class PeerPatience(msgspec.Struct, frozen=True):
    """Timeouts of peers, in seconds.

    Args:
        silent_s: a peer that sends nothing for this long, or does not accept a connection, is gone.
        chunk_s: a chunk that takes longer in all is requested from the next one.
        pending_s: how long a peer keeps a request that it cannot answer yet; less than `silent_s`.
        first_away_s: how long a failed peer is avoided, which doubles with each failure.
        longest_away_s: no pause is longer.
        absent_s: how long a peer without an object is excluded for it.

    """

    silent_s: float = 6.0
    chunk_s: float = 60.0
    pending_s: float = 3.0
    first_away_s: float = 2.0
    longest_away_s: float = 60.0
    absent_s: float = 5.0


def content_key(checksum: str, size: int) -> str:
    """Return the name of content, the same on all nodes; empty if no checksum verifies it.

    Args:
        checksum: of the whole content, from the store's listing or by `proof_of`.
        size: bytes.

    """
    if not _PROOF.fullmatch(checksum):
        return ""
    return hashlib.sha256(f"{size} {checksum}".encode()).hexdigest()


class ContentChunks:
    """The chunks of all contents of a source, in the order of the contents' keys.

    Args:
        contents: number of chunks by the key of the content.

    """

    def __init__(self, contents: Mapping[str, int]) -> None:
        # Not sorted(): of a million keys that stops all threads for a second.
        names = "".join(f"{key:<{_KEY_CHARACTERS}}" for key in contents).encode()
        order = np.argsort(np.frombuffer(names, dtype=f"S{_KEY_CHARACTERS}"))
        counts = np.array(list(contents.values()), dtype=np.int64)[order]
        firsts = np.concatenate(([0], np.cumsum(counts)))
        self._firsts: dict[str, int] = dict(zip(contents, firsts[np.argsort(order)].tolist(), strict=True))
        seeds = np.repeat(np.array([_seed(key) for key in contents], dtype=np.uint64)[order], counts)
        numbers = np.arange(firsts[-1]) - np.repeat(firsts[:-1], counts)
        self.words = _mixed(seeds + numbers.astype(np.uint64) * _GOLDEN)
        """A random word for each chunk."""

    def __getitem__(self, chunk: tuple[str, int]) -> int:
        """Return the place of a content's chunk among all."""
        return self._firsts[chunk[0]] + chunk[1]


class Owners:
    """Which node reads which chunk from the store: rendezvous hashing, with a limit on what one member owns.

    Nodes with the same contents and members compute the same owners; one member more or less changes
    what that one owns, and little else. The time is in proportion to chunks times members (`bench/owners.py`).

    Args:
        chunks: of all contents.
        members: addresses; at least one.

    """

    def __init__(self, chunks: ContentChunks, members: Iterable[str]) -> None:
        self.chunks = chunks
        self._members = tuple(sorted(set(members)))
        self._seeds = np.array([_seed(each) for each in self._members], dtype=np.uint64)
        count = len(chunks.words)
        most = -(-count * (100 + _SLACK_PERCENT) // (100 * len(self._members)))
        # 1. The owner of a chunk is the member with its highest score.
        block = max(1, _SCORES_AT_ONCE // len(self._members))
        best = [self._scores(slice(first, first + block)).argmax(axis=1) for first in range(0, count, block)]
        self._owners = np.concatenate((np.zeros(0, dtype=np.int64), *best)).astype(np.int32)
        if np.bincount(self._owners, minlength=1).max() <= most:
            return
        # 2. A member that owns its share already is replaced by the next one.
        owned = [0] * len(self._members)
        for place, member in enumerate(self._owners.tolist()):
            owner = member
            if owned[member] >= most:
                order = np.argsort(self._scores(slice(place, place + 1))[0])[::-1]
                owner = self._owners[place] = next(int(each) for each in order if owned[each] < most)
            owned[owner] += 1

    def _scores(self, places: slice) -> _Words:
        """Return the scores of chunks, as (chunks, members) uint64."""
        return _mixed(self.chunks.words[places, np.newaxis] ^ self._seeds)

    def owner(self, key: str, chunk: int) -> str:
        """Return the owner of a chunk: the node that reads it from the store."""
        return self._members[int(self._owners[self.chunks[key, chunk]])]

    def candidates(self, key: str, chunk: int) -> tuple[str, ...]:
        """Return all members in the order in which they replace each other: the owner first."""
        place = self.chunks[key, chunk]
        owner = int(self._owners[place])
        others = (int(each) for each in np.argsort(self._scores(slice(place, place + 1))[0])[::-1] if each != owner)
        return tuple(self._members[each] for each in (owner, *others))


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _mixed(values: _Words) -> _Words:
    """Mix words well, in place. Source: splitmix64, Steele, Lea and Flood, OOPSLA 2014."""
    values ^= values >> np.uint64(30)
    values *= _FIRST
    values ^= values >> np.uint64(27)
    values *= _SECOND
    values ^= values >> np.uint64(31)
    return values


class Peers:
    """A node's knowledge of its peers; the time is passed in.

    Args:
        me: the node's own address.
        patience: with them.

    """

    def __init__(self, me: str, patience: PeerPatience | None = None) -> None:
        self._me = me
        self._patience = patience or PeerPatience()
        self._failures: defaultdict[str, int] = defaultdict(int)
        self._away_until: dict[str, float] = {}
        self._absent_until: dict[tuple[str, str], float] = {}
        self._unverified_until: dict[tuple[str, str], float] = {}
        self.banned: dict[str, str] = {}
        """Peers that served wrong data, and what it was."""

    def begin(self) -> None:
        """Forget which peers lack what, when another fetch begins; absent and dropped peers stay so."""
        self._absent_until.clear()
        self._unverified_until.clear()

    def peer_for(self, owners: Owners, key: str, chunk: int, now: float, besides: Collection[str] = ()) -> str:
        """Return the peer to request a chunk from; empty if the node reads it from the store.

        That is if the node owns it, or three peers failed.

        Args:
            owners: of all chunks.
            key: of its content.
            chunk: index.
            now: seconds of a monotonic clock.
            besides: peers that failed already, or must not be asked.

        """
        if len(besides) >= _TRIES:
            return ""
        for each in owners.candidates(key, chunk):
            if each == self._me:
                return ""
            if each not in besides and not self._is_away(each, key, now):
                return each
        return ""

    def holder(self, owners: Owners, key: str, chunk: int, now: float) -> str:
        """Return a peer to ask whether it has a chunk already, before the node reads it for all; or nothing.

        A node that joins others which have the model reads nothing from the store.
        """
        peer = next((each for each in owners.candidates(key, chunk) if each != self._me), "")
        away = not peer or self._is_away(peer, key, now) or now < self._unverified_until.get((peer, key), now)
        return "" if away else peer

    def _is_away(self, peer: str, key: str, now: float) -> bool:
        return (
            peer in self.banned
            or now < self._away_until.get(peer, now)
            or now < self._absent_until.get((peer, key), now)
        )

    def mark_served(self, peer: str) -> None:
        """Note that a peer served a chunk."""
        self._failures.pop(peer, None)

    def mark_failed(self, peer: str, now: float) -> None:
        """Note that a peer is gone, or slow: it is avoided for a while, each time longer."""
        wait = self._patience.first_away_s * 2.0 ** min(self._failures[peer], 16)
        self._failures[peer] += 1
        self._away_until[peer] = now + min(wait, self._patience.longest_away_s)

    def mark_absent(self, peer: str, key: str, now: float) -> None:
        """Note that a peer has nothing of an object, and does not fetch it."""
        self._absent_until[peer, key] = now + self._patience.absent_s

    def mark_unverified(self, peer: str, key: str, now: float) -> None:
        """Note that a peer does not have all of an object yet."""
        self._unverified_until[peer, key] = now + self._patience.absent_s

    def ban(self, peer: str, what: str) -> bool:
        """Ban a peer until the agent restarts; return whether it was not banned before."""
        known = peer in self.banned
        self.banned.setdefault(peer, what)
        return not known


def recheck_order(origins: Mapping[_Chunk, str]) -> tuple[_Chunk, ...]:
    """Return chunks of a wrong object in the order in which they are requested from others.

    One of each peer first, so that a peer with many wrong ones is found with the fewest requests.

    Args:
        origins: the peer of each chunk, in an order that is the same on all nodes.

    """
    rounds: defaultdict[str, int] = defaultdict(int)
    ranked = []
    for place, (chunk, origin) in enumerate(origins.items()):
        ranked.append((rounds[origin], place, chunk))
        rounds[origin] += 1
    return tuple(chunk for _, _, chunk in sorted(ranked, key=lambda each: each[:2]))


def asking_order(count: int, me: str, members: int) -> tuple[int, ...]:
    """Return the order in which a node requests chunks that others own.

    Early ones are requested early, because their owners have them first; nearby ones in another order on each node, so
    that not all ask the same owner at once.
    """
    block = max(1, 2 * members)
    found: list[int] = []
    for first in range(0, count, block):
        row = range(first, min(count, first + block))
        turn = _seed(me) % len(row)
        found += [*row[turn:], *row[:turn]]
    return tuple(found)
