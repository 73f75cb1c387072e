"""Replicas of a model server: slots that serve requests in the order in which they come, and a balancer before them.

A replica serves as many requests at once as it has slots; others wait in it, first come, first served. The balancer
gives each request to the ready replica that serves it first; of equals, to the one with the fewest requests. A replica
that is taken away gets no more requests and ends when it has served what it has, or when its grace period is over.
"""

from collections import deque
from heapq import heappop, heappush, heapreplace

import msgspec

from tessera.sim.serving.traces import Floats

__all__ = ["Replica", "ReplicaModel", "Replicas"]


class ReplicaModel(msgspec.Struct, frozen=True, kw_only=True):
    """How long requests take, and replicas to start; by default an 8B model on half an A100.

    See docs/simulate-serving.md.
    """

    slots: int = 8
    """Requests that a replica serves at once."""
    spec_slots: int | None = None
    """Slots that policies assume; None for the true number. vLLM does not reach `--max-num-seqs` where its KV cache is
    full earlier."""
    base_s: float = 0.03
    context_s: float = 0.0003
    """Seconds for each token of the prompt."""
    generated_s: float = 0.02
    """Seconds for each token of the answer."""
    cold_start_s: float = 120.0
    """From the decision until the replica serves."""
    one_by_one: bool = False
    """Whether policy `tessera` starts replicas one by one, as is rendered where vLLM measures free memory."""
    grace_s: float = 300.0
    """`terminationGracePeriodSeconds`."""
    slo_s: float = 2.0
    """Longest wait for a slot that keeps the objective."""
    idle_s: float | None = None
    """Without a request for so long policy `tessera` has no replica; None to keep one."""

    @property
    def declared_slots(self) -> int:
        """The slots that policies assume."""
        return self.slots if self.spec_slots is None else self.spec_slots

    def service_s(self, context: Floats, generated: Floats) -> Floats:
        """Return how long each request takes in its slot, by the tokens of its prompt and its answer."""
        return self.base_s + self.context_s * context + self.generated_s * generated


class Replica:
    """One replica: when its slots are free, and what it serves."""

    __slots__ = ("completed", "ends", "free", "queued_s", "ready_s", "starts")

    def __init__(self, ready_s: float, slots: int) -> None:
        self.ready_s = ready_s
        self.free = [ready_s] * slots
        """When each slot has served what it was given; a heap."""
        self.ends: list[tuple[float, float, float, bool]] = []
        """End, wait and service of each request here, in seconds, and whether it is late; a heap."""
        self.starts: deque[float] = deque()
        """When the waiting requests start."""
        self.completed = 0
        """Requests that have ended here."""
        self.queued_s = 0.0
        """Sum of their waits."""

    def copy(self) -> "Replica":
        """Return an equal one that shares nothing with this."""
        twin = Replica(self.ready_s, 0)
        twin.free, twin.ends, twin.starts = [*self.free], [*self.ends], deque(self.starts)
        return twin

    def put(self, now_s: float, service_s: float, longest_s: float) -> float:
        """Serve a request after those that are here; return how long it waits, late from `longest_s` on."""
        start_s = max(self.free[0], now_s)
        heapreplace(self.free, start_s + service_s)
        heappush(self.ends, (start_s + service_s, start_s - now_s, service_s, start_s - now_s > longest_s))
        if start_s > now_s:
            self.starts.append(start_s)
        return start_s - now_s

    def waiting(self, now_s: float) -> int:
        """Return how many requests here have no slot yet."""
        starts = self.starts
        while starts and starts[0] <= now_s:
            starts.popleft()
        return len(starts)


