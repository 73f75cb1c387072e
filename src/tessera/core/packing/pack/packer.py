"""The packer: decides node and GPUs of one pod after the other, and keeps scores of unchanged nodes."""

import random
from collections.abc import Sequence
from typing import NamedTuple

from tessera.core.cluster.snapshot import Share
from tessera.core.packing.fit import Fleet
from tessera.core.packing.pack.policies import make_policy
from tessera.core.packing.pack.policy import UNFIT, Mix, Policy
from tessera.core.packing.pack.scores import Scores
from tessera.core.workload.need import Need

__all__ = ["Choice", "Packer"]


class Choice(NamedTuple):
    """Where a pod goes: the node's index in the fleet, and a share for each device in the order of its requests."""

    node: int
    shares: tuple[Share, ...]


class Packer(Scores):
    """Places pods one by one on a fleet, which it changes.

    Among the nodes that fit, those that serve the pod in the weakest sufficient mode are preferred, then the highest
    score, then the first in `rank`. A pod is refused only if no node fits.

    Cost of a decision with kept scores: the nodes that changed since this kind of need was last placed.

    Args:
        fleet: the working state.
        policy: a name of `POLICIES`, or a policy made for this fleet.
        rank: the rank of each node for ties, 0 first; the order of the nodes by default.
        mix: needs with known frequencies; None to learn them from arrivals.
        keep_scores: False scores every node for every decision; the choices are the same.
        rng: the generator of policy `random`.

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
        made = make_policy(policy, fleet, rng) if isinstance(policy, str) else policy
        super().__init__(fleet, made, rank=rank, mix=mix, keep_scores=keep_scores)

    def intern(self, need: Need) -> int:
        """Return the id of a need, compiled; equal needs share one."""
        kind = super().intern(need)
        self._of(kind)
        return kind

    def place(self, kind: int, *, again: bool = False) -> Choice | None:
        """Choose node and shares for one pod and take them; None if no node fits.

        `again` is for a pod that was tried before, because it was pending or moves: it is not learned as an arrival.
        """
        if not again:
            self.arrive(kind)
        kept = self._of(kind)
        if kept.full == self._released:
            return None
        row = self.row(kind)
        while len(row):
            at = self.policy.pick(row)
            if row[at] == UNFIT:
                break
            node = int(self._order[at])
            shares = self._shares_at(kind, int(at), node)
            if shares is not None:
                need = self._needs[kind]
                self.fleet.take(node, need, shares)
                self.note(need, node, 1)
                return Choice(node, shares)
            row = row.copy()
            row[at] = UNFIT
        kept.full = self._released
        return None

    def release(self, kind: int, choice: Choice) -> None:
        """Release a pod's shares."""
        need = self._needs[kind]
        self.fleet.give(choice.node, need, choice.shares)
        self.leave()
        self.note(need, choice.node, -1)
