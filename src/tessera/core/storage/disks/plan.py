"""The plan for a node's local disks: found, left alone, assembled, formatted once, mounted.

Nothing on a disk is ever overwritten, with one exception: what an interrupted creation left, which the node's record
names by its UUIDs (`Creation`). Anything else on a selected disk is either recognized and kept, or the plan is
a refusal with the reason. The plan is made again after each step, so an interrupted step is planned again.
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from tessera.core.storage.disks.blockdevices import (
    CLOUD_DISKS,
    ArrayMember,
    BlockDevice,
    Creation,
    ObservedDisks,
    Signature,
    selected,
)
from tessera.core.storage.disks.steps import (
    AssembleArray,
    CreateArray,
    Filesystem,
    ForgetCreation,
    MakeFilesystem,
    MountFilesystem,
    RecordCreation,
    Step,
    StopArray,
    WipeSignatures,
)
from tessera.errors import InvalidInput, shown

__all__ = ["DiskContent", "DiskFinding", "DiskPlan", "DiskSpec", "DiskState", "check_spec", "plan_disks"]

_FILESYSTEMS = ("ext4", "xfs")
_LEVEL = "raid0"
_IDLE = frozenset({"inactive", "clear"})
"""States in which md has an array's name and does not run it. Source: Documentation/admin-guide/md.rst."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,11}", re.ASCII)
"""A name that is valid as a label of XFS, which has 12 bytes, of ext4, and as a name for mdadm."""


class DiskSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The desired local disks of a node."""

    name: str = "tessera"
    """Of the array, and label of the filesystem: they are recognized by it."""
    select: tuple[str, ...] = CLOUD_DISKS
    """Paths, or names in `/dev/disk/by-id`, with wildcards."""
    filesystem: Filesystem = "ext4"
    """For a new one; an existing one is kept."""
    mount: str = "/mnt/disks/tessera"


class DiskState(StrEnum):
    """State of a node's disks."""

    READY = "ready"
    PENDING = "pending"
    """There are steps to take."""
    LOST = "disk lost"
    """A disk of the array is gone, and with it the array's content."""
    REFUSED = "refused"
    """An administrator has to decide; nothing is done."""
    NONE = "no disks"
    """No disk is selected."""


class DiskContent(StrEnum):
    """Content of a selected disk."""

    BLANK = "blank"
    UNFINISHED = "unfinished"
    """Left by an interrupted creation."""
    MEMBER = "member"
    """Part of the array of this name."""
    FILESYSTEM = "filesystem"
    """The filesystem of this name."""
    FOREIGN = "foreign"


class DiskFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A selected disk and its content."""

    device: str
    size_bytes: int
    model: str
    serial: str
    content: DiskContent
    found: str
    """In words."""


class DiskPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The steps to take, or why there are none."""

    state: DiskState
    steps: tuple[Step, ...] = ()
    disks: tuple[DiskFinding, ...] = ()
    device: str = ""
    """The device with the filesystem, as far as it exists."""
    mount: str = ""
    """Where it is mounted; empty while it is not, or is no longer whole."""
    size_bytes: int = 0
    free_bytes: int = 0
    reasons: tuple[str, ...] = ()
    """Why nothing is done."""
    advice: str = ""
    notes: tuple[str, ...] = ()
    """Notes that stop nothing."""


class _Inputs(NamedTuple):
    """The input of a plan."""

    observed: ObservedDisks
    spec: DiskSpec
    disks: tuple[BlockDevice, ...]
    fresh: Creation

    @property
    def arrays(self) -> list[BlockDevice]:
        """The arrays on any of the disks, active or not."""
        names = {disk.name for disk in self.disks}
        return [each for each in self.observed.devices if each.kind == "array" and not names.isdisjoint(each.slaves)]

    @property
    def begun(self) -> Creation | None:
        """The interrupted creation on these disks."""
        unfinished = self.observed.unfinished
        return unfinished if unfinished is not None and unfinished.disks == self.names else None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(disk.name for disk in self.disks))


