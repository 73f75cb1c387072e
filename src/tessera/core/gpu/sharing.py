"""How one GPU is shared: the modes, the administrator's settings, and the resulting devices.

Modes belong to a GPU (or to one MIG instance of it), never to a node.
"""

import enum
from collections.abc import Collection
from typing import Final, Literal, TypeAlias

import msgspec

from tessera.core.gpu.gpumodels import GpuModel, Profile, meant
from tessera.core.gpu.mig import Placement
from tessera.core.workload.need import DeviceRequest, Form, Isolation

__all__ = [
    "AMOUNT_MODES",
    "AUTO",
    "GPU_RESOURCE",
    "MPS_MODES",
    "NO_MPS_LIMITS",
    "Allocator",
    "Device",
    "Mode",
    "Offer",
    "Option",
    "Sharing",
    "devices",
    "managed_sharing",
    "mig_resource",
    "names_device",
    "of_other_allocator",
    "options",
    "without_mps",
]

GPU_RESOURCE = "nvidia.com/gpu"
"""A whole GPU, a replica that was not renamed, or any MIG instance under strategy `single`."""


class Mode(enum.StrEnum):
    """How a share of a GPU is provided."""

    WHOLE = "whole"
    MIG = "mig"
    MIG_TIME_SLICING = "mig-time-slicing"
    MIG_MPS = "mig-mps"
    MPS = "mps"
    TIME_SLICING = "time-slicing"
    MEMORY_SHARE = "memory-share"

    @property
    def isolation(self) -> Isolation:
        """The strongest isolation of this mode between a pod and its neighbors on the same device."""
        return _ISOLATION[self]


AMOUNT_MODES: Final = (Mode.MEMORY_SHARE, Mode.MPS)
"""The modes that allocate amounts of one GPU, weakest isolation first."""
MPS_MODES = frozenset({Mode.MPS, Mode.MIG_MPS})
"""The modes that need an MPS control daemon."""

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


NO_MPS_LIMITS = frozenset({"Pascal", "Maxwell", "Kepler"})
"""Architectures whose MPS limits neither memory nor compute. Source: NVIDIA MPS documentation, Volta MPS."""


Allocator: TypeAlias = Literal["kubelet", "scheduler"]
"""Who allocates devices: the kubelet to pods that request them by name, the scheduler to needs and shares."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """How one device of a GPU is offered, if the administrator configured that device."""

    placement: Placement | None = None
    """The MIG instance; None for the whole GPU."""
    mode: Mode
    clients: int
    """0 withholds the device."""
    resource: str = ""
    """Advertised resource name; empty for the default of its kind."""
    single_request: bool | None = None
    """As in `Sharing`."""


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """How one GPU may be shared, and its present layout."""

    modes: tuple[Mode, ...] = (Mode.WHOLE, Mode.MIG, Mode.MPS, Mode.MEMORY_SHARE)
    """Modes the planner may use; a single mode means that the administrator decided. Modes the node cannot enforce are
    absent. Without any the GPU offers nothing."""
    layout: tuple[Placement, ...] | None = None
    """MIG instances that exist now, sorted by start; None where MIG is off."""
    allow_repartition: bool = True
    """Whether unused MIG instances may be destroyed and others created; False for an administrator's layout."""
    replicas: tuple[tuple[str, int], ...] = ()
    """Clients per device by profile name, `""` for the whole GPU, for time-slicing and MPS replicas."""
    renamed: bool = False
    """Whether replicas are advertised with the suffix `.shared`."""
    strategy: Literal["none", "single", "mixed"] = "mixed"
    """MIG strategy: under `single` the instances are advertised as `nvidia.com/gpu`."""
    offers: tuple[Offer, ...] = ()
    """Devices that deviate from the other fields, each device at most once."""
    single_request: bool | None = None
    """Whether a container may request one shared device at most; None for the default: yes under MPS, else no."""
    allocator: Allocator = "kubelet"
    """Who allocates the devices of a GPU whose sharing is fixed; amounts, and managed GPUs, are always the
    scheduler's."""

    @property
    def creates_devices(self) -> bool:
        """Whether devices may be created here; otherwise the administrator fixed a layout or a number of replicas."""
        fixed = self.replicas or any(each.clients for each in self.offers)
        return not fixed and (self.layout is None or self.allow_repartition)

    @property
    def managed(self) -> bool:
        """Whether Tessera chooses how the GPU is shared: among several modes, or by MIG instances that it creates."""
        return self.can_repartition or (self.creates_devices and self.allow_repartition and len(self.modes) > 1)

    @property
    def scheduler_allocates(self) -> bool:
        """Whether the scheduler allocates the devices here to needs and shares; otherwise the kubelet allocates all."""
        return self.allocator == "scheduler" or (self.creates_devices and self.modes != (Mode.WHOLE,))

    @property
    def can_repartition(self) -> bool:
        """Whether MIG instances may be created and destroyed here; not under strategy `single`: all must be alike."""
        return self.creates_devices and Mode.MIG in self.modes and self.allow_repartition and self.strategy != "single"


