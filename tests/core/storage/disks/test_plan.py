"""Plans for disks: what is refused and why, and laws over all states that commands, crashes and people make."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.diskobjects import array, disk
from tessera.clients.disks import MemoryDisks
from tessera.core.storage.disks.blockdevices import (
    ArrayMember,
    BlockDevice,
    Creation,
    Mount,
    MountTarget,
    ObservedDisks,
    Signature,
)
from tessera.core.storage.disks.plan import DiskContent, DiskPlan, DiskSpec, DiskState, check_spec, plan_disks
from tessera.core.storage.disks.steps import CreateArray, MakeFilesystem, Step, WipeSignatures
from tessera.errors import InvalidInput, Unavailable

T = TypeVar("T")
FRESH = Creation(array="f:f:f:f", filesystem="fresh")
BEGUN = Creation(array="b:b:b:b", filesystem="begun", disks=("nvme0n1", "nvme1n1"))
ON_ONE = msgspec.structs.replace(BEGUN, disks=("nvme0n1",))
SPEC = DiskSpec(select=("/dev/nvme*",))
RAID = "linux_raid_member"
NO_COPY = "RAID 0 has no copy of what was on it"


def member(number: int, array: str = "a:a:a:a", **more: Any) -> BlockDevice:
    facts: dict[str, Any] = {"name": "tessera", "level": "raid0", "devices": 2} | more
    return disk(number, signature=Signature(kind=RAID, uuid=array), member=ArrayMember(array=array, **facts))


def in_use(device: BlockDevice, *holders: str) -> BlockDevice:
    return msgspec.structs.replace(device, holders=holders or ("md127",))


def planned(*devices: BlockDevice, target: MountTarget | None = None, unfinished: Creation | None = None) -> DiskPlan:
    observed = ObservedDisks(devices=devices, target=target or MountTarget(), unfinished=unfinished)
    return plan_disks(observed, SPEC, FRESH)


def steps(plan: DiskPlan) -> list[str]:
    return [type(each).__name__ for each in plan.steps]


EXT4 = Signature(kind="ext4", uuid="u", label="tessera")
AT_TARGET = (Mount(path=SPEC.mount),)
ELSEWHERE = (Mount(path="/data"), Mount(path="/more"))

ON_A_DISK: dict[str, tuple[BlockDevice, str]] = {
    "cannot be read": (disk(1, probed=False, problem="Input/output error"), "cannot be read: Input/output error"),
    "was not probed": (disk(1, probed=False), "cannot be read: it was not probed"),
    "has partitions": (disk(1, partitions=("nvme1n1p1", "nvme1n1p2")), "has partitions nvme1n1p1, nvme1n1p2"),
    "is read-only": (disk(1, read_only=True), "is read-only"),
    "is used as swap": (disk(1, swap=True), "is used as swap"),
    "has no size": (disk(1, size_bytes=0), "has no size"),
    "is below a logical volume": (disk(1, holders=("dm-0",)), "is in use by dm-0"),
    "is held by an array that does not say so": (disk(1, holders=("md9",)), "is in use by md9"),
    "is mounted": (disk(1, signature=Signature(kind="xfs"), mounts=ELSEWHERE), "is mounted at '/data', '/more'"),
    "is mounted though its signature is gone": (disk(1, mounts=ELSEWHERE), "is mounted at '/data', '/more'"),
    "is a mounted member": (
        msgspec.structs.replace(member(1), mounts=ELSEWHERE),
        "is mounted at '/data', '/more'",
    ),
    "has a filesystem of another label": (
        disk(1, signature=Signature(kind="ext4", label="da\nta")),
        "has a signature of 'ext4' labeled 'da\\nta'",
    ),
    "has something of our label that is no filesystem of ours": (
        disk(1, signature=Signature(kind="btrfs", label="tessera")),
        "has a signature of 'btrfs' labeled 'tessera'",
    ),
    "is a member of another array": (member(1, name="db"), "is part of the 'raid0' array 'db'"),
    "is a member of an array of another level": (member(1, level="raid1"), "is part of the 'raid1' array 'tessera'"),
    "has RAID that mdadm cannot read": (disk(1, signature=Signature(kind=RAID)), f"has a signature of '{RAID}'"),
}


@pytest.mark.parametrize("case", ON_A_DISK)
def test_one_foreign_disk_refuses_all(case: str) -> None:
    foreign, want = ON_A_DISK[case]
    plan = planned(disk(0), foreign)
    assert (plan.state, plan.steps, plan.reasons) == (DiskState.REFUSED, (), (f"nvme1n1 {want}",))
    assert [each.content for each in plan.disks] == [DiskContent.BLANK, DiskContent.FOREIGN]


FOREIGN_DISKS = st.builds(
    disk,
    st.integers(1, 3),
    probed=st.booleans(),
    problem=st.sampled_from(["", "", "Operation not permitted"]),
    read_only=st.booleans(),
    swap=st.booleans(),
    size_bytes=st.sampled_from([0, 10]),
    holders=st.sampled_from([(), (), ("dm-0",)]),
    mounts=st.sampled_from([(), (), ELSEWHERE]),
    partitions=st.sampled_from([(), (), ("nvme1n1p1",), ("gone1",)]),
    signature=st.sampled_from([None, Signature(kind="xfs"), Signature(kind="LVM2_member")]),
)
PARTITIONS = st.builds(
    disk,
    st.just(1),
    name=st.just("nvme1n1p1"),
    kind=st.just("partition"),
    swap=st.booleans(),
    holders=st.sampled_from([(), (), ("dm-0",)]),
    mounts=st.sampled_from([(), (), AT_TARGET]),
)


@given(st.lists(FOREIGN_DISKS, min_size=1, max_size=3, unique_by=lambda each: each.name), PARTITIONS)
def test_wiping_is_advised_only_for_disks_that_were_read_and_that_nothing_uses(
    disks: list[BlockDevice], partition: BlockDevice
) -> None:
    plan = planned(*disks, partition)
    foreign = [
        each for each, found in zip(sorted(disks, key=lambda each: each.name), plan.disks, strict=True)
        if found.content is DiskContent.FOREIGN
    ]  # fmt: skip
    unused = all(
        each.probed and not each.problem and not (each.mounts or each.swap or each.holders) for each in foreign
    )
    parts = {name for each in foreign for name in each.partitions}
    used = parts - {partition.name} or (parts and (partition.mounts or partition.swap or partition.holders))
    whole = all(each.size_bytes and not each.read_only for each in foreign)
    assert ("wipefs" in plan.advice) == (bool(foreign) and unused and not used and whole)


def test_the_advice_to_wipe_names_what_is_wiped() -> None:
    partition = disk(1, name="nvme1n1p1", kind="partition")
    plan = planned(disk(1, partitions=("nvme1n1p1",)), partition, disk(2, signature=Signature(kind="xfs")))
    assert "if nothing on these is needed, `wipefs --all /dev/nvme1n1p1 /dev/nvme1n1 /dev/nvme2n1`" in plan.advice


def test_a_lost_disk_is_attached_before_anything_is_wiped() -> None:
    devices, *_ = OF_ALL["a member gone"]
    assert planned(*devices).advice.startswith("attach what is missing, and apply again; to start over, end what uses")
    devices, *_ = OF_ALL["all members there and the array broken"]
    assert planned(*devices).advice.startswith("to start over")


def test_where_no_disk_is_selected_those_that_nothing_uses_are_named() -> None:
    root, part = disk(1, partitions=("nvme1n1p1",)), disk(1, name="nvme1n1p1", kind="partition", mounts=ELSEWHERE)

    def advice(*devices: BlockDevice) -> str:
        return plan_disks(ObservedDisks(devices=devices), DiskSpec(select=("/dev/sd*",)), FRESH).advice

    assert advice(disk(0), root, part, disk(2, swap=True)) == "--select takes others of this node: /dev/nvme0n1"
    assert advice(root, part) == "attach a disk; those of this node are in use: nvme1n1"
    assert advice() == "this node has no disk"


READY_ARRAY = array(0, 1, signature=EXT4, mounts=AT_TARGET)
MOUNTED = MountTarget(source="md127", empty=False, size_bytes=100, free_bytes=40)
OF_ALL: dict[str, tuple[tuple[BlockDevice, ...], dict[str, Any], DiskState, str]] = {
    "no disk of the node is selected": ((array(0, 1),), {}, DiskState.NONE, "no disk matches /dev/nvme*"),
    "two arrays of one UUID, one of them left by a creation on more disks": (
        (disk(0), member(1), member(2, devices=3)),
        {},
        DiskState.REFUSED,
        "nvme1n1, nvme2n1 are parts of different arrays called tessera",
    ),
    "a filesystem on one disk and an array on others": (
        (disk(0, signature=EXT4), member(1), member(2)),
        {},
        DiskState.REFUSED,
        "nvme0n1 has the filesystem and nvme1n1, nvme2n1 the array called tessera",
    ),
    "two filesystems of the name": (
        (disk(0, signature=EXT4), disk(1, signature=EXT4)),
        {},
        DiskState.REFUSED,
        "nvme0n1, nvme1n1 have a filesystem called tessera each",
    ),
    "members of two arrays of the name": (
        (member(0), member(1, "c:c:c:c")),
        {},
        DiskState.REFUSED,
        "nvme0n1, nvme1n1 are parts of different arrays called tessera",
    ),
    "more members than the array has": (
        (member(0), member(1), member(2)),
        {},
        DiskState.REFUSED,
        "array tessera has 2 disks, and 3 say that they are one of them",
    ),
    "an array that is also on a disk that is not selected": (
        (in_use(member(0)), array(0, signature=EXT4, slaves=("nvme0n1", "sdb")), disk(9, name="sdb")),
        {},
        DiskState.REFUSED,
        "array tessera is also on sdb, which is not selected",
    ),
    "a member gone": (
        (in_use(member(0, devices=3)), in_use(member(1, devices=3)), array(0, 1, 2, signature=EXT4)),
        {},
        DiskState.LOST,
        f"array tessera on nvme0n1, nvme1n1: 1 of its 3 disks is missing; {NO_COPY}",
    ),
    "two members gone and a blank disk": (
        (member(0, devices=3), disk(1)),
        {},
        DiskState.LOST,
        f"array tessera on nvme0n1: 2 of its 3 disks are missing; nvme1n1 blank, as a replaced disk is; {NO_COPY}",
    ),
    "all members there and the array broken": (
        (in_use(member(0)), in_use(member(1)), array(0, 1, signature=EXT4, array_state="broken")),
        {},
        DiskState.LOST,
        f"array tessera on nvme0n1, nvme1n1: a disk failed; {NO_COPY}",
    ),
    "an array that cannot be read": (
        (in_use(member(0)), in_use(member(1)), array(0, 1, probed=False, problem="Input/output error")),
        {},
        DiskState.REFUSED,
        "md127 cannot be read: Input/output error",
    ),
    "an array below a logical volume": (
        (in_use(member(0)), in_use(member(1)), array(0, 1, holders=("dm-0",))),
        {},
        DiskState.REFUSED,
        "md127 is in use by dm-0",
    ),
    "an array on which nothing is found": (
        (in_use(member(0)), in_use(member(1)), array(0, 1)),
        {},
        DiskState.REFUSED,
        "array tessera (md127) has no filesystem: it was overwritten or never created",
    ),
    "an array on which nothing is found, and it is mounted": (
        (in_use(member(0)), in_use(member(1)), array(0, 1, mounts=AT_TARGET)),
        {"target": MOUNTED},
        DiskState.REFUSED,
        "array tessera (md127) has no filesystem: it was overwritten or never created",
    ),
    "an array with something else on it": (
        (in_use(member(0)), in_use(member(1)), array(0, 1, signature=Signature(kind="LVM2_member"))),
        {},
        DiskState.REFUSED,
        "md127 has a signature of 'LVM2_member'",
    ),
    "a filesystem that the kernel made read-only": (
        (in_use(member(0)), in_use(member(1)), READY_ARRAY),
        {"target": msgspec.structs.replace(MOUNTED, read_only=True)},
        DiskState.REFUSED,
        "md127 is mounted read-only at /mnt/disks/tessera, as the kernel does after errors",
    ),
    "something else at the path, before a filesystem is mounted": (
        (disk(0, signature=EXT4),),
        {"target": MountTarget(source="tmpfs", empty=False)},
        DiskState.REFUSED,
        "'tmpfs' is mounted at /mnt/disks/tessera",
    ),
    "something else at the path, before an array is assembled": (
        (member(0), member(1)),
        {"target": MountTarget(source="tmpfs", empty=False)},
        DiskState.REFUSED,
        "'tmpfs' is mounted at /mnt/disks/tessera",
    ),
    "files at the path, before disks are formatted": (
        (disk(0), disk(1)),
        {"target": MountTarget(empty=False)},
        DiskState.REFUSED,
        "/mnt/disks/tessera is not an empty folder",
    ),
    "an unfinished array that something is built on": (
        (in_use(member(0, BEGUN.array)), in_use(member(1, BEGUN.array)), array(0, 1, holders=("dm-0",))),
        {"unfinished": BEGUN},
        DiskState.REFUSED,
        "md127, left by an interrupted creation, is in use",
    ),
    "an unfinished array that cannot be read": (
        (in_use(member(0, BEGUN.array)), in_use(member(1, BEGUN.array)), array(0, 1, probed=False)),
        {"unfinished": BEGUN},
        DiskState.REFUSED,
        "md127, left by an interrupted creation, cannot be read: it was not probed",
    ),
}


@pytest.mark.parametrize("case", OF_ALL)
def test_disks_that_do_not_belong_together_are_refused(case: str) -> None:
    devices, more, state, want = OF_ALL[case]
    plan = planned(*devices, **more)
    assert (plan.state, plan.steps, plan.reasons) == (state, (), (want,))
    assert plan.advice


PLANS: dict[str, tuple[tuple[BlockDevice, ...], dict[str, Any], list[str]]] = {
    "blank disks": (
        (disk(0), disk(1)),
        {},
        ["RecordCreation", "CreateArray", "MakeFilesystem", "MountFilesystem"],
    ),
    "one blank disk": ((disk(0),), {}, ["RecordCreation", "MakeFilesystem", "MountFilesystem"]),
    "an array that is not assembled": ((member(0), member(1)), {}, ["AssembleArray", "MountFilesystem"]),
    "an array that is assembled in part": (
        (in_use(member(0)), member(1), array(0, array_state="inactive", size_bytes=0, probed=False)),
        {},
        ["StopArray", "AssembleArray", "MountFilesystem"],
    ),
    "an array that is not mounted": (
        (in_use(member(0)), in_use(member(1)), array(0, 1, signature=EXT4)),
        {},
        ["MountFilesystem"],
    ),
    "an array that is mounted elsewhere": (
        (in_use(member(0)), in_use(member(1)), array(0, 1, signature=EXT4, mounts=ELSEWHERE)),
        {},
        ["MountFilesystem"],
    ),
    "an array that is ready": ((in_use(member(0)), in_use(member(1)), READY_ARRAY), {"target": MOUNTED}, []),
    "a creation that ended after some members": (
        (member(0, BEGUN.array), disk(1)),
        {"unfinished": BEGUN},
        ["WipeSignatures", "CreateArray", "MakeFilesystem", "MountFilesystem"],
    ),
    "a creation that ended with the array": (
        (in_use(member(0, BEGUN.array)), in_use(member(1, BEGUN.array)), array(0, 1)),
        {"unfinished": BEGUN},
        ["MakeFilesystem", "MountFilesystem"],
    ),
    "a creation that ended with half of the filesystem": (
        (
            in_use(member(0, BEGUN.array)),
            in_use(member(1, BEGUN.array)),
            array(0, 1, signature=Signature(kind="xfs", uuid=BEGUN.filesystem)),
        ),
        {"unfinished": BEGUN},
        ["WipeSignatures", "MakeFilesystem", "MountFilesystem"],
    ),
    "a creation whose array is on a disk that is no longer selected": (
        (
            in_use(member(0, BEGUN.array)),
            array(0, slaves=("nvme0n1", "sdb")),
            member(1, BEGUN.array),
        ),
        {"unfinished": msgspec.structs.replace(BEGUN, disks=("nvme0n1", "sdb"))},
        ["StopArray", "WipeSignatures", "RecordCreation", "CreateArray", "MakeFilesystem", "MountFilesystem"],
    ),
    "a creation whose array holds what a former array of the disks held": (
        (in_use(member(0, BEGUN.array)), in_use(member(1, BEGUN.array)), array(0, 1, signature=EXT4)),
        {"unfinished": BEGUN},
        ["WipeSignatures", "MakeFilesystem", "MountFilesystem"],
    ),
    "a creation whose array begins with the partition table of a former one": (
        (in_use(member(0, BEGUN.array)), in_use(member(1, BEGUN.array)), array(0, 1, partitions=("md127p1",))),
        {"unfinished": BEGUN},
        ["WipeSignatures", "MakeFilesystem", "MountFilesystem"],
    ),
    "a creation whose array is only half assembled": (
        (
            in_use(member(0, BEGUN.array)),
            member(1, BEGUN.array),
            array(0, array_state="inactive", size_bytes=0, probed=False),
        ),
        {"unfinished": BEGUN},
        ["StopArray", "WipeSignatures", "CreateArray", "MakeFilesystem", "MountFilesystem"],
    ),
    "a creation on one disk that ended with half of the filesystem": (
        (disk(0, signature=Signature(kind="xfs", uuid=BEGUN.filesystem)),),
        {"unfinished": ON_ONE},
        ["WipeSignatures", "MakeFilesystem", "MountFilesystem"],
    ),
    "a creation on one disk that ended before its record was removed": (
        (disk(0, signature=Signature(kind="ext4", uuid=BEGUN.filesystem, label="tessera")),),
        {"unfinished": ON_ONE},
        ["WipeSignatures", "MakeFilesystem", "MountFilesystem"],
    ),
    "a record of a filesystem that is in use": (
        (disk(0, signature=Signature(kind="ext4", uuid=BEGUN.filesystem, label="tessera"), mounts=AT_TARGET),),
        {"unfinished": BEGUN, "target": MountTarget(source="nvme0n1", empty=False)},
        ["ForgetCreation"],
    ),
    "a record of an array that is in use": (
        (
            in_use(member(0, BEGUN.array, name="renamed")),
            in_use(member(1, BEGUN.array, name="renamed")),
            READY_ARRAY,
        ),
        {"unfinished": BEGUN, "target": MOUNTED},
        ["ForgetCreation"],
    ),
    "a record of something else": (
        (in_use(member(0)), in_use(member(1)), READY_ARRAY),
        {"unfinished": BEGUN, "target": MOUNTED},
        [],
    ),
}


@pytest.mark.parametrize("case", PLANS)
def test_what_is_there_needs_these_steps(case: str) -> None:
    devices, more, want = PLANS[case]
    plan = planned(*devices, **more)
    assert steps(plan) == want
    assert plan.state is (DiskState.PENDING if want else DiskState.READY)
    assert not plan.reasons


def test_a_ready_plan_reports_where_and_how_much() -> None:
    plan = planned(in_use(member(0)), in_use(member(1)), READY_ARRAY, disk(2), target=MOUNTED)
    assert (plan.device, plan.mount, plan.size_bytes, plan.free_bytes) == ("/dev/md127", SPEC.mount, 100, 40)
    assert plan.notes == ("nvme2n1 not used: the array was made without",)


def test_another_filesystem_than_desired_is_kept_and_a_disk_beside_it_named() -> None:
    xfs = Signature(kind="xfs", uuid="u", label="tessera")
    mounted = disk(0, signature=xfs, mounts=AT_TARGET)
    plan = planned(mounted, disk(1), target=MountTarget(source="nvme0n1", empty=False))
    assert plan.state is DiskState.READY
    assert plan.notes == (
        "nvme0n1 has xfs, which is kept; ext4 is for a new filesystem",
        "nvme1n1 not used: the filesystem was made without",
    )


def test_a_node_without_disks_reports_it_and_one_with_others_names_them() -> None:
    assert planned().advice == "this node has no disk"
    assert "/dev/sda" in planned(disk(0, name="sda"), disk(1, name="sr0", size_bytes=0)).advice


@pytest.mark.parametrize(
    "spec",
    [
        DiskSpec(name=""),
        DiskSpec(name="thirteen-long"),
        DiskSpec(name="-n"),
        DiskSpec(name="a b"),
        DiskSpec(select=()),
        DiskSpec(select=("",)),
        DiskSpec(mount="/"),
        DiskSpec(mount="mnt"),
        DiskSpec(mount="/mnt/../etc"),
        DiskSpec(mount="/mnt//disks"),
        DiskSpec(mount="/mnt/\n"),
    ],
)
def test_an_invalid_spec_is_refused(spec: DiskSpec) -> None:
    with pytest.raises(InvalidInput):
        check_spec(spec)


def test_a_plain_spec_is_good() -> None:
    assert check_spec(DiskSpec()) == DiskSpec()


# Laws. A story is what happens to a node's disks; after any of them, plans keep the laws.

NUMBERS = st.integers(0, 2)
DESTRUCTIVE = (WipeSignatures, CreateArray, MakeFilesystem)
SIGNATURES = st.builds(
    Signature,
    kind=st.sampled_from(["ext4", "xfs", "LVM2_member", "gpt partition table", "several"]),
    uuid=st.sampled_from(["u", "v"]),
    label=st.sampled_from(["tessera", "data", ""]),
)
MEMBERS = st.builds(
    ArrayMember,
    array=st.sampled_from(["a:a:a:a", "c:c:c:c"]),
    name=st.sampled_from(["tessera", "db"]),
    level=st.sampled_from(["raid0", "raid0", "raid1"]),
    devices=st.integers(0, 4),
)


def foreign_disk(number: int, signature: Signature | None, membership: ArrayMember | None) -> BlockDevice:
    if membership is not None:
        signature = Signature(kind=RAID, uuid=membership.array)
    return disk(number, probed=False, signature=signature, member=membership)


Event = Callable[[MemoryDisks], None]


def put(device: BlockDevice) -> Event:
    """Return an event: the node is off, and a disk has another content when it is on again."""

    def happen(disks: MemoryDisks) -> None:
        disks.reboot()
        disks.put(device)

    return happen


EVENTS = st.one_of(
    st.just(lambda disks: disks.reboot()),
    st.builds(foreign_disk, NUMBERS, st.none() | SIGNATURES, st.none() | MEMBERS).map(put),
    st.builds(lambda number: lambda disks: disks.wipe(f"nvme{number}n1") if not disks.in_use else None, NUMBERS),
    st.builds(lambda devices: lambda disks: disks.fail_after(devices), NUMBERS),
)
SPECS = st.builds(
    lambda number, filesystem: DiskSpec(
        select=tuple(f"/dev/nvme{each}n1" for each in range(number)), filesystem=filesystem
    ),
    st.integers(1, 3),
    st.sampled_from(["ext4", "xfs"]),
)


def done(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of what waits for nothing: disks in memory need no loop."""
    with pytest.raises(StopIteration) as ended:
        work.send(None)
    result: T = ended.value.value
    return result


