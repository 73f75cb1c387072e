"""Kubernetes Node objects as core nodes: capacity, taints, and GPUs by labels and allocatable resources.

If an agent has reported the node's GPUs in its GPUNode object, they come from there. Otherwise they are read
from HAMi's annotation, from GPU feature discovery's labels, from those of the cloud (`gpulabels`), and from what the
device plugins advertise. What labels do not tell is filled in by rule: MIG instances are on the lowest GPU indices,
spread evenly where that is possible.

Source: NVIDIA/k8s-device-plugin `docs/gpu-feature-discovery/README.md`, `internal/lm/*`; GKE documentation of GPU
sharing; AliyunContainerService/gpushare-device-plugin.
"""

from collections.abc import Mapping
from functools import partial

import msgspec

from tessera.api.documents import Plain
from tessera.api.fields import Field, identity, in_place
from tessera.api.hami.annotations import REGISTERED, read_registered
from tessera.api.kubernetes.containerrequests import is_zero
from tessera.api.kubernetes.labeledgpus import INSTANCE_TYPE_LABELS, LabeledGpus, read_labeled_gpus
from tessera.api.kubernetes.taints import read_taints
from tessera.core.cluster.gpunodestate import GpuNodeState
from tessera.core.cluster.shareunit import UNITS_MIB
from tessera.core.cluster.snapshot import Gpu, MemoryUnits, Node, NodeName
from tessera.core.gpu.gpumodels import GpuModel, model, profile
from tessera.core.gpu.mig import Layout, place
from tessera.core.gpu.sharing import GPU_RESOURCE, Mode, Offer, Sharing, managed_sharing, mig_resource, names_device
from tessera.core.workload import units
from tessera.core.workload.resources import GPU_MEMORY, MODEL_RESOURCE, SHARE_COUNT, SHARE_MEMORY
from tessera.errors import InvalidInput

__all__ = [
    "CPU_MILLI",
    "MEMORY_MIB",
    "cpu_capacity",
    "memory_capacity",
    "node_without_gpus",
    "read_node",
    "share_unit_mib",
    "with_gpus",
]

CPU_MILLI = 4096 * 1000
MEMORY_MIB = 64 << 20
"""Capacity of a node without one: 4096 cores and 64 TiB, which never bind."""

cpu_capacity = partial(units.cpu_milli, capacity=True)
memory_capacity = partial(units.memory_mib, capacity=True)
"""Readers of capacities for `Field.read`."""

SHARING_LABEL = "tessera.dev/sharing"
"""Label of a node without an agent: `auto` makes its GPUs managed, `whole` keeps them whole. Set by users; read by
`tessera plan` and the server."""
_GKE = "cloud.google.com/gke-"
_GPU_COUNTS = ("nvidia.com/gpu.count", f"{_GKE}accelerator-count")
_MAX_GPUS = 256
_MAX_COUNT = _MAX_GPUS * 4096
_NEAR_PERCENT = 10
"""How far `nvidia.com/gpu.memory` may be from the catalog; beyond that it describes a slice or a share."""
_UNKNOWN = "unknown"
"""Model name of GPUs whose memory is shared and of which nothing else is known."""
_MOST_MIB = 16 << 20
"""Stands for the memory of a GPU of an unknown model, until the shared part is known."""
_MOST_GIB = 1024
"""A GPU with more units of gpushare's memory has MiB: no GPU has as many GiB."""


class _NodeFacts(msgspec.Struct, frozen=True):
    """The facts about GPUs in a Node object."""

    field: Field
    labels: dict[str, str]
    allocatable: dict[str, int]
    """Extended resources by name."""
    capacity: dict[str, int]
    """The same including unhealthy devices; equal to allocatable if the object does not tell."""
    advertises: bool
    """Whether the object has allocatable resources at all."""
    notes: list[str]

    def label(self, key: str) -> Field:
        return self.field.get("metadata", "labels", key)

    def number(self, *keys: str) -> int | None:
        """Return the number in the first of these labels that is there."""
        for key in keys:
            if key in self.labels:
                label = self.label(key)
                return min(label.read(units.count), _MAX_COUNT)
        return None

    def named(self, key: str) -> str:
        return self.labels.get(key, "")


