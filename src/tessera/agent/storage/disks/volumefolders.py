"""The folders of local volumes on a node's disks: created empty, and erased without leaving their file system."""

import errno
import os
import stat
from pathlib import Path

from tessera.agent.emptying import empty_folder
from tessera.agent.nodefiles import disk_fix, printable
from tessera.api.kubernetes.localvolumes import volume_path
from tessera.api.linux.blockdevices import read_mounts
from tessera.core.storage.disks.localvolumes import VolumeFolder
from tessera.errors import Conflict, Unavailable

__all__ = ["VolumeFolders"]

_MODE = 0o777
"""Pods run as any user; the kubelet decides who may reach the folder."""
_ERASE_S = 20.0
"""After so long an erasure is continued in the next pass: the node's other volumes wait meanwhile."""
_MOUNTS = Path("/proc/self/mountinfo")


class VolumeFolders:
    """The folders of one node. Every call checks that the disks are mounted.

    Args:
        mount: where the disks are mounted.

    """

    def __init__(self, mount: Path) -> None:
        self._mount = mount

    def found(self) -> tuple[VolumeFolder, ...]:
        """Return the existing folders; of one that cannot be read, why.

        Raises:
            Unavailable: the disks are not mounted, or it cannot be read which folders there are.

        """
        self._check()
        top = self._folder(0).parent
        try:
            with os.scandir(top) as entries:
                numbers = sorted(int(each.name) for each in entries if _is_number(each.name) and _is_folder(each))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise _failed(top, error) from error
        return tuple(map(self._found, numbers))

    def _found(self, number: int) -> VolumeFolder:
        path = self._folder(number)
        try:
            with os.scandir(path) as inside:
                return VolumeFolder(number=number, empty=next(inside, None) is None and _is_new(path))
        except OSError as error:
            return VolumeFolder(number=number, empty=False, problem=str(_failed(path, error)))

    def make(self, number: int) -> None:
        """Create the empty folder of a volume.

        Raises:
            Unavailable: the disks are not mounted, or cannot be written.

        """
        self._check()
        path = self._folder(number)
        try:
            path.mkdir(parents=True, exist_ok=True)
            _clear_inherited(path)
        except OSError as error:
            raise _failed(path, error) from error

    def erase(self, number: int) -> None:
        """Make the folder of a volume anew, without anything in it; links are removed, and never followed.

        Its former mode, owner, access list and attributes are those of its last user.

        Raises:
            Conflict: something is mounted at the folder, or in it; nothing was removed.
            Unavailable: the disks are not mounted, or something cannot be removed, or not yet: the next call goes on.

        """
        self._check()
        path = self._folder(number)
        try:
            _check_alone(path)
            empty_folder(path, most_s=_ERASE_S)
            path.rmdir()
            path.mkdir()
            _clear_inherited(path)
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


def _clear_inherited(path: Path) -> None:
    """Give a folder that was just made its mode, and take away what it has of the folder above: group and ACL."""
    os.chown(path, 0, 0)
    for name in _attributes(path):
        os.removexattr(path, name)
    path.chmod(_MODE)


def _is_new(path: Path) -> bool:
    """Return whether a folder is as it was made: its user may have changed its mode, owner, attributes and ACL."""
    status = path.lstat()
    found = stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, _attributes(path)
    return found == (_MODE, 0, 0, [])


def _attributes(path: Path) -> list[str]:
    """Return the names of a folder's attributes, ACLs among them, without those of the machine's security modules."""
    return [name for name in os.listxattr(path, follow_symlinks=False) if not name.startswith("security.")]


def _is_number(name: str) -> bool:
    """Return whether a folder has the name of a volume's; 07 is not the name of volume 7."""
    return name.isdecimal() and name == str(int(name))


def _check_alone(path: Path) -> None:
    """Refuse a folder at or in which something is mounted."""
    top = str(path.resolve())
    for each in read_mounts(str(_MOUNTS), _MOUNTS.read_bytes()):
        if each.path == top or each.path.startswith(f"{top}/"):
            where = printable(each.path)
            hint = f"unmount {where}; the volume is erased then"
            raise Conflict(str(path), found=f"something is mounted at {where}", hint=hint)


def _failed(path: Path, error: OSError) -> Unavailable:
    where = printable(error.filename or path)
    fix = disk_fix(error, otherwise="make it a folder that root may change")
    if error.errno in {errno.ETIMEDOUT, errno.ENOTEMPTY}:
        fix = "the rest follows; end what still writes there, if anything does"
    return Unavailable(f"local volume {path}", found=f"{where}: {error.strerror or error}", hint=fix)
