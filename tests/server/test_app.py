"""The routes, asked as kube-scheduler and gpushare's scheduler ask, over a cluster in memory."""

import asyncio
from typing import Any

import pytest

from builders.admissionpods import ROUTED
from builders.kubeobjects import gpu
from harness.servers import NEED, SHARE, Asked, make_node, make_pod, servers, settle
from judges.allocated import shares_of
from tessera import __version__
from tessera.clients.kube import GPU_NODES, NODES, PODS, MemoryKube, Object, annotations_of
from tessera.server.run import Server
from tessera.server.settings import ServerLimits, ServerSettings

pytestmark = pytest.mark.anyio

ALL = ("a", "b", "plain")


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


async def test_choose_answers_in_the_form_of_the_question(kube: MemoryKube, server: Asked) -> None:
    waiting = await make_pod(kube, "p", NEED)
    items = [await kube.get(NODES, name) for name in ALL]
    _, answer = await server.post("/choose", {"Pod": waiting, "Nodes": {"items": items}})
    assert [each["metadata"]["name"] for each in answer["Nodes"]["items"]] == ["a"]
    assert answer["NodeNames"] is None


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
    async with servers(kube, limits=ServerLimits(body_bytes=1000)) as (server,):
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


async def test_a_server_that_has_not_read_the_cluster_says_so(kube: MemoryKube) -> None:
    kube.uninstall(GPU_NODES)
    async with servers(kube, synced=False) as (server,):
        await settle()
        code, text = await server.get("/readyz")
        assert code == 503
        assert "the chart installs it, see docs/install.md" in text
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
    async with servers(slow, limits=ServerLimits(request_s=0.05)) as (server,):
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
    """An API that executes bindings on request."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def bind(self, *args: Any, **more: Any) -> None:
        await self.gate.wait()
        await super().bind(*args, **more)


async def test_a_defect_is_answered_and_logged(server: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.server.view.pods, "read", lambda _: 1 / 0)
    code, answer = await server.post("/filter", {"Pod": {}, "NodeNames": ["a"]})
    assert code == 500
    assert "ZeroDivisionError" in answer["Error"]


@pytest.mark.parametrize("case", ROUTED)
async def test_the_webhook_routes_what_the_function_routes(server: Asked, case: str) -> None:
    body, namespace, want = ROUTED[case]
    requested = {"uid": "u1", "kind": {"group": "", "kind": "Pod"}, "operation": "CREATE", "namespace": namespace}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {**requested, "object": body}}
    status, answer = await server.post("/admission/v1/route", review)
    assert (status, answer["response"]["uid"], answer["response"]["allowed"]) == (200, "u1", True)
    assert ("patch" in answer["response"]) is want


async def test_the_webhook_answers_before_anything_was_read() -> None:
    one = Asked(Server(ServerSettings(), MemoryKube()))
    review = {"apiVersion": "admission.k8s.io/v1", "request": {"uid": "u1"}}
    assert (await one.post("/admission/v1/route", review))[0] == 200
    assert (await one.post("/admission/v1/route", b"{"))[0] == 400
    assert (await one.post("/admission/v1/route", b" " * (9 << 20)))[0] == 413


async def test_requests_and_bindings_are_counted_for_prometheus(kube: MemoryKube, server: Asked) -> None:
    waiting = await make_pod(kube, "p", NEED)
    await settle()
    assert await server.schedule(waiting, *ALL) == ""
    await server.post("/filter", b"nonsense")
    text = server.server.metrics().decode()
    for line in (
        "tessera_server_ready 1",
        'tessera_server_requests_total{handler="filter",code="200"} 1',
        'tessera_server_requests_total{handler="filter",code="400"} 1',
        'tessera_server_requests_total{handler="bind",code="200"} 1',
        'tessera_server_bindings_total{result="bound"} 1',
        'tessera_server_request_duration_seconds_count{handler="filter"} 2',
    ):
        assert f"{line}\n" in text, line
    watched = ("configmaps", "gpunodes", "nodes", "pods", "resourcequotas", "clusterqueues")
    for loop in ("signing-key", *(f"watch-{kind}" for kind in watched)):
        assert f'tessera_loop_age_seconds{{loop="{loop}"}}' in text
