"""A copy of the cluster for trying moves: what would fit where if these pods were recreated elsewhere."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import msgspec

from tessera.core.cluster.cluster import Cluster, ObservedNode, ObservedPod
from tessera.core.cluster.snapshot import NodeName, Share
from tessera.core.gpu.sharing import GPU_RESOURCE, Mode
from tessera.core.packing.advertised import AdvertisedDevices
from tessera.core.packing.defrag.records import PodPlace
from tessera.core.packing.fit.admission import admits, refusal, unadvertised
from tessera.core.packing.ledger import Ledger, LedgerEntry, Purpose, PurposeKey, ledger_key, schedulable_node
from tessera.core.workload.need import Isolation, Need, PodKey

__all__ = ["Room", "TrialOutcome", "free_need"]


class TrialOutcome(NamedTuple):
    """Where replacements and pods to place would fit."""

    replacements: tuple[PodPlace, ...]
    """In the order of the moved pods."""
    targets: tuple[PodPlace, ...]


def free_need(need: Need) -> Need:
    """Return the need of a replacement pod: not bound to a node."""
    return msgspec.structs.replace(need, node_name="")


class Room:
    """The server's ledger, changed during a trial and restored afterwards."""

    def __init__(self, cluster: Cluster) -> None:
        self.nodes = {each.node.name: each for each in cluster.nodes}
        self.advertised = AdvertisedDevices(cluster.nodes, cluster.pods)
        self.capacity = AdvertisedDevices(cluster.nodes)
        kept = any(each.state is not None and (each.state.desired or each.state.offered) for each in cluster.nodes)
        self._ledgers = {by_name: Ledger.of(cluster, priorities=False, by_name=by_name) for by_name in {False, kept}}
        self._trials = itertools.count()
        self._closed: frozenset[NodeName] = frozenset()
        self._admitting: dict[Need, tuple[NodeName, ...]] = {}
        self._alone: dict[tuple[str, bool], Ledger] = {}

    def ledger(self, need: Need) -> Ledger:
        """Return the ledger for such pods: for those by name alone, the kubelet's devices are not reserved."""
        return self._ledgers.get(need.by_name, self._ledgers[False])

    def admitting(self, need: Need) -> tuple[NodeName, ...]:
        """Return the nodes on which the scheduler would place a pod, ignoring what is free."""
        known = self._admitting.get(need)
        if known is None:
            able = [name for name, each in self.nodes.items() if self._admits(need, each)]
            unsuited = self.ledger(need).unsuited(need, able)
            known = self._admitting[need] = tuple(name for name in able if name not in unsuited)
        return known

    def _admits(self, need: Need, observed: ObservedNode) -> bool:
        node = observed.node
        if need.by_name and self.capacity.suffice(need, node.name):
            return refusal(need, node) is None
        if observed.problem or not admits(need, node) or unadvertised(need, node):
            return False
        return not need.by_name or self.capacity.missing(need, node.name) is None

    def place(self, need: Need) -> PodPlace | None:
        """Return where the scheduler would place a pod now; None where it fits nowhere.

        A pod by name is bound where enough devices are left, before others are created.
        """
        names, ledger = self.admitting(need), self.ledger(need)
        if need.by_name:
            left = self._with_enough_devices(need, names)
            if left:
                name = self._best(need, tuple(left)) or next(iter(left))
                return PodPlace(node=name, shares=left[name])
            names = tuple(name for name in names if self.advertised.missing(need, name) is None)
        best = self._best(need, names)
        if best is None:
            return None
        shares = ledger.choose(need, best)
        assert not isinstance(shares, str)
        return PodPlace(node=best, shares=shares)

    def _with_enough_devices(self, need: Need, names: Iterable[NodeName]) -> dict[NodeName, tuple[Share, ...]]:
        """Return the nodes that have enough devices left for a pod by name, each with what it would get there."""
        ledger = self.ledger(need)
        able = (name for name in names if self.advertised.suffice(need, name) and ledger.has_cpu_and_memory(need, name))
        found = {name: self.advertised.devices(ledger, need, name) for name in able}
        return {name: shares for name, shares in found.items() if shares or name not in self._closed}

    def _best(self, need: Need, names: Sequence[NodeName]) -> NodeName | None:
        ledger = self.ledger(need)
        scores = ledger.scores(need, names)
        ranked = sorted((i for i, score in enumerate(scores) if score), key=lambda i: -scores[i])
        return next((names[i] for i in ranked if ledger.has_cpu_and_memory(need, names[i])), None)

    def outcome(self, moved: Sequence[ObservedPod], targets: Sequence[Need]) -> TrialOutcome | None:
        """Return where everything would fit if these pods were recreated; None where something would not.

        Replacements are placed one after another while the moved pods still have their places, and none of them
        on a GPU that one of these leaves: what is freed is for the pods to place. These come last, in their order.
        """
        with ExitStack() as undo:
            reopen = undo.callback(self._close(moved))
            replacements = self._place_all((free_need(pod.pod.need) for pod in moved), undo)
            if replacements is None:
                return None
            self._set_aside(moved, undo)
            reopen()
            places = self._place_all(targets, undo)
            return None if places is None else TrialOutcome(replacements, places)

    def helps(self, moved: Iterable[ObservedPod], need: Need, node: str) -> bool:
        """Return whether a pod would fit on a node if these were gone from there, wherever they went."""
        trial = self.of_one_node(node, need)
        restore = trial.set_aside(ledger_key(pod) for pod in moved if pod.node == node)
        found = trial.has_cpu_and_memory(need, node) and trial.fits(need, node)
        restore()
        return found

    def of_one_node(self, node: str, need: Need) -> Ledger:
        """Return a ledger of one node for such pods, to try on."""
        if (node, need.by_name) not in self._alone:
            self._alone[node, need.by_name] = self.ledger(need).of_one_node(node)
        return self._alone[node, need.by_name]

    def _set_aside(self, moved: Sequence[ObservedPod], undo: ExitStack) -> None:
        for ledger in self._ledgers.values():
            undo.callback(ledger.set_aside(map(ledger_key, moved)))
        for pod in moved:
            assert pod.node is not None
            self.advertised.give(pod, pod.node)
            undo.callback(self.advertised.take, pod, pod.node)

    def _place_all(self, needs: Iterable[Need], undo: ExitStack) -> tuple[PodPlace, ...] | None:
        """Place pods one after another until `undo` is closed; None where one fits nowhere."""
        places: list[PodPlace] = []
        for need in needs:
            place = self.place(need)
            if place is None:
                return None
            trial = PurposeKey(Purpose.TRIAL, str(next(self._trials)))
            for ledger in self._ledgers.values():
                ledger.put_pod(LedgerEntry(trial, PodKey(trial.uid), place.node, need, place.shares))
                undo.callback(ledger.drop_pod, trial)
            self.advertised.take(need, place.node)
            undo.callback(self.advertised.give, need, place.node)
            places.append(place)
        return tuple(places)

    def _close(self, moved: Sequence[ObservedPod]) -> Callable[[], None]:
        """Keep new pods off the GPUs of these pods until the returned function is called."""
        gpus: dict[NodeName, set[int]] = {}
        for pod in moved:
            assert pod.node is not None
            gpus.setdefault(pod.node, set()).update(share.gpu for share in pod.shares)
        known = [
            (ledger, name, *schedulable_node(self.nodes[name].node, self.nodes[name].state, by_name=by_name))
            for by_name, ledger in self._ledgers.items()
            for name in gpus
        ]
        self._closed = frozenset(gpus)
        for ledger, name, node, reserved in known:
            ledger.put_node(node, reserved=(*reserved, *map(_whole, sorted(gpus[name]))))

        def reopen() -> None:
            self._closed = frozenset()
            for ledger, _, node, reserved in known:
                ledger.put_node(node, reserved=reserved)

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
