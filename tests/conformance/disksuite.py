"""What every implementation of the disks' Protocol does; each is run through it by a subclass."""

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec
import pytest

from tessera.agent.storage.disks.preparing import new_creation, observe_plan, prepare
from tessera.clients.disks import Disks
from tessera.core.storage.disks.plan import DiskContent, DiskPlan, DiskSpec, DiskState, plan_disks
from tessera.core.storage.disks.steps import CreateArray, MountFilesystem, RecordCreation, WipeSignatures
from tessera.errors import Conflict, shown

Filesystem = Literal["ext4", "xfs"]


class World(Protocol):
    """A node with four blank disks; and what may happen to it from outside."""

    @property
    def disks(self) -> Disks:
        """The disks under test."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """The kernel's names of the disks."""
        ...

    @property
    def mount_point(self) -> str:
        """Where the disks shall be mounted; no such folder is there."""
        ...

    def make_filesystem(self, name: str, label: str) -> None:
        """Put an ext4 filesystem on a disk."""
        ...

    def partition(self, name: str) -> None:
        """Put a partition table on a disk."""
        ...

    def make_array(self, names: tuple[str, ...], array: str) -> None:
        """Create a RAID 1 array."""
        ...

    def mount(self, name: str, path: str) -> None:
        """Mount a disk at a path."""
        ...

    def use_raw(self, name: str) -> None:
        """Let something use a disk without a filesystem, by a loop device, as a pod with a raw block volume does."""
        ...

    def replace(self, name: str) -> None:
        """Put a blank disk in the place of one that nothing uses."""
        ...

    def wipe(self, name: str) -> None:
        """Remove a disk's signatures, and no more of it, as `wipefs --all` does."""
        ...

    def half_assemble(self, names: tuple[str, ...]) -> None:
        """Let md know some members of an array, as while udev reports one disk after the other."""
        ...

    def reboot(self) -> None:
        """Unmount all and stop all arrays."""
        ...

    def write(self, text: str) -> None:
        """Put a file into the folder where the disks are mounted, or shall be."""
        ...

    def read(self) -> str:
        """Return what was written."""
        ...

    def content(self, name: str) -> object:
        """Return what equals only the same content of a disk, as far as it tells what the disk holds."""
        ...


def spec_of(world: World, disks: int = 4, filesystem: Filesystem = "ext4") -> DiskSpec:
    paths = tuple(f"/dev/{name}" for name in world.names[:disks])
    return DiskSpec(select=paths, filesystem=filesystem, mount=world.mount_point)


def found(plan: DiskPlan) -> list[DiskContent]:
    return [each.content for each in plan.disks]


Case = tuple[Callable[[World], None], str]
FOREIGN: dict[str, Case] = {
    "a filesystem of another label": (lambda world: world.make_filesystem(world.names[1], "data"), "'data'"),
    "a partition table": (lambda world: world.partition(world.names[1]), "partition"),
    "a raw block volume of a pod": (lambda world: world.use_raw(world.names[1]), "is in use by loop"),
}
FOREIGN_ARRAYS: dict[str, Case] = {
    "members of another array": (lambda world: world.make_array(world.names[1:3], "other"), "'other'"),
    "members of a RAID 1 of this name": (lambda world: world.make_array(world.names[1:3], "tessera"), "'raid1'"),
}


async def refused(world: World, make: Callable[[World], None], want: str) -> None:
    """Check that what was made is refused, for this reason, and that no disk changes."""
    make(world)
    before = [world.content(name) for name in world.names]
    plan = await prepare(world.disks, spec_of(world))
    assert plan.state is DiskState.REFUSED
    assert want in "; ".join(plan.reasons)
    assert [world.content(name) for name in world.names] == before


