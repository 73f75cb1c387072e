"""MIG placements and layouts of one GPU: legality, enumeration, named configurations, remaining capacity."""

import msgspec

__all__ = ["Placement"]


class Placement(msgspec.Struct, frozen=True, order=True):
    """A MIG instance's place on one GPU; orders by start, then size, then profile name."""

    start: int
    size: int
    profile: str

    @property
    def mask(self) -> int:
        """The placement units taken, as a bit set."""
        return ((1 << self.size) - 1) << self.start
