"""The controller on a real API server: policies reach nodes, devices are desired for pods, another takes over."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from builders.policyobjects import gpu_policy
from kube.fakenodes import FakeNode, connected, delete_nodes, delete_pods, idle_pod, make_nodes
from tessera.clients.kube import EVENTS, GPU_NODES, GPU_POLICIES, LEASES, PODS, Kube, Object
from tessera.core.cluster.protocols.leadership import Terms
from testbed.cluster import Cluster

pytestmark = pytest.mark.anyio

SYSTEM = "tessera-system"
POLICY = gpu_policy({"repartition": {"idleSeconds": 0, "longestSeconds": 0}}, "all")


@contextlib.asynccontextmanager
async def controller(cluster: Cluster, name: str, folder: Path) -> AsyncIterator[int]:
    """Run a controller as a program with the rights of deploy/chart/templates/rbac, and give its pid."""
    command = (Path(sys.executable).with_name("tessera"), "controller", "--name", name, "--log-format", "json")
    environment = {**os.environ, "KUBECONFIG": str(account(cluster, folder))}
    with (folder / f"{name}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=log, stderr=log)
        try:
            yield process.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            assert await asyncio.wait_for(process.wait(), 20) in {0, -signal.SIGKILL}


def account(cluster: Cluster, folder: Path) -> Path:
    """Return a kubeconfig of the controller's account that works from this process."""
    inside = json.loads(cluster.account_kubeconfig("controller").read_text())
    server = json.loads(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    inside["clusters"][0]["cluster"]["server"] = server
    outside = folder / "controller.kubeconfig"
    outside.write_text(json.dumps(inside))
    return outside


async def until(kube: Kube, holds: Callable[[Any], bool], kind: Any, name: str, namespace: str = "") -> Object:
    found: Object | None = None
    async with asyncio.timeout(30):
        while found is None or not holds(found):
            await asyncio.sleep(0.1)
            found = await kube.get(kind, name, namespace)
    return found


async def wishes(kube: Kube) -> list[str]:
    """Return what events say became desired."""
    return [each["message"] for each in (await kube.list(EVENTS)).objects if each["reason"] == "DevicesDesired"]


async def until_told(kube: Kube) -> None:
    """Return when the first event is written: a controller that is killed before writes none."""
    async with asyncio.timeout(30):
        for _ in itertools.count():
            if await wishes(kube):
                return
            await asyncio.sleep(0.1)


def desired(found: Object) -> list[str]:
    spec = found.get("spec") or {}
    return [one["profile"] for each in spec.get("desired", ()) for one in each.get("instances", ())]


async def test_a_controller_that_is_killed_is_replaced(control_plane: Cluster, tmp_path: Path) -> None:
    """One leads; when it is killed the other does within the lease, and pods that came meanwhile get their slices."""
    async with connected(control_plane) as kube:
        try:
            await make_nodes(kube, [FakeNode(name="fake-a", gpus=1)])
            await kube.create(GPU_POLICIES, POLICY)
            async with controller(control_plane, "one", tmp_path) as first:
                node = await until(kube, lambda each: "policy" in each.get("spec", {}), GPU_NODES, "fake-a")
                assert node["spec"]["policy"]["name"] == "all"
                async with controller(control_plane, "two", tmp_path):
                    await kube.create(PODS, idle_pod("one", {"nvidia.com/mig-1g.5gb": 1}))
                    await until(kube, lambda each: desired(each) == ["1g.5gb"], GPU_NODES, "fake-a")
                    await until_told(kube)
                    os.kill(first, signal.SIGKILL)
                    await kube.create(PODS, idle_pod("two", {"nvidia.com/mig-3g.20gb": 1}))
                    lease = await until(
                        kube,
                        lambda each: each["spec"]["holderIdentity"].startswith("two_"),
                        LEASES,
                        "tessera-controller",
                        SYSTEM,
                    )
                    assert lease["spec"]["leaseTransitions"] == 1
                    found = await until(kube, lambda each: len(desired(each)) == 2, GPU_NODES, "fake-a")
                    assert sorted(desired(found)) == ["1g.5gb", "3g.20gb"]
                    await until(
                        kube, lambda each: each.get("status", {}).get("desiredSlices") == 2, GPU_POLICIES, "all"
                    )
                    said = await wishes(kube)
                    assert len(said) == 2
                    assert all("for pending pods" in each for each in said)
            lease = await until(
                kube, lambda each: not each["spec"].get("holderIdentity"), LEASES, "tessera-controller", SYSTEM
            )
        finally:
            await delete_pods(kube)
            await delete_nodes(kube)
            await kube.delete(GPU_POLICIES, "all")
    assert Terms().lease_s < 30, "longer than this test waits"
