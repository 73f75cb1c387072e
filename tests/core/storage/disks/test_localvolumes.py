"""Local volumes: what is done with each, and that nobody sees or loses files that way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.storage.disks.localvolumes import (
    CreateVolume,
    DeleteVolume,
    EraseFolder,
    LocalVolume,
    MakeFolder,
    Phase,
    VolumeAction,
    VolumeFolder,
    VolumeSpec,
    plan_volumes,
)

MIB = 1 << 20
SIZE = 1000 * MIB
ONE = VolumeSpec(count=1, reserved_bytes=400 * MIB)
PHASES: tuple[Phase, ...] = ("Pending", "Available", "Bound", "Released", "Failed")
EMPTY, FULL = VolumeFolder(number=0, empty=True), VolumeFolder(number=0, empty=False)
BAD = VolumeFolder(number=0, empty=False, problem="local volume 0: Input/output error: replace the disk")

CASES: dict[str, tuple[VolumeSpec, VolumeFolder | None, Phase | None, tuple[VolumeAction, ...]]] = {
    "no volumes are desired": (VolumeSpec(), FULL, None, ()),
    "nothing is there": (ONE, None, None, (MakeFolder(0),)),
    "an empty folder": (ONE, EMPTY, None, (CreateVolume(0, 600 * MIB),)),
    "a folder with files of nobody": (ONE, FULL, None, (EraseFolder(0),)),
    "a volume that waits for a claim": (ONE, EMPTY, "Available", ()),
    "a volume that waits for a claim, without its folder": (ONE, None, "Available", (MakeFolder(0),)),
    "a volume in use": (ONE, FULL, "Bound", ()),
    "a released volume with files": (ONE, FULL, "Released", (EraseFolder(0),)),
    "a released volume without": (ONE, EMPTY, "Released", (DeleteVolume(0),)),
    "a released volume without its folder": (ONE, None, "Released", (DeleteVolume(0),)),
    "one too many, not in use": (VolumeSpec(), EMPTY, "Available", (DeleteVolume(0),)),
    "one too many, released": (VolumeSpec(), FULL, "Released", (EraseFolder(0),)),
    "no room": (VolumeSpec(count=1, reserved_bytes=SIZE), None, None, ()),
    "no room, an empty folder": (VolumeSpec(count=1, reserved_bytes=2 * SIZE), EMPTY, None, ()),
}


@pytest.mark.parametrize("case", CASES)
def test_a_volume_needs_this(case: str) -> None:
    spec, folder, phase, want = CASES[case]
    volumes = [LocalVolume(number=0, phase=phase)] if phase else []
    assert plan_volumes(spec, SIZE, [folder] if folder else [], volumes).actions == want


@pytest.mark.parametrize(
    ("spec", "folder", "phase", "want"),
    [
        (ONE, None, "Bound", "volume 0 is bound and its folder is missing"),
        (VolumeSpec(), FULL, "Bound", "volume 0 is one more than desired"),
        (ONE, FULL, "Failed", "volume 0 failed"),
        *((spec, BAD, phase, BAD.problem) for spec in (ONE, VolumeSpec()) for phase in PHASES),
        (ONE, BAD, None, BAD.problem),
        (VolumeSpec(count=1, reserved_bytes=SIZE), None, None, "no room for 1 volumes: all of 1000 MiB is reserved"),
    ],
)
def test_what_somebody_has_to_know(
    spec: VolumeSpec, folder: VolumeFolder | None, phase: Phase | None, want: str
) -> None:
    volumes = [LocalVolume(number=0, phase=phase)] if phase else []
    plan = plan_volumes(spec, SIZE, [folder] if folder else [], volumes)
    assert plan.actions == ()
    assert plan.notes[0].startswith(want)


def test_a_folder_that_an_unknown_volume_names_is_left() -> None:
    plan = plan_volumes(ONE, SIZE, [FULL], [], {0: "theirs"})
    assert plan.actions == ()
    assert plan.notes[0].startswith("volume 0: PersistentVolume theirs names its folder")
    released = plan_volumes(ONE, SIZE, [FULL], [LocalVolume(number=0, phase="Released")], {0: "theirs"})
    assert (released.actions, released.notes) == ((), plan.notes)
    assert plan_volumes(ONE, SIZE, [EMPTY], [], {0: "theirs"}).actions == (CreateVolume(0, 600 * MIB),)


STATES = st.tuples(st.sampled_from([None, EMPTY, FULL]), st.sampled_from([None, *PHASES]))


@given(st.lists(STATES, max_size=5), st.integers(0, 4), st.integers(0, 2000))
def test_no_file_in_use_is_erased_and_none_is_shown_to_another(
    states: list[tuple[VolumeFolder | None, Phase | None]], count: int, reserved_mib: int
) -> None:
    """Done again until nothing is left to do, it ends; on the way no used folder is erased, no full one offered."""
    spec = VolumeSpec(count=count, reserved_bytes=reserved_mib * MIB)
    folders = {number: folder.empty for number, (folder, _) in enumerate(states) if folder}
    volumes: dict[int, Phase] = {number: phase for number, (_, phase) in enumerate(states) if phase}
    for _ in range(5):
        seen = [VolumeFolder(number=number, empty=empty) for number, empty in folders.items()]
        known = [LocalVolume(number=number, phase=phase) for number, phase in volumes.items()]
        actions = plan_volumes(spec, SIZE, seen, known).actions
        for each in actions:
            match each:
                case MakeFolder(number):
                    assert number not in folders
                    folders[number] = True
                case EraseFolder(number):
                    assert volumes.get(number, "Released") == "Released"
                    folders[number] = True
                case CreateVolume(number, capacity):
                    assert folders[number]
                    assert number not in volumes
                    assert 0 < capacity * count <= SIZE - spec.reserved_bytes
                    volumes[number] = "Available"
                case DeleteVolume(number):
                    assert volumes.pop(number) not in {"Bound", "Failed"}
        if not actions:
            break
    else:
        pytest.fail("actions without end")
    if SIZE - spec.reserved_bytes >= max(1, count) * MIB:
        assert set(range(count)) <= set(volumes)
