"""The HTTP routes: kube-scheduler's extender, gpushare's paths, the admission webhook; by starlette.

A handler decodes, calls, encodes.

Errors are `{"Error": ...}` with a matching HTTP status. A pod that cannot be bound is an ordinary
answer (200) on our path and HTTP 500 on gpushare's, as its extender does; kube-scheduler treats both as failures.

Source: AliyunContainerService/gpushare-scheduler-extender `pkg/routes/routes.go` for gpushare's paths.
"""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from tessera import __version__
from tessera.api.scheduler.admission import is_routed, read_review, write_review
from tessera.api.scheduler.extender import (
    read_args,
    read_binding,
    read_preemption,
    write_bound,
    write_error,
    write_filtered,
    write_priorities,
    write_victims,
)
from tessera.core.usage.ownmetrics import REQUEST_TIME, REQUESTS
from tessera.errors import InvalidInput, TesseraError, Unavailable
from tessera.log import Logger
from tessera.measures import Measures
from tessera.server.bodies import BodyReader, BodyTooLarge
from tessera.server.settings import ServerLimits
from tessera.server.verbs import Verbs

__all__ = ["make_admission_app", "make_app"]

GPUSHARE = "/gpushare-scheduler"
_ADMISSION = "/admission/v1/route"
_REVIEW_BYTES = 4 << 20
"""Twice the API server's limit for an object. Unauthenticated clients may send as much on each of their connections."""
Handler = Callable[[Request], Awaitable[Response]]

_STATUS: dict[type[TesseraError], int] = {BodyTooLarge: 413, InvalidInput: 400, TesseraError: 503}
"""HTTP status by error type; the first match counts."""


class _Handlers:
    """The handlers of one server."""

    def __init__(self, verbs: Verbs, waiting_for: Callable[[], str], limits: ServerLimits) -> None:
        self._verbs = verbs
        self._waiting_for = waiting_for
        self._bodies = BodyReader(limits.body_bytes)

    async def filter(self, request: Request) -> Response:
        args = read_args(await self._bodies.read(request))
        self._check_ready()
        return _json(write_filtered(args, *self._verbs.filter(args)))

    async def choose(self, request: Request) -> Response:
        args = read_args(await self._bodies.read(request), "choose request")
        self._check_ready()
        return _json(write_filtered(args, *self._verbs.choose(args)))

    async def prioritize(self, request: Request) -> Response:
        args = read_args(await self._bodies.read(request), "prioritize request")
        self._check_ready()
        return _json(write_priorities(args.names, self._verbs.prioritize(args)))

    async def preempt(self, request: Request) -> Response:
        requested = read_preemption(await self._bodies.read(request))
        self._check_ready()
        return _json(write_victims(self._verbs.preempt(requested)))

    async def bind(self, request: Request) -> Response:
        args = read_binding(await self._bodies.read(request))
        try:
            self._check_ready()
            await self._verbs.bind(args)
        except TesseraError as error:
            status = 500 if request.url.path.startswith(GPUSHARE) else 200
            return _json(write_bound(str(error)), status)
        return _json(write_bound())

    async def inspect(self, request: Request) -> Response:
        self._check_ready()
        return _json(await self._verbs.inspect(request.path_params.get("node", "")))

    async def ready(self, _: Request) -> Response:
        waiting = self._waiting_for()
        return Response(waiting or "ok", 503 if waiting else 200, media_type="text/plain")

    async def version(self, _: Request) -> Response:
        return Response(__version__, media_type="text/plain")

    def _check_ready(self) -> None:
        waiting = self._waiting_for()
        if waiting:
            raise Unavailable("tessera server", found=waiting, hint="kube-scheduler tries again")


def make_app(
    verbs: Verbs, waiting_for: Callable[[], str], *, limits: ServerLimits, log: Logger, measures: Measures
) -> Starlette:
    """Return the application.

    Args:
        verbs: answers the requests.
        waiting_for: what the server must read before it can answer; empty when ready.
        limits: on bodies and time.
        log: records defects.
        measures: counts requests.

    """
    handlers = _Handlers(verbs, waiting_for, limits)

    def guard(handler: Handler) -> Handler:
        return _measured(_guarded(handler, limits.request_s, log), str(getattr(handler, "__name__", "")), measures)

    def post(path: str, handler: Handler) -> Route:
        return Route(path, guard(handler), methods=["POST"])

    return Starlette(
        routes=[
            post("/filter", handlers.filter),
            post("/prioritize", handlers.prioritize),
            post("/choose", handlers.choose),
            post("/preempt", handlers.preempt),
            post("/bind", handlers.bind),
            post(f"{GPUSHARE}/filter", handlers.filter),
            post(f"{GPUSHARE}/bind", handlers.bind),
            Route(f"{GPUSHARE}/inspect", guard(handlers.inspect)),
            Route(f"{GPUSHARE}/inspect/{{node}}", guard(handlers.inspect)),
            *_admission_routes(limits, log, measures),
            Route("/version", handlers.version),
            Route("/readyz", handlers.ready),
        ]
    )


def make_admission_app(limits: ServerLimits, log: Logger, measures: Measures) -> Starlette:
    """Return an application that answers AdmissionReviews and nothing else: any client may reach it."""
    return Starlette(routes=_admission_routes(limits, log, measures))


def _admission_routes(limits: ServerLimits, log: Logger, measures: Measures) -> list[Route]:
    """Return the admission webhook, which needs no cluster state, and its health endpoint."""
    bodies = BodyReader(_REVIEW_BYTES, limits.reviews_bytes)

    async def route(request: Request) -> Response:
        review = read_review(await bodies.read(request))
        routed = review.pod is not None and is_routed(review.pod, review.namespace)
        return _json(write_review(review.uid, routed=routed))

    async def healthy(_: Request) -> Response:
        return Response("ok", media_type="text/plain")

    return [
        Route(_ADMISSION, _measured(_guarded(route, limits.request_s, log), "route", measures), methods=["POST"]),
        Route("/healthz", healthy),
    ]


def _measured(handler: Handler, name: str, measures: Measures) -> Handler:
    """Return the handler, counting and timing its requests under this name."""

    async def measured(request: Request) -> Response:
        began_s = measures.clock_s()
        response = await handler(request)
        measures.observe(REQUEST_TIME, measures.clock_s() - began_s, handler=name)
        measures.count(REQUESTS, handler=name, code=str(response.status_code))
        return response

    return measured


def _guarded(handler: Handler, deadline_s: float, log: Logger) -> Handler:
    """Return the handler with a deadline and with errors as HTTP answers."""

    async def guarded(request: Request) -> Response:
        try:
            async with asyncio.timeout(deadline_s):
                return await handler(request)
        except TimeoutError:
            return _json(write_error(f"{request.url.path}: no answer in {deadline_s:g} s; try again"), 503)
        except TesseraError as error:
            return _json(write_error(error), next(code for kind, code in _STATUS.items() if isinstance(error, kind)))
        except ClientDisconnect:
            return Response(status_code=400)  # the client is gone
        except Exception as error:
            log.exception("defect", path=request.url.path)
            return _json(write_error(f"unexpected {type(error).__name__}: {error}"), 500)

    return guarded


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")
