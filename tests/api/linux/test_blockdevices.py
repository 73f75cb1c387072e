"""What blkid, mdadm and the kernel print, and what hostile labels and names make of it."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.linux.blockdevices import MountEntry, read_member, read_mounts, read_signature
from tessera.core.storage.disks.blockdevices import ArrayMember, Signature
from tessera.errors import InvalidInput

MEMBER = Signature(kind="linux_raid_member", uuid="0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9", label="any:tessera")
EXAMINED = b"""MD_LEVEL=raid0
MD_DEVICES=4
MD_NAME=any:tessera
MD_ARRAY_SIZE=1599.00MiB
MD_UUID=0a1b2c3d:4e5f6071:8293a4b5:c6d7e8f9
MD_UPDATE_TIME=1795400000
MD_DEV_UUID=11111111:22222222:33333333:44444444
MD_EVENTS=0
"""
MOUNTS = rb"""22 1 259:0 / / rw,relatime shared:1 - ext4 /dev/root rw
23 22 9:127 / /mnt/disks/tessera rw,noatime shared:2 master:1 - ext4 /dev/md127 rw,stripe=512
24 22 9:127 /pods/a /var/lib/a\040pod ro,noatime - ext4 /dev/md127 rw,stripe=512
25 22 0:31 / /data rw - btrfs /dev/sd\134b ro
"""


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (
            b"DEVNAME=/dev/x\nLABEL=tessera\nUUID=u\nBLOCK_SIZE=4096\nTYPE=ext4\n",
            Signature(kind="ext4", uuid="u", label="tessera"),
        ),
        (b"DEVNAME=/dev/x\nLABEL=my\\ own\\\\\nTYPE=xfs\n", Signature(kind="xfs", label="my own\\")),
        (b"DEVNAME=/dev/x\nPTUUID=p\nPTTYPE=gpt\n", Signature(kind="gpt partition table")),
        (b"DEVNAME=/dev/x\n\n", Signature(kind="unknown")),
    ],
)
def test_a_signature_is_read(text: bytes, want: Signature) -> None:
    assert read_signature("/dev/x", text) == want


@pytest.mark.parametrize("text", [b"TYPE=ext4\nTYPE=xfs\n", b"what is this\n"])
def test_what_blkid_does_not_print_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidInput, match="/dev/x"):
        read_signature("/dev/x", text)


def test_a_member_is_read() -> None:
    want = ArrayMember(array="0a1b2c3d:4e5f6071:8293a4b5:c6d7e8f9", name="tessera", level="raid0", devices=4)
    assert read_member("/dev/x", EXAMINED, MEMBER) == want


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"MD_NAME=any:tessera", b"MD_NAME=any:tessera\nMD_LEVEL=raid0\nMD_DEVICES=1"),
        (b"MD_UUID=0", b"MD_UUID=1"),
        (b"MD_UUID=0a1b2c3d:4e5f6071:8293a4b5:c6d7e8f9\n", b""),
        (b"MD_DEVICES=4", b"MD_DEVICES=-4"),
        (b"MD_DEVICES=4", b"MD_DEVICES=400000"),
        (b"MD_DEVICES=4\n", b""),
    ],
    ids=["a name with lines of its own", "another array", "no array", "no number", "too many", "no devices"],
)
def test_a_member_that_contradicts_itself_is_refused(old: bytes, new: bytes) -> None:
    with pytest.raises(InvalidInput, match="/dev/x"):
        read_member("/dev/x", EXAMINED.replace(old, new), MEMBER)


def test_a_member_that_blkid_takes_for_something_else_is_refused() -> None:
    with pytest.raises(InvalidInput):
        read_member("/dev/x", EXAMINED, Signature(kind="ext4", uuid=MEMBER.uuid))


def test_mounts_are_read() -> None:
    root, disks, pod, data = read_mounts("mountinfo", MOUNTS)
    assert (root.path, root.number, root.read_only) == ("/", "259:0", False)
    assert disks == MountEntry(
        number="9:127", root="/", path="/mnt/disks/tessera", filesystem="ext4", source="/dev/md127", read_only=False
    )
    assert (pod.root, pod.path, pod.read_only) == ("/pods/a", "/var/lib/a pod", True)
    assert (data.source, data.read_only) == ("/dev/sd\\b", True)


@pytest.mark.parametrize(
    "text", [b"22 1 259:0 / /\n", b"22 1 259:0 / / rw shared:1 ext4 /dev/root rw\n", b"1 2 3 4 5 6 7 8 9 -\n"]
)
def test_what_is_no_mountinfo_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidInput, match="mountinfo"):
        read_mounts("mountinfo", text)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    for read in (read_signature, read_mounts, lambda source, text: read_member(source, text, MEMBER)):
        with contextlib.suppress(InvalidInput):
            read("source", text)
