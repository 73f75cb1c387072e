"""The records of a GPU model and of a MIG profile."""

from typing import Literal, TypeAlias

import msgspec

__all__ = ["GpuModel", "Media", "Profile"]

Media: TypeAlias = Literal["none", "default", "me", "me.all", "full"]
"""Which media engines an instance has: none, its part, a GPU's only set of one kind, every one, or the whole GPU's."""


class Profile(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """A MIG GPU instance profile of one GPU model."""

    name: str
    compute_slices: int
    size: int
    """Memory slices taken; 0 where no placement is known."""
    starts: tuple[int, ...]
    """Legal first memory slices."""
    max_instances: int
    memory_mib: int
    """Usable memory of one instance."""
    memory_known: bool = True
    """Whether a listing for this many memory slices is known; otherwise the figure is the estimate of `estimates`."""
    media: Media
    graphics: bool = False
    profile_id: int | None = None
    sm: int | None = None
    placement: Literal["observed", "published-table", "inferred", "unknown"]
    """Where the placements come from."""
    sources: tuple[str, ...] = ()
    """Keys of `SOURCES`."""


class GpuModel(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """A GPU product. `profiles` is empty where it has no MIG."""

    name: str
    arch: str
    memory_mib: int
    """Usable memory of the whole GPU with MIG off: the total of nvidia-smi."""
    memory_known: bool = True
    """Whether a listing with this total is known; otherwise the figure is the estimate of `estimates`."""
    memory_slices: int = 0
    """Length of the MIG placement axis: 8, 12 or 4; 0 without MIG or where no placement is known."""
    compute_slices: int = 0
    profiles: tuple[Profile, ...] = ()
    at_most_one: tuple[str, ...] = ()
    """Media kinds of which one GPU holds at most one instance."""
    aliases: tuple[str, ...] = ()
    """Other names: product names as the driver prints them, and GKE's accelerator names."""
    pci: tuple[str, ...] = ()
    """PCI device ids with the vendor's, as mig-parted's device filters write them."""
    note: str = ""
    sources: tuple[str, ...] = ()
    """Keys of `SOURCES`."""

    def compute_part(self, profile: str) -> float | None:
        """Return the part of its compute that an instance of a profile has; None where it has no such profile."""
        slices = {each.name: each.compute_slices for each in self.profiles}.get(profile)
        return slices / self.compute_slices if slices else None