def check_spec(spec: DiskSpec) -> DiskSpec:
    """Return a valid spec.

    Raises:
        InvalidInput: its name is not a label, it selects nothing, or its path is not one below `/`.

    """
    if not _NAME.fullmatch(spec.name):
        desired = "at most 12 letters, digits, '-', '_' and '.', the first a letter or digit"
        raise InvalidInput("name of the disks", found=shown(spec.name), expected=desired)
    if not spec.select or not all(spec.select):
        raise InvalidInput(
            "selection of disks", found="a pattern is empty", hint="name files in /dev/disk/by-id, or paths"
        )
    plain = re.fullmatch(r"(/[^/\0\n]+)+", spec.mount)
    if not plain or {".", ".."}.intersection(spec.mount.split("/")):
        raise InvalidInput("mount path of the disks", found=shown(spec.mount), expected="an absolute path without `..`")
    return spec


def plan_disks(observed: ObservedDisks, spec: DiskSpec, fresh: Creation) -> DiskPlan:
    """Return the steps that prepare the selected disks, none where they are ready, or why nothing may be done.

    Args:
        observed: the node, with selected disks and arrays probed.
        spec: the desired disks.
        fresh: unused UUIDs, for what may have to be created.

    """
    inputs = _Inputs(observed, spec, selected(observed.devices, spec.select), fresh)
    disks = tuple(_finding(disk, inputs) for disk in inputs.disks)
    foreign = [disk for disk, each in zip(inputs.disks, disks, strict=True) if each.content is DiskContent.FOREIGN]
    members = [disk for disk, each in zip(inputs.disks, disks, strict=True) if each.content is DiskContent.MEMBER]
    made = [disk for disk, each in zip(inputs.disks, disks, strict=True) if each.content is DiskContent.FILESYSTEM]
    unused = [each.device for each in disks if each.content in {DiskContent.BLANK, DiskContent.UNFINISHED}]
    if not disks:
        plan = _none(inputs)
    elif foreign:
        reasons = tuple(f"{each.device} {each.found}" for each in disks if each.content is DiskContent.FOREIGN)
        plan = DiskPlan(state=DiskState.REFUSED, reasons=reasons, advice=_foreign_advice(inputs, foreign))
    elif members and made:
        plan = _refuse(f"{_names(made)} has the filesystem and {_names(members)} the array called {spec.name}")
    elif members:
        plan = _plan_array(inputs, members, unused)
    elif len(made) > 1:
        plan = _refuse(f"{_names(made)} have a filesystem called {spec.name} each")
    elif made:
        plan = _plan_use(inputs, made[0])
    else:
        plan = _plan_creation(inputs)
    if unused and (members or made) and plan.state in {DiskState.READY, DiskState.PENDING}:
        note = f"{', '.join(unused)} not used: {'the array' if members else 'the filesystem'} was made without"
        plan = msgspec.structs.replace(plan, notes=(*plan.notes, note))
    if plan.state is DiskState.READY:
        target = observed.target
        plan = msgspec.structs.replace(
            plan, mount=spec.mount, size_bytes=target.size_bytes, free_bytes=target.free_bytes
        )
    return msgspec.structs.replace(plan, disks=disks)


def _none(inputs: _Inputs) -> DiskPlan:
    disks = [each for each in inputs.observed.devices if each.kind == "disk" and each.size_bytes]
    devices = {each.name: each for each in inputs.observed.devices}
    unused = [each.path for each in disks if not _is_used(each, devices)]
    reason = f"no disk matches {', '.join(inputs.spec.select)}"
    advice = f"--select takes others of this node: {', '.join(unused)}"
    if not unused:
        used = ", ".join(each.name for each in disks)
        advice = f"attach a disk; those of this node are in use: {used}" if disks else "this node has no disk"
    return DiskPlan(state=DiskState.NONE, reasons=(reason,), advice=advice)


def _refuse(reason: str, advice: str = "") -> DiskPlan:
    return DiskPlan(
        state=DiskState.REFUSED, reasons=(reason,), advice=advice or "select the disks that belong together"
    )


def _is_used(device: BlockDevice, devices: Mapping[str, BlockDevice]) -> bool:
    """Return whether a device, or one of its partitions, is mounted, swap, or part of something."""
    parts = [device, *(devices[name] for name in device.partitions if name in devices)]
    return any(each.mounts or each.swap or each.holders for each in parts)


