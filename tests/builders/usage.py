"""GPUs, containers on them and measurements, for what is used of GPUs."""

from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.inventory import GpuFacts, Instance, MigMode
from tessera.core.gpu.mig import Placement
from tessera.core.usage.attribution import ContainerDevice

A100 = model("A100-40GB")
SMALL, LARGE = Placement(0, 1, "1g.5gb"), Placement(4, 4, "3g.20gb")
GPU = GpuFacts(
    index=0,
    uuid="GPU-0",
    minor=0,
    product="NVIDIA A100-SXM4-40GB",
    model=A100,
    pci_bus_id="00000000:07:00.0",
    memory_total_mib=A100.memory_mib,
    memory_mib=A100.memory_mib - 500,
    mig=MigMode(current=False, pending=False),
)


def instance(number: int, placement: Placement, memory_mib: int) -> Instance:
    return Instance(
        placement=placement, uuid=f"MIG-{number}", gpu_instance=number, compute_instance=0, memory_mib=memory_mib
    )


INSTANCES = (instance(7, SMALL, 4864), instance(2, LARGE, 19968))
PARTITIONED = GpuFacts(
    index=1,
    uuid="GPU-1",
    minor=1,
    product=GPU.product,
    model=A100,
    pci_bus_id="00000000:0F:00.0",
    memory_total_mib=A100.memory_mib,
    memory_mib=A100.memory_mib - 500,
    mig=MigMode(current=True, pending=True),
    instances=INSTANCES,
)
WHOLE = DeviceId(GPU.uuid)


def allocation(
    pod: str,
    device: DeviceId = WHOLE,
    *,
    container: str = "main",
    exclusive: bool = False,
    allocated_mib: int | None = 1024,
) -> ContainerDevice:
    return ContainerDevice(
        namespace="team",
        pod=pod,
        container=container,
        uid=f"uid-{pod}",
        device=device,
        exclusive=exclusive,
        allocated_mib=allocated_mib,
    )
