"""A live cluster from its objects, however invalid some of them are: nothing here rejects a cluster.

Node, Pod and GPUNode objects are read as in `fleets`. An invalid object becomes a problem of its
node or pod, or a note; recorded devices are kept even if they are impossible.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from tessera.api.documents import Document
from tessera.api.fields import Field, identity, in_place
from tessera.api.kubernetes.images import pod_images, reported_images
from tessera.api.kubernetes.nodes import node_without_gpus, read_node, share_unit_mib
from tessera.api.kubernetes.podstates import is_finished, is_terminating
from tessera.api.kubernetes.taints import not_ready_taints
from tessera.api.tessera.cluster.fleets import close_gpus, desired_notes
from tessera.api.tessera.node.nodereports import ENFORCEMENT, read_enforcement
from tessera.api.tessera.pods.assignments import read_shares
from tessera.api.tessera.pods.runningpods import PodMemory, PodsOfCluster, node_of, read_pods
from tessera.api.tessera.pods.signatures import Authority, Keys
from tessera.api.tessera.v1alpha1.gpunodes import KIND, read_gpu_node
from tessera.core.cluster.cluster import Cluster, ObservedNode, ObservedPod, Phase, Record
from tessera.core.cluster.enforcement import Enforcement
from tessera.core.cluster.gpunodestate import GpuNodeState
from tessera.core.cluster.shareunit import common_unit_mib, mixed_units
from tessera.core.cluster.snapshot import Node, NodeName, Share, Snapshot, Taint
from tessera.core.gpu.sharing import names_device
from tessera.core.workload import units
from tessera.core.workload.need import Need, Pod, PodKey
from tessera.core.workload.resources import SHARE_RESOURCES
from tessera.errors import InvalidInput

__all__ = ["PodMemory", "as_fields", "read_cluster"]

_NO_LIMIT = 1 << 40


def as_fields(objects: Iterable[Mapping[str, Any]]) -> list[Field]:
    """Return objects of an API server for `read_cluster`."""
    return [_field(dict(each)) for each in objects]


def _field(obj: dict[str, Any]) -> Field:
    metadata = obj.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    source = f"{obj.get('kind') or 'object'} {name or 'without a name'}"
    return Field(Document(source=source, number=1, data=obj, first_line=1), obj)


def read_cluster(
    fields: Sequence[Field],
    *,
    unit_mib: int | None = None,
    memory: PodMemory | None = None,
    authority: Authority | None = None,
) -> Cluster:
    """Return the cluster of these objects; other kinds are ignored.

    Args:
        fields: the objects.
        unit_mib: MiB in one `aliyun.com/gpu-mem`; by the nodes if it is left out.
        memory: the parsed pods of the former pass, which make a pass three times as fast.
        authority: the servers' keys; without them assignments are not verified.

    """
    notes: list[str] = []
    kinds: dict[str, dict[str, Field]] = {"Node": {}, "Pod": {}, KIND: {}}
    for field in fields:
        _sort_in(field, kinds, notes)
    states, unread = _states(kinds[KIND], kinds["Node"], notes)
    nodes = {
        name: _node(name, field, states.get(name), unread.get(name), notes) for name, field in kinds["Node"].items()
    }
    counted = {each.unit_mib for each in nodes.values() if each.unit_mib is not None}
    unit = unit_mib or common_unit_mib(counted)
    notes += [note] if (note := mixed_units(counted)) and unit_mib is None else []
    known = {name: each.node for name, each in nodes.items()}
    claims = {claim.uid: (state.name, claim.shares) for state in states.values() for claim in state.claims}
    pods = [field for field in kinds["Pod"].values() if not is_finished(field)]
    keys = _keys(authority, known, states) if authority else None
    observed = read_pods(pods, known, share_unit_mib=unit, claims=claims, memory=memory, keys=keys)
    reader = _Pods(observed, unit, keys or {})
    return Cluster(
        nodes=tuple(nodes.values()),
        pods=tuple(map(reader.read, pods)),
        snapshot=Snapshot(
            nodes=close_gpus(known, states, observed),
            running=observed.running,
            pending=observed.pending,
            notes=(*notes, *observed.notes, *desired_notes(known, states, observed)),
        ),
        notes=(*notes, *observed.misread),
        share_unit_mib=unit,
    )


def _sort_in(field: Field, kinds: Mapping[str, dict[str, Field]], notes: list[str]) -> None:
    """Put an object among those of its kind, by name; one without a name, or a duplicate, becomes a note."""
    try:
        kind = field.get("kind").text("")
        if kind not in kinds:
            return
        namespace, name = identity(field)
        key = f"{namespace}/{name}" if kind == "Pod" else name
        if key in kinds[kind]:
            raise field.refuse(found=f"{key} is there twice", hint=f"name each {kind} once")
        for name in ("uid", "creationTimestamp"):
            field.get("metadata", name).text("")
        field.get("status").mapping()
        kinds[kind][key] = field
    except InvalidInput as error:
        notes.append(f"an object is left out: {error}")


def _states(
    fields: Mapping[str, Field], nodes: Mapping[str, Field], notes: list[str]
) -> tuple[dict[str, GpuNodeState], dict[str, InvalidInput]]:
    """Return the readable GPUNodes of nodes, and why the others cannot be read."""
    states: dict[str, GpuNodeState] = {}
    unread: dict[str, InvalidInput] = {}
    for name, field in fields.items():
        try:
            states[name] = in_place(field, partial(read_gpu_node, field.mapping()))
        except InvalidInput as error:
            unread[name] = error
            notes.append(f"GPUNode {name} is left out: {error}")
    notes.extend(f"GPUNode {name} is left out: there is no node of this name" for name in states if name not in nodes)
    return {name: state for name, state in states.items() if name in nodes}, unread


# Nodes


def _keys(authority: Authority, nodes: Mapping[str, Node], states: Mapping[str, GpuNodeState]) -> dict[str, Keys]:
    """Return the keys that count on each node."""
    return {
        name: authority.keys(states.get(name), frozenset(gpu.index for gpu in node.gpus))
        for name, node in nodes.items()
    }


def _node(
    name: str, field: Field, state: GpuNodeState | None, unread: InvalidInput | None, notes: list[str]
) -> ObservedNode:
    """Return a node; where neither its GPUNode nor its labels show its GPUs, with the problem of the GPUNode."""
    try:
        node, found = read_node(field, state)
        advertised = _advertised(field)
    except InvalidInput as error:
        try:
            bare = node_without_gpus(field)
        except InvalidInput:
            bare = Node(name=NodeName(name), cpu_milli=_NO_LIMIT, memory_mib=_NO_LIMIT)
        problem = str(unread or error)
        taints = (*bare.taints, *_not_ready_taints(field))
        bare = msgspec.structs.replace(bare, problem=problem, taints=taints)
        return ObservedNode(
            node=bare,
            address=_address(field),
            ready=_ready(field),
            advertised=_advertised(field, tolerant=True),
            problem=problem,
        )
    notes.extend(found)
    return ObservedNode(
        node=msgspec.structs.replace(node, taints=(*node.taints, *_not_ready_taints(field))),
        address=_address(field),
        ready=_ready(field),
        state=state,
        unit_mib=share_unit_mib(field, state),
        enforcement=_enforcement(name, field, notes),
        advertised=advertised,
        images=reported_images(_object(field)),
    )


def _address(field: Field) -> str:
    """Return the first internal address, as gpushare's inspection does."""
    listed = _dicts(field.get("status", "addresses"))
    return next((str(each.get("address", "")) for each in listed if each.get("type") == "InternalIP"), "")