def _foreign_advice(inputs: _Inputs, foreign: Sequence[BlockDevice]) -> str:
    """Return what to do about foreign disks: they are wiped only if all were read and nothing uses them."""
    devices = {each.name: each for each in inputs.observed.devices}
    partitions = [devices.get(name) for disk in foreign for name in disk.partitions]
    if any(each.problem or not each.probed for each in foreign):
        return "select other disks; only root can read disks, and the kernel's log has their errors"
    if any(each is None or each.mounts or each.swap or each.holders for each in (*foreign, *partitions)):
        return "select other disks, or unmount these and end what uses them first"
    if any(each.read_only or not each.size_bytes for each in foreign):
        return "select other disks, or see the kernel's log"
    paths = " ".join(each.path for each in (*partitions, *foreign) if each is not None)
    return f"select other disks, or, if nothing on these is needed, `wipefs --all {paths}`"


def _names(devices: Sequence[BlockDevice]) -> str:
    return ", ".join(each.name for each in devices)


def _finding(disk: BlockDevice, inputs: _Inputs) -> DiskFinding:
    content, found = _content(disk, inputs)
    return DiskFinding(
        device=disk.name,
        size_bytes=disk.size_bytes,
        model=disk.model,
        serial=disk.serial,
        content=content,
        found=found,
    )


def _content(disk: BlockDevice, inputs: _Inputs) -> tuple[DiskContent, str]:
    """Return the content of a disk, and the same in words."""
    if reason := _claimed(disk):
        return DiskContent.FOREIGN, reason
    arrays = {each.name: each for each in inputs.arrays}
    builders = [name for name in disk.holders if disk.member is None or name not in arrays]
    if builders:
        return DiskContent.FOREIGN, f"is in use by {', '.join(builders)}"
    if disk.member is not None:
        used = any(arrays[name].mounts for name in disk.holders)
        return _member_content(disk, disk.member, inputs, used=used)
    return _plain_content(disk, inputs)


def _member_content(disk: BlockDevice, member: ArrayMember, inputs: _Inputs, *, used: bool) -> tuple[DiskContent, str]:
    """Return the content of an array's member; `used` is whether the array is mounted."""
    name, unfinished = inputs.spec.name, inputs.observed.unfinished
    begun = unfinished is not None and member.array == unfinished.array
    if reason := _mounted(disk):
        return DiskContent.FOREIGN, reason
    if member.level != _LEVEL or not (begun or member.name == name):
        return DiskContent.FOREIGN, f"is part of the {shown(member.level)} array {shown(member.name)}"
    if begun and not used:
        return DiskContent.UNFINISHED, "left by an interrupted creation"
    return DiskContent.MEMBER, f"part of array {name}"


def _plain_content(disk: BlockDevice, inputs: _Inputs) -> tuple[DiskContent, str]:
    """Return the content of a disk that is not a member of an array."""
    signature, unfinished = disk.signature, inputs.observed.unfinished
    if signature is not None and signature.kind in _FILESYSTEMS and signature.label == inputs.spec.name:
        begun = unfinished is not None and signature.uuid == unfinished.filesystem and not disk.mounts
        if not begun:
            return DiskContent.FILESYSTEM, f"{signature.kind} filesystem {inputs.spec.name}"
    if reason := _mounted(disk):
        return DiskContent.FOREIGN, reason
    if signature is None:
        return DiskContent.BLANK, "blank"
    if unfinished is not None and signature.uuid == unfinished.filesystem:
        return DiskContent.UNFINISHED, "left by an interrupted creation"
    return DiskContent.FOREIGN, _signed(signature)


def _claimed(device: BlockDevice) -> str:
    """Return why a device must not be written to, whatever is on it; empty for no reason."""
    if device.problem or not device.probed:
        return f"cannot be read: {device.problem or 'it was not probed'}"
    if device.partitions:
        return f"has partitions {', '.join(device.partitions)}"
    if device.read_only:
        return "is read-only"
    if device.swap:
        return "is used as swap"
    return "" if device.size_bytes else "has no size"


def _mounted(device: BlockDevice) -> str:
    paths = ", ".join(shown(each.path) for each in device.mounts)
    return f"is mounted at {paths}" if paths else ""


def _signed(signature: Signature) -> str:
    label = f" labeled {shown(signature.label)}" if signature.label else ""
    return f"has a signature of {shown(signature.kind)}{label}"


