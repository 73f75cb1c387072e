"""The journal of a transfer: the chunks that are on the disk, with their digests, for an attempt after this one."""

import os
from collections.abc import Callable, Container
from pathlib import Path

from tessera.agent.nodefiles import is_there, write_through
from tessera.agent.storage.models.digests import chunk_digest
from tessera.api.tessera.storage.modelmanifests import read_journal, write_journal_line

__all__ = ["Journal"]


class Journal:
    """A journal, which is a file; several threads may add to it.

    Args:
        path: of the file.

    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self.known: dict[tuple[int, int], str] = {}
        """The digests of chunks of an earlier attempt, by object and chunk, when it was opened."""

    def open(self) -> None:
        """Read what an earlier attempt has written, and append from now on.

        Raises:
            OSError: the disk is full or broken.

        """
        self.known = dict(read_journal(self._path.read_bytes())) if is_there(self._path) else {}
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.write(self._file, b"\n")  # ends a line torn by a crash

    def restored(self, chunk: tuple[int, int], view: memoryview, read: Callable[[memoryview], bool]) -> str:
        """Fill the view with a chunk of an earlier attempt, and return its digest; empty where it is not that chunk.

        Args:
            chunk: index of the object, index in it.
            view: of its size.
            read: fills the view from the disk, and returns whether all of it is there.

        """
        digest = self.known.get(chunk, "")
        return digest if digest and read(view) and chunk_digest(view) == digest else ""

    def add(self, *chunks: tuple[int, int, str]) -> None:
        """Note chunks: index of the object, index in it, digest."""
        os.write(self._file, b"".join(write_journal_line(*each) for each in chunks))

    def forget(self, wrong: Container[int]) -> None:
        """Remove objects; nothing may be added after it until it is opened again."""
        lines = (
            write_journal_line(*key, digest)
            for key, digest in read_journal(self._path.read_bytes()).items()
            if key[0] not in wrong
        )
        write_through(self._path, b"".join(lines))

    def close(self) -> None:
        """Append no more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