def _not_ready_taints(field: Field) -> tuple[Taint, ...]:
    try:
        return not_ready_taints(field)
    except InvalidInput:
        return ()


def _ready(field: Field) -> bool:
    """Return whether the node is ready; one without the condition counts as ready."""
    listed = _dicts(field.get("status", "conditions"))
    return next((each.get("status") == "True" for each in listed if each.get("type") == "Ready"), True)


def _advertised(field: Field, *, tolerant: bool = False) -> tuple[tuple[str, int], ...]:
    """Return the GPU resources that a node advertises to kube-scheduler.

    Args:
        field: the node.
        tolerant: return those before a quantity that makes no sense.

    Raises:
        InvalidInput: a quantity that makes no sense.

    """
    status = field.get("status")
    amounts = status.get("allocatable") if status.get("allocatable").present else status.get("capacity")
    found: list[tuple[str, int]] = []
    try:
        for name, value in amounts.members():
            if names_device(name) or name in SHARE_RESOURCES:
                found.append((name, value.read(units.count)))
    except InvalidInput:
        if not tolerant:
            raise
    return tuple((name, count) for name, count in found if count)


def _object(field: Field) -> dict[str, Any]:
    return field.value if isinstance(field.value, dict) else {}


def _dicts(field: Field) -> list[dict[str, Any]]:
    value = field.value
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _enforcement(name: str, field: Field, notes: list[str]) -> tuple[Enforcement, ...]:
    try:
        return read_enforcement(field.get("metadata", "annotations", ENFORCEMENT).text("[]"))
    except InvalidInput as error:
        notes.append(f"node {name}: the annotation {ENFORCEMENT} is not used: {error}")
        return ()