def read_node(field: Field, state: GpuNodeState | None = None) -> tuple[Node, tuple[str, ...]]:
    """Return the node of a Node object, and notes, as `with_gpus`."""
    return with_gpus(node_without_gpus(field), field, state)


def with_gpus(
    node: Node, field: Field, state: GpuNodeState | None = None, gpu_model: GpuModel | None = None
) -> tuple[Node, tuple[str, ...]]:
    """Return a node with its GPUs, and notes on what is unknown or contradictory, one sentence each.

    Args:
        node: the node without GPUs.
        field: the Node object.
        state: the node's GPUNode object; if an agent has reported GPUs in it, labels are ignored.
        gpu_model: the model given by a user, which takes precedence over labels.

    Raises:
        InvalidInput: a GPU model Tessera does not know, labels or quantities that make no sense.

    """
    impaired = state.impaired if state else ()
    withheld = tuple((each.subject, each.message) for each in impaired if each.kind == "Withheld")
    node = msgspec.structs.replace(node, reported=state is None or state.reported, withheld=withheld)
    if state and state.reported:
        count = field.get("status", "allocatable").get(GPU_MEMORY).read(units.count, 0)
        advertised = MemoryUnits(count, state.unit_mib) if count else None
        return msgspec.structs.replace(node, gpus=state.gpus, units=advertised), ()
    status = field.get("status")
    capacity = status.get("allocatable") if status.get("allocatable").present else status.get("capacity")
    allocatable = _extended(capacity, {})
    more = _extended(status.get("capacity"), capacity.mapping())
    most = allocatable | {name: max(count, allocatable.get(name, 0)) for name, count in more.items()}
    facts = _NodeFacts(field, dict(node.labels), allocatable, most, capacity.present, [])
    gpus, lost = _gpus(facts, gpu_model)
    ordered = facts.field.get("metadata", "annotations", REGISTERED).present or len({gpu.sharing for gpu in gpus}) <= 1
    named = tuple(sorted(name for name, count in allocatable.items() if count and names_device(name)))
    by_name = named if state is None and capacity.present and gpus else None
    return msgspec.structs.replace(node, gpus=gpus, lost=lost, ordered=ordered, advertised=by_name), tuple(
        f"node {node.name}: {note}" for note in facts.notes
    )


def node_without_gpus(field: Field) -> Node:
    """Return the node of a Node object without its GPUs.

    Raises:
        InvalidInput: a name, quantities or taints that make no sense.

    """
    status = field.get("status")
    capacity = status.get("allocatable") if status.get("allocatable").present else status.get("capacity")
    _, name = identity(field)
    labels = {key: value.text() for key, value in field.get("metadata", "labels").members()}
    offered = (name for name, count in capacity.mapping().items() if not is_zero(count))
    models = tuple(sorted(each.removeprefix(MODEL_RESOURCE) for each in offered if each.startswith(MODEL_RESOURCE)))
    return Node(
        name=NodeName(name),
        cpu_milli=capacity.get("cpu").read(cpu_capacity, CPU_MILLI),
        memory_mib=capacity.get("memory").read(memory_capacity, MEMORY_MIB),
        max_pods=capacity.get("pods").read(units.count, 110),
        labels=tuple(sorted(labels.items())),
        taints=tuple(read_taints(field.get("spec", "taints").elements())),
        unschedulable=field.get("spec", "unschedulable").boolean(default=False),
        cached_models=models if capacity.present else None,
    )


def _extended(amounts: Field, known: Mapping[str, Plain]) -> dict[str, int]:
    """Return the extended resources by name, without those that are equal in number."""
    named = ((name, value) for name, value in amounts.members() if "/" in name and value.value != known.get(name))
    return {name: min(value.read(units.count), _MAX_COUNT) for name, value in named}