class Story:
    """A node, each of whose steps is checked against the laws before it is done."""

    def __init__(self) -> None:
        self.disks = MemoryDisks(disk(number, probed=False) for number in range(3))
        self._made = 0

    def observe(self, spec: DiskSpec) -> ObservedDisks:
        return done(self.disks.observe(spec))

    def plan(self, spec: DiskSpec) -> DiskPlan:
        self._made += 1
        fresh = Creation(array=f"{self._made}:0:0:0", filesystem=f"filesystem {self._made}")
        return plan_disks(self.observe(spec), spec, fresh)

    def step(self, spec: DiskSpec) -> bool:
        """Do the next step, if there is one and the node lets it."""
        plan = self.plan(spec)
        assert bool(plan.steps) == (plan.state is DiskState.PENDING)
        assert bool(plan.reasons) == (plan.state not in {DiskState.PENDING, DiskState.READY})
        if not plan.steps:
            return False
        check_destroys_nothing(self.observe(spec), plan.steps[0])
        try:
            done(self.disks.apply(plan.steps[0]))
        except Unavailable:
            self.disks.reboot()
        return True

    def finish(self, spec: DiskSpec) -> DiskPlan:
        for _ in range(20):
            if not self.step(spec):
                return self.plan(spec)
        pytest.fail(f"steps without end: {self.plan(spec)}")


