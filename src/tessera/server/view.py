"""What this server knows of the cluster: Nodes, GPUNodes and Pods as they were seen last, kept in a ledger.

A broken object never stops the server: it is left out, with a line in the log once.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec

from tessera.api.fields import in_words
from tessera.api.kubernetes.images import held_images
from tessera.api.kubernetes.nodes import read_node, share_unit_mib
from tessera.api.tessera.gpunodes import read_gpu_node
from tessera.api.tessera.nodereports import has_agent
from tessera.api.tessera.pods.clusterpods import LivePod, object_field, read_live_pod
from tessera.api.tessera.pods.signatures import Authority, Keys, published_keys
from tessera.clients.kube import Listing, Object, annotations_of, name_of, uid_of, version_of
from tessera.core.cluster.gpunodestate import Claim, GpuNodeState
from tessera.core.cluster.protocols.claims import Fate
from tessera.core.cluster.protocols.keyring import KeyRing
from tessera.core.cluster.snapshot import Gpu, Node, NodeName, Share
from tessera.core.packing.ledger import Holder, HolderId, Ledger, schedulable_node
from tessera.core.storage.images.held import HeldImages
from tessera.core.workload.need import Ask, Form, Need
from tessera.core.workload.resources import GPU_MEMORY
from tessera.errors import InvalidInput
from tessera.log import Logger
from tessera.server.claims.claimedshares import ClaimedShares
from tessera.server.claims.exchanges import Exchanges
from tessera.server.claims.retention import Retention
from tessera.signing import verify
from tessera.wakeup import WakeUp

__all__ = ["BY_LABELS", "View"]

Key = TypeVar("Key")

BY_LABELS = "tessera.dev/gpus-by-labels"
"""Annotation of a GPUNode: made for claims on a node without an agent, whose GPUs are read from labels. Set by the
server; read by the server."""

_ANY = Need(asks=(Ask(resource=GPU_MEMORY, form=Form.NEED, memory_mib=1024),))
_REMEMBERED = 1 << 16
"""Deleted pods, and broken objects already reported, that are remembered; the latest."""


class View:
    """The cluster as one server sees it. Nothing in it waits; all times are of this server's monotonic clock.

    Args:
        ledger: an empty one; updated with what this view observes.
        clock_s: the monotonic clock.
        log: records what is left out.

    """

    def __init__(self, ledger: Ledger, clock_s: Callable[[], float], log: Logger) -> None:
        self.ledger = ledger
        self.share_unit_mib = 1024
        """MiB in one `aliyun.com/gpu-mem`: the smallest unit of any node."""
        self._clock_s = clock_s
        self._log = log
        self._nodes: dict[str, Object] = {}
        self._gpu_nodes: dict[str, Object] = {}
        self._states: dict[str, GpuNodeState] = {}
        self._put: dict[str, tuple[Node, tuple[Share, ...]]] = {}
        self._units: dict[str, int] = {}
        self._nodes_of_unit: Counter[int] = Counter()
        self._pods: dict[str, LivePod] = {}
        self._retention = Retention()
        self._objects: dict[str, Object] = {}
        self._uids: dict[str, str] = {}
        self._gone: dict[str, None] = {}
        self._listed = 0
        self._assumed: dict[str, Holder] = {}
        self._exchanges = Exchanges(ledger, clock_s)
        self.images = HeldImages()
        """What nodes hold."""
        self.claims = ClaimedShares(ledger, self)
        """What is claimed, which the ledger holds."""
        self._told: dict[tuple[str, str, str], None] = {}
        self.authority = Authority(servers={}, verify=verify)
        """The servers' public keys."""
        self.ring = KeyRing()
        """The servers' public keys, and which were revoked."""
        self._keys: dict[str, Keys] = {}
        self._strangers: dict[tuple[str, str], None] = {}
        self.doubts: dict[tuple[str, str], None] = {}
        """Nodes, and ids of keys that sign there and are not known yet: what they sign counts until it was asked."""
        self.doubted = WakeUp()
        """Rings when there is another."""
        self.lacking = WakeUp()
        """Set when a GPUNode that was recreated lacks claims of the one before."""

    # Keys

    @property
    def keys_version(self) -> int:
        """Version of the ConfigMap of the servers' public keys that was taken last."""
        return self.ring.version

    def take_keys(self, each: Object | None, *, begun: int | None = None) -> None:
        """Take the ConfigMap of the servers' public keys as it is now; that it is gone takes no key away.

        Args:
            each: the ConfigMap.
            begun: `keys_version` when it was asked for, where it was read and not watched.

        """
        if each is None:
            return
        self.ring = self.ring.saw(uid_of(each), int(version_of(each) or 0), published_keys(each), begun=begun)
        if self.ring.public != self.authority.servers:
            self.authority = Authority(servers=self.ring.public, verify=verify)
            for name in list(self._put):
                self._judge(name)

    def settle_doubts(self, asked: Iterable[tuple[str, str]]) -> None:
        """Call the keys of these nodes unknown that are unknown still; the API was asked for them just now."""
        for node, key in asked:
            self.doubts.pop((node, key), None)
            if node not in self._keys or key not in self._keys[node].public:
                _remember(self._strangers, (node, key))
                self._read_anew(node)

    def _judge(self, name: str) -> None:
        """Renew whose signatures count on a node, and read its pods anew where that changed."""
        gpus = frozenset(gpu.index for gpu in self.gpus(name))
        keys = self.authority.keys(self._states.get(name), gpus, lambda key: (name, key) in self._strangers)
        if not keys.like(self._keys.get(name)):
            self._keys[name] = keys
            self._read_anew(name)

    def _read_anew(self, node: str) -> None:
        for uid in self._objects.keys() & {holder.id for holder in self.ledger.pods_on(node)}:
            self._keep(uid, self._objects[uid], self._held(self._objects[uid]))

    def _live(self, each: Object) -> LivePod:
        node = (each.get("spec") or {}).get("nodeName") or ""
        return read_live_pod(each, share_unit_mib=self.share_unit_mib, keys=self._keys.get(node))

    def _held(self, each: Object) -> LivePod:
        live = self._live(each)
        if live.doubted:
            self.doubts[live.node, live.doubted] = None
            self.doubted.set()
        return self._retention.held(each, live, self._keys.get(live.node), self.ring.revoked)

    # Nodes

    @property
    def nodes(self) -> Mapping[str, Object]:
        """The Node objects by name."""
        return self._nodes

    def objects(self, node: str = "") -> list[Object]:
        """Return the Nodes, GPUNodes, and pods that ask for GPUs; of one node alone where one is named."""
        names = [node] if node else [*self._nodes]
        found = [kind[name] for name in names for kind in (self._nodes, self._gpu_nodes) if name in kind]
        return found + [
            self._objects[uid]
            for uid, live in self._pods.items()
            if live.gpus and (not node or live.node == node or node in self.claims.nodes_of(uid))
        ]

    def gpus(self, node: str) -> tuple[Gpu, ...]:
        """Return the GPUs of a node."""
        return self._put[node][0].gpus if node in self._put else ()

    def take_node(self, each: Object, *, gone: bool = False) -> None:
        """Take a Node object as it is now."""
        _, name = name_of(each)
        if gone:
            self._nodes.pop(name, None)
            self.images.drop(name)
        else:
            before, self._nodes[name] = self._nodes.get(name), each
            if before is None or _images(before) != _images(each):
                self.images.put(name, held_images(each))
            if before is not None and _shown(before) == _shown(each):
                return  # a heartbeat
        self._renew(name)

    def take_gpu_node(self, each: Object, *, gone: bool = False, skipped: bool = False) -> None:
        """Take a GPUNode object as it is now; `skipped` where there may have been versions between."""
        _, name = name_of(each)
        claims = self.claims.on(name)
        if gone:
            claims.deleted()
            self._gpu_nodes.pop(name, None)
            self._states.pop(name, None)
        elif int(version_of(each)) > claims.version:
            try:
                state = self._state(name, each)
            except InvalidInput:
                return
            self._note_made_anew(name, each)
            claims.saw(int(state.version), state.claims, self._clock_s(), skipped=skipped)
            self._note_state(name, each, state)
        self._renew(name)
        self.claims.hold(name)
        if claims.lacking(self.fate):
            self.lacking.set()

    def has_claim(self, node: str, claim: Claim) -> bool:
        """Return whether a node's GPUNode, as it was seen last, has these shares claimed for the pod."""
        if node not in self._gpu_nodes:
            return False
        return any((each.uid, each.shares) == (claim.uid, claim.shares) for each in self.claims.on(node).present())

    def take_verified(self, node: str, each: Object, pods: Listing) -> None:
        """Take a GPUNode object that was read, and the pods of its node, which were listed after it.

        Raises:
            InvalidInput: the object cannot be read; the pods were taken.

        """
        present = {uid_of(pod) for pod in pods.objects}
        for pod in pods.objects:
            self.take_pod(pod)
        listed = int(pods.resource_version)
        for uid in self._objects.keys() & {holder.id for holder in self.ledger.pods_on(node)} - present:
            if self._pods[uid].node == node and int(version_of(self._objects[uid])) <= listed:
                self._forget(uid)
        state = self._state(node, each)
        claims = self.claims.on(node)
        if int(state.version) > claims.version:
            self._note_made_anew(node, each)
            self._note_state(node, each, state)
        claims.read(int(state.version), state.claims, self._clock_s())
        self._renew(node)
        self.claims.hold(node)

    def forget_unlisted(self, pods: Listing) -> None:
        """Forget the pods that a list of all pods does not have; no event reports the end of one that was looked up."""
        present = {uid_of(pod) for pod in pods.objects}
        moment = int(pods.resource_version)
        for uid in self._objects.keys() - present:
            if int(version_of(self._objects[uid])) <= moment:
                self._forget(uid)
        self._listed = moment

    def _state(self, name: str, each: Object) -> GpuNodeState:
        """Return what a GPUNode reports.

        Raises:
            InvalidInput: it cannot be read, and its claims are not known any more.

        """
        try:
            return read_gpu_node(each)
        except InvalidInput as error:
            self._leave_out("GPUNode", name, str(error))
            self.claims.on(name).lost()
            raise

    def _note_made_anew(self, name: str, each: Object) -> None:
        """Note that the former GPUNode was deleted, where no watch has shown it."""
        if name in self._gpu_nodes and uid_of(self._gpu_nodes[name]) != uid_of(each):
            self.claims.on(name).deleted()

    def _note_state(self, name: str, each: Object, state: GpuNodeState) -> None:
        self._gpu_nodes[name] = each
        if state.reported or BY_LABELS not in annotations_of(each):
            self._states[name] = state
        else:
            self._states.pop(name, None)

    def _renew(self, name: str) -> None:
        """Bring the ledger's node up to date with its two objects, where something changed that it looks at."""
        each, state = self._nodes.get(name), self._states.get(name)
        if each is None:
            self._drop_node(name)
            return
        if state is None and has_agent(each):
            state = GpuNodeState(name=NodeName(name))  # labels do not show what the agent has offered to the kubelet
        field = object_field("Node", each)
        try:
            node, _ = read_node(field, state)
            unit_mib = share_unit_mib(field, state)
        except InvalidInput as error:
            self._leave_out("Node", name, in_words(error, field))
            self._drop_node(name)
            return
        node = msgspec.structs.replace(node, labels=(), taints=(), unschedulable=False, units=None)
        put = schedulable_node(node, state)
        if self._put.get(name) != put:
            self._put[name] = put
            self.ledger.put_node(put[0], reserved=put[1])
        self._judge(name)
        self._count_in(name, unit_mib)

    def _drop_node(self, name: str) -> None:
        if self._put.pop(name, None) is not None:
            self.ledger.drop_node(name)
        self._keys.pop(name, None)
        self._count_in(name, None)

    def _count_in(self, name: str, unit_mib: int | None) -> None:
        """Take a node's unit; read the pods anew where the smallest is another than was believed."""
        before = self._units.pop(name, None)
        if before is not None:
            self._nodes_of_unit[before] -= 1
        if unit_mib is not None:
            self._units[name] = unit_mib
            self._nodes_of_unit[unit_mib] += 1
        if before == unit_mib:
            return
        unit_mib = min((+self._nodes_of_unit).keys(), default=1024)
        if unit_mib != self.share_unit_mib:
            self.share_unit_mib = unit_mib
            for uid, each in list(self._objects.items()):
                self._keep(uid, each, self._held(each))

    def prepare(self) -> None:
        """Do what the first question would wait for: scores of a large fleet are compiled, which takes seconds."""
        self.ledger.scores(_ANY, tuple(self._nodes))

    # Pods

    def pod(self, key: str) -> tuple[Object, LivePod] | None:
        """Return the pod of this namespace and name, as it was seen last."""
        uid = self._uids.get(key)
        return None if uid is None else (self._objects[uid], self._pods[uid])

    def live_pod(self, uid: HolderId) -> LivePod | None:
        """Return the pod of this UID; None where none was seen, as for claims and nominations in the ledger."""
        return self._pods.get(uid) if isinstance(uid, str) else None

    def read(self, pod: Object) -> LivePod:
        """Return what the caller's Pod object says; an object already read is not read twice."""
        uid = uid_of(pod)
        known = self._objects.get(uid)
        if known is not None and version_of(known) == version_of(pod) and version_of(pod):
            return self._pods[uid]
        return self._live(pod)

    def take_pod(self, each: Object, *, gone: bool = False) -> None:
        """Take a Pod object as it is now, unless a later version is known, or that it is gone."""
        uid = uid_of(each)
        if gone:
            self._forget(uid)
            return
        if uid in self._gone:
            return  # an answer that was overtaken by the watch: no later event would report its end
        known = self._objects.get(uid)
        if known is None and 0 < int(version_of(each) or 0) <= self._listed:
            return  # one that was overtaken by a list of all pods, which did not have it any more
        if known is not None and int(version_of(known)) >= int(version_of(each)):
            self._take_former(uid, each)
        elif known is not None and _same_request(known, each):
            self._keep(uid, each, self._pods[uid])
        else:
            self._keep(uid, each, self._held(each))

    def _take_former(self, uid: str, each: Object) -> None:
        """Take a version of a pod that a look-up overtook: it may be the only one that has what was granted."""
        live = self._pods[uid]
        if live.node and live.claiming and not live.shares and self._held(each).shares:
            self._keep(uid, self._objects[uid], self._held(self._objects[uid]))

    def _keep(self, uid: str, each: Object, live: LivePod) -> None:
        before = self._pods.get(uid)
        self._objects[uid], self._pods[uid], self._uids[live.key] = each, live, uid
        if live.wrong and live.gpus:
            self._leave_out("Pod", live.key, live.wrong)
        if live.unread:
            self._leave_out("assignment of Pod", live.key, live.unread)
        if live.finished:
            self._assumed.pop(uid, None)
            self.ledger.drop_pod(uid)
            self._exchanges.ended(before or live)
        elif live.node:
            self._assumed.pop(uid, None)
            held = Holder(uid, live.key, NodeName(live.node), live.need, live.shares, live.priority)
            self.ledger.put_pod(msgspec.structs.replace(held, doubted=True) if live.doubted else held)
            if before is not None and before.node == live.node:
                self._exchanges.moved(before, live)
        self.claims.drop_settled(uid)

    def drop_expired(self) -> None:
        """Drop what was kept for exchanges of assignments of which nothing was heard for long."""
        self._exchanges.drop_expired()

    def _forget(self, uid: str) -> None:
        live = self._pods.pop(uid, None)
        self._objects.pop(uid, None)
        self._retention.forget(uid)
        if live is not None:
            self._exchanges.ended(live)
        if live is not None and self._uids.get(live.key) == uid:
            del self._uids[live.key]
        self._assumed.pop(uid, None)
        self.ledger.drop_pod(uid)
        self.mark_gone(uid)

    def mark_gone(self, uid: str) -> None:
        """Record that no pod has this UID any more."""
        _remember(self._gone, uid)
        self.claims.drop_settled(uid)

    def assume(self, live: LivePod, node: str, shares: tuple[Share, ...]) -> None:
        """Count a pod that this server has bound as it will be seen, until it is."""
        now = self._pods.get(live.uid)
        if live.uid not in self._gone and not (now and (now.node or now.finished)):
            held = Holder(live.uid, live.key, NodeName(node), live.need, shares, live.priority)
            self._assumed[live.uid] = held
            self.ledger.put_pod(held)
        self.claims.drop_settled(live.uid)

    def fate(self, uid: str) -> Fate:
        """Return what became of a pod, as far as was seen."""
        live = self._pods.get(uid)
        if uid in self._gone or (live is not None and live.finished):
            return Fate.GONE
        return Fate.BOUND if uid in self._assumed or (live is not None and live.node) else Fate.OPEN

    def _leave_out(self, kind: str, name: str, why: str) -> None:
        if (kind, name, why) not in self._told:
            _remember(self._told, (kind, name, why))
            self._log.warning("left_out", kind=kind, object=name, reason=why)


def _shown(node: Object) -> tuple[object, ...]:
    """Return the parts of a Node object that decide what is read from it."""
    status, metadata = node.get("status") or {}, node.get("metadata") or {}
    return (
        metadata.get("labels"),
        has_agent(node),
        status.get("allocatable"),
        status.get("capacity"),
        metadata.get("uid"),
    )


def _images(node: Object) -> object:
    return (node.get("status") or {}).get("images")


def _same_request(before: Object, after: Object) -> bool:
    """Return whether two versions of a pod say the same; a status that says nothing of its end makes no difference."""
    return (
        before.get("spec") == after.get("spec")
        and annotations_of(before) == annotations_of(after)
        and (before.get("status") or {}).get("phase") == (after.get("status") or {}).get("phase")
    )


def _remember(known: dict[Key, None], key: Key) -> None:
    known.pop(key, None)
    known[key] = None
    if len(known) > _REMEMBERED:
        del known[next(iter(known))]
