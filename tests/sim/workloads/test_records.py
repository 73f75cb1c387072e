"""What pods ask of GPUs and what they hold, in thousandths of a GPU."""

import pytest

from builders.fleets import gpu, node
from builders.shares import share, whole
from tessera.core.cluster.snapshot import Node
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.sharing import AUTO, Mode, Sharing
from tessera.core.workload.need import DeviceRequest, Form, Need, SelectorTerm
from tessera.sim.workloads import PodDemand
from tessera.sim.workloads.records import allocated_milli, demands


def labeled(name: str, product: str, sharing: Sharing = AUTO) -> Node:
    return node(name, gpu(0, model(product), sharing), gpu=name)


SLICED = Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 5),))
NODES = (labeled("h100", "H100-80GB"), labeled("a100", "A100-40GB"), labeled("t4", "T4", SLICED))
WHOLE = DeviceRequest(resource="nvidia.com/gpu", count=2)
MEMORY = DeviceRequest(resource="tessera.dev/gpu-memory", form=Form.NEED, memory_mib=9_000)

# sentence: (need, what it requests)
ASKED = {
    "no GPU": (Need(cpu_milli=5), PodDemand(0, 0)),
    "a whole GPU wherever one can be had whole": (Need(requests=(WHOLE,)), PodDemand(2, 2000)),
    "a replica where only replicas admit the pod": (
        Need(requests=(WHOLE,), node_selector=(("gpu", "t4"),)),
        PodDemand(2, 400),
    ),
    "a replica on the node it is pinned to": (Need(requests=(WHOLE,), node_name="t4"), PodDemand(2, 400)),
    "a slice by its part of the memory slices": (
        Need(requests=(DeviceRequest(resource="nvidia.com/mig-3g.40gb"),)),
        PodDemand(1, 500),
    ),
    "memory on the GPU where it is the least": (Need(requests=(MEMORY,)), PodDemand(1, 110)),
    "memory on a model": (Need(requests=(MEMORY,), models=("A100-40GB",)), PodDemand(1, 219)),
    "whole GPUs where nothing serves": (
        Need(requests=(DeviceRequest(resource="amd.com/gpu", count=3),)),
        PodDemand(3, 3000),
    ),
    "whole GPUs where no node admits": (Need(requests=(MEMORY,), affinity=(SelectorTerm(),)), PodDemand(1, 1000)),
    "several requests together": (Need(requests=(WHOLE, MEMORY)), PodDemand(3, 2110)),
}


@pytest.mark.parametrize(("need", "want"), ASKED.values(), ids=ASKED.keys())
def test_what_a_pod_asks_of_gpus(need: Need, want: PodDemand) -> None:
    assert demands((need,), NODES) == (want,)


def test_what_shares_hold() -> None:
    gpus = {0: NODES[0].gpus[0]}
    memory_mib = gpus[0].memory_mib
    assert allocated_milli(gpus, [whole(0, memory_mib)]) == 1000
    assert allocated_milli(gpus, [share(0, 40_448, percent=42, at="3g.40gb@0")]) == 500
    assert (
        allocated_milli(gpus, [share(0, memory_mib // 4, Mode.MPS, percent=10), share(0, 0, Mode.MPS, percent=30)])
        == 549
    )
    assert allocated_milli(gpus, []) == 0
