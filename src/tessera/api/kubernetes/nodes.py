"""Kubernetes Node objects as core nodes: capacity, taints, and GPUs as labels and allocatable resources show them.

Where an agent has reported the node's GPUs in its GPUNode object, they are taken from there. Otherwise they are read
from GPU feature discovery's labels, from GKE's, and from what the device plugins advertise. What labels do not show is
filled in by rule: MIG instances lie on the lowest GPU indices, spread evenly where that is possible.

Source: NVIDIA/k8s-device-plugin `docs/gpu-feature-discovery/README.md`, `internal/lm/*`; GKE documentation of GPU
sharing; AliyunContainerService/gpushare-device-plugin.
"""

from collections.abc import Iterable
from functools import partial

import msgspec

from tessera.api.fields import Field, identity, in_place, read_model
from tessera.api.kubernetes.asks import SHARE_COUNT, SHARE_MEMORY, names_device
from tessera.core.cluster.gpunodestate import GpuNodeState
from tessera.core.cluster.snapshot import Gpu, Node, NodeName, Taint
from tessera.core.gpu.gpumodels import GpuModel, profile
from tessera.core.gpu.mig import Layout, place
from tessera.core.gpu.sharing import GPU_RESOURCE, Mode, Sharing, managed_sharing, mig_resource
from tessera.core.workload import units

__all__ = ["CPU_MILLI", "MEMORY_MIB", "cpu_capacity", "memory_capacity", "read_node", "read_taints", "share_unit_mib"]

CPU_MILLI = 4096 * 1000
MEMORY_MIB = 64 << 20
"""What a node has that states no cpu or memory: 4096 cores and 64 TiB, which never bind."""

cpu_capacity = partial(units.cpu_milli, capacity=True)
memory_capacity = partial(units.memory_mib, capacity=True)
"""Readers of capacities for `Field.read`."""

MODEL_LABELS = ("tessera.dev/gpu-model", "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator")
"""Labels that name the GPU model, the first that is there counts."""
SHARING_LABEL = "tessera.dev/sharing"
_GKE = "cloud.google.com/gke-"
_GFD = "nvidia.com/"
_GPU_COUNTS = ("nvidia.com/gpu.count", f"{_GKE}accelerator-count")
_MAX_GPUS = 256
_MAX_COUNT = _MAX_GPUS * 4096
_NEAR_PERCENT = 10
"""How far `nvidia.com/gpu.memory` may be from the catalogue; further away it describes a slice or a share."""


class _Seen(msgspec.Struct, frozen=True):
    """What a Node object shows about GPUs."""

    field: Field
    labels: dict[str, str]
    allocatable: dict[str, int]
    """Extended resources by name."""
    advertises: bool
    """Whether the object states allocatable resources at all."""

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
    """Return the node a Node object describes, and what could not be seen or does not agree, one sentence each.

    Args:
        field: the Node object.
        state: the node's GPUNode object; where an agent has reported GPUs in it, labels are not asked.

    Raises:
        InvalidInput: a GPU model Tessera does not know, labels or quantities that make no sense.

    """
    status = field.get("status")
    capacity = status.get("allocatable") if status.get("allocatable").given else status.get("capacity")
    labels = {key: value.text() for key, value in field.get("metadata", "labels").members()}
    extended = {name: min(value.read(units.count), _MAX_COUNT) for name, value in capacity.members() if "/" in name}
    seen = _Seen(field, labels, extended, capacity.given)
    gpus, notes = (state.gpus, []) if state and state.reported else _gpus(seen)
    _, name = identity(field)
    return Node(
        name=NodeName(name),
        cpu_milli=capacity.get("cpu").read(cpu_capacity, CPU_MILLI),
        memory_mib=capacity.get("memory").read(memory_capacity, MEMORY_MIB),
        gpus=gpus,
        max_pods=capacity.get("pods").read(units.count, 110),
        labels=tuple(sorted(labels.items())),
        taints=tuple(read_taints(field.get("spec", "taints").elements())),
        unschedulable=field.get("spec", "unschedulable").boolean(default=False),
    ), tuple(f"node {name}: {note}" for note in notes)


def read_taints(fields: Iterable[Field]) -> list[Taint]:
    """Return taints written as Kubernetes objects."""
    return [
        Taint(
            key=field.get("key").text(),
            value=field.get("value").text(""),
            effect=field.get("effect").choice("NoSchedule", "PreferNoSchedule", "NoExecute"),
        )
        for field in fields
    ]


def share_unit_mib(field: Field, state: GpuNodeState | None = None) -> int:
    """Return the MiB in one `aliyun.com/gpu-mem` of a node: as its agent says, else 1 where its GPUs have less GiB."""
    if state and state.reported:
        return state.unit_mib
    total = field.get("status", "allocatable", SHARE_MEMORY).read(units.count, 0)
    if not total:
        return 1024
    node, _ = read_node(field)
    return 1 if total * 512 > sum(gpu.model.memory_mib for gpu in node.gpus) else 1024


# GPUs


