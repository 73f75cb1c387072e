"""Which revisions stay on the disk, and which are evicted when it is full."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import msgspec

from tessera.errors import Unavailable

__all__ = ["LinkedFile", "RevisionOnDisk", "TooLittleRoom", "freed_bytes", "least_evicted", "make_room", "superseded"]


class TooLittleRoom(Unavailable):
    """What is to be fetched does not fit, whatever is evicted here.

    Args:
        subject: the folder.
        missing_bytes: that would have to be freed elsewhere on the disk.
        free_bytes: that are free there, above the reserve; negative where that is used too.
        found: as in other errors.
        hint: as in other errors.

    """

    def __init__(self, subject: str, missing_bytes: int, free_bytes: int, *, found: str, hint: str) -> None:
        super().__init__(subject, found=found, hint=hint)
        self.missing_bytes, self.free_bytes = missing_bytes, free_bytes


class LinkedFile(msgspec.Struct, frozen=True):
    """A file with more than one name on the disk: unchanged files are hard links between revisions.

    Args:
        file: its device and inode.
        bytes: that its removal frees, once its last name is removed.
        links: number of its names on the disk.

    """

    file: tuple[int, int]
    bytes: int
    links: int


class RevisionOnDisk(msgspec.Struct, frozen=True):
    """A revision on the disk.

    Args:
        revision: its name.
        last_used: seconds of any clock; the greatest is the most recent.
        own_bytes: what its removal frees in any case: files without another name on the disk.
        protected: why it must stay (`current`, `pinned`, `in use by process 17`); empty if it may be evicted.
        linked: its other files, each as often as it has names in this revision.

    """

    revision: str
    last_used: float
    own_bytes: int
    protected: str = ""
    linked: tuple[LinkedFile, ...] = ()


def freed_bytes(removed: Iterable[RevisionOnDisk]) -> int:
    """Return what the removal of all these revisions frees: a file that they share goes with its last name."""
    freed = 0
    names = Counter[LinkedFile]()
    for each in removed:
        freed += each.own_bytes
        names.update(each.linked)
    return freed + sum(file.bytes for file, count in names.items() if count >= file.links)


def least_evicted(order: Sequence[RevisionOnDisk], missing_bytes: int) -> tuple[int, ...]:
    """Return the positions of the first revisions that free so many bytes together, without those that are not needed.

    All of them, if even all free too little.
    """
    freed, names, chosen = 0, Counter[LinkedFile](), list[int]()
    for position, each in enumerate(order):
        if freed >= missing_bytes:
            break
        chosen.append(position)
        freed += each.own_bytes
        for file in each.linked:
            names[file] += 1
            freed += file.bytes if names[file] == file.links else 0
    for position in reversed(chosen.copy()):  # of those that are not needed the last ones stay rather than the first
        each = order[position]
        lost = each.own_bytes
        for file, count in Counter(each.linked).items():
            lost += file.bytes if names[file] - count < file.links <= names[file] else 0
        if freed - lost >= missing_bytes:
            chosen.remove(position)
            names.subtract(each.linked)
            freed -= lost
    return tuple(chosen)


def superseded(revisions: Iterable[RevisionOnDisk], keep: int) -> tuple[str, ...]:
    """Return the revisions beyond the `keep` most recently used, the oldest first; protected ones count and stay."""
    order = sorted(revisions, key=lambda each: (bool(each.protected), each.last_used, each.revision), reverse=True)
    return tuple(each.revision for each in reversed(order[max(0, keep) :]) if not each.protected)


def make_room(
    revisions: Collection[RevisionOnDisk], *, needed_bytes: int, free_bytes: int, reserve_bytes: int, subject: str
) -> tuple[str, ...]:
    """Return the revisions to evict, least recently used first, so that the needed bytes fit beside the reserve.

    Raises:
        TooLittleRoom: they would not fit even then; nothing is to be evicted.

    """
    missing = needed_bytes + reserve_bytes - free_bytes
    evictable = [each for each in revisions if not each.protected]
    order = sorted(evictable, key=lambda each: (each.last_used, each.revision))
    evicted = [order[position] for position in least_evicted(order, missing)]
    missing -= freed_bytes(evicted)
    if missing > 0:
        stay = ", ".join(f"{each.revision[:12]} ({each.protected})" for each in revisions if each.protected) or "none"
        raise TooLittleRoom(
            subject,
            missing,
            free_bytes - reserve_bytes,
            found=f"{_mib(missing)} MiB too little: {_mib(needed_bytes)} MiB to fetch, {_mib(free_bytes)} MiB free, "
            f"{_mib(reserve_bytes)} MiB in reserve",
            hint=f"free space on this disk; revisions that must be kept: {stay}",
        )
    return tuple(each.revision for each in evicted)


def _mib(size: int) -> int:
    return -(-size // 2**20)
