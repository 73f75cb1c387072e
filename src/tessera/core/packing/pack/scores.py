"""Scores of all nodes for every kind of need, kept for unchanged nodes; the mix is learned from arrivals."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from tessera.core.cluster.gputypes import Ints
from tessera.core.cluster.snapshot import Share
from tessera.core.packing.fit import Demand, Fleet, Tightest
from tessera.core.packing.fit.onenode import serve
from tessera.core.packing.pack.policy import UNFIT, Mix, Policy, Room
from tessera.core.workload.need import Need

__all__ = ["Scores"]

_TIER: Final = 1 << 40
"""Weight of a tier: more than any difference of scores."""
_LEARN_FIRST: Final = 20
_LEARN_EVERY: Final = 500
"""Arrivals after which the mix is learned: 20, 40, 80, ..., then every 500."""
_MOVED_PERCENT: Final = 5
_FEW: Final = 12
"""Up to this many changes are rescored even if nodes repeat, because that is faster than deduplicating."""
_LOG: Final = 1024
"""Most changes that are remembered one by one."""
_SMALL: Final = 64
"""Up to this many nodes are scored together, because that is faster than separating those that fit."""
_STATES: Final = 1 << 12
"""Node states remembered for a need."""
_MOST_CACHED: Final = 256
"""Kept needs if there is no limit on different ones; about 0.4 MB each on 5,000 nodes."""
_MOST_NEEDS: Final = 2048
"""Most needs that are distinguished; above it the most frequent quarter is kept."""
_LEAVING_STEP: Final = 200
"""Permille by which the share of leaving pods must differ from the learned one."""


class _CachedNeed:
    """The kept scores of one kind of need.

    Attributes:
        demand: the need on this fleet.
        row: the score of every node in rank order.
        gpus: the GPU to take there, if the policy names it.
        fresh: length of the change log at the last update of the row; -1 for never.
        full: number of releases when nothing fitted any more; -1 where something may.
        served: by state of a node whether the need can be served there, if only a trial shows it.

    """

    __slots__ = ("demand", "fresh", "full", "gpus", "row", "served")

    def __init__(self, demand: Demand, nodes: int, *, named: bool) -> None:
        self.demand = demand
        self.row: Ints = np.full(nodes, UNFIT)
        self.gpus: Ints | None = np.zeros(nodes, dtype=np.int64) if named else None
        self.fresh = -1
        self.full = -1
        self.served: dict[bytes, bool] = {}


class Scores:
    """The scores of a fleet's nodes by a policy.

    Among the nodes that fit, those that serve the pod in the weakest sufficient mode stand first, then those with the
    highest score of the policy.

    Args:
        fleet: the working state; every change of it is reported by `note` or `touch`.
        policy: for this fleet.
        rank: the rank of each node for ties, 0 first; the order of the nodes by default.
        mix: needs with known frequencies; None to learn them from arrivals.
        keep_scores: False scores every node each time; the scores are the same.
        devices_only: whether cpu, memory, pods and admission are judged elsewhere. Then a node that fits can serve the
            pod; otherwise several devices may turn out not to fit together.

    Attributes:
        shape: that of the fleet when everything was compiled.
        changes: length of the log of changes.
        stamp: its length after the last change of each node, `(nodes,)`.

    """

    def __init__(
        self,
        fleet: Fleet,
        policy: Policy,
        *,
        rank: Sequence[int] | None = None,
        mix: Mix | None = None,
        keep_scores: bool = True,
        devices_only: bool = False,
    ) -> None:
        self.fleet = fleet
        self.policy = policy
        self._keep = keep_scores
        self._devices_only = devices_only
        self._ids: dict[Need, int] = {}
        self._needs: list[Need] = []
        self._cached: list[_CachedNeed | None] = []
        self._opened: dict[int, _CachedNeed] = {}
        self._shares: dict[tuple[int, int, int], tuple[Share]] = {}  # by kind, type and index of the GPU
        self._released = 0
        self._nodes: Ints = np.arange(len(fleet.nodes))
        self._place: Ints = self._nodes if rank is None else np.array(rank, dtype=np.int64)
        self._order: Ints = np.argsort(self._place)
        self._changed: Ints = np.zeros(_LOG, dtype=np.int64)
        self._before = 0  # length of the log where `_changed` begins
        self.changes = 0
        self.stamp: Ints = np.zeros_like(self._nodes)
        self._arrived: list[int] = []  # arrivals of each kind
        self._arrivals = 0
        self._learned: list[int] = []  # arrivals of each kind when the mix was last learned
        self._leaving = 0  # pods that left per thousand that came, then
        self._noted = 0, 0  # arrivals and releases at that time
        self._learn_at = 0 if mix is None else -1
        self._mix: Mix = mix or ()
        if mix is not None:
            self.policy.learn(mix)
        self._note_shape()

    def intern(self, need: Need) -> int:
        """Return the id of a need; equal needs share one."""
        kind = self._ids.setdefault(need, len(self._ids))
        if kind == len(self._needs):
            self._needs.append(need)
            self._cached.append(None)
            self._arrived.append(0)
        return kind

    def demand(self, kind: int) -> Demand:
        """Return what the fleet knows of an interned need."""
        return self._of(kind).demand

    def row(self, kind: int) -> Ints:
        """Return the scores of all nodes for a need, in rank order; `UNFIT` where it does not fit."""
        cached = self._of(kind)
        stale = self.changes - cached.fresh
        if not self._keep or cached.fresh < 0 or stale > len(self._nodes):
            self._renew(cached, self._nodes)
        elif stale:
            self._renew(cached, self._since(cached.fresh))
        cached.fresh = self.changes
        return cached.row

    def scores(self, kind: int, nodes: Ints) -> Ints:
        """Return the scores of `nodes` for a need, computed anew; `UNFIT` where it does not fit."""
        return self._choices(self._of(kind), nodes)[0]

    def shares(self, kind: int, node: int) -> tuple[Share, ...] | None:
        """Return a pod's shares on a node that fits by its row; None if they do not fit together."""
        return self._shares_at(kind, int(self._place[node]), node)

    def _shares_at(self, kind: int, at: int, node: int) -> tuple[Share, ...] | None:
        """Return `shares` of the node at that place of the row."""
        cached = self._of(kind)
        demand = cached.demand
        if cached.gpus is None or demand.sole is None:
            return serve(self.fleet, demand, node, self.policy)
        row = int(cached.gpus[at])
        gpu_type, gpu = int(self.fleet.kind[row, node]), self.fleet.gpu_index[node][row]
        known = kind, gpu_type, gpu
        if known not in self._shares:
            self._shares[known] = (Share.of(gpu, demand.devices[0].request, demand.sole.by_type[gpu_type]),)
        return self._shares[known]

    def arrive(self, kind: int) -> None:
        """Count an arrival; learn again when arrivals doubled, the mix moved, or the share of leaving pods changed."""
        if self._arrivals == self._learn_at:
            came = self._arrivals - self._noted[0]
            leaving = min(1000 * (self._released - self._noted[1]) // came, 1000) if came else 0
            self._noted = self._arrivals, self._released
            self._learn_at += min(max(self._arrivals, _LEARN_FIRST), _LEARN_EVERY)
            if (
                self._arrivals >= 2 * sum(self._learned)
                or self._moved()
                or abs(leaving - self._leaving) > _LEAVING_STEP
            ):
                self._learn(leaving)
        self._arrived[kind] += 1
        self._arrivals += 1

    def leave(self) -> None:
        """Count a pod that left, which is learned as well."""
        self._released += 1

    def note(self, need: Need, node: int, pods: int) -> None:
        """Note a change of the fleet: pods of this need came to a node, or left it if negative."""
        self.policy.changed(need, node, pods)
        self.touch(node)

    def touch(self, node: int) -> None:
        """Note that a node changed."""
        at = self.changes - self._before
        if at == _LOG:
            self._changed[:_FEW] = self._changed[-_FEW:]
            self._before, at = self.changes - _FEW, _FEW
        self._changed[at] = node
        self.changes += 1
        self.stamp[node] = self.changes

    def renew(self, policy: Policy) -> None:
        """Start again with a policy for the current fleet, keeping what was learned; every score is stale."""
        self.policy = policy
        self._cached = [None] * len(self._needs)
        self._opened.clear()
        self._shares.clear()
        self._nodes = self._place = self._order = np.arange(len(self.fleet.nodes))
        stamp = np.full(len(self._nodes), self.changes)
        stamp[: len(self.stamp)] = self.stamp
        self.stamp = stamp
        if self._mix:
            policy.learn(self._mix, self._leaving)
        self._note_shape()

    @property
    def crowded(self) -> bool:
        """Whether there are more needs than are worth distinguishing, so that `thin` is due."""
        return len(self._needs) > _MOST_NEEDS

    def thin(self) -> None:
        """Forget the least frequent needs; the others have new ids."""
        left = sorted(range(len(self._needs)), key=lambda kind: -self._arrived[kind])[: _MOST_NEEDS // 4]
        learned = self._learned + [0] * (len(self._needs) - len(self._learned))
        self._needs = [self._needs[kind] for kind in left]
        self._ids = {need: kind for kind, need in enumerate(self._needs)}
        self._arrived = [self._arrived[kind] for kind in left]
        self._learned = [learned[kind] for kind in left]
        self._arrivals = sum(self._arrived)
        self._noted = self._arrivals, self._released
        self._learn_at = self._arrivals + _LEARN_EVERY if self._learn_at >= 0 else -1
        self.renew(self.policy)

    @property
    def outdated(self) -> bool:
        """Whether nodes came, went or changed so that all scores did, and `renew` is due."""
        return self.fleet.shape != self.shape or self.policy.outlook() != self._outlook

    def _note_shape(self) -> None:
        self.shape = self.fleet.shape
        self._outlook = self.policy.outlook()

    def _of(self, kind: int) -> _CachedNeed:
        return self._cached[kind] or self._open(kind)

    def _open(self, kind: int) -> _CachedNeed:
        demand = Demand(self._needs[kind], self.fleet, devices_only=self._devices_only)
        if self._devices_only and len(self._opened) >= _MOST_CACHED:
            oldest = min(self._opened, key=lambda each: self._opened[each].fresh)
            self.policy.forget(self._opened.pop(oldest).demand)
            self._cached[oldest] = None
        cached = _CachedNeed(demand, len(self._nodes), named=self.policy.names_gpus and demand.sole is not None)
        self._cached[kind] = self._opened[kind] = cached
        return cached

    def _renew(self, cached: _CachedNeed, nodes: Ints) -> None:
        """Bring the row of a need up to date for `nodes`."""
        at = self._place.take(nodes)
        cached.row[at], named = self._choices(cached, nodes)
        if cached.gpus is not None:
            cached.gpus[at] = named

    def _since(self, fresh: int) -> Ints:
        """Return the nodes that changed since the log had that length; each once if that is worth the effort."""
        if self.changes - fresh < _FEW:
            return self._changed[fresh - self._before : self.changes - self._before]
        return (self.stamp > fresh).nonzero()[0]

    def _choices(self, cached: _CachedNeed, nodes: Ints) -> tuple[Ints, Ints]:
        """Return `scores` and, where the policy names it, the GPU to take on each node."""
        demand = cached.demand
        room = demand.room(self.fleet, nodes)
        fits = demand.fits(self.fleet, nodes, room)
        if self._devices_only and not demand.exact:
            for at in fits.nonzero()[0].tolist():
                fits[at] = self._served(cached, int(nodes[at]))
        fitting = np.count_nonzero(fits)
        if not fitting:
            scores = np.full(len(nodes), UNFIT)
            return scores, scores
        if len(nodes) < _SMALL or 2 * fitting > len(nodes):
            found, gpus = self._of_fitting(demand, nodes, room)
            return np.where(fits, found, UNFIT), gpus
        room = tuple(each.compress(fits, 1) for each in room)
        scores, named = np.full(len(nodes), UNFIT), np.zeros_like(nodes)
        scores[fits], named[fits] = self._of_fitting(demand, nodes[fits], room)
        return scores, named

    def _of_fitting(self, demand: Demand, nodes: Ints, room: Room) -> tuple[Ints, Ints]:
        """Return the policy's choices for a demand, with meaningless scores on nodes where it does not fit."""
        found, gpus = self.policy.choices(demand, nodes, room)
        tiers = demand.tiers(self.fleet, nodes)
        return found if tiers is None else found - _TIER * tiers, gpus

    def _served(self, cached: _CachedNeed, node: int) -> bool:
        """Return whether all devices of a need fit together on a node; nodes of one state are tried once."""
        state = self.fleet.kind[:, node].tobytes() + self.fleet.state(node)
        if state not in cached.served:
            if len(cached.served) >= _STATES:
                cached.served.clear()
            cached.served[state] = serve(self.fleet, cached.demand, node, Tightest()) is not None
        return cached.served[state]

    def _learn(self, leaving: int) -> None:
        self._learned, self._leaving = list(self._arrived), leaving
        self._mix = tuple((need, n) for need, n in zip(self._needs, self._arrived, strict=True) if n)
        if self.policy.learn(self._mix, leaving):
            for cached in self._opened.values():
                cached.fresh = -1
        self._note_shape()

    def _moved(self) -> bool:
        """Return whether more than `_MOVED_PERCENT` of the pods are of other kinds than in the mix learned last."""
        before = self._learned + [0] * (len(self._arrived) - len(self._learned))
        then, now = sum(before), self._arrivals
        moved = sum(abs(a * now - b * then) for a, b in zip(before, self._arrived, strict=True))
        return 100 * moved > 2 * _MOVED_PERCENT * then * now
