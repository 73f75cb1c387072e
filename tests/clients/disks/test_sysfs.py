"""Block devices as sysfs lists them."""

from pathlib import Path

import msgspec
import pytest

from tessera.agent.storage.disks.preparing import observe_plan
from tessera.clients.disks import DiskPaths, HostDisks
from tessera.core.storage.disks.plan import DiskContent, DiskSpec
from tessera.errors import Unsupported

SYSFS = {
    "nvme0n1": {
        "dev": "259:0",
        "size": "2048",
        "device/model": "Amazon EC2 NVMe Instance Storage ",
        "device/serial": "S",
    },
    "nvme0n1/nvme0n1p1": {"partition": "1"},
    "nvme0n1p1": {"dev": "259:1", "size": "1024", "partition": "1"},
    "nvme0c1n1": {"dev": "259:2", "size": "2048", "hidden": "1"},
    "gone": {},
    "md127": {"dev": "9:127", "size": "x", "md/array_state": "inactive", "slaves/sdb": "", "slaves/sda": ""},
    "dm-0": {"dev": "253:0", "size": "8", "slaves/sda": ""},
    "cciss!c0d0": {"dev": "104:0", "size": "8", "ro": "1", "holders/dm-0": ""},
    "sda": {"dev": "8:0", "size": "8"},
    "sr0": {"dev": "11:0", "size": "8"},
}


@pytest.mark.anyio
async def test_sysfs_is_read_without_opening_a_device(tmp_path: Path) -> None:
    """A device that is probed is said to be unreadable: none of these is there."""
    for name, files in SYSFS.items():
        (tmp_path / "sys/class/block" / name).mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            path = tmp_path / "sys/class/block" / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
    by_id = tmp_path / "dev/disk/by-id"
    by_id.mkdir(parents=True)
    (by_id / "nvme-Amazon_EC2_NVMe_Instance_Storage_S").symlink_to("../../nvme0n1")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/swaps").write_text("Filename Type Size Used Priority\n/dev/sda partition 8 0 -2\n")
    mounts = "1 1 259:1 / / rw - ext4 /dev/root rw\n2 1 0:9 / /data ro - btrfs /dev/sda rw\n"
    (tmp_path / "proc/self/mountinfo").write_text(mounts)
    paths = DiskPaths(sys=tmp_path / "sys", proc=tmp_path / "proc", dev=tmp_path / "dev", state=tmp_path / "state")
    observed = await HostDisks(paths).observe(DiskSpec(mount=str(tmp_path / "mnt")))
    devices = {each.name: each for each in observed.devices}
    assert {name: each.kind for name, each in devices.items()} == {
        "nvme0n1": "disk",
        "nvme0n1p1": "partition",
        "md127": "array",
        "dm-0": "other",
        "cciss/c0d0": "disk",
        "sda": "disk",
        "sr0": "other",
    }
    nvme = devices["nvme0n1"]
    assert (nvme.size_bytes, nvme.model, nvme.serial) == (1 << 20, "Amazon EC2 NVMe Instance Storage", "S")
    assert (nvme.partitions, nvme.links) == (("nvme0n1p1",), ("nvme-Amazon_EC2_NVMe_Instance_Storage_S",))
    assert nvme.problem
    assert (devices["md127"].slaves, devices["md127"].array_state) == (("sda", "sdb"), "inactive")
    assert (devices["cciss/c0d0"].read_only, devices["cciss/c0d0"].holders) == (True, ("dm-0",))
    assert [(each.path, each.read_only) for each in devices["sda"].mounts] == [("/data", True)]
    assert devices["sda"].swap
    assert [each.path for each in devices["nvme0n1p1"].mounts] == ["/"]
    plan = await observe_plan(HostDisks(paths), msgspec.structs.replace(DiskSpec(), mount=str(tmp_path / "mnt")))
    assert [each.content for each in plan.disks] == [DiskContent.FOREIGN]


@pytest.mark.anyio
async def test_without_sysfs_it_reports_it(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("")
    with pytest.raises(Unsupported, match="sysfs of a Linux kernel"):
        await HostDisks(DiskPaths(sys=tmp_path, proc=tmp_path / "proc")).observe(DiskSpec())
