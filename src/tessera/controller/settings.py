"""Settings of a controller."""

import msgspec

from tessera.api.tessera.objects import NAMESPACE

__all__ = ["Settings"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a controller."""

    namespace: str = NAMESPACE
    """Where the Lease is."""
    lease: str = "tessera-controller"
    """Name of the Lease that the leader holds."""
    identity: str
    """Name of this process among candidates; unique."""
    interval_s: float = 10.0
    """Longest pause between two looks at everything."""
    least_s: float = 0.2
    """Shortest pause between two looks, however much changes."""
