"""MIG instances in the fleet: which GPU creates one for a pod, and where, by the tables of `migscore`."""

import functools
from collections.abc import Sequence
from typing import Final

import numpy as np

from tessera.core.cluster.gputypes import GpuType, Ints
from tessera.core.gpu.instancecounts import profile_of, state_bits
from tessera.core.gpu.sharing import Mode
from tessera.core.packing.fit import Demand, Fleet
from tessera.core.packing.fit.ways import NewInstance
from tessera.core.packing.pack.migscore import MigPolicy, MigTables, states, tables
from tessera.core.packing.pack.policy import Mix, Policy, Room

__all__ = ["Cutting", "SliceScores", "needs_new_instance"]

_NOWHERE: Final = -(1 << 39)
_SLICING: Final = {Mode.MIG, Mode.WHOLE}
_READY: Final = 1 << 38
"""The score of an existing instance: it blocks no placement."""


class SliceScores:
    """Scores of MIG placements on every GPU of a fleet, for pods that need a new instance."""

    def __init__(self, fleet: Fleet, mix: Mix, policy: MigPolicy, *, churn_permille: int = 0) -> None:
        self._fleet = fleet
        self._tables: dict[int, MigTables] = {}
        for number, kind in enumerate(fleet.types):
            if kind.sharing.can_repartition and kind.model.memory_slices:
                counts = _counts(kind, mix)
                self._tables[number] = tables(kind.model, policy, counts, churn_permille=churn_permille)
        self._flat: dict[Demand, tuple[Ints, Ints]] = {}

    def of_nodes(self, demand: Demand, nodes: Ints, room: Room) -> Ints:
        """Return the score of the best GPU of each of `nodes`, of those that have `room`, `(len(nodes),)`."""
        able = functools.reduce(np.add, room) > 0
        best: Ints = np.maximum.reduce(np.where(able, self.of_gpus(demand, nodes), _NOWHERE))
        return best

    def of_gpus(self, demand: Demand, nodes: Ints) -> Ints:
        """Return the score of each GPU of `nodes` for the pod's first instance, `(gpus, len(nodes))`."""
        if demand not in self._flat:
            self._flat[demand] = self._flatten(demand)
        offsets, flat = self._flat[demand]
        offset = offsets[self._fleet.kind.take(nodes, 1)]
        scores: Ints = flat.take(np.where(offset, offset + self._fleet.used.take(nodes, 1), 0))
        return scores

    def forget(self, demand: Demand) -> None:
        """Drop what is cached for a demand."""
        self._flat.pop(demand, None)

    def start(self, node: int, row: int, way: NewInstance) -> int:
        """Return the best start of a new instance on one GPU; -1 where nothing fits."""
        kind = int(self._fleet.kind[row, node])
        gpu_type = self._fleet.types[kind]
        profile = gpu_type.model.profiles.index(profile_of(gpu_type.model, way.by_type[kind].profile or ""))
        state = int(self._fleet.used[row, node]) % states(gpu_type.model)
        return int(self._tables[kind].start[profile, state])

    def _flatten(self, demand: Demand) -> tuple[Ints, Ints]:
        """Return for each GPU type where its states begin in one array of scores; state 0 of none is no placement."""
        offsets = np.zeros(len(self._fleet.types), dtype=np.int64)
        rows: list[Ints] = [np.array([_READY], dtype=np.int64)]
        at = 1
        for way in (way for devices in demand.devices for way in devices.tiers[0] if isinstance(way, NewInstance)):
            for kind, option in way.by_type.items():
                model = self._fleet.types[kind].model
                profile = model.profiles.index(profile_of(model, option.profile or ""))
                offsets[kind] = at
                score = np.maximum(self._tables[kind].score[profile], _NOWHERE)
                # The scores ignore the last bit of the state if it says that media engines are in use.
                rows.append(np.tile(score, (1 << state_bits(model)) // states(model)))
                at += 1 << state_bits(model)
        return offsets, np.concatenate(rows)


class Cutting(Policy):
    """A policy that places new MIG instances by tables; pods that need none go by first fit."""

    tables: MigPolicy = MigPolicy.FRAGMENTATION_MIN

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self.learn(())

    def learn(self, mix: Mix, leaving_permille: int = 0) -> bool:
        """Adopt a mix, which changes the scores of instances; see `Policy`."""
        self.slices = SliceScores(self.fleet, mix, self.tables, churn_permille=leaving_permille)
        return True

    def forget(self, demand: Demand) -> None:
        """Drop the scores by state; see `Policy`."""
        self.slices.forget(demand)

    def scores(self, demand: Demand, nodes: Ints, room: Room) -> Ints:
        """Return the score of the best GPU of each of `nodes`; see `Policy`."""
        return (
            self.slices.of_nodes(demand, nodes, room)
            if needs_new_instance(demand)
            else super().scores(demand, nodes, room)
        )

    def gpus(self, fleet: Fleet, node: int, demand: Demand, rows: Sequence[int]) -> Sequence[int]:
        """Return `rows`, the highest score first, then the lowest index; see `Preference`."""
        if not needs_new_instance(demand):
            return super().gpus(fleet, node, demand, rows)
        score = self.slices.of_gpus(demand, np.array([node]))[:, 0].tolist()
        return sorted(rows, key=lambda row: -score[row])

    def starts(self, fleet: Fleet, node: int, row: int, way: NewInstance) -> Sequence[int]:
        """Return the free starts, the one that loses least first; see `Preference`."""
        best = self.slices.start(node, row, way)
        return sorted(super().starts(fleet, node, row, way), key=lambda start: start != best)


def needs_new_instance(demand: Demand) -> bool:
    """Return whether the preferred way to serve the pod creates a MIG instance."""
    return any(isinstance(way, NewInstance) for devices in demand.devices for tier in devices.tiers[:1] for way in tier)


def _counts(kind: GpuType, mix: Mix) -> tuple[int, ...]:
    """Return how often each profile of a model is requested; a whole GPU counts as the largest profile."""
    counts = [0] * len(kind.model.profiles)
    at = {profile.name: i for i, profile in enumerate(kind.model.profiles)}
    largest = max(kind.model.profiles, key=lambda profile: profile.size).name
    for need, count in mix:
        for request in need.requests:
            served = [option.profile or largest for option in kind.options(request) if option.mode in _SLICING]
            for profile in served[:1]:
                counts[at[profile]] += count * request.count
    return tuple(counts)
