"""The log of two kinds of pods on one node, and measures of it under a name."""

from collections.abc import Callable

import msgspec

from tessera.core.cluster.snapshot import Gpu, Node, NodeName
from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.workload.need import DeviceRequest, Form, Need
from tessera.sim.compare import simulate
from tessera.sim.engine import Log, RunRules
from tessera.sim.metrics import RunMetrics
from tessera.sim.workloads import Trace, Workload, filling

__all__ = ["log_of", "named"]

T4 = GpuModel(name="T4", arch="Turing", memory_mib=0)


HALF = Need(requests=(DeviceRequest(resource="milli", form=Form.SHARE, compute_percent=60),))


PAIR = Need(requests=(DeviceRequest(resource="nvidia.com/gpu", count=2),))


def log_of(make: Callable[[Trace, int], Workload] = filling, rules: RunRules | None = None) -> Log:
    node = Node(
        name=NodeName("n"),
        cpu_milli=1,
        memory_mib=1,
        gpus=tuple(Gpu(index=index, model=T4, memory_mib=0) for index in range(4)),
    )
    trace = Trace.of("tiny", [node], [("a", HALF), ("b", PAIR)])
    return simulate(make(trace, 1), "first-fit", rules or RunRules())


def named(run: RunMetrics, policy: str) -> RunMetrics:
    curve = run.curve
    values = tuple(40 - at / 4 for at in range(len(curve.x)))
    full = msgspec.structs.replace(curve, fragmented_percent=values, fragmented_of_idle_percent=values)
    return msgspec.structs.replace(run, policy=policy, curve=full)
