"""Tessera's own policy: the node and GPU that lose least of what the expected pods could still use.

Two losses are weighed. Usable: idle GPU that pods of the mix can still use, as FGD counts it, but for all kinds of
pods, without those that request no GPU, and limited by what the node's cpu can feed. Value: how much of an optimal
the mix the node can still complete, at the cutting-stock prices of the sizes, the node's cpu priced too. A pod that
loses exactly its own price keeps the node completable to an optimal pattern. GPUs of models that pods name are worth
more. MIG instances go by `migscore`. The mix is learned from arrivals, and so is whether pods leave.

Source of the constants: measurements on the openb traces, bench/openb.py.
"""

import functools
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tessera.core.cluster.gputypes import Counts, Ints
from tessera.core.packing.fit import Demand, Fleet
from tessera.core.packing.fit.fleet import CPU
from tessera.core.packing.fit.fragmentation import FULL, Fragmentation, Typical, percent_of, typical
from tessera.core.packing.fit.ways import Amount
from tessera.core.packing.pack.cuttingstock import CuttingStock
from tessera.core.packing.pack.fgd import Gradient
from tessera.core.packing.pack.kernels import Kernels, PodTables, State, Tables, compiled
from tessera.core.packing.pack.migscore import MigPolicy
from tessera.core.packing.pack.policy import Mix, Room
from tessera.core.packing.pack.potentials import CPU_PRICES, UNIT, NodeValue, Usable
from tessera.core.packing.pack.slicescores import Cutting, needs_new_instance

__all__ = ["Tessera"]

_NOWHERE: Final = -(1 << 39)
_WEIGH_VALUE: Final = 12
"""A GPU of lost value weighs as much as this many GPUs of lost usable idle."""
_STEP_MILLI: Final = 160
"""Milli GPU of loss that make one step of the score: within a step the order of nodes decides, which packs."""
_STEP_LEAVING_MILLI: Final = 20
"""The same where pods leave and freed room is spread over the nodes."""
_LEAVING_PERMILLE: Final = 250
"""Pods that left per thousand arrivals, above which pods for several GPUs are protected."""
_GAIN: Final = 10 * UNIT // 1000
"""`UNIT` a percent."""
_LARGE: Final = 2048
"""GPUs above which it is worth it to load compiled kernels."""
_MOST_WEIGHT: Final = 1 << 20
"""Mixes are scaled down to this total weight, so that no sum leaves 63 bits."""


