"""Files of the node: foreign ones are read whole up to a limit, our own are replaced atomically."""

import contextlib
import errno
import os
import tempfile
from pathlib import Path

from tessera.errors import UNDECODABLE, InvalidInput

__all__ = ["LARGEST_SPEC", "UNREADABLE", "first_line", "printable", "read_file", "require_room", "write_through"]

LARGEST_SPEC = 8 << 20
"""Largest CDI specification; one GPU with its libraries takes a few thousand bytes."""
UNREADABLE = (OSError, *UNDECODABLE)
"""Errors of reading and decoding a file, whatever is in it."""


def printable(path: Path) -> str:
    """Return a path for printing and logging, whatever bytes its names have."""
    return os.fsencode(path).decode(errors="replace")


def read_file(path: Path, most_bytes: int = 1 << 20) -> bytes:
    """Return the content of a file of at most so many bytes: whole MiB; one is the limit of a ConfigMap.

    Raises:
        InvalidInput: it is larger.
        OSError: it cannot be read.

    """
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise InvalidInput(printable(path), found=f"it has more than {most_bytes >> 20} MiB", hint="divide it")
    return content


def first_line(path: Path) -> str:
    """Return the first line of a file, stripped; empty for an unreadable one."""
    try:
        return path.read_text().strip().partition("\n")[0]
    except (OSError, UnicodeDecodeError):
        return ""


def require_room(folder: Path, size: int) -> None:
    """Check that a further file of this size can be written to a folder, by one that is removed at once.

    Raises:
        OSError: it cannot.

    """
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(size))
        file.flush()
        os.fsync(file.fileno())


def write_through(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Replace a file atomically and sync it to disk; its folder is created if missing.

    After a crash of the process or the node the file has either its former content, or all of this.

    Args:
        path: the file.
        content: all of it.
        mode: its permissions.

    Raises:
        OSError: the write failed, or the path is a device, a socket or a pipe; the file is unchanged.

    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            scratch.unlink()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # without it the rename may be lost
    finally:
        os.close(folder)
