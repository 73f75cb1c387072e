"""What a Job uses of its GPUs, as the agent of its node reports it."""

import asyncio

import msgspec
import pytest

from builders.usagereports import BUSY, FINE, REPORT
from tessera.api.kubernetes.jobstates import JobStage, JobState
from tessera.api.tessera.usage.usagejson import write_usage
from tessera.cli.work.follow.gpuusage import gpu_usage
from tessera.clients.kube import PODS, MemoryKube
from tessera.core.usage.usagereport import ContainerReport, DeviceReport, GpuReport, UsageReport

pytestmark = pytest.mark.anyio
HERE = "tessera-system"
TRAIN = JobState(name="train", namespace="team", stage=JobStage.RUNNING, pod="train", node="n1")


def reports(kube: MemoryKube, report: UsageReport) -> None:
    kube.answers[HERE, "agent"] = {(9400, "usage"): write_usage(report)}


def with_use(container: ContainerReport) -> UsageReport:
    return UsageReport(node="n1", gpus=(GpuReport(index=0, devices=(DeviceReport(containers=(container,)),)),))


@pytest.fixture
async def kube() -> MemoryKube:
    """Give an API with two agents, of which the one on another node answers nothing."""
    kube = MemoryKube()
    labels = {"app.kubernetes.io/name": "tessera", "app.kubernetes.io/component": "agent"}
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    for name, node in (("agent", "n1"), ("other", "n2")):
        metadata = {"name": name, "namespace": HERE, "labels": labels}
        await kube.create(PODS, {"metadata": metadata, "spec": {"nodeName": node}, "status": status})
    return kube


@pytest.mark.parametrize(
    ("job", "want"),
    [
        (("team", "train"), "GPU 0: 7.9 GiB of 8 GiB, 90 % busy"),
        (("web", "fine"), "GPU 2 1g.5gb@0: 2.9 GiB of 4.7 GiB"),
    ],
)
async def test_the_first_line_says_all_of_it(kube: MemoryKube, job: tuple[str, str], want: str) -> None:
    reports(kube, REPORT)
    namespace, pod = job
    found = gpu_usage(kube, msgspec.structs.replace(TRAIN, namespace=namespace, pod=pod))
    assert await anext(found) == want


CHANGES = {
    "memory by more than a tenth of what is allocated": (msgspec.structs.replace(BUSY, used_mib=7000), "6.8 GiB"),
    "compute by 20 points": (msgspec.structs.replace(BUSY, gpu_percent=70), "70 % busy"),
    "another device": (msgspec.structs.replace(FINE, namespace="team", pod="train"), "2.9 GiB of 4.7 GiB"),
}


@pytest.mark.parametrize("case", CHANGES)
async def test_the_next_line_comes_with_a_change_that_matters(kube: MemoryKube, case: str) -> None:
    changed, want = CHANGES[case]
    reports(kube, with_use(BUSY))
    found = gpu_usage(kube, TRAIN, every_s=0)
    assert await anext(found) == "GPU 0: 7.9 GiB of 8 GiB, 90 % busy"
    waiting = asyncio.ensure_future(anext(found))
    small = msgspec.structs.replace(BUSY, used_mib=7300, gpu_percent=75)
    for report in (with_use(small), with_use(msgspec.structs.replace(BUSY, used_mib=None, gpu_percent=None))):
        reports(kube, report)
        for _ in range(50):
            await asyncio.sleep(0)
        assert not waiting.done()
    kube.answers.clear()  # the agent is started again meanwhile
    for _ in range(50):
        await asyncio.sleep(0)
    gpu = 1 if case == "another device" else 0
    device = DeviceReport(containers=(changed,))
    reports(kube, UsageReport(node="n1", gpus=(GpuReport(index=gpu, devices=(device,)),)))
    assert want in await waiting


async def test_who_may_not_ask_the_agents_gets_no_line_and_no_error(kube: MemoryKube) -> None:
    reports(kube, REPORT)
    kube.withhold(HERE, PODS)
    assert [each async for each in gpu_usage(kube, TRAIN)] == []
