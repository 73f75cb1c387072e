"""The Kubernetes API over HTTPS, by lightkube; the one importer of lightkube and its HTTP library."""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import httpx2
from lightkube import ALL_NS, ApiError, AsyncClient, ConfigError, KubeConfig
from lightkube.core.resource import ApiInfo, GlobalResource, NamespacedResourceG, ResourceDef
from lightkube.generic_resource import Generic, create_api_info
from lightkube.types import PatchType

from tessera.clients.kube.protocol import (
    EVERYTHING,
    PODS,
    Expired,
    Kind,
    Listing,
    Object,
    Selection,
    WatchEvent,
    name_of,
)
from tessera.errors import Conflict, InvalidInput, TesseraError, Unavailable, shown

__all__ = ["LightkubeKube"]

Answer = TypeVar("Answer")

_DEADLINE_S = 30.0
_WATCH_S = 240
"""The server ends a watch after this time and the client begins it anew, so that a dead connection is noticed."""
_SILENCE_S = 300.0
"""A watch without a change for so long is given up and the objects are listed anew."""
_CHUNK = 500
"""Objects a response, as kubectl asks."""


class LightkubeKube:
    """A `Kube` that speaks to an API server.

    Args:
        client: lightkube's client.

    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    @classmethod
    def connect(cls, kubeconfig: Path | None = None, context: str | None = None) -> Self:
        """Return a client by a kubeconfig file; without one by KUBECONFIG, the service account, or ~/.kube/config.

        Raises:
            InvalidInput: there is no such configuration, or it cannot be read.

        """
        subject = f"kubeconfig {kubeconfig or 'of this environment'}"
        accepted = "a kubeconfig file, by option or KUBECONFIG"
        try:
            config = KubeConfig.from_file(kubeconfig) if kubeconfig else KubeConfig.from_env()
            return cls(AsyncClient(config=config.get(context)))
        except (ConfigError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(subject, found=shown(error), wanted="a cluster and a user", accepted=accepted) from error

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
        asked = self._client.get(_resource(kind), name, namespace=namespace or None)
        found = await _absent_is_none(_answer(asked, f"get {_subject(kind, name, namespace)}"))
        return None if found is None else dict(found)

    async def list(self, kind: Kind, selection: Selection = EVERYTHING) -> Listing:
        """Return the objects of a kind, asked for in chunks."""
        return await _answer(self._list(kind, selection), f"list {kind.plural}")

    async def _list(self, kind: Kind, selection: Selection) -> Listing:
        pages = self._client.list(_resource(kind), chunk_size=_CHUNK, **_conditions(kind, selection))
        head = {"apiVersion": kind.api_version, "kind": kind.name}
        objects = tuple([head | each async for each in pages])
        return Listing(objects=objects, resource_version=pages.resourceVersion)

    async def watch(self, kind: Kind, since: str, selection: Selection = EVERYTHING) -> AsyncIterator[WatchEvent]:
        """Yield the changes after a moment."""
        events = aiter(
            self._client.watch(
                _resource(kind), resource_version=since, server_timeout=_WATCH_S, **_conditions(kind, selection)
            )
        )
        while True:
            change, body = await _answer(anext(events), f"watch {kind.plural}", deadline_s=_SILENCE_S)
            if change in {"ADDED", "MODIFIED", "DELETED"}:
                yield WatchEvent(object=dict(body), gone=change == "DELETED")

    async def create(self, kind: Kind, body: Object) -> Object:
        """Create an object and return it as stored."""
        namespace, name = name_of(body)
        where: dict[str, Any] = {"namespace": namespace} if kind.namespaced else {}
        made = self._client.create(_resource(kind)(body), **where)
        return dict(await _answer(made, f"create {_subject(kind, name, namespace)}"))

    async def patch(
        self, kind: Kind, name: str, body: Object, *, namespace: str = "", subresource: Literal["", "status"] = ""
    ) -> Object:
        """Merge a patch into an object and return it as stored."""
        resource = _resource(kind, subresource)
        made = self._client.patch(resource, name, body, namespace=namespace or None, patch_type=PatchType.MERGE)
        return dict(await _answer(made, f"patch {_subject(kind, name, namespace)}"))

    async def delete(self, kind: Kind, name: str, *, namespace: str = "", grace_s: int | None = None) -> None:
        """Delete an object, at once with a grace of 0; nothing happens where there is none."""
        asked = self._client.delete(_resource(kind), name, namespace=namespace or None, grace_period=grace_s)
        await _absent_is_none(_answer(asked, f"delete {_subject(kind, name, namespace)}"))

    async def evict(self, name: str, namespace: str) -> None:
        """Ask that a pod be evicted; nothing happens where there is none."""
        eviction = _resource(PODS, "eviction")(
            {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
        )
        asked = self._client.create(eviction, name, namespace=namespace)
        await _absent_is_none(_answer(asked, f"evict {_subject(PODS, name, namespace)}"))

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()


class _Absent(Conflict):
    """There is no such object (HTTP 404)."""


@functools.cache
def _resource(kind: Kind, subresource: str = "") -> Any:
    """Return lightkube's class for a kind, whose objects are dictionaries."""
    scope = NamespacedResourceG if kind.namespaced else GlobalResource
    info = create_api_info(kind.group, kind.version, kind.name, kind.plural)
    if subresource:
        parent = ResourceDef(kind.group, kind.version, kind.name)
        info = ApiInfo(parent, kind.plural, ["post", "patch"], parent=parent, action=subresource)
    return type(f"{kind.name}{subresource.title()}", (scope, Generic), {"_api_info": info})


