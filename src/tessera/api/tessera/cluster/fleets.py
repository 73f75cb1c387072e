"""A fleet as a snapshot: from Tessera's fleet file, from Kubernetes Node objects, or from a short form.

docs/fleet.md describes the fleet file. Node objects are read by `api/kubernetes/nodes`, running pods by
`api/tessera/pods/runningpods`, and the reports of agents and servers in GPUNode objects by
`api/tessera/v1alpha1/gpunodes`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from tessera.api.documents import Document, Plain
from tessera.api.fields import Field, checked_name, identity, in_place, objects, read_model
from tessera.api.kubernetes.labeledgpus import ModelRule
from tessera.api.kubernetes.nodes import (
    CPU_MILLI,
    MEMORY_MIB,
    cpu_capacity,
    memory_capacity,
    node_without_gpus,
    with_gpus,
)
from tessera.api.kubernetes.nodes import share_unit_mib as unit_mib
from tessera.api.kubernetes.taints import not_ready_taints, read_taints
from tessera.api.nvidia.gpulabels import expected_labels
from tessera.api.nvidia.migparted import read_config_map
from tessera.api.nvidia.operatorconfigs import OperatorConfigs, mig_counts, read_configs, with_plugin
from tessera.api.tessera.node.gpusharing import read_sharing
from tessera.api.tessera.pods.runningpods import PodsOfCluster, read_pods
from tessera.api.tessera.v1alpha1.gpunodes import KIND, read_gpu_node
from tessera.core.cluster.closing import closed, unhealthy_gpus, without_new
from tessera.core.cluster.gpunodestate import GpuNodeState
from tessera.core.cluster.shareunit import common_unit_mib, mixed_units
from tessera.core.cluster.snapshot import Gpu, Node, NodeName, Share, Snapshot, Taint
from tessera.core.gpu.gpumodels import GpuModel, model
from tessera.core.gpu.sharing import Mode, Sharing, managed_sharing
from tessera.core.workload.kubernetesnames import HOSTNAME
from tessera.core.workload.tesseranames import API_VERSION
from tessera.errors import InvalidInput, shown

__all__ = ["close_gpus", "desired_notes", "read", "read_states", "share_unit_mib", "short"]

_MAX_NODES = 100_000
_EXAMPLES = 5
_MAX_GPUS = 256
"""Most GPUs of one node; no server has more than a few dozen."""
_GIB = 1024
_KINDS = ("Node", "Pod", KIND, "Fleet", None)
_SEVERAL = re.compile(r"(?:(?P<count>[-+]?[0-9]{1,64})\s*[xX]\s*)?\((?P<node>[^()]*)\)")
_SHORT = re.compile(r"(?:(?P<count>[-+]?[0-9]{1,64})\s*[xX]\s*)?(?P<model>\S.{0,80})")


def share_unit_mib(documents: Iterable[Document]) -> int:
    """Return the MiB in one `aliyun.com/gpu-mem`: by agents' reports, or 1 where a node has more units than GiB."""
    fields = [field for document in documents for field in _objects(document)]
    return _share_unit_mib(fields, read_states(fields))


def _share_unit_mib(fields: Iterable[Field], states: Mapping[str, GpuNodeState]) -> int:
    return common_unit_mib(_units(fields, states))


def _units(fields: Iterable[Field], states: Mapping[str, GpuNodeState]) -> set[int]:
    """Return the units of the nodes that share memory."""
    nodes = (field for field in fields if field.get("kind").value == "Node")
    return {unit for field in nodes if (unit := _unit_mib(field, states.get(_name(field)))) is not None}


def _unit_mib(field: Field, state: GpuNodeState | None) -> int | None:
    try:
        return unit_mib(field, state)
    except InvalidInput:
        return None  # the node is left out for the same reason, which is said there


def _name(field: Field) -> str:
    return identity(field)[1]


