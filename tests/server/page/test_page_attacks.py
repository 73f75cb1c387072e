"""Those who would harm the page: viewers who are curious, slow, impolite, or not of the certificate's authority."""

import asyncio
import shutil
import socket
import ssl
from contextlib import closing
from pathlib import Path

import httpx2
import pytest

from harness.certificates import make_certificates
from harness.pageserver import MIG, cluster, served
from harness.servers import make_pod
from tessera.certificates import Tls
from tessera.clients.kube import PODS
from tessera.server.run import Server
from tessera.server.settings import Page, ServerLimits, ServerSettings

pytestmark = pytest.mark.anyio

# Keyed by a sentence: what a client sends, and how the answer begins; empty where the connection just ends.
IMPOLITE: dict[str, tuple[bytes, bytes]] = {
    "only the headers": (b"HEAD /api/fleet HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 200"),
    "only the headers of updates": (b"HEAD /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 200"),
    "what is allowed": (b"OPTIONS /api/fleet HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 405"),
    "to write": (b"DELETE /api/fleet HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 405"),
    "a trace": (b"TRACE / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 405"),
    "a tunnel": (b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 4"),
    "a path of 100 kB": (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 4"),
    "a header of 1 MB": (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (1 << 20), b"HTTP/1.1 4"),
    "a body of 1 MB to what is read": (
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\n" + b"x" * (1 << 20),
        b"HTTP/1.1 200",
    ),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: elsewhere\r\n\r\n", b"HTTP/1.1 400"),
    "another program's words": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"HTTP/1.1 400"),
}


@pytest.mark.parametrize("case", IMPOLITE)
async def test_whatever_is_asked_is_answered_briefly_and_others_are_as_before(case: str) -> None:
    sent, want = IMPOLITE[case]
    async with served(await cluster(), streams=1) as page:
        reader, writer = await asyncio.open_connection("127.0.0.1", page.server.page_port)
        writer.write(sent)
        async with asyncio.timeout(20):
            head = await reader.read(1000)
        assert head.startswith(want), head
        async with page.events() as events:
            assert [(await events.next())[0] for _ in range(2)] == ["viewer", "fleet"]
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def test_updates_that_nobody_takes_end_and_make_room_for_another_viewer() -> None:
    kube = await cluster()
    message = {"type": "PodScheduled", "status": "False", "message": "x" * (1 << 20)}
    for number in range(16):  # more than sockets hold
        await make_pod(kube, f"waits-{number}", MIG, status={"conditions": [message]})
    async with served(kube, streams=1, send_s=0.3, heartbeat_s=0.1) as page:
        with closing(socket.socket()) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)  # noqa: FBT003 - its only parameter
            loop = asyncio.get_running_loop()
            await loop.sock_connect(slow, ("127.0.0.1", page.server.page_port))
            await loop.sock_sendall(slow, b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert await loop.sock_recv(slow, 9) == b"HTTP/1.1 "
            for _ in range(200):
                async with page.events() as events:
                    if events.status == 200:
                        assert (await events.next())[0] == "viewer"
                        return
                await asyncio.sleep(0.1)
    pytest.fail("the viewer that reads nothing keeps others out")


async def test_no_byte_of_the_updates_tells_a_viewer_of_another_namespace() -> None:
    kube = await cluster()
    async with served(kube, sign_in=True) as page:
        taken = b""
        headers = {"Authorization": "Bearer token-of-viewer"}
        async with page.client.stream("GET", "/api/events", headers=headers) as answer:
            chunks = answer.aiter_bytes()
            async with asyncio.timeout(30):
                while b"event: fleet" not in taken:
                    taken += await anext(chunks)
                for number in range(2):
                    told = {"type": "PodScheduled", "status": "False", "message": "secret-reason"}
                    about = {"namespace": "hidden", "annotations": {"note": "secret-note"}}
                    await make_pod(kube, f"secret-{number}", MIG, metadata=about, status={"conditions": [told]})
                    while f'"pendingElsewhere":{number + 1}'.encode() not in taken:
                        taken += await anext(chunks)
                await kube.delete(PODS, "secret-pod", namespace="hidden")
                while b"event: change" not in taken.rpartition(b'"pendingElsewhere":2')[2]:
                    taken += await anext(chunks)
    assert b"open-pod" in taken
    for hidden in (b"hidden", b"secret"):
        assert hidden not in taken


async def test_over_tls_the_page_is_who_it_says_and_takes_up_a_renewed_certificate(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    for suffix in ("crt", "key"):
        shutil.copy(made / f"server.{suffix}", tmp_path / f"page.{suffix}")
    tls = Tls(certificate=tmp_path / "page.crt", key=tmp_path / "page.key")
    limits = ServerLimits(stop_s=5, renewal_s=0.05)
    server = Server(ServerSettings(port=0, page=Page(port=0, tls=tls), limits=limits), await cluster())
    running = asyncio.create_task(server.run())
    try:
        async with asyncio.timeout(30):
            await server.synced()
        url = f"https://127.0.0.1:{server.page_port}"
        trusting, other = (ssl.create_default_context(cafile=made / f"{name}.crt") for name in ("ca", "other"))
        async with httpx2.AsyncClient(base_url=url, verify=trusting, timeout=20) as client:
            assert (await client.get("/api/fleet")).status_code == 401, "beyond loopback a viewer signs in"
            signed_in = await client.get("/api/fleet", headers={"Authorization": "Bearer token-of-viewer"})
            assert signed_in.json()["namespaces"] == ["ns"]
        async with httpx2.AsyncClient(base_url=url, verify=other) as client:
            with pytest.raises(httpx2.ConnectError):
                await client.get("/")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.page_port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await reader.read() == b"", "nothing is said without TLS"
        writer.close()
        for suffix in ("key", "crt"):
            shutil.copy(made / f"renewed.{suffix}", tmp_path / f"page.{suffix}")
        async with asyncio.timeout(30):
            while await _name(server.page_port, trusting) != "renewed":
                pass
    finally:
        server.stop()
        await running


async def _name(port: int, context: ssl.SSLContext) -> str:
    """Return whose certificate is shown."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    subject = dict(each[0] for each in writer.get_extra_info("peercert")["subject"])
    writer.close()
    return str(subject["commonName"])
