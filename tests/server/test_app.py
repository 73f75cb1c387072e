"""The routes, asked as kube-scheduler and gpushare's scheduler ask, over a cluster in memory."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from builders.admissionpods import ROUTED
from builders.kubeobjects import gpu, gpunode, node, pod, share
from harness.servers import FULL, NEED, SHARE, Asked, Clock, hold, make_node, make_pod, regrant, servers, settle
from judges.grants import shares_of
from tessera import __version__
from tessera.clients.kube import GPU_NODES, NODES, PODS, MemoryKube, Object, annotations_of
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.server.run import Server
from tessera.server.settings import Limits, Settings

pytestmark = pytest.mark.anyio

ALL = ("a", "b", "plain")


@pytest.fixture
async def kube() -> MemoryKube:
    """Return a cluster with two nodes of two A100 each and one node without GPUs."""
    made = MemoryKube()
    for name in ("a", "b"):
        await make_node(made, name, gpu(0), gpu(1))
    await made.create(NODES, node("plain"))
    return made


@pytest.fixture
async def server(kube: MemoryKube) -> AsyncIterator[Asked]:
    async with servers(kube) as (one,):
        yield one


async def test_a_need_is_bound_with_its_assignment(kube: MemoryKube, server: Asked) -> None:
    waiting = await make_pod(kube, "p", NEED)
    await settle()
    assert await server.fitting(waiting, *ALL) == ["a", "b"]
    assert await server.schedule(waiting, *ALL) == ""
    bound = await kube.get(PODS, "p", "ns")
    assert bound is not None
    assert bound["spec"]["nodeName"] == "a"
    assert [each["memoryMiB"] for each in shares_of(bound)] == [10240]


async def test_nodes_that_were_sent_whole_are_answered_whole(kube: MemoryKube, server: Asked) -> None:
    waiting = await make_pod(kube, "p", NEED)
    items = [await kube.get(NODES, name) for name in ALL]
    _, answer = await server.post("/filter", {"Pod": waiting, "Nodes": {"items": items}})
    assert [each["metadata"]["name"] for each in answer["Nodes"]["items"]] == ["a", "b"]
    assert answer["NodeNames"] is None


async def test_reasons_are_told_by_node_and_hopeless_ones_apart(kube: MemoryKube, server: Asked) -> None:
    for index in range(2):
        await hold(kube, f"full-{index}", FULL, share(index, 40000), node="a")
    await settle()
    waiting = await make_pod(kube, "p", NEED)
    _, answer = await server.post("/filter", {"Pod": waiting, "NodeNames": [*ALL, "new"]})
    assert answer["NodeNames"] == ["b"]
    assert sorted(answer["FailedNodes"]) == ["a", "new"]
    assert list(answer["FailedAndUnresolvableNodes"]) == ["plain"]


PASSING = {
    "no GPU": {"cpu": 1},
    "a GPU by name": {"nvidia.com/gpu": 1},
    "a slice by name": {"nvidia.com/mig-1g.5gb": 1},
}


@pytest.mark.parametrize("case", PASSING)
async def test_pods_that_the_kubelet_serves_pass_and_get_no_assignment(
    kube: MemoryKube, server: Asked, case: str
) -> None:
    waiting = await make_pod(kube, "p", PASSING[case])
    assert await server.fitting(waiting, *ALL) == list(ALL)
    assert await server.schedule(waiting, *ALL) == ""
    bound = await kube.get(PODS, "p", "ns")
    assert bound is not None
    assert bound["spec"]["nodeName"]
    assert "tessera.dev/assignment" not in annotations_of(bound)


async def test_exact_requests_are_scored(kube: MemoryKube, server: Asked) -> None:
    waiting = await make_pod(kube, "p", {"nvidia.com/mig-1g.5gb": 1})
    _, answer = await server.post("/prioritize", {"Pod": waiting, "NodeNames": ALL})
    assert {each["Host"]: each["Score"] for each in answer}["a"] == 10
    assert {each["Host"]: each["Score"] for each in answer}["plain"] == 0


CHOSEN: dict[str, tuple[dict[str, str | int], list[str]]] = {
    "one node of two for a need": ({"tessera.dev/gpu-memory": 10}, ["a"]),
    "the node with a free GPU for a whole one by name": ({"nvidia.com/gpu": 1}, ["a"]),
    "all nodes for a pod without GPUs": ({"cpu": 1}, [*ALL]),
    "all nodes for a device that nobody has, which the kubelet counts": ({"nvidia.com/mig-7g.141gb": 1}, [*ALL]),
    "none for more than there is": ({"tessera.dev/gpu-memory": 41}, []),
    "none for nonsense": ({"tessera.dev/gpu-memory": -1}, []),
}


@pytest.mark.parametrize("case", CHOSEN)
async def test_choose_answers_with_the_one_node_that_filter_and_prioritize_lead_to(
    kube: MemoryKube, server: Asked, case: str
) -> None:
    for index in range(2):
        await hold(kube, f"old-{index}", NEED, share(index, 10240), node="b")
    await settle()
    limits, want = CHOSEN[case]
    waiting = await make_pod(kube, "p", limits)
    asked = {"Pod": waiting, "NodeNames": ALL}
    _, filtered = await server.post("/filter", asked)
    _, chosen = await server.post("/choose", asked)
    assert chosen["NodeNames"] == want
    if len(want) == 1:
        _, scores = await server.post("/prioritize", {"Pod": waiting, "NodeNames": filtered["NodeNames"]})
        assert [each["Host"] for each in scores if each["Score"] == 10] == want
        assert (chosen["FailedNodes"], chosen["FailedAndUnresolvableNodes"]) == ({}, {})
    else:
        assert chosen == filtered


async def test_choose_answers_in_the_form_of_the_question(kube: MemoryKube, server: Asked) -> None:
    waiting = await make_pod(kube, "p", NEED)
    items = [await kube.get(NODES, name) for name in ALL]
    _, answer = await server.post("/choose", {"Pod": waiting, "Nodes": {"items": items}})
    assert [each["metadata"]["name"] for each in answer["Nodes"]["items"]] == ["a"]
    assert answer["NodeNames"] is None


NONSENSE: dict[str, tuple[dict[str, str | int], dict[str, str], str]] = {
    "a negative amount": ({"tessera.dev/gpu-memory": -1}, {}, "limits[tessera.dev/gpu-memory]"),
    "a fraction": ({"tessera.dev/gpu-memory": "1500m"}, {}, "limits[tessera.dev/gpu-memory]"),
    "an unknown grade": ({"tessera.dev/gpu-memory": 1}, {"tessera.dev/isolation": "total"}, "tessera.dev/isolation"),
    "more than any GPU has": ({"tessera.dev/gpu-memory": 500}, {}, "500 GiB"),
}


@pytest.mark.parametrize("case", NONSENSE)
async def test_nonsense_waits_with_a_reason_and_is_never_bound(kube: MemoryKube, server: Asked, case: str) -> None:
    limits, annotations, want = NONSENSE[case]
    waiting = await make_pod(kube, "p", limits, annotations=annotations)
    _, answer = await server.post("/filter", {"Pod": waiting, "NodeNames": ["a", "b"]})
    assert answer["NodeNames"] == []
    assert want in answer["FailedAndUnresolvableNodes"]["a"]
    assert await server.bind(waiting, "a") != ""
    left = await kube.get(PODS, "p", "ns")
    assert left is not None
    assert "nodeName" not in left["spec"]
    _, scores = await server.post("/prioritize", {"Pod": waiting, "NodeNames": ["a", "b"]})
    assert [each["Score"] for each in scores] == [0, 0]
    _, answer = await server.post(
        "/preempt", {"Pod": waiting, "NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "u"}]}}}
    )
    assert answer == {"NodeNameToMetaVictims": {}}


# gpushare


async def test_gpushares_paths_bind_with_gpushares_annotations(kube: MemoryKube, server: Asked) -> None:
    waiting = await make_pod(kube, "p", SHARE)
    _, answer = await server.post("/gpushare-scheduler/filter", {"Pod": waiting, "NodeNames": ALL})
    assert answer["NodeNames"] == ["a", "b"]
    assert await server.bind(waiting, "b", "/gpushare-scheduler/bind") == ""
    bound = await kube.get(PODS, "p", "ns") or {}
    annotations, (held,) = annotations_of(bound), shares_of(bound)
    assert annotations["ALIYUN_COM_GPU_MEM_IDX"] == str(held["gpu"])
    assert annotations["ALIYUN_COM_GPU_MEM_POD"] == "6"
    assert annotations["scheduler.framework.gpushare.allocation"] == f'{{"0":{{"{held["gpu"]}":6}}}}'


async def test_a_failed_bind_is_500_on_gpushares_path_and_200_on_ours(server: Asked) -> None:
    body = {"PodName": "none", "PodNamespace": "ns", "PodUID": "u", "Node": "a"}
    codes = {path: await server.post(path, body) for path in ("/bind", "/gpushare-scheduler/bind")}
    assert [code for code, _ in codes.values()] == [200, 500]
    assert all("no such pod" in answer["Error"] for _, answer in codes.values())


async def test_a_node_with_gpushares_plugin_alone_gets_an_object_for_claims() -> None:
    kube = MemoryKube()
    labels = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.count": "2"}
    allocatable = {"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"}
    await kube.create(NODES, node("old", allocatable, **labels))
    async with servers(kube, 2) as (one, other):
        pods = [await make_pod(kube, f"p{index}", {"aliyun.com/gpu-mem": 8}) for index in range(3)]
        await settle()
        assert [await one.schedule(pods[0], "old"), await other.schedule(pods[1], "old")] == ["", ""]
        await settle()
        assert await one.schedule(pods[2], "old") == "nowhere", "two GPUs of 15 GiB hold 8 GiB once each"
    held = [shares_of(await kube.get(PODS, f"p{index}", "ns") or {})[0]["gpu"] for index in range(2)]
    assert sorted(held) == [0, 1]
    assert await kube.get(GPU_NODES, "old") is not None


async def test_inspect_tells_who_holds_what_as_gpushare_does(kube: MemoryKube, server: Asked) -> None:
    waiting = await make_pod(kube, "p", SHARE)
    assert await server.bind(waiting, "b") == ""
    await settle()
    code, text = await server.get("/gpushare-scheduler/inspect")
    found = {each["name"]: each for each in msgspec.json.decode(text)["nodes"]}
    assert code == 200
    assert (found["a"]["usedGPU"], found["b"]["usedGPU"], len(found["b"]["devs"])) == (0, 6, 2)
    assert [pod for each in found["b"]["devs"] for pod in each["pods"]] == [
        {"name": "p", "namespace": "ns", "usedGPU": 6}
    ]
    _, text = await server.get("/gpushare-scheduler/inspect/b")
    assert msgspec.json.decode(text)["nodes"] == [found["b"]]
    code, text = await server.get("/gpushare-scheduler/inspect/none")
    assert (code, "not found" in text) == (200, True)


# Preemption


async def test_preempt_names_the_cheapest_victims_of_one_device(kube: MemoryKube, server: Asked) -> None:
    made: dict[str, Object] = {}
    for name, index, mib, priority in (("big", 0, 40000, 5), ("small", 1, 20000, 1), ("tiny", 1, 20000, 0)):
        body = pod(name, FULL, node="a", spec={"priority": priority})
        made[name] = await kube.create(PODS, body)
        await regrant(kube, name, share(index, mib, Mode.MPS))
    await settle()
    waiting = await make_pod(kube, "p", NEED, spec={"priority": 10})
    everybody = {"Pods": [{"UID": each["metadata"]["uid"]} for each in made.values()], "NumPDBViolations": 0}
    _, answer = await server.post("/preempt", {"Pod": waiting, "NodeNameToMetaVictims": {"a": everybody, "plain": {}}})
    want = {"a": {"Pods": [{"UID": made["tiny"]["metadata"]["uid"]}], "NumPDBViolations": 0}}
    assert answer == {"NodeNameToMetaVictims": want}
    _, answer = await server.post("/preempt", {"Pod": waiting, "NodeNameToVictims": {"b": {"Pods": []}}})
    assert answer == {"NodeNameToMetaVictims": {}}, "it fits on b already"


async def test_preempt_leaves_pods_without_gpus_to_kube_scheduler(kube: MemoryKube, server: Asked) -> None:
    waiting = await make_pod(kube, "p", {"cpu": 1})
    asked = {"plain": {"Pods": [{"UID": "u"}], "NumPDBViolations": 1}}
    _, answer = await server.post("/preempt", {"Pod": waiting, "NodeNameToMetaVictims": asked})
    assert answer == {"NodeNameToMetaVictims": asked}


# Bad input


PATHS = (
    "/filter",
    "/prioritize",
    "/choose",
    "/preempt",
    "/bind",
    "/gpushare-scheduler/filter",
    "/gpushare-scheduler/bind",
)
BODIES: dict[str, bytes] = {
    "nothing": b"",
    "cut off": b'{"Pod":{"metadata":{"name":"p"',
    "a list": b"[]",
    "deep": b'{"Pod":' + b"[" * 200_000,
    "not UTF-8": b"\xff\xfe",
    "numbers for all": b'{"Pod":1,"NodeNames":2,"PodName":3,"NodeNameToVictims":4}',
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", BODIES)
async def test_a_wrong_body_is_the_callers_fault(server: Asked, path: str, case: str) -> None:
    code, answer = await server.post(path, BODIES[case])
    assert code == 400
    assert answer["Error"]


@pytest.mark.parametrize("path", PATHS)
async def test_a_huge_body_is_refused(kube: MemoryKube, path: str) -> None:
    async with servers(kube, limits=Limits(body_bytes=1000)) as (server,):
        code, answer = await server.post(path, b" " * 1001)
    assert code == 413
    assert "more than 1000 bytes" in answer["Error"]


HOSTILE = (
    {"metadata": {"uid": [], "namespace": 3}},
    {"spec": {"containers": 1}},
    {"spec": {"containers": [{"resources": {"limits": {"tessera.dev/gpu-memory": [1]}}}]}},
)


@pytest.mark.parametrize("each", HOSTILE, ids=repr)
async def test_a_hostile_pod_gets_an_answer(server: Asked, each: Object) -> None:
    for path in ("/filter", "/prioritize", "/choose", "/preempt"):
        code, _ = await server.post(path, {"Pod": each, "NodeNames": ["a"], "NodeNameToVictims": None})
        assert code == 200


async def test_unknown_paths_and_methods(server: Asked) -> None:
    assert (await server.get("/filter"))[0] == 405
    assert (await server.get("/gpushare-scheduler/x"))[0] == 404


# State


async def test_a_server_that_has_not_read_the_cluster_says_so(kube: MemoryKube) -> None:
    kube.uninstall(GPU_NODES)
    async with servers(kube, synced=False) as (server,):
        await settle()
        code, text = await server.get("/readyz")
        assert code == 503
        assert "kubectl apply -f deploy/crds" in text
        assert (await server.get("/healthz"))[0] == 200
        code, answer = await server.post("/filter", {"Pod": {}, "NodeNames": ["a"]})
        assert code == 503
        assert "reading" in answer["Error"]


async def test_ready_healthy_and_version(server: Asked) -> None:
    assert await server.get("/readyz") == (200, "ok")
    assert await server.get("/healthz") == (200, "ok")
    assert await server.get("/version") == (200, __version__)


async def test_a_request_has_a_deadline_and_the_binding_goes_on() -> None:
    slow = SlowKube()
    await make_node(slow, "a", gpu(0))
    waiting = await make_pod(slow, "p", NEED)
    async with servers(slow, limits=Limits(request_s=0.05)) as (server,):
        slow.gate.clear()
        metadata = waiting["metadata"]
        body = {"PodName": "p", "PodNamespace": "ns", "PodUID": metadata["uid"], "Node": "a"}
        code, answer = await server.post("/bind", body)
        assert code == 503
        assert "try again" in answer["Error"]
        slow.gate.set()
        assert await server.bind(waiting, "a") == ""
    assert shares_of(await slow.get(PODS, "p", "ns") or {})


class SlowKube(MemoryKube):
    """An API that carries bindings out when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def bind(self, *args: Any, **more: Any) -> None:
        await self.gate.wait()
        await super().bind(*args, **more)