AUTO = Sharing()
"""A managed GPU: any mode, no instances yet."""


def managed_sharing(model: GpuModel) -> Sharing:
    """Return the sharing of a managed GPU, without modes its architecture cannot enforce."""
    return without_mps(AUTO) if model.arch in NO_MPS_LIMITS else AUTO


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """A way to serve one device of a request on one GPU."""

    mode: Mode
    profile: str | None = None
    """MIG profile of the instance; None where the whole GPU is the device."""
    exists: bool = False
    """Served by an existing device (any with this mode, profile and resource); otherwise it must be created."""
    resource: str = ""
    """Resource name of the existing device; empty otherwise."""
    memory_mib: int
    compute_percent: int
    """The pod's allocation: for amounts as requested, for devices the device's."""

    @property
    def amount(self) -> bool:
        """Whether the share is an amount of the GPU, limited by what is left, and not a device of its own."""
        return not self.exists and self.mode in AMOUNT_MODES


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """An advertised device: a whole GPU or a MIG instance, and its maximum number of clients."""

    mode: Mode
    placement: Placement | None
    """The MIG instance; None for the whole GPU."""
    resource: str
    clients: int
    memory_mib: int
    """Memory of one client; under time-slicing, which enforces nothing, the equal share."""
    compute_percent: int
    """Percent of the GPU's compute of one client, rounded down."""
    single_request: bool = False
    """Whether a container that requests more than one of this resource is refused (`failRequestsGreaterThanOne`)."""

    @property
    def isolation(self) -> Isolation:
        """The isolation of a client: of an exclusive device, from other devices."""
        return self.mode.isolation

    @property
    def option(self) -> Option:
        """A client of this device, as a way to serve a request."""
        return Option(
            mode=self.mode,
            profile=self.placement.profile if self.placement else None,
            exists=True,
            resource=self.resource,
            memory_mib=self.memory_mib,
            compute_percent=self.compute_percent,
        )


def mig_resource(profile: str, *, shared: bool = False) -> str:
    """Return the resource name that advertises a MIG profile under strategy `mixed`.

    Source: NVIDIA k8s-device-plugin, `+` becomes `.`: `nvidia.com/mig-1g.10gb.me`.
    """
    return f"nvidia.com/mig-{profile.replace('+', '.')}{'.shared' if shared else ''}"


def names_device(resource: str) -> bool:
    """Return whether a resource name is one of NVIDIA's device plugin, for GPUs or MIG instances."""
    return resource in {GPU_RESOURCE, f"{GPU_RESOURCE}.shared"} or resource.startswith(mig_resource(""))


def devices(model: GpuModel, memory_mib: int, sharing: Sharing) -> tuple[Device, ...]:
    """Return the devices a GPU offers as configured now, in order of start.

    A managed GPU offers the MIG instances that exist; what could be created is not a device yet. Memory shares and
    MPS without a number of replicas are amounts, not devices.
    """
    if not sharing.modes:
        return ()
    if sharing.layout is not None:
        offers = (_instance_offer(sharing, placement) for placement in sharing.layout)
    else:
        offers = (each for each in (_whole_offer(sharing),) if each is not None)
    return tuple(_device(model, memory_mib, sharing, offer) for offer in offers if offer.clients)


