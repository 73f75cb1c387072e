"""Answers a kubelet's probes: `/healthz` while the event loop turns, `/readyz` when the process does its work."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tessera.errors import Unavailable, shown
from tessera.listeners import BoundedListener

__all__ = ["answering"]

_DEADLINE_S = 5.0
_CONNECTIONS = 32
"""A kubelet has two; others reach the port too."""


@asynccontextmanager
async def answering(port: int | None, waiting_for: Callable[[], str]) -> AsyncIterator[int]:
    """Answer on all addresses of the machine, as a kubelet asks a pod, while the body runs; give the port.

    Args:
        port: where; 0 for any, None to answer nowhere, which gives 0.
        waiting_for: why the process is not ready yet; empty when it is.

    Raises:
        Unavailable: the port is taken.

    """
    if port is None:
        yield 0
        return

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            async with asyncio.timeout(_DEADLINE_S):
                path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1:2]
                writer.write(_answer(path, waiting_for))
                await writer.drain()
        writer.close()

    try:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        created = socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except OSError as error:
        desired, accepted = "a free port", "another --health-port"
        raise Unavailable(f"port {port}", found=shown(error), expected=desired, hint=accepted) from error
    listener = BoundedListener(created, _CONNECTIONS)
    async with await asyncio.start_server(answer, sock=listener):
        yield listener.getsockname()[1]


def _answer(path: list[bytes], waiting_for: Callable[[], str]) -> bytes:
    status, text = "404 Not Found", "only /healthz and /readyz"
    if path == [b"/healthz"]:
        status, text = "200 OK", "ok"
    elif path == [b"/readyz"]:
        waiting = waiting_for()
        status, text = ("503 Service Unavailable", waiting) if waiting else ("200 OK", "ok")
    body = f"{text}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body
