"""MIG instances that a run has to create first."""

from builders.profiles import profile
from tessera.core.cluster.snapshot import Gpu, Node, NodeName
from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.workload.need import DeviceRequest, Need
from tessera.sim.compare import simulate
from tessera.sim.engine import RunRules
from tessera.sim.workloads import Arrival, Trace, Workload

HALF = profile("1g.half", 4, (0, 4), 100)


ALL = profile("2g.all", 8, (0,), 200, slices=2)


CUTTABLE = GpuModel(name="M", arch="Hopper", memory_mib=200, memory_slices=8, compute_slices=2, profiles=(HALF, ALL))


def test_a_slice_that_must_be_cut_delays_its_pod_and_an_existing_one_does_not() -> None:
    gpu = Gpu(index=0, model=CUTTABLE, memory_mib=200, sharing=Sharing(modes=(Mode.MIG,)))
    node = Node(name=NodeName("n"), cpu_milli=1000, memory_mib=1000, gpus=(gpu,))
    half = Need(requests=(DeviceRequest(resource="nvidia.com/mig-1g.half"),))
    whole = Need(requests=(DeviceRequest(resource="nvidia.com/mig-2g.all"),))
    trace = Trace.of("mig", [node], [("a", half), ("b", half), ("c", whole), ("d", half)])
    arrivals = (
        Arrival("a", 0, 0.0, 10.0),  # cut at 0, runs from 5
        Arrival("b", 0, 20.0, 10.0),  # the instance is still there
        Arrival("c", 1, 40.0, 10.0),  # cut across it
        Arrival("d", 0, 60.0, 10.0),  # cut again
    )
    workload = Workload.of(trace, 0, arrivals)
    log = simulate(workload, "first-fit", RunRules(create_s=5.0))
    assert log.placed_s == (0.0, 20.0, 40.0, 60.0)
    assert log.left_s == (15.0, 30.0, 55.0, 75.0)
    assert log.instances_created == 3
