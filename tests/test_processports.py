import asyncio
import contextlib
import ssl
from pathlib import Path

import pytest

from tessera.certificates import Tls
from tessera.errors import InvalidInput, Unavailable
from tessera.processports import MetricsPort, serving_metrics, serving_probes

pytestmark = pytest.mark.anyio


async def requested(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


WAITING = "reading pods"
ANSWERS = {
    "a process lives before it is ready": (b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", WAITING, b"200 OK", b"ok\n"),
    "what it waits for": (b"GET /readyz HTTP/1.1\r\n\r\n", WAITING, b"503 Service Unavailable", b"reading pods\n"),
    "ready": (b"GET /readyz HTTP/1.1\r\n\r\n", "", b"200 OK", b"ok\n"),
    "another path": (b"GET / HTTP/1.1\r\n\r\n", "", b"404 Not Found", b"only /healthz and /readyz\n"),
}


@pytest.mark.parametrize("case", ANSWERS)
async def test_a_probe_is_answered(case: str) -> None:
    request, waiting, status, body = ANSWERS[case]
    async with serving_probes(0, lambda: waiting) as port:
        answer = await requested(port, request)
    assert answer.startswith(b"HTTP/1.1 " + status + b"\r\n")
    assert answer.endswith(b"\r\n\r\n" + body)


@pytest.mark.parametrize("request_", [b"", b"GET /healthz", b"x" * (1 << 17)])
async def test_what_is_no_request_gets_no_answer_and_the_next_is_answered(request_: bytes) -> None:
    async with serving_probes(0, str) as port:
        with contextlib.suppress(ConnectionError):  # closed before it had read all
            assert await requested(port, request_) == b""
        assert (await requested(port, b"GET /readyz HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_who_holds_connections_open_ends_their_own_and_the_kubelet_is_answered() -> None:
    async with serving_probes(0, str) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        assert (await requested(port, b"GET /readyz HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
        async with asyncio.timeout(2):  # before the deadline of a request, which would end them too
            assert [await reader.read() for reader, _ in held[:60]] == [b""] * 60
        for _, writer in held:
            writer.close()


async def test_a_port_that_is_taken_is_reported() -> None:
    async with serving_probes(0, str) as port:
        with pytest.raises(Unavailable, match=r"choose another --health-port"):
            async with serving_probes(port, str):
                pass


async def test_without_a_port_nothing_listens() -> None:
    async with serving_probes(None, str) as port:
        assert port == 0


async def test_metrics_are_answered_whole_and_nothing_else_is() -> None:
    text = b"m 1\n" * 200_000
    async with serving_metrics(MetricsPort(port=0), lambda: text) as port:
        answer = await requested(port, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n")
        assert answer.endswith(b"\r\n\r\n" + text)
        assert (await requested(port, b"GET /healthz HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 404")
        assert (await requested(port, b"GET /usage HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 404")
    async with serving_metrics(MetricsPort(port=0), bytes, lambda: b"{}") as port:
        assert (await requested(port, b"GET /usage HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n{}")
    async with serving_metrics(MetricsPort(), bytes) as port:
        assert port == 0


def tls(pki: Path, name: str = "server", *, clients: bool = False) -> Tls:
    return Tls(
        certificate=pki / f"{name}.crt", key=pki / f"{name}.key", client_authority=pki / "ca.crt" if clients else None
    )


async def scraped(port: int, pki: Path, client: str = "") -> tuple[bytes, str]:
    """Return the status line that a client of the authority gets, and whose certificate it saw."""
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    if client:
        context.load_cert_chain(pki / f"{client}.crt", pki / f"{client}.key")
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        status = await reader.readuntil(b"\r\n")
        subject = writer.get_extra_info("peercert")["subject"]
        return status, str(dict(pair for (pair,) in subject)["commonName"])
    finally:
        writer.close()


OK = b"HTTP/1.1 200 OK\r\n"


async def test_metrics_over_tls_and_nothing_in_the_clear(pki: Path) -> None:
    async with serving_metrics(MetricsPort(port=0, tls=tls(pki)), lambda: b"secret 1\n") as port:
        assert await scraped(port, pki) == (OK, "server")
        with contextlib.suppress(ConnectionError):
            assert b"secret" not in await requested(port, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")


@pytest.mark.parametrize("client", ["", "stranger", "expired"])
async def test_with_an_authority_only_its_clients_are_answered(pki: Path, client: str) -> None:
    async with serving_metrics(MetricsPort(port=0, tls=tls(pki, clients=True)), bytes) as port:
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await scraped(port, pki, client)
        assert await scraped(port, pki, "client") == (OK, "server")


async def test_a_client_does_not_take_an_expired_certificate(pki: Path) -> None:
    async with serving_metrics(MetricsPort(port=0, tls=tls(pki, "expired")), bytes) as port:
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            await scraped(port, pki)


async def test_who_never_ends_a_handshake_is_not_in_the_way(pki: Path) -> None:
    async with serving_metrics(MetricsPort(port=0, tls=tls(pki)), bytes) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        assert await scraped(port, pki) == (OK, "server")
        for _, writer in held:
            writer.close()


async def test_a_renewed_certificate_is_shown(pki: Path, tmp_path: Path) -> None:
    files = Tls(certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key")

    def put(name: str) -> None:
        files.key.write_bytes((pki / f"{name}.key").read_bytes())
        files.certificate.write_bytes((pki / f"{name}.crt").read_bytes())

    put("server")
    async with serving_metrics(MetricsPort(port=0, tls=files, renewal_s=0.02), bytes) as port:
        assert (await scraped(port, pki))[1] == "server"
        put("renewed")
        async with asyncio.timeout(10):
            while (await scraped(port, pki))[1] != "renewed":
                pass


async def test_files_that_are_none_are_reported_before_anything_listens(pki: Path) -> None:
    broken = Tls(certificate=pki / "server.crt", key=pki / "client.key")
    with pytest.raises(InvalidInput, match=r"TLS files: .*give a certificate, its key and an authority in PEM"):
        async with serving_metrics(MetricsPort(port=0, tls=broken), bytes):
            pass
