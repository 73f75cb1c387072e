"""The page's HTTP routes, all read-only: its files, the fleet as JSON, and server-sent events; by starlette.

Source: WHATWG HTML, "Server-sent events"; Content Security Policy Level 3.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from http import HTTPStatus
from pathlib import Path

import msgspec
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tessera.api.tessera.cluster.fleetviews import write_event
from tessera.core.explain.fleetscope import EVERYTHING
from tessera.errors import TesseraError
from tessera.log import Logger
from tessera.server.listening import ABORT
from tessera.server.page.feed import Channel, FleetFeed
from tessera.server.page.signin import SignIn, Viewer
from tessera.server.settings import PageLimits

__all__ = ["make_page_app"]

_FILES = Path(__file__).parent / "files"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_EVENTS = "text/event-stream"
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_PIECE = 1 << 16
"""Bytes of an answer that are sent at once."""
_EVERYBODY = Viewer(name="", scope=EVERYTHING, welcome=True)
_Handler = Callable[[Request], Awaitable[Response]]


class _Refused(Exception):
    """An error response."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Handlers:
    """The handlers of the page.

    Args:
        feed: the views.
        sign_in: authenticates viewers; None to show everything to everybody.
        waiting_for: why the fleet is not known yet; empty when it is.
        limits: on streams.

    """

    def __init__(
        self, feed: FleetFeed, sign_in: SignIn | None, waiting_for: Callable[[], str], limits: PageLimits
    ) -> None:
        self._feed = feed
        self._sign_in = sign_in
        self._waiting_for = waiting_for
        self._limits = limits
        self._streams = _Places(limits, limits.replace_s)
        self._fleets = _Places(limits, math.inf)

    def _place(self, places: "_Places", viewer: Viewer, own: str, total: str) -> "_Place":
        """Return a place for an answer, before the next await: many requests may arrive at once.

        Raises:
            _Refused: there is none.

        """
        try:
            return places.take(viewer.name, signed_in=self._sign_in is not None)
        except _TooMany as error:
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, own if error.own else total) from None

    async def fleet(self, request: Request) -> Response:
        viewer, most = await self._viewer(request), self._limits
        own = f"{viewer.name} has {most.streams_per_viewer} requests for the fleet, the most for one viewer; try again"
        place = self._place(self._fleets, viewer, own, f"there are {most.streams} requests for the fleet; try again")
        try:
            content = await self._content(viewer)
        except BaseException:
            place.leave()
            raise
        return _Sending(_pieces(content), "application/json", most.send_s, place)

    async def _content(self, viewer: Viewer) -> bytes:
        """Return the viewer's fleet after the next refresh.

        Raises:
            _Refused: it takes too long, or the server stops.

        """
        with self._feed.joined(viewer.scope) as channel:
            await self._until(channel.refreshed())
            content = await channel.fleet()
        if not content:
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "the server is stopping")
        return content

    async def events(self, request: Request) -> Response:
        viewer = await self._viewer(request)
        if request.method == "HEAD":
            return Response(media_type=_EVENTS)
        most = self._limits
        own = f"{viewer.name} has the page open in {most.streams_per_viewer} tabs, the most for one viewer: close one"
        total = f"all {most.streams} live connections are in use; try again later"
        place = self._place(self._streams, viewer, own, total)
        return _Sending(self._stream(request, viewer), _EVENTS, most.send_s, place)

    async def _stream(self, request: Request, viewer: Viewer) -> AsyncGenerator[bytes]:
        """Yield events until the stream's time is over, or the viewer's permissions change."""
        loop, last = asyncio.get_running_loop(), request.headers.get("Last-Event-ID", "")
        end_s = loop.time() + self._limits.stream_s
        yield write_event("viewer", msgspec.json.encode({"name": viewer.name, "signed_in": bool(self._sign_in)}))
        with self._feed.joined(viewer.scope) as channel:
            current = refreshed = False
            while loop.time() < end_s and not self._feed.closed:
                events, last = channel.since(last)
                if refreshed and not events and not current:
                    events = [write_event("current", b"{}")]
                current = current or bool(events)
                for each in events or [b": \n\n"]:
                    yield each
                refreshed = await self._next(channel, last, any_refresh=not current)
                if not await self._still(request, viewer):
                    return

    async def _next(self, channel: Channel, last: str, *, any_refresh: bool) -> bool:
        """Return when there may be a new event, and after a timeout in any case; whether the fleet was refreshed.

        With `any_refresh` also after a refresh in which nothing changed.
        """
        refreshed = False
        try:
            async with asyncio.timeout(self._limits.heartbeat_s):
                while not (self._feed.closed or channel.since(last)[0] or (refreshed and any_refresh)):
                    await channel.refreshed()
                    refreshed = True
        except TimeoutError:
            pass
        return refreshed and not self._feed.closed

    async def _still(self, request: Request, viewer: Viewer) -> bool:
        try:
            return await self._viewer(request) == viewer
        except (_Refused, TesseraError):
            return False

    async def _until(self, refreshed: Awaitable[object]) -> None:
        """Wait until the fleet is refreshed.

        Raises:
            _Refused: it takes too long.

        """
        try:
            async with asyncio.timeout(self._limits.refresh_s):
                await refreshed
        except TimeoutError:
            reason = self._waiting_for() or "the fleet was not read in time; try again"
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, reason) from None

    async def _viewer(self, request: Request) -> Viewer:
        """Return the viewer: their name and the namespaces that they may see."""
        if self._sign_in is None:
            return _EVERYBODY
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        await self._until(self._feed.refreshed.wait())
        viewer = await self._sign_in.viewer(token.strip(), self._feed.namespaces) if kind == "Bearer" else None
        if viewer is None:
            raise _Refused(HTTPStatus.UNAUTHORIZED, "sign in with a Kubernetes token: kubectl create token NAME")
        if not viewer.welcome:
            reason = f"{viewer.name} may list neither nodes nor the pods of a namespace that uses GPUs"
            raise _Refused(HTTPStatus.FORBIDDEN, reason)
        return viewer