def _gpus(seen: _Seen) -> tuple[tuple[Gpu, ...], list[str]]:
    advertised = sum(count for name, count in seen.allocatable.items() if name == SHARE_MEMORY or names_device(name))
    key = next((key for key in MODEL_LABELS if key in seen.labels), None)
    if key is None:
        if advertised:
            accepted = f"the label {' or '.join(MODEL_LABELS)}"
            raise seen.field.refuse("a label that names the GPU model", accepted, found="GPUs of an unknown model")
        return (), []
    if seen.advertises and not advertised:
        return (), [f"it is labelled {key}={seen.labels[key]} but advertises no GPU, so it has none here"]
    model = read_model(seen.label(key))
    sharings, notes = _sharings(seen, model)
    wish = seen.label(SHARING_LABEL).choice("auto", "whole", default="") if SHARING_LABEL in seen.labels else ""
    memory_mib = _memory_mib(seen, model)
    return tuple(
        Gpu(index=index, model=model, memory_mib=memory_mib, sharing=_wished(sharing, model, wish))
        for index, sharing in enumerate(sharings[:_MAX_GPUS])
    ), notes


def _wished(sharing: Sharing, model: GpuModel, wish: str) -> Sharing:
    """Return the sharing as the node's owner wishes it: `auto` leaves what is not used to Tessera, `whole` fixes it."""
    if wish == "auto":
        return Sharing(modes=managed_sharing(model).modes, layout=sharing.layout)
    return Sharing(modes=(Mode.WHOLE,)) if wish == "whole" else sharing


def _memory_mib(seen: _Seen, model: GpuModel) -> int:
    """Return the memory of each GPU: the label's figure where it is that of a whole GPU, at most what is shared out."""
    label = seen.number("nvidia.com/gpu.memory") or 0
    near = abs(label - model.memory_mib) * 100 <= _NEAR_PERCENT * model.memory_mib
    return label if near else model.memory_mib


def _sharings(seen: _Seen, model: GpuModel) -> tuple[list[Sharing], list[str]]:
    """Return the sharing of each GPU of a node, in order of index, and notes."""
    if seen.allocatable.get(SHARE_MEMORY):
        both = (Mode.WHOLE, Mode.MEMORY_SHARE) if seen.allocatable.get(GPU_RESOURCE) else (Mode.MEMORY_SHARE,)
        count = seen.allocatable.get(SHARE_COUNT) or seen.number(*_GPU_COUNTS) or 1
        return [Sharing(modes=both)] * count, []
    if f"{_GKE}gpu-partition-size" in seen.labels:
        return _gke_partitions(seen, model), []
    single = seen.named("nvidia.com/gpu.product").partition("-MIG-")[2].removesuffix("-SHARED")
    if seen.named("nvidia.com/mig.strategy") == "single" and single:
        return _single(seen, model, single), []
    if any(name.startswith(mig_resource("")) for name in (*seen.labels, *seen.allocatable)):
        return _mixed(seen, model)
    return _whole(seen, model), []


