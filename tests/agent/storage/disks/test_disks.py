"""The disk agent of a node: disks become ready, the Node says how they are, volumes live and are erased."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from tessera.agent.storage.disks.keeper import DisksKeeper, KeeperSettings
from tessera.clients.disks import MemoryDisks
from tessera.clients.kube import EVENTS, NODES, PERSISTENT_VOLUMES, Kind, MemoryKube, Object, labels_of
from tessera.core.storage.disks.blockdevices import BlockDevice, Signature
from tessera.core.storage.disks.localvolumes import VolumeSpec
from tessera.core.storage.disks.plan import DiskSpec
from tessera.errors import Unavailable

pytestmark = pytest.mark.anyio

GIB = 1 << 30


class RefusingKube(MemoryKube):
    """An API server that takes no condition with certain words."""

    words = ""

    async def patch(self, kind: Kind, name: str, body: Object, *args: Any, **options: Any) -> Object:
        if self.words and self.words in str(body):
            raise Unavailable("the API server", found="it refuses the message", hint="see its log")
        return await super().patch(kind, name, body, *args, **options)


class Node:
    """A node with two local disks, and its agent."""

    def __init__(self, mount: Path) -> None:
        self.kube = RefusingKube()
        self.mount = mount
        self.disks = MemoryDisks(
            BlockDevice(name=f"nvme{n}n1", kind="disk", size_bytes=375 * GIB, links=(f"google-local-nvme-ssd-{n}",))
            for n in range(2)
        )
        self.settings = KeeperSettings(node="n1", disks=DiskSpec(mount=str(mount)))

    async def reconcile(self, times: int = 1, *, count: int = 0, reserved_bytes: int = 0) -> None:
        """Let an agent look, each time another one: nothing is remembered."""
        volumes = VolumeSpec(count=count, reserved_bytes=reserved_bytes)
        settings = msgspec.structs.replace(self.settings, volumes=volumes)
        for _ in range(times):
            await DisksKeeper(settings, self.disks, self.kube).reconcile()

    async def says(self) -> tuple[str | None, str, str]:
        """Return label, and status and reason of the condition."""
        found = await self.kube.get(NODES, "n1")
        assert found is not None
        (condition,) = [each for each in found["status"]["conditions"] if each["type"] == "TesseraDisksReady"]
        return labels_of(found).get("tessera.dev/disks"), condition["status"], condition["reason"]

    async def message(self) -> str:
        """Return the message of the condition."""
        found = await self.kube.get(NODES, "n1")
        assert found is not None
        (condition,) = [each for each in found["status"]["conditions"] if each["type"] == "TesseraDisksReady"]
        return str(condition["message"])

    async def volumes(self) -> dict[str, Any]:
        found = await self.kube.list(PERSISTENT_VOLUMES)
        return {each["spec"]["local"]["path"].rpartition("/")[2]: each for each in found.objects}

    async def set_phase(self, volume: Object, phase: str) -> None:
        name = volume["metadata"]["name"]
        await self.kube.patch(PERSISTENT_VOLUMES, name, {"status": {"phase": phase}}, subresource="status")


@pytest.fixture
async def node(tmp_path: Path) -> Node:
    one = Node(tmp_path / "disks")
    await one.kube.create(NODES, {"metadata": {"name": "n1", "uid": "u", "labels": {"kubernetes.io/hostname": "n1"}}})
    return one


@pytest.fixture
def mounted(node: Node) -> Iterator[Node]:
    """Give the node with a real filesystem where the disks in memory say that they are mounted."""
    node.mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", node.mount], check=True)
    yield node
    subprocess.run(["umount", "--recursive", node.mount], check=True)


async def test_blank_disks_become_ready_and_the_node_reports_it_once(node: Node) -> None:
    await node.reconcile(3)
    assert await node.says() == ("ready", "True", "DisksReady")
    events = (await node.kube.list(EVENTS)).objects
    assert [(each["reason"], each.get("count", 1)) for each in events] == [("DisksReady", 1)]


async def test_foreign_data_is_left_and_reported(node: Node) -> None:
    device = BlockDevice(
        name="nvme0n1",
        kind="disk",
        size_bytes=375 * GIB,
        links=("google-local-nvme-ssd-0",),
        signature=Signature(kind="ext4", label="theirs"),
    )
    node.disks.put(device)
    await node.reconcile()
    assert await node.says() == ("refused", "False", "DisksRefused")
    assert not node.disks.in_use


async def test_a_lost_disk_takes_the_label_of_ready_away(node: Node) -> None:
    await node.reconcile()
    node.disks.remove("nvme1n1")
    await node.reconcile()
    assert await node.says() == ("lost", "False", "DiskLost")


async def test_a_node_without_disks_has_no_label(node: Node) -> None:
    await node.reconcile()
    for name in ("nvme0n1", "nvme1n1"):
        node.disks.remove(name)
    node.disks = MemoryDisks()
    await node.reconcile()
    assert await node.says() == (None, "False", "NoDisks")


async def test_a_step_that_fails_is_reported_and_tried_again(node: Node) -> None:
    node.disks.fail_after(1)
    with pytest.raises(Unavailable):
        await node.reconcile()
    assert await node.says() == ("pending", "False", "DisksFailed")
    await node.reconcile()
    assert await node.says() == ("ready", "True", "DisksReady")


async def test_volumes_are_offered_used_erased_and_offered_again(mounted: Node) -> None:
    node = mounted
    await node.reconcile(3, count=2, reserved_bytes=50 * GIB)
    volumes = await node.volumes()
    assert sorted(volumes) == ["0", "1"]
    (folder,) = [node.mount / "volumes/0"]
    # 1. Somebody uses one.
    await node.set_phase(volumes["0"], "Bound")
    (folder / "file").write_text("secret")
    await node.reconcile(3, count=2)
    assert (folder / "file").read_text() == "secret"
    # 2. Its claim goes: nobody sees the files again.
    await node.set_phase(volumes["0"], "Released")
    await node.reconcile(1, count=2)
    assert list(folder.iterdir()) == []
    await node.reconcile(2, count=2)
    again = (await node.volumes())["0"]
    assert again["metadata"].get("uid") != volumes["0"]["metadata"].get("uid")
    # 3. Fewer are desired.
    await node.reconcile(2, count=1)
    assert sorted(await node.volumes()) == ["0"]


async def test_volumes_of_another_node_are_not_touched(mounted: Node) -> None:
    node = mounted
    await node.reconcile(3, count=1)
    ((_, volume),) = (await node.volumes()).items()
    other = {**volume, "metadata": {"name": "other", "labels": volume["metadata"]["labels"]}}
    await node.kube.create(PERSISTENT_VOLUMES, other)
    await node.reconcile(2, count=0)
    assert [each["metadata"]["name"] for each in (await node.volumes()).values()] == ["other"]


async def with_file(node: Node, phase: str) -> tuple[Object, Path]:
    """Return the node's one volume, in a phase, and a file that a pod left there."""
    await node.reconcile(3, count=1)
    ((_, volume),) = (await node.volumes()).items()
    await node.set_phase(volume, phase)
    file = node.mount / "volumes/0/file"
    file.write_text("theirs")
    return volume, file


