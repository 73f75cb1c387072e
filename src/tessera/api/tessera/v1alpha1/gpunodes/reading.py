"""Reads GPUNode objects as the state of a node."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from tessera.api.fields import in_place, refused_form
from tessera.api.tessera.v1alpha1.gpunodes.fields import (
    DesiredDevicesFields,
    GpuFields,
    GpuNodeSpec,
    GpuNodeStatus,
    OfferedFields,
    PlaceFields,
    ProductFields,
)
from tessera.core.cluster.gpunodestate import Claim, DesiredDevices, GpuNodeState, Impairment, UnhealthyDevice, Used
from tessera.core.cluster.snapshot import Gpu, NodeName
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.gpumodels import GpuModel, Profile, model
from tessera.core.gpu.mig import Layout, Placement, placement_at, why_illegal
from tessera.core.gpu.sharing import Offer, Sharing
from tessera.errors import UNDECODABLE, InvalidInput, shown

__all__ = ["read_gpu_node"]

_MOST_BITS: Final = 16
"""Memory slices, and kinds of media engines that one instance alone can have: at most 14 in the catalog. A table of
all states of a GPU has a bit of each."""
_MOST_PLACEMENTS: Final = 62
"""Of all profiles: at most 30 in the catalog. A class of states has a bit of each."""


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    resource_version: str = ""


class _Object(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: GpuNodeSpec = GpuNodeSpec()
    status: GpuNodeStatus | None = None


def read_gpu_node(obj: Mapping[str, Any]) -> GpuNodeState:
    """Return the state of a GPU node from its object.

    Raises:
        InvalidInput: a wrong type, a GPU twice, a layout that its GPU does not support, or impossible numbers.

    """
    name = shown((obj.get("metadata") or {}).get("name"))[1:-1]
    try:
        found = msgspec.convert(obj, _Object)
    except UNDECODABLE as error:
        raise refused_form(error, obj, f"GPUNode {name}", "see `kubectl explain gpunode`") from error
    for former in _former_fields(obj):
        raise InvalidInput(
            f"GPUNode {name}",
            found=f"{former} is a field of agents from before 23 November 2026, 03:00 UTC",
            hint="upgrade Tessera in that cluster, then read it again",
        )
    return in_place(f"GPUNode {found.metadata.name}", partial(_state, found))


def _former_fields(obj: Mapping[str, Any]) -> Iterator[str]:
    """Yield the fields that have other names today. Ignored, an unhealthy GPU would count as healthy."""
    if (obj.get("spec") or {}).get("wanted"):
        yield "spec.wanted"
    for number, gpu in enumerate((obj.get("status") or {}).get("gpus") or ()):
        for part, word in (gpu, "sick"), (gpu["sharing"], "recut"), (gpu.get("product") or {}, "units"):
            if word in part:
                yield f"{word} of status.gpus[{number}]"


def _state(gpu_node: _Object) -> GpuNodeState:
    status = gpu_node.status or GpuNodeStatus()
    gpus = tuple(sorted((_gpu(each) for each in status.gpus), key=lambda gpu: gpu.index))
    _check_distinct("indices of GPUs", [gpu.index for gpu in gpus])
    _check_distinct("UUIDs of GPUs", [gpu.uuid for gpu in gpus])
    models = {gpu.uuid: gpu.model for gpu in gpus}
    return GpuNodeState(
        name=NodeName(gpu_node.metadata.name),
        gpus=gpus,
        unhealthy=tuple(
            UnhealthyDevice(device=DeviceId(each.uuid, _place(models[each.uuid], one.place)), reason=one.reason)
            for each in status.gpus
            for one in each.unhealthy
        ),
        used=tuple(
            Used(gpu=each.uuid, placement=_place(models[each.uuid], used.place), memory_mib=used.memory_mib)
            for each in status.gpus
            for used in each.used
        ),
        unit_mib=status.unit_mib,
        driver=status.driver,
        reported=gpu_node.status is not None,
        impaired=tuple(msgspec.convert(each, Impairment, from_attributes=True) for each in status.impaired),
        desired=tuple(_desired(models[each.gpu], each) for each in gpu_node.spec.desired if each.gpu in models),
        offered=tuple(_offered(models.get(each.gpu), each) for each in status.offered),
        claims=tuple(msgspec.convert(each, Claim, from_attributes=True) for each in gpu_node.spec.claims),
        policy=gpu_node.spec.policy.name if gpu_node.spec.policy else "",
        assignment_keys=status.assignment_keys,
        version=gpu_node.metadata.resource_version,
    )


def _gpu(fields: GpuFields) -> Gpu:
    subject = f"GPU {fields.index}"
    known = _model(fields)
    layout = fields.sharing.layout
    return Gpu(
        index=fields.index,
        model=known,
        memory_mib=fields.memory_mib,
        sharing=Sharing(
            modes=fields.sharing.modes,
            layout=None if layout is None else _layout(subject, known, layout),
            allow_repartition=fields.sharing.allow_repartition,
            replicas=tuple((part.profile, part.clients) for part in fields.sharing.replicas),
            renamed=fields.sharing.renamed,
            strategy=fields.sharing.strategy,
            offers=tuple(
                Offer(
                    placement=_place(known, part.place),
                    mode=part.mode,
                    clients=part.clients,
                    resource=part.resource,
                    single_request=part.single_request,
                )
                for part in fields.sharing.offers
            ),
            single_request=fields.sharing.single_request,
            allocator=fields.sharing.allocator,
        ),
        uuid=fields.uuid,
    )


def _model(fields: GpuFields) -> GpuModel:
    if fields.product is None:
        return model(fields.model)
    product = fields.product
    if wrong := _why_impossible(product):
        raise InvalidInput(
            f"product of GPU {fields.index}", found=wrong, hint="no GPU has that: see what the agent there reports"
        )
    profiles = tuple(Profile(**msgspec.structs.asdict(profile), placement="observed") for profile in product.profiles)
    return GpuModel(**{**msgspec.structs.asdict(product), "name": fields.model, "profiles": profiles})


def _why_impossible(product: ProductFields) -> str:
    """Return what no GPU can have; empty where there is nothing: tables of all states are made of these numbers."""
    bits = product.memory_slices + len(product.at_most_one)
    if bits > _MOST_BITS:
        return f"{bits} memory slices and kinds of media engines, and at most {_MOST_BITS} are read"
    for each in product.profiles:
        if not 0 < each.compute_slices <= product.compute_slices:
            return f"profile {each.name} with {each.compute_slices} of {product.compute_slices} compute slices"
        if each.starts and not each.size:
            return f"profile {each.name} has starts, and no memory slice"
        if any(start + each.size > product.memory_slices for start in each.starts):
            place = f"profile {each.name} of size {each.size} at start {max(each.starts)}"
            return f"{place} exceeds the {product.memory_slices} memory slices"
    placements = sum(len(set(each.starts)) for each in product.profiles)
    if placements > _MOST_PLACEMENTS:
        return f"{placements} placements, and at most {_MOST_PLACEMENTS} are read"
    return ""


def _layout(subject: str, known: GpuModel, places: Iterable[PlaceFields]) -> Layout:
    layout = tuple(sorted(_placement(known, each) for each in places))
    wrong = why_illegal(known, layout)
    if wrong:
        raise InvalidInput(f"layout of {subject}", found=f"{wrong}, which a {known.name} cannot have")
    return layout


def _place(known: GpuModel, place: PlaceFields | None) -> Placement | None:
    return None if place is None else _placement(known, place)


def _placement(known: GpuModel, place: PlaceFields) -> Placement:
    if place.size:
        return Placement(place.start, place.size, place.profile)
    return placement_at(known, place.profile, place.start)


def _desired(known: GpuModel, fields: DesiredDevicesFields) -> DesiredDevices:
    instances = _layout(f"GPU {fields.gpu} in spec.desired", known, fields.instances)
    if fields.whole and instances:
        raise InvalidInput(
            f"GPU {fields.gpu} in spec.desired",
            found="it has the whole GPU and instances of it",
            hint="name one of the two",
        )
    return DesiredDevices(gpu=fields.gpu, whole=fields.whole, instances=instances)


def _offered(known: GpuModel | None, fields: OfferedFields) -> DesiredDevices:
    """Return the devices, including overlapping ones while one replaces the other, and those of a lost GPU."""
    instances = (
        Placement(place.start, place.size, place.profile) if known is None else _placement(known, place)
        for place in fields.instances
    )
    return DesiredDevices(gpu=fields.gpu, whole=fields.whole, instances=tuple(sorted(instances)))


def _check_distinct(subject: str, values: list[Any]) -> None:
    if len(set(values)) < len(values):
        twice = next(each for each in values if values.count(each) > 1)
        raise InvalidInput(subject, found=f"{shown(twice)} is there twice", hint="name each once")