# Pods


class _PodState(NamedTuple):
    """A pod's state and its devices."""

    pod: Pod
    node: NodeName | None = None
    shares: tuple[Share, ...] = ()
    record: Record = Record.NONE
    problem: str = ""
    unread: str = ""


class _Pods:
    """Joins the pods of `runningpods` with further facts in their objects."""

    def __init__(self, observed: PodsOfCluster, unit_mib: int, keys: Mapping[str, Keys]) -> None:
        self._unit_mib = unit_mib
        self._keys = keys
        self._invalid_assignment = observed.invalid
        self._unread = observed.unread
        self._recorded = observed.recorded
        self._running = {each.pod.key: each for each in observed.running}
        self._pending = {each.key: each for each in observed.pending}

    def read(self, field: Field) -> ObservedPod:
        allocation = self._pod_state(field, PodKey("/".join(identity(field))))
        scheduler = _spec(field).get("schedulerName") or "default-scheduler"
        return ObservedPod(
            pod=allocation.pod,
            uid=field.get("metadata", "uid").text(""),
            node=allocation.node,
            shares=allocation.shares,
            record=allocation.record,
            phase=_phase(field, allocation.node),
            ending=is_terminating(field),
            gated=bool(_spec(field).get("schedulingGates")),
            scheduler=str(scheduler),
            message=_message(field),
            unseen=allocation.node is None and _is_unseen(field),
            unread=allocation.unread,
            problem=allocation.problem,
            images=pod_images(_object(field)),
        )

    def _pod_state(self, field: Field, key: PodKey) -> _PodState:
        if key in self._pending:
            return _PodState(self._pending[key])
        running = self._running.get(key)
        if running is None or key in self._unread:
            return self._left_out(field, key)
        if key in self._recorded and key not in self._invalid_assignment:
            return _PodState(running.pod, running.assignment.node, self._recorded[key], Record.RECORDED)
        shares, problem = running.assignment.shares, self._invalid_assignment.get(key, "")
        return _PodState(
            running.pod, running.assignment.node, shares, Record.UNRECORDED if shares else Record.NONE, problem
        )

    def _left_out(self, field: Field, key: PodKey) -> _PodState:
        """Return what is known of an invalid pod; its recorded devices count all the same."""
        node = NodeName(node_of(field)) or None
        unread = self._unread.get(key, "")
        problem = f"its request cannot be read: {unread}" if unread else ""
        allocation = _PodState(Pod(key=key, need=Need(node_name=node or "")), node, unread=unread, problem=problem)
        try:
            keys = self._keys.get(node or "")
            shares = read_shares(field, None, share_unit_mib=self._unit_mib, keys=keys) if node else None
        except InvalidInput as error:
            return allocation._replace(problem="; ".join(filter(None, (problem, str(error)))))
        return allocation._replace(shares=shares, record=Record.RECORDED) if shares else allocation


def _spec(field: Field) -> dict[str, Any]:
    value = field.get("spec").value
    return value if isinstance(value, dict) else {}


def _phase(field: Field, node: NodeName | None) -> Phase:
    if node is None:
        return Phase.WAITING
    if not _spec(field).get("nodeName"):
        return Phase.CLAIMED
    return Phase.RUNNING if field.get("status", "phase").value == "Running" else Phase.STARTING


def _is_unseen(field: Field) -> bool:
    """Return whether a pod has no condition `PodScheduled`, which every scheduler sets, and every gate.

    Only where its status is the API server's, which gives each pod its class as it is created.
    """
    listed = _dicts(field.get("status", "conditions"))
    return field.get("status", "qosClass").present and all(each.get("type") != "PodScheduled" for each in listed)


def _message(field: Field) -> str:
    """Return the scheduler's message in the condition `PodScheduled`; empty if it has not rejected the pod."""
    listed = _dicts(field.get("status", "conditions"))
    refused = (each for each in listed if each.get("type") == "PodScheduled" and each.get("status") == "False")
    return next((str(each.get("message", "")) for each in refused), "")