@pytest.mark.parametrize(
    "taken",
    [{"labels": None}, {"annotations": {"tessera.dev/node": None}}, {"annotations": {"tessera.dev/node": "n2"}}],
)
async def test_a_volume_in_use_that_is_not_known_any_more_keeps_its_files(mounted: Node, taken: Object) -> None:
    node = mounted
    volume, file = await with_file(node, "Bound")
    await node.kube.patch(PERSISTENT_VOLUMES, volume["metadata"]["name"], {"metadata": taken})
    with capture_logs() as logs:
        await node.reconcile(2, count=1)
    assert file.read_text() == "theirs"
    assert any("names its folder" in str(each) for each in logs)
    await node.kube.delete(PERSISTENT_VOLUMES, volume["metadata"]["name"])
    await node.reconcile(1, count=1)
    assert not file.exists()


async def test_a_released_volume_whose_folder_another_names_keeps_its_files(mounted: Node) -> None:
    node = mounted
    _, file = await with_file(node, "Released")
    theirs = {"metadata": {"name": "by-hand"}, "spec": {"local": {"path": str(file.parent)}}}
    await node.kube.create(PERSISTENT_VOLUMES, theirs)
    await node.reconcile(2, count=1)
    assert file.read_text() == "theirs"
    await node.kube.delete(PERSISTENT_VOLUMES, "by-hand")
    await node.reconcile(1, count=1)
    assert not file.exists()


