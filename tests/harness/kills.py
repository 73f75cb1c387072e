"""A process that is killed at one of its changes of the disk, and a disk that loses what was not synced to it."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

from tessera.agent.storage.models import chunkfiles

__all__ = ["Changes", "Killed", "not_killed"]

_CHANGES = ("rename", "replace", "unlink", "rmdir", "mkdir", "link", "symlink", "utime", "write", "pwrite", "ftruncate")
_CREATES = os.O_CREAT | os.O_TRUNC


class Killed(BaseException):
    """The process does nothing any more: all that it still tries fails."""


def not_killed() -> contextlib.AbstractContextManager[None]:
    """Return the context of calls that end, without waiting for the disk."""
    return Changes(lambda: None).observed()


class Changes:
    """The changes of the disk by one call, each followed by a look of a reader, and perhaps the last.

    Args:
        look: called after each change, also after that at which the process is killed.
        killed_at: the number of the change after which the process is killed; negative for never.

    """

    def __init__(self, look: Callable[[], None], killed_at: int = -1) -> None:
        self._look = look
        self._killed_at = killed_at
        self.count = 0
        self.is_killed = False
        self.unsynced = set[str]()
        """The kinds of changes that a crash of the machine may undo."""

    def _after(self, name: str, *where: object) -> None:
        self.count += 1
        target = str(where[-1]) if where else ""
        if name in {"write", "pwrite", "ftruncate"}:
            self.unsynced.add("content")
        if name in {"rename", "replace"} and "/versions/" in target:
            assert "content" not in self.unsynced, f"{target} may lose its content"
            self.unsynced.add("revision")
        if name == "replace" and target.endswith("/current"):
            assert "revision" not in self.unsynced, f"{target} may lead to nothing"
        self.is_killed = self.count == self._killed_at
        self._look()
        if self.is_killed:
            raise Killed

    @contextlib.contextmanager
    def observed(self) -> Iterator[None]:
        """Observe what is called within; a kill ends it."""
        with contextlib.ExitStack() as stack, contextlib.suppress(Killed):
            for name in _CHANGES:
                stack.enter_context(patch.object(os, name, self._counting(name, getattr(os, name))))
            stack.enter_context(patch.object(os, "open", self._opening(os.open)))
            stack.enter_context(patch.object(chunkfiles._LIBC, "syncfs", self._synced))
            stack.enter_context(patch.object(os, "fsync", lambda _number: None))
            yield

    def _counting(self, name: str, change: Callable[..., object]) -> Callable[..., object]:
        def changed(*arguments: object, **more: object) -> object:
            if self.is_killed:
                raise Killed
            done = change(*arguments, **more)
            self._after(name, *(each for each in arguments[:2] if isinstance(each, str | Path)))
            return done

        return changed

    def _opening(self, opened: Callable[..., int]) -> Callable[..., int]:
        def changed(path: str | Path, flags: int, *more: int, **others: int) -> int:
            if not flags & _CREATES:
                return opened(path, flags, *more, **others)
            if self.is_killed:
                raise Killed
            number = opened(path, flags, *more, **others)
            try:
                self._after("open", path)
            except BaseException:
                os.close(number)
                raise
            return number

        return changed

    def _synced(self, _number: int) -> int:
        """Take note in place of the disk's own sync, which takes up to a second: no machine crashes here."""
        self.unsynced.clear()
        return 0
