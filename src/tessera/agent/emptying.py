"""Empties folders, however much is in them, without leaving their file system."""

import errno
import math
import os
import time
from array import array
from pathlib import Path

import msgspec

__all__ = ["empty_folder"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMED = 10
"""Nested folders that an error names."""
_MOST_LEVELS = 128
"""Nested folders whose names are held at once; those that an error names are held, too."""
_MOST_NAMES = 256
"""Names that are held of each."""
_MOST_ERRORS = 256
"""After so many it is given up: the disk is broken as a whole."""


def empty_folder(path: Path, *, most_s: float = math.inf) -> None:
    """Remove all that is in a folder, whatever it is; follow no link, and cross no mount.

    Needs no space on the disk, two open files, no recursion, and little memory, however many files there are and
    however deep they are: at most 256 names of each of 128 nested folders are held, and 8 bytes for each other one.

    Args:
        path: the folder.
        most_s: how long that may take: of a folder that is still written to it takes for ever.

    Raises:
        OSError: something cannot be removed, or was moved meanwhile, or has something mounted at it: the first error.
            After an error the rest is removed, until there are 256.
        TimeoutError: it took too long; the next call goes on.

    """
    emptying = _Emptying(path, time.monotonic() + most_s)
    try:
        emptying.run()
    except _GivenUpError:
        pass
    except OSError as error:
        raise emptying.error or OSError(error.errno, error.strerror, str(emptying.place())) from error
    finally:
        emptying.close()
    if emptying.error is not None:
        raise emptying.error


class _GivenUpError(Exception):
    """There were too many errors; no OSError, which would count as one more."""


class _Level(msgspec.Struct):
    """A folder that is being emptied."""

    folders: list[str] = []
    """Folders in it that are removed next, the last one first."""
    more: bool = True
    """Whether there may be others in it."""


class _Emptying:
    """Empties a folder, one step at a time. One folder is open: the one that is emptied now.

    Args:
        path: the folder.
        until_s: when it is given up, by the monotonic clock.

    Raises:
        OSError: the folder cannot be opened.

    """

    def __init__(self, path: Path, until_s: float) -> None:
        self._path = path
        self._until_s = until_s
        self._current = os.open(path, _FOLDER)
        self._mount = _mount_of(self._current)
        self._device, inode = _identity(self._current)
        self._inodes = array("Q", (inode,))
        """Of the folder, the one in it that is emptied, the one in that ...; none once all is done."""
        self._levels: dict[int, _Level] = {}
        """What is known of them, by their number; nothing of some of those between the first and the last ones."""
        self._remaining: dict[int, set[str]] = {}
        """What cannot be removed of them."""
        self._errors = 0
        self.error: OSError | None = None
        """The first one, with its place."""

    def run(self) -> None:
        """Remove all that can be removed.

        Raises:
            OSError: it cannot go on.
            _GivenUpError: there were too many errors.

        """
        while self._inodes:
            self._check_time()
            level = self._level()
            if level.folders:
                self._enter(level, level.folders[-1])
            elif level.more:
                level.more = False
                self._remove_files(level)
            else:
                self._leave()

    def _check_time(self) -> None:
        if time.monotonic() > self._until_s:
            raise TimeoutError(errno.ETIMEDOUT, "not all of it is removed yet")

    def _level(self) -> _Level:
        return self._levels.setdefault(len(self._inodes), _Level())

    def _enter(self, level: _Level, name: str) -> None:
        try:
            inner = os.open(name, _FOLDER, dir_fd=self._current)
        except OSError as error:
            self._keep(name, error)
            level.folders.pop()
            return
        device, inode = _identity(inner)
        if (device, _mount_of(inner)) != (self._device, self._mount):
            os.close(inner)
            self._keep(name, OSError(errno.EBUSY, "another file system is mounted there"))
            level.folders.pop()
            return
        self._change(inner)
        self._inodes.append(inode)
        if (forgotten := len(self._inodes) - _MOST_LEVELS) > _NAMED:
            self._levels.pop(forgotten, None)

    def _remove_files(self, level: _Level) -> None:
        """Remove files until enough folders are found."""
        remaining = self._remaining.get(len(self._inodes), ())
        try:
            with os.scandir(self._current) as found:
                for each in found:
                    self._check_time()
                    if each.name in remaining:
                        continue
                    if not each.is_dir(follow_symlinks=False):
                        self._unlink(each.name)
                    elif len(level.folders) == _MOST_NAMES:
                        level.more = True
                        return
                    else:
                        level.folders.append(each.name)
        except TimeoutError:
            raise
        except OSError as error:
            self._keep("", error)

    def _unlink(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self._current)
        except OSError as error:
            self._keep(name, error)

    def _leave(self) -> None:
        """Go up, and remove the folder that was emptied."""
        number = len(self._inodes)
        is_empty = self._remaining.pop(number, None) is None
        del self._levels[number]
        inode = self._inodes.pop()
        if not self._inodes:
            return
        self._change(os.open("..", _FOLDER, dir_fd=self._current))
        if _identity(self._current) != (self._device, self._inodes[-1]):
            raise OSError(errno.ESTALE, "a folder was moved meanwhile")
        level = self._level()
        name = level.folders[-1] if level.folders else self._name(inode)
        try:
            if is_empty:
                os.rmdir(name, dir_fd=self._current)
            else:
                self._keep(name)
        except OSError as error:
            self._keep(name, error)
        del level.folders[-1:]

    def _name(self, inode: int) -> str:
        """Return the name of a folder in the current one."""
        with os.scandir(self._current) as found:
            for each in found:
                if each.is_dir(follow_symlinks=False) and each.stat(follow_symlinks=False).st_ino == inode:
                    return each.name
        raise OSError(errno.ESTALE, "a folder was moved meanwhile")

    def _change(self, other: int) -> None:
        os.close(self._current)
        self._current = other

    def _keep(self, name: str, error: OSError | None = None) -> None:
        """Leave something in the current folder; empty for something without a name.

        Raises:
            _GivenUpError: there were too many errors.

        """
        self._remaining.setdefault(len(self._inodes), set()).add(name)
        if error is None:
            return
        self._errors += 1
        if self.error is None:
            self.error = OSError(error.errno, error.strerror, str(self.place(name)))
        if self._errors == _MOST_ERRORS:
            raise _GivenUpError

    def place(self, *name: str) -> Path:
        """Return the path of what is in the current folder; of deeply nested folders the first ten."""
        above = [self._levels[each].folders[-1] for each in range(1, min(len(self._inodes), _NAMED + 1))]
        return self._path.joinpath(*(*above, *name)[:_NAMED])

    def close(self) -> None:
        """Close the folder."""
        os.close(self._current)


def _mount_of(folder: int) -> bytes:
    """Return the number of an open folder's mount: of one file system there may be several, each with its own."""
    number = os.open(f"/proc/self/fdinfo/{folder}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(number, 4096).partition(b"mnt_id:")[2].partition(b"\n")[0]
    finally:
        os.close(number)


def _identity(folder: int) -> tuple[int, int]:
    status = os.fstat(folder)
    return status.st_dev, status.st_ino
