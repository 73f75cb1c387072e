"""The engine against a ledger in plain Python that knows nothing of Tessera: who holds what of which GPU when."""

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.fit import Fleet
from tessera.core.gpumodels import GpuModel, Profile
from tessera.core.need import Ask, Form, Need
from tessera.core.pack import Choice, Packer
from tessera.core.sharing import Mode, Sharing
from tessera.core.snapshot import Gpu, Node, NodeName
from tessera.sim.compare import simulate
from tessera.sim.engine import Rules, run
from tessera.sim.workloads import Arrival, Trace, Workload

T4 = GpuModel(name="T4", arch="Turing", memory_mib=0)
SHARED = Sharing(modes=(Mode.WHOLE, Mode.MEMORY_SHARE))
CPU_MILLI = 8_000


class Want(NamedTuple):
    """A pod as the plain ledger sees it."""

    cpu: int
    gpus: int
    percent: int

    def need(self) -> Need:
        if not self.gpus:
            return Need(cpu_milli=self.cpu)
        whole = Ask(resource="nvidia.com/gpu", count=self.gpus)
        share = Ask(resource="milli", form=Form.SHARE, compute_percent=self.percent)
        return Need(cpu_milli=self.cpu, asks=(share if self.percent < 100 else whole,))


WANTS = (Want(1000, 0, 0), Want(500, 1, 40), Want(2000, 1, 70), Want(1000, 1, 100), Want(1000, 2, 100))


def workload_of(gpus: Sequence[int], pods: Sequence[tuple[Want, float, float]]) -> Workload:
    nodes = [
        Node(
            name=NodeName(f"n{number}"),
            cpu_milli=CPU_MILLI,
            memory_mib=1,
            gpus=tuple(Gpu(index=index, model=T4, memory_mib=0, sharing=SHARED) for index in range(count)),
        )
        for number, count in enumerate(gpus)
    ]
    trace = Trace.of("tiny", nodes, [(f"p{at:02}", want.need()) for at, (want, _, _) in enumerate(pods)])
    arrivals = tuple(
        Arrival(trace.names[at], trace.kind_of[at], at_s, stay_s) for at, (_, at_s, stay_s) in enumerate(pods)
    )
    return Workload.of(trace, 0, arrivals)


class Ledger:
    """What is left of every node, in plain numbers; pods leave by themselves as time goes on."""

    def __init__(self, gpus: Sequence[int]) -> None:
        self.cpu = [CPU_MILLI for _ in gpus]
        self.left = [[100] * count for count in gpus]
        self.leaving: list[tuple[float, int, Want, Choice]] = []

    def fits(self, want: Want) -> bool:
        return any(
            cpu >= want.cpu and sum(percent >= want.percent for percent in left) >= want.gpus
            for cpu, left in zip(self.cpu, self.left, strict=True)
        )

    def depart_until(self, now_s: float) -> None:
        while self.leaving and self.leaving[0][0] <= now_s:
            _, _, want, spot = heapq.heappop(self.leaving)
            self._change(want, spot, 1)

    def place(self, number: int, want: Want, spot: Choice, left_s: float) -> None:
        self._change(want, spot, -1)
        heapq.heappush(self.leaving, (left_s, number, want, spot))

    def _change(self, want: Want, spot: Choice, sign: int) -> None:
        gpus = [share.gpu for share in spot.shares]
        assert len(gpus) == len(set(gpus)) == want.gpus
        self.cpu[spot.node] += sign * want.cpu
        assert 0 <= self.cpu[spot.node] <= CPU_MILLI
        for gpu in gpus:
            self.left[spot.node][gpu] += sign * want.percent
            assert 0 <= self.left[spot.node][gpu] <= 100


GPUS = st.lists(st.integers(0, 3), min_size=1, max_size=3).filter(any)
STAYS = st.sampled_from([1.0, 3.0, 10.0, math.inf])
PODS = st.lists(st.tuples(st.sampled_from(WANTS), st.integers(0, 2), STAYS), min_size=1, max_size=25)
QUEUES = st.sampled_from(["drop", "fifo", "backfill"])


def in_time(pods: Sequence[tuple[Want, int, float]]) -> list[tuple[Want, float, float]]:
    """Turn gaps between arrivals into moments."""
    at_s, timed = 0.0, []
    for want, gap_s, stay_s in pods:
        at_s += gap_s
        timed.append((want, at_s, stay_s))
    return timed


@given(GPUS, PODS, QUEUES)
def test_nothing_is_granted_twice_and_pods_are_conserved(
    gpus: list[int], gaps: list[tuple[Want, int, float]], queue: str
) -> None:
    pods = in_time(gaps)
    rules = msgspec.convert({"queue": queue}, Rules)
    log = simulate(workload_of(gpus, pods), "first-fit", rules)
    assert len(log.spots) == len(log.placed_s) == len(log.left_s) == len(pods)
    for (_, at_s, stay_s), spot, placed_s, left_s in zip(pods, log.spots, log.placed_s, log.left_s, strict=True):
        assert (spot is None) == (placed_s == math.inf)
        assert left_s == placed_s + stay_s
        assert placed_s >= at_s
        assert queue != "drop" or placed_s in {at_s, math.inf}
    ledger = Ledger(gpus)
    for at in sorted(range(len(pods)), key=log.placed_s.__getitem__):
        spot = log.spots[at]
        if spot is not None:
            ledger.depart_until(log.placed_s[at])
            ledger.place(at, pods[at][0], spot, log.left_s[at])
    assert log == simulate(workload_of(gpus, pods), "first-fit", rules), "the same input gives the same log"


