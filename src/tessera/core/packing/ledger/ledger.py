"""The ledger: nodes and pods of a live cluster, put and dropped one by one, and the answers for a new pod."""

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from itertools import chain, compress, repeat
from typing import Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from tessera.core.cluster.cluster import Cluster
from tessera.core.cluster.compatibility import faults
from tessera.core.cluster.gputypes import Ints
from tessera.core.cluster.snapshot import Node, NodeName, Share
from tessera.core.gpu.sharing import Mode
from tessera.core.packing.firstobstacle import mixed
from tessera.core.packing.fit import CLOSED, CPU, MEMORY, OPEN, PODS, UNHEALTHY, Fleet, mixtures, restricts
from tessera.core.packing.ledger.cached import NO_CODE, UNKNOWN_NODE, KnownObstacles, ReservedNode
from tessera.core.packing.ledger.gpuallocations import by_gpu, with_reservations
from tessera.core.packing.ledger.records import Filtered, ImpossibleShares, LedgerEntry, LedgerKey, Purpose, PurposeKey
from tessera.core.packing.ledger.schedulable import MOST, bounded_node, schedulable_node
from tessera.core.packing.obstacles import Obstacle, Obstacles, lasting
from tessera.core.packing.pack import UNFIT, Mix
from tessera.core.packing.pack.policies import make_policy
from tessera.core.packing.pack.scores import Scores
from tessera.core.workload.need import Need

__all__ = ["Ledger"]

_BEST: Final = 10
_LEARNED_DEVICES: Final = 64
"""Needs for more devices are not learned from: no node has them."""
_REMEMBERED: Final = 1 << 16
"""Arrivals remembered, the latest pods."""
_MOST_WRITTEN: Final = 1 << 13
"""Needs remembered as pods wrote them, with selectors and tolerations."""
_MOST_WHYS: Final = 256
"""Needs whose obstacles are cached."""
_NOTHING: Final[Mapping[str, int]] = {}


