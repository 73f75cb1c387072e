"""`tessera defrag --execute` with the real API server, controllers and schedulers, on nodes without kubelets."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from kube import pods
from kube.fakenodes import MADE, FakeNode, connected, delete_nodes, delete_pods, make_nodes
from tessera.clients.kube import NODES, PODS, Kube, Object, Selection
from tessera.errors import TesseraError
from testbed.cluster import Cluster

pytestmark = pytest.mark.anyio
FOLDER = Path(sys.executable).parent
HERE = Selection(namespace="default", labels=(MADE,))


async def kubelet(kube: Kube) -> None:
    """Let bound pods run and deleted ones end, as kubelets would."""
    ready = {"type": "Ready", "status": "True"}
    while True:
        for each in (await kube.list(PODS, HERE)).objects:
            name = each["metadata"]["name"]
            with contextlib.suppress(TesseraError):  # it may be gone meanwhile
                if "deletionTimestamp" in each["metadata"]:
                    await asyncio.sleep(1)  # its container ends
                    await kube.delete(PODS, name, namespace="default", grace_s=0)
                elif each["spec"].get("nodeName") and each["status"]["phase"] == "Pending":
                    status = {"phase": "Running", "conditions": [*each["status"].get("conditions", ()), ready]}
                    await kube.patch(PODS, name, {"status": status}, namespace="default", subresource="status")
        await asyncio.sleep(0.2)


@pytest.fixture
async def kube(scheduling_plane: Cluster) -> AsyncIterator[Kube]:
    async with connected(scheduling_plane) as client:
        await make_nodes(client, [FakeNode(name=f"gpu-{name}", gpus=1) for name in "ab"])
        task = asyncio.create_task(kubelet(client))
        try:
            yield client
        finally:
            scheduling_plane.kubectl("delete", "deployment,pdb", "--all", "--cascade=foreground", "--wait=false")
            await until(client, lambda found: not any(each["metadata"].get("ownerReferences") for each in found))
            task.cancel()
            await delete_pods(client)
            await delete_nodes(client)


async def until(kube: Kube, condition: Callable[[list[Object]], bool]) -> list[Object]:
    """Wait until the pods of the test meet a condition, and return them."""
    async with asyncio.timeout(60):
        while True:
            found = list((await kube.list(PODS, HERE)).objects)
            if condition(found):
                return found
            await asyncio.sleep(0.2)


def running(number: int) -> Callable[[list[Object]], bool]:
    return lambda found: sum(each["status"]["phase"] == "Running" for each in found) >= number


async def cordon(kube: Kube, name: str, *, closed: bool) -> None:
    await kube.patch(NODES, name, {"spec": {"unschedulable": closed or None, "taints": None}})


def asking(name: str, units: int, isolation: str) -> Object:
    made = pods.busybox(name, limits={"tessera.dev/gpu-memory": units}, schedulerName="tessera-scheduler")
    made["metadata"] |= {"namespace": "default", "annotations": {"tessera.dev/isolation": isolation}}
    return made


def deployment(replicas: int) -> Object:
    made = asking("web", 10, "none")
    metadata = {"labels": {"app": "web", MADE[0]: MADE[1]}, "annotations": made["metadata"]["annotations"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": metadata, "spec": made["spec"]},
        },
    }


BUDGET: Object = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1},
}


async def defrag(cluster: Cluster, *arguments: str) -> tuple[int, str, str]:
    path = f"{FOLDER}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PATH": path, "COLUMNS": "140"}
    process = await asyncio.create_subprocess_exec(
        "tessera", "defrag", *arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def spread(kube: Kube, cluster: Cluster) -> None:
    """Have one pod of the Deployment on each node."""
    await cordon(kube, "gpu-b", closed=True)
    cluster.apply(deployment(1), BUDGET)
    await until(kube, running(1))
    await cordon(kube, "gpu-b", closed=False)
    await cordon(kube, "gpu-a", closed=True)
    cluster.apply(deployment(2))
    await until(kube, running(2))
    await cordon(kube, "gpu-a", closed=False)


def nodes_of(found: list[Object]) -> dict[str, Any]:
    return {each["metadata"]["name"]: each["spec"].get("nodeName") for each in found}


async def test_a_pod_of_a_deployment_is_evicted_and_the_pod_that_waits_is_bound(
    kube: Kube, scheduling_plane: Cluster
) -> None:
    await spread(kube, scheduling_plane)
    before = nodes_of(await until(kube, running(2)))
    assert set(before.values()) == {"gpu-a", "gpu-b"}
    await kube.create(PODS, asking("big", 40, "hardware"))

    code, out, err = await defrag(scheduling_plane, "--pod", "default/big", "-o", "json")
    assert code == 0, err
    proposal = json.loads(out)["proposal"]
    assert [each["budgets"] for each in proposal["moves"]] == [["web"]]
    assert nodes_of(await until(kube, running(2))) == before | {"big": None}

    code, out, err = await defrag(scheduling_plane, "--pod", "default/big", "--execute", "--deadline-s", "90")
    assert code == 0, out + err
    freed = proposal["moves"][0]
    after = nodes_of(await until(kube, running(3)))
    assert after["big"] == freed["frees"]["node"]
    assert freed["pod"].partition("/")[2] not in after
    assert {node for name, node in after.items() if name != "big"} == {freed["fits"]["node"]}
    assert "is replaced" in err
    assert "1 of 1 moves made" in err


async def test_a_budget_that_allows_nothing_leaves_everything_as_it_is(kube: Kube, scheduling_plane: Cluster) -> None:
    await spread(kube, scheduling_plane)
    scheduling_plane.apply(BUDGET | {"spec": BUDGET["spec"] | {"maxUnavailable": 0}})
    await kube.create(PODS, asking("big", 40, "hardware"))
    before = nodes_of(await until(kube, running(2)))

    wait = ("wait", "pdb/web", "--for=jsonpath={.status.disruptionsAllowed}=0", "--timeout=60s")
    await asyncio.to_thread(scheduling_plane.kubectl, *wait)
    code, out, err = await defrag(scheduling_plane, "--pod", "default/big", "--execute")
    assert code == 3, out + err
    assert "PodDisruptionBudget web allows no disruption now" in " ".join(out.split())
    assert nodes_of(await until(kube, running(2))) == before
