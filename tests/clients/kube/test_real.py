"""What the client makes of an API server's answers; the server is played."""

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from clients.kube.test_cluster import kubeconfig
from harness.httpserver import Asked, Play, Server, answer, chunked, serving
from tessera.clients.kube import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    GPU_NODES,
    JOBS,
    NODES,
    PODS,
    Expired,
    Forbidden,
    HttpKube,
    Kind,
    Selection,
    Silent,
    Unanswered,
    WatchEvent,
)
from tessera.clients.kube.cluster import find_access
from tessera.errors import Conflict, InvalidInput, TesseraError, Unavailable, Unsupported

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def connected(
    folder: Path, play: Play, user: dict[str, Any], **waits: float
) -> AsyncIterator[tuple[Server, HttpKube]]:
    """Give a server that plays, and a client of it."""
    async with serving(play) as server:
        access = find_access(kubeconfig(folder, user, server.url), None)
        async with HttpKube(access, **waits) as kube:
            yield server, kube


def status(code: int, message: str = "so it is", *causes: dict[str, str]) -> bytes:
    body: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
    if causes:
        body["details"] = {"causes": causes}
    return answer(json.dumps(body).encode(), f"{code} Some Reason")


def shown(**each: Any) -> bytes:
    return answer(json.dumps(each).encode())