async def test_a_defect_is_answered_and_logged(server: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.server.view, "read", lambda _: 1 / 0)
    code, answer = await server.post("/filter", {"Pod": {}, "NodeNames": ["a"]})
    assert code == 500
    assert "ZeroDivisionError" in answer["Error"]


# The view


async def test_broken_objects_are_left_out_and_the_server_goes_on(kube: MemoryKube, server: Asked) -> None:
    await kube.create(NODES, node("odd", {"nvidia.com/gpu": "1"}, **{"nvidia.com/gpu.product": "Tesseract-9000"}))
    await kube.create(GPU_NODES, gpunode("odd") | {"spec": {"claims": 3}})
    await kube.create(PODS, pod("odd", {"tessera.dev/gpu-memory": "x"}, node="a"))
    await kube.create(PODS, pod("worse", NEED, node="a", annotations={"tessera.dev/assignment": "[{]"}))
    await settle()
    waiting = await make_pod(kube, "p", NEED)
    assert await server.fitting(waiting, "a", "odd") == ["a"]


async def test_a_unit_of_one_mib_is_learned_from_the_nodes() -> None:
    kube = MemoryKube()
    await kube.create(NODES, node("a"))
    await kube.create(GPU_NODES, gpunode("a"))
    await kube.patch(GPU_NODES, "a", {"status": gpunode("a", gpu(0), unit_mib=1)["status"]}, subresource="status")
    await kube.create(PODS, pod("before", {"aliyun.com/gpu-mem": 3000}, node=None))
    async with servers(kube) as (server,):
        waiting = await make_pod(kube, "p", {"aliyun.com/gpu-mem": 5000})
        assert await server.schedule(waiting, "a") == ""
    assert [each["memoryMiB"] for each in shares_of(await kube.get(PODS, "p", "ns") or {})] == [5000]