def share_unit_mib(field: Field, state: GpuNodeState | None = None) -> int | None:
    """Return the MiB in one `aliyun.com/gpu-mem` of a node: from its agent, else 1 if a GPU has so many units.

    None for a node whose GPUs are not shared by amounts of memory, or whose agent reports a unit that there is not.
    """
    if state and state.reported:
        shares = any(Mode.MEMORY_SHARE in gpu.sharing.modes for gpu in state.gpus)
        return state.unit_mib if shares and state.unit_mib in UNITS_MIB else None
    allocatable = field.get("status", "allocatable")
    total = allocatable.get(SHARE_MEMORY).read(units.count, 0)
    if not total:
        return None
    counts = (field.get("metadata", "labels", key) for key in _GPU_COUNTS)
    count = next((each.read(units.count) for each in (allocatable.get(SHARE_COUNT), *counts) if each.present), 1)
    return 1 if total > _MOST_GIB * max(count, 1) else 1024


# GPUs


def _gpus(facts: _NodeFacts, given: GpuModel | None) -> tuple[tuple[Gpu, ...], int]:
    """Return the node's GPUs, and how many of them are no longer advertised."""
    registered = _registered(facts)
    if registered:
        return registered, 0
    advertised = sum(count for name, count in facts.capacity.items() if name == SHARE_MEMORY or names_device(name))
    try:
        known = read_labeled_gpus(facts.field.get("metadata", "labels"), given) or _unnamed(facts)
    except InvalidInput as error:
        known = _unnamed(facts)
        if known is None:
            accepted = "; or ".join(filter(None, (error.hint, _fix(facts))))
            raise InvalidInput(error.subject, found=error.found, expected=error.expected, hint=accepted) from error
    if known is None:
        if advertised:
            kinds = tuple(filter(None, map(facts.named, INSTANCE_TYPE_LABELS)))
            found = " of instance type ".join(("GPUs of an unknown model", *kinds[:1]))
            raise facts.field.refuse(found=found, hint=_fix(facts))
        return (), 0
    if facts.advertises and not advertised:
        how = f"{known.label}={facts.named(known.label)}" if known.label else f"labeled as {known.model.name}"
        facts.notes.append(f"it is {'labeled ' * bool(known.label)}{how} but advertises no GPU, so it has none here")
        return (), 0
    if known.memory_mib < known.model.memory_mib:
        # Part of a GPU is a virtual GPU, which its node cannot partition any further.
        undivided = msgspec.structs.replace(known.model, profiles=(), memory_slices=0, compute_slices=0)
        known = msgspec.structs.replace(known, model=undivided)
    sharings, lost = _sharings(facts, known)
    if len(sharings) > _MAX_GPUS:
        facts.notes.append(f"it says that it has {len(sharings)} GPUs, and the first {_MAX_GPUS} are read")
    memory_mib = _memory_mib(facts, known, len(sharings))
    unnamed = msgspec.structs.replace(known.model, memory_mib=memory_mib)
    gpu_model = unnamed if known.model.name == _UNKNOWN else known.model
    return tuple(
        Gpu(index=index, model=gpu_model, memory_mib=memory_mib, sharing=_labeled(facts, sharing, known.model))
        for index, sharing in enumerate(sharings[:_MAX_GPUS])
    ), lost


def _unnamed(facts: _NodeFacts) -> LabeledGpus | None:
    """Return the GPUs of a node that shares their memory, which needs no model; None if it does not."""
    nothing_known = GpuModel(name=_UNKNOWN, arch=_UNKNOWN, memory_mib=_MOST_MIB)
    return LabeledGpus(model=nothing_known, memory_mib=_MOST_MIB) if facts.allocatable.get(SHARE_MEMORY) else None


def _fix(facts: _NodeFacts) -> str:
    name = identity(facts.field)[1]
    return f"set the label tessera.dev/gpu-model=MODEL, or pass --gpu-model {name}=MODEL to `tessera plan`"


def _registered(facts: _NodeFacts) -> tuple[Gpu, ...]:
    """Return the GPUs registered by HAMi; none without a usable annotation, with a note."""
    annotation = facts.field.get("metadata", "annotations", REGISTERED)
    if not annotation.present:
        return ()
    gpus = []
    try:
        for each in read_registered(annotation):
            product = in_place(annotation, partial(model, each.type))
            near = abs(each.devmem - product.memory_mib) * 100 <= _NEAR_PERCENT * product.memory_mib
            modes = (Mode.MEMORY_SHARE,) if each.mode == "mig" else (Mode.WHOLE, Mode.MEMORY_SHARE)
            shared = Sharing(modes=modes if each.health else ())
            gpus.append(
                Gpu(
                    index=each.index,
                    model=product,
                    memory_mib=each.devmem if near else product.memory_mib,
                    sharing=_labeled(facts, shared, product) if each.health else shared,
                    uuid=each.id,
                )
            )
    except InvalidInput as error:
        facts.notes.append(f"HAMi's annotation {REGISTERED} is not used: {error}")
        return ()
    return tuple(gpus)


