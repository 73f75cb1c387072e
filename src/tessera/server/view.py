"""A server's view of the cluster: the observed Nodes, GPUNodes and Pods, kept in a ledger.

An invalid object never stops the server: it is left out and logged once.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import msgspec

from tessera.api.fields import in_words
from tessera.api.kubernetes.images import reported_images
from tessera.api.kubernetes.nodes import read_node, share_unit_mib
from tessera.api.tessera.node.nodereports import has_agent
from tessera.api.tessera.pods.clusterpods import LivePod, object_field
from tessera.api.tessera.v1alpha1.gpunodes import read_gpu_node
from tessera.clients.kube import Listing, Object, annotations_of, name_of, uid_of, version_of
from tessera.core.cluster.gpunodestate import Claim, GpuNodeState
from tessera.core.cluster.shareunit import common_unit_mib, mixed_units
from tessera.core.cluster.snapshot import Gpu, Node, NodeName, Share
from tessera.core.packing.ledger import Ledger, schedulable_node
from tessera.core.storage.images.imagelocality import ImageLocality
from tessera.core.workload.need import DeviceRequest, Form, Need
from tessera.core.workload.resources import GPU_MEMORY
from tessera.core.workload.tesseranames import GPUS_BY_LABELS
from tessera.errors import InvalidInput
from tessera.log import Logger
from tessera.server.knownkeys import KnownKeys
from tessera.server.pods.claimedshares import ClaimedShares
from tessera.server.pods.podcache import PodCache
from tessera.server.recent import Recent
from tessera.wakeup import WakeUp

__all__ = ["View"]

_WARMUP_NEED = Need(requests=(DeviceRequest(resource=GPU_MEMORY, form=Form.NEED, memory_mib=1024),))


class View:
    """The cluster as one server observes it. Nothing in it blocks; all times are of this server's monotonic clock.

    Args:
        ledger: an empty one; updated with what this view observes.
        clock_s: the monotonic clock.
        log: records objects that are skipped.

    """

    def __init__(self, ledger: Ledger, clock_s: Callable[[], float], log: Logger) -> None:
        self.ledger = ledger
        self._clock_s = clock_s
        self._log = log
        self._nodes: dict[str, Object] = {}
        self._gpu_nodes: dict[str, Object] = {}
        self._states: dict[str, GpuNodeState] = {}
        self._in_ledger: dict[str, tuple[Node, tuple[Share, ...]]] = {}
        self._units: dict[str, int] = {}
        self._nodes_of_unit: Counter[int] = Counter()
        self._skipped = Recent[tuple[str, str, str]]()
        self.keys = KnownKeys()
        """The keys whose signatures count."""
        self.pods = PodCache(ledger, self.keys, clock_s, self._skip)
        """The pods, counted in the ledger."""
        self.claims = ClaimedShares(ledger, self.pods)
        """The claims, counted in the ledger."""
        self.images = ImageLocality()
        """The images that nodes have."""
        self.claims_missing = WakeUp()
        """Set when a recreated GPUNode lacks claims of the deleted one."""

    # Keys

    def take_keys(self, config_map: Object | None, *, begun: int | None = None) -> None:
        """Take the current ConfigMap of the servers' public keys; its deletion revokes no key.

        Args:
            config_map: the ConfigMap.
            begun: `keys.version` when the read began, if it was read and not watched.

        """
        if config_map is not None and self.keys.take(config_map, begun):
            for name in list(self._in_ledger):
                self._update_keys(name)

    def reject_unknown_keys(self, asked: Iterable[tuple[str, str]]) -> None:
        """Treat keys of these nodes that are still unknown as invalid; the API server has just been queried."""
        for node in self.keys.reject_unknown(asked):
            self.pods.read_again(node)

    def _update_keys(self, name: str) -> None:
        """Recompute the keys that count on a node, and parse its pods again if they changed."""
        if self.keys.update(name, self._states.get(name), self.gpus(name)):
            self.pods.read_again(name)

    # Nodes

    @property
    def nodes(self) -> Mapping[str, Object]:
        """The Node objects by name."""
        return self._nodes

    def objects(self, node: str = "") -> list[Object]:
        """Return the Nodes, GPUNodes, and pods that request GPUs; of one node or of all."""
        names = [node] if node else [*self._nodes]
        found = [kind[name] for name in names for kind in (self._nodes, self._gpu_nodes) if name in kind]
        return found + [
            each
            for each, live in self.pods.using_gpus()
            if not node or live.node == node or node in self.claims.nodes_of(live.uid)
        ]

    def gpus(self, node: str) -> tuple[Gpu, ...]:
        """Return the GPUs of a node."""
        return self._in_ledger[node][0].gpus if node in self._in_ledger else ()

    def take_node(self, node: Object, *, gone: bool = False) -> None:
        """Take the current Node object."""
        _, name = name_of(node)
        if gone:
            self._nodes.pop(name, None)
            self.images.drop(name)
        else:
            before, self._nodes[name] = self._nodes.get(name), node
            if before is None or _images(before) != _images(node):
                self.images.put(name, reported_images(node))
            if before is not None and _shown(before) == _shown(node):
                return  # a heartbeat
        self._renew(name)

    def take_gpu_node(self, gpu_node: Object, *, gone: bool = False, skipped: bool = False) -> None:
        """Take the current GPUNode object; `skipped` if versions in between may have been missed."""
        _, name = name_of(gpu_node)
        claims = self.claims.on(name)
        if gone:
            claims.deleted()
            self._gpu_nodes.pop(name, None)
            self._states.pop(name, None)
        elif int(version_of(gpu_node)) > claims.version:
            try:
                state = self._state(name, gpu_node)
            except InvalidInput:
                return
            self._note_recreated(name, gpu_node)
            claims.take(int(state.version), state.claims, self._clock_s(), skipped=skipped)
            self._note_state(name, gpu_node, state)
        self._renew(name)
        self.claims.hold(name)
        if claims.lacking(self.pods.fate):
            self.claims_missing.set()

    def has_claim(self, node: str, claim: Claim) -> bool:
        """Return whether the observed GPUNode has these shares claimed for the pod."""
        if node not in self._gpu_nodes:
            return False
        return any((each.uid, each.shares) == (claim.uid, claim.shares) for each in self.claims.on(node).present())

    def take_verified(self, node: str, gpu_node: Object, pods: Listing) -> None:
        """Take a GPUNode object that was read, and the pods of its node, listed after it.

        Raises:
            InvalidInput: the object cannot be parsed; the pods were taken.

        """
        for pod in pods.objects:
            self.take_pod(pod)
        for uid in self.pods.unlisted(pods, node):
            self._forget_pod(uid)
        state = self._state(node, gpu_node)
        claims = self.claims.on(node)
        if int(state.version) > claims.version:
            self._note_recreated(node, gpu_node)
            self._note_state(node, gpu_node, state)
        claims.read(int(state.version), state.claims, self._clock_s())
        self._renew(node)
        self.claims.hold(node)

    def _state(self, name: str, gpu_node: Object) -> GpuNodeState:
        """Return the parsed state of a GPUNode.

        Raises:
            InvalidInput: it cannot be parsed, and its claims are no longer known.

        """
        try:
            return read_gpu_node(gpu_node)
        except InvalidInput as error:
            self._skip("GPUNode", name, str(error))
            self.claims.on(name).lost()
            raise

    def _note_recreated(self, name: str, gpu_node: Object) -> None:
        """Note that the former GPUNode was deleted, if no watch has shown it."""
        if name in self._gpu_nodes and uid_of(self._gpu_nodes[name]) != uid_of(gpu_node):
            self.claims.on(name).deleted()

    def _note_state(self, name: str, gpu_node: Object, state: GpuNodeState) -> None:
        self._gpu_nodes[name] = gpu_node
        if state.reported or GPUS_BY_LABELS not in annotations_of(gpu_node):
            self._states[name] = state
        else:
            self._states.pop(name, None)

    def _renew(self, name: str) -> None:
        """Update the node in the ledger if a relevant part of its two objects changed."""
        each, state = self._nodes.get(name), self._states.get(name)
        if each is None:
            self._drop_node(name)
            return
        if state is None and has_agent(each):
            state = GpuNodeState(name=NodeName(name))  # labels do not show what the agent has advertised to the kubelet
        field = object_field("Node", each)
        try:
            node, _ = read_node(field, state)
            unit_mib = share_unit_mib(field, state)
        except InvalidInput as error:
            self._skip("Node", name, in_words(error, field))
            self._drop_node(name)
            return
        node = msgspec.structs.replace(node, labels=(), taints=(), unschedulable=False, units=None)
        put = schedulable_node(node, state)
        if self._in_ledger.get(name) != put:
            self._in_ledger[name] = put
            self.ledger.put_node(put[0], reserved=put[1])
        self._update_keys(name)
        self._count_in(name, unit_mib)

    def _drop_node(self, name: str) -> None:
        if self._in_ledger.pop(name, None) is not None:
            self.ledger.drop_node(name)
        self.keys.drop(name)
        self._count_in(name, None)

    def _count_in(self, name: str, unit_mib: int | None) -> None:
        """Take a node's unit of memory shares; parse the pods again if the unit of all changed."""
        known = {*(+self._nodes_of_unit)}
        before = self._units.pop(name, None)
        if before is not None:
            self._nodes_of_unit[before] -= 1
        if unit_mib is not None:
            self._units[name] = unit_mib
            self._nodes_of_unit[unit_mib] += 1
        present = {*(+self._nodes_of_unit)}
        if present == known:
            return
        if mixed := mixed_units(present):
            self._log.warning("share_units_differ", reason=mixed)
        self.pods.take_unit(common_unit_mib(present))

    def prepare(self) -> None:
        """Prepare for the first request: scores of a large fleet are compiled, which takes seconds."""
        self.ledger.scores(_WARMUP_NEED, tuple(self._nodes))

    # Pods

    def take_pod(self, pod: Object, *, gone: bool = False) -> None:
        """Take the current Pod object unless a later version is known, or note that it is gone."""
        if gone:
            self._forget_pod(uid_of(pod))
            return
        self.pods.take(pod)
        self.claims.drop_settled(uid_of(pod))

    def forget_unlisted(self, pods: Listing) -> None:
        """Forget the pods missing from a list of all pods; no event reports the end of one that was read singly."""
        for uid in self.pods.unlisted(pods):
            self._forget_pod(uid)
        self.pods.listed(pods)

    def _forget_pod(self, uid: str) -> None:
        self.pods.forget(uid)
        self.claims.drop_settled(uid)

    def mark_gone(self, uid: str) -> None:
        """Record that the pod with this UID is gone."""
        self.pods.mark_gone(uid)
        self.claims.drop_settled(uid)

    def assume(self, live: LivePod, node: str, shares: tuple[Share, ...]) -> None:
        """Count a pod that this server bound as bound, until the watch shows it."""
        self.pods.assume(live, node, shares)
        self.claims.drop_settled(live.uid)

    def _skip(self, kind: str, name: str, why: str) -> None:
        if (kind, name, why) not in self._skipped:
            self._skipped.add((kind, name, why))
            self._log.warning("object_skipped", kind=kind, object=name, reason=why)


def _shown(node: Object) -> tuple[object, ...]:
    """Return the parts of a Node object that affect how it is parsed."""
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