def _plan_array(inputs: _Inputs, members: list[BlockDevice], unused: list[str]) -> DiskPlan:
    """Return the plan for an array of this name: none of it is ever overwritten."""
    name = inputs.spec.name
    facts = [each.member for each in members if each.member is not None]
    uuid, expected = facts[0].array, facts[0].devices
    active = [each for each in inputs.arrays if each.array_state not in _IDLE]
    if refusal := _array_refusal(inputs, members, len({(each.array, each.devices) for each in facts}), expected):
        return refusal
    if len(members) < expected or any(each.array_state == "broken" for each in active):
        return _lost(inputs, members, expected, unused)
    if active:
        return _plan_use(inputs, active[0], uuid)
    if refusal := _occupied(inputs):
        return refusal
    stops = tuple(StopArray(device=each.path) for each in inputs.arrays)
    assemble = AssembleArray(name=name, uuid=uuid, devices=tuple(each.path for each in members))
    mount = MountFilesystem(device=f"/dev/md/{name}", path=inputs.spec.mount)
    return DiskPlan(state=DiskState.PENDING, steps=(*stops, assemble, mount))


def _array_refusal(inputs: _Inputs, members: list[BlockDevice], arrays: int, expected: int) -> DiskPlan | None:
    """Return the refusal of members of different arrays."""
    name, names = inputs.spec.name, {disk.name for disk in inputs.disks}
    there = {each.name for each in inputs.observed.devices}
    more = sorted({slave for array in inputs.arrays for slave in array.slaves if slave in there} - names)
    if arrays > 1:
        return _refuse(f"{_names(members)} are parts of different arrays called {name}")
    if more:
        return _refuse(f"array {name} is also on {', '.join(more)}, which is not selected", "select all its disks")
    if len(members) > expected:
        return _refuse(f"array {name} has {expected} disks, and {len(members)} say that they are one of them")
    return None


def _lost(inputs: _Inputs, members: list[BlockDevice], expected: int, unused: list[str]) -> DiskPlan:
    missing = expected - len(members)
    what = (
        f"{missing} of its {expected} disks {'is' if missing == 1 else 'are'} missing" if missing else "a disk failed"
    )
    blank = f"; {', '.join(unused)} blank, as a replaced disk is" if unused else ""
    reason = f"array {inputs.spec.name} on {_names(members)}: {what}{blank}; RAID 0 has no copy of what was on it"
    umount = "".join(f"`umount {each.path}` for each mount, " for each in inputs.arrays if each.mounts)
    stop = umount + "".join(f"`mdadm --stop {each.path}`, " for each in inputs.arrays)
    devices = " ".join(each.path for each in members)
    attach = "attach what is missing, and apply again; " if missing else ""
    advice = f"{attach}to start over, end what uses it, then {stop}`wipefs --all {devices}`, and apply again"
    return DiskPlan(
        state=DiskState.LOST,
        reasons=(reason,),
        advice=advice,
        device="".join(array.path for array in inputs.arrays[:1]),
    )


def _plan_use(inputs: _Inputs, device: BlockDevice, array: str = "") -> DiskPlan:
    """Return the plan for the device of this name: it is mounted.

    Args:
        inputs: the input of the plan.
        device: the array, or the disk with the filesystem.
        array: UUID of the array.

    """
    spec, unfinished, signature = inputs.spec, inputs.observed.unfinished, device.signature
    if (refusal := _use_refusal(inputs, device)) or signature is None:
        return refusal or _refuse_without_filesystem(inputs, device)
    notes: tuple[str, ...] = ()
    if signature.kind != spec.filesystem:
        notes = (f"{device.name} has {signature.kind}, which is kept; {spec.filesystem} is for a new filesystem",)
    stale = unfinished is not None and (unfinished.array == array or unfinished.filesystem == signature.uuid)
    forget: tuple[Step, ...] = (ForgetCreation(),) if stale else ()
    done = inputs.observed.target.source == device.name
    mount: tuple[Step, ...] = () if done else (MountFilesystem(device=device.path, path=spec.mount),)
    state = DiskState.PENDING if forget or mount else DiskState.READY
    return DiskPlan(state=state, steps=(*forget, *mount), notes=notes, device=device.path)


