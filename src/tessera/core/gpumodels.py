"""Facts about GPU models: memory, slices, MIG profiles and where their instances may start; each with its source."""

from typing import Literal

import msgspec

__all__ = ["GpuModel", "Profile"]


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG GPU instance profile of one GPU model."""

    name: str
    compute_slices: int
    size: int
    """Placement units taken; 0 where no placement is known."""
    starts: tuple[int, ...]
    """Legal first units."""
    max_instances: int
    memory_mib: int
    """Usable memory of one instance."""
    media: Literal["none", "default", "me", "me.all", "full"]
    graphics: bool = False
    profile_id: int | None = None
    sm: int | None = None
    placement: Literal["observed", "published-table", "inferred", "unknown"]
    """How the placements are known."""
    sources: tuple[str, ...] = ()


class GpuModel(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU product. `profiles` is empty where it has no MIG."""

    name: str
    arch: str
    memory_mib: int
    """Usable memory of the whole GPU with MIG off."""
    units: int = 0
    """Length of the MIG placement axis: 8, 12 or 4; 0 without MIG."""
    compute_slices: int = 0
    profiles: tuple[Profile, ...] = ()
    at_most_one: tuple[str, ...] = ()
    """Media kinds of which one GPU holds at most one instance."""
    aliases: tuple[str, ...] = ()
    pci: tuple[str, ...] = ()
    note: str = ""
    sources: tuple[str, ...] = ()
