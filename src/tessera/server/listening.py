"""An HTTP server on a socket: TLS, bounded connections, client certificates; by uvicorn."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tessera.certificates import Tls
from tessera.errors import InvalidInput, Unavailable, shown
from tessera.listeners import BoundedListener
from tessera.server.settings import is_loopback

__all__ = ["ABORT", "PEER", "App", "HttpServer", "listening"]

App = Callable[..., Awaitable[Any]]
"""An ASGI application."""
PEER = "tessera.peer"
"""Key in a request's scope: the client's verified certificate, as `ssl` describes it; or None."""
ABORT = "tessera.abort"
"""Key in a request's scope: ends its connection at once, with what was not read yet."""
_KEEP_ALIVE_S = 600
"""Longer than kube-scheduler keeps an idle connection, so that the server is never the one to close it."""


class HttpServer(uvicorn.Server):
    """Serves HTTP; signal handling is left to the command.

    Args:
        app: the application.
        tls: the certificate files; with a client CA each client must present a certificate of it.
        stop_s: how long requests in flight may take at shutdown.

    Raises:
        InvalidInput: the TLS files cannot be loaded.

    """

    def __init__(self, app: App, tls: Tls | None, *, stop_s: float) -> None:
        authority = tls.client_authority if tls else None
        config = uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(stop_s)),
            ssl_certfile=tls.certificate if tls else None,
            ssl_keyfile=tls.key if tls else None,
            ssl_ca_certs=str(authority) if authority else None,
            ssl_cert_reqs=ssl.CERT_REQUIRED if authority else ssl.CERT_NONE,
        )
        try:
            config.load()
        except OSError as error:  # ssl.SSLError is one
            found, expected = shown(error), "a certificate, its key and an authority in PEM"
            raise InvalidInput("TLS files", found=found, hint=f"give {expected}") from error
        super().__init__(config)

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The TLS context of accepted connections."""
        return self.config.ssl

    def trust(self, authority: str) -> None:
        """Trust client certificates of a CA, in PEM.

        Raises:
            InvalidInput: it is not a certificate.

        """
        assert self.tls is not None
        try:
            self.tls.load_verify_locations(cadata=authority)
        except (OSError, ValueError) as error:
            raise InvalidInput("authority of clients", found=shown(error), hint="give certificates in PEM") from error
        self.tls.verify_mode = ssl.CERT_OPTIONAL

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `should_exit` is set or it is canceled; either way requests in flight are answered first.

        A canceled uvicorn leaves its listeners in the event loop, and the next socket of that number cannot be read.
        """
        serving = asyncio.create_task(super().serve(sockets))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            self.should_exit = True
            await serving
            raise

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


class _Protocol(H11Protocol):
    """Adds the client's certificate, and how to end its connection, to each request's scope."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        app, peer = self.app, transport.get_extra_info("peercert") or None

        async def with_peer(scope: dict[str, Any], receive: Any, send: Any) -> None:
            await app({**scope, PEER: peer, ABORT: transport.abort}, receive, send)

        self.app = with_peer


@contextmanager
def listening(host: str, port: int, most: int) -> Iterator[socket.socket]:
    """Listen, with a limit on connections where the port is reachable from other machines.

    Raises:
        Unavailable: the port is taken.

    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
        # Inherited by every connection: an answer is two writes, and the second would wait 40 ms for the first's
        # acknowledgement. asyncio sets it only for sockets whose protocol number is given.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        accepted = "give another --port, or end what listens there"
        raise Unavailable(f"address {host}, port {port}", found=shown(error), hint=accepted) from error
    with contextlib.closing(listener if is_loopback(host) else BoundedListener(listener, most)) as bounded:
        yield bounded