class Tessera(Cutting):
    """Least loss of what the expected pods could use; see the module.

    Args:
        fleet: the fleet.
        kernels: loops to compute the same scores with, for speed, on a fleet that has GPUs; None for the array form.

    """

    tables = MigPolicy.TESSERA
    names_gpus = True

    def __init__(self, fleet: Fleet, kernels: Kernels | None = None) -> None:
        self._stock = CuttingStock()
        self._compiled: dict[Demand, _Known] = {}
        self._kernels = kernels
        self._state = State(fleet.remaining, fleet.kind, fleet.room[CPU])
        super().__init__(fleet)

    @classmethod
    def fastest(cls, fleet: Fleet) -> Self:
        """Return the policy with compiled kernels where the fleet is large and numba is installed."""
        return cls(fleet, compiled() if fleet.kind.size >= _LARGE else None)

    def learn(self, mix: Mix, leaving_permille: int = 0) -> bool:
        """Adopt a mix, which changes all scores; see `Policy`."""
        pods = typical(_scaled(tuple((need, count) for need, count in mix if need.requests)), cover_percent=98)
        leaving = leaving_permille >= _LEAVING_PERMILLE
        weighed = _for_many(pods) if leaving else pods
        self._step_milli = _STEP_LEAVING_MILLI if leaving else _STEP_MILLI
        self._named = any(pod.models for pod in pods)
        self._usable = Usable(self.fleet, weighed)
        self._fragmentation = Fragmentation(self.fleet, weighed)
        self._value = NodeValue(self.fleet, pods, self._stock)
        self._gradients: dict[Demand, Gradient] = {}
        self._pods: dict[Demand, PodTables] = {}
        self._tables = self._in_tables() if self._kernels else None
        return super().learn(mix, leaving_permille)

    def forget(self, demand: Demand) -> None:
        """Drop all tables of a demand; see `Policy`."""
        super().forget(demand)
        self._compiled.pop(demand, None)
        self._gradients.pop(demand, None)
        self._pods.pop(demand, None)

    def outlook(self) -> tuple[int, ...]:
        """Return the GPUs of each type where pods name models, else the most memory of a GPU; see `Policy`."""
        census = self.fleet.census.tolist()
        if self._named:
            return tuple(census)
        there = zip(self.fleet.types, census, strict=True)
        return (max((kind.memory_mib for kind, count in there if count), default=0),)

    def _known(self, demand: Demand) -> "_Known":
        if demand not in self._compiled:
            self._compiled[demand] = _Known.of(demand, self.fleet)
        return self._compiled[demand]

    def scores(self, demand: Demand, nodes: Ints, room: Room) -> Ints:
        """Return the negative loss of each of `nodes` in steps; see `Policy`."""
        return self.choices(demand, nodes, room)[0]

    def choices(self, demand: Demand, nodes: Ints, room: Room) -> tuple[Ints, Ints]:
        """Return `scores` and the GPU that `gpus` puts first; see `Policy`."""
        known = self._known(demand)
        if known.new_instance:
            scores = super().scores(demand, nodes, room)
            return scores, scores
        if self._kernels and self._tables:
            return self._by_kernel(self._kernels, self._tables, demand, nodes, room)
        if known.part:
            each = np.where(room[0], self._of_gpus(demand, nodes), _NOWHERE)
            return np.maximum.reduce(each), each.argmax(axis=0)
        scores = self._of_devices(demand, nodes, room)
        return scores, room[0].argmax(axis=0) if room else scores

    def _of_devices(self, demand: Demand, nodes: Ints, room: Room) -> Ints:
        """Return the score of each of `nodes` for a pod that takes no GPU, or those with least left that serve it."""
        known = self._known(demand)
        remaining = self.fleet.remaining.take(nodes, 1)
        cpu = self.fleet.room[CPU].take(nodes)
        if not demand.devices:
            gain = self._usable.of(nodes, remaining, cpu - demand.need.cpu_milli) - self._usable.of(
                nodes, remaining, cpu
            )
            return self._steps(gain, np.zeros_like(gain))
        after = _after_taking(known.gpus, remaining, functools.reduce(np.add, room), self._sizes(known, nodes))
        less = cpu - demand.need.cpu_milli
        gain = self._usable.of(nodes, after, less) - self._usable.of(nodes, remaining, cpu)
        gain += self._fragmentation.weight * np.add.reduce(remaining - after)
        worth = self._value.of(nodes, after, less) - self._value.of(nodes, remaining, cpu)
        return self._steps(gain, worth)

    def _by_kernel(
        self, kernels: Kernels, tables: Tables, demand: Demand, nodes: Ints, room: Room
    ) -> tuple[Ints, Ints]:
        """Return `choices` of a pod for which no instance is created."""
        known = self._known(demand)
        if demand not in self._pods:
            self._pods[demand] = self._pod_tables(demand, known)
        able = _able(room, (len(self.fleet.kind), len(nodes)))
        kernel = kernels.amounts if known.part else kernels.devices
        scores, gpus = kernel(tables, self._state, self._pods[demand], nodes, able)
        return scores, gpus

    def _in_tables(self) -> Tables:
        """Return what was learned in the kernels' form."""
        types, most = len(self.fleet.types), len(self.fleet.kind)
        used, lost, weight = self._usable, self._fragmentation, max(self._fragmentation.weight, 1)
        return Tables(
            fed_cpu=used.cpus,
            fed_one=used.one,
            fed_many=used.many,
            cpu=lost.cpus,
            one=lost.one.reshape(types, -1, FULL + 1),
            many=lost.many.reshape(types, -1, most + 1),
            value=np.ascontiguousarray(self._value.table.T).reshape(types, FULL + 1, -1),
            prices=CPU_PRICES,
            rates=np.array([lost.weight, _GAIN, _WEIGH_VALUE * weight, self._step_milli * weight * (UNIT // 1000)]),
            scratch=np.zeros((6, max(most, len(CPU_PRICES))), dtype=np.int64),
        )

    def _pod_tables(self, demand: Demand, known: "_Known") -> PodTables:
        gradient = Gradient(self._fragmentation, demand, self.fleet)
        return PodTables(
            numbers=np.array([demand.need.cpu_milli, known.gpus]),
            sizes=known.sizes,
            gain=gradient.gain.reshape(self._fragmentation.one.reshape(len(self.fleet.types), -1, FULL + 1).shape),
            opened=gradient.opened.reshape(len(self.fleet.types), -1, len(self.fleet.kind) + 1),
        )

    def gpus(self, fleet: Fleet, node: int, demand: Demand, rows: Sequence[int]) -> Sequence[int]:
        """Return `rows`, the highest score first, then the lowest index; see `Preference`."""
        if not self._known(demand).part:
            return super().gpus(fleet, node, demand, rows)
        score = self._of_gpus(demand, np.array([node]))[:, 0].tolist()
        return sorted(rows, key=lambda row: -score[row])

    def _of_gpus(self, demand: Demand, nodes: Ints) -> Ints:
        """Return the score of each GPU of `nodes` when it serves a part of itself, `(gpus, len(nodes))`."""
        if demand not in self._gradients:
            self._gradients[demand] = Gradient(self._fragmentation, demand, self.fleet)
        gain = self._gradients[demand].of_each(self.fleet, nodes)
        remaining = self.fleet.remaining.take(nodes, 1)
        cpu = self.fleet.room[CPU].take(nodes)
        lost = self._value.lost_by_each(
            nodes, remaining, self._sizes(self._known(demand), nodes), (cpu, cpu - demand.need.cpu_milli)
        )
        return self._steps(gain, lost)

    def _sizes(self, known: "_Known", nodes: Ints) -> Ints:
        sizes: Ints = known.sizes.take(self.fleet.kind.take(nodes, 1))
        return sizes

    def _steps(self, gain: Ints, worth: Ints) -> Ints:
        """Return how many steps are gained (negative for lost), rounded down.

        Args:
            gain: usable idle gained, weight times percent; 10 milli a percent.
            worth: value gained, in `UNIT` a GPU.

        """
        weight = max(self._fragmentation.weight, 1)
        milli = gain * _GAIN + worth * (_WEIGH_VALUE * weight)
        steps: Ints = milli // (self._step_milli * weight * (UNIT // 1000))
        return steps


class _Known(NamedTuple):
    """What the policy needs to know about a demand."""

    new_instance: bool
    """Whether it is served by a new MIG instance."""
    part: bool
    """Whether it takes an amount of one GPU, and not a device."""
    gpus: int
    """Devices it takes."""
    sizes: Ints
    """Percent of a GPU that a device takes, by GPU type."""

    @classmethod
    def of(cls, demand: Demand, fleet: Fleet) -> "_Known":
        """Return what the policy needs to know about a demand on a fleet."""
        count = sum(devices.request.count for devices in demand.devices)
        ways = [way for devices in demand.devices for tier in devices.tiers[:1] for way in tier]
        sizes = [percent_of(demand.need.requests, kind) or 0 for kind in fleet.types]
        part = count == 1 and bool(ways) and all(isinstance(way, Amount) for way in ways)
        return cls(needs_new_instance(demand), part, count, np.array(sizes, dtype=np.int64))


def _able(room: Room, shape: tuple[int, int]) -> NDArray[np.int8]:
    """Return 1 for each GPU that can serve a device of any request."""
    if len(room) == 1 and room[0].dtype == np.int8:
        return room[0].view(np.int8)
    able = np.zeros(shape, dtype=np.int8)
    for each in room:
        able |= each > 0
    return able


def _after_taking(count: int, remaining: Ints, room: Counts, sizes: Ints) -> Ints:
    """Return the rest of the GPUs when the pod takes those with least left that can serve it, `(gpus, nodes)`."""
    order = np.where(room > 0, remaining, FULL + 1).argsort(axis=0, kind="stable")
    chosen = np.zeros_like(remaining)
    np.put_along_axis(chosen, order[:count], 1, axis=0)
    after: Ints = remaining - np.minimum(sizes, remaining) * chosen * (room > 0)
    return after


def _for_many(pods: Sequence[Typical]) -> tuple[Typical, ...]:
    """Return the pods weighted by the square of their GPUs.

    Where pods leave, room is freed GPU by GPU and small pods take it first; what keeps nodes free must weigh more.
    """
    return tuple(pod._replace(weight=pod.weight * max(pod.gpus, 1) ** 2) for pod in pods)


def _scaled(mix: Mix) -> Mix:
    """Return the mix with weights that keep their ratios and add up to at most `_MOST_WEIGHT` and one a kind."""
    total = sum(count for _, count in mix)
    return mix if total <= _MOST_WEIGHT else tuple((need, max(1, count * _MOST_WEIGHT // total)) for need, count in mix)
