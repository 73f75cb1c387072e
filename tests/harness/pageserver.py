"""A server with a page, over real sockets, and somebody who looks at it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec

from builders.kubeobjects import gpu, mig_share, place
from harness.servers import Clock, hold, make_node, make_pod
from tessera.api.kubernetes.reviews import ReviewedUser
from tessera.clients.kube import MemoryKube
from tessera.server.binder import ServerClocks
from tessera.server.run import Server
from tessera.server.settings import Page, PageLimits, ServerLimits, ServerSettings

__all__ = ["A100", "MIG", "Events", "Served", "cluster", "served"]

MIG = {"nvidia.com/mig-1g.5gb": 1}
A100 = "A100-40GB"


class Served:
    """A server with a page, and one who looks at it."""

    def __init__(self, server: Server, clock: Clock) -> None:
        self.server = server
        self.clock = clock
        self.client = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.page_port}", timeout=20)

    async def get(self, path: str, token: str = "", **headers: str) -> httpx2.Response:
        return await self.client.get(path, headers=headers | _bearer(token))

    async def fleet(self, token: str = "") -> Any:
        answer = await self.get("/api/fleet", token)
        assert answer.status_code == 200, answer.text
        return answer.json()

    @asynccontextmanager
    async def events(self, token: str = "", last: str = "") -> AsyncIterator["Events"]:
        headers = _bearer(token) | ({"Last-Event-ID": last} if last else {})
        async with self.client.stream("GET", "/api/events", headers=headers) as answer:
            yield Events(answer)


class Events:
    """Server-sent events as they come."""

    def __init__(self, answer: httpx2.Response) -> None:
        self.status = answer.status_code
        self._lines = answer.aiter_lines()
        self.last = ""

    async def next(self) -> tuple[str, Any]:
        """Return the next event; an empty one at the end."""
        event: dict[str, str] = {}
        async with asyncio.timeout(20):
            async for line in self._lines:
                name, _, value = line.partition(": ")
                if name and not line.startswith(":"):
                    event[name] = value
                elif event:
                    self.last = event.get("id", self.last)
                    return event["event"], msgspec.json.decode(event["data"])
        return "", None


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


async def cluster() -> MemoryKube:
    """Return a cluster with a pod of each of two namespaces on one GPU, and who may see which."""
    kube = MemoryKube()
    await make_node(kube, "a", gpu(0, layout=(place(A100, "1g.5gb", 5), place(A100, "1g.5gb", 6))))
    await hold(kube, "open-pod", MIG, mig_share(0, "1g.5gb", 6), node="a")
    made = await make_pod(kube, "secret-pod", MIG, metadata={"namespace": "hidden"})
    uid = made["metadata"]["uid"]
    await kube.bind("secret-pod", "hidden", uid=uid, node="a", annotations={})
    for token in ("admin", "viewer", "nobody"):
        kube.accounts.add(f"token-of-{token}", ReviewedUser(username=token, groups=("system:authenticated",)))
    kube.accounts.allow("admin", "list", "pods")
    kube.accounts.allow("admin", "list", "nodes")
    kube.accounts.allow("viewer", "list", "pods", ["ns"])
    return kube


@asynccontextmanager
async def served(kube: MemoryKube, *, sign_in: bool = False, **limits: Any) -> AsyncIterator[Served]:
    clock = Clock()
    page = Page(port=0, sign_in=sign_in, limits=PageLimits(**limits))
    server = Server(
        ServerSettings(port=0, page=page, limits=ServerLimits(stop_s=5)), kube, ServerClocks(clock, lambda: 1)
    )
    running = asyncio.create_task(server.run())
    async with asyncio.timeout(20):
        await server.listening.wait()
        await server.synced()
    one = Served(server, clock)
    try:
        yield one
    finally:
        server.stop()
        await running
        await one.client.aclose()
