"""Where a Job would run, said before it is submitted."""

import asyncio
import importlib.abc
import sys
from typing import Any

import pytest

from builders.kubeobjects import gpu, gpunode, node, share
from builders.kubeobjects import pod as object_of_pod
from harness import virtualtime
from harness.submittedjob import SubmittedJob
from tessera.api.kubernetes.jobs import JobRequest, job_object
from tessera.cli.work.submit.forecast import forecast_job
from tessera.clients.kube import EVERYTHING, GPU_NODES, NODES, PODS, Kind, Listing, MemoryKube, Selection, name_of
from tessera.core.gpu.sharing import Mode

FORECASTS: dict[str, tuple[dict[str, str], str]] = {
    "room": ({"tessera.dev/gpu-memory": "10"}, "it fits on n1 now: 10 GiB of GPU 0 (MPS)"),
    "no room": (
        {"tessera.dev/gpu-memory": "37"},
        "it would be pending: too little free GPU memory: 37 GiB requested, at most 32 GiB free on one GPU",
    ),
    "no such GPU": (
        {"nvidia.com/gpu": "2"},
        "it would be pending: too few devices: 2 x nvidia.com/gpu requested, the node can provide 1 (n1); no node",
    ),
    "nothing asked": ({}, "it fits on n1 now: no GPU"),
}


@pytest.mark.anyio
@pytest.mark.parametrize("case", FORECASTS)
async def test_where_it_would_run_or_why_not_is_known_before_it_is_submitted(case: str) -> None:
    limits, want = FORECASTS[case]
    job = job_object(JobRequest(namespace="ns", image="a", limits=limits, scheduler="tessera-scheduler"))
    one = SubmittedJob()
    for kind, body in (
        (NODES, node("n1", {"tessera.dev/gpu-memory": "40"})),
        (PODS, object_of_pod("other", {"tessera.dev/gpu-memory": 8}, share(0, 8192, Mode.MPS), node="n1")),
        (GPU_NODES, gpunode("n1", gpu(0, node="n1"))),
    ):
        await one.kube.create(kind, body)
        if "status" in body:
            patch, (namespace, name) = {"status": body["status"]}, name_of(body)
            await one.kube.patch(kind, name, patch, namespace=namespace, subresource="status")
    assert (await forecast_job(one.kube, job, 60.0)).startswith(want)
    for kind in (PODS, NODES):
        one.kube.withhold("", kind)
        forecast = await forecast_job(one.kube, job)
        assert forecast.endswith("may not read the nodes and pods of the cluster; ask for ClusterRole tessera-viewer")


@pytest.mark.parametrize("slow", [NODES, PODS])
def test_a_submission_does_not_wait_for_a_slow_api_server(slow: Kind) -> None:
    class Slow(MemoryKube):
        async def list(self, kind: Kind, selection: Selection = EVERYTHING) -> Listing:
            await asyncio.sleep(3600 if kind == slow else 0)
            return await super().list(kind, selection)

    job = job_object(JobRequest(namespace="ns", image="a"))
    assert virtualtime.run(forecast_job(Slow(), job)) == "no forecast: the cluster was not read within 3 s"


class SlowImport(importlib.abc.MetaPathFinder):
    """A machine that needs a minute of virtual time to import the planner."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        del path, target
        if fullname == "tessera.cli.livecluster":
            loop = asyncio.get_running_loop()
            assert isinstance(loop, virtualtime.VirtualLoop)
            loop.passes(60.0)


def test_the_import_of_the_planner_is_no_wait_for_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tessera.cli.livecluster", raising=False)
    monkeypatch.setattr(sys, "meta_path", [SlowImport(), *sys.meta_path])
    job = job_object(JobRequest(namespace="ns", image="a"))
    assert virtualtime.run(forecast_job(MemoryKube(), job)).startswith("it would be pending: ")


def test_all_that_is_read_for_a_forecast_has_one_deadline() -> None:
    class Slow(MemoryKube):
        async def list(self, kind: Kind, selection: Selection = EVERYTHING) -> Listing:
            await asyncio.sleep(2)
            return await super().list(kind, selection)

    job = job_object(JobRequest(namespace="ns", image="a"))
    assert virtualtime.run(forecast_job(Slow(), job)) == "no forecast: the cluster was not read within 3 s"
