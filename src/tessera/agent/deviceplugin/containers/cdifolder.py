"""The folder of CDI specifications: ours are written atomically, stale ones removed, foreign ones left alone."""

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from tessera.agent.cdisupport import first_file
from tessera.agent.nodefiles import LARGEST_SPEC, printable, read_file
from tessera.api import documents
from tessera.api.nvidia import cdi
from tessera.core.deviceplugin.containers.edits import ShareEdits
from tessera.core.deviceplugin.containers.injection import GPU_KIND, driver_mount
from tessera.errors import InvalidInput, Unavailable, shown

__all__ = ["CdiFolder"]

_OURS = "tessera.dev-"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,100}[A-Za-z0-9])?", re.ASCII)


class CdiFolder:
    """Tessera's specifications in a folder that the container runtime reads: `/var/run/cdi`.

    Args:
        folder: the runtime's.
        driver_specs: written by `nvidia-ctk`; of the first that exists the driver's libraries are taken.
        driver_folder: the host folder with these libraries, mounted where there is no such file; empty for none.

    """

    def __init__(self, folder: Path, *, driver_specs: Iterable[Path] = (), driver_folder: str = "") -> None:
        self._folder = folder
        self._driver_specs = tuple(driver_specs)
        self._driver_folder = driver_folder
        self.driver = cdi.NOTHING
        """The edits for the driver's libraries, as last read by `write_gpus`."""

    def write_gpus(self, edits: Iterable[tuple[str, ShareEdits]], *, dev_root: str) -> None:
        """Write the specification of all whole GPUs and MIG instances; on failure the former one stays.

        Args:
            edits: what a container gets with each, by UUID.
            dev_root: the host folder of the device nodes.

        Raises:
            OSError: the driver's specification cannot be read.
            TesseraError: nor as one, or the folder cannot be written.

        """
        driver_spec = first_file(self._driver_specs)
        if driver_spec is not None:
            found = documents.read(str(driver_spec), read_file(driver_spec, LARGEST_SPEC))
            self.driver = cdi.read_driver_edits(found[0]) if found else cdi.NOTHING
        elif self._driver_folder:
            self.driver = cdi.mounted_driver(driver_mount(self._driver_folder))
        self.write("gpu", cdi.write(GPU_KIND, dict(edits), self.driver, dev_root=dev_root))

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
