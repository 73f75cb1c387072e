"""The folders of local volumes on a node's disks: created empty, and erased without leaving their file system."""

import os
import shutil
from pathlib import Path

from tessera.api.kubernetes.localvolumes import volume_path
from tessera.core.storage.disks.localvolumes import VolumeFolder
from tessera.errors import Conflict, Unavailable

__all__ = ["VolumeFolders"]

_MODE = 0o777
"""Pods run as any user; the kubelet decides who may reach the folder."""


class VolumeFolders:
    """The folders of one node. Every call checks that the disks are mounted.

    Args:
        mount: where the disks are mounted.

    """

    def __init__(self, mount: Path) -> None:
        self._mount = mount

    def found(self) -> tuple[VolumeFolder, ...]:
        """Return the existing folders.

        Raises:
            Unavailable: the disks are not mounted, or cannot be read.

        """
        self._check()
        top = self._folder(0).parent
        try:
            with os.scandir(top) as entries:
                numbers = sorted(int(each.name) for each in entries if each.name.isdecimal() and _is_folder(each))
            return tuple(VolumeFolder(number=each, empty=not any(self._folder(each).iterdir())) for each in numbers)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise _failed(top, error) from error

    def make(self, number: int) -> None:
        """Create the empty folder of a volume.

        Raises:
            Unavailable: the disks are not mounted, or cannot be written.

        """
        self._check()
        path = self._folder(number)
        try:
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(_MODE)
        except OSError as error:
            raise _failed(path, error) from error

    def erase(self, number: int) -> None:
        """Remove everything in the folder of a volume; links are removed, and never followed.

        Raises:
            Conflict: something is mounted inside; nothing was removed.
            Unavailable: the disks are not mounted, or something cannot be removed.

        """
        self._check()
        path = self._folder(number)
        try:
            _check_alone(path)
            with os.scandir(path) as entries:
                inside = tuple(entries)
            for each in inside:
                if _is_folder(each):
                    shutil.rmtree(each.path)
                else:
                    Path(each.path).unlink()
        except OSError as error:
            raise _failed(path, error) from error

    def _folder(self, number: int) -> Path:
        return Path(volume_path(str(self._mount), number))

    def _check(self) -> None:
        if not self._mount.is_mount():
            raise Unavailable(
                f"disks at {self._mount}", found="nothing is mounted there", hint="see `tessera disks status`"
            )


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _check_alone(path: Path) -> None:
    """Refuse a folder in which another file system is mounted."""
    own = path.stat(follow_symlinks=False).st_dev
    for place, _, _, folder in os.fwalk(path):
        if os.fstat(folder).st_dev != own:
            hint = f"unmount {place}; the volume is erased then"
            raise Conflict(str(path), found=f"something is mounted at {place}", hint=hint)


def _failed(path: Path, error: OSError) -> Unavailable:
    found = f"{error.filename or path}: {error.strerror or error}"
    return Unavailable(f"local volume {path}", found=found, hint="make it a folder that root may change")
