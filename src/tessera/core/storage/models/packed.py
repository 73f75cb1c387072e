"""Whether a revision is kept as single files or as one image."""

from collections.abc import Sequence
from typing import Literal

__all__ = ["Pack", "is_packed"]

Pack = Literal["Auto", "Never", "Always"]
"""When files are packed: if they are many and small, never, or always."""

_MANY = 1000
_SMALL_BYTES = 256 * 1024
"""Files of 256 KiB are read as fast one by one as an image is; smaller ones cost a folder entry, an inode and a
removal each (docs/decisions/0032-data-sets-are-packed.md)."""


def is_packed(sizes: Sequence[int], pack: Pack, *, can_mount: bool = True) -> bool:
    """Return whether files of these sizes are packed: at least 1,000, of less than 256 KiB on average.

    Args:
        sizes: of the files, in bytes.
        pack: the setting.
        can_mount: whether the node can mount an image; without it `Auto` packs nothing.

    """
    if pack == "Auto":
        return can_mount and len(sizes) >= _MANY and sum(sizes) < _SMALL_BYTES * len(sizes)
    return pack == "Always"
