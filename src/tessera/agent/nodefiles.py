"""Files of the node, which others write: read whole, and never more than such a file can be."""

import os
from pathlib import Path

from tessera.errors import InvalidInput

__all__ = ["LARGEST_SPEC", "UNREADABLE", "first_line", "printable", "read_file"]

LARGEST_SPEC = 8 << 20
"""Bytes of a CDI specification; one GPU with its libraries takes a few thousand."""
UNREADABLE = (OSError, ValueError, RecursionError)
"""What reading and decoding a file may raise, whatever is in it: msgspec's errors and bytes that are not UTF-8 are
ValueErrors, nesting without end is a RecursionError."""


def printable(path: Path) -> str:
    """Return a path as it can be printed and logged, whatever bytes its names have."""
    return os.fsencode(path).decode(errors="replace")


def read_file(path: Path, most_bytes: int = 1 << 20) -> bytes:
    """Return the content of a file of at most so many bytes: whole MiB; one is what a ConfigMap may hold.

    Raises:
        InvalidInput: it is larger.
        OSError: it cannot be read.

    """
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise InvalidInput(
            printable(path), found=f"more than {most_bytes >> 20} MiB", expected="a file of at most that"
        )
    return content


def first_line(path: Path) -> str:
    """Return the first line of a file, without blanks; nothing of one that cannot be read."""
    try:
        return path.read_text().strip().partition("\n")[0]
    except (OSError, UnicodeDecodeError):
        return ""
