"""The controller over the API in memory: what it writes, and what it does when things go wrong."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from structlog.testing import capture_logs

from builders.kubeobjects import gpu, gpunode, mig_share, node, pod, share
from builders.policyobjects import gpu_policy
from builders.signed import AGENT, SERVER, STRANGER, config_map, signed
from harness import virtualtime
from tessera.api.tessera.pods.signatures import KEYS, key_id, keys_text
from tessera.api.tessera.v1alpha1.objects import NAMESPACE
from tessera.clients.kube import (
    CONFIG_MAPS,
    EVENTS,
    GPU_NODES,
    GPU_POLICIES,
    NODES,
    PODS,
    Kind,
    MemoryKube,
    Object,
    annotations_of,
)
from tessera.controller.run import Controller
from tessera.controller.settings import ControllerSettings
from tessera.core.gpu.sharing import Mode
from tessera.measures import Measures
from tessera.signing import Signer

pytestmark = pytest.mark.anyio

FAST = {"idleSeconds": 0, "longestSeconds": 0}
SETTINGS = ControllerSettings(identity="one", interval_s=0.05, least_s=0)
SLICE = {"nvidia.com/mig-1g.5gb": 1}


@pytest.fixture
async def kube() -> MemoryKube:
    """Return a cluster of one node with one A100 and a policy for every node."""
    kube = MemoryKube()
    await furnish(kube)
    return kube


async def furnish(kube: MemoryKube) -> None:
    await kube.create(NODES, node("a"))
    await report(kube, "a")
    await kube.create(GPU_POLICIES, gpu_policy({"repartition": FAST}, "all"))


async def report(kube: MemoryKube, name: str) -> None:
    """Let the agent of a node report one GPU."""
    each = gpunode(name, gpu(0))
    await kube.create(GPU_NODES, each)
    await kube.patch(GPU_NODES, name, {"status": each["status"]}, subresource="status")


@contextlib.asynccontextmanager
async def running(
    kube: MemoryKube, settings: ControllerSettings = SETTINGS, measures: Measures | None = None
) -> AsyncIterator[Controller]:
    controller = Controller(settings, kube, measures=measures)
    task = asyncio.create_task(controller.run())
    try:
        yield controller
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(kube: MemoryKube, holds: Callable[[Any], bool], kind: Any = GPU_NODES, name: str = "a") -> Object:
    """Return the object once it is so; at most after 20 s."""
    found: Object | None = None
    async with asyncio.timeout(20):
        while found is None or not holds(found):
            await asyncio.sleep(0.01)
            found = await kube.get(kind, name)
    return found


def desired(found: Object) -> list[str]:
    spec = found.get("spec") or {}
    return [f"{one['profile']}@{one['start']}" for each in spec.get("desired", ()) for one in each.get("instances", ())]


def condition(found: Object, kind: str) -> tuple[str, str]:
    conditions = (found.get("status") or {}).get("conditions", ())
    return next(((each["status"], each["message"]) for each in conditions if each["type"] == kind), ("", ""))


async def test_a_policy_reaches_its_nodes(kube: MemoryKube) -> None:
    """The node's object names the policy and says what the node policy file would; the policy says when it is so."""
    async with running(kube):
        found = await until(kube, lambda each: "policy" in each["spec"])
        assert found["spec"]["policy"]["name"] == "all"
        assert found["spec"]["policy"]["document"]["kind"] == "NodePolicy"
        await until(
            kube, lambda each: condition(each, "Ready") == ("False", "not yet in force on a"), GPU_POLICIES, "all"
        )
        status = {"observedGeneration": found["metadata"]["generation"]}
        await kube.patch(GPU_NODES, "a", {"status": status}, subresource="status")
        policy = await until(kube, lambda each: condition(each, "Ready")[0] == "True", GPU_POLICIES, "all")
    assert condition(policy, "Accepted")[0] == "True"
    assert (policy["status"]["nodes"], policy["status"]["gpus"]) == (1, 1)


async def test_reconciles_and_failures_are_counted_and_who_leads_no_more_has_no_age(kube: MemoryKube) -> None:
    measures = Measures()
    async with running(kube, measures=measures):
        await until(kube, lambda _: b'tessera_controller_reconciles_total{result="done"}' in measures.render())
        text = measures.render().decode()
    for loop in ("reconcile", "watch-nodes", "watch-pods", "watch-gpunodes", "watch-gpupolicies"):
        assert f'tessera_loop_age_seconds{{loop="{loop}"}}' in text
    assert "tessera_controller_reconcile_duration_seconds_count" in text
    assert b"tessera_loop_age_seconds" not in measures.render()


