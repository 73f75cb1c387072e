"""What is allocated of one GPU, with reservations and doubted assignments."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from tessera.core.cluster.compatibility import faults
from tessera.core.cluster.gputypes import GpuType
from tessera.core.cluster.snapshot import Share
from tessera.core.packing.ledger.records import LedgerKey, Purpose, PurposeKey

__all__ = ["by_gpu", "with_reservations"]

_Allocations: TypeAlias = Mapping[LedgerKey, tuple[Share, ...]]


def with_reservations(
    gpu_type: GpuType, verified: _Allocations, reserved: Iterable[Share], doubted: _Allocations
) -> _Allocations:
    """Return what is allocated of a GPU, with reservations and then doubted assignments, as far as they fit."""
    allocated = dict(verified)
    for i, share in enumerate(reserved):
        # Desired devices may overlap the kubelet's present ones: unless the layout is fixed, both are kept free.
        own: _Allocations = {PurposeKey(Purpose.RESERVATION, str(i)): (share,)}
        if not any(faults(gpu_type, {**(allocated if gpu_type.fixed else verified), **own})):
            allocated |= own
    for holder, shares in doubted.items():
        if not any(faults(gpu_type, {**allocated, holder: shares})):
            allocated[holder] = shares
    return allocated


def by_gpu(shares: Iterable[Share]) -> dict[int, list[Share]]:
    """Return shares by the index of their GPU."""
    found: dict[int, list[Share]] = {}
    for share in shares:
        found.setdefault(share.gpu, []).append(share)
    return found
