"""What a packing policy is: a score for every node that fits, and the choice of GPUs inside the chosen one."""

from typing import Final

import numpy as np

from tessera.core.fit import Demand, Fleet, Tightest
from tessera.core.fit.gputypes import Ints

__all__ = ["UNFIT", "Policy"]

UNFIT: Final = int(np.iinfo(np.int64).min)
"""The score of a node that does not fit."""


class Policy(Tightest):
    """First fit: all nodes that fit are equal, so the first in rank wins; the base of all other policies.

    Scores are integers below 2 ** 40 in size, and depend on nothing but the state of the node they are for, so that
    scores kept for unchanged nodes equal scores computed anew.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def scores(self, kind: int, demand: Demand, nodes: Ints) -> Ints:
        """Return a score for each of `nodes`, the highest wins; of no meaning where the pod does not fit."""
        del kind, demand
        return np.zeros(len(nodes), dtype=np.int64)

    def pick(self, row: Ints) -> int:
        """Return which entry of a row of scores, in rank order and at least one of them fit, wins."""
        return int(row.argmax())
