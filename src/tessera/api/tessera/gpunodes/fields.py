"""The fields of a GPUNode object, as the API server has them."""

from typing import Any, Literal

import msgspec

from tessera.core.cluster.gpunodestate import ImpairedKind
from tessera.core.gpu.sharing import Allocator, Mode
from tessera.core.workload.need import Isolation

__all__ = [
    "ClaimFields",
    "GpuFields",
    "ImpairedFields",
    "OfferFields",
    "OfferedFields",
    "PlaceFields",
    "PolicyFields",
    "ProductFields",
    "ProfileFields",
    "ReplicasFields",
    "ShareFields",
    "SharingFields",
    "SickFields",
    "Spec",
    "Status",
    "SummaryFields",
    "UsedFields",
    "WantedFields",
]


class PlaceFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A MIG instance's place on its GPU."""

    profile: str
    start: int
    size: int = 0
    """Placement units; 0 for those of the profile."""


class OfferFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One device offered otherwise than its GPU's fields say."""

    place: PlaceFields | None = None
    """The MIG instance; left out for the whole GPU."""
    mode: Mode
    clients: int
    resource: str = ""
    single_request: bool | None = None


class ReplicasFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How many clients share each device of a profile."""

    profile: str = ""
    """Left out for the whole GPU."""
    clients: int


class SharingFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What may be done with a GPU, and what has been done already."""

    modes: tuple[Mode, ...] = ()
    layout: tuple[PlaceFields, ...] | None = None
    """MIG instances that exist; left out where MIG is off."""
    recut: bool = False
    """Whether unused MIG instances may be destroyed and new ones made."""
    replicas: tuple[ReplicasFields, ...] = ()
    renamed: bool = False
    strategy: Literal["none", "single", "mixed"] = "mixed"
    offers: tuple[OfferFields, ...] = ()
    single_request: bool | None = None
    allocator: Allocator = "kubelet"
    """Who allocates the devices of a fixed sharing."""


class ProfileFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A MIG profile that the driver shows otherwise than Tessera's catalogue."""

    name: str
    compute_slices: int
    size: int = 0
    starts: tuple[int, ...] = ()
    max_instances: int
    memory_mib: int = msgspec.field(name="memoryMiB")
    media: Literal["none", "default", "me", "me.all", "full"] = "none"
    graphics: bool = False


class ProductFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A GPU model that Tessera's catalogue does not have, or that the driver shows otherwise."""

    arch: str
    memory_mib: int = msgspec.field(name="memoryMiB")
    units: int = 0
    compute_slices: int = 0
    profiles: tuple[ProfileFields, ...] = ()
    at_most_one: tuple[str, ...] = ()


class SickFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What is wrong with a device."""

    place: PlaceFields | None = None
    """The MIG instance; left out for the whole GPU."""
    reason: str = ""


class UsedFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Memory in use."""

    place: PlaceFields | None = None
    """The MIG instance; left out for the whole GPU."""
    memory_mib: int = msgspec.field(name="memoryMiB")


class GpuFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One GPU."""

    index: int
    uuid: str
    model: str
    """Name in Tessera's catalogue, else the product as the driver prints it."""
    memory_mib: int = msgspec.field(name="memoryMiB")
    """Memory that can be granted."""
    sharing: SharingFields
    product: ProductFields | None = None
    """What the driver shows, where that is not what the catalogue says."""
    sick: tuple[SickFields, ...] = ()
    """Empty for a GPU that is well."""
    used: tuple[UsedFields, ...] = ()


class SummaryFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The GPUs in a few words, for the columns of `kubectl get gpunodes`; no program reads them."""

    ready: str = ""
    """GPUs on which nothing is sick, and all GPUs: `3/4`."""
    models: str = ""
    """Models, with how many of each where they differ."""
    sharing: str = ""
    """How GPUs are shared, `auto` where they are managed; with how many of each where they differ."""
    instances: str = ""
    """MIG instances that exist, with how many of each profile."""


class OfferedFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Devices of one GPU that the kubelet may give away: advertised to it by name, or held by pods that named them."""

    gpu: str
    """UUID."""
    whole: bool = False
    """Whether it is the GPU as a whole."""
    instances: tuple[PlaceFields, ...] = ()


class ImpairedFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Something that was declared for the node and is not in force."""

    kind: ImpairedKind
    """Refused: it cannot be read or cannot be. Overridden: something else decides. Withheld: a resource is not
    offered."""
    subject: str = ""
    """What it is about."""
    by: str = ""
    """What decides in its place."""
    message: str
    """What was found and what to do about it."""


class Status(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What the agent reports of its node."""

    observed_generation: int = 0
    """Generation of the spec that the agent has acted on."""
    driver: str = ""
    unit_mib: int = msgspec.field(name="unitMiB", default=1024)
    """Memory of one unit of `tessera.dev/gpu-memory` and `aliyun.com/gpu-mem`."""
    gpus: tuple[GpuFields, ...] = ()
    impaired: tuple[ImpairedFields, ...] = ()
    """What labels, files and policies declare for the node and is not in force."""
    assignment_keys: tuple[str, ...] = ()
    """Public keys, Ed25519 in base64, of the agent's signatures on its node's pods; the present one first."""
    summary: SummaryFields = SummaryFields()
    offered: tuple[OfferedFields, ...] = ()
    """Devices that are the kubelet's: written before they are advertised, taken out when the kubelet has let go of
    them. Needs and shares get nothing that overlaps them."""


class WantedFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Devices of one GPU that shall exist and be advertised for pods with exact requests."""

    gpu: str
    """UUID."""
    whole: bool = False
    """Whether it is wanted as one whole device."""
    instances: tuple[PlaceFields, ...] = ()


class ShareFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a pod gets of one device."""

    gpu: int
    """Index of the GPU in its node."""
    mode: Mode
    profile: str | None = None
    start: int | None = None
    memory_mib: int = msgspec.field(name="memoryMiB")
    compute_percent: int
    isolation: Isolation
    resource: str
    container: str = ""


class ClaimFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Shares that a server is about to bind a pod to."""

    uid: str
    pod: str
    """Namespace and name, `NAMESPACE/NAME`."""
    shares: tuple[ShareFields, ...]
    attempt: str = ""
    """Which of several attempts to bind the pod wrote it."""


class PolicyFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What the GPUPolicy that applies says about this node."""

    name: str
    document: dict[str, Any] = {}
    """As the node policy file has it, see docs/sharing.md."""


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What shall be on the node."""

    policy: PolicyFields | None = None
    wanted: tuple[WantedFields, ...] = ()
    claims: tuple[ClaimFields, ...] = ()
