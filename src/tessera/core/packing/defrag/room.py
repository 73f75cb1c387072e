"""A copy of the cluster on which moves are tried: what would fit where if these pods were made anew elsewhere."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from tessera.core.cluster.cluster import Cluster, SeenPod
from tessera.core.cluster.snapshot import Node, NodeName, Share
from tessera.core.gpu.sharing import GPU_RESOURCE, Mode
from tessera.core.packing.defrag.records import Place
from tessera.core.packing.fit.admission import refusal
from tessera.core.packing.ledger import Holder, Ledger, seen
from tessera.core.workload.need import Isolation, Need, PodKey

__all__ = ["Outcome", "Room", "free_need", "uid_of"]

_TRIED: Final = "\0tried "
"""Stands before the name of a pod that is tried; no uid begins so."""


class Outcome(NamedTuple):
    """Where replacements and askers would fit."""

    replacements: tuple[Place, ...]
    """In the order of the pods that move."""
    askers: tuple[Place, ...]


def uid_of(pod: SeenPod) -> str:
    """Return what tells a pod from others in the ledger."""
    return pod.uid or pod.pod.key


def free_need(need: Need) -> Need:
    """Return the need of the pod that a controller makes: bound to no node yet."""
    return msgspec.structs.replace(need, node_name="")


class Room:
    """The cluster as the server's ledger sees it, changed while something is tried and left as it was."""

    def __init__(self, cluster: Cluster) -> None:
        self.nodes = {each.node.name: each for each in cluster.nodes}
        self._put = {
            each.node.name: seen(each.node, each.state) if each.state else (each.node, ()) for each in cluster.nodes
        }
        self.ledger = Ledger()
        for node, reserved in self._put.values():
            self.ledger.put_node(node, reserved=reserved)
        for pod in cluster.pods:
            if pod.node is not None:
                self.ledger.put_pod(
                    _holder(uid_of(pod), pod.pod.key, pod.pod.need, Place(node=pod.node, shares=pod.shares))
                )
        self._admitting: dict[Need, tuple[NodeName, ...]] = {}
        self._alone: dict[str, Ledger] = {}

    def admitting(self, need: Need) -> tuple[NodeName, ...]:
        """Return the nodes that admit a pod, whatever they have left."""
        known = self._admitting.get(need)
        if known is None:
            able = (each for each in self.nodes.values() if each.ready and not each.problem)
            known = self._admitting[need] = tuple(each.node.name for each in able if refusal(need, each.node) is None)
        return known

    def place(self, need: Need) -> Place | None:
        """Return where the scheduler would place a pod now; None where it fits nowhere."""
        names = self.admitting(need)
        scores = self.ledger.scores(need, names)
        ranked = sorted((i for i, score in enumerate(scores) if score), key=lambda i: -scores[i])
        name = next((names[i] for i in ranked if self.roomy(self.ledger, need, names[i])), None)
        if name is None:
            return None
        shares = self.ledger.choose(need, name)
        assert not isinstance(shares, str)
        return Place(node=name, shares=shares)

    @staticmethod
    def roomy(ledger: Ledger, need: Need, node: str) -> bool:
        """Return whether a node has the cpu, the memory and the place for one more pod."""
        asked = need.cpu_milli, need.memory_mib, 1
        return all(left >= want for left, want in zip(ledger.left(node), asked, strict=True))

    def outcome(self, moved: Sequence[SeenPod], askers: Sequence[Need]) -> Outcome | None:
        """Return where everything would fit if these pods were made anew; None where something would not.

        Replacements are placed one after another while the pods that leave still hold their places, and none of them
        on a GPU that one of these leaves: what is freed is for the askers. These come last, in their order.
        """
        uids: list[str] = []
        closed = self._close(moved)
        try:
            replacements = self._place_all((free_need(pod.pod.need) for pod in moved), uids)
            if replacements is None:
                return None
            for pod in moved:
                self.ledger.drop_pod(uid_of(pod))
            self._reopen(closed)
            places = self._place_all(askers, uids)
            return None if places is None else Outcome(replacements, places)
        finally:
            for uid in uids:
                self.ledger.drop_pod(uid)
            for pod in moved:
                assert pod.node is not None
                self.ledger.put_pod(
                    _holder(uid_of(pod), pod.pod.key, pod.pod.need, Place(node=pod.node, shares=pod.shares))
                )
            self._reopen(closed)

    def helps(self, moved: Iterable[SeenPod], need: Need, node: str) -> bool:
        """Return whether a pod would fit on a node if these were gone from there, wherever they went."""
        trial = self.alone(node)
        uids = {uid_of(pod) for pod in moved}
        gone = [holder for holder in trial.pods_on(node) if holder.uid in uids]
        for holder in gone:
            trial.drop_pod(holder.uid)
        found = self.roomy(trial, need, node) and trial.fits(need, node)
        for holder in gone:
            trial.put_pod(holder)
        return found

    def alone(self, node: str) -> Ledger:
        """Return a ledger of one node, to try on."""
        if node not in self._alone:
            self._alone[node] = self.ledger.alone(node)
        return self._alone[node]

    def _place_all(self, needs: Iterable[Need], uids: list[str]) -> tuple[Place, ...] | None:
        """Place pods one after another, noting the uids they hold under; None where one fits nowhere."""
        places: list[Place] = []
        for need in needs:
            place = self.place(need)
            if place is None:
                return None
            uid = f"{_TRIED}{len(uids)}"
            self.ledger.put_pod(_holder(uid, PodKey(uid), need, place))
            uids.append(uid)
            places.append(place)
        return tuple(places)

    def _close(self, moved: Sequence[SeenPod]) -> tuple[NodeName, ...]:
        """Keep new pods off the GPUs of these pods; return the nodes this changed."""
        gpus: dict[NodeName, set[int]] = {}
        for pod in moved:
            assert pod.node is not None
            gpus.setdefault(pod.node, set()).update(share.gpu for share in pod.shares)
        for name, indices in gpus.items():
            node, reserved = self._put[name]
            self.ledger.put_node(node, reserved=(*reserved, *_whole(node, indices)))
        return tuple(gpus)

    def _reopen(self, names: Iterable[NodeName]) -> None:
        for name in names:
            node, reserved = self._put[name]
            self.ledger.put_node(node, reserved=reserved)


def _holder(uid: str, key: PodKey, need: Need, place: Place) -> Holder:
    return Holder(uid, key, place.node, need, place.shares)


def _whole(node: Node, indices: Iterable[int]) -> Iterable[Share]:
    sizes = {gpu.index: gpu.memory_mib for gpu in node.gpus}
    for index in sorted(indices):
        yield Share(
            gpu=index,
            mode=Mode.WHOLE,
            memory_mib=sizes.get(index, 0),
            compute_percent=100,
            isolation=Isolation.HARDWARE,
            resource=GPU_RESOURCE,
        )
