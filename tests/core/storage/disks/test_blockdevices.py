"""Which of a node's disks are selected."""

import pytest

from builders.diskobjects import array, disk
from tessera.core.storage.disks.blockdevices import (
    selected,
)
from tessera.core.storage.disks.plan import DiskSpec


@pytest.mark.parametrize(
    ("pattern", "want"),
    [
        ("/dev/nvme*", ["nvme1n1", "nvme9n1", "nvme10n1"]),
        ("/dev/nvme10n1", ["nvme10n1"]),
        ("google-local-nvme-ssd-*", ["nvme9n1", "nvme10n1"]),
        ("/dev/disk/by-id/google-local-nvme-ssd-1", ["nvme10n1"]),
        ("nvme*", []),
        ("GOOGLE*", []),
    ],
)
def test_whole_disks_are_selected_by_path_or_by_id_in_the_order_of_their_numbers(pattern: str, want: list[str]) -> None:
    devices = (
        disk(10, links=("google-local-nvme-ssd-1",)),
        disk(9, links=("google-local-nvme-ssd-0", "other")),
        disk(1),
        disk(2, kind="partition"),
        array(1, name="nvme-of-nobody"),
    )
    assert [each.name for each in selected(devices, (pattern,))] == want


@pytest.mark.parametrize(
    ("model", "serial"),
    [
        ("Amazon EC2 NVMe Instance Storage", "AWS1A2B"),
        ("Microsoft NVMe Direct Disk", "0001"),
        ("Microsoft NVMe Direct Disk v2", "0001"),
    ],
)
def test_local_disks_of_clouds_are_selected_and_their_network_disks_are_not(model: str, serial: str) -> None:
    local = disk(1, links=(f"nvme-{model.replace(' ', '_')}_{serial}",))
    network = disk(0, links=("nvme-Amazon_Elastic_Block_Store_vol1", "google-persistent-disk-0", "nvme-MSFT_NVMe_Acc"))
    assert selected((network, local), DiskSpec().select) == (local,)