async def test_the_time_of_plans_is_counted_by_itself_and_not_where_nothing_has_changed(kube: MemoryKube) -> None:
    measures = Measures()

    def plans() -> int:
        found = re.search(r"tessera_controller_plan_duration_seconds_count (\d+)", measures.render().decode())
        return int(found[1]) if found else 0

    async with running(kube, measures=measures) as one:
        await until(kube, lambda each: "policy" in each["spec"])
        await one.reconcile()
        await one.reconcile()
        before = plans()
        assert before > 0
        await one.reconcile()
        assert plans() == before
        await kube.create(PODS, pod("one", SLICE, node=None))
        await until(kube, lambda each: desired(each) == ["1g.5gb@4"])
    assert plans() > before


async def test_a_slice_is_desired_for_a_pod_that_waits(kube: MemoryKube) -> None:
    """The wish is in the node's object, an event says why, the policy counts it; then nothing more is written."""
    await kube.create(PODS, pod("one", SLICE, node=None))
    async with running(kube) as one:
        await until(kube, lambda each: desired(each) == ["1g.5gb@4"])
        policy = await until(kube, lambda each: each.get("status", {}).get("desiredSlices") == 1, GPU_POLICIES, "all")
        version = (await kube.list(GPU_NODES)).resource_version
        for _ in range(3):
            await one.reconcile()
        assert (await kube.list(GPU_NODES)).resource_version == version
    assert policy["status"]["decision"] == "a: GPU 0: 1g.5gb at 4, for pending pods"
    events = [each for each in (await kube.list(EVENTS)).objects if each["reason"] == "DevicesDesired"]
    assert [(each["source"]["component"], each["involvedObject"]["name"]) for each in events] == [
        ("tessera-controller", "a")
    ]


async def test_no_gpu_is_made_for_a_pod_that_no_scheduler_may_place_yet(kube: MemoryKube) -> None:
    """Kueue holds pods back by scheduling gates: what is made for them meanwhile is kept from others."""
    gates = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
    for name, spec in (("gated", gates), ("waiting", {})):
        await kube.create(PODS, pod(name, SLICE, node=None, phase="Pending", spec=spec))
    async with running(kube):
        assert len(desired(await until(kube, lambda each: bool(desired(each))))) == 1
        await kube.patch(PODS, "gated", {"spec": {"schedulingGates": []}}, namespace="ns")
        await until(kube, lambda each: len(desired(each)) == 2)


async def test_pods_that_ask_no_gpu_or_end_wait_for_none(kube: MemoryKube) -> None:
    """Only pods without node that request a GPU make it act; a pod that runs is as its record says."""
    await kube.create(PODS, pod("plain", {"cpu": 1}, node=None))
    await kube.create(PODS, pod("ends", SLICE, node=None, metadata={"deletionTimestamp": "2026-11-21T12:00:00Z"}))
    await kube.create(PODS, pod("held", SLICE, mig_share(0, "1g.5gb", 2)))
    await kube.create(PODS, pod("new", SLICE))
    async with running(kube):
        found = await until(kube, lambda each: desired(each) != [])
    assert desired(found) == ["1g.5gb@2"]


async def test_a_policy_that_cannot_be_read_says_so_and_the_former_holds(kube: MemoryKube) -> None:
    """A typing error takes nothing away from running nodes."""
    async with running(kube):
        await until(kube, lambda each: "policy" in each["spec"])
        await kube.patch(GPU_POLICIES, "all", {"spec": {"unit": "MB"}})
        refused = await until(kube, lambda each: condition(each, "Accepted")[0] == "False", GPU_POLICIES, "all")
        assert "unit" in condition(refused, "Accepted")[1]
        found = await kube.get(GPU_NODES, "a")
        assert found is not None
        assert found["spec"]["policy"]["document"]["unit"] == "GiB"
        await kube.patch(GPU_POLICIES, "all", {"spec": {"unit": "MiB"}, "status": {"conditions": "?"}})
        await until(kube, lambda each: each["spec"]["policy"]["document"]["unit"] == "MiB")


