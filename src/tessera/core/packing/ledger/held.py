"""What is in use of one GPU, with reservations and doubted assignments."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from tessera.core.cluster.compatibility import faults
from tessera.core.cluster.gputypes import GpuType
from tessera.core.cluster.snapshot import Share
from tessera.core.packing.ledger.records import Hold, HolderId, Purpose

__all__ = ["by_gpu", "taken"]

_Held: TypeAlias = Mapping[HolderId, tuple[Share, ...]]


def taken(gpu_type: GpuType, held: _Held, reserved: Iterable[Share], doubted: _Held) -> _Held:
    """Return what is in use of a GPU, with reservations and then doubted assignments, as far as they fit."""
    taken = dict(held)
    for i, share in enumerate(reserved):
        # Desired devices may overlap the kubelet's present ones: unless the layout is fixed, both are kept free.
        own: _Held = {Hold(Purpose.RESERVATION, str(i)): (share,)}
        if not any(faults(gpu_type, {**(taken if gpu_type.kept else held), **own})):
            taken |= own
    for holder, shares in doubted.items():
        if not any(faults(gpu_type, {**taken, holder: shares})):
            taken[holder] = shares
    return taken


def by_gpu(shares: Iterable[Share]) -> dict[int, list[Share]]:
    """Return shares by the index of their GPU."""
    found: dict[int, list[Share]] = {}
    for share in shares:
        found.setdefault(share.gpu, []).append(share)
    return found