class Ledger:
    """The working state of a live cluster: the nodes' resources, the pods' allocations, and where the next pod goes.

    Objects are put as they are observed and dropped when they are gone, in any order; the answers depend on the objects
    alone, and on the mix of needs learned from arrivals. Cpu, memory and the number of pods are counted, because
    policies use them, but they are judged by kube-scheduler, as are selectors, taints and affinity.

    Allocations of pods are taken as true. An impossible one, such as more memory than there is, overlapping instances
    or a missing GPU, closes the GPU for new shares while it lasts, and is one of `impossible_shares`. Doubted
    assignments give way (see `LedgerEntry.doubted`).

    Args:
        policy: a name of `core.packing.pack.POLICIES`, except `random`.
        mix: needs and their frequencies as known beforehand; None to learn them from arrivals.

    """

    def __init__(self, policy: str = "tessera", *, mix: Mix | None = None) -> None:
        self._policy = policy
        self._nodes: dict[str, ReservedNode] = {}
        self._pods: dict[LedgerKey, LedgerEntry] = {}
        self._on: dict[str, dict[LedgerKey, LedgerEntry]] = {}
        self._shares: dict[str, dict[int, dict[LedgerKey, tuple[Share, ...]]]] = {}  # by node and GPU
        self._doubted: set[LedgerKey] = set()
        self._impossible: dict[tuple[str, int], ImpossibleShares] = {}
        self._arrived: dict[LedgerKey, None] = {}
        self._kinds: dict[Need, int] = {}
        self._whys: dict[int, KnownObstacles] = {}
        self._fleet = Fleet(())
        self._place: Ints = np.zeros(0, dtype=np.int64)  # by column: smaller for what was put sooner
        self._puts = 0
        self._changed = False  # whether nodes did since scores were looked at
        self._scores = Scores(self._fleet, make_policy(policy, self._fleet, None), mix=mix, devices_only=True)

    @classmethod
    def of(
        cls, cluster: Cluster, *, without: Container[str] = (), priorities: bool = True, by_name: bool = False
    ) -> Self:
        """Return a server's ledger of a live cluster.

        Args:
            cluster: the observation.
            without: UIDs of pods that are left out.
            priorities: False to give all pods the same one, to find the fewest victims of any priority.
            by_name: whether it is asked for pods by name alone, see `schedulable_node`.

        """
        ledger = cls()
        for each in cluster.nodes:
            node, reserved = schedulable_node(each.node, each.state, by_name=by_name)
            ledger.put_node(node, reserved=reserved)
        for pod in cluster.pods:
            entry = None if pod.node is None else LedgerEntry.of(pod, pod.node)
            if entry is not None and entry.id not in without:
                ledger.put_pod(entry if priorities else msgspec.structs.replace(entry, priority=0))
        return ledger

    @property
    def impossible_shares(self) -> tuple[ImpossibleShares, ...]:
        """Impossible shares recorded on known nodes, by node and GPU."""
        return tuple(sorted(self._impossible.values()))

    def put_node(self, node: Node, *, reserved: tuple[Share, ...] = ()) -> None:
        """Put a node as it is now, with its reservations (see `schedulable_node`); a new one comes last in ties.

        Cost: some 10 microseconds if its GPUs are unchanged, a fraction of a millisecond if they are not.
        If they are the first of their type or the last, all scores are recomputed when next needed.
        """
        node = bounded_node(node)
        known = self._nodes.get(node.name)
        if known == ReservedNode(node, reserved):
            return
        self._nodes[node.name] = ReservedNode(node, reserved)
        self._changed = True
        free = self._fleet.put(node)
        column = self._fleet.index[node.name]
        if known is None:
            self._add_node(node.name, column)
        if free:
            self._forget_impossible(node.name)
            for gpu in {*self._shares.get(node.name, {}), *(share.gpu for share in reserved)}:
                self._set_gpu(node.name, column, gpu)
        elif known is not None and known.shares != reserved:
            for gpu in {share.gpu for share in (*known.shares, *reserved)}:
                self._set_gpu(node.name, column, gpu)
        self._mark_changed(column)

    def drop_node(self, name: str) -> None:
        """Forget a node; its pods are kept until they are dropped."""
        if self._nodes.pop(name, None) is None:
            return
        self._changed = True
        self._forget_impossible(name)
        column = self._fleet.remove(name)
        for pod in self.pods_on(name):
            self._note(pod.need, column, -1)
        self._mark_changed(column)

    def put_pod(self, pod: LedgerEntry) -> None:
        """Put a pod on a node as it is now, in place of the one with its id."""
        known = self._pods.get(pod.id)
        if known == pod:
            return
        if known is not None:
            self._remove(known)
        self._pods[pod.id] = pod
        if pod.doubted:
            self._doubted.add(pod.id)
        self._on.setdefault(pod.node, {})[pod.id] = pod
        added = by_gpu(pod.shares)
        for gpu, shares in added.items():
            self._shares.setdefault(pod.node, {}).setdefault(gpu, {})[pod.id] = tuple(shares)
        self._count(pod, 1, added)

    def drop_pod(self, holder: LedgerKey) -> None:
        """Forget a pod; its shares are free."""
        if holder in self._arrived:
            del self._arrived[holder]
            self._scores.leave()
        if (known := self._pods.get(holder)) is not None:
            self._remove(known)

    def set_aside(self, holders: Iterable[LedgerKey]) -> Callable[[], None]:
        """Set these known holders aside until the returned function is called."""
        aside = [self._pods[each] for each in holders]
        for pod in aside:
            self._remove(pod)

        def restore() -> None:
            for pod in aside:
                self.put_pod(pod)

        return restore

    def arrive(self, uid: str, need: Need) -> None:
        """Count the arrival of a pod for the learned mix, once a uid."""
        if uid in self._arrived or sum(request.count for request in need.requests) > _LEARNED_DEVICES:
            return
        self._refresh()
        if len(self._arrived) >= _REMEMBERED:
            del self._arrived[next(iter(self._arrived))]
        self._arrived[uid] = None
        self._scores.arrive(self._kind(need))

    def filter(self, need: Need, names: Iterable[str]) -> Filtered:
        """Return which of the named nodes have devices for a pod, and why the others do not.

        Cost for a known need: the nodes that changed since then, and a microsecond a name.
        """
        requested = tuple(names)
        fits, codes, obstacles = self._judged(need, requested)
        texts = {code: each.text for code, each in obstacles.items()}
        answers = list(zip(compress(requested, (~fits).tolist()), map(texts.__getitem__, codes.tolist()), strict=True))
        never = lasting(codes)
        return Filtered(
            tuple(compress(requested, fits.tolist())),
            dict(compress(answers, (~never).tolist())),
            dict(compress(answers, never.tolist())),
        )

    def obstacles(self, need: Need, names: Iterable[str]) -> dict[str, Obstacle]:
        """Return the obstacle on each of the named nodes that does not have devices for a pod."""
        requested = tuple(names)
        fits, codes, obstacles = self._judged(need, requested)
        unfit = compress(requested, (~fits).tolist())
        return {name: obstacles[code] for name, code in zip(unfit, codes.tolist(), strict=True)}

    def unsuited(self, need: Need, names: Sequence[str]) -> dict[str, Obstacle]:
        """Return the obstacle on each of the named nodes where a device by name may not be what the pod requires.

        Empty for pods that require nothing but the name. How many devices are free is kube-scheduler's to count.
        """
        if not any(restricts(request, need.models) for request in need.requests):
            return {}
        found = self.obstacles(need, names).items()
        lasting_ones = {name: each for name, each in found if each.cause.lasting or each is UNKNOWN_NODE}
        columns = self._columns(names)
        others = mixtures(need, self._fleet, columns)
        return {
            name: lasting_ones.get(name) or mixed(others[column], need.models)
            for name, column in zip(names, columns.tolist(), strict=True)
            if name in lasting_ones or column in others
        }

    def scores(self, need: Need, names: Sequence[str], image_bytes: Mapping[str, int] = _NOTHING) -> tuple[int, ...]:
        """Return 10 for the node that the packer would choose of these, and 0 to 9 for the others by their scores.

        Nodes of one score have one number, except that of the best only one has 10, see `best`. Where the pod does not
        fit there is 0.
        """
        found, best = self._best(need, names, image_bytes)
        if best is None:
            return (0,) * len(names)
        values, place = np.unique(found[found != UNFIT], return_inverse=True)
        answer = np.zeros(len(found), dtype=np.int64)
        answer[found != UNFIT] = 9 * (place + 1) // len(values) if len(values) > 1 else 9
        answer[best] = _BEST
        return tuple(answer.tolist())

    def best(self, need: Need, names: Sequence[str], image_bytes: Mapping[str, int] = _NOTHING) -> str | None:
        """Return the node that the packer would choose of these, to which `scores` gives 10; None if it fits nowhere.

        Cost: that of `filter`, without the reasons.

        Args:
            need: of the pod.
            names: of nodes.
            image_bytes: bytes of the pod's images by node; of nodes with the best score the one with the
                most is chosen, of equals the one that was put first.

        """
        _, best = self._best(need, names, image_bytes)
        return None if best is None else names[best]

    def choose(self, need: Need, node: str) -> tuple[Share, ...] | str:
        """Return a pod's shares on a node, one for each device in the order of its requests, or the obstacle."""
        self._refresh()
        column = self._fleet.index.get(node)
        if column is None:
            return UNKNOWN_NODE.text
        kind = self._kind(need)
        shares = self._scores.shares(kind, column) if self._scores.row(kind)[column] != UNFIT else None
        if shares is None:
            return self._why(kind, np.array([column])).obstacles.of_code(int(self._whys[kind].codes[column])).text
        return shares

    def can_hold(self, node: str, shares: Iterable[Share], *, models: Collection[str] = ()) -> bool:
        """Return whether these very shares fit on a node beside everything in use and reserved there.

        Args:
            node: its name.
            shares: on GPUs by index.
            models: the GPU models that may serve; empty for any. An index may be other hardware by now.

        """
        column = self._fleet.index.get(node)
        if column is None:
            return False
        for gpu, own in by_gpu(shares).items():
            row = self._fleet.row_of(column, gpu)
            reserved = [share for share in self._nodes[node].shares if share.gpu == gpu]
            if row is None or any(each.mode is Mode.WHOLE for each in reserved):
                return False
            gpu_type = self._fleet.types[self._fleet.kind[row, column]]
            if models and gpu_type.model.name not in models:
                return False
            holders = self._shares.get(node, {}).get(gpu, {})
            verified = {each: mine for each, mine in holders.items() if each not in self._doubted}
            beside = with_reservations(gpu_type, verified, reserved, {})
            if any(faults(gpu_type, {**beside, PurposeKey(Purpose.TRIAL, ""): tuple(own)})):
                return False
        return True

    def knows(self, node: str) -> bool:
        """Return whether a node was put."""
        return node in self._nodes

    def fits(self, need: Need, node: str) -> bool:
        """Return whether a node has devices for a pod."""
        self._refresh()
        column = self._fleet.index.get(node)
        return column is not None and bool(self._scores.row(self._kind(need))[column] != UNFIT)

    def free_resources(self, node: str) -> tuple[int, int, int]:
        """Return the free resources of a known node: cpu (milli), memory (MiB), pods; negative if overcommitted."""
        cpu_milli, memory_mib, pods = self._fleet.room[:, self._fleet.index[node]].tolist()
        return cpu_milli, memory_mib, pods

    def has_cpu_and_memory(self, need: Need, node: str) -> bool:
        """Return whether a known node has the cpu, the memory and the slot for one more pod."""
        return all(map(int.__ge__, self.free_resources(node), (need.cpu_milli, need.memory_mib, 1)))

    def pods_on(self, node: str) -> tuple[LedgerEntry, ...]:
        """Return the pods on a node."""
        return tuple(self._on.get(node, {}).values())

    def of_one_node(self, node: str) -> "Ledger":
        """Return a ledger of one known node and its pods alone, for trials."""
        trial, known = Ledger("first-fit"), self._nodes[node]
        trial.put_node(known.node, reserved=known.shares)
        for pod in self.pods_on(node):
            trial.put_pod(pod)
        return trial

    def _best(self, need: Need, names: Sequence[str], image_bytes: Mapping[str, int]) -> tuple[Ints, int | None]:
        """Return the scores of nodes, and the index of the best; None if none fits."""
        self._refresh()
        columns = self._columns(names)
        row = self._scores.row(self._kind(need))
        found = np.where(columns >= 0, row.take(columns), UNFIT) if len(row) else np.full(len(columns), UNFIT)
        best = found.max(initial=UNFIT)
        if best == UNFIT:
            return found, None
        ties = (found == best).nonzero()[0]
        if image_bytes and len(ties) > 1:
            most = np.array([image_bytes.get(names[tie], 0) for tie in ties.tolist()])
            ties = ties[most == most.max()]
        return found, int(ties[self._place.take(columns.take(ties)).argmin()])

    def _refresh(self) -> None:
        """Recompute all scores if nodes came, went or changed so that all did."""
        if self._changed:
            self._changed = False
            if self._scores.outdated:
                self._scores.renew(make_policy(self._policy, self._fleet, None))
                self._whys.clear()
                for name, column in self._fleet.index.items():
                    for pod in self.pods_on(name):
                        self._scores.policy.changed(pod.need, column, 1)

    def _add_node(self, name: str, column: int) -> None:
        """Record a new node."""
        if column >= len(self._place):
            self._place = np.concatenate((self._place, np.zeros(len(self._fleet.nodes) - column, dtype=np.int64)))
        self._place[column] = self._puts
        self._puts += 1
        for pod in self.pods_on(name):
            self._count_room(column, pod, 1)
            self._note(pod.need, column, 1)

    def _note(self, need: Need, column: int, pods: int) -> None:
        """Report pods to the policy, unless it is to be rebuilt."""
        if self._fleet.shape == self._scores.shape:
            self._scores.note(need, column, pods)

    def _mark_changed(self, column: int) -> None:
        """Record a change, unless all scores are to be recomputed."""
        if self._fleet.shape == self._scores.shape:
            self._scores.touch(column)

    def _forget_impossible(self, name: str) -> None:
        for key in [key for key in self._impossible if key[0] == name]:
            del self._impossible[key]

    def _remove(self, pod: LedgerEntry) -> None:
        """Remove a pod from all records."""
        del self._pods[pod.id]
        self._doubted.discard(pod.id)
        del self._on[pod.node][pod.id]
        if not self._on[pod.node]:
            del self._on[pod.node]
        gone = by_gpu(pod.shares)
        for gpu in gone:
            shares = self._shares[pod.node][gpu]
            del shares[pod.id]
            if not shares:
                del self._shares[pod.node][gpu]
        if gone and not self._shares[pod.node]:
            del self._shares[pod.node]
        self._count(pod, -1, gone)

    def _count(self, pod: LedgerEntry, sign: int, shares: Mapping[int, Sequence[Share]]) -> None:
        """Update the node of a pod, whose records have changed already."""
        if (column := self._fleet.index.get(pod.node)) is None:
            return
        self._count_room(column, pod, sign)
        reserved = {share.gpu for share in self._nodes[pod.node].shares}
        for gpu, own in shares.items():
            if pod.doubted or gpu in reserved or not self._step(pod.node, column, gpu, own, sign):
                self._set_gpu(pod.node, column, gpu)
        self._note(pod.need, column, sign)

    def _step(self, name: str, column: int, gpu: int, shares: Sequence[Share], sign: int) -> bool:
        """Take or give the shares of one pod if nothing else is needed; return whether it was enough."""
        row = self._fleet.row_of(column, gpu)
        if row is None or (name, gpu) in self._impossible:
            return False
        if self._doubted and not self._doubted.isdisjoint(self._shares.get(name, {}).get(gpu, {})):
            return False
        if sign > 0 and any(faults(self._fleet.types[self._fleet.kind[row, column]], self._shares[name][gpu])):
            return False
        for share in shares:
            (self._fleet.hold if sign > 0 else self._fleet.drop)(column, share)
        return True

    def _set_gpu(self, name: str, column: int, gpu: int) -> None:
        """Set one GPU to its holders and reservations, or close it where they are impossible together."""
        self._impossible.pop((name, gpu), None)
        holders = self._shares.get(name, {}).get(gpu, {})
        verified = {each: shares for each, shares in holders.items() if each not in self._doubted}
        row = self._fleet.row_of(column, gpu)
        if row is None:
            if verified:
                self._note_impossible(name, gpu, tuple(verified), f"node {name} has no GPU {gpu}")
            return
        gpu_type = self._fleet.types[self._fleet.kind[row, column]]
        found = next(faults(gpu_type, verified), None)
        if found is not None:
            self._note_impossible(name, gpu, found.holders, found.text)
        reserved = [share for share in self._nodes[name].shares if share.gpu == gpu]
        if found is not None or any(share.mode is Mode.WHOLE for share in reserved):
            unhealthy = gpu in self._nodes[name].node.unhealthy
            self._fleet.close(column, row, UNHEALTHY if unhealthy else CLOSED if found else OPEN)
            return
        self._fleet.clear(column, row)
        doubted = {each: holders[each] for each in sorted(holders.keys() - verified.keys(), key=str)}
        for share in chain.from_iterable(with_reservations(gpu_type, verified, reserved, doubted).values()):
            self._fleet.hold(column, share)

    def _note_impossible(self, name: str, gpu: int, holders: Iterable[LedgerKey], text: str) -> None:
        pods = tuple(sorted({self._pods[each].key for each in holders}))
        self._impossible[name, gpu] = ImpossibleShares(node=NodeName(name), gpu=gpu, pods=pods, problem=text)

    def _count_room(self, column: int, pod: LedgerEntry, sign: int) -> None:
        self._fleet.room[CPU, column] -= sign * min(max(pod.need.cpu_milli, 0), MOST)
        self._fleet.room[MEMORY, column] -= sign * min(max(pod.need.memory_mib, 0), MOST)
        self._fleet.room[PODS, column] -= sign

    def _columns(self, names: Sequence[str]) -> Ints:
        """Return the column of each name in the fleet, -1 for an unknown one."""
        return np.fromiter(map(self._fleet.index.get, names, repeat(-1)), np.int64, len(names))

    def _kind(self, need: Need) -> int:
        """Return the number of a need without the parts that kube-scheduler decides."""
        kind = self._kinds.get(need)
        if kind is None:
            if self._scores.crowded or len(self._kinds) >= _MOST_WRITTEN:
                self._kinds.clear()  # so that memory stays bounded however many unlike pods come
                self._whys.clear()
                if self._scores.crowded:
                    self._scores.thin()
            bare = Need(
                cpu_milli=min(need.cpu_milli, MOST),
                memory_mib=min(need.memory_mib, MOST),
                requests=need.requests,
                models=need.models,
            )
            kind = self._kinds[need] = self._scores.intern(bare)
        return kind

    def _judged(self, need: Need, names: Sequence[str]) -> tuple[NDArray[np.bool_], Ints, dict[int, Obstacle]]:
        """Return which nodes have devices for a need, the others' codes, and the obstacle of each code."""
        self._refresh()
        columns, kind = self._columns(names), self._kind(need)
        row = self._scores.row(kind)
        fits = (row.take(columns) != UNFIT) & (columns >= 0) if len(row) else columns >= 0
        if fits.all():
            return fits, columns[:0], {}
        unfit = columns[~fits]
        known = unfit >= 0
        why = self._why(kind, unfit[known])
        codes = np.full(len(unfit), NO_CODE)
        codes[known] = why.codes.take(unfit[known])
        found = {code: why.obstacles.of_code(code) for code in np.unique(codes[known]).tolist()}
        return fits, codes, found | {NO_CODE: UNKNOWN_NODE}

    def _why(self, kind: int, columns: Ints) -> KnownObstacles:
        """Return the obstacles of a need, up to date for `columns`, where it does not fit."""
        why = self._whys.get(kind)
        if why is None:
            if len(self._whys) >= _MOST_WHYS:
                del self._whys[next(iter(self._whys))]
            obstacles = Obstacles(self._fleet, self._scores.demand(kind))
            why = self._whys[kind] = KnownObstacles(obstacles, len(self._place))
        old = columns[why.fresh.take(columns) < self._scores.stamp.take(columns)]
        if len(old):
            why.codes[old] = why.obstacles.codes(old)
            why.fresh[old] = self._scores.changes
        return why
