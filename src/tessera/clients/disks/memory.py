"""In-memory disks that behave like the host's: for tests, and to try a plan without disks."""

import contextlib
from collections.abc import AsyncIterator, Iterable

import msgspec

from tessera.core.storage.disks.blockdevices import (
    ArrayMember,
    BlockDevice,
    Creation,
    Mount,
    MountTarget,
    ObservedDisks,
    Signature,
    selected,
)
from tessera.core.storage.disks.plan import DiskSpec
from tessera.core.storage.disks.steps import (
    AssembleArray,
    CreateArray,
    ForgetCreation,
    MakeFilesystem,
    MountFilesystem,
    RecordCreation,
    Step,
    StopArray,
    WipeSignatures,
)
from tessera.errors import Conflict, Unavailable

__all__ = ["MemoryDisks"]

_FIRST_ARRAY = 127
"""md's first number for an array without one, counting down."""


class _Array(msgspec.Struct):
    uuid: str
    slaves: tuple[str, ...]
    state: str = "clean"


class MemoryDisks:
    """The in-memory disks of a node. `put` sets one from outside; a disk's content is its signature or membership.

    Args:
        devices: what the node has at first.

    """

    def __init__(self, devices: Iterable[BlockDevice] = ()) -> None:
        self._disks = {each.name: each for each in devices}
        self._arrays: dict[str, _Array] = {}
        self._contents: dict[str, Signature | None] = {}
        """Of arrays, by UUID: it stays on the disks when an array is stopped."""
        self._beneath: dict[tuple[str, ...], Signature] = {}
        """Former content of the arrays of these disks; a new array has it again, because no disk is erased."""
        self._mounts: dict[str, str] = {}
        self._files: dict[str, str] = {}
        """What `write` wrote, by the UUID of the filesystem, or by the path where none is mounted."""
        self._record: Creation | None = None
        self._busy = False
        self._fail_after: int | None = None

    @property
    def in_use(self) -> bool:
        """Whether any array is known to md or anything mounted."""
        return bool(self._arrays or self._mounts)

    def put(self, device: BlockDevice) -> None:
        """Set a disk, as a foreign program or a replacement would."""
        self._disks[device.name] = device
        self._beneath = {names: each for names, each in self._beneath.items() if device.name not in names}

    def remove(self, name: str) -> None:
        """Remove a disk; an active array on it breaks."""
        del self._disks[name]
        for array in self._arrays.values():
            if name in array.slaves:
                array.state = "broken"

    def wipe(self, name: str) -> None:
        """Remove the signatures of a disk, and no more of it, as `wipefs --all` does."""
        self._disks[name] = msgspec.structs.replace(self._disks[name], signature=None, member=None)

    def mount(self, name: str, path: str) -> None:
        """Mount a device somewhere, as a foreign program would."""
        self._mounts[path] = name

    def write(self, path: str, text: str) -> None:
        """Put a file into the folder at a path: into the filesystem that is mounted there, if one is."""
        self._files[self._filesystem(path)] = text

    def read(self, path: str) -> str:
        """Return what `write` wrote into what is at the path now; nothing where that was made or mounted since."""
        return self._files.get(self._filesystem(path), "")

    def reboot(self) -> None:
        """Unmount all and stop all arrays; what is on disks stays, and the record of a creation too."""
        self._mounts.clear()
        self._arrays.clear()

    def half_assemble(self, names: Iterable[str]) -> None:
        """Let md know some members of an array, as while udev reports one disk after the other."""
        members = [member for name in names if (member := self._disks[name].member) is not None]
        self._arrays[self._number()] = _Array(members[0].array, tuple(names), "inactive")

    def content(self, name: str) -> Signature | ArrayMember | None:
        """Return the signature or array member on a disk, without its users."""
        disk = self._disks[name]
        return disk.member or disk.signature

    def fail_after(self, devices: int) -> None:
        """Let the next step that writes to devices end after so many of them."""
        self._fail_after = devices

    async def observe(self, spec: DiskSpec) -> ObservedDisks:
        """Return all block devices as they are now; the content of those that the spec selects, and of their arrays."""
        names = {each.name for each in selected(self._disks.values(), spec.select)}
        disks = [self._observed(each, probed=each.name in names) for each in self._disks.values()]
        arrays = [self._array(name, each, names) for name, each in self._arrays.items()]
        source = self._mounts.get(spec.mount, "")
        size = next((each.size_bytes for each in (*disks, *arrays) if each.name == source), 0)
        empty = not source and spec.mount not in self._files
        target = MountTarget(source=source, empty=empty, size_bytes=size, free_bytes=size)
        return ObservedDisks(devices=(*disks, *arrays), target=target, unfinished=self._record)

    async def apply(self, step: Step) -> None:
        """Do one step; of one that fails half way, as `fail_after` says, the first devices have what it writes."""
        match step:
            case RecordCreation(creation=creation):
                self._record = creation
            case ForgetCreation():
                self._record = None
            case StopArray(device=device):
                self._stop(device)
            case WipeSignatures():
                self._wipe(step)
            case CreateArray():
                self._create(step)
            case AssembleArray():
                self._assemble(step)
            case MakeFilesystem():
                self._format(step)
            case MountFilesystem(device=device, path=path):
                self._mounts[path] = self._resolved(device)

    @contextlib.asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Be the only one who changes disks."""
        if self._busy:
            raise Conflict(
                "disks of this node", found="another process is at work on them", hint="try again when it has ended"
            )
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def _observed(self, disk: BlockDevice, *, probed: bool) -> BlockDevice:
        holders = tuple(name for name, array in self._arrays.items() if disk.name in array.slaves)
        known = msgspec.structs.replace(
            disk, holders=(*disk.holders, *holders), mounts=(*disk.mounts, *self._mounted(disk.name)), probed=probed
        )
        return known if probed else msgspec.structs.replace(known, signature=None, member=None)

    def _array(self, name: str, array: _Array, selection: set[str]) -> BlockDevice:
        size = sum(self._disks[each].size_bytes for each in array.slaves if each in self._disks)
        inactive = array.state == "inactive"
        probed = not inactive and not selection.isdisjoint(array.slaves)
        return BlockDevice(
            name=name,
            kind="array",
            size_bytes=0 if inactive else size,
            slaves=array.slaves,
            array_state=array.state,
            mounts=self._mounted(name),
            probed=probed,
            signature=self._contents.get(array.uuid) if probed else None,
        )

    def _filesystem(self, path: str) -> str:
        """Return the UUID of the filesystem at a path, or the path."""
        name = self._mounts.get(path, "")
        array = self._arrays.get(name)
        content = self._contents.get(array.uuid) if array else self._disks[name].signature if name else None
        return content.uuid if content else path

    def _mounted(self, name: str) -> tuple[Mount, ...]:
        return tuple(Mount(path=path) for path, device in self._mounts.items() if device == name)

    def _stop(self, device: str) -> None:
        name = _name(device)
        if self._mounted(name):
            raise _failure("mdadm", f"{name} is in use")
        self._arrays.pop(name, None)

    def _wipe(self, step: WipeSignatures) -> None:
        for name in self._written("wipefs", step.devices):
            if name in self._arrays:
                self._hold(self._arrays[name], None)
            else:
                self.wipe(name)

    def _assemble(self, step: AssembleArray) -> None:
        members = [self._disks[_name(each)].member for each in step.devices]
        if any(each is None or each.array != step.uuid or each.devices != len(members) for each in members):
            raise _failure("mdadm", "not all devices of the array")
        self._arrays[self._number()] = _Array(step.uuid, tuple(map(_name, step.devices)))

    def _create(self, step: CreateArray) -> None:
        names = tuple(map(_name, step.devices))
        for name in names:
            disk = self._observed(self._disks[name], probed=True)
            if disk.holders or disk.mounts or disk.read_only:
                raise _failure("mdadm", f"{name} is busy")
        member = ArrayMember(array=step.uuid, name=step.name, level="raid0", devices=len(names))
        signature = Signature(kind="linux_raid_member", uuid=step.uuid, label=f"any:{step.name}")
        self._contents[step.uuid] = self._beneath.get(names)
        for name in self._written("mdadm", step.devices):
            self._disks[name] = msgspec.structs.replace(self._disks[name], member=member, signature=signature)
        self._arrays[self._number()] = _Array(step.uuid, names)

    def _format(self, step: MakeFilesystem) -> None:
        name = self._resolved(step.device)
        if self._mounted(name):
            raise _failure(f"mkfs.{step.filesystem}", f"{name} is mounted")
        interrupted = self._fail_after is not None
        self._files.pop(step.uuid, None)
        # Interrupted, XFS has its UUID on the disk already, and no label.
        signature = Signature(kind=step.filesystem, uuid=step.uuid, label="" if interrupted else step.label)
        if name in self._arrays:
            self._hold(self._arrays[name], signature)
        else:
            self.put(msgspec.structs.replace(self._disks[name], signature=signature, member=None))
        if interrupted:
            self._fail_after = None
            raise _failure(f"mkfs.{step.filesystem}", "interrupted")
        self._record = None

    def _hold(self, array: _Array, signature: Signature | None) -> None:
        self._contents[array.uuid] = signature
        self._beneath.pop(array.slaves, None)
        if signature is not None:
            self._beneath[array.slaves] = signature

    def _written(self, program: str, devices: tuple[str, ...]) -> Iterable[str]:
        """Give the devices that a program writes to, one after the other."""
        for number, each in enumerate(devices):
            if self._fail_after == number:
                self._fail_after = None
                raise _failure(program, "interrupted")
            yield _name(each)

    def _resolved(self, device: str) -> str:
        """Return the kernel's name of a device; `/dev/md/NAME` is a link to the array of that name."""
        name = _name(device)
        if name in self._disks or name in self._arrays:
            return name
        member = {each: self._disks[array.slaves[0]].member for each, array in self._arrays.items()}
        return next(each for each, known in member.items() if known is not None and f"md/{known.name}" == name)

    def _number(self) -> str:
        return next(f"md{number}" for number in range(_FIRST_ARRAY, 0, -1) if f"md{number}" not in self._arrays)


def _name(device: str) -> str:
    return device.removeprefix("/dev/")


def _failure(program: str, found: str) -> Unavailable:
    return Unavailable(program, found=found, hint="correct that, then apply again")