async def test_finished_and_deleted_pods_free_what_they_held(kube: MemoryKube, server: Asked) -> None:
    for name, index in (("one", 0), ("two", 1)):
        await hold(kube, name, FULL, share(index, 40000), node="a")
    await settle()
    waiting = await make_pod(kube, "p", {"tessera.dev/gpu-memory": 30})
    assert await server.fitting(waiting, "a") == []
    await kube.patch(PODS, "one", {"status": {"phase": "Succeeded"}}, namespace="ns", subresource="status")
    await settle()
    assert await server.fitting(waiting, "a") == ["a"]
    other = await make_pod(kube, "q", {"tessera.dev/gpu-memory": 30})
    assert await server.schedule(waiting, "a") == ""
    assert await server.schedule(other, "a") == "nowhere"
    await kube.delete(PODS, "two", namespace="ns")
    await settle()
    assert await server.schedule(other, "a") == ""


async def test_what_an_exchange_of_assignments_gives_up_for_a_moment_is_not_free(kube: MemoryKube) -> None:
    clock = Clock()
    async with servers(kube, clock=clock) as (server,):
        first, second = share(0, 30000, Mode.MPS), share(1, 30000, Mode.MPS)
        for name, held in (("one", first), ("two", second)):
            await hold(kube, name, FULL, held, node="a")
        await settle()
        waiting = await make_pod(kube, "p", {"tessera.dev/gpu-memory": 30})
        await regrant(kube, "one", second)
        await settle()
        assert await server.fitting(waiting, "a") == []
        assert "room" in await server.bind(waiting, "a")
        await kube.delete(PODS, "two", namespace="ns")
        await settle()
        clock.now_s += 11
        assert await server.fitting(waiting, "a") == ["a"]


