"""What a node reports of its disks."""

import pytest

from tessera.api.tessera.storage.nodedisks import disks_label, disks_report
from tessera.core.storage.disks.plan import DiskPlan, DiskState


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
