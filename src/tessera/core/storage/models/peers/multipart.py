"""The checksum of an object uploaded in parts: its ETag, the MD5 of the parts' MD5s, once their size is known.

Listings do not have the size of the parts. It follows from the size of the object and the number of parts, if the
uploading program used whole MiB.
"""

import re

from tessera.core.storage.models.revisions import ModelFile, StoredObject

__all__ = ["is_assumed", "part_bytes", "proof_of"]

_ETAG = re.compile(r"[0-9a-f]{32}-([1-9][0-9]{0,4})")
_MIB = 2**20
_USUAL = (5, 8, 10, 15, 16, 20, 25, 32, 50, 64, 100, 128, 200, 256, 500, 512, 1024)
"""MiB of the parts of common programs by default, and common settings."""


def part_bytes(size: int, etag: str) -> int:
    """Return the likely size of an object's parts; 0 if its ETag is not of parts, or several are possible.

    Args:
        size: bytes of the object.
        etag: from the store's listing.

    """
    match = _ETAG.fullmatch(etag)
    if match is None or not size:
        return 0
    count = int(match[1])
    if count == 1:
        return size
    # Of parts of p bytes it has ceil(size / p).
    least, most = -(-size // (count * _MIB)), (size - 1) // ((count - 1) * _MIB)
    found = [least] if least == most else [each for each in _USUAL if least <= each <= most]
    return found[0] * _MIB if len(found) == 1 else 0


def proof_of(stored: StoredObject | ModelFile) -> str:
    """Return the checksum that verifies content, as `StoredObject.checksum`; empty where none does.

    That of parts is `md5-<bytes of a part>:<ETag>`, and wrong if they are of another size than assumed.
    """
    size = 0 if stored.checksum else part_bytes(stored.size, stored.etag)
    return f"md5-{size}:{stored.etag}" if size else stored.checksum


def is_assumed(checksum: str) -> bool:
    """Return whether a checksum is one of parts: content that differs from it may be right."""
    return checksum.startswith("md5-")
