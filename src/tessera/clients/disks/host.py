"""The host's disks: sysfs, blkid, mdadm, mkfs and mount, run without a shell."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from tessera.api.linux.blockdevices import MountEntry, read_member, read_signature
from tessera.api.tessera.storage.creations import read_creation, write_creation
from tessera.clients.disks.commands import command
from tessera.clients.disks.sysfs import DiskPaths, block_devices, mounted
from tessera.core.storage.disks.blockdevices import (
    BlockDevice,
    Creation,
    MountTarget,
    ObservedDisks,
    Signature,
    selected,
)
from tessera.core.storage.disks.plan import DiskSpec
from tessera.core.storage.disks.steps import ForgetCreation, MakeFilesystem, MountFilesystem, RecordCreation, Step
from tessera.errors import Conflict, InvalidInput, Unavailable, Unsupported

__all__ = ["DiskPaths", "HostDisks"]

_PROBE_S = 60.0
_STEP_S = 1800.0
"""Timeout of a step: mkfs on many slow disks."""
_NOTHING, _SEVERAL = 2, 8
"""Exit codes of `blkid -p`. Source: blkid(8)."""
_READ_BYTES = 1 << 16
_SHOWN = 400
_PACKAGES = {"mdadm": "mdadm", "mkfs.xfs": "xfsprogs", "mkfs.ext4": "e2fsprogs"}
"""Debian's and Red Hat's packages of possibly missing programs."""


class _Result(NamedTuple):
    code: int
    output: bytes
    error: str


class HostDisks:
    """The block devices of this machine; needs root and the host's `/dev`.

    Args:
        paths: of the host's files.

    """

    def __init__(self, paths: DiskPaths | None = None) -> None:
        self._paths = paths or DiskPaths()
        self._lock: int | None = None

    async def observe(self, spec: DiskSpec) -> ObservedDisks:
        """Return all block devices, probed if the spec selects them, or they are arrays on selected ones."""
        mounts = mounted(self._paths)
        devices = block_devices(self._paths, mounts)
        names = {each.name for each in selected(devices, spec.select)}
        probed = {
            each.name: await self._probe(each)
            for each in devices
            if each.name in names or (each.kind == "array" and not names.isdisjoint(each.slaves))
        }
        return ObservedDisks(
            devices=tuple(probed.get(each.name, each) for each in devices),
            target=_target(spec.mount, mounts, self._paths),
            unfinished=self._recorded(),
        )

    async def apply(self, step: Step) -> None:
        """Do one step, and return when its result is on the disk."""
        if isinstance(step, RecordCreation):
            self._record(step.creation)
        elif isinstance(step, ForgetCreation):
            self._forget()
        else:
            if isinstance(step, MountFilesystem):
                await asyncio.to_thread(Path(step.path).mkdir, parents=True, exist_ok=True)
            arguments = command(step)
            result = await self._run(arguments, _STEP_S)
            if result.code:
                found = f"exit status {result.code}: {result.error or result.output.decode(errors='replace')[:_SHOWN]}"
                raise Unavailable(" ".join(arguments), found=found, hint="correct that, then apply again")
            if isinstance(step, MakeFilesystem):
                self._forget()

    @contextlib.asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Lock the disks of this node.

        Child programs hold the lock too: one may outlive a killed process.
        """
        self._paths.state.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._paths.state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                found = "another process, or a program that one started, at work on them"
                hint = "try again once it has ended"
                raise Conflict("disks of this node", found=found, hint=hint) from error
            self._lock = lock
            try:
                yield
            finally:
                self._lock = None
        finally:
            os.close(lock)

    async def _probe(self, device: BlockDevice) -> BlockDevice:
        """Return a device with its content, or why that is unknown."""
        if device.kind == "array" and not device.size_bytes:
            return device  # not active: there is nothing to read
        try:
            alone = self._lock is not None and device.kind == "disk" and not (device.holders or device.mounts)
            await asyncio.to_thread(_read_ends, device, alone=alone)
            signature = await self._signature(device)
            if signature is None or signature.kind != "linux_raid_member":
                return msgspec.structs.replace(device, probed=True, signature=signature)
            result = await self._run(("mdadm", "--examine", "--export", device.path), _PROBE_S)
            if result.code:
                return msgspec.structs.replace(device, problem=f"mdadm: {result.error}")
            member = read_member(device.path, result.output, signature)
        except (OSError, InvalidInput, Unavailable) as error:
            reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
            return msgspec.structs.replace(device, problem=reason)
        return msgspec.structs.replace(device, probed=True, signature=signature, member=member)

    async def _signature(self, device: BlockDevice) -> Signature | None:
        # -p reads the device itself: not blkid's cache or udev's database, which may be outdated.
        result = await self._run(("blkid", "-p", "-o", "export", device.path), _PROBE_S)
        if result.code == _NOTHING and not result.output and not result.error:
            return None
        if result.code == _SEVERAL:
            return Signature(kind="several")
        if result.code:
            found = f"exit status {result.code}: {result.error}"
            raise Unavailable(f"blkid {device.path}", found=found, hint="see what is on the disk")
        return read_signature(f"blkid {device.path}", result.output)

    async def _run(self, arguments: tuple[str, ...], timeout_s: float) -> _Result:
        """Return the output of a program, in English.

        Raises:
            Unsupported: the program is missing.
            Unavailable: it does not end in time, and is killed.

        """
        # Without udev's database nothing waits for udev's links: devices go by the kernel's names.
        env = {**os.environ, "LC_ALL": "C", "MDADM_NO_UDEV": "1"}
        env["PATH"] = f"{env.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        inherited = () if self._lock is None else (self._lock,)
        program = arguments[0]
        try:
            process = await asyncio.create_subprocess_exec(
                *arguments, stdin=null, stdout=pipe, stderr=pipe, env=env, pass_fds=inherited
            )
        except OSError as error:
            hint = f"install the package {_PACKAGES.get(program, 'util-linux')}"
            raise Unsupported(program, found=error.strerror or "", hint=hint) from error
        try:
            async with asyncio.timeout(timeout_s):
                output, error_text = await process.communicate()
        except TimeoutError as error:
            found = f"timed out after {timeout_s:g} s"
            hint = "look for disk errors in the kernel log"
            raise Unavailable(" ".join(arguments), found=found, hint=hint) from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        error_line = " ".join(error_text.decode(errors="replace").split())[:_SHOWN]
        return _Result(process.returncode or 0, output, error_line)

    @property
    def _file(self) -> Path:
        return self._paths.state / "creation.json"

    def _recorded(self) -> Creation | None:
        try:
            text = self._file.read_bytes()
        except FileNotFoundError:
            return None
        return read_creation(text, str(self._file))

    def _record(self, creation: Creation) -> None:
        self._paths.state.mkdir(parents=True, exist_ok=True)
        scratch = self._file.with_suffix(".new")
        with scratch.open("wb") as file:
            file.write(write_creation(creation))
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self._file)
        _sync(self._paths.state)

    def _forget(self) -> None:
        self._file.unlink(missing_ok=True)
        _sync(self._paths.state)


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _read_ends(device: BlockDevice, *, alone: bool) -> None:
    """Read the first and the last bytes of a device, because blkid takes an unreadable one for blank.

    Args:
        device: to read.
        alone: whether to fail if anything in the kernel uses it that sysfs does not show, such as ZFS. Only with
            the lock: otherwise another process might begin to use it meanwhile.

    """
    number = os.open(device.path, os.O_RDONLY | os.O_CLOEXEC | (os.O_EXCL if alone else 0))
    try:
        for offset in (0, max(0, device.size_bytes - _READ_BYTES)):
            os.pread(number, _READ_BYTES, offset)
    finally:
        os.close(number)


def _target(path: str, mounts: tuple[MountEntry, ...], paths: DiskPaths) -> MountTarget:
    """Return what is at the mount path of the disks."""
    folder = Path(path).resolve()
    entry = next((each for each in reversed(mounts) if each.path == str(folder)), None)
    if entry is None:
        return MountTarget(empty=not folder.exists() or (folder.is_dir() and not any(folder.iterdir())))
    name = next((each.name for each in block_devices(paths, (entry,)) if each.mounts), entry.source)
    if entry.root != "/":
        name = f"{entry.root} of {name}"
    target = MountTarget(source=name, empty=False, read_only=entry.read_only)
    try:
        space = os.statvfs(folder)
    except OSError:  # a filesystem that lost its disks
        return target
    size, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    return msgspec.structs.replace(target, size_bytes=size, free_bytes=free)
