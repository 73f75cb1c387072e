"""GPUPolicy objects (tessera.dev/v1alpha1): how the GPUs of some nodes are shared; see docs/policy.md.

Settings of single GPUs are passed to their nodes in the form of the node policy (`api/tessera/node/nodepolicy`), which
alone defines their meaning.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Final, Literal

import msgspec

from tessera.api.fields import in_place
from tessera.api.kubernetes.conditions import Conditions
from tessera.api.tessera.v1alpha1.objects import API_VERSION, Metadata, Tally, read_object, subject_of
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.sharing import Allocator
from tessera.core.workload.need import Isolation, Requirement, SelectorTerm
from tessera.errors import InvalidInput

__all__ = [
    "API_VERSION",
    "KIND",
    "RULES",
    "Disruption",
    "GpuClocks",
    "GpuPolicy",
    "GpuPolicySpec",
    "GpuPolicyStatus",
    "LabelSelector",
    "LayoutFields",
    "PolicyEntry",
    "PolicySharingFields",
    "RepartitionSettings",
    "ValidationRule",
    "node_policy",
    "read_gpu_policy",
    "selector_term",
    "status_fields",
]

KIND = "GPUPolicy"

PackingPolicy = Literal[
    "first-fit", "best-fit", "dot-product", "gpu-packing", "gpu-clustering", "fgd", "fragmentation-min", "tessera"
]
"""Deterministic packing policies."""
SharingMode = Literal["auto", "whole", "memory-share", "time-slicing", "mps", "mig", "mig-time-slicing", "mig-mps"]
_FIXED_LAYOUT: Final = ("mig", "mig-time-slicing", "mig-mps")
_OPEN: Final = ("auto", "memory-share")
_REPLICATED: Final = ("time-slicing", "mps", "mig-time-slicing", "mig-mps")

_Label = Annotated[str, msgspec.Meta(max_length=317)]
_LabelValue = Annotated[str, msgspec.Meta(max_length=63)]
_Device = Annotated[str, msgspec.Meta(pattern="^([0-9]{1,3}|GPU-[-0-9A-Za-z]{1,60})$", max_length=64)]
_Word = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=64)]
_Replicas = Annotated[int, msgspec.Meta(ge=2, le=4096)]
_MHz = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
_Seconds = Annotated[int, msgspec.Meta(ge=0, le=86_400)]
_Percent = Annotated[str, msgspec.Meta(pattern="^([1-9][0-9]?|100)%$", max_length=4)]


class Selected(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """One condition on a node's labels."""

    key: _Label
    """Name of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """Whether the label has one of the values, none of them, exists, or does not."""
    values: Annotated[tuple[_LabelValue, ...], msgspec.Meta(max_length=64)] = ()
    """At least one for `In` and `NotIn`, none for the others."""


class LabelSelector(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """Conditions on a node's labels, all of which must match; without any, every node matches."""

    match_labels: Annotated[dict[_Label, _LabelValue], msgspec.Meta(max_length=32)] = {}
    """Labels with exactly these values."""
    match_expressions: Annotated[tuple[Selected, ...], msgspec.Meta(max_length=32)] = ()
    """Other conditions."""


