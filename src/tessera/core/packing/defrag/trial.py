"""A copy of the cluster for trying moves: what would fit where if these pods were recreated elsewhere."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import msgspec

from tessera.core.cluster.cluster import Cluster, ObservedPod
from tessera.core.cluster.snapshot import NodeName, Share
from tessera.core.gpu.sharing import GPU_RESOURCE, Mode
from tessera.core.packing.defrag.records import NodeShares
from tessera.core.packing.fit.admission import admits, unadvertised
from tessera.core.packing.ledger import Hold, Holder, Ledger, Purpose, holder_id, schedulable_node
from tessera.core.workload.need import Isolation, Need, PodKey

__all__ = ["Room", "TrialOutcome", "free_need"]


class TrialOutcome(NamedTuple):
    """Where replacements and askers would fit."""

    replacements: tuple[NodeShares, ...]
    """In the order of the moved pods."""
    askers: tuple[NodeShares, ...]


def free_need(need: Need) -> Need:
    """Return the need of a replacement pod: not bound to a node."""
    return msgspec.structs.replace(need, node_name="")


class Room:
    """The server's ledger, changed during a trial and restored afterwards."""

    def __init__(self, cluster: Cluster) -> None:
        self.nodes = {each.node.name: each for each in cluster.nodes}
        self.ledger = Ledger.of(cluster, priorities=False)
        self._trials = itertools.count()
        self._admitting: dict[Need, tuple[NodeName, ...]] = {}
        self._alone: dict[str, Ledger] = {}

    def admitting(self, need: Need) -> tuple[NodeName, ...]:
        """Return the nodes on which the scheduler would place a pod, ignoring what is free."""
        known = self._admitting.get(need)
        if known is None:
            nodes = (each.node for each in self.nodes.values() if not each.problem)
            able = [node.name for node in nodes if admits(need, node) and not unadvertised(need, node)]
            unsuited = self.ledger.unsuited(need, able)
            known = self._admitting[need] = tuple(name for name in able if name not in unsuited)
        return known

    def place(self, need: Need) -> NodeShares | None:
        """Return where the scheduler would place a pod now; None where it fits nowhere."""
        names = self.admitting(need)
        scores = self.ledger.scores(need, names)
        ranked = sorted((i for i, score in enumerate(scores) if score), key=lambda i: -scores[i])
        name = next((names[i] for i in ranked if self.ledger.has_cpu_and_memory(need, names[i])), None)
        if name is None:
            return None
        shares = self.ledger.choose(need, name)
        assert not isinstance(shares, str)
        return NodeShares(node=name, shares=shares)

    def outcome(self, moved: Sequence[ObservedPod], askers: Sequence[Need]) -> TrialOutcome | None:
        """Return where everything would fit if these pods were recreated; None where something would not.

        Replacements are placed one after another while the moved pods still have their places, and none of them
        on a GPU that one of these leaves: what is freed is for the askers. These come last, in their order.
        """
        with ExitStack() as undo:
            reopen = undo.callback(self._close(moved))
            replacements = self._place_all((free_need(pod.pod.need) for pod in moved), undo)
            if replacements is None:
                return None
            undo.callback(self.ledger.set_aside(map(holder_id, moved)))
            reopen()
            places = self._place_all(askers, undo)
            return None if places is None else TrialOutcome(replacements, places)

    def helps(self, moved: Iterable[ObservedPod], need: Need, node: str) -> bool:
        """Return whether a pod would fit on a node if these were gone from there, wherever they went."""
        trial = self.of_one_node(node)
        restore = trial.set_aside(holder_id(pod) for pod in moved if pod.node == node)
        found = trial.has_cpu_and_memory(need, node) and trial.fits(need, node)
        restore()
        return found

    def of_one_node(self, node: str) -> Ledger:
        """Return a ledger of one node, to try on."""
        if node not in self._alone:
            self._alone[node] = self.ledger.of_one_node(node)
        return self._alone[node]

    def _place_all(self, needs: Iterable[Need], undo: ExitStack) -> tuple[NodeShares, ...] | None:
        """Place pods one after another until `undo` is closed; None where one fits nowhere."""
        places: list[NodeShares] = []
        for need in needs:
            place = self.place(need)
            if place is None:
                return None
            trial = Hold(Purpose.TRIAL, str(next(self._trials)))
            self.ledger.put_pod(Holder(trial, PodKey(trial.uid), place.node, need, place.shares))
            undo.callback(self.ledger.drop_pod, trial)
            places.append(place)
        return tuple(places)

    def _close(self, moved: Sequence[ObservedPod]) -> Callable[[], None]:
        """Keep new pods off the GPUs of these pods until the returned function is called."""
        gpus: dict[NodeName, set[int]] = {}
        for pod in moved:
            assert pod.node is not None
            gpus.setdefault(pod.node, set()).update(share.gpu for share in pod.shares)
        known = {name: schedulable_node(self.nodes[name].node, self.nodes[name].state) for name in gpus}
        for name, (node, reserved) in known.items():
            self.ledger.put_node(node, reserved=(*reserved, *map(_whole, sorted(gpus[name]))))

        def reopen() -> None:
            for node, reserved in known.values():
                self.ledger.put_node(node, reserved=reserved)

        return reopen


def _whole(gpu: int) -> Share:
    return Share(
        gpu=gpu,
        mode=Mode.WHOLE,
        memory_mib=0,
        compute_percent=100,
        isolation=Isolation.HARDWARE,
        resource=GPU_RESOURCE,
    )
