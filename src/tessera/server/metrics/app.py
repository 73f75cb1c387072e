"""The HTTP routes of the metrics APIs: authenticate, parse, authorize, answer. A plain ASGI application.

Nothing is a silent empty list: a missing value is an error whose message says why, which HorizontalPodAutoscalers
show in their conditions. Only an unknown external metric is an empty list, as in the API, with a `Warning` header.
"""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, unquote

import msgspec

from tessera.api.kubernetes.metrics.answers import custom_values, discovery, external_values, status
from tessera.api.kubernetes.metrics.paths import Custom, Discovery, External, read_path
from tessera.core.usage.ownmetrics import METRICS_REQUESTS
from tessera.errors import InvalidInput, TesseraError
from tessera.log import Logger
from tessera.measures import Measures
from tessera.server.listening import PEER
from tessera.server.metrics.access import MetricsAccess
from tessera.server.metrics.sources import MetricAbsent, MetricsSource

__all__ = ["MetricsApp"]

_DEADLINE_S = 20.0
"""Less than the 30 s that kube-controller-manager waits for a metric."""

_CODES: Mapping[type[TesseraError], HTTPStatus] = {
    InvalidInput: HTTPStatus.BAD_REQUEST,
    MetricAbsent: HTTPStatus.NOT_FOUND,
}


class _Answer(msgspec.Struct, frozen=True):
    code: HTTPStatus
    body: Mapping[str, Any]
    warning: str = ""


class _Refused(Exception):
    """An error response."""

    def __init__(self, code: HTTPStatus, message: str, name: str = "") -> None:
        super().__init__(message)
        self.answer = _Answer(code, status(code, message, name=name))


class MetricsApp:
    """The application.

    Args:
        source: the metrics.
        access: authorizes requests.
        log: records defects.
        measures: counts requests.

    """

    def __init__(
        self, source: MetricsSource, access: MetricsAccess, log: Logger, measures: Measures | None = None
    ) -> None:
        self._source = source
        self._access = access
        self._log = log
        self._measures = measures or Measures()

    async def __call__(self, scope: dict[str, Any], _receive: Any, send: Any) -> None:
        """Answer a request (ASGI)."""
        if scope["type"] != "http":
            return
        try:
            async with asyncio.timeout(_DEADLINE_S):
                answer = await self._answer(scope)
        except _Refused as refused:
            answer = refused.answer
        except (TesseraError, TimeoutError) as error:
            code = next(
                (code for kind, code in _CODES.items() if isinstance(error, kind)), HTTPStatus.SERVICE_UNAVAILABLE
            )
            name = _parts(scope)[-1] if isinstance(error, MetricAbsent) else ""
            answer = _Refused(code, str(error) or f"no answer in {_DEADLINE_S:g} s; try again", name).answer
        except Exception as error:  # noqa: BLE001  # one request must not end the server
            self._log.error("defect", path=scope["path"], exc_info=error)
            answer = _Refused(HTTPStatus.INTERNAL_SERVER_ERROR, f"unexpected {type(error).__name__}: {error}").answer
        self._measures.count(METRICS_REQUESTS, code=str(answer.code))
        headers = [(b"content-type", b"application/json")]
        if answer.warning:
            text = answer.warning.encode("ascii", "replace").decode().replace("\\", "").replace('"', "'")
            headers.append((b"warning", f'299 - "{text}"'.encode()))
        body = msgspec.json.encode(answer.body)
        headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": answer.code, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _answer(self, scope: Mapping[str, Any]) -> _Answer:
        # 1. Authenticate.
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        user = await self._access.user(scope.get(PEER), headers)
        if user is None:
            raise _Refused(
                HTTPStatus.UNAUTHORIZED, "no certificate of kube-apiserver's proxy and no token of a user; use kubectl"
            )
        # 2. Parse.
        found = read_path(_parts(scope), _parameters(scope))
        if found is None:
            raise _Refused(HTTPStatus.NOT_FOUND, f"no API at {scope['path']}; see /apis")
        requested, attributes = found
        if scope["method"] not in {"GET", "HEAD"}:
            raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, f"metrics are read by GET, not {scope['method']}")
        if _requests_another_form(headers):
            raise _Refused(HTTPStatus.NOT_ACCEPTABLE, "this is served as plain JSON alone")
        # 3. Authorize.
        refusal = await self._access.refusal(user, attributes)
        if refusal is not None:
            what = attributes.path or f"{attributes.verb} {attributes.resource} of {attributes.group}"
            where = f" in namespace {attributes.namespace}" if attributes.namespace else ""
            raise _Refused(HTTPStatus.FORBIDDEN, f"{user.username} may not {what}{where}: {refusal}")
        # 4. Answer.
        if isinstance(requested, Discovery):
            return _Answer(HTTPStatus.OK, discovery(requested, self._source.custom(), self._source.external()))
        if isinstance(requested, Custom):
            return _Answer(HTTPStatus.OK, custom_values(requested, await self._source.values(requested)))
        return await self._series(requested)

    async def _series(self, requested: External) -> _Answer:
        known = requested.metric in self._source.external()
        try:
            return _Answer(HTTPStatus.OK, external_values(requested, await self._source.series(requested)))
        except MetricAbsent as error:
            if known:
                raise
            return _Answer(HTTPStatus.OK, external_values(requested, ()), str(error))


def _requests_another_form(headers: list[tuple[str, str]]) -> bool:
    """Return whether the client accepts only other kinds: kube-apiserver requests aggregated discovery first.

    Source: kubernetes/kube-aggregator `pkg/apiserver/handler_discovery.go`.
    """
    accepted = [part for name, value in headers if name == "accept" for part in value.split(",")]
    return bool(accepted) and all("as=" in part.replace(" ", "") for part in accepted)


def _parts(scope: Mapping[str, Any]) -> list[str]:
    """Return the decoded segments of the path."""
    try:
        return [unquote(each) for each in scope["raw_path"].decode("ascii").partition("?")[0].split("/")[1:]]
    except UnicodeDecodeError:
        return []


def _parameters(scope: Mapping[str, Any]) -> dict[str, str]:
    try:
        given = parse_qs(scope["query_string"].decode("ascii"), keep_blank_values=True, max_num_fields=32)
    except ValueError as error:
        raise InvalidInput("parameters", found=str(error), hint="write NAME=VALUE&...") from error
    return {name: values[-1] for name, values in given.items()}
