"""The Kubernetes API over HTTPS; lightkube finds cluster and user."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import msgspec

from tessera.api.fields import error_phrase
from tessera.api.untyped import as_dict, as_dicts
from tessera.clients.connections import Broken, Connections, HttpResponse, Unreachable
from tessera.clients.kube.apirequest import (
    JUNK,
    UNAUTHORIZED,
    Absent,
    ApiRequest,
    check,
    conditions,
    message_of,
    refused,
    subject_of,
)
from tessera.clients.kube.cluster import ClusterAccess, find_access
from tessera.clients.kube.protocol import (
    EVERYTHING,
    PODS,
    Expired,
    Kind,
    Listing,
    Object,
    Selection,
    Silent,
    Subresource,
    Unanswered,
    WatchEvent,
    name_of,
)
from tessera.clients.kube.tunnel import PROTOCOL, PodTunnel
from tessera.errors import InvalidInput, Unavailable, Unsupported, shown

__all__ = ["HttpKube"]

_DEADLINE_S = 30.0
_WATCH_S = 240
"""The server ends a watch after this time and the client resumes it, so that a dead connection is noticed."""
_SILENCE_S = 150.0
_CHUNK = 500
"""Objects per response, as in kubectl."""

_WHO = "Authorization"
_JSON = "application/json"
_MERGE = "application/merge-patch+json"
_APPLY = "application/apply-patch+yaml"
"""JSON is YAML."""


class HttpKube:
    """A `Kube` by an API server.

    Args:
        access: server and user.
        deadline_s: of an answer.
        silence_s: how long a watch may be silent: the server sends a bookmark each minute.

    """

    def __init__(
        self, access: ClusterAccess, *, deadline_s: float = _DEADLINE_S, silence_s: float = _SILENCE_S
    ) -> None:
        self._deadline_s = deadline_s
        self._silence_s = silence_s
        self._connections = Connections(access.server, access.tls)
        self._credentials = access.credentials

    @classmethod
    def connect(cls, kubeconfig: Path | None = None, context: str | None = None) -> Self:
        """Return a client by a kubeconfig file; without one by KUBECONFIG, the service account, or ~/.kube/config.

        Raises:
            InvalidInput: there is no such configuration, or it cannot be read.

        """
        return cls(find_access(kubeconfig, context))

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        await self.close()

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        """Return an object; None where there is none."""
        try:
            return await self._ask("GET", ApiRequest(f"get {subject_of(kind, name, namespace)}", kind, name, namespace))
        except Absent:
            return None

    async def list(self, kind: Kind, selection: Selection = EVERYTHING) -> Listing:
        """Return the objects of a kind, read in chunks."""
        try:
            return await self._list(kind, selection, {"limit": str(_CHUNK)})
        except Expired:  # the version of the first chunk expired before the last: all at once
            return await self._list(kind, selection, {})

    async def version(self, kind: Kind, selection: Selection = EVERYTHING) -> str:
        """Return the current resourceVersion of a kind. Lists at most one object.

        Of the selection only namespace and name are sent, to which a role may be restricted: with another selection
        the server would search all objects.
        """
        named = Selection(fields=tuple(each for each in selection.fields if each[0] == "metadata.name"))
        requested = ApiRequest(f"list {kind.plural}", kind, namespace=selection.namespace)
        page = await self._ask("GET", requested, parameters=conditions(named) | {"limit": "1"})
        return str(as_dict(page.get("metadata")).get("resourceVersion", ""))

    async def _list(self, kind: Kind, selection: Selection, limit: dict[str, str]) -> Listing:
        requested = ApiRequest(f"list {kind.plural}", kind, namespace=selection.namespace)
        parameters = conditions(selection) | limit
        head: Object = {"apiVersion": kind.api_version, "kind": kind.name}
        objects: list[Object] = []
        while True:
            page = await self._ask("GET", requested, parameters=parameters)
            objects.extend(_without_managers(head | each) for each in as_dicts(page.get("items")))
            metadata = as_dict(page.get("metadata"))
            if not metadata.get("continue"):
                return Listing(objects=tuple(objects), resource_version=metadata.get("resourceVersion", ""))
            parameters |= {"continue": metadata["continue"]}

    async def watch(self, kind: Kind, since: str, selection: Selection = EVERYTHING) -> AsyncIterator[WatchEvent]:
        """Yield the changes after a version."""
        requested = ApiRequest(f"watch {kind.plural}", kind, namespace=selection.namespace)
        parameters = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(_WATCH_S)}
        parameters |= {"resourceVersion": since} | conditions(selection)
        async with self._streamed(requested, parameters) as lines:
            async for line in lines:
                yield _event(line, requested)

    async def create(self, kind: Kind, body: Object) -> Object:
        """Create an object and return it as stored."""
        namespace, name = name_of(body)
        requested = ApiRequest(f"create {subject_of(kind, name, namespace)}", kind, namespace=namespace)
        if bool(namespace) != kind.namespaced:
            raise InvalidInput(
                requested.subject,
                found=f"namespace {namespace!r}, and kinds with a namespace need one: {kind.namespaced}",
            )
        return await self._ask("POST", requested, body=_headed(kind, body))

    async def patch(
        self, kind: Kind, name: str, body: Object, *, namespace: str = "", subresource: Subresource = ""
    ) -> Object:
        """Merge a patch into an object and return it as stored."""
        requested = ApiRequest(f"patch {subject_of(kind, name, namespace)}", kind, name, namespace, subresource)
        return await self._ask("PATCH", requested, body=body, content_type=_MERGE)

    async def apply(
        self, kind: Kind, body: Object, *, manager: str, force: bool = False, subresource: Subresource = ""
    ) -> Object:
        """Apply the fields in `body`, owned by the manager."""
        namespace, name = name_of(body)
        requested = ApiRequest(f"apply {subject_of(kind, name, namespace)}", kind, name, namespace, subresource)
        parameters = {"fieldManager": manager, "force": "true" if force else "false"}
        return await self._ask("PATCH", requested, body=_headed(kind, body), content_type=_APPLY, parameters=parameters)

    async def bind(self, name: str, namespace: str, *, uid: str, node: str, annotations: Mapping[str, str]) -> None:
        """Bind a pod and merge annotations into it."""
        requested = ApiRequest(f"bind {subject_of(PODS, name, namespace)}", PODS, name, namespace, "binding")
        if not node:
            raise InvalidInput(requested.subject, found="it has no node", hint="name one")
        metadata = {"name": name, "namespace": namespace, "uid": uid, "annotations": dict(annotations)}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        await self._ask("POST", requested, body=body)

    async def delete(
        self, kind: Kind, name: str, *, namespace: str = "", uid: str = "", grace_s: int | None = None
    ) -> None:
        """Delete an object, that of this UID if one is given; a missing one is ignored."""
        requested = ApiRequest(f"delete {subject_of(kind, name, namespace)}", kind, name, namespace)
        # Explicit, because by default the pods of a Job would stay, and those of a Deployment would not.
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            await self._ask("DELETE", requested, body=options)
        except Absent:
            return

    async def evict(self, name: str, namespace: str, *, uid: str = "") -> None:
        """Evict a pod, that of this UID if one is given; a missing one is ignored."""
        requested = ApiRequest(f"evict {subject_of(PODS, name, namespace)}", PODS, name, namespace, "eviction")
        metadata = {"name": name, "namespace": namespace}
        body: Object = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        if uid:
            body["deleteOptions"] = {"preconditions": {"uid": uid}}
        try:
            await self._ask("POST", requested, body=body)
        except Absent:
            return

    async def ask_pod(self, name: str, namespace: str, *, port: int, path: str, most: int, tls: bool = False) -> bytes:
        """Return the answer of a pod's HTTP endpoint, of at most `most` bytes, through the API server."""
        subject = f"request to {subject_of(PODS, name, namespace)} at port {port}"
        at = f"https:{name}:{port}" if tls else f"{name}:{port}"
        requested = ApiRequest(subject, PODS, at, namespace, "proxy", path)
        try:
            async with _translated(subject, self._deadline_s):
                return (await self._answer("GET", requested, most=most)).content
        except (Absent, Unsupported) as error:
            raise Unavailable(subject, found=error.found, hint="try again") from error

    async def logs(
        self, name: str, namespace: str, *, container: str = "", follow: bool = False, since: str | None = None
    ) -> AsyncIterator[bytes]:
        """Yield the log of a container of a pod; it may be silent for hours."""
        subject = f"log of {subject_of(PODS, name, namespace)}"
        requested = ApiRequest(subject, PODS, name, namespace, "log")
        asked = ({"container": container} if container else {}) | ({"follow": "true"} if follow else {})
        if since is not None:
            asked |= {"timestamps": "true"} | ({"sinceTime": since} if since else {})
        async with AsyncExitStack() as stack:
            try:
                pieces = await stack.enter_async_context(self._opened(requested, asked))
            except Absent as error:
                raise Unavailable(
                    subject, found=error.found, hint="try again when its container has started"
                ) from error
            while True:
                async with _translated(subject, None):
                    piece = await anext(pieces, None)
                if piece is None:
                    return
                yield piece

    @asynccontextmanager
    async def tunnel(self, name: str, namespace: str, *, port: int) -> AsyncIterator[PodTunnel]:
        """Yield a connection to a port of a pod."""
        subject = f"port {port} of {subject_of(PODS, name, namespace)}"
        requested = ApiRequest(subject, PODS, name, namespace, "portforward")
        async with AsyncExitStack() as stack:
            async with _translated(subject, self._deadline_s):
                headers, target = await self._headers(), requested.target({"ports": str(port)})
                opened = self._connections.websocket(target, headers, protocol=PROTOCOL)
                socket = await stack.enter_async_context(opened)
                if isinstance(socket, HttpResponse):
                    await self._refuse(socket, requested, headers)
            yield PodTunnel(subject, socket)

    async def close(self) -> None:
        """Close all connections."""
        await self._connections.close()

    async def _ask(
        self,
        method: str,
        requested: ApiRequest,
        *,
        body: Object | None = None,
        content_type: str = _JSON,
        parameters: Mapping[str, str] | None = None,
    ) -> Object:
        """Return the object in the server's response, with its errors as ours."""
        content = b"" if body is None else msgspec.json.encode(body)
        async with _translated(requested.subject, self._deadline_s):
            answer = await self._answer(method, requested, content, content_type=content_type, parameters=parameters)
            return _without_managers(msgspec.json.decode(answer.content, type=dict))

    async def _answer(
        self,
        method: str,
        requested: ApiRequest,
        content: bytes = b"",
        *,
        content_type: str = _JSON,
        parameters: Mapping[str, str] | None = None,
        most: int | None = None,
    ) -> HttpResponse:
        """Return the server's successful response, of at most `most` bytes."""
        target = requested.target(parameters or {})
        loop = asyncio.get_running_loop()
        last_s = loop.time() + self._deadline_s
        headers = await self._headers()
        typed = {"Content-Type": content_type}
        answer = await self._connections.ask(method, target, headers | typed, content, most=most)
        if answer.status == UNAUTHORIZED and await self._credentials.renew(headers.get(_WHO, "")):
            headers = await self._headers()
            if loop.time() >= last_s:
                # A token's file that is slow to read holds the loop, and its timers. Who asked has given up.
                raise TimeoutError
            answer = await self._connections.ask(method, target, headers | typed, content, most=most)
        check(answer, requested)
        return answer

    async def _headers(self) -> dict[str, str]:
        who = await self._credentials.header()
        return {_WHO: who} if who else {}

    @asynccontextmanager
    async def _streamed(
        self, requested: ApiRequest, parameters: Mapping[str, str]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the lines of a streaming response."""
        async with self._opened(requested, parameters) as pieces:
            yield _lines(pieces, requested, self._silence_s)

    @asynccontextmanager
    async def _opened(
        self, requested: ApiRequest, parameters: Mapping[str, str]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the pieces of a streaming response."""
        async with AsyncExitStack() as stack:
            async with _translated(requested.subject, self._deadline_s):
                headers = await self._headers()
                stream = await stack.enter_async_context(
                    self._connections.stream(requested.target(parameters), headers)
                )
                if isinstance(stream, HttpResponse):
                    await self._refuse(stream, requested, headers)
            yield stream

    async def _refuse(self, answer: HttpResponse, requested: ApiRequest, headers: Mapping[str, str]) -> NoReturn:
        """Raise our error for a response instead of a stream; the next request uses a new token."""
        if answer.status == UNAUTHORIZED:
            await self._credentials.renew(headers.get(_WHO, ""))
        check(answer, requested)
        raise Broken(f"HTTP {answer.status}")


def _headed(kind: Kind, body: Object) -> Object:
    return body | {"apiVersion": kind.api_version, "kind": kind.name}


def _without_managers(obj: Object) -> Object:
    metadata = obj.get("metadata")
    if isinstance(metadata, dict):
        metadata.pop("managedFields", None)
    return obj


async def _lines(chunks: AsyncIterator[bytes], requested: ApiRequest, silence_s: float) -> AsyncIterator[bytes]:
    """Yield the lines of a stream; it is given up when it is silent for too long."""
    begun = b""
    while True:
        try:
            async with asyncio.timeout(silence_s), _translated(requested.subject, None):
                chunk = await anext(chunks, None)
        except TimeoutError as error:
            found = f"nothing in {silence_s:g} s, not even that nothing has changed"
            raise Silent(requested.subject, found=found, hint="check that the API server answers") from error
        if chunk is None:
            return
        *lines, begun = (begun + chunk).split(b"\n")
        for line in lines:
            yield line


def _event(line: bytes, requested: ApiRequest) -> WatchEvent:
    try:
        event = msgspec.json.decode(line, type=_Line)
    except JUNK as error:
        raise Unavailable(requested.subject, found=shown(line), expected="a change") from error
    if event.type == "ERROR":
        code = event.object.get("code")
        raise refused(code if isinstance(code, int) else 0, message_of(event.object), requested)
    _without_managers(event.object)
    return WatchEvent(object=event.object, gone=event.type == "DELETED", bookmark=event.type == "BOOKMARK")


class _Line(msgspec.Struct, frozen=True):
    type: str
    object: dict[str, Any]


@asynccontextmanager
async def _translated(subject: str, deadline_s: float | None) -> AsyncIterator[None]:
    """Limit the duration of a call, if any, and raise its errors as ours."""
    try:
        async with asyncio.timeout(deadline_s):
            yield
    except TimeoutError as error:
        raise Unanswered(
            subject, found=f"no answer in {deadline_s:g} s", hint="the write may have happened; try again"
        ) from error
    except Unreachable as error:
        raise Unavailable(
            subject, found=shown(error), hint="check the API server's address and that it runs"
        ) from error
    except Broken as error:
        raise Unanswered(subject, found=shown(error), hint="the write may have happened; try again") from error
    except JUNK as error:
        found = f"the answer is no object ({error_phrase(error, b'')})"
        raise Unanswered(subject, found=found, hint="the write may have happened; try again") from error