class _Place:
    """The place of an answer that is being sent.

    Args:
        places: all of them; the viewer's own.
        began_s: when it was taken.

    """

    def __init__(self, places: "list[_Place]", began_s: float) -> None:
        self._places = places
        self.began_s = began_s
        self.replaced = asyncio.Event()
        """Set when another answer has taken it."""

    def leave(self) -> None:
        """Leave it to others; again is nothing."""
        if self in self._places:
            self._places.remove(self)


class _TooMany(Exception):
    """No answer can be sent: the viewer has as many (`own`), or all together have."""

    def __init__(self, *, own: bool) -> None:
        super().__init__()
        self.own = own


class _Places:
    """Places for answers that are being sent, of each viewer and of all.

    Args:
        limits: how many.
        replace_s: a viewer's oldest that is older than this gives way to another.

    """

    def __init__(self, limits: PageLimits, replace_s: float) -> None:
        self._limits = limits
        self._replace_s = replace_s
        self._taken: dict[str, list[_Place]] = {}
        """By the viewer's name, oldest first."""

    def take(self, name: str, *, signed_in: bool) -> _Place:
        """Return a place of a viewer.

        Raises:
            _TooMany: there is none.

        """
        now_s = asyncio.get_running_loop().time()
        self._taken = {name: places for name, places in self._taken.items() if places}
        own = self._taken.setdefault(name, [])
        most = self._limits.streams_per_viewer if signed_in else self._limits.streams
        if len(own) >= most and now_s - own[0].began_s > self._replace_s:
            own.pop(0).replaced.set()
        if signed_in and len(own) >= most:
            raise _TooMany(own=True)
        if sum(map(len, self._taken.values())) >= self._limits.streams:
            raise _TooMany(own=False)
        place = _Place(own, now_s)
        own.append(place)
        return place


