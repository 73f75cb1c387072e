"""A plan as files for a cluster that runs NVIDIA's GPU operator.

| file | what applies it |
|---|---|
| `mig-parted/NODE.yaml` | `nvidia-mig-parted apply -f FILE -c NAME` on the node |
| `mig-parted-configmap.yaml` | the MIG manager: all nodes' configurations, `migManager.config.name` |
| `device-plugin/NODE.yaml` | the device plugin's `--config-file` |
| `device-plugin-configmap.yaml` | the device plugin: all nodes' configurations, `devicePlugin.config.name` |
| `node-labels.yaml` | `kubectl apply --server-side -f FILE`; apply the ConfigMaps first |

What these formats cannot express is a comment in the file: the start of an instance on its GPU, amounts of memory,
and GPUs of one node that the device plugin could not distinguish. A configuration is named after its content, because
the MIG manager acts when the name changes.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from tessera.api.documents import Plain, write
from tessera.api.nvidia import migparted, sharingconfig
from tessera.api.nvidia.migparted import Group
from tessera.core.cluster.snapshot import Gpu, Node, Snapshot
from tessera.core.gpu.mig import counts_of, named_layouts
from tessera.core.gpu.sharing import AMOUNT_MODES, GPU_RESOURCE, Mode, mig_resource
from tessera.core.node.nodelabels import MIG_CONFIG, PLUGIN_CONFIG
from tessera.core.node.nodesharing import NodeSharing, SharingEntry
from tessera.core.packing.plan import GpuLayout, Plan, PlannedDevice
from tessera.errors import InvalidInput

__all__ = ["render"]

_GPUSHARE = "gpushare"
_GKE = "cloud.google.com/gke-accelerator"
_NAMED_PODS = 3
_AMOUNT_WORDS = {Mode.MPS: "MPS limits", Mode.MEMORY_SHARE: "memory shares"}
_REPLICATED = {
    Mode.TIME_SLICING: Mode.TIME_SLICING,
    Mode.MIG_TIME_SLICING: Mode.TIME_SLICING,
    Mode.MPS: Mode.MPS,
    Mode.MIG_MPS: Mode.MPS,
}
"""The device plugin's name of a mode."""


class _Files(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one node."""

    node: str
    mig_name: str = ""
    groups: tuple[Group, ...] = ()
    plugin_name: str = ""
    plugin: NodeSharing | None = None
    gpushare: bool = False
    """Whether gpushare's device plugin may have the node: it takes all GPUs."""
    comments: tuple[str, ...] = ()

    @property
    def labels(self) -> dict[str, Plain]:
        """The labels of the node."""
        named = {MIG_CONFIG: self.mig_name, PLUGIN_CONFIG: self.plugin_name, _GPUSHARE: "true" * self.gpushare}
        return {key: value for key, value in named.items() if value}


def render(plan: Plan, snapshot: Snapshot) -> Mapping[str, str]:
    """Return the text of each file by its relative name; nodes without decisions have none.

    GKE nodes have none either: their partitions and sharing are set on the node pool, as a comment says.

    Raises:
        InvalidInput: a file would partition GPUs of a node where it is not recorded which are in use.

    """
    layouts: dict[str, list[GpuLayout]] = {}
    for layout in plan.layouts:
        if layout.devices or layout.mig:
            layouts.setdefault(layout.node, []).append(layout)
    nodes = {node.name: node for node in snapshot.nodes if node.name in layouts}
    gke = [name for name, node in nodes.items() if _GKE in dict(node.labels)]
    for name, node in nodes.items():
        if name not in gke:
            _check_known(node, layouts[name])
    generated = _distinguished([_files(node, layouts[name]) for name, node in nodes.items() if name not in gke])
    files = {
        f"mig-parted/{each.node}.yaml": _comments((f"Node {each.node}", *each.comments))
        + migparted.write({each.mig_name: each.groups})
        for each in generated
        if each.groups
    }
    files |= {
        f"device-plugin/{each.node}.yaml": _comments((f"Node {each.node}",)) + sharingconfig.write(each.plugin)
        for each in generated
        if each.plugin
    }
    return files | _config_maps(generated) | {"node-labels.yaml": _labels_file(generated, gke)}


def _check_known(node: Node, layouts: Sequence[GpuLayout]) -> None:
    """Refuse to partition GPUs by guess: pods may use those that appear free.

    A file that describes every GPU as it is changes nothing, whichever is which.
    """
    found = {gpu.index: (gpu.sharing.layout is not None, _present(gpu)) for gpu in node.gpus}
    planned = {layout.gpu: (layout.mig, _counts(layout)) for layout in layouts if layout.unrecorded}
    changed = [gpu for gpu, each in planned.items() if each != found[gpu] or len(set(found.values())) > 1]
    if not changed or not any(mig for mig, _ in (*planned.values(), *found.values())):
        return
    pods = sorted({pod for layout in layouts for pod in layout.unrecorded_pods})
    others = f" and {len(pods) - _NAMED_PODS} more" if len(pods) > _NAMED_PODS else ""
    unknown = f"which GPUs {', '.join(pods[:_NAMED_PODS])}{others} use" if pods else "which GPU that is"
    raise InvalidInput(
        f"--write: node {node.name}",
        found=f"GPU {changed[0]} would be partitioned, which ends what runs on it, and it is unknown {unknown}",
        hint="run `tessera agent` there, drain the node, or label it tessera.dev/sharing=whole to keep it as it is",
    )


def _present(gpu: Gpu) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(counts_of(gpu.model, gpu.sharing.layout or ())))


