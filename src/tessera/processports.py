"""Serves a kubelet's probes and Prometheus, each at a port of its own.

`/healthz` while the event loop runs, `/readyz` when the process does its work; `/metrics`.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from tessera.api.prometheus.exposition import CONTENT_TYPE
from tessera.certificates import Certificates, Tls, context_of
from tessera.errors import Unavailable, shown
from tessera.listeners import BoundedListener
from tessera.log import logger

__all__ = ["MetricsPort", "serving_metrics", "serving_probes"]

_DEADLINE_S = 5.0
_PLAIN = "text/plain; charset=utf-8"
_CONNECTIONS = 32
"""A kubelet has two; other clients reach the port too."""


class MetricsPort(msgspec.Struct, frozen=True, kw_only=True):
    """The metrics port."""

    port: int | None = None
    """0 for any, None for no port."""
    tls: Tls | None = None
    """None for plain HTTP."""
    renewal_s: float = 10.0
    """Interval at which its files are checked."""


@asynccontextmanager
async def serving_probes(port: int | None, waiting_for: Callable[[], str]) -> AsyncIterator[int]:
    """Serve on all addresses of the machine, for a kubelet, while the body runs; yield the port.

    Args:
        port: 0 for any; None for no port, which yields 0.
        waiting_for: why the process is not ready yet; empty when it is.

    Raises:
        Unavailable: the port is in use.

    """
    async with _listening(port, "--health-port", lambda path: _answer(path, waiting_for)) as found:
        yield found


@asynccontextmanager
async def serving_metrics(
    at: MetricsPort, metrics: Callable[[], bytes], usage: Callable[[], bytes] | None = None
) -> AsyncIterator[int]:
    """Serve `/metrics` on all addresses of the machine while the body runs; yield the port, 0 for none.

    Replaced certificates are reloaded.

    Args:
        at: the port.
        metrics: returns the metrics in Prometheus' text format, without delay.
        usage: returns the content of `/usage`, as JSON.

    Raises:
        InvalidInput: the TLS files cannot be loaded.
        Unavailable: the port is in use.

    """

    def answer(path: list[bytes]) -> bytes:
        if path == [b"/metrics"]:
            return _response("200 OK", CONTENT_TYPE, metrics())
        if path == [b"/usage"] and usage is not None:
            return _response("200 OK", "application/json", usage())
        return _response("404 Not Found", _PLAIN, b"only /metrics\n")

    context = context_of(at.tls) if at.tls else None
    async with _listening(at.port, "--metrics-port", answer, context) as found:
        if at.tls is None or context is None:
            yield found
            return
        renewal = asyncio.create_task(Certificates(at.tls, context, logger()).follow(at.renewal_s))
        try:
            yield found
        finally:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)


@asynccontextmanager
async def _listening(
    port: int | None, option: str, respond: Callable[[list[bytes]], bytes], tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    if port is None:
        yield 0
        return

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            async with asyncio.timeout(_DEADLINE_S):
                path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1:2]
                writer.write(respond(path))
                await writer.drain()
        writer.close()

    try:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        created = socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except OSError as error:
        accepted = f"choose another {option}"
        raise Unavailable(f"port {port}", found=shown(error), hint=accepted) from error
    listener = BoundedListener(created, _CONNECTIONS)
    handshake_s = _DEADLINE_S if tls else None
    async with await asyncio.start_server(answer, sock=listener, ssl=tls, ssl_handshake_timeout=handshake_s):
        yield listener.getsockname()[1]


def _answer(path: list[bytes], waiting_for: Callable[[], str]) -> bytes:
    status, text = "404 Not Found", "only /healthz and /readyz"
    if path == [b"/healthz"]:
        status, text = "200 OK", "ok"
    elif path == [b"/readyz"]:
        waiting = waiting_for()
        status, text = ("503 Service Unavailable", waiting) if waiting else ("200 OK", "ok")
    return _response(status, _PLAIN, f"{text}\n".encode())


def _response(status: str, kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body