def read_states(fields: Iterable[Field]) -> dict[str, GpuNodeState]:
    """Return the states in GPUNode objects, by name of the node.

    Raises:
        InvalidInput: an invalid one, or two of one name.

    """
    states: dict[str, GpuNodeState] = {}
    for field in fields:
        if field.get("kind").value != KIND:
            continue
        name = _name(field)
        if name in states:
            raise field.refuse(found=f"GPUNode {name} is there twice", hint="name each once")
        states[name] = in_place(field, partial(read_gpu_node, field.mapping()))
    return states


def read(
    documents: Iterable[Document], *, share_unit_mib: int | None = None, gpu_models: Sequence[ModelRule] = ()
) -> Snapshot:
    """Return the fleet of a set of documents, with its running and pending pods.

    Accepted: fleet files (`nodes:`), the GPU operator's ConfigMaps of MIG configurations, which fleet files may name,
    Node objects, and lists of Node, Pod and GPUNode objects as `kubectl get
    nodes,pods,gpunodes -A -o json` prints them. Objects of other kinds are left out and named in the notes.
    A Node object with unreadable GPUs is a node without GPUs that says so.

    Args:
        documents: the files, as `documents.read` returns them.
        share_unit_mib: MiB in one `aliyun.com/gpu-mem`; as advertised by the nodes if it is left out.
        gpu_models: GPU models of Node objects, which take precedence over labels; the last that applies.

    Raises:
        InvalidInput: an empty fleet, two nodes of one name, no node whose GPUs can be read though there are some, a
            rule that applies to no node, anything a reader refuses.

    """
    fields = [field for document in documents for field in _objects(document)]
    states = read_states(fields)
    share_mib = share_unit_mib or _share_unit_mib(fields, states)
    mixed = "" if share_unit_mib else mixed_units(_units(fields, states))
    notes: list[str] = [mixed] if mixed else []
    configs = read_configs(fields)
    notes.extend(configs.notes)
    nodes = _nodes(fields, states, gpu_models, configs, notes)
    if not nodes:
        source = fields[0].place if fields else "fleet"
        hint = "write nodes: in a fleet file, or Node objects, as in kubectl get nodes,pods -A -o json"
        raise InvalidInput(source, found="it has no node", hint=hint)
    notes.extend(f"GPUNode {name} is left out: there is no node of this name" for name in states if name not in nodes)
    pods = read_pods(
        [field for field in fields if field.get("kind").value == "Pod"],
        nodes,
        share_unit_mib=share_mib,
        claims={claim.uid: (state.name, claim.shares) for state in states.values() for claim in state.claims},
    )
    fleets = [field for field in fields if field.get("kind").value in ("Fleet", None)]
    plugins = {entry.get("device-plugin").value for fleet in fleets for entry in fleet.get("nodes").elements()}
    skipped = sorted(
        {field.label for field in fields if field.get("kind").value not in _KINDS and not _is_read(field, plugins)}
    )
    notes.extend(f"{label} is not read as part of a fleet" for label in skipped)
    return Snapshot(
        nodes=close_gpus(nodes, states, pods),
        running=pods.running,
        pending=pods.pending,
        notes=(*notes, *pods.notes, *desired_notes(nodes, states, pods)),
    )


def desired_notes(nodes: Mapping[str, Node], states: Mapping[str, GpuNodeState], pods: PodsOfCluster) -> Iterator[str]:
    """Yield the GPUs with idle devices for pods that request them by name, which a plan may use otherwise."""
    used = {
        (running.assignment.node, share.gpu, share.start)
        for running in pods.running
        for share in running.assignment.shares
    }
    for name, state in states.items():
        index = {gpu.uuid: gpu.index for gpu in state.gpus}
        idle = sorted(
            {
                index[gpu]
                for each in state.desired
                for gpu, place in each.devices
                if gpu in index and (name, index[gpu], place and place.start) not in used
            }
        )
        if idle and name in nodes:
            which = f"GPU {idle[0]}" if len(idle) == 1 else f"GPUs {', '.join(map(str, idle))}"
            yield (
                f"{which} of {name}: the controller keeps idle devices for pods that request them by name; "
                "here they count as free"
            )


def _is_read(field: Field, plugins: set[Plain]) -> bool:
    """Return whether a ConfigMap has MIG configurations, or a device plugin's that a node names."""
    return field.get("kind").value == "ConfigMap" and (
        bool(read_config_map(field)) or any(key in plugins for key, _ in field.get("data").members())
    )


