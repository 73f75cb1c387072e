"""A folder as a store: a local disk, NFS or CephFS."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from tessera.clients.store.protocol import Changed, Contents, Refused, Retry, Temporary, once
from tessera.core.storage.models.revisions import StoredObject

__all__ = ["FolderStore"]

_MOVE = "move it out of the source"


class FolderStore:
    """The files below a folder; links to files are followed, links to folders are not.

    Args:
        folder: the folder.
        root: the folder that is `/` for the name.
        within: reject files outside, wherever links lead; in terms of the root.

    """

    pipelines = False

    def __init__(self, folder: Path, *, root: Path = Path("/"), within: Path | None = None) -> None:
        self._folder = root / folder.relative_to("/")
        self._within = within
        self.source = f"file://{folder}"
        self.requests = 0

    def has(self, path: Path) -> bool:
        """Return whether a path is in the folder, or is the folder, wherever links lead."""
        return path.resolve().is_relative_to(self._folder.resolve())

    def objects(self, _retry: Retry = once, /) -> tuple[StoredObject, ...]:
        """Return all files; the ETag is derived from size, change times and inode."""
        self.requests += 1
        if not self._folder.is_dir():
            raise Refused("there is no such folder")
        if self._within is not None:
            number = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                self._check(number)
            finally:
                os.close(number)

        def fail(error: OSError) -> None:
            raise Temporary(f"{error.filename}: {error.strerror}") from error

        found = []
        above = len(os.path.join(self._folder, ""))  # noqa: PTH118 - see below
        for top, _, names in os.walk(self._folder, onerror=fail):
            for name in names:
                path = os.path.join(top, name)  # noqa: PTH118 - pathlib is five times slower on 20,000 files
                with _refusing(path):
                    status = os.stat(path)  # noqa: PTH116 - same reason
                if not stat.S_ISREG(status.st_mode):
                    raise _no_file(path, status)  # a pipe would block for ever
                found.append(StoredObject(path[above:], status.st_size, _etag(status)))
        return tuple(found)

    def read_small(self, objects: Iterable[StoredObject]) -> Contents:
        """Yield the objects without their content."""
        return ((each, None) for each in objects)

    @contextlib.contextmanager
    def read(self, stored: StoredObject, start: int, stop: int) -> Iterator["_Range"]:
        """Open a range; a file that changes during the read is noticed at its end."""
        self.requests += 1
        path = self._folder / stored.path
        with _refusing(path), open(path, "rb", buffering=0, opener=_open) as file:
            self._check(file.fileno())
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _no_file(path, status)
            if _etag(status) != stored.etag:
                raise Changed("other times, size or inode")
            file.seek(start)
            yield _Range(file.fileno(), start, stop)
            if _etag(os.fstat(file.fileno())) != stored.etag:
                raise Changed("it was written to while it was read")

    def _check(self, number: int) -> None:
        """Reject a file that was opened elsewhere: links of its other users can lead anywhere."""
        if self._within is not None and not Path(f"/proc/self/fd/{number}").readlink().is_relative_to(self._within):
            raise Refused(f"it is a link that leads out of {self._within}")

    def close(self) -> None:
        """Do nothing."""


class _Range:
    etag_is_checksum = True

    def __init__(self, number: int, start: int, stop: int) -> None:
        self._number = number
        self._remaining = stop - start

    def readinto(self, view: memoryview) -> int:
        """Read what fits."""
        count = os.readv(self._number, [view[: self._remaining]]) if self._remaining else 0
        self._remaining -= count
        return count


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe that took the file's place would be waited for without end


def _etag(status: os.stat_result) -> str:
    return f"{status.st_size:x}-{status.st_mtime_ns:x}-{status.st_ctime_ns:x}-{status.st_ino:x}"


def _no_file(path: str | Path, status: os.stat_result) -> Refused:
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
    return Refused(f"{path} is {kinds.get(stat.S_IFMT(status.st_mode), 'a device')}, not a regular file", fix=_MOVE)


@contextlib.contextmanager
def _refusing(path: str | Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
        raise Refused(f"{path}: {error.strerror}") from error
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        if error.errno == errno.ENXIO:  # a socket, or a device that is not there
            raise Refused(f"{path} is a socket or a missing device", fix=_MOVE) from error
        raise Temporary(f"{path}: {error.strerror}") from error
