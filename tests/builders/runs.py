"""Small workloads, and runs of them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from tessera.core.cluster.snapshot import Gpu, Node, NodeName
from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.workload.need import DeviceRequest, Form, Need
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
        whole = DeviceRequest(resource="nvidia.com/gpu", count=self.gpus)
        share = DeviceRequest(resource="milli", form=Form.SHARE, compute_percent=self.percent)
        return Need(cpu_milli=self.cpu, requests=(share if self.percent < 100 else whole,))


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


GPUS = st.lists(st.integers(0, 3), min_size=1, max_size=3).filter(any)


STAYS = st.sampled_from([1.0, 3.0, 10.0, math.inf])


PODS = st.lists(st.tuples(st.sampled_from(WANTS), st.integers(0, 2), STAYS), min_size=1, max_size=25)


def in_time(pods: Sequence[tuple[Want, int, float]]) -> list[tuple[Want, float, float]]:
    """Turn gaps between arrivals into moments."""
    at_s, timed = 0.0, []
    for want, gap_s, stay_s in pods:
        at_s += gap_s
        timed.append((want, at_s, stay_s))
    return timed


WHOLE, PAIR = Want(1000, 1, 100), Want(1000, 2, 100)
