"""The process: sockets, TLS, stopping, and what ends it."""

import asyncio
import gc
import socket
import ssl
from pathlib import Path
from typing import Any

import httpx2
import pytest

from builders.kubeobjects import gpu
from harness.servers import NEED, make_node, make_pod, servers, settle
from tessera.certificates import Tls
from tessera.clients.kube import GPU_NODES, NODES, Kind, Listing, MemoryKube, Selection
from tessera.errors import InvalidInput, Unavailable
from tessera.server.run import Server
from tessera.server.settings import AdmissionSettings, ServerLimits, ServerSettings


async def started(server: Server) -> "asyncio.Task[None]":
    """Start a server and return when it listens and is ready."""
    task = asyncio.create_task(server.run())
    async with asyncio.timeout(10):
        await server.listening.wait()
        await server.synced()
    return task


async def get(url: str, context: ssl.SSLContext | None = None) -> int:
    async with httpx2.AsyncClient(verify=context or True) as client:
        return (await client.get(url)).status_code


@pytest.mark.anyio
async def test_it_serves_http_on_the_loopback_until_it_is_stopped() -> None:
    server = Server(ServerSettings(port=0), MemoryKube())
    task = await started(server)
    assert await get(f"http://127.0.0.1:{server.port}/readyz") == 200
    server.stop()
    await task


@pytest.mark.anyio
async def test_what_was_read_first_is_left_out_of_collections_where_that_is_asked() -> None:
    before = gc.get_freeze_count()
    for freeze in (False, True):
        server = Server(ServerSettings(port=0, freeze=freeze), MemoryKube())
        task = await started(server)
        assert (gc.get_freeze_count() > before) is freeze
        server.stop()
        await task
    gc.unfreeze()


@pytest.mark.anyio
async def test_only_clients_of_the_authority_are_heard(pki: Path) -> None:
    tls = Tls(certificate=pki / "server.crt", key=pki / "server.key", client_authority=pki / "ca.crt")
    server = Server(ServerSettings(host="127.0.0.1", port=0, tls=tls), MemoryKube())
    task = await started(server)
    url = f"https://127.0.0.1:{server.port}/readyz"

    def context(name: str = "") -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        if name:
            made.load_cert_chain(pki / f"{name}.crt", pki / f"{name}.key")
        return made

    assert await get(url, context("client")) == 200
    for stranger in (context(), context("stranger")):
        with pytest.raises(httpx2.TransportError):
            await get(url, stranger)
    with pytest.raises(httpx2.TransportError):
        await get(f"http://127.0.0.1:{server.port}/readyz")
    server.stop()
    await task


@pytest.mark.anyio
async def test_without_an_authority_any_client_is_heard_over_tls(pki: Path) -> None:
    tls = Tls(certificate=pki / "server.crt", key=pki / "server.key")
    server = Server(ServerSettings(port=0, tls=tls), MemoryKube())
    task = await started(server)
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    assert await get(f"https://127.0.0.1:{server.port}/healthz", context) == 200
    server.stop()
    await task


@pytest.mark.anyio
async def test_the_api_server_is_answered_beside_an_extender_on_the_loopback(pki: Path) -> None:
    tls = Tls(certificate=pki / "server.crt", key=pki / "server.key")
    server = Server(
        ServerSettings(port=0, admission=AdmissionSettings(host="127.0.0.1", port=0, tls=tls)), MemoryKube()
    )
    task = await started(server)
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    url = f"https://127.0.0.1:{server.admission_port}"
    assert await get(f"http://127.0.0.1:{server.port}/readyz") == 200
    assert await get(f"{url}/healthz", context) == 200
    assert await get(f"{url}/readyz", context) == 404
    async with httpx2.AsyncClient(verify=context) as client:
        answer = await client.post(f"{url}/admission/v1/route", content=REVIEW)
    assert (answer.status_code, answer.json()["response"]["allowed"]) == (200, True)
    server.stop()
    await task


REVIEW = b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u1"}}'


@pytest.mark.anyio
async def test_files_that_are_no_certificates_are_refused(pki: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.crt").write_text("no certificate")
    for certificate in (tmp_path / "bad.crt", tmp_path / "none.crt"):
        server = Server(ServerSettings(tls=Tls(certificate=certificate, key=pki / "server.key")), MemoryKube())
        with pytest.raises(InvalidInput, match="TLS files"):
            await server.run()


@pytest.mark.anyio
async def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"port {port}"):
            await Server(ServerSettings(port=port), MemoryKube()).run()


class RefusingKube(MemoryKube):
    """An API that breaks while one kind is listed, as it never should."""

    async def list(self, kind: Kind, selection: Selection | None = None) -> Listing:
        if kind == NODES:
            raise RuntimeError("list nodes")
        return await super().list(kind, selection or Selection())


@pytest.mark.anyio
async def test_a_loop_that_ends_ends_the_server_with_its_error() -> None:
    async with asyncio.timeout(10):
        with pytest.raises(RuntimeError, match="list nodes"):
            await Server(ServerSettings(port=0), RefusingKube()).run()


@pytest.mark.anyio
async def test_a_watch_that_tells_nonsense_does_not_end_the_server() -> None:
    kube = MemoryKube()
    await make_node(kube, "a", gpu(0))
    async with servers(kube) as (server,):
        server.server.view.take_pod = _broken  # type: ignore[method-assign]  # what no object is known to do
        waiting = await make_pod(kube, "p", NEED)
        await settle()
        del server.server.view.take_pod
        assert await server.fitting(waiting, "a") == ["a"]


def _broken(*_: Any, **__: Any) -> None:
    raise ZeroDivisionError


@pytest.mark.anyio
async def test_old_claims_are_looked_into_without_being_asked() -> None:
    kube = MemoryKube()
    await make_node(kube, "a", gpu(0))
    async with servers(kube, limits=ServerLimits(sweep_s=0.01)) as (server,):
        assert await server.bind(await make_pod(kube, "p", NEED), "a") == ""
        async with asyncio.timeout(10):
            async for event in kube.watch(GPU_NODES, "0"):
                if event.object.get("spec", {}).get("claims") == []:
                    break
