"""Reports of GPU usage, for those who read them."""

import msgspec

from tessera.core.usage.contention import Contention
from tessera.core.usage.usagereport import ContainerReport, DeviceReport, GpuReport, UsageReport

BUSY = ContainerReport(
    namespace="team", pod="train", container="main", allocated_mib=8192, used_mib=8100, gpu_percent=90, peak_mib=8150,
    mean_percent=70, observed_s=7500,
)  # fmt: skip
IDLE = ContainerReport(
    namespace="team", pod="notebook", container="main", allocated_mib=8192, used_mib=0, peak_mib=0, observed_s=1800
)
SMALL = ContainerReport(
    namespace="web", pod="serve", container="llm", exclusive=True, allocated_mib=40960, used_mib=2000, gpu_percent=12,
    peak_mib=3000, mean_percent=10, observed_s=3660,
)  # fmt: skip
FINE = ContainerReport(
    namespace="web", pod="fine", container="llm", exclusive=True, allocated_mib=4864, used_mib=3000, peak_mib=3000,
    observed_s=900,
)  # fmt: skip
REPORT = UsageReport(
    node="n1",
    age_s=3.0,
    gpus=(
        GpuReport(
            index=0,
            uuid="GPU-0",
            model="T4",
            temperature_c=91,
            power_watts=69.6,
            throttled=("thermal",),
            devices=(DeviceReport(memory_mib=15000, used_mib=8100, gpu_percent=97, containers=(IDLE, BUSY)),),
            contention=(Contention(cause="thermal", caused_by=("team/train/main",), affected=("team/notebook/main",)),),
        ),
        GpuReport(
            index=1,
            uuid="GPU-1",
            model="A100-40GB",
            devices=(DeviceReport(memory_mib=40960, used_mib=2000, containers=(SMALL,)),),
        ),
        GpuReport(
            index=2,
            uuid="GPU-2",
            model="A100-40GB",
            devices=(
                DeviceReport(profile="1g.5gb", start=0, memory_mib=4864, used_mib=3000, containers=(FINE,)),
                DeviceReport(profile="1g.5gb", start=1, memory_mib=4864),
            ),
            contention=(Contention(cause="saturated"),),
        ),
        GpuReport(index=3, uuid="GPU-3", model="A100-40GB", lost=True),
    ),
)


def _long(pod: str, **fields: object) -> ContainerReport:
    return msgspec.convert(
        {"namespace": "ml-research", "pod": pod, "container": "trainer", "observed_s": 604_620.0, **fields},
        ContainerReport,
    )


_TRAINING = _long(
    "finetune-llama-7d4b9c6f58-vqbjg", exclusive=True, allocated_mib=81_559, used_mib=81_000, gpu_percent=100,
    peak_mib=81_500, mean_percent=99,
)  # fmt: skip
_SERVING = _long(
    "a-model-server-of-a-very-long-name-5f7c9b8d64-x2x9k",
    exclusive=True,
    allocated_mib=20_096,
    used_mib=900,
    peak_mib=1_000,
)
LONG_NAMES = UsageReport(
    node="gke-prod-a3-highgpu-8g-4f1b2c3d-x1y2",
    age_s=3.0,
    gpus=(
        GpuReport(
            index=1,
            model="H100-80GB",
            temperature_c=83,
            power_watts=690,
            throttled=("thermal",),
            devices=(DeviceReport(memory_mib=81_559, used_mib=81_000, gpu_percent=100, containers=(_TRAINING,)),),
            contention=(
                Contention(cause="thermal", caused_by=("ml-research/finetune-llama-7d4b9c6f58-vqbjg/trainer",)),
            ),
        ),
        GpuReport(
            index=2,
            model="H100-80GB",
            devices=(
                DeviceReport(profile="2g.20gb", start=4, memory_mib=20_096, used_mib=900, containers=(_SERVING,)),
                DeviceReport(
                    profile="1g.20gb", start=0, memory_mib=20_000, used_mib=900, gpu_percent=60, ended_percent=12
                ),
            ),
        ),
    ),
)
"""A node of a cloud, and Deployments' pods."""
