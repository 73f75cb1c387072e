"""The rest of a node's disks as local PersistentVolumes: a folder each, erased before the next claim gets it.

Kubernetes binds, mounts and unmounts them; a volume whose claim is gone is `Released`. Only then, or while no volume
names it, is a folder erased. Volumes are created only on empty folders, so none shows a former user's files.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

__all__ = [
    "CreateVolume",
    "DeleteVolume",
    "EraseFolder",
    "LocalVolume",
    "MakeFolder",
    "VolumeFolder",
    "VolumePlan",
    "VolumeSpec",
    "plan_volumes",
]

Phase = Literal["Pending", "Available", "Bound", "Released", "Failed"]
"""Source: kubernetes/api `core/v1/types.go` (`PersistentVolumePhase`)."""
_MIB = 1 << 20
_NOTHING: Final[Mapping[int, str]] = {}


class VolumeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The desired local volumes of a node."""

    count: int = 0
    reserved_bytes: int = 0
    """The part of the disks without volumes: the room of models, data sets and images."""


class VolumeFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A volume's folder on the disks."""

    number: int
    empty: bool
    problem: str = ""
    """Why it cannot be read; empty where it can."""


class LocalVolume(msgspec.Struct, frozen=True, kw_only=True):
    """A PersistentVolume of this node."""

    number: int
    phase: Phase


class MakeFolder(msgspec.Struct, frozen=True, tag_field="do", tag="make-folder"):
    """Create the empty folder of a volume."""

    number: int


class EraseFolder(msgspec.Struct, frozen=True, tag_field="do", tag="erase-folder"):
    """Remove everything in the folder of a volume, and leave it empty."""

    number: int


class CreateVolume(msgspec.Struct, frozen=True, tag_field="do", tag="create-volume"):
    """Create the PersistentVolume of an empty folder."""

    number: int
    capacity_bytes: int


class DeleteVolume(msgspec.Struct, frozen=True, tag_field="do", tag="delete-volume"):
    """Delete a PersistentVolume that is not in use; its folder stays."""

    number: int


VolumeAction = MakeFolder | EraseFolder | CreateVolume | DeleteVolume


class VolumePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The actions to take now; their consequences are planned after the next observation."""

    actions: tuple[VolumeAction, ...] = ()
    notes: tuple[str, ...] = ()


def plan_volumes(
    spec: VolumeSpec,
    size_bytes: int,
    folders: Iterable[VolumeFolder],
    volumes: Iterable[LocalVolume],
    named: Mapping[int, str] = _NOTHING,
) -> VolumePlan:
    """Return the action for each volume, at most one each, and none for a folder that cannot be read.

    Args:
        spec: what is desired.
        size_bytes: of the filesystem on the disks, which must be mounted: otherwise another disk is at its path.
        folders: the existing ones.
        volumes: the PersistentVolumes of this node.
        named: other PersistentVolumes that name the folder of a volume, by its number.

    """
    there = {each.number: each for each in folders}
    known = {each.number: each for each in volumes}
    capacity = max(0, size_bytes - spec.reserved_bytes) // max(1, spec.count) // _MIB * _MIB
    actions: list[VolumeAction] = []
    notes = []
    if spec.count and not capacity:
        notes.append(f"no room for {spec.count} volumes: all of {size_bytes >> 20} MiB is reserved")
    for number in sorted({*range(spec.count), *known}):
        folder = there.get(number)
        if folder is not None and folder.problem:
            notes.append(folder.problem)
            continue
        action, note = _planned(number, known.get(number), folder, capacity, desired=number < spec.count)
        if isinstance(action, EraseFolder) and number in named:
            action, note = None, _named_by(number, named[number])
        actions += [action] if action else []
        notes += [note] if note else []
    return VolumePlan(actions=tuple(actions), notes=tuple(notes))


def _named_by(number: int, volume: str) -> str:
    return (
        f"volume {number}: PersistentVolume {volume} names its folder and is not known as this node's: nothing is "
        "erased; give it its label and annotation back, or delete it"
    )


def _planned(
    number: int, volume: LocalVolume | None, folder: VolumeFolder | None, capacity: int, *, desired: bool
) -> tuple[VolumeAction | None, str]:
    """Return the action for one volume, and a note about it."""
    if volume is None:
        return _offered(number, folder, capacity), ""
    if volume.phase == "Released":
        return (EraseFolder(number) if folder and not folder.empty else DeleteVolume(number)), ""
    if volume.phase == "Bound":
        if folder is None:
            return None, f"volume {number} is bound and its folder is missing, with its contents: delete its claim"
        return None, "" if desired else f"volume {number} is one more than desired; it is kept while it is bound"
    if volume.phase == "Failed":
        return None, f"volume {number} failed: see its events, and delete it"
    unused = MakeFolder(number) if folder is None else None
    return (unused if desired else DeleteVolume(number)), ""


def _offered(number: int, folder: VolumeFolder | None, capacity: int) -> VolumeAction | None:
    """Return the next step for a missing volume; None if there is no room."""
    if folder is None:
        return MakeFolder(number) if capacity else None
    if not folder.empty:
        return EraseFolder(number)
    return CreateVolume(number, capacity) if capacity else None
