"""The pods of a live cluster: running pods with their devices, and pending pods.

Kubernetes does not record which device a pod uses, unless a scheduler extender wrote it on the pod; if it is not
recorded, `core.packing.unrecorded` says what the pod has.
"""

import contextlib
from collections.abc import Mapping, Sequence

import msgspec

from tessera.api.fields import Field, identity, in_words
from tessera.api.hami.annotations import ALLOCATED, read_allocated
from tessera.api.kubernetes.podspecs import read_need
from tessera.api.kubernetes.podstates import is_finished
from tessera.api.kubernetes.workloads import controller
from tessera.api.tessera.pods.assignments import read_shares, signed_request
from tessera.api.tessera.pods.signatures import InvalidAssignment, Keys
from tessera.api.untyped import as_dict
from tessera.core.cluster.snapshot import Node, NodeName, Running, Share
from tessera.core.gpu.sharing import GPU_RESOURCE, Mode, names_device
from tessera.core.packing.unrecorded import PodOnNode, unused_record, with_unrecorded_shares
from tessera.core.workload.need import Form, Need, Pod, PodKey
from tessera.errors import InvalidInput

__all__ = ["Claims", "PodMemory", "PodsOfCluster", "node_of", "read_pods"]


class PodsOfCluster(msgspec.Struct, frozen=True, kw_only=True):
    """Pods of a cluster."""

    running: tuple[Running, ...] = ()
    pending: tuple[Pod, ...] = ()
    """By creation time, then as written."""
    recorded: Mapping[PodKey, tuple[Share, ...]] = {}
    """Shares recorded in annotations, including impossible ones."""
    conflicts: Mapping[str, frozenset[int]] = {}
    """GPUs whose recorded allocations conflict, by node and index."""
    invalid: Mapping[PodKey, str] = {}
    """Why annotations do not count; such a pod uses nothing, or what the kubelet allocated by name."""
    unread: Mapping[PodKey, str] = {}
    """Why a pod's request is invalid, naming the field; of such a pod only recorded devices count."""
    misread: tuple[str, ...] = ()
    """Pods and records that are invalid, one sentence each."""
    notes: tuple[str, ...] = ()
    """These, and impossible devices of pods."""


Claims = Mapping[str, tuple[NodeName, tuple[Share, ...]]]
"""By pod UID: node and shares that a server is about to bind the pod to."""


class _Reading(msgspec.Struct, frozen=True):
    """The content of one Pod object."""

    pod: Pod
    """Without a request if it is invalid."""
    shares: tuple[Share, ...] | None = None
    """If they are recorded."""
    note: str = ""
    """Why its record is invalid."""
    invalid: str = ""
    """Why annotations do not count."""
    unread: str = ""
    """Why its request is invalid, naming the field."""


class PodMemory:
    """Parsed pods: an unchanged one is not parsed again, which saves most of the work.

    Objects are identified by UID and version; those without are parsed each time. It keeps the pods of the last
    pass.
    """

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], tuple[int, Keys | None, _Reading]] = {}
        self._now: dict[tuple[str, str], tuple[int, Keys | None, _Reading]] = {}

    def reading(self, field: Field, key: PodKey, share_unit_mib: int, keys: Keys | None = None) -> _Reading:
        """Return the content of an object, with the keys that count on its node."""
        metadata = field.get("metadata")
        uid, version = (metadata.get(name).text("") for name in ("uid", "resourceVersion"))
        unit_mib, former, known = self._before.get((uid, version), (0, None, None))
        if known is None or unit_mib != share_unit_mib or not (keys is former or (keys and keys.like(former))):
            known = _read(field, key, share_unit_mib, keys)
        if uid and version:
            self._now[uid, version] = share_unit_mib, keys, known
        return known

    def forget_absent(self) -> None:
        """Forget pods that were not in the last pass."""
        self._before, self._now = self._now, {}


class _Found:
    """The contents of Pod objects, one after the other."""

    def __init__(self, nodes: Mapping[str, Node], claims: Claims, *, signed: bool) -> None:
        self._nodes = nodes
        self._claims = claims
        self._signed = signed
        self.notes: list[str] = []
        self.on_node: dict[str, list[PodOnNode]] = {}
        self.pending: list[tuple[str, Pod]] = []
        """Each with its creation time."""
        self.invalid: dict[PodKey, str] = {}
        self.unread: dict[PodKey, str] = {}

    def take(self, field: Field, key: PodKey, read: _Reading) -> None:
        """Put a pod on its node; note what is invalid."""
        if read.note:
            self.notes.append(read.note)
        if read.invalid:
            self.invalid[key] = read.invalid
        node, shares = read.pod.need.node_name, read.shares
        if read.unread:
            self.unread[key] = read.unread
            if node in self._nodes:
                self.on_node.setdefault(node, []).append(PodOnNode(read.pod, shares or ()))
            return
        if shares is None and node in self._nodes and not self._signed:
            shares = _of_hami(field, self._nodes[node], key, self.notes)
        if not shares and read.pod.need.requests and not self._signed:
            shares = None  # a record of no device is none: the pod uses what it requests
        if not node:
            node, shares = self._claims.get(field.get("metadata", "uid").text(""), ("", None))
        if not node:
            self.pending.append((field.get("metadata", "creationTimestamp").text("~"), read.pod))
        elif node in self._nodes:
            self.on_node.setdefault(node, []).append(PodOnNode(read.pod, shares))
        else:
            self.notes.append(f"pod {key} is left out: it runs on node {node}, which is not among the nodes")

    def observed(self) -> PodsOfCluster:
        """Return the pods, those on nodes with their devices."""
        notes = list(self.notes)
        running: list[Running] = []
        recorded: dict[PodKey, tuple[Share, ...]] = {}
        conflicts: dict[str, frozenset[int]] = {}
        for name, there in self.on_node.items():
            found = with_unrecorded_shares(self._nodes[name], there)
            running.extend(found.running)
            notes.extend(found.notes)
            if found.conflicts:
                conflicts[name] = found.conflicts
            recorded |= {each.pod.key: each.shares for each in there if each.shares is not None}
        return PodsOfCluster(
            running=tuple(running),
            pending=tuple(pod for _, pod in sorted(self.pending, key=lambda item: item[0])),
            recorded=recorded,
            conflicts=conflicts,
            invalid=self.invalid,
            unread=self.unread,
            misread=tuple(self.notes),
            notes=tuple(notes),
        )


