"""Claims in the ledger: they count for everybody but the pod they are for."""

import pytest

from builders.kubeobjects import gpu, gpunode
from builders.signed import AGENT
from harness.servers import (
    LARGE,
    Clock,
    FaultyKube,
    check,
    make_node,
    make_pod,
    servers,
    settle,
)
from tessera.api.tessera.pods.signatures import keys_text
from tessera.clients.kube import GPU_NODES, Unanswered

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("path", ["/filter", "/choose"])
async def test_what_is_claimed_for_a_pod_is_not_in_its_own_way(path: str) -> None:
    """After a lost answer a pod is scheduled again: on a full node it is given what was claimed for it."""
    kube = FaultyKube()
    await make_node(kube, "a", gpu(0), gpu(1))
    await make_node(kube, "empty", gpu(0))
    async with servers(kube, 2) as running:
        first, *others = [await make_pod(kube, name, LARGE) for name in ("p", "q", "r")]
        await settle()
        kube.faults = {"bind": [Unanswered("x", found="nothing", expected="an answer")]}
        assert await running[0].bind(first, "a") != ""
        assert await running[0].bind(others[0], "a") == ""
        await settle()
        for server in running:
            assert await server.fitting(others[1], "a", path=path) == []
            assert await server.fitting(first, "a", "nowhere", path=path) == ["a"]
            assert "a" in await server.fitting(first, "empty", "a", path=path)
            assert server.server.view.ledger.conflicts == ()
        assert await running[1].schedule(first, "a") == ""
    await check(kube)


async def test_a_claim_whose_gpunode_was_deleted_counts_while_its_binding_may_be_under_way() -> None:
    """Nobody who knew the pod's fate dropped it: a sweep that finds the object without it lets nothing go."""
    kube, clock = FaultyKube(), Clock()
    await make_node(kube, "a", gpu(0))
    async with servers(kube, clock=clock) as (server,):
        first, second = [await make_pod(kube, name, LARGE) for name in ("p", "q")]
        kube.faults = {"bind": [Unanswered("x", found="nothing", expected="an answer")]}
        assert await server.bind(first, "a") != ""
        await kube.delete(GPU_NODES, "a")
        await settle()
        made = gpunode("a", gpu(0, node="a"), assignment_keys=keys_text([AGENT.public]))
        status = made.pop("status")
        await kube.create(GPU_NODES, made)
        await kube.patch(GPU_NODES, "a", {"status": status}, subresource="status")
        await settle()
        clock.now_s += 30
        await server.server.claimer.sweep()
        assert await server.schedule(second, "a") != ""
        assert await server.schedule(first, "a") == ""
    await check(kube)
