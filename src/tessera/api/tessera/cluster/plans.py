"""A plan as JSON, YAML and Python records for programs: `assignments`, `pending`, `layouts`, `warnings`, a summary."""

from collections.abc import Mapping, Sequence

import msgspec

from tessera.core.cluster.snapshot import Share
from tessera.core.packing.plan import GpuLayout, Plan, PlannedDevice
from tessera.core.packing.savings import cost, gpu_use
from tessera.core.packing.sizing import FleetSizing, NodeType

__all__ = [
    "AssignmentDocument",
    "CostDocument",
    "DeviceDocument",
    "FitDocument",
    "LayoutDocument",
    "LeftOutDocument",
    "NodesDocument",
    "PendingPodDocument",
    "PlanDocument",
    "SliceDocument",
    "SummaryDocument",
    "document",
]


class DeviceDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod's share of one GPU; `profile` and `start` only for MIG."""

    gpu: int
    mode: str
    memory_mib: int
    compute_percent: int
    isolation: str
    resource: str
    container: str = ""
    profile: str | None = None
    start: int | None = None
    guessed: bool = False
    """Whether it is not recorded which GPU of the node is free, so that `gpu` and `start` are guesses."""


class AssignmentDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A placed pod, one device for each requested device."""

    pod: str
    node: str
    devices: tuple[DeviceDocument, ...]


class PendingPodDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A pending pod and the reason."""

    pod: str
    reason: str


class SliceDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One device of a GPU: `profile`, `start` and `size` (memory slices) only where it is a MIG instance."""

    mode: str
    memory_mib: int
    clients: int
    pods: tuple[str, ...]
    exists: bool
    profile: str | None = None
    start: int | None = None
    size: int | None = None


class LayoutDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU after the plan; `guessed` if its index is a guess, with its unrecorded running pods."""

    node: str
    gpu: int
    model: str
    memory_mib: int
    allocated_mib: int
    mig: bool
    # The devices: another name would break those who read plans.
    slices: tuple[SliceDocument, ...]
    guessed: bool = False
    guessed_pods: tuple[str, ...] = ()


class SummaryDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The plan in numbers; `at_most` and `optimal` only of an exact plan."""

    placed: int
    pending: int
    gpus: int
    gpus_used: int
    """GPUs with a share in use."""
    gpus_without_sharing: int
    """GPUs that the same containers would take if each had its shared GPUs exclusively."""
    at_most: int | None = None
    optimal: bool | None = None


class LeftOutDocument(msgspec.Struct, frozen=True, kw_only=True):
    """An object of the manifests, or a part of it, from which no pod was read."""

    object: str
    reason: str
    resources: tuple[str, ...]
    """GPU resources that it names."""


class CostDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Money per hour, in the currency of the given prices."""

    fleet: float
    """All GPUs."""
    used: float
    without_sharing: float
    unpriced: tuple[str, ...]
    """GPU models of the fleet without a price, which the sums leave out."""


class NodesDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of one type."""

    gpus: str
    """Of one node: `8xH100-80GB`."""
    count: int


class FitDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest fleet found; cost and bound are GPUs, or money per hour if prices were given."""

    nodes: tuple[NodesDocument, ...]
    cost: float
    at_least: float
    """No fleet of these node types costs less."""
    optimal: bool


class PlanDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The whole plan; keys are stable, new ones may be added."""

    policy: str
    summary: SummaryDocument
    assignments: tuple[AssignmentDocument, ...]
    pending: tuple[PendingPodDocument, ...]
    layouts: tuple[LayoutDocument, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """What could not be observed, was left out, or was assumed when the inputs were read."""
    skipped: tuple[str, ...] = ()
    """Nodes whose GPUs are unknown; the warnings say why."""
    left_out: tuple[LeftOutDocument, ...] = ()
    """Manifests, or parts of them, whose pods are not in this plan."""
    cost: CostDocument | None = None
    """Only if prices were given."""
    fit: FitDocument | None = None
    """Only if a fleet was searched."""


def document(
    plan: Plan,
    prices: Mapping[str, float] | None = None,
    fit: tuple[Sequence[NodeType], FleetSizing] | None = None,
) -> PlanDocument:
    """Return the wire record of a plan.

    Args:
        plan: the plan.
        prices: money per hour of one GPU, by model.
        fit: the node types, and how many of each were found.

    """
    guessed = {(layout.node, layout.gpu) for layout in plan.layouts if layout.unrecorded}
    return PlanDocument(
        policy=plan.policy,
        summary=_summary(plan),
        assignments=tuple(
            AssignmentDocument(
                pod=each.pod,
                node=each.node,
                devices=tuple(_device(share, guessed=(each.node, share.gpu) in guessed) for share in each.shares),
            )
            for each in plan.assignments
        ),
        pending=tuple(PendingPodDocument(pod=each.pod, reason=each.reason) for each in plan.pending),
        layouts=tuple(_layout(layout) for layout in plan.layouts),
        warnings=plan.warnings,
        notes=plan.notes,
        skipped=plan.skipped,
        left_out=tuple(
            LeftOutDocument(object=part.object, reason=part.reason, resources=part.resources) for part in plan.left_out
        ),
        cost=_cost(plan, prices) if prices else None,
        fit=_fit(*fit) if fit else None,
    )


def _cost(plan: Plan, prices: Mapping[str, float]) -> CostDocument:
    money = cost(gpu_use(plan.layouts), prices)
    return CostDocument(fleet=money.fleet, used=money.used, without_sharing=money.unshared, unpriced=money.unpriced)


def _fit(types: Sequence[NodeType], sizing: FleetSizing) -> FitDocument:
    counted = zip(types, sizing.counts, strict=True)
    return FitDocument(
        nodes=tuple(NodesDocument(gpus=each.gpus, count=count) for each, count in counted),
        cost=sizing.cost,
        at_least=sizing.at_least,
        optimal=sizing.optimal,
    )


def _summary(plan: Plan) -> SummaryDocument:
    use, bound = gpu_use(plan.layouts), plan.bound
    return SummaryDocument(
        placed=len(plan.assignments),
        pending=len(plan.pending),
        gpus=len(plan.layouts),
        gpus_used=sum(each.used for each in use),
        gpus_without_sharing=sum(each.unshared for each in use),
        at_most=bound.at_most if bound else None,
        optimal=bound.optimal if bound else None,
    )


def _device(share: Share, *, guessed: bool) -> DeviceDocument:
    return DeviceDocument(
        gpu=share.gpu,
        mode=share.mode.value,
        memory_mib=share.memory_mib,
        compute_percent=share.compute_percent,
        isolation=share.isolation.value,
        resource=share.resource,
        container=share.container,
        profile=share.profile,
        start=share.start,
        guessed=guessed,
    )


def _layout(layout: GpuLayout) -> LayoutDocument:
    return LayoutDocument(
        node=layout.node,
        gpu=layout.gpu,
        model=layout.model,
        memory_mib=layout.memory_mib,
        allocated_mib=layout.allocated_mib,
        mig=layout.mig,
        slices=tuple(_planned(device) for device in layout.devices),
        guessed=layout.unrecorded,
        guessed_pods=layout.unrecorded_pods,
    )


def _planned(device: PlannedDevice) -> SliceDocument:
    place = device.placement
    return SliceDocument(
        mode=device.mode.value,
        memory_mib=device.memory_mib,
        clients=device.clients,
        pods=device.pods,
        exists=device.exists,
        profile=place.profile if place else None,
        start=place.start if place else None,
        size=place.size if place else None,
    )