def _distinguished(generated: list[_Files]) -> list[_Files]:
    """Name configurations after their content if one name stands for several, as all-balanced of two models does."""
    by_name: dict[str, set[tuple[Group, ...]]] = {}
    for each in generated:
        by_name.setdefault(each.mig_name, set()).add(each.groups)
    return [
        msgspec.structs.replace(each, mig_name=_content_name(each.groups)) if len(by_name[each.mig_name]) > 1 else each
        for each in generated
    ]


def _files(node: Node, layouts: Sequence[GpuLayout]) -> _Files:
    mig_name, groups = _mig(node, layouts)
    plugin, plugin_comments = _plugin(node, layouts)
    modes = {device.mode for layout in layouts for device in layout.devices}
    return _Files(
        node=node.name,
        mig_name=mig_name,
        groups=groups,
        plugin_name=_content_name(plugin) if plugin else "",
        plugin=plugin,
        gpushare=modes == {Mode.MEMORY_SHARE},
        comments=(*_by_gpu(_starts, layouts), *plugin_comments, *_by_gpu(_amounts, layouts)),
    )


# MIG


def _mig(node: Node, layouts: Sequence[GpuLayout]) -> tuple[str, tuple[Group, ...]]:
    """Return the name and the groups of a node's MIG configuration; none if MIG is off and stays off.

    GPUs about which nothing was decided, and models without MIG, are in no group and so left as they are. The name is
    mig-parted's own where all GPUs of the node are of one model and get one of its named configurations.
    """
    gpus = {gpu.index: gpu for gpu in node.gpus if gpu.model.profiles}
    alike: dict[tuple[bool, tuple[tuple[str, int], ...]], list[int]] = {}
    for layout in layouts:
        if layout.gpu in gpus:
            alike.setdefault((layout.mig, _counts(layout)), []).append(layout.gpu)
    touched = (gpus[index] for indices in alike.values() for index in indices)
    if not any(enabled for enabled, _ in alike) and not any(gpu.sharing.layout is not None for gpu in touched):
        return "", ()
    if len(alike) == 1 and len(layouts) == len(node.gpus) and len({gpu.model for gpu in node.gpus}) == 1:
        enabled, counts = next(iter(alike))
        for name, named in named_layouts(node.gpus[0].model).items():
            if enabled == (name != "all-disabled") and tuple(sorted(named)) == counts:
                return name, (Group(enabled=enabled, instances=counts),)
    groups = tuple(
        Group(devices=tuple(indices), enabled=enabled, instances=counts) for (enabled, counts), indices in alike.items()
    )
    return _content_name(groups), groups


def _counts(layout: GpuLayout) -> tuple[tuple[str, int], ...]:
    counts: dict[str, int] = {}
    for device in layout.devices:
        if device.placement is not None:
            counts[device.placement.profile] = counts.get(device.placement.profile, 0) + 1
    return tuple(sorted(counts.items()))


def _content_name(value: object) -> str:
    return f"tessera-{hashlib.sha256(msgspec.json.encode(value)).hexdigest()[:10]}"


def _by_gpu(describe: Callable[[GpuLayout], str], layouts: Iterable[GpuLayout]) -> Iterable[str]:
    """Yield the settings of each GPU, once for GPUs with the same settings."""
    gpus: dict[str, list[str]] = {}
    for layout in layouts:
        gpus.setdefault(describe(layout), []).append(str(layout.gpu))
    return (f"GPU {', '.join(indices)}: {text}" for text, indices in gpus.items() if text)


