"""Claims in the ledger: they count for everybody but the pod they are for."""

import pytest

from builders.kubeobjects import gpu, gpunode
from builders.signed import AGENT
from harness.servers import (
    LARGE,
    NEED,
    Clock,
    FaultyKube,
    check,
    claims,
    make_node,
    make_pod,
    servers,
    settle,
)
from tessera.api.tessera.pods.signatures import keys_text
from tessera.api.tessera.v1alpha1.gpunodes import offered_field
from tessera.clients.kube import GPU_NODES, PODS, MemoryKube, Unanswered
from tessera.core.cluster.gpunodestate import DesiredDevices

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
            assert server.server.view.ledger.impossible_shares == ()
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


UNANSWERED = Unanswered("x", found="nothing", expected="an answer")


async def make_anew(kube: FaultyKube, *offered: DesiredDevices, kind: str = "A100-40GB") -> None:
    """Write a node's GPUNode again as its agent does, which knows nothing of the claims in the one before."""
    made = gpunode("a", gpu(0, kind, node="a"), assignment_keys=keys_text([AGENT.public]))
    status = made.pop("status") | {"offered": offered_field(offered)}
    made["spec"] = {}
    await kube.create(GPU_NODES, made)
    await kube.patch(GPU_NODES, "a", {"status": status}, subresource="status")
    await settle()


async def test_a_claim_whose_gpunode_was_deleted_is_known_to_a_server_that_starts_then() -> None:
    """Who remembers it writes it into the new object, at once: the Binding may still be carried out."""
    kube = FaultyKube()
    await make_node(kube, "a", gpu(0))
    async with servers(kube) as (one,):
        first, second = [await make_pod(kube, name, LARGE) for name in ("p", "q")]
        kube.faults = {"bind": [UNANSWERED]}
        assert await one.bind(first, "a") != ""
        await kube.delete(GPU_NODES, "a")
        await make_anew(kube)
        async with servers(kube) as (other,):
            await settle()
            assert await claims(kube) == ["ns/p"]
            assert await other.schedule(second, "a") == "nowhere"
            await MemoryKube.bind(kube, "p", "ns", uid=first["metadata"]["uid"], node="a", annotations={})
            await settle()
            await other.server.claimer.sweep()
            assert await claims(kube) == [], "who settles it takes it out as any other"
            await one.server.claimer.sweep()
            assert await claims(kube) == []


async def test_another_object_in_its_place_says_that_one_was_deleted_though_no_watch_does() -> None:
    kube = FaultyKube()
    await make_node(kube, "a", gpu(0))
    async with servers(kube) as (server,):
        first = await make_pod(kube, "p", LARGE)
        kube.faults = {"bind": [UNANSWERED]}
        assert await server.bind(first, "a") != ""
        view, (claim,) = server.server.view, server.server.view.claims.on("a").present()
        now = await kube.get(GPU_NODES, "a") or {}
        anew = {**now, "metadata": {**now["metadata"], "uid": "another", "resourceVersion": "1000"}, "spec": {}}
        view.take_gpu_node(anew, skipped=True)
        assert view.claims.on("a").lacking(view.pods.fate) == (claim,)
        later = {**anew, "metadata": {**anew["metadata"], "uid": "a third", "resourceVersion": "1001"}}
        view.take_verified("a", later, await kube.list(PODS))
        assert view.claims.on("a").lacking(view.pods.fate) == (claim,), "no verification lets it go"


async def test_a_claim_to_what_the_kubelet_may_give_away_by_now_is_not_restored_nor_bound() -> None:
    kube, clock = FaultyKube(), Clock()
    await make_node(kube, "a", gpu(0))
    async with servers(kube, clock=clock) as (server,):
        first = await make_pod(kube, "p", LARGE)
        kube.faults = {"bind": [UNANSWERED]}
        assert await server.bind(first, "a") != ""
        await kube.delete(GPU_NODES, "a")
        await make_anew(kube, DesiredDevices(gpu="GPU-a-0", whole=True))
        await server.server.claimer.sweep()
        assert (await kube.get(GPU_NODES, "a") or {})["spec"].get("claims", []) == []
        assert "other pods or the kubelet have them by now" in await server.bind(first, "a")
        clock.now_s += 121
        await server.server.claimer.sweep()
        assert await server.schedule(first, "a") == "nowhere"


async def test_a_claim_to_other_hardware_than_the_pod_asks_is_not_restored_nor_bound() -> None:
    """A Node that was recreated may have other GPUs under the same indices."""
    kube = FaultyKube()
    await make_node(kube, "a", gpu(0))
    async with servers(kube) as (server,):
        first = await make_pod(kube, "p", LARGE, annotations={"tessera.dev/gpu-model": "A100-40GB"})
        kube.faults = {"bind": [UNANSWERED]}
        assert await server.bind(first, "a") != ""
        await kube.delete(GPU_NODES, "a")
        await make_anew(kube, kind="A100-80GB")
        await server.server.claimer.sweep()
        assert (await kube.get(GPU_NODES, "a") or {})["spec"].get("claims", []) == []
        assert "of another model" in await server.bind(first, "a")


async def test_a_claim_to_what_another_pod_was_claimed_meanwhile_is_not_restored() -> None:
    kube = FaultyKube()
    await make_node(kube, "a", gpu(0))
    async with servers(kube) as (one,):
        first, second, third = [await make_pod(kube, n, need) for n, need in (("p", LARGE), ("q", LARGE), ("r", NEED))]
        kube.faults = {"bind": [UNANSWERED]}
        assert await one.bind(first, "a") != ""
        await kube.delete(GPU_NODES, "a")
        async with one.server.claimer._order["a"], servers(kube) as (other,):  # who knows is slower
            await make_anew(kube)
            kube.faults = {"bind": [UNANSWERED]}
            assert await other.bind(second, "a") != ""
            assert await claims(kube) == ["ns/q"]
        await settle()
        await one.server.claimer.sweep()
        assert await claims(kube) == ["ns/q"]
        assert "other pods or the kubelet have them by now" in await one.bind(first, "a")
        assert await one.fitting(third, "a") == []