class DisksSuite:
    """What needs no RAID of the kernel. Subclasses have a fixture `world`."""

    pytestmark = pytest.mark.anyio

    @pytest.mark.parametrize("case", FOREIGN)
    async def test_what_is_foreign_is_refused_and_left(self, world: World, case: str) -> None:
        await refused(world, *FOREIGN[case])

    async def test_one_disk_needs_no_array(self, world: World) -> None:
        spec = spec_of(world, 1)
        assert (await prepare(world.disks, spec)).state is DiskState.READY
        world.write("kept")
        world.reboot()
        plan = await prepare(world.disks, spec)
        assert (plan.state, found(plan), plan.device) == (
            DiskState.READY,
            [DiskContent.FILESYSTEM],
            f"/dev/{world.names[0]}",
        )
        assert world.read() == "kept"
        more = await prepare(world.disks, spec_of(world, 3))
        assert more.state is DiskState.READY
        assert f"{world.names[1]}, {world.names[2]} not used" in more.notes[0]

    async def test_a_mounted_disk_is_refused_and_left(self, world: World) -> None:
        world.make_filesystem(world.names[2], "data")
        path = f"{world.mount_point}-elsewhere"
        world.mount(world.names[2], path)
        plan = await prepare(world.disks, spec_of(world))
        assert plan.reasons == (f"{world.names[2]} is mounted at {shown(path)}",)
        assert found(plan) == [DiskContent.BLANK, DiskContent.BLANK, DiskContent.FOREIGN, DiskContent.BLANK]

    async def test_a_path_in_use_is_refused_before_anything_is_written(self, world: World) -> None:
        world.write("would be hidden")
        plan = await prepare(world.disks, spec_of(world))
        assert (plan.state, found(plan)) == (DiskState.REFUSED, [DiskContent.BLANK] * 4)
        assert "is not an empty folder" in plan.reasons[0]

    async def test_another_filesystem_at_the_path_is_refused(self, world: World) -> None:
        world.make_filesystem(world.names[3], "data")
        world.mount(world.names[3], world.mount_point)
        plan = await prepare(world.disks, spec_of(world, 3))
        assert plan.reasons == (f"'{world.names[3]}' is mounted at {world.mount_point}",)

    async def test_a_record_that_was_left_behind_is_removed_and_nothing_else(self, world: World) -> None:
        spec = spec_of(world, 1)
        await prepare(world.disks, spec)
        signature = next(
            each.signature for each in (await world.disks.observe(spec)).devices if each.name == world.names[0]
        )
        assert signature is not None
        left = msgspec.structs.replace(new_creation(), filesystem=signature.uuid)
        world.write("kept")
        await world.disks.apply(RecordCreation(creation=left))
        assert (await prepare(world.disks, spec)).state is DiskState.READY
        assert (await world.disks.observe(spec)).unfinished is None
        assert world.read() == "kept"

    async def test_one_process_at_a_time(self, world: World) -> None:
        async with world.disks.hold():
            with pytest.raises(Conflict):
                await prepare(world.disks, spec_of(world, 1))
        assert (await prepare(world.disks, spec_of(world, 1))).state is DiskState.READY

    async def test_a_second_mount_is_none(self, world: World) -> None:
        """Mounted elsewhere too, as by a kubelet for a pod, the filesystem is ready all the same."""
        spec = spec_of(world, 1)
        plan = await prepare(world.disks, spec)
        await world.disks.apply(MountFilesystem(device=plan.device, path=f"{world.mount_point}-pod"))
        again = await observe_plan(world.disks, spec)
        assert (again.state, again.steps) == (DiskState.READY, ())