def _whole(seen: _Seen, model: GpuModel) -> list[Sharing]:
    """Return GPUs without MIG; the device plugin advertises each as often as it has replicas."""
    advertised = _advertised(seen, GPU_RESOURCE)
    mode, replicas = _clients(seen, GPU_RESOURCE)
    count = seen.number(*_GPU_COUNTS)
    if count is None:
        count = -(-advertised // replicas) if seen.advertises else 1
    if replicas == 1 and advertised > count > 0:
        replicas = advertised // count
    if seen.advertises:
        count = min(count, -(-advertised // replicas))
    if replicas == 1:
        return [managed_sharing(model)] * count
    return [Sharing(modes=(mode,), replicas=(("", replicas),), renamed=_renamed(seen, GPU_RESOURCE))] * count


def _advertised(seen: _Seen, resource: str) -> int:
    return seen.allocatable.get(resource, 0) + seen.allocatable.get(f"{resource}.shared", 0)


def _renamed(seen: _Seen, resource: str) -> bool:
    return bool(seen.allocatable.get(f"{resource}.shared"))


def _clients(seen: _Seen, prefix: str) -> tuple[Mode, int]:
    """Return how the devices of a label prefix are shared, whole GPUs' modes, and by how many clients each."""
    gke = seen.named(f"{_GKE}gpu-sharing-strategy")
    strategy = gke or seen.named(f"{prefix}.sharing-strategy")
    number = seen.number(f"{_GKE}max-shared-clients-per-gpu" if gke else f"{prefix}.replicas") or 1
    return Mode.MPS if strategy == "mps" else Mode.TIME_SLICING, number


_ON_MIG = {Mode.MPS: Mode.MIG_MPS, Mode.TIME_SLICING: Mode.MIG_TIME_SLICING}


def _instances(seen: _Seen, layout: Layout, *, single: bool) -> Sharing:
    """Return the sharing of a GPU that has these instances; `single` advertises them as `nvidia.com/gpu`."""
    modes, replicas, renamed = {Mode.MIG}, {}, False
    for name in dict.fromkeys(placement.profile for placement in layout):
        resource = GPU_RESOURCE if single else mig_resource(name)
        mode, clients = _clients(seen, resource)
        renamed = renamed or _renamed(seen, resource)
        if clients > 1:
            modes.add(_ON_MIG[mode])
            replicas[name] = clients
    return Sharing(
        modes=tuple(mode for mode in (Mode.MIG, Mode.MIG_TIME_SLICING, Mode.MIG_MPS) if mode in modes),
        layout=layout,
        recut=False,
        replicas=tuple(sorted(replicas.items())),
        renamed=renamed,
        strategy="single" if single else "mixed",
    )


def _gke_partitions(seen: _Seen, model: GpuModel) -> list[Sharing]:
    """Return GPUs that GKE partitioned: as many instances of one size as fit, advertised as `nvidia.com/gpu`."""
    label = seen.label(f"{_GKE}gpu-partition-size")
    size = in_place(label, partial(profile, model, label.text()))
    layout = _full(label, model, size.name)
    _, clients = _clients(seen, GPU_RESOURCE)
    count = seen.number(f"{_GKE}accelerator-count")
    if count is None:
        count = -(-_advertised(seen, GPU_RESOURCE) // (len(layout) * clients))
    return [_instances(seen, layout, single=True)] * count


def _full(field: Field, model: GpuModel, name: str) -> Layout:
    """Return the layout with as many instances of one profile as a GPU holds."""
    most = next(each.max_instances for each in model.profiles if each.name == name)
    layout = place(model, {name: most})
    if layout is None:
        raise field.refuse(f"a profile of {model.name} whose placements are known")
    return layout


def _single(seen: _Seen, model: GpuModel, name: str) -> list[Sharing]:
    """Return GPUs under MIG strategy single, where labels count instances as GPUs."""
    label = seen.label("nvidia.com/gpu.product")
    size = in_place(label, partial(profile, model, name))
    full = _full(label, model, size.name)
    total = seen.number("nvidia.com/gpu.count") or _advertised(seen, GPU_RESOURCE)
    count = min(-(-total // len(full)), _MAX_GPUS)
    layouts, _ = _spread(model, {size.name: total}, count)
    return [_instances(seen, layout, single=True) for layout in layouts]


def _mixed(seen: _Seen, model: GpuModel) -> tuple[list[Sharing], list[str]]:
    """Return GPUs under MIG strategy mixed: those with instances first, then the whole ones."""
    counts: dict[str, int] = {}
    for name in _mig_names(seen):
        resource = mig_resource(name)
        labelled = seen.number(f"{resource}.count")
        origin = seen.field if labelled is None else seen.label(f"{resource}.count")
        known = in_place(origin, partial(profile, model, name)).name
        _, clients = _clients(seen, resource)
        counts[known] = _advertised(seen, resource) // clients if labelled is None else labelled
    whole = _whole(seen, model) if _advertised(seen, GPU_RESOURCE) else []
    most = {each.name: each.max_instances for each in model.profiles}
    at_least = max((-(-count // most[name]) for name, count in counts.items()), default=0)
    labelled = seen.number(*_GPU_COUNTS)
    cut = labelled - len(whole) if labelled is not None else at_least
    layouts, left = _spread(model, counts, min(max(cut, 0), _MAX_GPUS))
    notes = [f"{count} x {name} fit none of its {cut} MIG GPUs and are left out" for name, count in left.items()]
    return [_instances(seen, layout, single=False) for layout in layouts] + whole, notes


def _mig_names(seen: _Seen) -> list[str]:
    """Return the profiles that labels count or the device plugin advertises, as they are written there."""
    prefix = mig_resource("")
    labelled = (name.removesuffix(".count") for name in seen.labels if name.endswith(".count"))
    advertised = (name.removesuffix(".shared") for name in seen.allocatable)
    names = dict.fromkeys(name for name in (*labelled, *advertised) if name.startswith(prefix))
    return [name.removeprefix(prefix) for name in names]


def _spread(model: GpuModel, counts: dict[str, int], gpus: int) -> tuple[list[Layout], dict[str, int]]:
    """Return layouts of so many GPUs that hold the instances, and the instances that found no place.

    The same on every GPU where that is possible; otherwise the largest first, each on the first GPU where it fits.
    """
    if gpus and all(count % gpus == 0 for count in counts.values()):
        even = place(model, {name: count // gpus for name, count in counts.items()})
        if even is not None:
            return [even] * gpus, {}
    held: list[dict[str, int]] = [{} for _ in range(gpus)]
    left: dict[str, int] = {}
    sizes = {each.name: each.size for each in model.profiles}
    for name, count in sorted(counts.items(), key=lambda item: (-sizes[item[0]], item[0])):
        left[name] = count
        for own in held:
            while left[name] and place(model, {**own, name: own.get(name, 0) + 1}) is not None:
                own[name] = own.get(name, 0) + 1
                left[name] -= 1
    return [place(model, own) or () for own in held], {name: count for name, count in left.items() if count}
