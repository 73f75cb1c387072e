"""The ledger: nodes and pods of a live cluster, put and dropped one by one, and what follows for a pod that comes."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Final

import msgspec
import numpy as np

from tessera.core.fit import CPU, MEMORY, PODS, Fleet
from tessera.core.fit.gputypes import Ints
from tessera.core.ledger.clashes import problem
from tessera.core.ledger.obstacles import Obstacles
from tessera.core.ledger.records import Clash, Filtered, Holder
from tessera.core.need import Need
from tessera.core.pack import UNFIT, Mix
from tessera.core.pack.policies import make_policy
from tessera.core.pack.scores import Scores
from tessera.core.sharing import Mode
from tessera.core.snapshot import Node, NodeName, Share

__all__ = ["Ledger"]

_BEST: Final = 10
_MOST: Final = 1 << 40
"""More cpu or memory than this is counted as this: no node has it."""
_LEARNED_DEVICES: Final = 64
"""Needs for more devices are not learned from: no node has them."""
_REMEMBERED: Final = 1 << 16
"""Pods whose arrival is remembered, the latest."""
_RESERVED: Final = "\0reserved "
"""Stands before the number of a reservation; no uid begins so."""
_UNKNOWN: Final = "the node is not known here yet"


class _Reserved(msgspec.Struct, frozen=True):
    """A node with what is reserved on it."""

    node: Node
    shares: tuple[Share, ...]


class _Why:
    """The obstacles of one need, by node, with the length of the log of changes when each was looked at."""

    def __init__(self, obstacles: Obstacles, nodes: int) -> None:
        self.obstacles = obstacles
        self.codes: Ints = np.zeros(nodes, dtype=np.int64)
        self.fresh: Ints = np.full(nodes, -1)


class Ledger:
    """The working state of a live cluster: what nodes have, what pods hold, and where the next pod goes.

    Objects are put as they are observed and dropped when they are gone, in any order; the answers depend on the objects
    alone, and on the mix of needs learned from arrivals. Cpu, memory and the number of pods are counted, because
    policies look at them, but they are judged by kube-scheduler, as are selectors, taints and affinity.

    What pods hold is taken as true. What cannot be: more memory than there is, overlapping instances, a GPU that is not
    there, is never granted again: the GPU is closed for new shares while it lasts, and `conflicts` tells.

    Args:
        policy: a name of `core.pack.POLICIES`, except `random`.
        mix: needs and their frequencies as known beforehand; None to learn them from arrivals.

    """

    def __init__(self, policy: str = "tessera", *, mix: Mix | None = None) -> None:
        self._policy = policy
        self._given = mix
        self._nodes: dict[str, _Reserved] = {}
        self._pods: dict[str, Holder] = {}
        self._on: dict[str, dict[str, Holder]] = {}
        self._held: dict[str, dict[int, dict[str, tuple[Share, ...]]]] = {}  # by node, GPU and uid
        self._clashes: dict[tuple[str, int], Clash] = {}
        self._closed: set[tuple[str, int]] = set()
        self._arrived: dict[str, None] = {}
        self._kinds: dict[Need, int] = {}
        self._whys: dict[int, _Why] = {}
        self._stale = False
        self._build()

    @property
    def conflicts(self) -> tuple[Clash, ...]:
        """What is recorded as held on known nodes and cannot be, by node and GPU."""
        self._refresh()
        return tuple(sorted(self._clashes.values()))

    def put_node(self, node: Node, *, reserved: tuple[Share, ...] = ()) -> None:
        """Take a node as it is now, with what is reserved on it (see `seen`); a new one comes last in ties."""
        self._nodes[node.name] = _Reserved(node, reserved)
        self._stale = True

    def drop_node(self, name: str) -> None:
        """Forget a node; pods on it are kept until they are dropped."""
        self._stale |= self._nodes.pop(name, None) is not None

    def put_pod(self, pod: Holder) -> None:
        """Take a pod on a node as it is now, in place of what was known under its uid."""
        known = self._pods.get(pod.uid)
        if known == pod:
            return
        if known is not None:
            self._remove(known)
        self._pods[pod.uid] = pod
        self._on.setdefault(pod.node, {})[pod.uid] = pod
        gpus = self._held.setdefault(pod.node, {})
        added: dict[int, list[Share]] = {}
        for share in pod.shares:
            added.setdefault(share.gpu, []).append(share)
        for gpu, shares in added.items():
            gpus.setdefault(gpu, {})[pod.uid] = tuple(shares)
        self._count(pod, 1, added)

    def drop_pod(self, uid: str) -> None:
        """Forget a pod; what it held is free."""
        if uid in self._arrived:
            del self._arrived[uid]
            self._scores.leave()
        known = self._pods.get(uid)
        if known is not None:
            self._remove(known)

    def arrive(self, uid: str, need: Need) -> None:
        """Count the arrival of a pod for the mix that is learned, once a uid."""
        if uid in self._arrived or sum(ask.count for ask in need.asks) > _LEARNED_DEVICES:
            return
        self._refresh()
        if len(self._arrived) >= _REMEMBERED:
            del self._arrived[next(iter(self._arrived))]
        self._arrived[uid] = None
        self._scores.arrive(self._kind(need))

    def filter(self, need: Need, names: Iterable[str]) -> Filtered:
        """Return which of the named nodes have devices for a pod, and why the others have not.

        Cost for a need asked for before: the nodes that changed since then, and a microsecond a name.
        """
        self._refresh()
        asked = tuple(names)
        slots = self._slots(asked)
        kind = self._kind(need)
        row = self._scores.row(kind)
        fits = (row.take(slots) != UNFIT) & (slots >= 0) if len(row) else slots >= 0
        fitting = tuple(compress(asked, fits.tolist()))
        if len(fitting) == len(asked):
            return Filtered(fitting, {}, {})
        failed: dict[str, str] = {}
        hopeless: dict[str, str] = {}
        others = slots[~fits]
        known = others >= 0
        why = self._why(kind, others[known])
        codes = np.full(len(others), -1, dtype=np.int64)
        codes[known] = why.codes.take(others[known])
        told = {code: why.obstacles.tell(code) for code in np.unique(codes).tolist() if code >= 0}
        for name, code in zip(compress(asked, (~fits).tolist()), codes.tolist(), strict=True):
            if code < 0:
                failed[name] = _UNKNOWN
            else:
                text, never = told[code]
                (hopeless if never else failed)[name] = text
        return Filtered(fitting, failed, hopeless)

    def scores(self, need: Need, names: Sequence[str]) -> tuple[int, ...]:
        """Return 10 for the node that the packer would choose of these, and 0 to 9 for the others by their scores.

        Nodes of one score have one number, except that of the best only the one that was put first has 10. Where the
        pod does not fit there is 0.
        """
        self._refresh()
        slots = self._slots(names)
        row = self._scores.row(self._kind(need))
        if not len(row) or not len(slots):
            return (0,) * len(slots)
        found = np.where(slots >= 0, row.take(slots), UNFIT)
        best = int(found.max())
        if best == UNFIT:
            return (0,) * len(slots)
        values, place = np.unique(found[found != UNFIT], return_inverse=True)
        answer = np.zeros(len(slots), dtype=np.int64)
        answer[found != UNFIT] = 9 * (place + 1) // len(values) if len(values) > 1 else 9
        ties = (found == best).nonzero()[0]
        answer[ties[self._place.take(slots.take(ties)).argmin()]] = _BEST
        return tuple(answer.tolist())

    def choose(self, need: Need, node: str) -> tuple[Share, ...] | str:
        """Return the shares that a pod gets on a node, one for each device in the order of its asks, or why none."""
        self._refresh()
        slot = self._index.get(node)
        if slot is None:
            return _UNKNOWN
        kind = self._kind(need)
        shares = self._scores.shares(kind, slot) if self._scores.row(kind)[slot] != UNFIT else None
        if shares is None:
            return self._why(kind, np.array([slot])).obstacles.tell(int(self._whys[kind].codes[slot])).text
        return shares

    def knows(self, node: str) -> bool:
        """Return whether a node was put."""
        return node in self._nodes

    def fits(self, need: Need, node: str) -> bool:
        """Return whether a node has devices for a pod."""
        self._refresh()
        slot = self._index.get(node)
        return slot is not None and bool(self._scores.row(self._kind(need))[slot] != UNFIT)

    def left(self, node: str) -> tuple[int, int, int]:
        """Return what a known node has left: cpu (milli), memory (MiB), pods; negative where more runs than it has."""
        self._refresh()
        cpu_milli, memory_mib, pods = self._fleet.room[:, self._index[node]].tolist()
        return cpu_milli, memory_mib, pods

    def pods_on(self, node: str) -> tuple[Holder, ...]:
        """Return the pods on a node."""
        return tuple(self._on.get(node, {}).values())

    def alone(self, node: str) -> "Ledger":
        """Return a ledger of one known node and its pods alone, to try what would be if they were others."""
        trial = Ledger("first-fit")
        known = self._nodes[node]
        trial.put_node(known.node, reserved=known.shares)
        for pod in self.pods_on(node):
            trial.put_pod(pod)
        return trial

    def _refresh(self) -> None:
        if self._stale:
            self._stale = False
            self._build()

    def _build(self) -> None:
        nodes = [each.node for each in self._nodes.values()]
        self._fleet = Fleet(nodes)
        self._index: Mapping[str, int] = {str(node.name): i for i, node in enumerate(nodes)}
        self._place: Ints = np.arange(len(nodes))
        self._scores = Scores(
            self._fleet, make_policy(self._policy, self._fleet, None), mix=self._given, devices_only=True
        )
        self._kinds, self._whys = {}, {}
        self._clashes, self._closed = {}, set()
        for name, slot in self._index.items():
            for pod in self._on.get(name, {}).values():
                self._count_room(slot, pod, 1)
            reserved = {share.gpu for share in self._nodes[name].shares}
            for gpu in {*self._held.get(name, {}), *reserved}:
                self._settle(name, slot, gpu)

    def _remove(self, pod: Holder) -> None:
        """Take a pod out of all records."""
        del self._pods[pod.uid]
        del self._on[pod.node][pod.uid]
        gone: dict[int, list[Share]] = {}
        for share in pod.shares:
            gone.setdefault(share.gpu, []).append(share)
        for gpu in gone:
            self._held[pod.node][gpu].pop(pod.uid)
            if not self._held[pod.node][gpu]:
                del self._held[pod.node][gpu]
        self._count(pod, -1, gone)

    def _count(self, pod: Holder, sign: int, shares: Mapping[int, Sequence[Share]]) -> None:
        """Bring the node of a pod up to date, whose records have changed already."""
        slot = None if self._stale else self._index.get(pod.node)
        if slot is None:
            return
        self._count_room(slot, pod, sign)
        reserved = {share.gpu for share in self._nodes[pod.node].shares}
        for gpu, own in shares.items():
            if gpu in reserved or not self._step(pod.node, slot, gpu, own, sign):
                self._settle(pod.node, slot, gpu)
        self._scores.note(pod.need, slot, sign)

    def _step(self, name: str, slot: int, gpu: int, shares: Sequence[Share], sign: int) -> bool:
        """Hold or drop shares of one pod where that is all there is to do; return whether it was."""
        row = self._fleet.row_of(slot, gpu)
        if row is None or (name, gpu) in self._clashes:
            return False
        if sign > 0 and problem(self._fleet.types[self._fleet.kind[row, slot]], self._held[name][gpu]) is not None:
            return False
        for share in shares:
            (self._fleet.hold if sign > 0 else self._fleet.drop)(slot, share)
        return True

    def _settle(self, name: str, slot: int, gpu: int) -> None:
        """Set one GPU to what its holders and reservations make of it, or close it where that cannot be."""
        self._clashes.pop((name, gpu), None)
        held = self._held.get(name, {}).get(gpu, {})
        row = self._fleet.row_of(slot, gpu)
        if row is None:
            if held:
                self._clash(name, gpu, tuple(held), f"node {name} has no GPU {gpu}")
            return
        gpu_type = self._fleet.types[self._fleet.kind[row, slot]]
        found = problem(gpu_type, held)
        if found is not None:
            self._clash(name, gpu, found.uids, found.text)
        reserved = [share for share in self._nodes[name].shares if share.gpu == gpu]
        if found is not None or any(share.mode is Mode.WHOLE for share in reserved):
            self._fleet.close(slot, row)
            return
        self._fleet.clear(slot, row)
        taken = dict(held)
        for i, share in enumerate(reserved):
            more = {**taken, f"{_RESERVED}{i}": (share,)}
            taken = more if problem(gpu_type, more) is None else taken
        for shares in taken.values():
            for share in shares:
                self._fleet.hold(slot, share)

    def _clash(self, name: str, gpu: int, uids: Iterable[str], text: str) -> None:
        pods = tuple(sorted({self._pods[uid].key for uid in uids}))
        self._clashes[name, gpu] = Clash(node=NodeName(name), gpu=gpu, pods=pods, problem=text)

    def _count_room(self, slot: int, pod: Holder, sign: int) -> None:
        self._fleet.room[CPU, slot] -= sign * min(max(pod.need.cpu_milli, 0), _MOST)
        self._fleet.room[MEMORY, slot] -= sign * min(max(pod.need.memory_mib, 0), _MOST)
        self._fleet.room[PODS, slot] -= sign

    def _slots(self, names: Iterable[str]) -> Ints:
        """Return the column of each name in the fleet, -1 where it is not known."""
        index = self._index
        return np.array([index.get(name, -1) for name in names], dtype=np.int64)

    def _kind(self, need: Need) -> int:
        """Return the number of a need without what kube-scheduler decides."""
        kind = self._kinds.get(need)
        if kind is None:
            bare = Need(
                cpu_milli=min(need.cpu_milli, _MOST),
                memory_mib=min(need.memory_mib, _MOST),
                asks=need.asks,
                models=need.models,
            )
            kind = self._kinds[need] = self._scores.intern(bare)
        return kind

    def _why(self, kind: int, slots: Ints) -> _Why:
        """Return the obstacles of a need, up to date for `slots`, on which it does not fit."""
        why = self._whys.get(kind)
        if why is None:
            obstacles = Obstacles(self._fleet, self._scores.demand(kind))
            why = self._whys[kind] = _Why(obstacles, len(self._place))
        old = slots[why.fresh.take(slots) < self._scores.stamp.take(slots)]
        if len(old):
            why.codes[old] = why.obstacles.codes(old)
            why.fresh[old] = self._scores.changes
        return why