async def test_nodes_come_change_and_go(kube: MemoryKube, server: Asked) -> None:
    waiting = await make_pod(kube, "p", {"tessera.dev/gpu-memory": 20})
    await make_node(kube, "late", gpu(0, "T4"))
    await settle()
    assert await server.fitting(waiting, "late") == []
    bigger = gpunode("late", gpu(0, "A100-80GB", Sharing(modes=(Mode.MPS,))))
    await kube.patch(GPU_NODES, "late", {"status": bigger["status"]}, subresource="status")
    await settle()
    assert await server.fitting(waiting, "late") == ["late"]
    await kube.delete(GPU_NODES, "late")
    await settle()
    assert await server.fitting(waiting, "late") == []
    await kube.delete(NODES, "late")
    await settle()
    assert await server.fitting(waiting, "late", "a") == ["a"]


@pytest.mark.parametrize("path", ["/prioritize", "/choose"])
async def test_a_place_is_kept_for_a_pod_that_was_scored_until_it_is_bound_or_late(kube: MemoryKube, path: str) -> None:
    clock = Clock()
    async with servers(kube, clock=clock) as (server,):
        large = {"tessera.dev/gpu-memory": 39}
        first, second = [await make_pod(kube, name, large) for name in ("p", "q")]
        await settle()
        for _ in range(2):  # asking again changes nothing
            await server.post(path, {"Pod": first, "NodeNames": ["a"]})
        assert await server.fitting(second, "a") == ["a"]
        third = await make_pod(kube, "r", large)
        assert await server.fitting(third, "a") == [], "one GPU is kept for each of the two"
        clock.now_s += 6
        assert await server.fitting(third, "a") == ["a"]
        assert await server.bind(first, "a") == ""
        assert await server.bind(second, "a") == "", "what is kept for the third gives way to who comes first"


@pytest.mark.parametrize("case", ROUTED)
async def test_the_webhook_routes_what_the_function_routes(server: Asked, case: str) -> None:
    body, namespace, want = ROUTED[case]
    asked = {"uid": "u1", "kind": {"group": "", "kind": "Pod"}, "operation": "CREATE", "namespace": namespace}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {**asked, "object": body}}
    status, answer = await server.post("/admission/v1/route", review)
    assert (status, answer["response"]["uid"], answer["response"]["allowed"]) == (200, "u1", True)
    assert ("patch" in answer["response"]) is want


async def test_the_webhook_answers_before_anything_was_read() -> None:
    one = Asked(Server(Settings(), MemoryKube()))
    review = {"apiVersion": "admission.k8s.io/v1", "request": {"uid": "u1"}}
    assert (await one.post("/admission/v1/route", review))[0] == 200
    assert (await one.post("/admission/v1/route", b"{"))[0] == 400
    assert (await one.post("/admission/v1/route", b" " * (9 << 20)))[0] == 413
