"""What agents of earlier versions wrote, beside servers of this one: counted, or refused with a reason.

`tests/data/earlieragents` has, word for word, what an agent of that day wrote on a real cluster beside servers of this
version: its GPUNode, and pods by name whose assignments it recorded and signed.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from builders.kubeobjects import node
from harness.servers import NEED, check, make_pod, servers
from judges.allocated import shares_of
from tessera.clients.kube import GPU_NODES, NODES, PODS, Kind, MemoryKube, name_of

pytestmark = pytest.mark.anyio

DATA = Path(__file__).parents[1] / "data" / "earlieragents"
SLICE = "nvidia.com/mig-1g.5gb"
UNSIGNED = (
    '[{"gpu":0,"mode":"memory-share","profile":null,"start":null,"memory_mib":30720,"compute_percent":0,'
    '"isolation":"none","resource":"tessera.dev/gpu-memory","container":"main"}]'
)
"""As agents and servers wrote it before they signed, on 21 November 2026."""


class Saved(MemoryKube):
    """An API server with objects as they were, UIDs included."""

    def put(self, kind: Kind, saved: dict[str, Any]) -> None:
        """Store an object."""
        self._put(kind, name_of(saved), saved)


def cluster(day: str, *, keys: bool = True) -> Saved:
    """Return the cluster of a day, with the pods that ran on it."""
    saved = json.loads((DATA / f"{day}.json").read_text())
    if not keys:
        saved["gpunode"]["status"].pop("assignmentKeys", None)
    kube = Saved()
    kube.put(NODES, node("node1"))
    kube.put(GPU_NODES, saved["gpunode"])
    for each in saved["pods"]:
        kube.put(PODS, each)
    return kube


async def test_what_an_earlier_agent_recorded_is_counted_and_given_to_nobody_else() -> None:
    kube = cluster(day := "2026-11-24")
    held = [share for pod in (await kube.list(PODS)).objects for share in shares_of(pod)]
    assert len(held) == 4
    with capture_logs() as logs:
        async with servers(kube, 2) as (one, two):
            assert sum(len(pod.shares) for pod in one.server.view.ledger.pods_on("node1")) == len(held)
            for number in range(14):
                waiting = await make_pod(kube, f"p{number}", NEED, annotations={"tessera.dev/isolation": "hardware"})
                await (one, two)[number % 2].schedule(waiting, "node1")
    before = len(json.loads((DATA / f"{day}.json").read_text())["pods"])
    assert (await check(kube))["node1"] > before, "others were placed beside them"
    assert [each for each in logs if each.get("kind") == "assignment of Pod"] == []


async def test_an_agent_that_cannot_read_the_policy_offers_whole_gpus_and_no_need_gets_one_of_them() -> None:
    """It refuses a word that it does not know, says so in its GPUNode, and leaves its GPUs to the kubelet."""
    kube = cluster("2026-11-22")
    async with servers(kube) as (server,):
        waiting = await make_pod(kube, "p", NEED)
        _, answer = await server.post("/filter", {"Pod": waiting, "Nodes": None, "NodeNames": ["node1"]})
        assert answer["NodeNames"] == []
        (reason,) = (answer["FailedNodes"] | (answer["FailedAndUnresolvableNodes"] or {})).values()
        assert "allocated by name (nvidia.com/gpu): request one by name" in reason
        (state,) = (await kube.list(GPU_NODES)).objects
    (impaired,) = state["status"]["impaired"]
    assert "sharing.allow-repartition: found an unknown field" in impaired["message"]


async def test_a_node_whose_gpus_are_in_former_words_is_refused_as_an_unhealthy_one_would_count_as_healthy() -> None:
    """GPU 1 has fallen off the bus, which the agents of that day called sick; written by the code of that day."""
    kube = cluster("2026-11-22-unhealthy", keys=False)
    with capture_logs() as logs:
        async with servers(kube) as (server,):
            waiting = await make_pod(kube, "p", NEED)
            _, answer = await server.post("/filter", {"Pod": waiting, "Nodes": None, "NodeNames": ["node1"]})
    assert answer["NodeNames"] == []
    (logged,) = {each["reason"] for each in logs if each.get("kind") == "GPUNode"}
    assert "spec.wanted is a field of agents from before 23 November 2026" in logged


def unsigned() -> dict[str, Any]:
    return {
        "metadata": {
            "name": "unsigned",
            "namespace": "default",
            "uid": "uid-unsigned",
            "annotations": {"tessera.dev/assignment": UNSIGNED},
        },
        "spec": {
            "nodeName": "node1",
            "containers": [{"name": "main", "resources": {"limits": {"tessera.dev/gpu-memory": "30"}}}],
        },
        "status": {"phase": "Running"},
    }


@pytest.mark.parametrize("keys", [True, False])
async def test_what_was_not_signed_counts_where_the_agent_does_not_sign_and_else_is_refused(*, keys: bool) -> None:
    kube = cluster("2026-11-24", keys=keys)
    kube.put(PODS, unsigned())
    with capture_logs() as logs:
        async with servers(kube) as (server,):
            (found,) = (pod for pod in server.server.view.ledger.pods_on("node1") if pod.key.endswith("/unsigned"))
    assert [share.memory_mib for share in found.shares] == ([] if keys else [30720])
    reasons = [each["reason"] for each in logs if each.get("kind") == "assignment of Pod"]
    assert [("not signed by Tessera" in each, "schedulerName" in each) for each in reasons] == [(True, True)] * keys