def _whole_offer(sharing: Sharing) -> Offer | None:
    """Return how the whole GPU is offered; None if it is managed or shared by amounts."""
    own = next((each for each in sharing.offers if each.placement is None), None)
    if own is not None:
        return own
    if sharing.modes == (Mode.WHOLE,):
        return Offer(mode=Mode.WHOLE, clients=1)
    clients = dict(sharing.replicas).get("", 0)
    return Offer(mode=sharing.modes[0], clients=clients) if len(sharing.modes) == 1 else None


def _instance_offer(sharing: Sharing, placement: Placement) -> Offer:
    own = next((each for each in sharing.offers if each.placement == placement), None)
    if own is not None:
        return own
    clients = dict(sharing.replicas).get(placement.profile, 1)
    shared = tuple(mode for mode in sharing.modes if mode in {Mode.MIG_TIME_SLICING, Mode.MIG_MPS})
    return Offer(placement=placement, mode=shared[0] if shared and clients > 1 else Mode.MIG, clients=clients)


def _device(model: GpuModel, memory_mib: int, sharing: Sharing, offer: Offer) -> Device:
    compute_percent, resource = 100, GPU_RESOURCE
    if offer.placement is not None:
        profile = next(p for p in model.profiles if p.name == offer.placement.profile)
        memory_mib = min(memory_mib, profile.memory_mib)
        compute_percent = 100 * profile.compute_slices // model.compute_slices
        resource = GPU_RESOURCE if sharing.strategy == "single" else mig_resource(profile.name)
    replicated = offer.mode not in {Mode.WHOLE, Mode.MIG}
    single = offer.single_request if offer.single_request is not None else sharing.single_request
    return Device(
        mode=offer.mode,
        placement=offer.placement,
        resource=offer.resource or f"{resource}{'.shared' if sharing.renamed and replicated else ''}",
        clients=offer.clients,
        memory_mib=memory_mib // offer.clients,
        compute_percent=compute_percent // offer.clients,
        single_request=replicated and (offer.mode in MPS_MODES if single is None else single),
    )


def without_mps(sharing: Sharing, ready: Collection[Placement | None] = ()) -> Sharing:
    """Return the sharing without what needs MPS, except on the devices in `ready`; None is the whole GPU."""
    offers = {each.placement: each for each in sharing.offers}
    for placement in sharing.layout or ():
        offer = _instance_offer(sharing, placement)
        if offer.mode is Mode.MIG_MPS and placement not in ready:
            offers[placement] = msgspec.structs.replace(offer, clients=0)
    kept = sharing.modes if None in ready else tuple(mode for mode in sharing.modes if mode is not Mode.MPS)
    return msgspec.structs.replace(sharing, modes=kept, offers=tuple(offers.values()))


def options(request: DeviceRequest, model: GpuModel, memory_mib: int, sharing: Sharing) -> tuple[Option, ...]:
    """Return the ways one device of `request` could be served on an empty GPU, the preferred first.

    Existing devices come first, then the weakest sufficient mode: amounts before MIG instances before the whole
    GPU. Among devices the smallest comes first. Of the profiles that could be created for a need only the smallest is
    offered: wherever a larger one fits, it fits too; profiles with graphics or a unique media engine
    are left to pods that name them. Allocations of others are the packer's business. A MIG profile may be requested
    by the name that another driver prints: `nvidia.com/mig-3g.39gb` is served by `3g.40gb`. Where the sharing is
    fixed, existing devices have one allocator: they serve the kubelet's pods, which name them, or the scheduler's.
    A need on several GPUs is never served by MPS: a process is a client of one daemon, and each GPU has its own.
    """
    request = msgspec.structs.replace(request, resource=_own_resource(request.resource, model))
    existing = [device.option for device in devices(model, memory_mib, sharing) if _serves(request, device)]
    existing = existing if _allocates(request, sharing) else []
    made = (
        _amounts(request, memory_mib, sharing)
        + _new_instances(request, model, sharing)
        + _whole(request, memory_mib, sharing)
    )
    return tuple(dict.fromkeys((*sorted(existing, key=_size), *(made if sharing.creates_devices else ()))))