def _nodes(
    fields: Iterable[Field],
    states: Mapping[str, GpuNodeState],
    gpu_models: Sequence[ModelRule],
    configs: OperatorConfigs,
    notes: list[str],
) -> dict[str, Node]:
    nodes: dict[str, Node] = {}
    unread: list[InvalidInput] = []
    unused = set(gpu_models)
    for field in fields:
        if field.get("kind").value in ("Fleet", None):
            found: Iterable[Node] = _fleet_nodes(field, configs, notes)
        elif field.get("kind").value == "Node":
            node = node_without_gpus(field)
            rules = [rule for rule in gpu_models if rule.applies(node.name, dict(node.labels))]
            unused.difference_update(rules)
            try:
                node, node_notes = with_gpus(node, field, states.get(node.name), rules[-1].model if rules else None)
                notes.extend(node_notes)
            except InvalidInput as error:
                node = msgspec.structs.replace(node, problem=str(error))
                unread.append(error)
            missing = not_ready_taints(field)
            found = (msgspec.structs.replace(node, taints=(*node.taints, *missing)) if missing else node,)
        else:
            continue
        for node in found:
            if node.name in nodes:
                raise field.refuse(found=f"node {node.name} is there twice", hint="name each once")
            nodes[node.name] = node
    if unread and not any(node.gpus for node in nodes.values()):
        raise unread[0]
    for rule in (rule for rule in gpu_models if rule in unused):
        raise InvalidInput(
            f"--gpu-model {rule.nodes}={rule.model.name}",
            found="no Node object has this name, pattern or label",
            hint=f"name one of the fleet's nodes: {', '.join(list(nodes)[:_EXAMPLES])}",
        )
    return nodes


def close_gpus(nodes: Mapping[str, Node], states: Mapping[str, GpuNodeState], pods: PodsOfCluster) -> tuple[Node, ...]:
    """Return the nodes with their unhealthy devices, and GPUs whose allocations conflict, closed to new pods.

    Of lost GPUs the last that no pod uses are closed.
    """
    unhealthy = {name: state.unhealthy for name, state in states.items() if state.reported and state.unhealthy}
    concerned = {*unhealthy, *pods.conflicts, *(name for name, node in nodes.items() if node.lost or not node.reported)}
    in_use: dict[tuple[str, int], list[Share]] = {}
    for running in pods.running:
        if running.assignment.node in concerned:
            for share in running.assignment.shares:
                in_use.setdefault((running.assignment.node, share.gpu), []).append(share)
    found: list[Node] = []
    for name, node in nodes.items():
        if name not in concerned:
            found.append(node)
            continue
        used = {gpu.index: in_use.get((name, gpu.index), []) for gpu in node.gpus}
        lost = sorted(used, key=lambda index: (bool(used[index]), -index))[: node.lost]
        closed_indices = {*lost, *pods.conflicts.get(name, ())} if node.reported else used.keys()
        gpus = tuple(
            closed(gpu, used[gpu.index])
            if gpu.index in closed_indices
            else without_new(gpu, unhealthy.get(name, ()), used[gpu.index])
            for gpu in node.gpus
        )
        bad = {*lost, *unhealthy_gpus(node.gpus, unhealthy.get(name, ()))}
        found.append(msgspec.structs.replace(node, gpus=gpus, unhealthy=tuple(sorted(bad))))
    return tuple(found)