REFUSALS: dict[str, tuple[bytes | None, type[TesseraError], str]] = {
    "invalid": (status(422, "spec.x: " + "long " * 40 + "end"), InvalidInput, "long end"),
    "bad request": (status(400), InvalidInput, "HTTP 400"),
    "not allowed": (status(403, 'User "u" cannot list pods'), Forbidden, "cannot list.*a role that grants it"),
    "a quota": (status(403, "exceeded quota"), Unavailable, "exceeded quota.: correct .* of a quota, delete"),
    "not known": (
        status(401, "Unauthorized"),
        Unavailable,
        "Unauthorized.*a token or certificate that has not expired",
    ),
    "not there": (status(404, "not found"), Conflict, "not found"),
    "changed": (status(409, "the object has been modified"), Conflict, "modified"),
    "too old": (status(410, "too old"), Expired, "too old"),
    "too many requests": (status(429, "later"), Unavailable, "HTTP 429, 'later'"),
    "a disruption budget": (
        status(
            429,
            "Cannot evict pod as it would violate the pod's disruption budget.",
            {"reason": "DisruptionBudget", "message": "The disruption budget guard needs 1 healthy pods and has 1"},
        ),
        Unavailable,
        "disruption budget. The disruption budget guard needs 1 healthy pods and has 1",
    ),
    "causes that the message has": (
        status(422, "spec.x: so it is", {"reason": "FieldValueInvalid", "message": "so it is", "field": "spec.x"}),
        InvalidInput,
        "HTTP 422, 'spec.x: so it is'",
    ),
    "internal error": (status(500, "etcd timed out"), Unanswered, "etcd timed out"),
    "a field that the kind does not have": (
        status(500, "failed to create typed patch object (/n; v1): .spec.x: field not declared in schema"),
        InvalidInput,
        "the CustomResourceDefinition of this version, gpunodes.tessera.dev",
    ),
    "gateway": (answer(b"<html>", "502 Bad Gateway", "text/html"), Unanswered, "HTTP 502, '<html>'"),
    "nested without end": (answer(b"[" * 100_000), Unanswered, "the write may have happened"),
    "not UTF-8": (answer(b'{"a":"\xff"}'), Unanswered, "the write may have happened"),
    "no such path": (answer(b"404 page not found\n", "404 Not Found", "text/plain"), Unsupported, "docs/install.md"),
    "no JSON": (answer(b"{"), Unanswered, "the write may have happened"),
    "no object": (answer(b"[]"), Unanswered, "the write may have happened"),
    "half an object": (answer(b"{"), Unanswered, "the answer is no object .it is not complete JSON."),
    "a refusal whose details are none": (
        answer(b'{"message":"no","details":["x"]}', "400 Bad Request"),
        InvalidInput,
        "HTTP 400, 'no'",
    ),
    "a refusal whose causes are none": (
        answer(b'{"message":"no","details":{"causes":["x"]}}', "429 Too Many Requests"),
        Unavailable,
        "HTTP 429, 'no'",
    ),
    "nothing": (None, Unanswered, "the write may have happened"),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_a_refusal_is_an_error_that_says_what_to_do(case: str, tmp_path: Path) -> None:
    raw, want, text = REFUSALS[case]
    async with connected(tmp_path, lambda _: raw, {"token": "t"}) as (_server, kube):
        with pytest.raises(TesseraError, match=text) as refused:
            await kube.patch(GPU_NODES, "node1", {"spec": {}})
        assert isinstance(refused.value, want)
        assert "patch GPUNode node1" in str(refused.value)
    if want is Unavailable:
        assert not isinstance(refused.value, Unanswered | Forbidden), "nothing was done, and no role would help"


async def test_a_field_that_kubernetes_own_kind_does_not_have_is_the_caller_s_to_correct(tmp_path: Path) -> None:
    raw = status(500, "failed to create typed patch object (n/d; apps/v1): .spec.x: field not declared in schema")
    async with connected(tmp_path, lambda _: raw, {"token": "t"}) as (_server, kube):
        with pytest.raises(InvalidInput, match=r"field not declared in schema': remove or correct that field$"):
            await kube.apply(DEPLOYMENTS, {"metadata": {"name": "d", "namespace": "n"}}, manager="me")


async def test_each_call_is_the_request_it_should_be(tmp_path: Path) -> None:
    async with connected(tmp_path, lambda _: shown(metadata={"name": "n"}), {"token": "t"}) as (server, kube):
        selection = Selection(namespace="ns", labels=(("a", "b"), ("c", "d")), fields=(("spec.nodeName", "n 1"),))
        await kube.list(PODS, selection)
        await kube.get(CONFIG_MAPS, "a?b", "ns")
        await kube.apply(GPU_NODES, {"metadata": {"name": "n"}}, manager="me", force=True, subresource="status")
        await kube.bind("p", "ns", uid="u", node="n", annotations={"k": "v"})
        await kube.delete(PODS, "p", namespace="ns", grace_s=0)
        await kube.evict("p", "ns")
        await kube.delete(JOBS, "j", namespace="ns", uid="u")
        await kube.list(PODS, Selection(fields=(("a", "b"),), other_fields=(("c", "d"), ("c", "e"))))
        lines = [f"{each.method} {each.target}" for each in server.requested]
        assert lines == [
            "GET /api/v1/namespaces/ns/pods?labelSelector=a%3Db%2Cc%3Dd&fieldSelector=spec.nodeName%3Dn+1&limit=500",
            "GET /api/v1/namespaces/ns/configmaps/a%3Fb",
            "PATCH /apis/tessera.dev/v1alpha1/gpunodes/n/status?fieldManager=me&force=true",
            "POST /api/v1/namespaces/ns/pods/p/binding",
            "DELETE /api/v1/namespaces/ns/pods/p",
            "POST /api/v1/namespaces/ns/pods/p/eviction",
            "DELETE /apis/batch/v1/namespaces/ns/jobs/j",
            "GET /api/v1/pods?fieldSelector=a%3Db%2Cc%21%3Dd%2Cc%21%3De&limit=500",
        ]
        assert {each.headers["authorization"] for each in server.requested} == {"Bearer t"}
        assert server.requested[2].headers["content-type"] == "application/apply-patch+yaml"
        binding = json.loads(server.requested[3].body)
        assert binding["metadata"] == {"name": "p", "namespace": "ns", "uid": "u", "annotations": {"k": "v"}}
        assert binding["target"]["name"] == "n"
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        assert json.loads(server.requested[4].body) == options | {"gracePeriodSeconds": 0}
        assert json.loads(server.requested[6].body) == options | {"preconditions": {"uid": "u"}}
        assert server.connections == 1


async def test_a_pod_is_asked_by_way_of_the_api_server(tmp_path: Path) -> None:
    absent = answer(b"no such page", "404 Not Found", "text/plain")
    answers = [answer(b"<html>"), absent]
    async with connected(tmp_path, lambda _: answers.pop(0), {}) as (server, kube):
        assert await kube.ask_pod("p", "ns", port=9400, path="usage", most=6) == b"<html>"
        with pytest.raises(Unavailable, match="Pod ns/p at port 9400"):
            await kube.ask_pod("p", "ns", port=9400, path="usage", most=6)
        assert {each.target for each in server.requested} == {"/api/v1/namespaces/ns/pods/p:9400/proxy/usage"}


async def test_a_log_is_that_of_the_container_named(tmp_path: Path) -> None:
    async with connected(tmp_path, lambda _: answer(b"epoch 1"), {}) as (server, kube):
        since = "2026-11-26T21:00:00+01:00"
        for container, follow, after in (("main", True, None), ("", False, None), ("", False, ""), ("", False, since)):
            found = [each async for each in kube.logs("p", "ns", container=container, follow=follow, since=after)]
            assert b"".join(found) == b"epoch 1"
        log = "/api/v1/namespaces/ns/pods/p/log"
        assert [each.target for each in server.requested] == [
            f"{log}?container=main&follow=true",
            log,
            f"{log}?timestamps=true",
            f"{log}?timestamps=true&sinceTime=2026-11-26T21%3A00%3A00%2B01%3A00",
        ]


async def test_a_log_without_content_is_empty(tmp_path: Path) -> None:
    """So the API server answers for a pod that is on no node yet."""
    async with connected(tmp_path, lambda _: b"HTTP/1.1 204 No Content\r\n\r\n", {}) as (_, kube):
        assert [each async for each in kube.logs("p", "ns")] == []


@pytest.mark.parametrize("status", ["200 OK", "500 Internal Server Error"])
async def test_an_endless_answer_of_a_pod_is_not_read_to_its_end(tmp_path: Path, status: str) -> None:
    endless = answer(b"a" * (1 << 16), status).replace(b"Content-Length: 65536", b"Content-Length: 99000000")
    async with connected(tmp_path, lambda _: endless, {}) as (_, kube):
        with pytest.raises(Unavailable, match="Pod ns/p at port 9400: 'an answer of more than 1000 bytes'"):
            await kube.ask_pod("p", "ns", port=9400, path="usage", most=1000)


async def test_names_that_lead_elsewhere_never_leave(tmp_path: Path) -> None:
    async with connected(tmp_path, lambda _: shown(), {}) as (server, kube):
        for name, namespace in (("", "ns"), ("..", "ns"), ("a", ""), ("a", ".")):
            with pytest.raises(InvalidInput):
                await kube.get(PODS, name, namespace)
        assert server.requested == []


async def test_what_is_read_has_no_field_owners(tmp_path: Path) -> None:
    item = {"metadata": {"name": "n", "managedFields": [{"manager": "m"}]}}

    def play(requested: Asked) -> bytes:
        return shown(items=[item]) if "limit" in requested.target else shown(**item)

    async with connected(tmp_path, play, {}) as (_, kube):
        assert await kube.get(NODES, "n") == {"metadata": {"name": "n"}}
        listed = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
        assert (await kube.list(NODES)).objects == (listed,)


async def test_a_refused_token_is_read_again_once(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")

    def play(requested: Asked) -> bytes:
        if requested.headers["authorization"] == "Bearer new":
            return shown(items=[], metadata={"resourceVersion": "7"})
        token.write_text("new")
        return status(401, "Unauthorized")

    async with connected(tmp_path, play, {"tokenFile": str(token)}) as (server, kube):
        assert (await kube.list(NODES)).resource_version == "7"
        assert (await kube.list(NODES)).resource_version == "7"
        assert [each.headers["authorization"] for each in server.requested] == [
            "Bearer old",
            "Bearer new",
            "Bearer new",
        ]


async def test_nothing_is_sent_again_after_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token's file that is slow to read holds the loop; a Binding that came late would bind what was given up."""
    token, refused, late_s = tmp_path / "token", threading.Event(), [0.0]
    os.mkfifo(token)

    def play(requested: Asked) -> bytes:
        refused.set()
        return shown(status="Success") if requested.headers["authorization"] == "Bearer new" else status(401)

    def tokens() -> None:
        token.write_text("old")
        refused.wait()
        with token.open("w") as read:  # opens when the client reads it, and so holds its loop
            late_s[0] = 31.0
            read.write("new")

    loop = asyncio.get_running_loop()
    now = loop.time
    thread = threading.Thread(target=tokens, daemon=True)
    thread.start()
    async with connected(tmp_path, play, {"tokenFile": str(token)}) as (server, kube):
        monkeypatch.setattr(loop, "time", lambda: now() + late_s[0])
        with pytest.raises(Unanswered, match="no answer in 30 s"):
            await kube.bind("p", "ns", uid="u", node="n", annotations={})
        late_s[0] = 0.0
        await asyncio.sleep(0.2)  # for the server, which reads what was sent in this loop
        assert [each.headers["authorization"] for each in server.requested] == ["Bearer old"]


async def test_a_watch_whose_token_is_refused_begins_anew_with_another(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")

    def play(requested: Asked) -> bytes:
        token.write_text("new")
        return chunked() if requested.headers["authorization"] == "Bearer new" else status(401, "Unauthorized")

    async with connected(tmp_path, play, {"tokenFile": str(token)}) as (_server, kube):
        with pytest.raises(Unavailable, match="Unauthorized"):
            await anext(aiter(kube.watch(NODES, "1")))
        assert [event async for event in kube.watch(NODES, "1")] == []


async def test_a_list_whose_moment_expires_between_chunks_is_asked_whole(tmp_path: Path) -> None:
    def play(requested: Asked) -> bytes:
        query = parse_qs(urlsplit(requested.target).query)
        if "continue" in query:
            return status(410, "the provided continue parameter is too old")
        if "limit" in query:
            return shown(items=[{"metadata": {"name": "old"}}], metadata={"continue": "x", "resourceVersion": "1"})
        return shown(items=[{"metadata": {"name": "new"}}], metadata={"resourceVersion": "9"})

    async with connected(tmp_path, play, {}) as (_server, kube):
        listing = await kube.list(NODES)
    assert ([each["metadata"]["name"] for each in listing.objects], listing.resource_version) == (["new"], "9")


@pytest.mark.parametrize(
    ("kind", "namespace", "path"), [(NODES, "", "/api/v1/nodes"), (PODS, "ml", "/api/v1/namespaces/ml/pods")]
)
async def test_a_version_is_read_without_the_objects(tmp_path: Path, kind: Kind, namespace: str, path: str) -> None:
    """As a role permits that is of one namespace, or for one name."""
    page = shown(items=[{"metadata": {"name": "a"}}], metadata={"continue": "x", "resourceVersion": "7"})
    selection = Selection(namespace=namespace, fields=(("metadata.name", "a"),), labels=(("l", "b"),))
    async with connected(tmp_path, lambda _: page, {}) as (server, kube):
        assert await kube.version(kind, selection) == "7"
        (requested,) = server.requested
    assert urlsplit(requested.target).path == path
    assert parse_qs(urlsplit(requested.target).query) == {"limit": ["1"], "fieldSelector": ["metadata.name=a"]}


def event(change: str, **each: Any) -> bytes:
    return json.dumps({"type": change, "object": each}).encode() + b"\n"


async def test_a_watch_tells_changes_and_bookmarks_and_ends_with_the_stream(tmp_path: Path) -> None:
    lines = (
        event("ADDED", metadata={"name": "n", "resourceVersion": "5", "managedFields": []})
        + event("DELETED", metadata={"name": "n", "resourceVersion": "6"})
        + event("BOOKMARK", metadata={"resourceVersion": "8"})
    )
    async with connected(tmp_path, lambda _: chunked(lines[:70], lines[70:150], lines[150:]), {}) as (server, kube):
        told = [each async for each in kube.watch(NODES, "4", Selection(fields=(("metadata.name", "n"),)))]
        query = parse_qs(urlsplit(server.requested[0].target).query)
    assert told == [
        WatchEvent(object={"metadata": {"name": "n", "resourceVersion": "5"}}),
        WatchEvent(object={"metadata": {"name": "n", "resourceVersion": "6"}}, gone=True),
        WatchEvent(object={"metadata": {"resourceVersion": "8"}}, bookmark=True),
    ]
    assert (query["resourceVersion"], query["fieldSelector"]) == (["4"], ["metadata.name=n"])
    assert query["allowWatchBookmarks"] == ["true"]


ENDS: dict[str, tuple[Callable[[Asked], bytes | None], type[TesseraError], str]] = {
    "an expired moment, told at once": (lambda _: status(410, "too old"), Expired, "too old"),
    "an expired moment, told in the stream": (
        lambda _: chunked(event("ERROR", kind="Status", code=410, message="too old resource version")),
        Expired,
        "too old resource version",
    ),
    "an error in the stream": (
        lambda _: chunked(event("ERROR", kind="Status", code=500, message="no leader")),
        Unanswered,
        "no leader",
    ),
    "an error in the stream whose code is none": (
        lambda _: chunked(event("ERROR", kind="Status", code=["x"], message="no leader", details=["x"])),
        TesseraError,
        "no leader",
    ),
    "a line that is none": (lambda _: chunked(b"nonsense\n"), Unavailable, "nonsense"),
    "an end in the middle": (
        lambda _: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{",
        Unanswered,
        "not completed",
    ),
    "a kind that is not served": (
        lambda _: answer(b"404 page not found\n", "404 Not Found", "text/plain"),
        Unsupported,
        "the CustomResourceDefinition gpunodes.tessera.dev",
    ),
    "a kind that is not served, told by a Status": (
        lambda _: status(404, "the server could not find the requested resource"),
        Unsupported,
        "the CustomResourceDefinition gpunodes.tessera.dev",
    ),
    "a line that is not UTF-8": (lambda _: chunked(b'{"type":"\xff"}\n'), Unavailable, "a change"),
    "a success that is no stream": (lambda _: answer(b"", "202 Accepted"), Unanswered, "HTTP 202"),
}


@pytest.mark.parametrize("case", ENDS)
async def test_a_watch_ends_with_an_error_that_says_how_to_go_on(case: str, tmp_path: Path) -> None:
    play, want, text = ENDS[case]
    async with connected(tmp_path, play, {}) as (server, kube):
        stream = kube.watch(GPU_NODES, "4")
        if case == "an end in the middle":
            server.hang_up_after_s = 0.1
        with pytest.raises(want, match=text):
            await anext(aiter(stream))


async def test_a_server_that_is_silent_is_given_up(tmp_path: Path) -> None:
    def play(requested: Asked) -> bytes:
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" if "watch" in requested.target else b"HTTP/1.1 "

    async with connected(tmp_path, play, {}, deadline_s=0.05, silence_s=0.05) as (server, kube):
        server.waits = True
        with pytest.raises(Unanswered, match=r"no answer in 0\.05 s"):
            await kube.create(NODES, {"metadata": {"name": "n"}})
        with pytest.raises(Silent, match=r"nothing in 0\.05 s, not even that nothing has changed"):
            await anext(aiter(kube.watch(NODES, "4")))


async def test_a_server_that_is_not_there_did_nothing(tmp_path: Path) -> None:
    async with serving(lambda _: None) as server:
        pass
    async with HttpKube.connect(kubeconfig(tmp_path, {}, server.url)) as kube:
        with pytest.raises(Unavailable, match="check the API server's address") as refused:
            await kube.bind("p", "ns", uid="u", node="n", annotations={})
        assert not isinstance(refused.value, Unanswered)
        with pytest.raises(Unavailable, match=r"^create Pod in ns: ") as refused:
            await kube.create(PODS, {"metadata": {"namespace": "ns", "generateName": "run-"}})
        assert not isinstance(refused.value, Unanswered)