def _labeled(facts: _NodeFacts, sharing: Sharing, model: GpuModel) -> Sharing:
    """Return the sharing by the owner's label: `auto` leaves unused GPUs to Tessera, `whole` fixes it."""
    label = facts.label(SHARING_LABEL).choice("auto", "whole", default="") if SHARING_LABEL in facts.labels else ""
    if label == "auto":
        return Sharing(modes=managed_sharing(model).modes, layout=sharing.layout)
    return Sharing(modes=(Mode.WHOLE,)) if label == "whole" else sharing


def _memory_mib(facts: _NodeFacts, known: LabeledGpus, count: int) -> int:
    """Return the memory of each GPU: the label's figure if it is that of a whole GPU, at least the shared amount."""
    label = facts.number("nvidia.com/gpu.memory") or 0
    near = abs(label - known.memory_mib) * 100 <= _NEAR_PERCENT * known.memory_mib
    memory_mib = label if near else known.memory_mib
    if not facts.allocatable.get(SHARE_MEMORY):
        return memory_mib
    unit_mib = share_unit_mib(facts.field) or 1024
    shared_mib = facts.capacity[SHARE_MEMORY] * unit_mib // max(count, 1)
    return shared_mib if shared_mib + unit_mib <= memory_mib else memory_mib


def _sharings(facts: _NodeFacts, known: LabeledGpus) -> tuple[list[Sharing], int]:
    """Return the sharing of each GPU of a node, in order of index, and how many of them are no longer advertised."""
    if facts.allocatable.get(SHARE_MEMORY):
        both = (Mode.WHOLE, Mode.MEMORY_SHARE) if facts.allocatable.get(GPU_RESOURCE) else (Mode.MEMORY_SHARE,)
        count = facts.capacity.get(SHARE_COUNT) or facts.number(*_GPU_COUNTS) or known.count or 1
        units, most = facts.allocatable[SHARE_MEMORY], facts.capacity[SHARE_MEMORY]
        return [Sharing(modes=both)] * count, _lost(facts, count, count - (most - units) * count // most, units, most)
    if f"{_GKE}gpu-partition-size" in facts.labels:
        return _gke_partitions(facts, known), 0
    single = facts.named("nvidia.com/gpu.product").partition("-MIG-")[2].removesuffix("-SHARED")
    if facts.named("nvidia.com/mig.strategy") == "single" and single:
        return _single(facts, known.model, single), 0
    if any(name.startswith(mig_resource("")) for name in (*facts.labels, *facts.allocatable)):
        return _mixed(facts, known), 0
    labeled = facts.number(*_GPU_COUNTS)
    return _whole(facts, known, known.count if labeled is None else labeled)


def _whole(facts: _NodeFacts, known: LabeledGpus, count: int | None) -> tuple[list[Sharing], int]:
    """Return GPUs without MIG; the device plugin advertises each as often as it has replicas."""
    advertised, most = _advertised(facts, GPU_RESOURCE), _advertised(facts, GPU_RESOURCE, facts.capacity)
    mode, replicas = _clients(facts, GPU_RESOURCE)
    if count is None:
        count = -(-most // replicas) if facts.advertises else 1
    if replicas == 1 and most > count > 0:
        replicas = most // count
    offered = min(count, -(-advertised // replicas)) if facts.advertises else count
    lost = _lost(facts, count, offered, advertised, max(most, count * replicas))
    if replicas == 1:
        return [managed_sharing(known.model)] * count, lost
    sharing = Sharing(modes=(mode,), replicas=(("", replicas),), renamed=_renamed(facts, GPU_RESOURCE))
    return [sharing] * count, lost


def _lost(facts: _NodeFacts, count: int, offered: int, advertised: int, most: int) -> int:
    """Return how many GPUs are no longer advertised, and note it."""
    lost = count - offered
    if lost:
        facts.notes.append(
            f"{lost} of its {count} GPUs {'is' if lost == 1 else 'are'} not offered ({advertised} allocatable of "
            f"{most}), and none is recorded as lost: the last unused ones are presumed lost"
        )
    return lost


def _advertised(facts: _NodeFacts, resource: str, amounts: dict[str, int] | None = None) -> int:
    amounts = facts.allocatable if amounts is None else amounts
    return amounts.get(resource, 0) + amounts.get(f"{resource}.shared", 0)


def _renamed(facts: _NodeFacts, resource: str) -> bool:
    return bool(facts.allocatable.get(f"{resource}.shared"))


def _clients(facts: _NodeFacts, prefix: str) -> tuple[Mode, int]:
    """Return how the devices of a label prefix are shared, whole GPUs' modes, and by how many clients each."""
    gke = facts.named(f"{_GKE}gpu-sharing-strategy")
    strategy = gke or facts.named(f"{prefix}.sharing-strategy")
    number = facts.number(f"{_GKE}max-shared-clients-per-gpu" if gke else f"{prefix}.replicas") or 1
    return Mode.MPS if strategy == "mps" else Mode.TIME_SLICING, number


_ON_MIG = {Mode.MPS: Mode.MIG_MPS, Mode.TIME_SLICING: Mode.MIG_TIME_SLICING}


def _instances(facts: _NodeFacts, layout: Layout, *, single: bool) -> Sharing:
    """Return the sharing of a GPU with these instances; `single` advertises them as `nvidia.com/gpu`."""
    modes, replicas, renamed = {Mode.MIG}, {}, False
    for name in dict.fromkeys(placement.profile for placement in layout):
        resource = GPU_RESOURCE if single else mig_resource(name)
        mode, clients = _clients(facts, resource)
        renamed = renamed or _renamed(facts, resource)
        if clients > 1:
            modes.add(_ON_MIG[mode])
            replicas[name] = clients
    return Sharing(
        modes=tuple(mode for mode in (Mode.MIG, Mode.MIG_TIME_SLICING, Mode.MIG_MPS) if mode in modes),
        layout=layout,
        allow_repartition=False,
        replicas=tuple(sorted(replicas.items())),
        renamed=renamed,
        strategy="single" if single else "mixed",
    )


def _gke_partitions(facts: _NodeFacts, known: LabeledGpus) -> list[Sharing]:
    """Return GPUs partitioned by GKE: as many instances of one size as fit, advertised as `nvidia.com/gpu`."""
    label = facts.label(f"{_GKE}gpu-partition-size")
    size = in_place(label, partial(profile, known.model, label.text()))
    layout = _full(label, known.model, size.name)
    _, clients = _clients(facts, GPU_RESOURCE)
    count = facts.number(f"{_GKE}accelerator-count") or known.count
    if count is None:
        count = -(-_advertised(facts, GPU_RESOURCE, facts.capacity) // (len(layout) * clients))
    return _withheld(facts, [_instances(facts, layout, single=True)] * count, size.name, GPU_RESOURCE)


def _full(field: Field, model: GpuModel, name: str) -> Layout:
    """Return the layout with as many instances of one profile as a GPU holds."""
    most = next(each.max_instances for each in model.profiles if each.name == name)
    layout = place(model, {name: most})
    if layout is None:
        raise field.refuse(f"a profile of {model.name} whose placements are known")
    return layout


def _single(facts: _NodeFacts, model: GpuModel, name: str) -> list[Sharing]:
    """Return GPUs under MIG strategy single, where labels count instances as GPUs."""
    label = facts.label("nvidia.com/gpu.product")
    size = in_place(label, partial(profile, model, name))
    full = _full(label, model, size.name)
    total = facts.number("nvidia.com/gpu.count") or _advertised(facts, GPU_RESOURCE, facts.capacity)
    count = min(-(-total // len(full)), _MAX_GPUS)
    layouts, _ = _spread(model, {size.name: total}, count)
    sharings = [_instances(facts, layout, single=True) for layout in layouts]
    return _withheld(facts, sharings, size.name, GPU_RESOURCE)


def _mixed(facts: _NodeFacts, known: LabeledGpus) -> list[Sharing]:
    """Return GPUs under MIG strategy mixed: those with instances first, then the whole ones."""
    model = known.model
    counts: dict[str, int] = {}
    resources: dict[str, str] = {}
    for written in _mig_names(facts):
        resource = mig_resource(written)
        labeled = facts.number(f"{resource}.count")
        origin = facts.field if labeled is None else facts.label(f"{resource}.count")
        name = in_place(origin, partial(profile, model, written)).name
        _, clients = _clients(facts, resource)
        counts[name] = _advertised(facts, resource, facts.capacity) // clients if labeled is None else labeled
        resources[name] = resource
    whole, _ = _whole(facts, known, None) if _advertised(facts, GPU_RESOURCE) else ([], 0)
    most = {each.name: each.max_instances for each in model.profiles}
    at_least = max((-(-count // most[name]) for name, count in counts.items()), default=0)
    labeled = facts.number(*_GPU_COUNTS) or known.count
    partitioned = labeled - len(whole) if labeled is not None else at_least
    layouts, left = _spread(model, counts, min(max(partitioned, 0), _MAX_GPUS))
    facts.notes.extend(
        f"{count} x {name} do not fit its {partitioned} MIG GPUs and are omitted" for name, count in left.items()
    )
    sharings = [_instances(facts, layout, single=False) for layout in layouts]
    for name, resource in resources.items():
        sharings = _withheld(facts, sharings, name, resource)
    return sharings + whole


def _withheld(facts: _NodeFacts, sharings: list[Sharing], name: str, resource: str) -> list[Sharing]:
    """Return GPUs whose last instances of a profile are withheld: as many as the node no longer advertises."""
    _, clients = _clients(facts, resource)
    most, advertised = _advertised(facts, resource, facts.capacity), _advertised(facts, resource)
    lost = (most - advertised) // clients if facts.advertises else 0
    if lost:
        facts.notes.append(
            f"{lost} of its {most // clients} instances {name} {'is' if lost == 1 else 'are'} not offered "
            f"({advertised} allocatable of capacity {most}), and none is recorded as lost: "
            "the last ones are presumed lost"
        )
    found: list[Sharing] = []
    for sharing in reversed(sharings):
        own = [place for place in sharing.layout or () if place.profile == name]
        closed = own[max(len(own) - lost, 0) :]
        lost -= len(closed)
        offers = tuple(Offer(placement=place, mode=Mode.MIG, clients=0) for place in closed)
        found.append(msgspec.structs.replace(sharing, offers=(*sharing.offers, *offers)))
    return found[::-1]


def _mig_names(facts: _NodeFacts) -> list[str]:
    """Return the profiles that labels count or the device plugin advertises, unchanged."""
    prefix = mig_resource("")
    labeled = (name.removesuffix(".count") for name in facts.labels if name.endswith(".count"))
    advertised = (name.removesuffix(".shared") for name in facts.allocatable)
    names = dict.fromkeys(name for name in (*labeled, *advertised) if name.startswith(prefix))
    return [name.removeprefix(prefix) for name in names]


def _spread(model: GpuModel, counts: dict[str, int], gpus: int) -> tuple[list[Layout], dict[str, int]]:
    """Return layouts of this many GPUs with the instances, and the instances that do not fit.

    The same on every GPU where that is possible; otherwise the largest first, each on the first GPU where it fits.
    """
    if gpus and all(count % gpus == 0 for count in counts.values()):
        even = place(model, {name: count // gpus for name, count in counts.items()})
        if even is not None:
            return [even] * gpus, {}
    layouts: list[dict[str, int]] = [{} for _ in range(gpus)]
    left: dict[str, int] = {}
    sizes = {each.name: each.size for each in model.profiles}
    for name, count in sorted(counts.items(), key=lambda item: (-sizes[item[0]], item[0])):
        left[name] = count
        for own in layouts:
            while left[name] and place(model, {**own, name: own.get(name, 0) + 1}) is not None:
                own[name] = own.get(name, 0) + 1
                left[name] -= 1
    return [place(model, own) or () for own in layouts], {name: count for name, count in left.items() if count}