def short(texts: Iterable[str]) -> tuple[Node, ...]:
    """Return the nodes that short forms stand for: `node-0` and so on, managed GPUs, cpu and memory that never bind.

    Args:
        texts: each a number of GPUs, `x`, and a GPU model: `8xH100-80GB`; or a number of such nodes: `4x(8xH100-80GB)`.
            A number that is left out is 1.

    Raises:
        InvalidInput: not such a form, a GPU model Tessera does not know, or more nodes than a fleet may have.

    """
    nodes: list[Node] = []
    for text in texts:
        subject = f"--gpus {shown(text)}"
        several = _SEVERAL.fullmatch(text.strip())
        count, name = _counted(several["node"] if several else text, subject)
        times = int(several["count"] or 1) if several else 1
        if not 1 <= times <= _MAX_NODES - len(nodes):
            raise InvalidInput(
                subject, found=shown(text), expected=f"1 to {_MAX_NODES} nodes in all", hint="4x(8xH100-80GB)"
            )
        gpu_model = in_place(subject, partial(model, name))
        gpus = tuple(
            Gpu(index=i, model=gpu_model, memory_mib=gpu_model.memory_mib, sharing=managed_sharing(gpu_model))
            for i in range(count)
        )
        labels = expected_labels(gpus)
        names = tuple(f"node-{index}" for index in range(len(nodes), len(nodes) + times))
        nodes.extend(
            Node(
                name=NodeName(node_name),
                cpu_milli=CPU_MILLI,
                memory_mib=MEMORY_MIB,
                gpus=gpus,
                max_pods=_MAX_GPUS * 48,
                labels=_labels(node_name, gpus, labels),
            )
            for node_name in names
        )
    return tuple(nodes)


def _counted(text: str, subject: str) -> tuple[int, str]:
    match = _SHORT.fullmatch(text.strip())
    count = int(match["count"] or 1) if match else 0
    if match is None or not 1 <= count <= _MAX_GPUS:
        raise InvalidInput(
            subject,
            found=shown(text),
            expected=f"1 to {_MAX_GPUS} GPUs of a model",
            hint="8xH100-80GB or 4x(8xH100-80GB)",
        )
    return count, match["model"]


def _objects(document: Document) -> Iterator[Field]:
    """Yield the document's objects; a fleet file may leave out `kind`."""
    whole = Field(document, document.data)
    if isinstance(document.data, dict) and "kind" not in document.data and "nodes" in document.data:
        yield whole
    else:
        yield from objects(document)


# The fleet file


def _fleet_nodes(field: Field, configs: OperatorConfigs, notes: list[str]) -> Iterator[Node]:
    field.only("apiVersion", "kind", "metadata", "nodes")
    field.get("apiVersion").choice(API_VERSION, default=API_VERSION)
    read_nodes = 0
    for entry in field.get("nodes").elements():
        entry.only("name", "count", "cpu", "memory", "pods", "gpus", "sharing", "device-plugin", "labels", "taints")
        count = entry.get("count").integer(1, least=1, most=_MAX_NODES)
        read_nodes += count
        if read_nodes > _MAX_NODES:
            raise entry.refuse(found=f"{count} more nodes are more than {_MAX_NODES} in all")
        name = checked_name(entry.get("name"))
        names = [name] if not entry.get("count").present else [f"{name}-{index}" for index in range(count)]
        yield from _entry_nodes(entry, names, configs, notes)


def _entry_nodes(entry: Field, names: list[str], configs: OperatorConfigs, notes: list[str]) -> Iterator[Node]:
    cpu_milli = entry.get("cpu").read(cpu_capacity, CPU_MILLI)
    memory_mib = entry.get("memory").read(memory_capacity, MEMORY_MIB)
    gpus = _gpus(entry, configs)
    if entry.get("device-plugin").present:
        gpus, remarks = with_plugin(entry.get("device-plugin"), gpus, configs)
        notes.extend(f"{names[0]}: {each}" for each in remarks)
    labels = expected_labels(gpus) | {key: value.text() for key, value in entry.get("labels").members()}
    taints = _taints(entry.get("taints"))
    max_pods = entry.get("pods").integer(110)
    for name in names:
        yield Node(
            name=NodeName(name),
            cpu_milli=cpu_milli,
            memory_mib=memory_mib,
            gpus=gpus,
            max_pods=max_pods,
            labels=_labels(name, gpus, labels),
            taints=taints,
        )