def _use_refusal(inputs: _Inputs, device: BlockDevice) -> DiskPlan | None:
    """Return why a device of this name cannot be used as it is."""
    target, signature = inputs.observed.target, device.signature
    holders = f"is in use by {', '.join(device.holders)}" if device.holders else ""
    if reason := _claimed(device) or holders:
        return _refuse(f"{device.name} {reason}", "see what uses it, and end that")
    if signature is not None and signature.kind not in _FILESYSTEMS:
        return _refuse(f"{device.name} {_signed(signature)}", f"expected is {' or '.join(_FILESYSTEMS)}")
    if target.source != device.name:
        return _occupied(inputs)
    if target.read_only:
        reason = f"{device.name} is mounted read-only at {inputs.spec.mount}, as the kernel does after errors"
        return _refuse(reason, "read the kernel's log; unmount it, check the filesystem, apply again")
    return None


def _refuse_without_filesystem(inputs: _Inputs, device: BlockDevice) -> DiskPlan:
    """Return the refusal of an array of this name without content: no creation ends like that."""
    reason = f"array {inputs.spec.name} ({device.name}) has no filesystem: it was overwritten or never created"
    disks = " ".join(disk.path for disk in inputs.disks)
    anew = f"`mdadm --stop {device.path}`, `wipefs --all {disks}`, apply again"
    return _refuse(reason, f"repair it, or, if nothing on it is needed: {anew}")


def _occupied(inputs: _Inputs) -> DiskPlan | None:
    """Return the refusal of a path where a mount would hide something."""
    target, path = inputs.observed.target, inputs.spec.mount
    if target.source:
        return _refuse(f"{shown(target.source)} is mounted at {path}", "unmount it, or choose another path")
    if not target.empty:
        return _refuse(f"{path} is not an empty folder", "move its files: a filesystem mounted there would hide them")
    return None


def _plan_creation(inputs: _Inputs) -> DiskPlan:
    """Return the steps from empty disks to a mounted filesystem; finished ones are skipped."""
    if refusal := _occupied(inputs):
        return refusal
    disks, arrays = inputs.disks, inputs.arrays
    for each in arrays:
        if each.holders or each.mounts:
            return _refuse(f"{each.name}, left by an interrupted creation, is in use", "see what uses it, and end that")
    # 1. Continue with a complete array.
    complete = [
        each for each in arrays if each.array_state not in _IDLE and {*each.slaves} == {disk.name for disk in disks}
    ]
    if complete and inputs.observed.unfinished:
        array = complete[0]
        if array.problem or not array.probed:
            return _refuse(f"{array.name}, left by an interrupted creation, {_claimed(array)}", "see the kernel's log")
        # Blank disks may have remains of a former array where the data of an array begins: it is still no data.
        wipe = (WipeSignatures(devices=(array.path,)),) if array.signature or array.partitions else ()
        return DiskPlan(
            state=DiskState.PENDING, steps=(*wipe, *_format(inputs, array.path, inputs.observed.unfinished))
        )
    # 2. Remove what an interrupted creation left, by the record; only then record what is written next.
    steps: list[Step] = [StopArray(device=each.path) for each in arrays]
    marked = tuple(disk.path for disk in disks if disk.signature or disk.member)
    steps += [WipeSignatures(devices=marked)] if marked else []
    creation = inputs.begun or msgspec.structs.replace(inputs.fresh, disks=inputs.names)
    steps += [] if inputs.begun else [RecordCreation(creation=creation)]
    # 3. Create.
    if len(disks) == 1:
        return DiskPlan(state=DiskState.PENDING, steps=(*steps, *_format(inputs, disks[0].path, creation)))
    paths = tuple(disk.path for disk in disks)
    steps.append(CreateArray(name=inputs.spec.name, uuid=creation.array, devices=paths))
    device = f"/dev/md/{inputs.spec.name}"
    return DiskPlan(state=DiskState.PENDING, steps=(*steps, *_format(inputs, device, creation)))


def _format(inputs: _Inputs, device: str, creation: Creation) -> tuple[Step, ...]:
    spec = inputs.spec
    make = MakeFilesystem(
        device=device,
        filesystem=spec.filesystem,
        label=spec.name,
        uuid=creation.filesystem,
        striped=len(inputs.disks) > 1,
    )
    return make, MountFilesystem(device=device, path=spec.mount)