class Replicas:
    """All replicas of a server, and the counters that it exports.

    Args:
        model: how long things take.
        count: replicas that are ready at time 0.

    """

    def __init__(self, model: ReplicaModel, count: int) -> None:
        self.model = model
        self.live = [Replica(0.0, model.slots) for _ in range(count)]
        """Those that serve or will, in the order in which they came."""
        self.draining: list[tuple[Replica, float]] = []
        """Those that were taken away, and when each ends: without requests, or when its grace period is over."""
        self.unassigned: deque[float] = deque()
        """When requests came while no replica was ready, and their service times, in turns."""
        self.completed = 0
        """Requests that have ended."""
        self.served_s = 0.0
        """Sum of their services, without their waits."""
        self.late = 0
        """Requests that had to wait longer than the objective, or were cut off."""
        self.lost = 0
        """Requests that were cut off."""

    def copy(self) -> "Replicas":
        """Return the live replicas and their requests, sharing nothing with this; counters begin at 0."""
        twin = Replicas(self.model, 0)
        twin.live = [each.copy() for each in self.live]
        twin.unassigned = deque(self.unassigned)
        return twin

    def ready(self, now_s: float) -> int:
        """Return how many replicas take requests."""
        return sum(each.ready_s <= now_s for each in self.live)

    def put(self, now_s: float, service_s: float, waited_s: float = 0.0) -> float | None:
        """Take a request; return how long it waits for a slot, None where no replica is ready yet to take it.

        Args:
            now_s: when.
            service_s: how long it takes in its slot.
            waited_s: how long it waited before, while no replica was ready.

        """
        best, fewest = None, (0.0, 0)
        for each in self.live:
            if each.ready_s > now_s:
                continue
            ends = each.ends
            while ends and ends[0][0] <= now_s:
                self._ended(each, heappop(ends))
            rank = (max(now_s, each.free[0]), len(ends))
            if best is None or rank < fewest:
                best, fewest = each, rank
        if best is None:
            self.unassigned.extend((now_s, service_s))
            return None
        longest_s = self.model.slo_s - waited_s
        wait_s = best.put(now_s, service_s, longest_s)
        self.late += wait_s > longest_s
        return wait_s

    def release(self, now_s: float) -> list[float]:
        """Give unassigned requests to replicas, now that one is ready; return how long they wait in all."""
        waits = []
        while self.unassigned and self.ready(now_s):
            came_s, service_s = self.unassigned.popleft(), self.unassigned.popleft()
            wait_s = self.put(now_s, service_s, now_s - came_s)
            assert wait_s is not None
            waits.append(now_s - came_s + wait_s)
        return waits

    def advance_to(self, now_s: float) -> None:
        """Count what has ended by now, and what was cut off at the end of a grace period."""
        for each, until_s in (*((each, now_s) for each in self.live), *self.draining):
            while each.ends and each.ends[0][0] <= min(now_s, until_s):
                self._ended(each, heappop(each.ends))
        for each, until_s in self.draining:
            if until_s <= now_s:
                self.lost += len(each.ends)
                self.late += sum(not late for *_, late in each.ends)
        self.draining = [(each, until_s) for each, until_s in self.draining if until_s > now_s]

    def in_flight(self) -> int:
        """Return the requests that are served or wait, as of the last `advance_to`."""
        return sum(len(each.ends) for each in self.live) + len(self.unassigned) // 2

    def waiting(self, now_s: float) -> int:
        """Return the requests that wait."""
        return sum(each.waiting(now_s) for each in self.live) + len(self.unassigned) // 2

    def saturated(self, now_s: float) -> bool:
        """Return whether requests wait in a replica: all its slots are in use then."""
        return any(each.waiting(now_s) for each in self.live)

    def scale(self, now_s: float, count: int, *, start_s: float) -> None:
        """Have so many replicas: new ones start, or some go, first those that have not started, then the least busy.

        Args:
            now_s: when.
            count: replicas to have.
            start_s: how long a new one takes.

        """
        self.live += [Replica(now_s + start_s, self.model.slots) for _ in range(count - len(self.live))]
        first = sorted(self.live, key=lambda each: (each.ready_s <= now_s, len(each.ends), -each.ready_s))
        going = first[: max(0, len(self.live) - count)]
        gone = {id(each) for each in going}
        self.live = [each for each in self.live if id(each) not in gone]
        grace_s = now_s + self.model.grace_s
        self.draining += [(each, min(max(each.ends)[0], grace_s)) for each in going if each.ends]

    def _ended(self, replica: Replica, request: tuple[float, float, float, bool]) -> None:
        replica.completed += 1
        replica.queued_s += request[1]
        self.completed += 1
        self.served_s += request[2]