async def test_a_policy_that_is_no_more_applies_no_more(kube: MemoryKube) -> None:
    """Its nodes go by their own files again."""
    async with running(kube):
        await until(kube, lambda each: "policy" in each["spec"])
        await kube.delete(GPU_POLICIES, "all")
        await until(kube, lambda each: "policy" not in each["spec"])


async def test_a_status_that_is_broken_is_written_anew(kube: MemoryKube) -> None:
    """Nobody but the controller has a say in it."""
    await kube.patch(GPU_POLICIES, "all", {"status": {"nodes": "many"}}, subresource="status")
    async with running(kube):
        await until(kube, lambda each: each["status"]["nodes"] == 1, GPU_POLICIES, "all")


async def test_a_node_without_agent_or_that_cannot_be_read_stops_nobody(kube: MemoryKube) -> None:
    """Others are served."""
    await kube.create(NODES, node("b", {"nvidia.com/gpu": "1"}))
    await kube.create(NODES, node("c"))
    await report(kube, "gone")
    await kube.create(PODS, pod("one", SLICE, node=None))
    async with running(kube):
        await until(kube, lambda each: desired(each) == ["1g.5gb@4"])


async def test_an_outage_is_outlived(kube: MemoryKube) -> None:
    """While the API is away nothing is lost, and what is to be done is done when it is back."""
    with capture_logs() as logs:
        async with running(kube):
            await until(kube, lambda each: "policy" in each["spec"])
            kube.stop()
            async with asyncio.timeout(5):
                told: list[str] = []
                while "reconcile_failed" not in told:
                    await asyncio.sleep(0.01)
                    told = [each["event"] for each in logs]
            kube.start()
            await kube.create(PODS, pod("one", SLICE, node=None))
            await until(kube, lambda each: desired(each) == ["1g.5gb@4"])


@pytest.mark.parametrize("seen", [True, False])
async def test_what_a_server_claims_is_held(kube: MemoryKube, *, seen: bool) -> None:
    """Also for a pod that is not seen yet; and the claims stay whatever the controller writes."""
    made = await kube.create(PODS, pod("need", {"tessera.dev/gpu-memory": 30}, node=None))
    claim = {"uid": made["metadata"]["uid"] if seen else "unseen", "pod": "ns/need", "shares": [AMOUNT]}
    await kube.patch(GPU_NODES, "a", {"spec": {"claims": [claim]}})
    await kube.create(PODS, pod("one", SLICE, node=None))
    measures = Measures()
    async with running(kube, measures=measures):
        policy = await until(kube, lambda each: each.get("status", {}).get("pendingPods") == 1, GPU_POLICIES, "all")
        found = await until(kube, lambda each: "policy" in each["spec"])
        text = measures.render().decode()
    assert 'tessera_controller_pending_pods{policy="all",reason="devices-busy"} 1\n' in text
    assert 'tessera_controller_pending_pods{policy="all",reason="no-gpu"} 0\n' in text
    assert policy["status"]["desiredSlices"] == 0
    assert desired(found) == []
    assert found["spec"]["claims"] == [claim]


class Crossed(MemoryKube):
    """An API in which a server claims a GPU at the moment when the controller writes to its node the first time."""

    async def apply(self, kind: Kind, body: Object, **how: Any) -> Object:
        found = await self.get(GPU_NODES, "a")
        if found is not None and not found["spec"].get("claims"):
            claim = {"uid": "unseen", "pod": "ns/need", "shares": [AMOUNT]}
            await self.patch(GPU_NODES, "a", {"spec": {"claims": [claim]}})
        return await super().apply(kind, body, **how)


async def test_a_claim_made_meanwhile_is_seen_first() -> None:
    """What is desired is written on the version that was looked at; a claim in between makes it look again."""
    kube = Crossed()
    await furnish(kube)
    await kube.create(PODS, pod("one", SLICE, node=None))
    async with running(kube):
        await until(kube, lambda each: each.get("status", {}).get("pendingPods") == 1, GPU_POLICIES, "all")
        found = await until(kube, lambda each: "policy" in each["spec"])
    assert desired(found) == []


AMOUNT = {
    "gpu": 0,
    "mode": "mps",
    "memoryMiB": 30 * 1024,
    "computePercent": 0,
    "isolation": "driver",
    "resource": "tessera.dev/gpu-memory",
}


