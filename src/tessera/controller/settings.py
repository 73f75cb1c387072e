"""Settings of a controller."""

import msgspec

from tessera.api.tessera.v1alpha1.objects import NAMESPACE
from tessera.core.workload.tesseranames import CONTROLLER

__all__ = ["ControllerSettings"]


class ControllerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a controller."""

    namespace: str = NAMESPACE
    """Namespace of the Lease."""
    lease: str = CONTROLLER
    """Name of the leader election Lease."""
    identity: str
    """Identity of this process in the leader election; unique."""
    interval_s: float = 10.0
    """Longest pause between two passes."""
    least_s: float = 0.2
    """Shortest pause between two passes, however much changes."""
