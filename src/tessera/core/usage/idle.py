"""When a device is idle: of its compute nearly nothing is used, or of its memory nothing."""

from collections.abc import Collection
from typing import Final

__all__ = ["IDLE_PERCENT", "UNUSED_MIB", "is_idle"]

IDLE_PERCENT: Final = 5.0
"""A container that uses less of the compute of its GPU or MIG instance is idle."""

UNUSED_MIB: Final = 64
"""A device with at most this much memory in use is used by no process.

Drivers report up to 14 MiB of an empty MIG instance; the smallest CUDA context has 72 MiB (docs/hardware.md).
Source: NVIDIA dcgm-exporter, `internal/pkg/transformation/kubernetes_mig_test.go`; MIG User Guide, `nvidia-smi`.
"""


def is_idle(percent: Collection[float | None], used_mib: int | None) -> bool:
    """Return whether all containers of a device are known to be idle; where unknown, whether no process uses it.

    Args:
        percent: how much of its compute each container uses; None where unknown.
        used_mib: memory of the device in use; None where unknown.

    """
    known = [each for each in percent if each is not None]
    if known and len(known) == len(percent):
        return max(known) < IDLE_PERCENT
    return used_mib is not None and used_mib <= UNUSED_MIB
