"""Fragmentation gradient descent: the node and GPU where fragmentation grows least."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from tessera.core.cluster.gputypes import Ints
from tessera.core.packing.fit import Demand, Fleet
from tessera.core.packing.fit.fragmentation import FULL, Fragmentation, FragmentationState, percent_of, typical
from tessera.core.packing.pack.policy import Mix, Policy, Room

__all__ = ["Fgd", "Gradient"]

_COVER_PERCENT: Final = 95
"""Typical pods cover this much of the mix. Source: the FGD artifact."""
_NOWHERE: Final = -(1 << 60)


class Fgd(Policy):
    """FGD as published: the score is 100 x sigmoid(decrease of fragmentation in GPUs), truncated to an integer.

    Source: Weng et al., USENIX ATC 2023, and its artifact hkust-adsl/kubernetes-scheduler-simulator at 8f3d6417.
    """

    names_gpus = True

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self.learn(())

    def learn(self, mix: Mix, leaving_permille: int = 0) -> bool:
        """Adopt a mix, which changes all scores; see `Policy`."""
        del leaving_permille
        self.fragmentation = Fragmentation(self.fleet, typical(mix, cover_percent=_COVER_PERCENT))
        self._steps = _sigmoid_steps(FULL * self.fragmentation.weight)
        self._least: Ints = np.concatenate(([_NOWHERE], self._steps))
        self._gradients: dict[Demand, Gradient] = {}
        return True

    def forget(self, demand: Demand) -> None:
        """Drop the gradient; see `Policy`."""
        self._gradients.pop(demand, None)

    def scores(self, demand: Demand, nodes: Ints, room: Room) -> Ints:
        """Return 0 to 99 for each of `nodes`; see `Policy`."""
        return self._scores_of(self._gradient(demand).of_nodes(self.fleet, nodes, room))

    def choices(self, demand: Demand, nodes: Ints, room: Room) -> tuple[Ints, Ints]:
        """Return `scores` and the GPU that `gpus` puts first; see `Policy`."""
        if demand.sole is None:
            return super().choices(demand, nodes, room)
        each = np.where(room[0], self._gradient(demand).of_each(self.fleet, nodes), _NOWHERE)
        scores = self._scores_of(np.maximum.reduce(each))
        return scores, (each >= self._least.take(scores)).argmax(axis=0)

    def gpus(self, fleet: Fleet, node: int, demand: Demand, rows: Sequence[int]) -> Sequence[int]:
        """Return `rows`, the highest score first, then the lowest index; see `Preference`."""
        score = self._scores_of(self._gradient(demand).of_gpus(fleet, node)).tolist()
        return sorted(rows, key=lambda row: -score[row])

    def _gradient(self, demand: Demand) -> "Gradient":
        if demand not in self._gradients:
            self._gradients[demand] = Gradient(self.fragmentation, demand, self.fleet)
        return self._gradients[demand]

    def _scores_of(self, decrease: Ints) -> Ints:
        scores: Ints = self._steps.searchsorted(decrease, side="right")
        return scores


class Gradient:
    """The decrease of fragmentation by one pod, weight times percent; negative where fragmentation grows.

    Attributes:
        gain: what a device adds on a GPU, as `Fragmentation.one`.
        opened: what it adds beside that on a GPU that was free, as `Fragmentation.many`.

    """

    def __init__(self, fragmentation: Fragmentation, demand: Demand, fleet: Fleet) -> None:
        self._frag = fragmentation
        self._cpus: Ints = np.array([[0], [demand.need.cpu_milli]])
        self._count = sum(request.count for request in demand.need.requests)
        one = fragmentation.one.reshape(len(fleet.types), -1, FULL + 1)
        gain = np.zeros_like(one)
        remaining = np.arange(FULL + 1)
        for kind, gpu_type in enumerate(fleet.types):
            after = np.maximum(remaining - (percent_of(demand.need.requests, gpu_type) or 0), 0)
            gain[kind] = one[kind][:, after] - one[kind] + fragmentation.weight * (remaining - after)
        self.gain: Ints = gain.ravel()
        self.opened: Ints = np.roll(fragmentation.many, 1) - fragmentation.many  # meaningless where none is free

    def of_nodes(self, fleet: Fleet, nodes: Ints, room: Room) -> Ints:
        """Return the decrease for each of `nodes`, `(len(nodes),)`, where the best GPUs with `room` are taken."""
        cpu_only, gain, state = self._parts(fleet, nodes)
        if not self._count:
            return cpu_only
        if self._count == 1:
            gain += self._opening(state)
            best: Ints = np.maximum.reduce(np.where(room[0], gain, _NOWHERE), initial=_NOWHERE)
            return cpu_only + best
        gain = np.where(np.logical_or.reduce(room), gain, _NOWHERE)
        gain.sort(axis=0)
        taken = np.minimum(state.free, self._count)
        many = self._frag.many
        best = np.add.reduce(gain[-self._count :])
        return cpu_only + best + many.take(state.many - taken) - many.take(state.many)

    def of_gpus(self, fleet: Fleet, node: int) -> Ints:
        """Return the decrease for each GPU of a node, `(gpus,)`, when one device takes it."""
        return self.of_each(fleet, np.array([node]))[:, 0]

    def of_each(self, fleet: Fleet, nodes: Ints) -> Ints:
        """Return the decrease for each GPU of `nodes` when one device takes it, `(gpus, len(nodes))`."""
        cpu_only, gain, state = self._parts(fleet, nodes)
        each: Ints = cpu_only + gain + self._opening(state)
        return each

    def _parts(self, fleet: Fleet, nodes: Ints) -> tuple[Ints, Ints, FragmentationState]:
        """Return the decrease by the pod's cpu alone, what one device adds on each GPU, and the state with less cpu."""
        state = self._frag.state(fleet, nodes, self._cpus)
        usable = self._frag.usable_in(state)
        after = FragmentationState(state.remaining, state.free, state.one[:, 1], state.many[1])
        return usable[1] - usable[0], self.gain.take(after.one), after

    def _opening(self, state: FragmentationState) -> Ints:
        """Return what a device adds on a GPU that is entirely free, by leaving one less to pods for several."""
        opening: Ints = (state.remaining == FULL) * self.opened.take(state.many)
        return opening


def _sigmoid_steps(gpu: int) -> Ints:
    """Return the least decrease, in whole units of 1 / `gpu` GPU, for each score from 1 to 99.

    Score s needs sigmoid(x) >= s / 100, that is x >= ln(s / (100 - s)); integers make it the same on every machine.
    """
    return np.array([math.ceil(gpu * math.log(s / (100 - s))) for s in range(1, 100)], dtype=np.int64)