def read_pods(
    fields: Sequence[Field],
    nodes: Mapping[str, Node],
    *,
    share_unit_mib: int = 1024,
    claims: Claims | None = None,
    memory: PodMemory | None = None,
    keys: Mapping[str, Keys] | None = None,
) -> PodsOfCluster:
    """Return the pods of Pod objects; finished ones are left out, pods with a claim run on its node.

    A cluster is as it is: an invalid pod, or one on an unknown node, is left out with a note. Of an invalid pod on a
    node its recorded devices count, as by the scheduler's ledger.

    Args:
        fields: the objects.
        nodes: all nodes, by name.
        share_unit_mib: MiB in one `aliyun.com/gpu-mem`.
        claims: places that servers are about to bind pods to.
        memory: parsed pods of the former pass, updated for the next.
        keys: the keys that count, by node; without them assignments are not verified.

    Raises:
        InvalidInput: an object without a valid name, or two pods of one name.

    """
    memory, found = memory or PodMemory(), _Found(nodes, claims or {}, signed=bool(keys))
    known: set[str] = set()
    for field in fields:
        key = PodKey("/".join(identity(field)))
        if key in known:
            raise field.refuse(found=f"pod {key} is there twice", hint="name each pod once")
        known.add(key)
        if is_finished(field):
            continue
        own_keys = _keys_of(field, keys)
        try:
            read = memory.reading(field, key, share_unit_mib, own_keys)
        except InvalidInput as error:
            read = _unread(field, key, error, share_unit_mib, own_keys)
        found.take(field, key, read)
    memory.forget_absent()
    return found.observed()


def _of_hami(field: Field, node: Node, key: PodKey, notes: list[str]) -> tuple[Share, ...] | None:
    """Return HAMi's allocation of a pod on registered GPUs; None without a record."""
    annotation = field.get("metadata", "annotations", ALLOCATED)
    if not annotation.present:
        return None
    gpus = {gpu.uuid: gpu for gpu in node.gpus if gpu.uuid}
    try:
        parts = read_allocated(annotation)
        strange = next((part.uuid for part in parts if part.uuid not in gpus), None)
        if strange is not None:
            raise annotation.refuse(found=f"node {node.name} does not have {strange}")
    except InvalidInput as error:
        notes.append(unused_record(key, error))
        return None
    return tuple(
        Share(
            gpu=gpus[part.uuid].index,
            mode=Mode.MEMORY_SHARE,
            memory_mib=min(part.memory_mib, gpus[part.uuid].memory_mib),
            compute_percent=part.compute_percent,
            isolation=Mode.MEMORY_SHARE.isolation,
            resource=GPU_RESOURCE,
        )
        for part in parts
    )


def _keys_of(field: Field, keys: Mapping[str, Keys] | None) -> Keys | None:
    return (keys or {}).get(node_of(field))


def _read(field: Field, key: PodKey, share_unit_mib: int, keys: Keys | None) -> _Reading:
    try:
        need = read_need(field, share_unit_mib=share_unit_mib, requested=signed_request(field, keys))
        priority = field.get("spec", "priority").integer(0, least=-(1 << 31))
        pod = Pod(key=key, need=need, priority=priority, owner=controller(field, key.partition("/")[0]))
    except InvalidInput as error:
        return _unread(field, key, error, share_unit_mib, keys)
    if not need.node_name:
        return _Reading(pod)
    try:
        return _Reading(pod, read_shares(field, need, share_unit_mib=share_unit_mib, keys=keys))
    except InvalidAssignment as error:
        by_name = any(request.form is Form.EXACT and names_device(request.resource) for request in need.requests)
        return _Reading(pod, None if by_name else (), note=unused_record(key, error), invalid=str(error))
    except InvalidInput as error:
        return _Reading(pod, note=unused_record(key, error))


def _unread(field: Field, key: PodKey, error: InvalidInput, share_unit_mib: int, keys: Keys | None) -> _Reading:
    """Return a pod without its request, which cannot be read, and with what is recorded of it."""
    node, shares = node_of(field), None
    with contextlib.suppress(InvalidInput):
        shares = read_shares(field, None, share_unit_mib=share_unit_mib, keys=keys) if node else None
    note = f"pod {key} cannot be read, and only its recorded devices count" if node else f"pod {key} is left out"
    return _Reading(
        Pod(key=key, need=Need(node_name=node)),
        shares,
        note=f"{note}: {error}",
        unread=in_words(error, field),
    )


def node_of(field: Field) -> str:
    """Return the node of a Pod object, however malformed it is; empty where it has none."""
    name = as_dict(as_dict(field.value).get("spec")).get("nodeName")
    return name if isinstance(name, str) else ""
