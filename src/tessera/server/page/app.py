"""The page's HTTP routes, all read-only: its files, the fleet as JSON, and server-sent events; by starlette.

Source: WHATWG HTML, "Server-sent events"; Content Security Policy Level 3.
"""

import asyncio
import base64
import hashlib
import math
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from time import monotonic

import msgspec
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tessera.api.tessera.page.fleetjson import write_event, write_viewer
from tessera.core.explain.fleetscope import EVERYTHING
from tessera.errors import TesseraError
from tessera.log import Logger, RepeatedError
from tessera.server.page.feed import Channel, FleetFeed
from tessera.server.page.sending import AnswerSlot, AnswerSlots, SentInPieces, SlotsTaken, pieces_of
from tessera.server.page.signin import SignIn, Viewer
from tessera.server.settings import PageLimits

__all__ = ["make_page_app"]

_FILES = Path(__file__).parent / "files"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_VERSION = b"VERSION/"
_INLINE = re.compile(rb"<script>(.*?)</script>", re.DOTALL)
_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_EVENTS = "text/event-stream"
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_EVERYBODY = Viewer(name="", scope=EVERYTHING, admitted=True)
_Handler = Callable[[Request], Awaitable[Response]]


class _Refused(Exception):
    """An error response."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class _Files:
    """The page's files: the first page, which names the version of the others, and these.

    While several servers are upgraded, one may be asked for a file of a page that another has sent.

    Attributes:
        version: of all of them; of another one the scripts cannot read what this server sends.
        policy: the Content-Security-Policy: scripts of this server, and the one inside of the first page.

    """

    def __init__(self) -> None:
        content = {path.name: path.read_bytes() for path in sorted(_FILES.iterdir()) if path.suffix in _TYPES}
        self.version = hashlib.sha256(b"".join(content.values())).hexdigest()[:16]
        first = content.pop("index.html").replace(_VERSION, f"{self.version}/".encode())
        self._content = {"": first} | {f"{self.version}/{name}": each for name, each in content.items()}
        digests = [base64.b64encode(hashlib.sha256(each).digest()).decode() for each in _INLINE.findall(first)]
        scripts = " ".join(["'self'", *(f"'sha256-{each}'" for each in digests)])
        self.policy = _POLICY.format(scripts=scripts)

    async def answer(self, request: Request) -> Response:
        path = request.path_params["path"]
        if path not in self._content:
            raise _Refused(HTTPStatus.NOT_FOUND, "no such page, or one of another version of the server")
        kind = _TYPES[Path(path).suffix or ".html"]
        return Response(self._content[path], media_type=kind, headers={"Cache-Control": "no-cache"})


class _Handlers:
    """The handlers of the page.

    Args:
        feed: the views.
        sign_in: authenticates viewers; None to show everything to everybody.
        waiting_for: why the fleet is not known yet; empty when it is.
        limits: on streams.
        clock_s: a monotonic clock.
        log: records that tokens cannot be reviewed.

    """

    def __init__(
        self,
        feed: FleetFeed,
        sign_in: SignIn | None,
        waiting_for: Callable[[], str],
        limits: PageLimits,
        clock_s: Callable[[], float],
        log: Logger,
    ) -> None:
        self.files = _Files()
        self._feed = feed
        self._sign_in = sign_in
        self._waiting_for = waiting_for
        self._limits = limits
        self._streams = AnswerSlots(limits, limits.replace_s, clock_s)
        self._fleets = AnswerSlots(limits, math.inf, clock_s)
        self._log = log
        self._complain = RepeatedError(log, "token_not_reviewed")

    def _slot(self, slots: AnswerSlots, viewer: Viewer, for_viewer: str, total: str) -> AnswerSlot:
        """Return a slot for an answer, before the next await: many requests may arrive at once.

        Raises:
            _Refused: there is none.

        """
        try:
            return slots.take(viewer.name, signed_in=self._sign_in is not None)
        except SlotsTaken as error:
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, for_viewer if error.per_viewer else total) from None

    async def fleet(self, request: Request) -> Response:
        viewer, most = await self._viewer(request), self._limits
        for_viewer = (
            f"{viewer.name} has {most.streams_per_viewer} requests for the fleet, the most for one viewer; try again"
        )
        slot = self._slot(
            self._fleets, viewer, for_viewer, f"there are {most.streams} requests for the fleet; try again"
        )
        try:
            content = await self._content(viewer)
        except BaseException:
            slot.free()
            raise
        return SentInPieces(pieces_of(content), "application/json", most.send_s, slot, self._log)

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
        for_viewer = (
            f"{viewer.name} has the page open in {most.streams_per_viewer} tabs, the most for one viewer: close one"
        )
        total = f"all {most.streams} live connections are in use; try again later"
        slot = self._slot(self._streams, viewer, for_viewer, total)
        return SentInPieces(self._stream(request, viewer), _EVENTS, most.send_s, slot, self._log)

    async def _stream(self, request: Request, viewer: Viewer) -> AsyncGenerator[bytes]:
        """Yield events until the stream's time is over, or the viewer's permissions change."""
        loop, last = asyncio.get_running_loop(), request.headers.get("Last-Event-ID", "")
        end_s = loop.time() + self._limits.stream_s
        who = write_viewer(viewer.name, signed_in=self._sign_in is not None, version=self.files.version)
        yield write_event("viewer", who)
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
        # Strangers first: neither why the fleet is not known yet nor where the API server is concerns them.
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        try:
            user = await self._sign_in.user(token.strip()) if kind == "Bearer" else None
        except TesseraError as error:
            self._complain(error)
            reason = "the API server does not review tokens now; try again"
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, reason) from None
        if user is None:
            raise _Refused(HTTPStatus.UNAUTHORIZED, "sign in with a Kubernetes token: kubectl create token NAME")
        self._complain.clear()
        await self._until(self._feed.refreshed.wait())
        viewer = await self._sign_in.viewer(user, self._feed.namespaces)
        if not viewer.admitted:
            reason = f"{viewer.name} may list neither nodes nor the pods of a namespace that uses GPUs"
            raise _Refused(HTTPStatus.FORBIDDEN, reason)
        return viewer


def make_page_app(
    feed: FleetFeed,
    sign_in: SignIn | None,
    *,
    waiting_for: Callable[[], str],
    limits: PageLimits,
    log: Logger,
    clock_s: Callable[[], float] = monotonic,
) -> Starlette:
    """Return the page.

    Args:
        feed: the views.
        sign_in: authenticates viewers; None to show everything to everybody who can reach the loopback address.
        waiting_for: why the fleet is not known yet; empty when it is.
        limits: on streams.
        log: records defects, and that tokens cannot be reviewed.
        clock_s: a monotonic clock.

    """
    handlers = _Handlers(feed, sign_in, waiting_for, limits, clock_s, log)

    def route(path: str, handler: _Handler) -> Route:
        return Route(path, _guarded(handler, handlers.files.policy, log, local=sign_in is None), methods=["GET"])

    app = Starlette(
        routes=[
            route("/api/fleet", handlers.fleet),
            route("/api/events", handlers.events),
            route("/{path:path}", handlers.files.answer),
        ]
    )
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=5)
    return app


def _guarded(handler: _Handler, policy: str, log: Logger, *, local: bool) -> _Handler:
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
        answer.headers.update(_HEADERS | {"Content-Security-Policy": policy})
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
