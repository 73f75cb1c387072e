"""Disks as they are observed, and what is asked of them."""

from typing import Any

from tessera.core.storage.disks.blockdevices import (
    BlockDevice,
)

SIZE = 1 << 40


def disk(number: int, **more: Any) -> BlockDevice:
    facts: dict[str, Any] = {"name": f"nvme{number}n1", "kind": "disk", "size_bytes": SIZE, "probed": True}
    return BlockDevice(**(facts | more))


def array(*slaves: int, **more: Any) -> BlockDevice:
    names = tuple(f"nvme{number}n1" for number in slaves)
    facts: dict[str, Any] = {"name": "md127", "size_bytes": SIZE, "slaves": names, "array_state": "clean"}
    return BlockDevice(kind="array", **(facts | {"probed": True} | more))
