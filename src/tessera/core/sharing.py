"""How one GPU is shared: the modes, what an administrator fixed, and the devices that result.

Modes belong to a GPU (or to one MIG instance of it), never to a node.
"""

import enum
from typing import Literal

import msgspec

from tessera.core.gpumodels import GpuModel
from tessera.core.mig import Placement
from tessera.core.need import Isolation

__all__ = ["AUTO", "GPU_RESOURCE", "Device", "Mode", "Sharing", "devices", "mig_resource"]

GPU_RESOURCE = "nvidia.com/gpu"
"""A whole GPU, a replica that was not renamed, or any MIG instance under strategy `single`."""


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


# What each mode enforces. Source: k8s-device-plugin README (time-slicing: no limits; MPS: limits, shared
# faults) and the MIG User Guide; GKE documents the combinations with MIG.
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


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """What the kubelet is offered: a whole GPU or a MIG instance, and how many clients may hold it at once."""

    mode: Mode
    placement: Placement | None
    """The MIG instance; None for the whole GPU."""
    resource: str
    clients: int
    memory_mib: int
    """Memory one client is granted; under time-slicing, which enforces nothing, the fair part."""
    compute_percent: int
    """Percent of the GPU's compute one client is granted, rounded down."""

    @property
    def isolation(self) -> Isolation:
        """The grade a client of this device gets: alone on a device, its neighbours are other devices."""
        return self.mode.isolation


def mig_resource(profile: str, *, shared: bool = False) -> str:
    """Return the resource name that advertises a MIG profile under strategy `mixed`.

    Source: NVIDIA k8s-device-plugin, `+` becomes `.`: `nvidia.com/mig-1g.10gb.me`.
    """
    return f"nvidia.com/mig-{profile.replace('+', '.')}{'.shared' if shared else ''}"


def devices(model: GpuModel, memory_mib: int, sharing: Sharing) -> tuple[Device, ...]:
    """Return the devices a GPU offers as it is configured now, in order of start.

    A GPU left to Tessera offers the MIG instances that exist; what could be cut is not a device yet. Memory shares and
    MPS without a number of replicas are amounts, not devices.
    """
    if sharing.layout is not None:
        return tuple(_instance(model, memory_mib, sharing, placement) for placement in sharing.layout)
    clients = dict(sharing.replicas).get("", 0)
    if sharing.modes == (Mode.WHOLE,):
        return (_share_out(Mode.WHOLE, None, GPU_RESOURCE, 1, (memory_mib, 100)),)
    if clients and len(sharing.modes) == 1:
        resource = f"{GPU_RESOURCE}.shared" if sharing.renamed else GPU_RESOURCE
        return (_share_out(sharing.modes[0], None, resource, clients, (memory_mib, 100)),)
    return ()


def _instance(model: GpuModel, memory_mib: int, sharing: Sharing, placement: Placement) -> Device:
    profile = next(p for p in model.profiles if p.name == placement.profile)
    clients = dict(sharing.replicas).get(profile.name, 1)
    shared = tuple(mode for mode in sharing.modes if mode in {Mode.MIG_TIME_SLICING, Mode.MIG_MPS})
    mode = shared[0] if shared and clients > 1 else Mode.MIG
    renamed = sharing.renamed and mode is not Mode.MIG
    if sharing.strategy == "single":
        resource = f"{GPU_RESOURCE}.shared" if renamed else GPU_RESOURCE
    else:
        resource = mig_resource(profile.name, shared=renamed)
    amounts = (min(memory_mib, profile.memory_mib), 100 * profile.compute_slices // model.compute_slices)
    return _share_out(mode, placement, resource, clients, amounts)


def _share_out(
    mode: Mode, placement: Placement | None, resource: str, clients: int, amounts: tuple[int, int]
) -> Device:
    memory_mib, compute_percent = amounts
    return Device(
        mode=mode,
        placement=placement,
        resource=resource,
        clients=clients,
        memory_mib=memory_mib // clients,
        compute_percent=compute_percent // clients,
    )
