"""Disks in a policy, and what a node reports of them."""

import pytest

from tessera.api import documents
from tessera.api.fields import Field
from tessera.api.tessera.nodedisks import disks_label, disks_report, read_disks
from tessera.core.storage.blockdevices import CLOUD_DISKS
from tessera.core.storage.disks import DiskPlan, DiskSpec, DiskState
from tessera.errors import InvalidInput


def read(text: str) -> DiskSpec:
    document = documents.read("policy.yaml", text)[0]
    return read_disks(Field(document, document.data).get("disks"))


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("disks: {}", DiskSpec()),
        ("disks: {filesystem: xfs}", DiskSpec(select=CLOUD_DISKS, filesystem="xfs")),
        (
            "disks: {select: [/dev/sdb, 'nvme-*'], mount: /mnt/models, name: models}",
            DiskSpec(select=("/dev/sdb", "nvme-*"), mount="/mnt/models", name="models"),
        ),
    ],
)
def test_disks_are_read(text: str, want: DiskSpec) -> None:
    assert read(text) == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("disks: {filesystem: btrfs}", "btrfs"),
        ("disks: {raid: 5}", "raid"),
        ("disks: {select: []}", "an empty pattern"),
        ("disks: {select: [1]}", "select"),
        ("disks: {mount: mnt}", "mount path"),
        ("disks: {name: 'a b'}", "name of the disks"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_in_its_place(text: str, want: str) -> None:
    with pytest.raises(InvalidInput, match=want) as refused:
        read(text)
    assert str(refused.value).startswith("policy.yaml, document 1, line 1: disks")


@pytest.mark.parametrize(
    ("plan", "label", "status", "reason", "message"),
    [
        (
            DiskPlan(state=DiskState.READY, device="/dev/md127", mount="/mnt/d", notes=("sdb not used",)),
            "ready",
            "True",
            "DisksReady",
            "/dev/md127 at /mnt/d; sdb not used",
        ),
        (DiskPlan(state=DiskState.PENDING), "pending", "False", "DisksPending", "pending"),
        (
            DiskPlan(state=DiskState.LOST, reasons=("1 of 4 gone",), advice="wipe"),
            "lost",
            "False",
            "DiskLost",
            "1 of 4 gone; wipe",
        ),
        (
            DiskPlan(state=DiskState.REFUSED, reasons=("sda is mounted",)),
            "refused",
            "False",
            "DisksRefused",
            "sda is mounted",
        ),
        (DiskPlan(state=DiskState.NONE), None, "False", "NoDisks", "no disks"),
    ],
)
def test_a_node_reports_its_disks(plan: DiskPlan, label: str | None, status: str, reason: str, message: str) -> None:
    found, report = disks_report(plan)
    assert (disks_label(plan), found, report.reason, report.message) == (label, status, reason, message)
    assert report.warning == (label in {"lost", "refused"})
