"""The API server's HTTP before an API in memory, for programs that are started: the requests of `tessera run`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import yaml
from aiohttp import web

from tessera.clients.kube import ENVIRONMENTS, EVENTS, JOBS, PODS, SECRETS, Kind, MemoryKube, Object, Selection

_KINDS = {each.plural: each for each in (ENVIRONMENTS, EVENTS, JOBS, PODS, SECRETS)}


class KubeApi:
    """Answers from `kube`; a request that is held does not reach it before it is released."""

    def __init__(self, kube: MemoryKube) -> None:
        self.kube = kube
        self.held: tuple[str, Kind] | None = None
        """Method and kind of requests that are held."""
        self.holds = asyncio.Event()
        """Set when one is."""
        self.released = asyncio.Event()
        """Set by who wants those that are held to be answered."""
        self.lost: tuple[str, Kind] | None = None
        """Method and kind of requests that are done, and whose answer says that they failed."""

    async def answer(self, request: web.Request) -> web.Response:
        place = request.match_info
        kind = _KINDS.get(place["plural"])
        if kind is None:
            return web.Response(status=404, text="404 page not found")
        if (request.method, kind) == self.held:
            self.holds.set()
            await self.released.wait()
        found = await self._do(request, kind, place.get("name", ""), place.get("namespace", ""))
        if (request.method, kind) == self.lost:
            status = {"kind": "Status", "apiVersion": "v1", "code": 504, "reason": "Timeout", "message": "timed out"}
            return web.json_response(status, status=504)
        if found is None:
            status = {"kind": "Status", "apiVersion": "v1", "code": 404, "reason": "NotFound"}
            return web.json_response(status, status=404)
        return web.json_response(found)

    async def log(self, request: web.Request) -> web.Response:
        place, query = request.match_info, request.query
        since = query.get("sinceTime", "") if "timestamps" in query else None
        pieces = self.kube.logs(
            place["name"],
            place["namespace"],
            container=query.get("container", ""),
            follow="follow" in query,
            since=since,
        )
        content = b"".join([each async for each in pieces])
        return web.Response(body=content) if content else web.Response(status=204)

    async def _do(self, request: web.Request, kind: Kind, name: str, namespace: str) -> Object | None:
        if request.method == "POST":
            return await self.kube.create(kind, await request.json())
        if request.method == "PATCH":
            return await self.kube.patch(kind, name, msgspec.json.decode(await request.read()), namespace=namespace)
        if request.method == "DELETE":
            only = msgspec.json.decode(await request.read()).get("preconditions", {})
            await self.kube.delete(kind, name, namespace=namespace, uid=only.get("uid", ""))
            return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        if name:
            return await self.kube.get(kind, name, namespace)
        parts = [each.partition("=") for each in request.query.get("labelSelector", "").split(",") if each]
        labels = tuple((key, value) for key, equals, value in parts if equals)
        having = tuple(key for key, equals, _ in parts if not equals)
        selection = Selection(namespace=namespace, labels=labels, having=having)
        listing = await self.kube.list(kind, selection)
        metadata = {"resourceVersion": listing.resource_version}
        return {"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": metadata,
                "items": list(listing.objects)}  # fmt: skip


@asynccontextmanager
async def serving(api: KubeApi, folder: Path) -> AsyncIterator[Path]:
    """Serve an API, and give a kubeconfig of it whose namespace is `ns`."""
    app = web.Application(client_max_size=1 << 24)
    app.router.add_get("/api/v1/namespaces/{namespace}/pods/{name}/log", api.log)
    for prefix in ("/api/{version}", "/apis/{group}/{version}"):
        for end in ("", "/{name}"):
            app.router.add_route("*", f"{prefix}/namespaces/{{namespace}}/{{plural}}{end}", api.answer)
            app.router.add_route("*", f"{prefix}/{{plural}}{end}", api.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        cluster = {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
        }
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        yield path
    finally:
        await runner.cleanup()
