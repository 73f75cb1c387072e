"""The engine against a ledger in plain Python that knows nothing of Tessera: who holds what of which GPU when."""

import functools
import heapq
import math
from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.runs import CPU_MILLI, GPUS, PAIR, PODS, WHOLE, Want, in_time, workload_of
from tessera.core.packing.fit import Fleet
from tessera.core.packing.pack import Choice, Packer
from tessera.sim.compare import simulate
from tessera.sim.engine import Log, RunRules, run
from tessera.sim.replay import replay


class Ledger:
    """What is left of every node, in plain numbers; pods leave by themselves as time goes on."""

    def __init__(self, gpus: Sequence[int]) -> None:
        self.cpu = [CPU_MILLI for _ in gpus]
        self.left = [[100] * count for count in gpus]
        self.there: dict[int, tuple[Want, Choice]] = {}
        self.leaving: list[tuple[float, int]] = []

    def fits(self, want: Want) -> bool:
        return any(
            cpu >= want.cpu and sum(percent >= want.percent for percent in left) >= want.gpus
            for cpu, left in zip(self.cpu, self.left, strict=True)
        )

    def depart_until(self, now_s: float) -> None:
        while self.leaving and self.leaving[0][0] <= now_s:
            _, number = heapq.heappop(self.leaving)
            self._change(*self.there.pop(number), 1)

    def place(self, number: int, want: Want, spot: Choice, left_s: float) -> None:
        self.there[number] = want, spot
        self._change(want, spot, -1)
        heapq.heappush(self.leaving, (left_s, number))

    def move(self, moved: int, spot: Choice, make_place: Callable[[], None]) -> None:
        want, before = self.there[moved]
        self._change(want, before, 1)
        make_place()
        self._change(want, spot, -1)
        self.there[moved] = want, spot

    def _change(self, want: Want, spot: Choice, sign: int) -> None:
        gpus = [share.gpu for share in spot.shares]
        assert len(gpus) == len(set(gpus)) == want.gpus
        self.cpu[spot.node] += sign * want.cpu
        assert 0 <= self.cpu[spot.node] <= CPU_MILLI
        for gpu in gpus:
            self.left[spot.node][gpu] += sign * want.percent
            assert 0 <= self.left[spot.node][gpu] <= 100


QUEUES = st.sampled_from(["drop", "fifo", "backfill"])


def follow(gpus: list[int], pods: list[tuple[Want, float, float]], log: Log) -> None:
    """Check by the ledger that nothing is allocated twice and, without a queue, that nobody is dropped who fits."""
    ledger = Ledger(gpus)
    moves = {move.made_for: move for move in log.moves}
    came_s = [
        at_s if placed_s == math.inf else placed_s for (_, at_s, _), placed_s in zip(pods, log.placed_s, strict=True)
    ]
    for at in sorted(range(len(pods)), key=came_s.__getitem__):
        ledger.depart_until(came_s[at])
        want, spot, left_s = pods[at][0], log.spots[at], log.left_s[at]
        if spot is None:
            assert log.rules.queue != "drop" or not ledger.fits(want)
        elif at in moves:
            assert not ledger.fits(want), "moved without need"
            place = functools.partial(ledger.place, at, want, spot, left_s)
            ledger.move(moves[at].moved, moves[at].spot, place)
        else:
            ledger.place(at, want, spot, left_s)


@given(GPUS, PODS, QUEUES, st.integers(0, 3))
def test_nothing_is_allocated_twice_and_pods_are_conserved(
    gpus: list[int], gaps: list[tuple[Want, int, float]], queue: str, moves: int
) -> None:
    pods = in_time(gaps)
    rules = msgspec.convert({"queue": queue, "moves": moves}, RunRules)
    log = simulate(workload_of(gpus, pods), "first-fit", rules)
    assert len(log.spots) == len(log.placed_s) == len(log.left_s) == len(pods)
    for (_, at_s, stay_s), spot, placed_s, left_s in zip(pods, log.spots, log.placed_s, log.left_s, strict=True):
        assert (spot is None) == (placed_s == math.inf)
        assert left_s == placed_s + stay_s
        assert placed_s >= at_s
        assert queue != "drop" or placed_s in {at_s, math.inf}
    assert len(log.moves) <= moves
    follow(gpus, pods, log)
    assert log == simulate(workload_of(gpus, pods), "first-fit", rules), "the same input gives the same log"


