"""The fields of a GPUNode object in the API."""

from typing import Annotated, Any, Literal

import msgspec

from tessera.api.tessera.shares import MOST_GPUS, MOST_MEMORY_SLICES, MOST_MIB, ShareFields
from tessera.core.cluster.gpunodestate import ImpairedKind
from tessera.core.gpu.sharing import Allocator, Mode

__all__ = [
    "MESSAGE_CHARACTERS",
    "MOST_IMPAIRED",
    "SUBJECT_CHARACTERS",
    "ClaimFields",
    "DesiredDevicesFields",
    "GpuFields",
    "GpuNodeSpec",
    "GpuNodeStatus",
    "ImpairedFields",
    "OfferFields",
    "OfferedFields",
    "PlaceFields",
    "PolicyFields",
    "ProductFields",
    "ProfileFields",
    "ReplicasFields",
    "SharingFields",
    "SummaryFields",
    "UnhealthyFields",
    "UsedFields",
]


MOST_IMPAIRED, SUBJECT_CHARACTERS, MESSAGE_CHARACTERS = 64, 512, 4096

_Uuid = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_Profile = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_MemorySlices = Annotated[int, msgspec.Meta(ge=0, le=MOST_MEMORY_SLICES)]
_Mib = Annotated[int, msgspec.Meta(ge=0, le=MOST_MIB)]
_SomeMib = Annotated[int, msgspec.Meta(ge=1, le=MOST_MIB)]
_Summary = Annotated[str, msgspec.Meta(max_length=128)]
_Subject = Annotated[str, msgspec.Meta(max_length=SUBJECT_CHARACTERS)]


class PlaceFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A MIG instance's placement on its GPU."""

    profile: _Profile
    start: _MemorySlices
    size: _MemorySlices = 0
    """Memory slices; 0 for the profile's."""


class OfferFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A device that deviates from its GPU's fields."""

    place: PlaceFields | None = None
    """The MIG instance; left out for the whole GPU."""
    mode: Mode
    clients: Annotated[int, msgspec.Meta(ge=0, le=4096)]
    resource: Annotated[str, msgspec.Meta(max_length=317)] = ""
    single_request: bool | None = None


class ReplicasFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How many clients share each device of a profile."""

    profile: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Left out for the whole GPU."""
    clients: Annotated[int, msgspec.Meta(ge=1, le=4096)]


class SharingFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How one GPU may be shared, and its present layout."""

    modes: Annotated[tuple[Mode, ...], msgspec.Meta(max_length=8)] = ()
    layout: Annotated[tuple[PlaceFields, ...], msgspec.Meta(max_length=64)] | None = None
    """Existing MIG instances; left out if MIG is off."""
    allow_repartition: bool = False
    """Whether unused MIG instances may be destroyed and new ones created."""
    replicas: Annotated[tuple[ReplicasFields, ...], msgspec.Meta(max_length=64)] = ()
    renamed: bool = False
    strategy: Literal["none", "single", "mixed"] = "mixed"
    offers: Annotated[tuple[OfferFields, ...], msgspec.Meta(max_length=64)] = ()
    single_request: bool | None = None
    allocator: Allocator = "kubelet"
    """Who allocates the devices of a fixed sharing."""


class ProfileFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A MIG profile by the driver, where it differs from Tessera's catalog."""

    name: _Profile
    compute_slices: _MemorySlices
    size: _MemorySlices = 0
    starts: Annotated[tuple[_MemorySlices, ...], msgspec.Meta(max_length=64)] = ()
    max_instances: _MemorySlices
    memory_mib: _SomeMib = msgspec.field(name="memoryMiB")
    media: Literal["none", "default", "me", "me.all", "full"] = "none"
    graphics: bool = False


class ProductFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A GPU model by the driver, where it differs from Tessera's catalog."""

    arch: Annotated[str, msgspec.Meta(max_length=64)]
    memory_mib: _Mib = msgspec.field(name="memoryMiB")
    memory_slices: _MemorySlices = 0
    compute_slices: _MemorySlices = 0
    profiles: Annotated[tuple[ProfileFields, ...], msgspec.Meta(max_length=64)] = ()
    at_most_one: Annotated[tuple[str, ...], msgspec.Meta(max_length=64)] = ()


class UnhealthyFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A problem of a device."""

    place: PlaceFields | None = None
    """The MIG instance; left out for the whole GPU."""
    reason: Annotated[str, msgspec.Meta(max_length=1024)] = ""


class UsedFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Memory in use."""

    place: PlaceFields | None = None
    """The MIG instance; left out for the whole GPU."""
    memory_mib: _Mib = msgspec.field(name="memoryMiB")


class GpuFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One GPU."""

    index: Annotated[int, msgspec.Meta(ge=0, le=MOST_GPUS - 1)]
    uuid: _Uuid
    model: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    """Name in Tessera's catalog, else the driver's product name."""
    memory_mib: _SomeMib = msgspec.field(name="memoryMiB")
    """Memory that can be allocated."""
    sharing: SharingFields
    product: ProductFields | None = None
    """The driver's facts, where they differ from the catalog."""
    unhealthy: Annotated[tuple[UnhealthyFields, ...], msgspec.Meta(max_length=64)] = ()
    """Empty for a healthy GPU."""
    used: Annotated[tuple[UsedFields, ...], msgspec.Meta(max_length=64)] = ()


class SummaryFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A summary of the GPUs, for the columns of `kubectl get gpunodes`; not for programs."""

    ready: Annotated[str, msgspec.Meta(max_length=16)] = ""
    """Healthy GPUs of all GPUs: `3/4`."""
    models: _Summary = ""
    """Models, with how many of each where they differ."""
    sharing: _Summary = ""
    """How GPUs are shared, `auto` where they are managed; with how many of each where they differ."""
    instances: _Summary = ""
    """Existing MIG instances, with the number of each profile."""


class OfferedFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Devices of one GPU that the kubelet may allocate: advertised by name, or used by pods that requested the name."""

    gpu: _Uuid
    """UUID."""
    whole: bool = False
    """Whether it is the GPU as a whole."""
    instances: Annotated[tuple[PlaceFields, ...], msgspec.Meta(max_length=128)] = ()


class ImpairedFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Something that is declared for the node and not in force."""

    kind: ImpairedKind
    """Refused: invalid or impossible. Overridden: something else takes precedence. Withheld: a resource is not
    advertised, or a GPU is not shared or partitioned yet as declared."""
    subject: _Subject = ""
    """Its subject."""
    by: _Subject = ""
    """What takes precedence."""
    message: Annotated[str, msgspec.Meta(max_length=MESSAGE_CHARACTERS)]
    """The cause and the fix."""


class GpuNodeStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The agent's report of its node."""

    observed_generation: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Generation of the spec that the agent has acted on."""
    driver: Annotated[str, msgspec.Meta(max_length=64)] = ""
    unit_mib: _SomeMib = msgspec.field(name="unitMiB", default=1024)
    """Memory of one unit of `tessera.dev/gpu-memory` and `aliyun.com/gpu-mem`."""
    gpus: Annotated[tuple[GpuFields, ...], msgspec.Meta(max_length=MOST_GPUS)] = ()
    impaired: Annotated[tuple[ImpairedFields, ...], msgspec.Meta(max_length=MOST_IMPAIRED)] = ()
    """Declarations of labels, files and policies for the node that are not in force."""
    assignment_keys: Annotated[tuple[str, ...], msgspec.Meta(max_length=8)] = ()
    """Public keys, Ed25519 in base64, of the agent's signatures on its node's pods; the current one first."""
    summary: SummaryFields = SummaryFields()
    offered: Annotated[tuple[OfferedFields, ...], msgspec.Meta(max_length=MOST_GPUS)] = ()
    """Devices that are the kubelet's: written before they are advertised, removed when the kubelet has dropped
    them. Needs and shares get nothing that overlaps them."""


class DesiredDevicesFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Devices of one GPU that are desired and advertised for pods with exact requests."""

    gpu: _Uuid
    """UUID."""
    whole: bool = False
    """Whether it is desired as one whole device."""
    instances: Annotated[tuple[PlaceFields, ...], msgspec.Meta(max_length=64)] = ()


class ClaimFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Shares that a server is about to bind a pod to."""

    uid: _Uuid
    pod: Annotated[str, msgspec.Meta(min_length=3, max_length=317, pattern="^[^/]+/[^/]+$")]
    """Namespace and name, `NAMESPACE/NAME`."""
    shares: Annotated[tuple[ShareFields, ...], msgspec.Meta(min_length=1, max_length=256)]
    attempt: str = ""
    """Identifies one of several attempts to bind the pod."""


class PolicyFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The applying GPUPolicy's settings for this node."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    document: dict[str, Any] = {}
    """In the form of the node policy file, see docs/sharing.md."""


class GpuNodeSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The desired state of the node."""

    policy: PolicyFields | None = None
    desired: Annotated[
        tuple[DesiredDevicesFields, ...],
        msgspec.Meta(
            max_length=MOST_GPUS,
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["gpu"]},
        ),
    ] = ()
    # Written whole by servers, on the version that was read; a map would cost the API server as much again a write.
    claims: Annotated[tuple[ClaimFields, ...], msgspec.Meta(max_length=1024)] = ()