class Inline(ThreadPoolExecutor):
    """Threads whose work takes no time."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


def test_a_lone_pod_is_decided_about_at_once() -> None:
    """By default the pause between two looks and the wait for more pods go side by side: a quarter of a second."""

    async def story() -> float:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(Inline())
        kube = MemoryKube()
        await kube.create(NODES, node("a"))
        await report(kube, "a")
        await kube.create(GPU_POLICIES, gpu_policy({}, "all"))
        async with running(kube, ControllerSettings(identity="one")):
            await until(kube, lambda each: "policy" in each["spec"])
            await asyncio.sleep(60)
            began_s = loop.time()
            await kube.create(PODS, pod("one", SLICE, node=None))
            await until(kube, lambda each: desired(each) == ["1g.5gb@4"])
            return loop.time() - began_s

    assert virtualtime.run(story()) == pytest.approx(0.25, abs=0.02)


class Busy(MemoryKube):
    """Gets another GPUPolicy while the controller writes what it decided."""

    async def apply(self, *args: Any, **more: Any) -> Object:
        if await self.get(GPU_POLICIES, "late") is None:
            await self.create(GPU_POLICIES, gpu_policy({"priority": 1}, "late"))
            for _ in range(100):  # turns in which whoever watches learns of it
                await asyncio.sleep(0)
        return await super().apply(*args, **more)


async def test_a_policy_that_comes_during_a_look_is_what_the_next_one_is_about() -> None:
    """The controller goes on, and the policy applies."""
    kube = Busy()
    await furnish(kube)
    async with running(kube):
        await until(kube, lambda each: each["spec"].get("policy", {}).get("name") == "late")
        await until(kube, lambda each: condition(each, "Accepted")[0] == "True", GPU_POLICIES, "late")


async def shown(controller: Controller, *signers: Signer) -> None:
    """Return when a controller has seen these keys published, and no others."""
    async with asyncio.timeout(20):
        while controller._ring.shown != {key_id(each.public) for each in signers}:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.01)


async def test_what_former_keys_signed_is_held_though_the_keys_object_is_written_anew(kube: MemoryKube) -> None:
    """Deleted, and made by a server that has another key: a GPU that a pod holds is not cut for others."""
    told = gpunode("a", gpu(0), assignment_keys=keys_text([AGENT.public]))
    await kube.patch(GPU_NODES, "a", {"status": told["status"]}, subresource="status")
    await kube.apply(CONFIG_MAPS, config_map(SERVER), manager="one")
    need = {"tessera.dev/gpu-memory": 40}
    held = await kube.create(PODS, pod("held", need, share(0, 40000, Mode.MPS), node="a"))
    signature = {"annotations": annotations_of(signed(held, SERVER))}
    await kube.patch(PODS, "held", {"metadata": signature}, namespace="ns")
    await kube.create(PODS, pod("p", SLICE, node=None))
    async with running(kube) as controller:
        await until(kube, lambda each: "policy" in each["spec"])
        await kube.delete(CONFIG_MAPS, KEYS, namespace=NAMESPACE)
        await kube.apply(CONFIG_MAPS, config_map(STRANGER), manager="another")
        await shown(controller, STRANGER)
        await asyncio.sleep(2 * SETTINGS.interval_s)
        assert desired(await kube.get(GPU_NODES, "a") or {}) == []
        change = {"data": {key_id(SERVER.public): keys_text([SERVER.public])[0]}}
        await kube.patch(CONFIG_MAPS, KEYS, change, namespace=NAMESPACE)
        await shown(controller, STRANGER, SERVER)
        await kube.patch(CONFIG_MAPS, KEYS, {"data": {key_id(SERVER.public): None}}, namespace=NAMESPACE)
        await until(kube, lambda each: bool(desired(each)))


async def test_who_leads_no_more_has_no_pending_pods(kube: MemoryKube) -> None:
    """Its process stands by, and Prometheus goes on asking it."""
    await kube.create(PODS, pod("need", {"tessera.dev/gpu-memory": 30}, node=None))
    await kube.patch(GPU_NODES, "a", {"spec": {"claims": [{"uid": "unseen", "pod": "ns/need", "shares": [AMOUNT]}]}})
    await kube.create(PODS, pod("one", SLICE, node=None))
    measures = Measures()
    async with running(kube, measures=measures):
        await until(kube, lambda each: each.get("status", {}).get("pendingPods") == 1, GPU_POLICIES, "all")
        assert re.search(r"\ntessera_controller_pending_pods\{.*\} 1\n", measures.render().decode())
    assert "\ntessera_controller_pending_pods{" not in measures.render().decode()
