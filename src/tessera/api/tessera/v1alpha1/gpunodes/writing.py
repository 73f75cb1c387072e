"""Writes the state of a node as fields of its GPUNode object."""

from collections.abc import Iterable
from typing import Any

import msgspec

from tessera.api.tessera.v1alpha1.gpunodes.fields import (
    MESSAGE_CHARACTERS,
    MOST_IMPAIRED,
    SUBJECT_CHARACTERS,
    ClaimFields,
    DesiredDevicesFields,
    GpuFields,
    GpuNodeStatus,
    ImpairedFields,
    OfferedFields,
    OfferFields,
    PlaceFields,
    ProductFields,
    ProfileFields,
    ReplicasFields,
    SharingFields,
    SummaryFields,
    UnhealthyFields,
    UsedFields,
)
from tessera.api.tessera.v1alpha1.objects import API_VERSION, object_of_node
from tessera.core.cluster.gpunodestate import Claim, DesiredDevices, GpuNodeState, Impairment
from tessera.core.cluster.snapshot import Gpu
from tessera.core.gpu.gpumodels import GpuModel, model
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Sharing
from tessera.core.node.reported import summary
from tessera.errors import InvalidInput

__all__ = ["API_VERSION", "KIND", "claims_field", "desired_field", "new_object", "offered_field", "status_fields"]

KIND = "GPUNode"


def new_object(node: str, uid: str) -> dict[str, Any]:
    """Return a new object for a node, owned by the Node."""
    return object_of_node(KIND, node, uid)


def status_fields(state: GpuNodeState, *, observed_generation: int = 0) -> dict[str, Any]:
    """Return the status with the GPUs of a state, as JSON with every list in it, so that a patch replaces it.

    Without `offered`, which is written separately, on the version that was read.
    """
    status = GpuNodeStatus(
        observed_generation=observed_generation,
        driver=state.driver,
        unit_mib=state.unit_mib,
        gpus=tuple(_gpu_fields(gpu, state) for gpu in state.gpus),
        impaired=tuple(_impaired_fields(each) for each in state.impaired[:MOST_IMPAIRED]),
        assignment_keys=state.assignment_keys,
        summary=msgspec.convert(summary(state), SummaryFields, from_attributes=True),
    )
    fields: dict[str, Any] = msgspec.to_builtins(status)
    return {"observedGeneration": 0, "driver": "", "unitMiB": state.unit_mib, "gpus": [], "impaired": []} | fields


def desired_field(desired: Iterable[DesiredDevices]) -> list[dict[str, Any]]:
    """Return `spec.desired` as JSON."""
    return [msgspec.to_builtins(msgspec.convert(each, DesiredDevicesFields, from_attributes=True)) for each in desired]


def offered_field(offered: Iterable[DesiredDevices]) -> list[dict[str, Any]]:
    """Return `status.offered` as JSON."""
    return [msgspec.to_builtins(msgspec.convert(each, OfferedFields, from_attributes=True)) for each in offered]


def claims_field(claims: Iterable[Claim]) -> list[dict[str, Any]]:
    """Return `spec.claims` as JSON."""
    return [msgspec.to_builtins(msgspec.convert(each, ClaimFields, from_attributes=True)) for each in claims]


def _gpu_fields(gpu: Gpu, state: GpuNodeState) -> GpuFields:
    return GpuFields(
        index=gpu.index,
        uuid=gpu.uuid,
        model=gpu.model.name,
        memory_mib=gpu.memory_mib,
        sharing=_sharing_fields(gpu.sharing),
        product=_product_fields(gpu.model),
        unhealthy=tuple(
            UnhealthyFields(place=_optional(unhealthy.device.placement), reason=unhealthy.reason)
            for unhealthy in state.unhealthy
            if unhealthy.device.gpu == gpu.uuid
        ),
        used=tuple(
            UsedFields(place=_optional(used.placement), memory_mib=used.memory_mib)
            for used in state.used
            if used.gpu == gpu.uuid
        ),
    )


def _impaired_fields(impairment: Impairment) -> ImpairedFields:
    return ImpairedFields(
        kind=impairment.kind,
        subject=impairment.subject[:SUBJECT_CHARACTERS],
        by=impairment.by[:SUBJECT_CHARACTERS],
        message=impairment.message[:MESSAGE_CHARACTERS],
    )


def _sharing_fields(sharing: Sharing) -> SharingFields:
    return SharingFields(
        modes=sharing.modes,
        layout=None if sharing.layout is None else tuple(map(_place_fields, sharing.layout)),
        allow_repartition=sharing.allow_repartition,
        replicas=tuple(ReplicasFields(profile=profile, clients=clients) for profile, clients in sharing.replicas),
        renamed=sharing.renamed,
        strategy=sharing.strategy,
        offers=tuple(
            OfferFields(
                place=_optional(each.placement),
                mode=each.mode,
                clients=each.clients,
                resource=each.resource,
                single_request=each.single_request,
            )
            for each in sharing.offers
        ),
        single_request=sharing.single_request,
        allocator=sharing.allocator,
    )


def _product_fields(known: GpuModel) -> ProductFields | None:
    """Return the driver's facts about a model; None if they equal the catalog's."""
    try:
        if model(known.name) == known:
            return None
    except InvalidInput:
        pass  # a product that is not in the catalog
    return ProductFields(
        arch=known.arch,
        memory_mib=known.memory_mib,
        memory_slices=known.memory_slices,
        compute_slices=known.compute_slices,
        profiles=tuple(msgspec.convert(each, ProfileFields, from_attributes=True) for each in known.profiles),
        at_most_one=known.at_most_one,
    )


def _place_fields(placement: Placement) -> PlaceFields:
    return PlaceFields(profile=placement.profile, start=placement.start, size=placement.size)


def _optional(placement: Placement | None) -> PlaceFields | None:
    return None if placement is None else _place_fields(placement)