@given(GPUS, PODS)
def test_nobody_passes_in_a_strict_queue(gpus: list[int], gaps: list[tuple[Want, int, float]]) -> None:
    log = simulate(workload_of(gpus, in_time(gaps)), "first-fit", RunRules(queue="fifo"))
    assert list(log.placed_s) == sorted(log.placed_s)


QUEUED = {
    "a pod that fits nowhere is lost": ("drop", [0.0, math.inf, 2.0]),
    "in a strict queue a small pod waits behind a large one": ("fifo", [0.0, 10.0, 15.0]),
    "with backfill it passes": ("backfill", [0.0, 10.0, 2.0]),
}


@pytest.mark.parametrize(("queue", "want"), QUEUED.values(), ids=QUEUED.keys())
def test_who_waits(queue: str, want: list[float]) -> None:
    pods = [(WHOLE, 0.0, 10.0), (PAIR, 1.0, 5.0), (WHOLE, 2.0, 1.0)]
    log = simulate(workload_of([2], pods), "first-fit", msgspec.convert({"queue": queue}, RunRules))
    assert list(log.placed_s) == want


def test_a_pod_that_stays_no_time_leaves_after_it_came() -> None:
    log = simulate(workload_of([1], [(WHOLE, 0.0, 0.0), (WHOLE, 1.0, 1.0)]), "first-fit", RunRules())
    assert replay(log).idle_percent.tolist() == [0.0, 100.0, 0.0, 100.0]


def test_one_pod_moves_so_that_another_fits() -> None:
    """30 % on one GPU and 70 % on the other leave no whole GPU until the smaller joins the larger."""
    pods = [(WHOLE, 0.0, 1.0), (Want(100, 1, 30), 0.5, 9.0), (Want(100, 1, 70), 2.0, 9.0), (WHOLE, 3.0, 9.0)]
    still = simulate(workload_of([1, 1], pods), "first-fit", RunRules())
    assert [spot and spot.node for spot in still.spots] == [0, 1, 0, None]
    moved = simulate(workload_of([1, 1], pods), "first-fit", RunRules(moves=1))
    assert [spot and spot.node for spot in moved.spots] == [0, 1, 0, 1]
    assert [(move.at_s, move.made_for, move.moved, move.spot.node) for move in moved.moves] == [(3.0, 3, 1, 0)]
    assert replay(moved).idle_percent.tolist() == [50.0, 35.0, 85.0, 50.0, 0.0, 15.0, 50.0, 100.0]


def test_a_pod_that_would_not_fit_without_its_neighbor_stays() -> None:
    """The 40 % pod could join the one on the other GPU, but its node would still lack cpu for the last pod."""
    pods = [(Want(6000, 0, 0), 0.0, math.inf), (Want(500, 1, 40), 0.0, math.inf), (Want(4000, 1, 50), 1.0, math.inf)]
    log = simulate(workload_of([1, 1], [*pods, (Want(5000, 1, 70), 2.0, math.inf)]), "first-fit", RunRules(moves=1))
    assert [spot and spot.node for spot in log.spots] == [0, 0, 1, None]


def test_departures_come_before_arrivals_of_the_same_moment() -> None:
    log = simulate(workload_of([1], [(WHOLE, 0.0, 3.0), (WHOLE, 3.0, 3.0)]), "first-fit", RunRules())
    assert log.placed_s == (0.0, 3.0)


def test_time_stops_at_the_end_of_measuring_though_someone_waits() -> None:
    workload = workload_of([1], [(WHOLE, 0.0, 10.0), (WHOLE, 1.0, 10.0)])
    log = simulate(msgspec.structs.replace(workload, end_s=5.0), "first-fit", RunRules(queue="fifo"))
    assert log.placed_s == (0.0, math.inf)


def test_progress_is_reported_now_and_then_and_at_the_end() -> None:
    workload = workload_of([1], [(WHOLE, 0.0, math.inf)] * 300)
    told: list[int] = []
    run(workload, Packer(Fleet.of(workload.snapshot), "first-fit"), RunRules(), progress=told.append)
    assert told == [0, 256, 300]