def _conditions(kind: Kind, selection: Selection) -> dict[str, Any]:
    conditions: dict[str, Any] = {"labels": dict(selection.labels), "fields": dict(selection.fields)}
    return conditions | ({"namespace": selection.namespace or ALL_NS} if kind.namespaced else {})


def _subject(kind: Kind, name: str, namespace: str) -> str:
    return f"{kind.name} {namespace}/{name}" if namespace else f"{kind.name} {name}"


async def _absent_is_none(answer: Awaitable[Answer]) -> Answer | None:
    try:
        return await answer
    except _Absent:
        return None


async def _answer(asked: Awaitable[Answer], subject: str, *, deadline_s: float = _DEADLINE_S) -> Answer:
    """Return what the server answers, its errors as ours."""
    try:
        async with asyncio.timeout(deadline_s):
            return await asked
    except ApiError as error:
        raise _refused(error, subject) from error
    except TimeoutError as error:
        raise Unavailable(subject, found=f"no answer in {deadline_s:g} s", wanted="an answer") from error
    except (httpx2.HTTPError, StopAsyncIteration, OSError, ValueError) as error:
        found = shown(error) if str(error) else type(error).__name__
        raise Unavailable(subject, found=found, wanted="an answer of the API server") from error


_TOO_OLD, _ABSENT, _RIGHTS, _CHANGED = 410, 404, frozenset({401, 403}), 409
_FOR_GOOD = frozenset({400, 405, 406, 413, 415, 422})


def _refused(error: ApiError, subject: str) -> TesseraError:
    """Return our error for a status of the server. Source: Kubernetes API conventions, HTTP status codes."""
    code, found = error.status.code, shown(error.status.message or error.status.reason or "no message")
    if code == _TOO_OLD:
        return Expired(subject, found=found, wanted="a moment the server remembers")
    if code == _ABSENT:
        return _Absent(subject, found=found, wanted="an object that exists")
    if code == _CHANGED:
        return Conflict(subject, found=found, wanted="an object nobody else changed")
    if code in _RIGHTS:
        return Unavailable(subject, found=found, wanted="the right to do so", accepted="a role that grants it")
    kind = InvalidInput if code in _FOR_GOOD else Unavailable
    return kind(subject, found=f"HTTP {code}, {found}", wanted="success")
