"""What agents and the other processes expose to Prometheus."""

from builders.usage import GPU, PARTITIONED, SMALL, allocation
from tessera.api.prometheus.exposition import exposition
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.readings import EngineActivity, GpuReading, InstanceReading, ProcessReading, RemappedRows
from tessera.core.usage.attribution import Owner, attribute_usage
from tessera.core.usage.nodemetrics import node_families
from tessera.core.usage.observation import DeviceStatus, GpuCounts, NodeUsage
from tessera.core.usage.ownmetrics import LOOP_AGE, OWN_METRICS
from tessera.measures import Measures

__all__ = ["node_metrics", "process_metrics"]


def node_metrics(used_mib: int = 700) -> bytes:
    """Return what an agent exposes: a GPU that two containers share, one of them idle, and a partitioned one.

    Args:
        used_mib: by the busy one of the containers that share.

    """
    reading = GpuReading(
        memory_used_mib=used_mib, gpu_percent=30, sm_clock_mhz=1410, temperature_c=61, power_watts=250.5,
        energy_mj=1_000_000, clocks_event_reasons=0x24, ecc_corrected=1, ecc_uncorrected=0,
        remapped_rows=RemappedRows(corrected=0, uncorrected=0, failed=False),
        processes=(ProcessReading(pid=7, memory_mib=used_mib, sm_percent=20),),
    )  # fmt: skip
    allocations = (allocation("busy", allocated_mib=2048), allocation("idle", allocated_mib=4096))
    shared = attribute_usage(GPU, reading, allocations, {7: Owner(uid="uid-busy", container="main")})
    part = DeviceId(PARTITIONED.uuid, SMALL)
    activity = EngineActivity(sm_percent=25, tensor_percent=10)
    instances = (InstanceReading(placement=SMALL, memory_used_mib=900, activity=activity),)
    own = GpuReading(sm_clock_mhz=1380, temperature_c=55, power_watts=210.0, instances=instances)
    with_instance = attribute_usage(
        PARTITIONED, own, (allocation("slice", part, exclusive=True, allocated_mib=4864),), {}
    )
    usage = NodeUsage(
        node="n1",
        gpus=(shared, with_instance),
        statuses=(
            *(
                DeviceStatus(device=DeviceId(GPU.uuid), mode=each, isolation="none")
                for each in ("whole", "mps", "memory-share")
            ),
            DeviceStatus(device=part, mode="mig", isolation="hardware"),
        ),
        counts=(GpuCounts(gpu=GPU.uuid),),
    )
    return exposition(node_families(usage))


def process_metrics() -> bytes:
    """Return one sample or more of everything that processes expose of themselves."""
    clock = iter(range(1000))
    measures = Measures(lambda: float(next(clock)))
    measures.turned("reconcile")
    for each in OWN_METRICS:
        labels = dict.fromkeys(each.labels, "x") | ({"namespace": "team"} if "namespace" in each.labels else {})
        if each.kind == "histogram":
            measures.observe(each, 0.02, **labels)
        elif each != LOOP_AGE:
            measures.set(each, {tuple(labels.items()): 1})
    return measures.render()