def check_destroys_nothing(observed: ObservedDisks, step: Step) -> None:
    """A step that writes has devices that nothing uses and that hold nothing, but for what the record names.

    On an array that the record names, nothing is data: it was created on disks that held nothing, and never used.
    """
    if not isinstance(step, DESTRUCTIVE):
        return
    begun = observed.unfinished
    assert begun is not None, "what is written is recorded first"
    for path in (step.device,) if isinstance(step, MakeFilesystem) else step.devices:
        device = next(each for each in observed.devices if each.path == path)
        assert device.probed
        assert (device.mounts, device.holders) == ((), ())
        assert (device.swap, device.read_only) == (False, False)
        below = {each.name: each.member for each in observed.devices if each.name in device.slaves}
        members = [device.member] if device.member else list(below.values())
        if members:
            assert {each and each.array for each in members} == {begun.array}
        elif device.signature is not None:
            assert device.signature.uuid == begun.filesystem


@given(st.lists(st.tuples(SPECS, st.integers(0, 6), EVENTS), min_size=1, max_size=8), SPECS)
def test_no_story_leads_to_a_step_that_destroys(story: list[tuple[DiskSpec, int, Event]], last: DiskSpec) -> None:
    """Somebody prepares disks, is interrupted after some steps, and something happens; and so on."""
    node = Story()
    for spec, number, event in story:
        for _ in range(number):
            node.step(spec)
        event(node.disks)
    plan = node.finish(last)
    if plan.state is DiskState.READY:
        node.disks.write(last.mount, "kept")
        node.disks.reboot()
        again = node.finish(last)
        assert (again.state, again.disks) == (DiskState.READY, plan.disks)
        assert node.disks.read(last.mount) == "kept"


@given(SPECS, st.lists(st.none() | st.integers(0, 3), max_size=8))
def test_every_interruption_recovers(spec: DiskSpec, interruptions: list[int | None]) -> None:
    """Crashes between steps (none) and within them (after so many devices) leave disks that the next run completes."""
    node = Story()
    for each in interruptions:
        if each is not None:
            node.disks.fail_after(each)
        node.step(spec)
        node.disks.reboot()
    assert node.finish(spec).state is DiskState.READY
    node.disks.write(spec.mount, "kept")
    node.disks.reboot()
    assert node.finish(spec).state is DiskState.READY
    assert node.disks.read(spec.mount) == "kept"


def test_other_disks_get_an_array_of_another_name_than_those_of_an_interrupted_creation() -> None:
    """What a disk that is selected no more still bears is never taken for a part of the new array."""
    three, two = (DiskSpec(select=tuple(f"/dev/nvme{each}n1" for each in range(number))) for number in (3, 2))
    node = Story()
    for _ in range(2):
        node.step(three)
    node.disks.reboot()
    assert node.finish(two).state is DiskState.READY
    named = {
        member.array for number in range(3) if isinstance(member := node.disks.content(f"nvme{number}n1"), ArrayMember)
    }
    assert len(named) == 2
