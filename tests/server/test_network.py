"""Attackers on the ports of a server that runs: it goes on, its memory is bounded, others are answered."""

import asyncio
import contextlib
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tessera.certificates import Tls
from tessera.clients.kube import MemoryKube
from tessera.server.run import Server
from tessera.server.settings import AdmissionSettings, ServerLimits, ServerSettings

pytestmark = pytest.mark.anyio

MOST = ServerLimits().connections
REVIEW = b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u1"}}'
HEAD = b"POST /admission/v1/route HTTP/1.1\r\nHost: a\r\n"


def context(pki: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(pki / "ca.crt"))


@pytest.fixture
async def server(pki: Path) -> AsyncIterator[Server]:
    """Give a server with the port that strangers reach: the one that the API server asks."""
    tls = Tls(certificate=pki / "server.crt", key=pki / "server.key")
    one = Server(ServerSettings(port=0, admission=AdmissionSettings(host="0.0.0.0", port=0, tls=tls)), MemoryKube())
    task = asyncio.create_task(one.run())
    async with asyncio.timeout(10):
        await one.listening.wait()
        await one.synced()
    yield one
    one.stop()
    await task


async def routed(port: int, pki: Path) -> bool:
    """Return whether the API server is answered, on a connection of its own and at once."""
    async with httpx2.AsyncClient(verify=context(pki), timeout=10) as client:
        answer = await client.post(f"https://127.0.0.1:{port}/admission/v1/route", content=REVIEW)
    return answer.status_code == 200 and answer.json()["response"]["allowed"] is True


async def healthy(server: Server, pki: Path) -> bool:
    """Return whether both the scheduler and the API server are answered."""
    async with httpx2.AsyncClient(timeout=10) as client:
        ready = await client.get(f"http://127.0.0.1:{server.port}/readyz")
    return ready.status_code == 200 and await routed(server.admission_port, pki)


async def read(reader: asyncio.StreamReader) -> bytes:
    """Return what is answered until the connection ends."""
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionError:
        return b""


PLAIN = {
    "HTTP": b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
    "the beginning of TLS": bytes.fromhex("16030100f8010000f40303"),
    "noise": bytes(range(256)) * 64,
    "nothing": b"",
}


@pytest.mark.parametrize("case", PLAIN)
async def test_what_is_no_tls_is_never_answered(server: Server, pki: Path, case: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.admission_port)
    writer.write(PLAIN[case])
    writer.write_eof()
    answer = await read(reader)
    assert answer[:1] in {b"", b"\x15"}, "nothing, or an alert of TLS"
    assert b"HTTP" not in answer
    writer.close()
    assert await healthy(server, pki)


async def test_a_stranger_reaches_the_review_of_pods_and_nothing_that_binds(server: Server, pki: Path) -> None:
    async with httpx2.AsyncClient(verify=context(pki)) as client:
        for path in ("/bind", "/filter", "/choose", "/preempt", "/prioritize", "/gpushare-scheduler/bind"):
            answer = await client.post(f"https://127.0.0.1:{server.admission_port}{path}", content=b"{}")
            assert answer.status_code == 404, path
        answer = await client.get(f"https://127.0.0.1:{server.admission_port}/gpushare-scheduler/inspect")
        assert answer.status_code == 404


async def test_the_extender_listens_on_the_loopback_alone_beside_it(server: Server) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent; the address that this machine would send from
        own = probe.getsockname()[0]
    assert not own.startswith("127."), "the machine has another address"
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(own, server.port)


BROKEN = {
    "deep JSON": (b"[" * 300_000, 400),
    "cut off": (REVIEW[:40], 400),
    "too large": (b" " * ((4 << 20) + 1), 413),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_a_bad_body_is_refused(server: Server, pki: Path, case: str) -> None:
    body, want = BROKEN[case]
    async with httpx2.AsyncClient(verify=context(pki)) as client:
        answer = await client.post(f"https://127.0.0.1:{server.admission_port}/admission/v1/route", content=body)
    assert answer.status_code == want
    assert await healthy(server, pki)


async def test_a_header_without_end_is_refused(server: Server, pki: Path) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.admission_port, ssl=context(pki))
    writer.write(HEAD + b"X: " + b"y" * (1 << 20))
    assert (await read(reader))[:12] in {b"", b"HTTP/1.1 400"}
    writer.close()
    assert await healthy(server, pki)


