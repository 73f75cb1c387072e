"""The packer: decides node and GPUs of one pod after the other, and keeps scores of nodes that did not change."""

import random
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from tessera.core.fit import Demand, Fleet, serve
from tessera.core.fit.gputypes import Ints
from tessera.core.need import Need
from tessera.core.pack.policies import make_policy
from tessera.core.pack.policy import UNFIT, Mix, Policy, Room
from tessera.core.snapshot import Share

__all__ = ["Choice", "Packer"]

_TIER: Final = 1 << 40
"""What a tier weighs: more than any difference of scores."""
_LEARN_FIRST: Final = 20
_LEARN_EVERY: Final = 500
"""Arrivals after which the mix is looked at: 20, 40, 80, ..., then every 500."""
_MOVED_PERCENT: Final = 5
_FEW: Final = 12
"""Changes that are sooner rescored, with nodes that come twice, than looked through."""
_SMALL: Final = 64
"""Nodes that are sooner scored together than parted into those that fit and those that do not."""
_LEAVING_STEP: Final = 200
"""Permille by which the pods that leave must differ from what was learned."""


class Choice(NamedTuple):
    """Where a pod goes: the node's index in the fleet, and a share a device in the order of its asks."""

    node: int
    shares: tuple[Share, ...]


class Packer:
    """Places pods one by one on a fleet, which it changes.

    Among the nodes that fit, those that serve the pod in the weakest sufficient mode are preferred, then the highest
    score, then the first in `rank`. A pod is refused only if no node fits.

    Cost of a decision with kept scores: the nodes that changed since this kind of need was last asked for.

    Args:
        fleet: the working state.
        policy: a name of `POLICIES`, or a policy made for this fleet.
        rank: the place of each node in the order in which ties go, 0 first; the order of the nodes by default.
        mix: needs and their frequencies as known beforehand; None to learn them from arrivals.
        keep_scores: False scores every node for every decision; the choices are the same.
        rng: the generator that policy `random` draws from.

    """

    def __init__(
        self,
        fleet: Fleet,
        policy: str | Policy,
        *,
        rank: Sequence[int] | None = None,
        mix: Mix | None = None,
        keep_scores: bool = True,
        rng: random.Random | None = None,
    ) -> None:
        self.fleet = fleet
        self.policy = make_policy(policy, fleet, rng) if isinstance(policy, str) else policy
        self._keep = keep_scores
        self._kinds: dict[Need, int] = {}
        self._demands: list[Demand] = []
        self._rows: list[Ints] = []  # scores in rank order
        self._gpus: list[Ints | None] = []  # and the GPU to take there, where the policy names it
        self._shares: dict[tuple[int, int, int], tuple[Share]] = {}  # by kind, type and index of the GPU
        self._fresh: list[int] = []  # length of the log of changes when a row was last brought up to date
        self._full: list[int] = []  # number of releases when nothing fitted any more
        self._released = 0
        self._nodes: Ints = np.arange(len(fleet.nodes))
        self._place: Ints = self._nodes if rank is None else np.array(rank, dtype=np.int64)
        self._order: Ints = np.argsort(self._place)
        self._changed: Ints = np.zeros(1024, dtype=np.int64)
        self._changes = 0
        self._stamp: Ints = np.zeros_like(self._nodes)  # length of the log after each node's last change
        self._arrived: list[int] = []  # arrivals of each kind
        self._arrivals = 0
        self._learned: list[int] = []  # arrivals of each kind when the mix was learned last
        self._leaving = 0  # pods that left per thousand that came, then
        self._looked = 0, 0  # arrivals and releases when it was looked at last
        self._learn_at = 0 if mix is None else -1
        if mix is not None:
            self.policy.learn(mix)

    def intern(self, need: Need) -> int:
        """Return the id of a need; equal needs share one."""
        kind = self._kinds.setdefault(need, len(self._kinds))
        if kind == len(self._demands):
            demand = Demand(need, self.fleet)
            self._demands.append(demand)
            self._rows.append(np.full(len(self._nodes), UNFIT))
            named = self.policy.names_gpus and demand.sole is not None
            self._gpus.append(np.zeros_like(self._nodes) if named else None)
            self._fresh.append(-1)
            self._full.append(-1)
            self._arrived.append(0)
        return kind

    def demand(self, kind: int) -> Demand:
        """Return what the fleet knows of an interned need."""
        return self._demands[kind]

    def place(self, kind: int, *, again: bool = False) -> Choice | None:
        """Choose node and shares for one pod and grant them; None if no node fits.

        `again` is for a pod that was asked for before, because it waited or moves: it is no arrival to learn from.
        """
        if not again:
            self._arrive(kind)
        if self._full[kind] == self._released:
            return None
        row = self.row(kind)
        demand = self._demands[kind]
        while len(row):
            at = self.policy.pick(row)
            if row[at] == UNFIT:
                break
            node = int(self._order[at])
            shares = self._serve(kind, at, node)
            if shares is not None:
                self.fleet.take(node, demand.need, shares)
                self._note(kind, node, 1)
                return Choice(node, shares)
            row = row.copy()
            row[at] = UNFIT
        self._full[kind] = self._released
        return None

    def release(self, kind: int, choice: Choice) -> None:
        """Take back what a pod was granted."""
        self.fleet.give(choice.node, self._demands[kind].need, choice.shares)
        self._released += 1
        self._note(kind, choice.node, -1)

    def row(self, kind: int) -> Ints:
        """Return the scores of all nodes for a need, in rank order; `UNFIT` where it does not fit."""
        row = self._rows[kind]
        fresh = self._fresh[kind]
        stale = self._changes - fresh
        if not self._keep or fresh < 0 or stale > len(self._nodes):
            self._renew(kind, self._nodes)
        elif stale:
            self._renew(kind, self._since(fresh))
        self._fresh[kind] = self._changes
        return row

    def _renew(self, kind: int, nodes: Ints) -> None:
        """Bring the row of a need up to date for `nodes`."""
        at = self._place.take(nodes)
        self._rows[kind][at], named = self._choices(kind, nodes)
        gpus = self._gpus[kind]
        if gpus is not None:
            gpus[at] = named

    def _serve(self, kind: int, at: int, node: int) -> tuple[Share, ...] | None:
        """Return the shares that the pod gets on a node that fits, at that place of the row; None if it does not."""
        demand = self._demands[kind]
        gpus = self._gpus[kind]
        if gpus is None or demand.sole is None:
            return serve(self.fleet, demand, node, self.policy)
        row = int(gpus[at])
        gpu_type, gpu = int(self.fleet.kind[row, node]), self.fleet.gpu_index[node][row]
        known = kind, gpu_type, gpu
        if known not in self._shares:
            self._shares[known] = (Share.of(gpu, demand.devices[0].ask, demand.sole.by_type[gpu_type]),)
        return self._shares[known]

    def _since(self, fresh: int) -> Ints:
        """Return the nodes that changed since the log had that length; each once where that is worth the look."""
        if self._changes - fresh < _FEW:
            return self._changed[fresh : self._changes]
        return (self._stamp > fresh).nonzero()[0]

    def scores(self, kind: int, nodes: Ints) -> Ints:
        """Return the scores of `nodes` for a need, computed anew; `UNFIT` where it does not fit."""
        return self._choices(kind, nodes)[0]

    def _choices(self, kind: int, nodes: Ints) -> tuple[Ints, Ints]:
        """Return `scores` and, where the policy names it, the GPU to take on each node."""
        demand = self._demands[kind]
        room = demand.room(self.fleet, nodes)
        fits = demand.fits(self.fleet, nodes, room)
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
        """Return the policy's choices for a demand, scores of no meaning on nodes where it does not fit."""
        found, gpus = self.policy.choices(demand, nodes, room)
        tiers = demand.tiers(self.fleet, nodes)
        return found if tiers is None else found - _TIER * tiers, gpus

    def _arrive(self, kind: int) -> None:
        """Count an arrival; learn anew when arrivals have doubled, the mix has moved, or pods leave as they did not."""
        if self._arrivals == self._learn_at:
            came = self._arrivals - self._looked[0]
            leaving = min(1000 * (self._released - self._looked[1]) // came, 1000) if came else 0
            self._looked = self._arrivals, self._released
            self._learn_at += min(max(self._arrivals, _LEARN_FIRST), _LEARN_EVERY)
            if (
                self._arrivals >= 2 * sum(self._learned)
                or self._moved()
                or abs(leaving - self._leaving) > _LEAVING_STEP
            ):
                self._learned, self._leaving = list(self._arrived), leaving
                mix = tuple((d.need, n) for d, n in zip(self._demands, self._arrived, strict=True) if n)
                if self.policy.learn(mix, leaving):
                    self._fresh = [-1] * len(self._fresh)
        self._arrived[kind] += 1
        self._arrivals += 1

    def _moved(self) -> bool:
        """Return whether more than `_MOVED_PERCENT` of the pods are of other kinds than in the mix learned last."""
        before = self._learned + [0] * (len(self._arrived) - len(self._learned))
        then, now = sum(before), self._arrivals
        moved = sum(abs(a * now - b * then) for a, b in zip(before, self._arrived, strict=True))
        return 100 * moved > 2 * _MOVED_PERCENT * then * now

    def _note(self, kind: int, node: int, pods: int) -> None:
        self.policy.changed(self._demands[kind], node, pods)
        if self._changes == len(self._changed):
            self._changed = np.concatenate((self._changed, np.zeros_like(self._changed)))
        self._changed[self._changes] = node
        self._changes += 1
        self._stamp[node] = self._changes
