"""The interface of packing policies: a score for every node that fits, and the choice of GPUs inside the chosen one."""

import random
from collections.abc import Hashable, Sequence
from typing import ClassVar, Final

import numpy as np

from tessera.core.cluster.gputypes import Ints
from tessera.core.packing.fit import Demand, Fleet, Tightest
from tessera.core.packing.fit.demand import Room
from tessera.core.workload.need import Need

__all__ = ["UNFIT", "Mix", "Policy", "Room", "Uniform"]

UNFIT: Final = int(np.iinfo(np.int64).min)
"""The score of a node that does not fit."""

Mix = tuple[tuple[Need, int], ...]
"""Needs and their frequencies."""


class Policy(Tightest):
    """First fit: all nodes that fit are equal, so the first in rank wins; the base of all other policies.

    Scores are integers below 2 ** 40 in size, and depend only on the need, the mix and the state of their
    node, so scores kept for unchanged nodes equal recomputed ones.
    """

    names_gpus: ClassVar[bool] = False
    """Whether `choices` names GPUs."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def scores(self, demand: Demand, nodes: Ints, room: Room) -> Ints:
        """Return a score for each of `nodes`, the highest wins; meaningless where the pod does not fit.

        Args:
            demand: the pod.
            nodes: node indices.
            room: `demand.room` of these nodes.

        """
        del demand, room
        return np.zeros(len(nodes), dtype=np.int64)

    def choices(self, demand: Demand, nodes: Ints, room: Room) -> tuple[Ints, Ints]:
        """Return `scores` and, if `names_gpus`, the GPU of each node that `gpus` puts first, for a `Demand.sole`."""
        scores = self.scores(demand, nodes, room)
        return scores, scores

    def pick(self, row: Ints) -> int:
        """Return which entry of a row of scores in rank order wins."""
        return int(row.argmax())

    def changed(self, need: Need, node: int, pods: int) -> None:
        """Note that `pods` of this need came to a node, or left it if negative."""

    def forget(self, demand: Demand) -> None:
        """Drop what is cached for a demand."""

    def outlook(self) -> Hashable:
        """Return the part of the fleet on which scores depend besides its shape; when it changes, all scores do."""
        return None

    def learn(self, mix: Mix, leaving_permille: int = 0) -> bool:
        """Adopt a mix; return whether kept scores are invalid now.

        Args:
            mix: needs with frequencies.
            leaving_permille: pods that left for each thousand recent arrivals.

        """
        del mix, leaving_permille
        return False


class Uniform(Policy):
    """A node drawn uniformly from those that fit, and of its GPUs any that fits; the generator is the caller's."""

    def __init__(self, fleet: Fleet, rng: random.Random) -> None:
        super().__init__(fleet)
        self._rng = rng

    def pick(self, row: Ints) -> int:
        """Return one of the entries with the highest score; see `Policy`."""
        best = (row == row.max()).nonzero()[0]
        return int(best[self._rng.randrange(len(best))])

    def gpus(self, fleet: Fleet, node: int, demand: Demand, rows: Sequence[int]) -> Sequence[int]:
        """Return `rows` in random order."""
        del fleet, node, demand
        return self._rng.sample(rows, len(rows))
