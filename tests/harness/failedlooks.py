"""A disk of which one call fails: by an error that passes, as where memory or file descriptors end."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

__all__ = ["LOOKS", "Looks"]

LOOKS = ("lstat", "stat", "open", "scandir", "listdir", "readlink")


class Looks:
    """The looks of one call at what is below a folder, one of which fails.

    Args:
        top: the folder.
        failing: the number of the look that fails, from 1.
        error: its errno.
        calls: of `os` that count; changes may be among them.

    """

    def __init__(self, top: Path, failing: int, error: int, calls: Sequence[str] = LOOKS) -> None:
        self._calls = calls
        self._top = os.fspath(top)
        self._failing = failing
        self._error = error
        self._count = 0
        self.failed = ""
        """The look that failed; empty where there were fewer."""

    @contextlib.contextmanager
    def observed(self) -> Iterator[None]:
        """Observe what is called within."""
        with contextlib.ExitStack() as stack:
            for name in self._calls:
                stack.enter_context(patch.object(os, name, self._counting(name, getattr(os, name))))
            yield

    def _counting(self, name: str, look: Callable[..., object]) -> Callable[..., object]:
        def looked(path: object = ".", *arguments: object, **more: object) -> object:
            where = os.fspath(path) if isinstance(path, str | Path) else ""
            if where.startswith(self._top):
                self._count += 1
                if self._count == self._failing:
                    self.failed = f"{name} {where.removeprefix(self._top)}"
                    raise OSError(self._error, os.strerror(self._error), where)
            return look(path, *arguments, **more)

        return looked
