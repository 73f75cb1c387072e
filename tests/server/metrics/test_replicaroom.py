"""How many more replicas find a place."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from builders.kubeobjects import gpu, mig_share, place, pod
from builders.measuredservers import autoscaler, deployment, model_pod, triton
from harness.metricsscenes import Scene, scene
from harness.servers import make_node
from tessera.api.kubernetes.metrics.paths import External
from tessera.clients.kube import (
    AUTOSCALERS,
    DEPLOYMENTS,
    EVERYTHING,
    NODES,
    PODS,
    Kind,
    Listing,
    MemoryKube,
    Selection,
)
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.errors import TesseraError
from tessera.log import logger
from tessera.server.metrics.autoscaling import ModelServerAutoscaler
from tessera.server.metrics.replicaroom import ReplicaRoom

pytestmark = pytest.mark.anyio


async def grow(one: Scene) -> None:
    """Let so many requests come that ten replicas are needed."""
    for number in range(1, 41):
        await one.reconcile(triton(ended=100 + number * 200, served_s=600.0 * number, waiting=4))


SLICE = "nvidia.com/mig-1g.5gb"


def server_of_slices(replicas: int, name: str = "llm", slots: str = "4") -> dict[str, Any]:
    each = deployment(name, slots=slots, replicas=replicas)
    each["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {SLICE: "1"}}
    return each


@pytest.mark.parametrize(("replicas", "want"), [(1, 4), (2, 4)])
async def test_slices_that_there_are_bound_the_replicas(replicas: int, want: int) -> None:
    """Of three instances one is used: two more find a place, one replica beyond is requested. A replica without a pod
    takes part of the room."""
    layout = tuple(place("A100-40GB", "1g.5gb", start) for start in (0, 1, 2))
    one = Scene()
    fixed = Sharing(modes=(Mode.MIG,), layout=layout, allow_repartition=False)
    await make_node(one.kube, "a", gpu(0, sharing=fixed))
    used = pod("llm-1", {SLICE: 1}, mig_share(0, "1g.5gb", 0))
    mine = model_pod("llm-1")
    mine["metadata"]["annotations"] = used["metadata"]["annotations"]
    mine["spec"]["nodeName"] = "a"
    mine["spec"]["containers"][0]["resources"] = {"limits": {SLICE: "1"}}
    objects = ((DEPLOYMENTS, server_of_slices(replicas)), (AUTOSCALERS, autoscaler(max_replicas=9)), (PODS, mine))
    async with scene(*objects, one=one):
        await grow(one)
        assert await one.replicas() == want
        (event,) = (text for _, text in await one.events() if text.startswith(f"{want} replicas: expects"))
        assert (
            f"; limited to {want}: the GPUs have room for {want - replicas - 1} more, and another one is requested"
            in event
        )


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
        server, scaler = server_of_slices(1), autoscaler(max_replicas=9)
        for each in (server, scaler):
            each["metadata"] = {**each["metadata"], "name": name}
        server["metadata"]["labels"] = {"serving.tessera.dev/server": name}
        scaler["spec"]["scaleTargetRef"]["name"] = name
        objects += [(DEPLOYMENTS, server), (AUTOSCALERS, scaler), (PODS, mine)]
    async with scene(*objects, one=one):
        for number in range(1, 41):
            busy = triton(ended=100 + number * 200, served_s=600.0 * number, waiting=4)
            await one.reconcile(busy, busy)
        found = await one.metrics.series(External(metric="tessera_replicas", namespace="ns"))
        assert sorted(each.value for each in found) == [2, 6]


async def test_servers_that_grow_are_counted_in_turn_within_a_time() -> None:
    """Each count takes a quarter of a second, of the two for all. A namespace with one server is not behind one with
    forty."""
    one = Scene()

    def later() -> float:
        one.now_s += 0.25
        return one.now_s

    one.servers = ModelServerAutoscaler(one.kube, one.scraped(), logger(), now_s=later)
    for node in ("a", "b", "c"):
        await make_node(one.kube, node, *(gpu(each) for each in range(8)))
    servers = [("many", f"llm-{number:02}") for number in range(40)] + [("one", "other")]
    objects = []
    for number, (namespace, name) in enumerate(servers, 1):
        each, scaler = server_of_slices(1, name, slots="1"), autoscaler(name, max_replicas=4)
        mine = model_pod(name, name, address=f"10.0.0.{number}")
        for made in (each, scaler, mine):
            made["metadata"]["namespace"] = namespace
        objects += [(DEPLOYMENTS, each), (AUTOSCALERS, scaler), (PODS, mine)]
    counted: list[set[str]] = []
    async with scene(*objects, one=one):
        for number in range(1, 13):
            busy = triton(ended=100 + number * 2000, served_s=6000.0 * number, waiting=400)
            await one.reconcile(*[busy] * len(servers))
            if number == 1:
                continue  # nothing to compare with yet
            wanted = [
                each
                for namespace in ("many", "one")
                for each in await one.metrics.series(External(metric="tessera_replicas", namespace=namespace))
            ]
            counted.append({each.labels["serving.tessera.dev/server"] for each in wanted if each.value > 2})
        events = [text for _, text in await one.events()]
    counted = [each for each in counted if each]
    assert max(map(len, counted)) == 7
    assert "other" in counted[0]
    assert len(set.union(*counted[:7])) == len(servers), "each had its turn"
    unknown = (
        "room on the GPUs is unknown (model servers that grow: room was not counted for all within 2 s), and one more"
    )
    assert any(unknown in each for each in events), "not the API server, which answered"


async def test_a_server_whose_autoscaler_uses_another_metric_takes_no_places() -> None:
    """Its pods are added by that; the room is for servers whose replicas are decided here."""
    one = Scene()
    one.kube.withhold("", NODES)
    scaler = autoscaler(max_replicas=9, metric="other")
    objects = ((DEPLOYMENTS, server_of_slices(1)), (AUTOSCALERS, scaler), (PODS, model_pod("llm-1")))
    with capture_logs() as logs:
        async with scene(*objects, one=one):
            await grow(one)
            assert await one.replicas() == 9
    assert "replica_room_unknown" not in {each["event"] for each in logs}


async def test_where_the_cluster_cannot_be_read_one_replica_is_requested_at_a_time() -> None:
    one = Scene()
    one.kube.withhold("", NODES)
    objects = (
        (DEPLOYMENTS, server_of_slices(1)),
        (AUTOSCALERS, autoscaler(max_replicas=9)),
        (PODS, model_pod("llm-1")),
    )
    with capture_logs() as logs:
        async with scene(*objects, one=one):
            await grow(one)
            assert await one.replicas() == 2
            decided = one.servers.measured["ns", "llm"].decision.reason
    (reason,) = (each["reason"] for each in logs if each["event"] == "replica_room_unknown")
    assert reason == "nodes of namespace : you have no right to do so: use a role that grants it"
    assert "(nodes of namespace : you have no right to do so), and one more is" in decided


class Asked(MemoryKube):
    """Counts how often nodes are listed."""

    node_reads = 0

    async def list(self, kind: Kind, selection: Selection = EVERYTHING) -> Listing:
        self.node_reads += kind == NODES
        return await super().list(kind, selection)


@pytest.mark.parametrize("withheld", [(), (NODES,)])
async def test_the_cluster_is_read_once_for_all_servers_also_where_it_cannot_be(withheld: tuple[Kind, ...]) -> None:
    kube, found = Asked(), []
    await make_node(kube, "a", gpu(0))
    kube.withhold("", *withheld)
    room = ReplicaRoom(kube, lambda: 0.0)
    for name in ("llm", "other"):
        server = server_of_slices(1, name)
        try:
            found.append(await room.count(server, 5))
        except TesseraError:
            continue
        room.promise(server, 5)
    assert (found, kube.node_reads) == ([] if withheld else [5, 2], 1)


async def test_places_for_pods_that_are_bound_to_a_node_are_not_counted() -> None:
    kube, server = MemoryKube(), server_of_slices(1)
    await make_node(kube, "a", gpu(0))
    server["spec"]["template"]["spec"]["nodeName"] = "a"
    assert await ReplicaRoom(kube, lambda: 0.0).count(server, 5) is None