class ArraySuite(DisksSuite):
    """The same with RAID."""

    @pytest.mark.parametrize("case", FOREIGN_ARRAYS)
    async def test_what_is_of_a_foreign_array_is_refused_and_left(self, world: World, case: str) -> None:
        await refused(world, *FOREIGN_ARRAYS[case])

    @pytest.mark.parametrize("filesystem", ["ext4", "xfs"])
    async def test_blank_disks_become_one_filesystem_that_stays(self, world: World, filesystem: Filesystem) -> None:
        spec = spec_of(world, filesystem=filesystem)
        assert found(await observe_plan(world.disks, spec)) == [DiskContent.BLANK] * 4
        made = await prepare(world.disks, spec)
        assert (made.state, found(made)) == (DiskState.READY, [DiskContent.MEMBER] * 4)
        world.write("kept")
        # The second time nothing is done, nor after a reboot more than to assemble and mount, whatever is desired now.
        other = msgspec.structs.replace(spec, filesystem="xfs" if filesystem == "ext4" else "ext4")
        again = await prepare(world.disks, other)
        assert (again.state, len(again.notes)) == (DiskState.READY, 1)
        world.reboot()
        steps: list[object] = []
        assert (await prepare(world.disks, other, steps.append)).state is DiskState.READY
        assert [type(step).__name__ for step in steps] == ["AssembleArray", "MountFilesystem"]
        assert world.read() == "kept"

    @pytest.mark.parametrize("steps", [1, 2, 3])
    async def test_after_an_interruption_the_rest_is_done(self, world: World, steps: int) -> None:
        spec, creation = spec_of(world), new_creation()
        for _ in range(steps):
            plan = plan_disks(await world.disks.observe(spec), spec, creation)
            await world.disks.apply(plan.steps[0])
        world.reboot()
        assert (await prepare(world.disks, spec)).state is DiskState.READY
        assert (await world.disks.observe(spec)).unfinished is None

    async def test_members_of_an_array_that_was_not_created_whole_are_used_again(self, world: World) -> None:
        spec, creation = spec_of(world), new_creation()
        paths = tuple(f"/dev/{name}" for name in world.names)
        await world.disks.apply(RecordCreation(creation=creation))
        await world.disks.apply(CreateArray(name=spec.name, uuid=creation.array, devices=paths))
        world.reboot()
        world.replace(world.names[1])
        world.half_assemble((world.names[0],))
        plan = await observe_plan(world.disks, spec)
        assert found(plan) == [
            DiskContent.UNFINISHED,
            DiskContent.BLANK,
            DiskContent.UNFINISHED,
            DiskContent.UNFINISHED,
        ]
        assert (await prepare(world.disks, spec)).state is DiskState.READY

    async def test_a_replaced_disk_is_a_lost_one(self, world: World) -> None:
        spec = spec_of(world)
        await prepare(world.disks, spec)
        world.reboot()
        world.replace(world.names[1])
        before = [world.content(name) for name in world.names]
        plan = await prepare(world.disks, spec)
        assert plan.state is DiskState.LOST
        assert f"1 of its 4 disks is missing; {world.names[1]} blank" in plan.reasons[0]
        assert [world.content(name) for name in world.names] == before

    async def test_disks_that_were_wiped_are_blank_though_a_former_array_is_beneath(self, world: World) -> None:
        """As the advice about a lost disk says: what the former array held is there again, in a new one."""
        spec = spec_of(world, filesystem="xfs")
        await prepare(world.disks, spec)
        world.write("old")
        world.reboot()
        for name in world.names:
            world.wipe(name)
        assert found(await observe_plan(world.disks, spec)) == [DiskContent.BLANK] * 4
        steps: list[object] = []
        assert (await prepare(world.disks, spec, steps.append)).state is DiskState.READY
        assert "WipeSignatures" in [type(step).__name__ for step in steps]

    async def test_an_array_whose_filesystem_is_gone_is_not_formatted(self, world: World) -> None:
        spec = spec_of(world)
        await prepare(world.disks, spec)
        world.reboot()
        await world.disks.apply((await observe_plan(world.disks, spec)).steps[0])
        assembled = (await observe_plan(world.disks, spec)).device
        await world.disks.apply(WipeSignatures(devices=(assembled,)))
        plan = await prepare(world.disks, spec)
        assert plan.state is DiskState.REFUSED
        assert "has no filesystem" in plan.reasons[0]

    async def test_an_array_that_is_not_selected_whole_is_refused(self, world: World) -> None:
        await prepare(world.disks, spec_of(world))
        plan = await prepare(world.disks, spec_of(world, 3))
        assert plan.reasons == (f"array tessera is also on {world.names[3]}, which is not selected",)

    async def test_an_array_that_md_knows_in_part_is_assembled(self, world: World) -> None:
        spec = spec_of(world)
        await prepare(world.disks, spec)
        world.write("kept")
        world.reboot()
        world.half_assemble(world.names[:2])
        assert (await prepare(world.disks, spec)).state is DiskState.READY
        assert world.read() == "kept"
