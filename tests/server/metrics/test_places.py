"""How many more replicas find a place."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from builders.kubeobjects import gpu, mig_share, place, pod
from builders.measuredservers import autoscaler, deployment, model_pod, triton
from harness.metricsscenes import Scene, scene
from harness.servers import make_node
from tessera.api.kubernetes.metrics.paths import External
from tessera.clients.kube import AUTOSCALERS, DEPLOYMENTS, NODES, PODS
from tessera.core.gpu.sharing import Mode, Sharing

pytestmark = pytest.mark.anyio


async def grow(one: Scene) -> None:
    """Let so many requests come that ten replicas are needed."""
    for number in range(1, 41):
        await one.reconcile(triton(ended=100 + number * 200, served_s=600.0 * number, waiting=4))


SLICE = "nvidia.com/mig-1g.5gb"


def server_of_slices(replicas: int) -> dict[str, Any]:
    each = deployment(slots="4", replicas=replicas)
    each["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {SLICE: "1"}}
    return each


@pytest.mark.parametrize(("replicas", "want"), [(1, 4), (2, 4)])
async def test_slices_that_there_are_bound_the_replicas(replicas: int, want: int) -> None:
    """Of three instances one is used: two more find a place, one replica is asked for beyond. A replica without a pod
    needs one of the places."""
    layout = tuple(place("A100-40GB", "1g.5gb", start) for start in (0, 1, 2))
    one = Scene()
    fixed = Sharing(modes=(Mode.MIG,), layout=layout, allow_repartition=False)
    await make_node(one.kube, "a", gpu(0, sharing=fixed))
    used = pod("llm-1", {SLICE: 1}, mig_share(0, "1g.5gb", 0))
    mine = model_pod("llm-1")
    mine["metadata"]["annotations"] = used["metadata"]["annotations"]
    mine["spec"]["nodeName"] = "a"
    mine["spec"]["containers"][0]["resources"] = {"limits": {SLICE: "1"}}
    objects = ((DEPLOYMENTS, server_of_slices(replicas)), (AUTOSCALERS, autoscaler(most=9)), (PODS, mine))
    async with scene(*objects, one=one):
        await grow(one)
        assert await one.replicas() == want
        (said,) = (text for _, text in await one.events() if text.startswith(f"{want} replicas: expects"))
        assert said.endswith(f"; GPUs have room for {want - replicas - 1} more now, so no more are requested")


async def test_two_servers_that_grow_share_the_room() -> None:
    """Of six instances two are used: four more replicas fit, whoever gets them, and each may ask for one beyond."""
    layout = tuple(place("A100-40GB", "1g.5gb", start) for start in range(6))
    one = Scene()
    fixed = Sharing(modes=(Mode.MIG,), layout=layout, allow_repartition=False)
    await make_node(one.kube, "a", gpu(0, sharing=fixed))
    objects = []
    for number, name in enumerate(("llm", "other")):
        used = pod(f"{name}-1", {SLICE: 1}, mig_share(0, "1g.5gb", number))
        mine = model_pod(f"{name}-1", address=f"10.0.0.{number + 1}")
        mine["metadata"]["labels"]["serving.tessera.dev/server"] = name
        mine["metadata"]["annotations"] = used["metadata"]["annotations"]
        mine["spec"]["nodeName"] = "a"
        mine["spec"]["containers"][0]["resources"] = {"limits": {SLICE: "1"}}
        server, scaler = server_of_slices(1), autoscaler(most=9)
        for each in (server, scaler):
            each["metadata"] = {**each["metadata"], "name": name}
        server["metadata"]["labels"] = {"serving.tessera.dev/server": name}
        scaler["spec"]["scaleTargetRef"]["name"] = name
        objects += [(DEPLOYMENTS, server), (AUTOSCALERS, scaler), (PODS, mine)]
    async with scene(*objects, one=one):
        for number in range(1, 41):
            busy = triton(ended=100 + number * 200, served_s=600.0 * number, waiting=4)
            await one.reconcile(busy, busy)
        found = await one.servers.series(External(metric="tessera_replicas", namespace="ns"))
        assert sorted(each.value for each in found) == [2, 6]


async def test_a_server_whose_autoscaler_uses_another_metric_takes_no_places() -> None:
    """Its pods are added by that; the room is for servers whose replicas are decided here."""
    one = Scene()
    one.kube.withhold("", NODES)
    scaler = autoscaler(most=9, metric="other")
    objects = ((DEPLOYMENTS, server_of_slices(1)), (AUTOSCALERS, scaler), (PODS, model_pod("llm-1")))
    with capture_logs() as logs:
        async with scene(*objects, one=one):
            await grow(one)
            assert await one.replicas() == 9
    assert "model_servers_not_followed" not in {each["event"] for each in logs}


async def test_where_the_cluster_cannot_be_read_one_replica_is_requested_at_a_time() -> None:
    one = Scene()
    one.kube.withhold("", NODES)
    objects = ((DEPLOYMENTS, server_of_slices(1)), (AUTOSCALERS, autoscaler(most=9)), (PODS, model_pod("llm-1")))
    with capture_logs() as logs:
        async with scene(*objects, one=one):
            await grow(one)
            assert await one.replicas() == 2
    (said,) = (each["reason"] for each in logs if each["event"] == "model_servers_not_followed")
    assert "no right" in said