def of_other_allocator(
    request: DeviceRequest, model: GpuModel, memory_mib: int, sharing: Sharing
) -> tuple[Device, ...]:
    """Return the existing devices of a GPU that would serve a request, but belong to the other allocator."""
    if _allocates(request, sharing):
        return ()
    request = msgspec.structs.replace(request, resource=_own_resource(request.resource, model))
    return tuple(device for device in devices(model, memory_mib, sharing) if _serves(request, device))


def _allocates(request: DeviceRequest, sharing: Sharing) -> bool:
    """Return whether the allocator of a GPU's existing devices serves such requests."""
    return sharing.managed or sharing.allocator == ("kubelet" if request.form is Form.EXACT else "scheduler")


def _own_resource(resource: str, model: GpuModel) -> str:
    """Return the resource name of this model's instances of the profile, if one is configured."""
    if not resource.startswith(mig_resource("")):
        return resource
    name = resource.removesuffix(".shared")
    profile = meant(model, name)
    return mig_resource(profile.name, shared=name != resource) if profile else resource


def _size(option: Option) -> tuple[int, int]:
    return option.memory_mib, option.compute_percent


def _serves(request: DeviceRequest, device: Device) -> bool:
    if not device.isolation.covers(request.isolation):
        return False
    if request.form is Form.EXACT:
        return device.resource == request.resource
    enough = device.memory_mib >= request.memory_mib and device.compute_percent >= request.compute_percent
    return request.form is Form.NEED and enough and not _needs_several_daemons(request, device.mode)


def _needs_several_daemons(request: DeviceRequest, mode: Mode) -> bool:
    return request.count > 1 and mode in MPS_MODES


def _amounts(request: DeviceRequest, memory_mib: int, sharing: Sharing) -> tuple[Option, ...]:
    """Return the amount modes, weakest first."""
    if request.form is Form.EXACT or request.memory_mib > memory_mib:
        return ()
    return tuple(
        Option(mode=mode, memory_mib=request.memory_mib, compute_percent=request.compute_percent)
        for mode in AMOUNT_MODES
        if mode in sharing.modes
        and mode.isolation.covers(request.isolation)
        and not _needs_several_daemons(request, mode)
    )


def _new_instances(request: DeviceRequest, model: GpuModel, sharing: Sharing) -> tuple[Option, ...]:
    if not sharing.can_repartition or request.form is Form.SHARE:
        return ()
    if request.form is Form.EXACT:
        return tuple(
            _new_instance(p, model) for p in model.profiles if p.starts and mig_resource(p.name) == request.resource
        )
    whole_too = Mode.WHOLE in sharing.modes
    plain = (p for p in model.profiles if p.starts and not p.graphics and p.media not in model.at_most_one)
    created = (_new_instance(p, model) for p in plain if p.size < model.memory_slices or not whole_too)
    enough = (c for c in created if c.memory_mib >= request.memory_mib and c.compute_percent >= request.compute_percent)
    return tuple(sorted(enough, key=_size))[:1]


def _new_instance(profile: Profile, model: GpuModel) -> Option:
    compute_percent = 100 * profile.compute_slices // model.compute_slices
    return Option(mode=Mode.MIG, profile=profile.name, memory_mib=profile.memory_mib, compute_percent=compute_percent)


def _whole(request: DeviceRequest, memory_mib: int, sharing: Sharing) -> tuple[Option, ...]:
    if Mode.WHOLE not in sharing.modes or len(sharing.modes) == 1 or request.form is Form.SHARE:
        return ()
    fits = request.resource == GPU_RESOURCE if request.form is Form.EXACT else request.memory_mib <= memory_mib
    return (Option(mode=Mode.WHOLE, memory_mib=memory_mib, compute_percent=100),) if fits else ()
