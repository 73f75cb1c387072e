"""The command of each step, as it is run and as a plan shows it."""

import pytest

from tessera.clients.disks.commands import command
from tessera.core.storage.disks.blockdevices import Creation
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

TWO = ("/dev/nvme0n1", "/dev/nvme1n1")
CASES: dict[str, tuple[Step, str]] = {
    "a record is kept without a command": (RecordCreation(creation=Creation(array="a", filesystem="f")), ""),
    "and forgotten without one": (ForgetCreation(), ""),
    "stop": (StopArray(device="/dev/md9"), "mdadm --stop /dev/md9"),
    "wipe": (WipeSignatures(devices=TWO), "wipefs --all --quiet /dev/nvme0n1 /dev/nvme1n1"),
    "create, for a node of any name": (
        CreateArray(name="tessera", uuid="u", devices=TWO),
        (
            "mdadm --create /dev/md/tessera --run --quiet --name=tessera --uuid=u --homehost=any --metadata=1.2"
            " --level=0 --chunk=512 --raid-devices=2 /dev/nvme0n1 /dev/nvme1n1"
        ),
    ),
    "assemble": (
        AssembleArray(name="tessera", uuid="u", devices=TWO),
        "mdadm --assemble /dev/md/tessera --quiet --uuid=u /dev/nvme0n1 /dev/nvme1n1",
    ),
    "ext4 keeps no block for root": (
        MakeFilesystem(device="/dev/md9", filesystem="ext4", label="l", uuid="u", striped=True),
        "mkfs.ext4 -q -F -m 0 -L l -U u -E lazy_itable_init=1,lazy_journal_init=1,nodiscard /dev/md9",
    ),
    "xfs on an array has a log stripe below its chunk": (
        MakeFilesystem(device="/dev/md9", filesystem="xfs", label="l", uuid="u", striped=True),
        "mkfs.xfs -q -f -K -L l -m uuid=u -l su=32k /dev/md9",
    ),
    "xfs on one disk": (
        MakeFilesystem(device="/dev/sdb", filesystem="xfs", label="l", uuid="u", striped=False),
        "mkfs.xfs -q -f -K -L l -m uuid=u /dev/sdb",
    ),
    "mount": (MountFilesystem(device="/dev/md9", path="/mnt/d"), "mount -o noatime /dev/md9 /mnt/d"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_command_of_a_step(case: str) -> None:
    step, want = CASES[case]
    assert " ".join(command(step)) == want