SLOW = {
    "idle": b"",
    "a header line by line": HEAD,
    "a body of which the rest never comes": HEAD + b"Content-Length: 100000\r\n\r\n{",
}


@pytest.mark.parametrize("case", SLOW)
async def test_slow_clients_end_each_other_and_nobody_else(server: Server, pki: Path, case: str) -> None:
    """Who opens twice as many as there may be: the API server, at another address, keeps its connection."""
    to = ("127.0.0.1", server.admission_port)
    honest = await asyncio.open_connection(*to, ssl=context(pki), local_addr=("127.0.0.2", 0))
    slow = []
    for _ in range(2 * MOST):
        slow.append(await asyncio.open_connection(*to, ssl=context(pki)))
        slow[-1][1].write(SLOW[case])
    assert [(await read(reader))[:12] for reader, _ in slow[:MOST]] == [b""] * MOST, "the oldest are ended"
    length = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(REVIEW)
    honest[1].write(HEAD + length + REVIEW)
    assert (await read(honest[0])).startswith(b"HTTP/1.1 200")
    assert await healthy(server, pki)
    for _, writer in slow:
        writer.close()


# A process of its own, whose memory can be looked at


@contextmanager
def process(folder: Path, pki: Path) -> Iterator[tuple[int, int]]:
    """Give the process and the webhook's port of a server that reaches no API server."""
    config = folder / "config"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    files = ("--admission-certificate", str(pki / "server.crt"), "--admission-key", str(pki / "server.key"))
    own = ("--kubeconfig", str(config), "--port=0", "--admission-port=0", "--admission-host=0.0.0.0")
    # In a shell of few open files, as some container runtimes give them to a pod.
    command = ("bash", "-c", 'ulimit -n 512; exec "$@"', "-", str(Path(sys.executable).with_name("tessera")))
    words = (*command, "server", *own, *files, "--log-format=json")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as started:
        try:
            assert started.stdout is not None
            lines = (json.loads(line) for line in started.stdout)
            yield started.pid, next(each["port"] for each in lines if each.get("serves") == "admission")
        finally:
            started.terminate()
            started.communicate()


def memory_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) >> 10


def abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


SILENT, SENDING, LARGE = 750, 250, (4 << 20) - 1
READ_MIB, AT_ONCE_MIB = 0.25, 0.5
"""asyncio's buffer of a TLS connection, freed by garbage collection alone where it ended before it said anything; and
what was received at once, on its way from TLS to HTTP and from there to the body."""


async def test_a_thousand_connections_and_a_gigabyte_of_bodies_leave_it_answering(tmp_path: Path, pki: Path) -> None:
    """Most say nothing at all, not even TLS; the others send all but the end of a large body."""
    head = HEAD + b"Content-Length: %d\r\n\r\n" % LARGE
    most_mib = (ServerLimits().reviews_bytes >> 20) + (SILENT + SENDING) * READ_MIB + MOST * AT_ONCE_MIB
    with process(tmp_path, pki) as (pid, port), contextlib.ExitStack() as opened:
        assert await routed(port, pki)
        before = memory_mib(pid)
        tls = context(pki)

        for number in range(SILENT + SENDING):
            silent = number < SILENT
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=None if silent else tls)
            opened.callback(abort, writer)
            if silent:
                continue
            writer.write(head + b" " * (LARGE - 1))
            with contextlib.suppress(ConnectionError):
                await writer.drain()
        assert await routed(port, pki)
        assert memory_mib(pid) - before < most_mib
        opened.close()
        assert await routed(port, pki)
