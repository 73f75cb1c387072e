"""The folder of CDI specifications: ours are written atomically, stale ones removed, foreign ones left alone."""

import os
import re
from collections.abc import Collection
from pathlib import Path

from tessera.agent.nodefiles import printable
from tessera.errors import InvalidInput, Unavailable, shown

__all__ = ["CdiFolder"]

_OURS = "tessera.dev-"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,100}[A-Za-z0-9])?", re.ASCII)


class CdiFolder:
    """Tessera's specifications in a folder that the container runtime reads: `/var/run/cdi`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, name: str, text: str) -> bool:
        """Write the specification of this name; return whether its text changed.

        A runtime that reads meanwhile sees the former or the new one: only a complete file has the name's ending.

        Raises:
            InvalidInput: the name would leave the folder.
            Unavailable: the folder cannot be written.

        """
        path = self._path(name)
        try:
            if path.is_file() and path.read_bytes() == text.encode():
                return False
            self._folder.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            partial.write_bytes(text.encode())
            partial.rename(path)
        except OSError as error:
            raise self._unusable(error) from error
        return True

    def keep(self, names: Collection[str], *, prefix: str) -> tuple[str, ...]:
        """Remove our specifications whose name begins with `prefix`, except these; return the removed ones.

        Raises:
            Unavailable: the folder cannot be written.

        """
        removed = []
        try:
            for path in sorted(self._folder.glob(f"{_OURS}{prefix}*")):
                name = printable(Path(path.stem)).removeprefix(_OURS)
                if path.suffix != ".json" or name not in names:
                    path.unlink(missing_ok=True)
                    removed.append(name)
        except OSError as error:
            raise self._unusable(error) from error
        return tuple(removed)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            expected = "letters, digits and _ . - between a letter or digit at both ends"
            raise InvalidInput("CDI specification", found=shown(name), expected=expected)
        return self._folder / f"{_OURS}{name}.json"

    def _unusable(self, error: OSError) -> Unavailable:
        if isinstance(error, IsADirectoryError):
            where = printable(Path(os.fsdecode(error.filename2 or error.filename)))
            return Unavailable(f"CDI specification {where}", found="a folder is in its place", hint="remove it")
        return Unavailable(
            f"CDI folder {self._folder}",
            found=error.strerror or str(error),
            hint="mount the runtime's cdi_spec_dirs into the agent's pod, writable",
        )