async def test_a_node_whose_host_name_is_another_offers_none(mounted: Node) -> None:
    node = mounted
    await node.kube.patch(NODES, "n1", {"metadata": {"labels": {"kubernetes.io/hostname": "h"}}})
    await node.reconcile(2, count=2)
    assert await node.volumes() == {}
    assert await node.says() == ("ready", "True", "DisksReady")
    assert (await node.message()).count("kubernetes.io/hostname=h") == 1


async def test_nothing_is_written_below_a_path_at_which_nothing_is_mounted(node: Node) -> None:
    await node.reconcile(1, count=1)
    assert "nothing is mounted there" in await node.message()
    assert not (node.mount / "volumes").exists()


NESTED = 5000
"""Levels of folders: more than Python calls, with a path longer than Linux takes."""


def nest(folder: Path, levels: int = NESTED) -> None:
    current = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=current)
        below = os.open("d", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = below
    os.close(current)


async def three_released(node: Node) -> None:
    """Let three volumes be used, each with a file, and their claims go."""
    await node.reconcile(3, count=3)
    for number, volume in (await node.volumes()).items():
        (node.mount / "volumes" / number / "file").touch()
        await node.set_phase(volume, "Released")


async def test_folders_however_deep_that_a_pod_left_are_erased(mounted: Node) -> None:
    node = mounted
    await three_released(node)
    nest(node.mount / "volumes/0")
    await node.reconcile(1, count=3)
    assert [list((node.mount / "volumes" / number).iterdir()) for number in "012"] == [[], [], []]


@contextmanager
def unreadable(patch: pytest.MonkeyPatch, folder: Path) -> Iterator[None]:
    """Let a broken disk not say what is in a folder."""
    scandir = os.scandir

    def scan(path: Any = ".") -> Any:
        if (Path(f"/proc/self/fd/{path}").readlink() if isinstance(path, int) else Path(path)) == folder:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return scandir(path)

    with patch.context() as here:
        here.setattr(os, "scandir", scan)
        yield


@contextmanager
def mounted_inside(_: pytest.MonkeyPatch, folder: Path) -> Iterator[None]:
    """Let a folder of the same file system be mounted in a folder: its device tells nothing."""
    inside = folder / "in side"
    inside.mkdir()
    subprocess.run(["mount", "--bind", folder.parent.parent, inside], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", inside], check=True)


@contextmanager
def mounted_at(_: pytest.MonkeyPatch, folder: Path) -> Iterator[None]:
    """Let another file system, with somebody's file, be mounted at a folder."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    try:
        (folder / "theirs").touch()
        yield
        assert (folder / "theirs").exists()
    finally:
        subprocess.run(["umount", folder], check=True)


@contextmanager
def unchangeable(patch: pytest.MonkeyPatch, folder: Path) -> Iterator[None]:
    """Let the file system have become read-only for a file whose name, as a pod may choose it, is not UTF-8."""
    name = os.fsdecode(b"odd\xff")
    (folder / name).touch()
    unlink = os.unlink

    def refuse(path: Any, **options: Any) -> None:
        if path == name:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        unlink(path, **options)

    with patch.context() as here:
        here.setattr(os, "unlink", refuse)
        yield
        assert (folder / name).exists()


@contextmanager
def mounted_oddly(_: pytest.MonkeyPatch, folder: Path) -> Iterator[None]:
    """Let something be mounted at a name that is not UTF-8."""
    inside = folder / os.fsdecode(b"odd\xff")
    inside.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", inside], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", inside], check=True)


@pytest.mark.parametrize("bad", ["0", "1", "2"])
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (unreadable, "Input/output error: replace the disk"),
        (mounted_at, "something is mounted at"),
        (mounted_inside, "something is mounted at"),
        (mounted_oddly, "odd\ufffd; the volume is erased then"),
        (unchangeable, "odd\ufffd: Read-only file system: mount this disk writable"),
    ],
)
async def test_one_bad_volume_of_three_stops_no_other_and_is_in_the_condition(
    mounted: Node, monkeypatch: pytest.MonkeyPatch, bad: str, fault: Any, says: str
) -> None:
    node = mounted
    await three_released(node)
    before = await node.volumes()
    uids = {number: each["metadata"]["uid"] for number, each in before.items()}
    with fault(monkeypatch, node.mount / "volumes" / bad):
        await node.reconcile(3, count=3)
        assert await node.says() == ("ready", "True", "DisksReady")
        message = await node.message()
        assert says in message
        assert f"volumes/{bad}" in message
        assert message.encode()
        after = {number: each["metadata"]["uid"] for number, each in (await node.volumes()).items()}
        assert after.keys() == uids.keys()
        assert {number for number, uid in after.items() if uid == uids[number]} == {bad}
    # It is mended by itself once its folder is.
    await node.reconcile(4, count=3)
    again = await node.volumes()
    assert again[bad]["metadata"]["uid"] != uids[bad]
    assert says not in await node.message()


async def test_a_report_of_one_volume_that_is_refused_stops_no_other(
    mounted: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = mounted
    await three_released(node)
    settings = msgspec.structs.replace(node.settings, volumes=VolumeSpec(count=3))
    keeper = DisksKeeper(settings, node.disks, node.kube)
    node.kube.words = "Input/output"
    with unreadable(monkeypatch, node.mount / "volumes/0"):
        for _ in range(3):
            with pytest.raises(Unavailable, match="refuses"):
                await keeper.reconcile()
    phases = {number: each.get("status", {}).get("phase") for number, each in (await node.volumes()).items()}
    assert [number for number, phase in phases.items() if phase == "Released"] == ["0"]


async def test_the_condition_is_written_once_for_what_stays_wrong(mounted: Node) -> None:
    node = mounted
    settings = msgspec.structs.replace(node.settings, volumes=VolumeSpec(count=1, reserved_bytes=10**15))
    keeper = DisksKeeper(settings, node.disks, node.kube)
    for _ in range(4):
        await keeper.reconcile()
    events = (await node.kube.list(EVENTS)).objects
    assert [each.get("count", 1) for each in events] == [1, 1]
    assert "no room for 1 volumes" in await node.message()


async def test_a_disk_that_is_lost_is_reported_once_without_what_was_wrong_with_volumes(mounted: Node) -> None:
    node = mounted
    settings = msgspec.structs.replace(node.settings, volumes=VolumeSpec(count=1, reserved_bytes=10**15))
    keeper = DisksKeeper(settings, node.disks, node.kube)
    await keeper.reconcile()
    assert "no room for 1 volumes" in await node.message()
    node.disks.remove("nvme1n1")
    for _ in range(2):
        await keeper.reconcile()
    assert "no room" not in await node.message()
    events = (await node.kube.list(EVENTS)).objects
    assert [each.get("count", 1) for each in events if each["reason"] == "DiskLost"] == [1]


async def test_a_volume_without_room_is_reported_once(mounted: Node) -> None:
    with capture_logs() as logs:
        settings = msgspec.structs.replace(mounted.settings, volumes=VolumeSpec(count=1, reserved_bytes=10**15))
        keeper = DisksKeeper(settings, mounted.disks, mounted.kube)
        for _ in range(3):
            await keeper.reconcile()
    assert [each["what"] for each in logs if each["event"] == "impaired"] == ["volumes"]
    assert keeper.waiting_for() == ""
