"""How one GPU is shared: the modes, what an administrator fixed, and the devices that result.

Modes belong to a GPU (or to one MIG instance of it), never to a node.
"""

import enum
from typing import Literal

import msgspec

from tessera.core.mig import Placement
from tessera.core.need import Isolation

__all__ = ["AUTO", "Mode", "Sharing"]


class Mode(enum.StrEnum):
    """How a share of a GPU is made."""

    WHOLE = "whole"
    MIG = "mig"
    MIG_TIME_SLICING = "mig-time-slicing"
    MIG_MPS = "mig-mps"
    MPS = "mps"
    TIME_SLICING = "time-slicing"
    MEMORY_SHARE = "memory-share"

    @property
    def isolation(self) -> Isolation:
        """The strongest grade this mode gives a pod against its neighbours on the same device."""
        return _ISOLATION[self]


_ISOLATION = {
    Mode.WHOLE: Isolation.HARDWARE,
    Mode.MIG: Isolation.HARDWARE,
    Mode.MIG_TIME_SLICING: Isolation.NONE,
    Mode.MIG_MPS: Isolation.DRIVER,
    Mode.MPS: Isolation.DRIVER,
    Mode.TIME_SLICING: Isolation.NONE,
    Mode.MEMORY_SHARE: Isolation.NONE,
}


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """What may be done with one GPU, and what has been done already."""

    modes: tuple[Mode, ...] = (Mode.WHOLE, Mode.MIG, Mode.MPS, Mode.MEMORY_SHARE)
    """Modes the planner may use; one mode means the administrator decided. A mode the node cannot enforce is absent."""
    layout: tuple[Placement, ...] | None = None
    """MIG instances that exist now, sorted by start; None where MIG is off."""
    recut: bool = True
    """Whether unused MIG instances may be destroyed and new ones made; False for a layout the administrator fixed."""
    replicas: tuple[tuple[str, int], ...] = ()
    """Clients per device by profile name, `""` for the whole GPU, for the time-slicing and MPS replica modes."""
    renamed: bool = False
    """Whether replicas are advertised with the suffix `.shared`."""
    strategy: Literal["none", "single", "mixed"] = "mixed"
    """MIG strategy: under `single` the instances are advertised as `nvidia.com/gpu`."""


AUTO = Sharing()
"""A GPU left to Tessera: any mode, nothing cut yet."""