class LayoutFields(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """MIG instances of a GPU, given in one of three ways."""

    configuration: _Word | None = None
    """Name of a configuration of NVIDIA's MIG manager: `all-1g.10gb`, `all-balanced`."""
    counts: Annotated[dict[_Word, _Count], msgspec.Meta(min_length=1, max_length=16)] | None = None
    """Number of instances by profile; Tessera chooses their placements."""
    placements: Annotated[tuple[_Word, ...], msgspec.Meta(min_length=1, max_length=64)] | None = None
    """`PROFILE@START`, as `3g.40gb@4`."""


class PolicySharingFields(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """How a GPU is shared."""

    mode: SharingMode = "auto"
    """`auto` leaves it to Tessera; all others fix it."""
    modes: Annotated[tuple[Literal["whole", "mig", "mps", "memory-share"], ...], msgspec.Meta(max_length=4)] = ()
    """Modes that Tessera may use under `auto`; all four by default."""
    layout: LayoutFields | None = None
    """The MIG instances, with a mode that begins with `mig`."""
    allow_repartition: bool = False
    """Whether Tessera may change unused instances of the layout, with mode `mig`."""
    replicas: _Replicas | None = None
    """Clients of each device, with time-slicing and MPS."""
    replicas_by_profile: (
        Annotated[dict[_Word, Annotated[int, msgspec.Meta(ge=1, le=4096)]], msgspec.Meta(min_length=1, max_length=16)]
        | None
    ) = None
    """Clients of each MIG instance by its profile, in place of `replicas`."""
    renamed: bool = False
    """Whether replicas are advertised with the suffix `.shared`."""
    allocator: Allocator | None = None
    """What allocates the devices of a fixed mode: `kubelet` (the default), to pods that request them by name, or
    `scheduler`, to pods that request an amount of GPU memory; then none is advertised by name."""


class GpuClocks(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """Limits of a GPU's graphics clock, in MHz."""

    lowest: _MHz
    """MHz."""
    highest: _MHz
    """MHz; equal to the lowest for a constant clock."""


class PolicyEntry(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """Sharing of individual GPUs of each node; of several entries that name a GPU the first applies."""

    devices: Annotated[tuple[_Device, ...], msgspec.Meta(min_length=1, max_length=64)] | None = None
    """The GPUs by index (`"0"`) or UUID."""
    models: Annotated[tuple[_Word, ...], msgspec.Meta(min_length=1, max_length=64)] | None = None
    """The GPUs by model, under any of its names. Without devices and models all GPUs are meant."""
    sharing: PolicySharingFields | None = None
    """How they are shared; left out to let the node's own files decide."""
    isolation: Isolation | None = None
    """The weakest isolation that these GPUs offer; left out for that of the policy."""
    power_limit_watts: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None
    """Limit of the GPU's power; left out for the GPU's own."""
    clocks_mhz: GpuClocks | None = msgspec.field(name="clocksMHz", default=None)
    """Left out for the driver's choice."""


class RepartitionSettings(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """Whether Tessera may create and destroy MIG instances on managed GPUs, and when."""

    allowed: bool = True
    """If not, managed GPUs are offered as they are."""
    idle_seconds: _Seconds = 1
    """A batch of pending pods is planned when none came for this long; a lone pod waits a quarter of it."""
    longest_seconds: _Seconds = 10
    """And at the latest when its first pod has waited for this long."""
    keep_idle_seconds: _Seconds = 600
    """How long an unused MIG instance is kept for the next pod of its kind, unless other pods need its place."""


class Disruption(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """How much may be changed at once. No pod is evicted for a change; `tessera defrag` does that on request."""

    budget: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=100_000)] | _Percent,
        msgspec.Meta(extra_json_schema={"x-kubernetes-int-or-string": True}),
    ] = "10%"
    """GPUs of this policy that may be changing at once: a number, or a percentage of them, rounded up."""
    evict_conflicts: bool = True
    """Whether the later of two pods with the same device, by a defect, is evicted, within its PodDisruptionBudget;
    false only reports it."""


class GpuPolicySpec(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """The settings of an administrator."""

    node_selector: LabelSelector = LabelSelector()
    """The nodes; those without GPUs never count."""
    priority: Annotated[int, msgspec.Meta(ge=-1_000_000, le=1_000_000)] = 0
    """Of several policies that select a node the one with the highest number applies; of equals the first by name."""
    unit: Literal["GiB", "MiB"] = "GiB"
    """Memory of one unit of `tessera.dev/gpu-memory` and `aliyun.com/gpu-mem`."""
    mig_strategy: Literal["none", "single", "mixed"] | None = None
    """Resource names of MIG instances, as in NVIDIA's device plugin; left out to let the node's own files and the
    agent's option `--strategy` decide, with `mixed` as the default."""
    isolation: Isolation = Isolation.NONE
    """The weakest isolation that GPUs offer, unless an entry sets another."""
    gpus: Annotated[tuple[PolicyEntry, ...], msgspec.Meta(max_length=64)] = ()
    """Sharing of individual GPUs; without entries Tessera manages all of them."""
    repartition: RepartitionSettings = RepartitionSettings()
    disruption: Disruption = Disruption()
    packing_policy: PackingPolicy | None = None
    """Packing policy by which the controller places new MIG instances; left out it is `tessera`. `tessera server` has
    one of its own."""
    strategy: PackingPolicy | None = None
    """The former name of `packingPolicy`, read where that is left out."""


class GpuPolicyStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Tessera's observations and decisions."""

    observed_generation: Tally = 0
    """Generation of the spec that this status is for."""
    nodes: Tally = 0
    """Nodes that this policy applies to."""
    gpus: Tally = 0
    """GPUs of these nodes."""
    # Named for MIG instances, though it counts whole GPUs too: another name would break those who read v1alpha1.
    desired_slices: Tally = 0
    """MIG instances and whole GPUs that are desired for pods that request them by name."""
    pending_pods: Tally = 0
    """Pending pods that need GPUs of these nodes."""
    decision: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    """The last decision and its reason, in a sentence."""
    conditions: Conditions = ()
    """`Accepted`: the policy is valid; `Ready`: it is in force on all of its nodes; `Overrides`: it takes precedence
    over labels, files or options of its nodes."""


class _Metadata(Metadata, frozen=True, rename="camel"):
    resource_version: str = ""


class GpuPolicy(msgspec.Struct, frozen=True):
    """A GPUPolicy object."""

    metadata: _Metadata
    spec: GpuPolicySpec = GpuPolicySpec()
    status: GpuPolicyStatus = GpuPolicyStatus()

    @property
    def name(self) -> str:
        """Its name."""
        return self.metadata.name


class ValidationRule(msgspec.Struct, frozen=True):
    """A rule for a record beyond the types of its fields, checked by the API server and by readers."""

    cel: str
    """In CEL, `self` being the record."""
    message: str
    """The fix for a violation."""
    holds: Callable[[Any], bool]
    """The same for a parsed record."""


def _within(mode: str, modes: tuple[str, ...]) -> str:
    return f"{mode} in [{', '.join(map(repr, modes))}]"


RULES: Final[Mapping[type[msgspec.Struct], tuple[ValidationRule, ...]]] = {
    Selected: (
        ValidationRule(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
            "In and NotIn need at least one of values; remove values for Exists and DoesNotExist",
            lambda each: (each.operator in {"In", "NotIn"}) == bool(each.values),
        ),
    ),
    LayoutFields: (
        ValidationRule(
            "[has(self.configuration), has(self.counts), has(self.placements)].exists_one(each, each)",
            "say the layout in exactly one way: configuration, counts or placements",
            lambda each: sum(way is not None for way in (each.configuration, each.counts, each.placements)) == 1,
        ),
    ),
    PolicySharingFields: (
        ValidationRule(
            f"has(self.layout) == ({_within('self.mode', _FIXED_LAYOUT)})",
            "a fixed layout and mode auto exclude each other: give a layout with mode mig, mig-time-slicing or "
            "mig-mps, "
            "and only with these",
            lambda each: (each.layout is not None) == (each.mode in _FIXED_LAYOUT),
        ),
        ValidationRule(
            f"(has(self.replicas) != has(self.replicasByProfile)) == ({_within('self.mode', _REPLICATED)}) && "
            "!(has(self.replicas) && has(self.replicasByProfile))",
            "give replicas (or replicasByProfile, not both) with mode time-slicing, mps, mig-time-slicing or mig-mps, "
            "and only with these",
            lambda each: (
                ((each.replicas is not None) + (each.replicas_by_profile is not None)) == (each.mode in _REPLICATED)
            ),
        ),
        ValidationRule(
            "!has(self.replicasByProfile) || self.mode.startsWith('mig-')",
            "replicasByProfile requires mode mig-time-slicing or mig-mps; give replicas for whole GPUs",
            lambda each: each.replicas_by_profile is None or each.mode.startswith("mig-"),
        ),
        ValidationRule(
            "!has(self.modes) || self.modes.size() == 0 || self.mode == 'auto'",
            "modes lists what Tessera may use under mode auto; remove it for the others",
            lambda each: not each.modes or each.mode == "auto",
        ),
        ValidationRule(
            "!self.allowRepartition || self.mode == 'mig'",
            "allowRepartition requires mode mig; under auto Tessera repartitions anyway, and instances with replicas "
            "stay as they are",
            lambda each: not each.allow_repartition or each.mode == "mig",
        ),
        ValidationRule(
            f"!self.renamed || {_within('self.mode', _REPLICATED)}",
            "renamed is about replicas: mode time-slicing, mps, mig-time-slicing or mig-mps",
            lambda each: not each.renamed or each.mode in _REPLICATED,
        ),
        ValidationRule(
            "!has(self.allocator) || !(self.mode in ['auto', 'memory-share'] || self.allowRepartition)",
            "allocator requires a mode with fixed devices; remove it for auto, memory-share and allowRepartition: "
            "there the scheduler allocates and devices are offered by name on demand",
            lambda each: each.allocator is None or not (each.mode in _OPEN or each.allow_repartition),
        ),
    ),
    GpuClocks: (
        ValidationRule(
            "self.lowest <= self.highest",
            "the lowest clock must not be above the highest",
            lambda each: each.lowest <= each.highest,
        ),
    ),
    PolicyEntry: (
        ValidationRule(
            "!(has(self.devices) && has(self.models))",
            "choose GPUs in one way: by devices or by models; neither means all GPUs of the node",
            lambda each: each.devices is None or each.models is None,
        ),
    ),
    RepartitionSettings: (
        ValidationRule(
            "self.idleSeconds <= self.longestSeconds",
            "idleSeconds must not be above longestSeconds, within which every batch is planned for",
            lambda each: each.idle_seconds <= each.longest_seconds,
        ),
    ),
    Disruption: (
        ValidationRule(
            "type(self.budget) == int ? self.budget >= 1 : self.budget.matches('^([1-9][0-9]?|100)%$')",
            "budget is a number of GPUs from 1 on, or a percentage from 1% to 100%; to change nothing, set "
            "repartition.allowed to false",
            lambda _: True,  # the types of the record say it already
        ),
    ),
}
"""The rules of each record."""


def read_gpu_policy(obj: Mapping[str, Any]) -> GpuPolicy:
    """Return a GPUPolicy, read from its object.

    Raises:
        InvalidInput: an unknown field, a wrong type, a rule that does not hold, an unknown GPU model.

    """
    found, subject = read_object(KIND, obj, GpuPolicy), subject_of(KIND, obj)
    for path, record in _records(found.spec, "spec"):
        for rule in RULES.get(type(record), ()):
            if not rule.holds(record):
                written = msgspec.json.encode(record).decode()
                raise InvalidInput(f"{subject}: {path}", found=written, expected=rule.message)
    for index, entry in enumerate(found.spec.gpus):
        for product in entry.models or ():
            in_place(f"{subject}: spec.gpus[{index}].models", partial(model, product))
    return found


def _records(record: msgspec.Struct, path: str) -> Iterator[tuple[str, msgspec.Struct]]:
    """Yield a record and all records in it, each with its path."""
    yield path, record
    for field in msgspec.structs.fields(record):
        value = getattr(record, field.name)
        parts = [("", value)] if not isinstance(value, tuple) else [(f"[{i}]", part) for i, part in enumerate(value)]
        for step, part in parts:
            if isinstance(part, msgspec.Struct):
                yield from _records(part, f"{path}.{field.encode_name}{step}")


def selector_term(selector: LabelSelector) -> SelectorTerm | None:
    """Return the selector as a term over node labels; None for one that matches every node."""
    expressions = (
        *(Requirement(key=key, operator="In", values=(value,)) for key, value in sorted(selector.match_labels.items())),
        *(Requirement(key=each.key, operator=each.operator, values=each.values) for each in selector.match_expressions),
    )
    return SelectorTerm(expressions=expressions) if expressions else None


def node_policy(spec: GpuPolicySpec) -> dict[str, Any]:
    """Return the node policy document (`api/tessera/node/nodepolicy`) with this spec's settings for a node's GPUs."""
    return {
        "apiVersion": API_VERSION,
        "kind": "NodePolicy",
        **({} if spec.mig_strategy is None else {"strategy": spec.mig_strategy}),
        "unit": spec.unit,
        "gpus": [_entry(each, spec) for each in spec.gpus or (PolicyEntry(sharing=PolicySharingFields()),)],
        **({} if spec.disruption.evict_conflicts else {"evict-conflicts": False}),
    }


def _entry(entry: PolicyEntry, spec: GpuPolicySpec) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for key, value in (("devices", entry.devices), ("models", entry.models)):
        if value is not None:
            written[key] = list(value)
    if entry.sharing is not None and (entry.sharing.mode != "auto" or spec.repartition.allowed):
        written["sharing"] = _sharing(entry.sharing)
        written["isolation"] = str(entry.isolation or spec.isolation)
    if entry.power_limit_watts is not None:
        written["power-limit-watts"] = entry.power_limit_watts
    if entry.clocks_mhz is not None:
        written["clocks-mhz"] = [entry.clocks_mhz.lowest, entry.clocks_mhz.highest]
    return written


def _sharing(sharing: PolicySharingFields) -> str | dict[str, Any]:
    replicas = dict(sharing.replicas_by_profile) if sharing.replicas_by_profile else sharing.replicas
    layout = sharing.layout or LayoutFields()
    # Written only if it is not the default, which older agents use too.
    allocator = {"allocator": sharing.allocator} if sharing.allocator == "scheduler" else {}
    match sharing.mode:
        case "auto":
            return {"modes": list(sharing.modes)} if sharing.modes else "auto"
        case "whole" if allocator:
            return {"whole": True, **allocator}
        case "whole" | "memory-share":
            return sharing.mode
        case "time-slicing" | "mps":
            return {sharing.mode: replicas, "renamed": sharing.renamed, **allocator}
        case "mig":
            return {"mig": _layout(layout), "allow-repartition": sharing.allow_repartition, **allocator}
        case _:
            shared = sharing.mode.removeprefix("mig-")
            return {"mig": _layout(layout), shared: replicas, "renamed": sharing.renamed, **allocator}


def _layout(layout: LayoutFields) -> str | dict[str, int] | list[str]:
    if layout.configuration is not None:
        return layout.configuration
    return dict(layout.counts) if layout.counts is not None else list(layout.placements or ())


def status_fields(status: GpuPolicyStatus) -> dict[str, Any]:
    """Return the status as JSON with every field in it, so that a patch replaces the former one."""
    empty = {"observedGeneration": 0, "nodes": 0, "gpus": 0, "desiredSlices": 0, "pendingPods": 0, "decision": ""}
    return {**empty, "conditions": [], **msgspec.to_builtins(status)}
