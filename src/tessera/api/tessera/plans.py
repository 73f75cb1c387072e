"""A plan as JSON and YAML for programs: `assignments`, `waiting`, `layouts`, `warnings` and a summary."""

import msgspec

from tessera.core.cluster.snapshot import LeftOut, Share
from tessera.core.packing.exact import Bound
from tessera.core.packing.plan import GpuLayout, Plan, Slice

__all__ = ["PlanDocument", "document", "to_json", "to_yaml"]


class DeviceDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a pod gets of one GPU; `profile` and `start` only where it is MIG."""

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
    """Whether nobody recorded which GPU of the node is free, so that `gpu` and `start` are guesses."""


class AssignmentDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A placed pod, one device for each device it asked."""

    pod: str
    node: str
    devices: tuple[DeviceDocument, ...]


class WaitingDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that waits, and why."""

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
    """One GPU after the plan; `guessed` where its index is a guess, with the running pods that it is taken for."""

    node: str
    gpu: int
    model: str
    memory_mib: int
    granted_mib: int
    mig: bool
    slices: tuple[SliceDocument, ...]
    guessed: bool = False
    guessed_pods: tuple[str, ...] = ()


class SummaryDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The plan in numbers; `at_most` and `optimal` only of an exact plan."""

    placed: int
    waiting: int
    gpus: int
    gpus_used: int
    """GPUs that a pod holds a share of."""
    at_most: int | None = None
    optimal: bool | None = None


class LeftOutDocument(msgspec.Struct, frozen=True, kw_only=True):
    """An object of the manifests, or a part of it, that no pod was read from."""

    object: str
    reason: str
    resources: tuple[str, ...]
    """GPU resources that it names."""


class PlanDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The whole plan; keys are stable, new ones may be added."""

    policy: str
    summary: SummaryDocument
    assignments: tuple[AssignmentDocument, ...]
    waiting: tuple[WaitingDocument, ...]
    layouts: tuple[LayoutDocument, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """What could not be seen of the cluster, or was left out."""
    skipped: tuple[str, ...] = ()
    """Nodes whose GPUs are not known; the warnings say why."""
    left_out: tuple[LeftOutDocument, ...] = ()
    """Manifests, or parts of them, whose pods are not in this plan."""


def document(plan: Plan) -> PlanDocument:
    """Return the wire record of a plan."""
    guessed = {(layout.node, layout.gpu) for layout in plan.layouts if layout.guessed}
    return PlanDocument(
        policy=plan.policy,
        summary=_summary(plan, plan.bound),
        assignments=tuple(
            AssignmentDocument(
                pod=each.pod,
                node=each.node,
                devices=tuple(_device(share, guessed=(each.node, share.gpu) in guessed) for share in each.shares),
            )
            for each in plan.assignments
        ),
        waiting=tuple(WaitingDocument(pod=each.pod, reason=each.reason) for each in plan.pending),
        layouts=tuple(_layout(layout) for layout in plan.layouts),
        warnings=plan.warnings,
        notes=plan.notes,
        skipped=plan.skipped,
        left_out=tuple(map(_left_out, plan.left_out)),
    )


def to_json(plan: Plan) -> str:
    """Return the plan as indented JSON, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(document(plan)), indent=2).decode() + "\n"


def to_yaml(plan: Plan) -> str:
    """Return the plan as YAML, with the keys of the JSON."""
    return msgspec.yaml.encode(document(plan), order=None).decode()


def _summary(plan: Plan, bound: Bound | None) -> SummaryDocument:
    return SummaryDocument(
        placed=len(plan.assignments),
        waiting=len(plan.pending),
        gpus=len(plan.layouts),
        gpus_used=sum(any(piece.pods for piece in layout.slices) for layout in plan.layouts),
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


def _left_out(part: LeftOut) -> LeftOutDocument:
    return LeftOutDocument(object=part.object, reason=part.reason, resources=part.resources)


def _layout(layout: GpuLayout) -> LayoutDocument:
    return LayoutDocument(
        node=layout.node,
        gpu=layout.gpu,
        model=layout.model,
        memory_mib=layout.memory_mib,
        granted_mib=layout.granted_mib,
        mig=layout.mig,
        slices=tuple(_slice(piece) for piece in layout.slices),
        guessed=layout.guessed,
        guessed_pods=layout.guessed_pods,
    )


def _slice(piece: Slice) -> SliceDocument:
    place = piece.placement
    return SliceDocument(
        mode=piece.mode.value,
        memory_mib=piece.memory_mib,
        clients=piece.clients,
        pods=piece.pods,
        exists=piece.exists,
        profile=place.profile if place else None,
        start=place.start if place else None,
        size=place.size if place else None,
    )