def _labels(name: str, gpus: tuple[Gpu, ...], given: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the labels of every node, those of GPU nodes, and the given ones, which win."""
    arm = bool(gpus) and gpus[0].model.name.startswith(("GH", "GB", "GB3"))
    labels = {
        "kubernetes.io/arch": "arm64" if arm else "amd64",
        HOSTNAME: name,
        "kubernetes.io/os": "linux",
    }
    if gpus:
        labels |= {"nvidia.com/gpu.present": "true"}
    return tuple(sorted((labels | given).items()))


def _taints(field: Field) -> tuple[Taint, ...]:
    """Return taints in Kubernetes' format or `kubectl taint`'s: `KEY=VALUE:EFFECT`."""
    taints: list[Taint] = []
    for element in field.elements():
        if isinstance(element.value, dict):
            taints.extend(read_taints([element.only("key", "value", "effect", "timeAdded")]))
            continue
        head, colon, effect = element.text().rpartition(":")
        key, _, value = head.partition("=")
        if not colon or not key or effect not in {"NoSchedule", "PreferNoSchedule", "NoExecute"}:
            raise element.refuse("a taint KEY=VALUE:EFFECT", "nvidia.com/gpu=present:NoSchedule")
        taints.append(Taint(key=key, value=value, effect=effect))
    return tuple(taints)


def _gpus(entry: Field, configs: OperatorConfigs) -> tuple[Gpu, ...]:
    """Return the GPUs of one entry: `8xH100-80GB`, or a list of such texts and of mappings, one group each."""
    field = entry.get("gpus")
    groups = list(field.elements()) if isinstance(field.value, list) else [field] if field.present else []
    found = [each for group in groups for each in _group(group, entry.get("sharing"))]
    if len(found) > _MAX_GPUS:
        raise field.refuse(found=f"{len(found)} GPUs are more than {_MAX_GPUS} in a node")
    gpus = [msgspec.structs.replace(gpu, index=index) for index, (gpu, _) in enumerate(found)]
    fixed = entry.get("device-plugin").present
    return tuple(
        msgspec.structs.replace(gpu, sharing=_sharing(given, gpu, configs, fixed=fixed))
        for gpu, (_, given) in zip(gpus, found, strict=True)
    )


def _sharing(given: Field, gpu: Gpu, configs: OperatorConfigs, *, fixed: bool) -> Sharing:
    """Return the sharing of a GPU; `fixed` if the device plugin's configuration sets all but the MIG layout."""
    if fixed and not given.present:
        return Sharing(modes=(Mode.WHOLE,))
    if fixed and (not isinstance(given.value, dict) or given.value.keys() != {"mig"}):
        raise given.refuse(
            found="device-plugin says how the node's GPUs are shared", hint="write mig alone, or nothing"
        )
    return read_sharing(given, gpu.model, mig_counts(given, gpu, configs))


def _group(group: Field, sharing: Field) -> list[tuple[Gpu, Field]]:
    """Return GPUs, managed and without their index, with the field that says how each is shared."""
    if not isinstance(group.value, dict):
        count, name = _counted(group.text(), group.subject)
        gpu_model = in_place(group, partial(model, name))
        gpu = Gpu(index=0, model=gpu_model, memory_mib=gpu_model.memory_mib, sharing=managed_sharing(gpu_model))
        return [(gpu, sharing)] * count
    group.only("model", "count", "memory", "uuid", "sharing")
    gpu_model = read_model(group.get("model"))
    gpu = Gpu(
        index=0,
        model=gpu_model,
        memory_mib=_gpu_memory(group.get("memory"), gpu_model),
        sharing=managed_sharing(gpu_model),
        uuid=group.get("uuid").text(""),
    )
    own = group.get("sharing")
    count = group.get("count").integer(1, least=1, most=1 if gpu.uuid else _MAX_GPUS)
    return [(gpu, own if own.present else sharing)] * count


def _gpu_memory(field: Field, gpu_model: GpuModel) -> int:
    """Return a GPU's usable memory: from the file, at most what its model has by name, else the catalog's."""
    if not field.present:
        return gpu_model.memory_mib
    memory_mib = field.read(memory_capacity)
    if not 0 < memory_mib <= 2 * gpu_model.memory_mib:
        raise field.refuse(f"memory that a {gpu_model.name} can have", f"{gpu_model.memory_mib}Mi")
    return memory_mib