def _starts(layout: GpuLayout) -> str:
    places = [device.placement for device in layout.devices if device.placement is not None]
    starts = ", ".join(f"{place.profile} at {place.start}" for place in places)
    return f"planned {starts}; mig-parted takes numbers of instances and chooses the starts" if starts else ""


# The device plugin


def _plugin(node: Node, layouts: Sequence[GpuLayout]) -> tuple[NodeSharing | None, tuple[str, ...]]:
    """Return the node's sharing configuration, and what it cannot express."""
    clients: dict[str, set[int]] = {}
    modes: set[Mode] = set()
    sharing = {gpu.index: gpu.sharing for gpu in node.gpus}
    for layout in layouts:
        for device in layout.devices:
            if device.clients:
                single = sharing[layout.gpu].strategy == "single"
                clients.setdefault(_resource(device, single=single), set()).add(device.clients)
            if device.clients > 1:
                modes.add(_REPLICATED[device.mode])
    mig = any(layout.mig for layout in layouts)
    uneven = sorted(name for name, numbers in clients.items() if len(numbers) > 1)
    if uneven or len(modes) > 1:
        both = ("planned time-slicing and MPS; the device plugin does one of them on a node",) if len(modes) > 1 else ()
        numbers = {name: " and ".join(map(str, sorted(clients[name]))) for name in uneven}
        return None, (
            *(
                f"{name}: planned {n} clients; the device plugin takes one number for all {name} of a node"
                for name, n in numbers.items()
            ),
            *both,
        )
    single = any(each.strategy == "single" for each in sharing.values())
    suffix = ".shared" if any(each.renamed for each in sharing.values()) else ""
    entries = tuple(
        SharingEntry(resource=name, mode=mode, replicas=max(numbers), rename=f"{name}{suffix}" if suffix else "")
        for mode in modes
        for name, numbers in sorted(clients.items())
        if max(numbers) > 1
    )
    if not mig and not entries:
        return None, ()
    return NodeSharing(strategy=("single" if single else "mixed") if mig else "none", entries=entries), ()


def _resource(device: PlannedDevice, *, single: bool) -> str:
    return GPU_RESOURCE if device.placement is None or single else mig_resource(device.placement.profile)


def _amounts(layout: GpuLayout) -> str:
    for device in layout.devices:
        if device.mode in AMOUNT_MODES and not device.clients:
            pods = f"{len(device.pods)} {'pod' if len(device.pods) == 1 else 'pods'}"
            what = f"{_AMOUNT_WORDS[device.mode]} of {layout.allocated_mib} MiB in all for {pods}"
            return f"planned {what}; no file here says amounts, which are set when a pod starts"
    return ""


# Files


def _comments(lines: Iterable[str]) -> str:
    return "".join(f"# {line}\n" for line in lines)


def _config_maps(generated: Iterable[_Files]) -> dict[str, str]:
    """Return the ConfigMaps of the two programs that select a configuration by a node's label."""
    files = {}
    configs = {each.mig_name: each.groups for each in generated if each.groups}
    if configs:
        off = {"all-disabled": (Group(enabled=False),)}
        text = migparted.write(dict(sorted((off | configs).items())))
        files["mig-parted-configmap.yaml"] = _config_map("tessera-mig-parted-config", {"config.yaml": text})
    plugins: dict[str, Plain] = {
        each.plugin_name: sharingconfig.write(each.plugin) for each in generated if each.plugin is not None
    }
    if plugins:
        files["device-plugin-configmap.yaml"] = _config_map(
            "tessera-device-plugin-config", dict(sorted(plugins.items()))
        )
    return files


def _config_map(name: str, data: dict[str, Plain]) -> str:
    head = "Apply it in the namespace of the GPU operator.\n"
    metadata: Plain = {"name": name}
    return f"# {head}" + write({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


def _labels_file(generated: Iterable[_Files], gke: Iterable[str]) -> str:
    parts = []
    for each in generated:
        comments = _comments((f"Node {each.node}", *each.comments)) if each.comments and not each.groups else ""
        metadata: Plain = {"name": each.node, "labels": each.labels}
        node = write({"apiVersion": "v1", "kind": "Node", "metadata": metadata}) if each.labels else ""
        parts.append(comments + node)
    pool = "partitions and sharing of a GKE node are set on its node pool; no label changes them"
    notes = [f"{name}: {pool}" for name in gke]
    return _comments(notes or ["Labels of GPU nodes"]) + "---\n".join(part for part in parts if part)
