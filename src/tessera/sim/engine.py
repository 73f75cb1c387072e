"""Runs a workload against a packer on a virtual clock: arrivals and departures in, a log out.

The packer decides where a pod goes; it is the same one that plans for a real cluster. The engine adds time: which pods
wait and leave, how long creating an instance takes, and which pod may move to make room. Nothing here is random and
nothing reads a clock: the same workload, packer and rules give the same log.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

from tessera.core.packing.defrag.onemove import Mover
from tessera.core.packing.pack import Choice, Packer
from tessera.sim.instances import Instances
from tessera.sim.workloads import Workload

__all__ = ["Log", "RunRules", "SimulatedMove", "run"]

_PROGRESS_EVERY = 256


class RunRules(msgspec.Struct, frozen=True, kw_only=True):
    """What happens around the packer's decisions."""

    queue: Literal["drop", "fifo", "backfill"] = "drop"
    """What happens to a pod that fits nowhere: it is dropped, or it waits. In a strict queue no pod passes the first
    one; with backfill every pod that fits may."""
    moves: int = 0
    """The most pods that may move in the whole run, one for each pod that would not fit."""
    create_s: float = 0.0
    """Time to create a MIG instance that does not exist yet; the pod runs after it. A GPU creates one at a time."""


class SimulatedMove(NamedTuple):
    """A running pod that moved so that another fits."""

    at_s: float
    made_for: int
    """Arrival that it made room for."""
    moved: int
    """Arrival that moved."""
    spot: Choice
    """Its new place."""


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """The events, one entry for each arrival, in order."""

    workload: Workload
    policy: str
    rules: RunRules
    spots: tuple[Choice | None, ...]
    """First place of the pod; None if it never got one."""
    placed_s: tuple[float, ...]
    """When it took its place; infinite where never."""
    left_s: tuple[float, ...]
    """When it gave the place back; infinite where never."""
    moves: tuple[SimulatedMove, ...] = ()
    instances_created: int = 0
    """MIG instances that had to be created."""


def run(
    workload: Workload,
    packer: Packer,
    rules: RunRules,
    *,
    policy: str = "",
    progress: Callable[[int], None] = lambda _: None,
) -> Log:
    """Return the log of a run, which uses up `packer`.

    At one moment, departures come before arrivals. A pod stays for its time from when it starts to run. `progress` is
    called now and then with the number of arrivals done. Cost: about a microsecond an event beside the packer's.
    """
    state = _Run(workload, packer, rules)
    for index, arrival in enumerate(workload.arrivals):
        if index % _PROGRESS_EVERY == 0:
            progress(index)
        state.arrive(index, arrival.kind, arrival.at_s)
    state.finish()
    progress(len(workload.arrivals))
    return Log(
        workload=workload,
        policy=policy,
        rules=rules,
        spots=tuple(state.spots),
        placed_s=tuple(state.placed_s),
        left_s=tuple(state.left_s),
        moves=tuple(state.moves),
        instances_created=state.instances.created,
    )


class _Run:
    """The state of one run: places, departures, and the queue."""

    def __init__(self, workload: Workload, packer: Packer, rules: RunRules) -> None:
        count = len(workload.arrivals)
        self.workload = workload
        self.packer = packer
        self.rules = rules
        self.kinds = [packer.intern(need) for need in workload.kinds]
        self.spots: list[Choice | None] = [None] * count
        self.placed_s = [math.inf] * count
        self.left_s = [math.inf] * count
        self.placed: dict[int, Choice] = {}
        self.leaving: list[tuple[float, int]] = []
        self.waiting: deque[int] = deque()
        self.moves: list[SimulatedMove] = []
        self.stuck: set[int] = set()  # kinds no move helps, until something is given back: placements only take room
        self.instances = Instances(workload.snapshot)
        self.mover = Mover(packer)

    def arrive(self, index: int, kind: int, at_s: float) -> None:
        """Process an arrival."""
        if self.leaving and self.leaving[0][0] <= at_s:
            self.depart_until(at_s)
        behind = self.rules.queue == "fifo" and bool(self.waiting)
        if not behind:
            spot = self.packer.place(self.kinds[kind])
            if spot is None and len(self.moves) < self.rules.moves:
                spot = self.make_room(index, at_s)
            if spot is not None:
                self.start(index, spot, at_s)
                return
        if self.rules.queue != "drop":
            self.waiting.append(index)

    def start(self, index: int, spot: Choice, now_s: float) -> None:
        """Note that a pod has its place."""
        self.spots[index] = self.placed[index] = spot
        self.placed_s[index] = now_s
        stay_s = self.workload.arrivals[index].stay_s
        delay_s = self.rules.create_s * self.instances.hold(spot.node, spot.shares) if self.instances else 0.0
        if stay_s < math.inf:
            self.left_s[index] = now_s + delay_s + stay_s
            heapq.heappush(self.leaving, (self.left_s[index], index))

    def make_room(self, index: int, now_s: float) -> Choice | None:
        """Move one running pod so that this one fits; None if no single move helps."""
        kind = self.kind_of(index)
        if kind in self.stuck:
            return None
        made = self.mover.make_room(kind, ((other, self.kind_of(other), spot) for other, spot in self.placed.items()))
        if made is None:
            self.stuck.add(kind)
            return None
        self.stuck.clear()
        self.placed[made.moved] = made.elsewhere
        self.instances.hold(made.elsewhere.node, made.elsewhere.shares)
        self.moves.append(SimulatedMove(now_s, index, made.moved, made.elsewhere))
        return made.spot

    def kind_of(self, index: int) -> int:
        """Return the packer's number of an arrival's kind."""
        return self.kinds[self.workload.arrivals[index].kind]

    def depart_until(self, now_s: float) -> None:
        """Process all departures until now, retrying queued pods after each."""
        while self.leaving and self.leaving[0][0] <= now_s:
            left_s, index = heapq.heappop(self.leaving)
            self.packer.release(self.kind_of(index), self.placed.pop(index))
            self.stuck.clear()
            if self.waiting:
                self.retry(left_s)

    def retry(self, now_s: float) -> None:
        """Try queued pods in order of arrival; in a strict queue up to the first that does not fit.

        A kind that did not fit does not fit after others were placed, so each kind is tried until it fails.
        """
        strict = self.rules.queue == "fifo"
        failed: set[int] = set()
        still: deque[int] = deque()
        for index in self.waiting:
            kind = self.kind_of(index)
            if not (strict and failed) and kind not in failed:
                spot = self.packer.place(kind, again=True)
                if spot is not None:
                    self.start(index, spot, now_s)
                    continue
                failed.add(kind)
            still.append(index)
        self.waiting = still

    def finish(self) -> None:
        """Continue after the last arrival, while pods are queued."""
        while self.waiting and self.leaving and self.leaving[0][0] <= self.workload.end_s:
            self.depart_until(self.leaving[0][0])
