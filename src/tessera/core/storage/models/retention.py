"""Which revisions stay on the disk, and which are evicted when it is full."""

from collections.abc import Collection, Iterable

import msgspec

from tessera.errors import Unavailable

__all__ = ["Kept", "make_room", "superseded"]


class Kept(msgspec.Struct, frozen=True):
    """A revision on the disk.

    Args:
        revision: its name.
        last_used: seconds of any clock; the greatest is the most recent.
        freed_bytes: what its removal frees: files shared with other revisions count nothing.
        protected: why it must stay (`current`, `pinned`, `in use by process 17`); empty if it may be evicted.

    """

    revision: str
    last_used: float
    freed_bytes: int
    protected: str = ""


def superseded(kept: Iterable[Kept], keep: int) -> tuple[str, ...]:
    """Return the revisions beyond the `keep` most recently used, the oldest first; protected ones count and stay."""
    order = sorted(kept, key=lambda each: (bool(each.protected), each.last_used, each.revision), reverse=True)
    return tuple(each.revision for each in reversed(order[max(0, keep) :]) if not each.protected)


def make_room(
    kept: Collection[Kept], *, needed_bytes: int, free_bytes: int, reserve_bytes: int, subject: str
) -> tuple[str, ...]:
    """Return the revisions to evict, least recently used first, so that the needed bytes fit beside the reserve.

    Raises:
        Unavailable: they would not fit even then; nothing is to be evicted.

    """
    missing = needed_bytes + reserve_bytes - free_bytes
    evicted = []
    for each in sorted(kept, key=lambda each: (each.last_used, each.revision)):
        if missing <= 0:
            break
        if not each.protected:
            evicted.append(each.revision)
            missing -= each.freed_bytes
    if missing > 0:
        stay = ", ".join(f"{each.revision[:12]} ({each.protected})" for each in kept if each.protected) or "none"
        raise Unavailable(
            subject,
            found=f"{_mib(missing)} MiB too little: {_mib(needed_bytes)} MiB to fetch, {_mib(free_bytes)} MiB free, "
            f"{_mib(reserve_bytes)} MiB in reserve",
            hint=f"free space on this disk; revisions that must be kept: {stay}",
        )
    return tuple(evicted)


def _mib(size: int) -> int:
    return -(-size // 2**20)
