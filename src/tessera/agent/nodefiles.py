"""Files of the node: foreign ones are read whole up to a limit, our own are replaced atomically."""

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tessera.agent.emptying import empty_folder
from tessera.errors import UNDECODABLE, InvalidInput

__all__ = [
    "BROKEN_DISK",
    "LARGEST_SPEC",
    "NOTHING_THERE",
    "UNREADABLE",
    "NotRegular",
    "TooLarge",
    "disk_fix",
    "entries",
    "first_line",
    "has_files_alone",
    "is_folder",
    "is_regular",
    "is_there",
    "open_regular",
    "printable",
    "read_file",
    "read_regular",
    "remove_any",
    "remove_folder",
    "require_room",
    "write_through",
]

LARGEST_SPEC = 8 << 20
"""Largest CDI specification; one GPU with its libraries takes a few thousand bytes."""
UNREADABLE = (OSError, *UNDECODABLE)
"""Errors of reading and decoding a file, whatever is in it."""
NOTHING_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""Errors of reading the status of a path where nothing is; after any other there may be something."""
BROKEN_DISK = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN})
"""Errors of a broken disk; the last two by ext4, XFS and Btrfs, for what they cannot have written."""
_FIXES = {
    **dict.fromkeys(BROKEN_DISK, "replace the disk; the kernel's log names it"),
    errno.EROFS: "mount this disk writable again; the kernel's log says why it is read-only",
    errno.ENOSPC: "free space or inodes on this disk",
    errno.EDQUOT: "raise the quota of this folder",
    errno.EMFILE: "raise the agent's limit of open files",
    errno.EBUSY: "unmount it, or end what uses it",
    errno.EACCES: "give root access to it",
}
"""What to do about an error of the disk."""
_LARGEST = 1 << 30
"""The manifest of a million files takes a fifth of it."""


class NotRegular(OSError):
    """What is at a path is no regular file: a folder, a link, a pipe, a socket, a device."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(errno.EINVAL, "not a regular file", str(path))


class TooLarge(OSError):
    """A file has more than a GiB, which none of our own has."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(errno.EFBIG, "more than a GiB", str(path))


def disk_fix(error: OSError, *, otherwise: str) -> str:
    """Return what to do about an error of the disk."""
    return _FIXES.get(error.errno or 0, otherwise)


def printable(path: str | Path) -> str:
    """Return a path for printing, logging and JSON, whatever bytes its names have."""
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


def open_regular(path: str | Path) -> int:
    """Return the descriptor of a regular file, which the caller closes; a pipe or a device is never waited for.

    Raises:
        NotRegular: it is something else, such as a symbolic link.
        OSError: it cannot be opened.

    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in {errno.ELOOP, errno.ENXIO}:  # a link, a socket
            raise
        raise NotRegular(path) from error
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise NotRegular(path)
    return number


def read_regular(path: Path) -> bytes:
    """Return the content of a file of our own.

    Raises:
        TooLarge: it has more than a GiB.
        OSError: as of `open_regular`.

    """
    with os.fdopen(open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > _LARGEST:
            raise TooLarge(path)
        return file.read()


def remove_any(path: Path) -> None:
    """Remove what is at a path of our own, if anything, whatever it is; a link is not followed."""
    if is_folder(path):
        remove_folder(path)
    else:
        path.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """Remove a folder and all that is in it, as `empty_folder` does."""
    empty_folder(path)
    path.rmdir()


def is_there(path: str | Path) -> bool:
    """Return whether anything is at a path, also a link to nothing.

    Raises:
        OSError: whether something is there cannot be read; it is not taken for missing.

    """
    return _mode(path) != 0


def is_folder(path: str | Path) -> bool:
    """Return whether a path is a folder, and not a link to one.

    Raises:
        OSError: as of `is_there`.

    """
    return stat.S_ISDIR(_mode(path))


def is_regular(path: str | Path) -> bool:
    """Return whether a path is a regular file, and not a link to one.

    Raises:
        OSError: as of `is_there`.

    """
    return stat.S_ISREG(_mode(path))


def _mode(path: str | Path) -> int:
    """Return the type and the permissions of what is at a path; 0 for nothing."""
    try:
        return os.lstat(path).st_mode
    except OSError as error:
        if error.errno not in NOTHING_THERE:
            raise
        return 0


def has_files_alone(folder: Path) -> bool:
    """Return whether a path is a folder with regular files and folders alone, at any depth: no links, no pipes."""
    return is_folder(folder) and all(
        each.is_file(follow_symlinks=False) or each.is_dir(follow_symlinks=False) for each in entries(folder)
    )


def entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield all that is below a folder, at any depth, a folder before what is in it; no link is followed."""
    folders = [os.fspath(folder)]
    while folders:
        with os.scandir(folders.pop()) as found:
            for each in found:
                if each.is_dir(follow_symlinks=False):
                    folders.append(each.path)
                yield each


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
        OSError: the write failed, or, as NotRegular, the path is a device, a socket or a pipe; the file is unchanged.

    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise NotRegular(path)
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
