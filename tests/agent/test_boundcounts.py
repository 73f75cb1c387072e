"""What the Node object counts while a restarted kubelet admits its running pods again."""

import asyncio
import itertools

import pytest
from structlog.testing import capture_logs

from harness.agentlogs import SHARING
from harness.agentmachine import Machine
from tessera.clients.kube import NODES, PODS, Kind, Object, Subresource
from tessera.errors import Unavailable

pytestmark = pytest.mark.anyio

GPU = "nvidia.com/gpu"


async def test_a_restarted_kubelet_finds_the_devices_of_running_pods_counted_and_no_free_one(machine: Machine) -> None:
    """It reports 0 before its plugins have registered, and ends pods that do not fit that."""

    async def report(count: int) -> None:
        await machine.kube.patch(NODES, "n1", {"status": {"allocatable": {GPU: str(count)}}}, subresource="status")

    async with machine.agent():
        await machine.kubelet.until_allocatable(GPU, 2)
        await report(2)
        await machine.pod("old", {GPU: 1})
        await machine.start("old", GPU)
        status = {"phase": "Running", "containerStatuses": [{"name": "c", "containerID": "containerd://old"}]}
        await machine.kube.patch(PODS, "old", {"status": status}, namespace="default", subresource="status")
        for without_record in (False, True):
            await machine.kubelet.restart(without_record=without_record)
            await report(0)
            node = await machine.until(lambda node: node["status"]["allocatable"][GPU] != "0")
            assert node["status"]["allocatable"] == {GPU: "1"}
        # The kubelet admits the older of the two first, and what it finds must do for both.
        for name in ("bound", "beyond"):
            await machine.pod(name, {GPU: 1})
        await machine.kubelet.restart(without_record=True)
        await report(0)
        node = await machine.until(lambda node: node["status"]["allocatable"][GPU] != "0")
        assert node["status"]["allocatable"] == {GPU: "2"}, "no more than are healthy"


async def test_what_the_kubelet_reports_once_it_has_admitted_its_pods_stays(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows best how many devices there are."""
    loop = asyncio.get_running_loop()
    time = loop.time
    async with machine.agent():
        await machine.kubelet.until_allocatable(GPU, 2)
        await machine.pod("old", {GPU: 1})
        await machine.kubelet.restart()
        zero = {"status": {"allocatable": {GPU: "0"}}}
        await machine.kube.patch(NODES, "n1", zero, subresource="status")
        await machine.until(lambda node: node["status"]["allocatable"][GPU] == "1")
        for later_s in (3, 6, 9, 10, 11):  # a registration during the three seconds after another adds three
            monkeypatch.setattr(loop, "time", lambda later_s=later_s: time() + later_s)
            # A list that the agent makes now: what it would have written by this time is written.
            (machine.folder / "sharing/default").write_text(SHARING.replace("3", str(later_s)))
            await machine.kubelet.until_allocatable(GPU, 2 * later_s)
            if later_s == 9:
                await machine.kube.patch(NODES, "n1", zero, subresource="status")
        assert (await machine.node())["status"]["allocatable"][GPU] == "0"


async def test_an_api_server_that_refuses_the_count_is_not_asked_again_at_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch, tries, enough = machine.kube.patch, list[float](), asyncio.Event()

    async def refuse(
        kind: Kind, name: str, body: Object, *, namespace: str = "", subresource: Subresource = ""
    ) -> Object:
        if kind == NODES and "allocatable" in (body.get("status") or {}):
            tries.append(asyncio.get_running_loop().time())
            if len(tries) == 4:
                enough.set()
            raise Unavailable("nodes/status", found="forbidden")
        return await patch(kind, name, body, namespace=namespace, subresource=subresource)

    async with machine.agent():
        await machine.kubelet.until_allocatable(GPU, 2)
        await machine.pod("old", {GPU: 1})
        await machine.kube.patch(NODES, "n1", {"status": {"allocatable": {GPU: "0"}}}, subresource="status")
        monkeypatch.setattr(machine.kube, "patch", refuse)
        with capture_logs() as logs:
            await machine.kubelet.restart()
            async with asyncio.timeout(20):
                await enough.wait()
    assert min(after - before for before, after in itertools.pairwise(tries)) >= 0.2
    assert [each["reason"] for each in logs if each["event"] == "bound_pods_not_counted"] == ["nodes/status: forbidden"]