class _Sending(Response):
    """A response in pieces, which ends where its reader stops reading: nothing of it is kept then.

    Args:
        pieces: a generator.
        media_type: what they are.
        send_s: longest time until a piece is taken.
        place: left at the end.

    """

    def __init__(self, pieces: AsyncGenerator[bytes], media_type: str, send_s: float, place: _Place) -> None:
        super().__init__(headers={"Cache-Control": "no-store"}, media_type=media_type)
        self._pieces = pieces
        self._send_s = send_s
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the pieces until they end, or the viewer disconnects, stops reading, or needs the place for another."""
        headers = [each for each in self.raw_headers if each[0] != b"content-length"]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            complete = await self._sent(receive, send)
        finally:
            self._place.leave()
        if not complete:
            scope[ABORT]()
            await asyncio.sleep(0)  # the server learns that the connection has ended

    async def _sent(self, receive: Receive, send: Send) -> bool:
        """Return whether the response was sent to its end."""
        sending = asyncio.ensure_future(self._send(send))
        others = asyncio.ensure_future(_until_gone(receive)), asyncio.ensure_future(self._place.replaced.wait())
        try:
            await asyncio.wait((sending, *others), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, *others):
                task.cancel()
            result, *_ = await asyncio.gather(sending, *others, return_exceptions=True)
        if not self._place.replaced.is_set():
            return result is None
        try:
            await self._piece(send, b"", more=False)
        except TimeoutError:
            return False
        return True

    async def _send(self, send: Send) -> None:
        try:
            async for each in self._pieces:
                await self._piece(send, each, more=True)
            await self._piece(send, b"", more=False)
        finally:
            await self._pieces.aclose()

    async def _piece(self, send: Send, content: bytes, *, more: bool) -> None:
        async with asyncio.timeout(self._send_s):
            await send({"type": "http.response.body", "body": content, "more_body": more})


async def _pieces(content: bytes) -> AsyncGenerator[bytes]:
    for begin in range(0, len(content), _PIECE):
        yield content[begin : begin + _PIECE]


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def make_page_app(
    feed: FleetFeed, sign_in: SignIn | None, *, waiting_for: Callable[[], str], limits: PageLimits, log: Logger
) -> Starlette:
    """Return the page.

    Args:
        feed: the views.
        sign_in: authenticates viewers; None to show everything to everybody who can reach the loopback address.
        waiting_for: why the fleet is not known yet; empty when it is.
        limits: on streams.
        log: records defects.

    """
    handlers = _Handlers(feed, sign_in, waiting_for, limits)
    files = {path.name: path for path in _FILES.iterdir() if path.suffix in _TYPES}

    async def file(request: Request) -> Response:
        path = files.get(request.path_params.get("name", "index.html"))
        if path is None:
            raise _Refused(HTTPStatus.NOT_FOUND, "no such page")
        return Response(path.read_bytes(), media_type=_TYPES[path.suffix], headers={"Cache-Control": "no-cache"})

    def route(path: str, handler: _Handler) -> Route:
        return Route(path, _guarded(handler, log, local=sign_in is None), methods=["GET"])

    app = Starlette(
        routes=[
            route("/api/fleet", handlers.fleet),
            route("/api/events", handlers.events),
            route("/", file),
            route("/{name}", file),
        ]
    )
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=5)
    return app


def _guarded(handler: _Handler, log: Logger, *, local: bool) -> _Handler:
    """Return the handler with headers against foreign scripts and frames, and with errors as HTTP answers."""

    async def guarded(request: Request) -> Response:
        try:
            if local:
                _check_host(request)
            answer = await handler(request)
        except _Refused as refused:
            answer = _problem(refused.status, str(refused))
        except TesseraError as error:
            answer = _problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except Exception as error:
            log.exception("defect", path=request.url.path)
            answer = _problem(HTTPStatus.INTERNAL_SERVER_ERROR, f"unexpected {type(error).__name__}")
        answer.headers.update(_HEADERS)
        if request.url.path.startswith("/api/"):
            answer.headers["Cache-Control"] = "no-store"
        return answer

    return guarded


def _check_host(request: Request) -> None:
    """Reject requests of another site whose name resolves to this machine (DNS rebinding).

    Raises:
        _Refused: the `Host` header names another host.

    """
    if request.url.hostname not in _LOCAL:
        raise _Refused(HTTPStatus.MISDIRECTED_REQUEST, "open the page as http://127.0.0.1 or http://localhost")


def _problem(status: HTTPStatus, reason: str) -> Response:
    answer = Response(msgspec.json.encode({"error": reason}), status, media_type="application/json")
    if status is HTTPStatus.UNAUTHORIZED:
        answer.headers["WWW-Authenticate"] = "Bearer"
    return answer