@given(GPUS, PODS)
def test_a_pod_is_dropped_only_if_no_node_fits(gpus: list[int], gaps: list[tuple[Want, int, float]]) -> None:
    pods = in_time(gaps)
    log = simulate(workload_of(gpus, pods), "first-fit", Rules())
    ledger = Ledger(gpus)
    for at, (want, now_s, _) in enumerate(pods):
        ledger.depart_until(now_s)
        spot = log.spots[at]
        assert ledger.fits(want) == (spot is not None)
        if spot is not None:
            ledger.place(at, want, spot, log.left_s[at])


@given(GPUS, PODS)
def test_nobody_passes_in_a_strict_queue(gpus: list[int], gaps: list[tuple[Want, int, float]]) -> None:
    log = simulate(workload_of(gpus, in_time(gaps)), "first-fit", Rules(queue="fifo"))
    assert list(log.placed_s) == sorted(log.placed_s)


WHOLE, PAIR = Want(1000, 1, 100), Want(1000, 2, 100)
QUEUED = {
    "a pod that fits nowhere is lost": ("drop", [0.0, math.inf, 2.0]),
    "in a strict queue a small pod waits behind a large one": ("fifo", [0.0, 10.0, 15.0]),
    "with backfill it passes": ("backfill", [0.0, 10.0, 2.0]),
}


@pytest.mark.parametrize(("queue", "want"), QUEUED.values(), ids=QUEUED.keys())
def test_who_waits(queue: str, want: list[float]) -> None:
    pods = [(WHOLE, 0.0, 10.0), (PAIR, 1.0, 5.0), (WHOLE, 2.0, 1.0)]
    log = simulate(workload_of([2], pods), "first-fit", msgspec.convert({"queue": queue}, Rules))
    assert list(log.placed_s) == want


def test_departures_come_before_arrivals_of_the_same_moment() -> None:
    log = simulate(workload_of([1], [(WHOLE, 0.0, 3.0), (WHOLE, 3.0, 3.0)]), "first-fit", Rules())
    assert log.placed_s == (0.0, 3.0)


def test_time_stops_at_the_end_of_measuring_though_someone_waits() -> None:
    workload = workload_of([1], [(WHOLE, 0.0, 10.0), (WHOLE, 1.0, 10.0)])
    log = simulate(msgspec.structs.replace(workload, end_s=5.0), "first-fit", Rules(queue="fifo"))
    assert log.placed_s == (0.0, math.inf)


def test_progress_is_told_now_and_then_and_at_the_end() -> None:
    workload = workload_of([1], [(WHOLE, 0.0, math.inf)] * 300)
    told: list[int] = []
    run(workload, Packer(Fleet.of(workload.snapshot), "first-fit"), Rules(), progress=told.append)
    assert told == [0, 256, 300]


HALF = Profile(
    name="1g.half",
    compute_slices=1,
    size=4,
    starts=(0, 4),
    max_instances=2,
    memory_mib=100,
    media="default",
    placement="inferred",
)
ALL = Profile(
    name="2g.all",
    compute_slices=2,
    size=8,
    starts=(0,),
    max_instances=1,
    memory_mib=200,
    media="default",
    placement="inferred",
)
CUTTABLE = GpuModel(name="M", arch="Hopper", memory_mib=200, units=8, compute_slices=2, profiles=(HALF, ALL))


def test_a_slice_that_must_be_cut_delays_its_pod_and_an_existing_one_does_not() -> None:
    gpu = Gpu(index=0, model=CUTTABLE, memory_mib=200, sharing=Sharing(modes=(Mode.MIG,)))
    node = Node(name=NodeName("n"), cpu_milli=1000, memory_mib=1000, gpus=(gpu,))
    half = Need(asks=(Ask(resource="nvidia.com/mig-1g.half"),))
    whole = Need(asks=(Ask(resource="nvidia.com/mig-2g.all"),))
    trace = Trace.of("mig", [node], [("a", half), ("b", half), ("c", whole), ("d", half)])
    arrivals = (
        Arrival("a", 0, 0.0, 10.0),  # cut at 0, runs from 5
        Arrival("b", 0, 20.0, 10.0),  # the instance is still there
        Arrival("c", 1, 40.0, 10.0),  # cut across it
        Arrival("d", 0, 60.0, 10.0),  # cut again
    )
    workload = Workload.of(trace, 0, arrivals)
    log = simulate(workload, "first-fit", Rules(cut_s=5.0))
    assert log.placed_s == (0.0, 20.0, 40.0, 60.0)
    assert log.left_s == (15.0, 30.0, 55.0, 75.0)
    assert log.cuts == 3
