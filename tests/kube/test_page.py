"""The page for accounts of a real API server: each sees the namespaces that its roles let it list, no other's name."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from builders.admissionpods import asking
from harness.servers import Clock
from tessera.clients.kube import HttpKube
from tessera.server.binder import ServerClocks
from tessera.server.run import Server
from tessera.server.settings import Page, PageLimits, ServerSettings
from testbed.cluster import Cluster
from testbed.deploy import NAMESPACE, objects

OPEN, HIDDEN = "page-open", "page-hidden"
RIGHTS = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "sees", "namespace": OPEN}}
REMEMBERED_S = 31
"""More than the server remembers what a viewer may see."""


def token(cluster: Cluster, name: str) -> str:
    return cluster.kubectl("create", "token", name, f"--namespace={OPEN}").strip()


@pytest.fixture(scope="module")
def tenants(control_plane: Cluster) -> Iterator[Cluster]:
    """Give a cluster with a pending pod in each of two namespaces, and the accounts `viewer`, `admin` and `nobody`."""
    cluster = control_plane
    for namespace in (OPEN, HIDDEN):
        cluster.kubectl("create", "namespace", namespace)
    for name in ("viewer", "admin", "nobody"):
        cluster.kubectl("create", "serviceaccount", name, f"--namespace={OPEN}")
    cluster.apply({**RIGHTS, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]})
    account = f"--serviceaccount={OPEN}"
    cluster.kubectl("create", "rolebinding", "sees", "--role=sees", f"{account}:viewer", f"--namespace={OPEN}")
    cluster.kubectl("create", "clusterrolebinding", "page-admin", "--clusterrole=view", f"{account}:admin")
    for name, namespace in (("mine", OPEN), ("secret", HIDDEN)):
        body = asking({"tessera.dev/gpu-memory": "6"})
        body["metadata"] = {**body["metadata"], "name": name, "namespace": namespace}
        cluster.apply(body)
    cluster.apply(*objects("rbac/server.yaml", values={"server": {"page": True}}))
    yield cluster
    cluster.apply(*objects("rbac/server.yaml"))
    cluster.kubectl("delete", "rolebinding", "tessera-server-usage", f"--namespace={NAMESPACE}")
    cluster.kubectl("delete", "namespace", OPEN, HIDDEN, "--wait=false")
    cluster.kubectl("delete", "clusterrolebinding", "page-admin")


@asynccontextmanager
async def page(cluster: Cluster, clock: Clock | None = None) -> AsyncIterator[httpx2.AsyncClient]:
    """Give a client of the page of a server that has the rights of the chart's account, and no more."""
    config = json.loads(cluster.kubectl("config", "view", "-o=json"))
    own = cluster.kubectl("create", "token", "tessera-server", f"--namespace={NAMESPACE}").strip()
    path = cluster.pki.token_kubeconfig("page-server", own, config["clusters"][0]["cluster"]["server"])
    async with HttpKube.connect(path) as kube:
        served = Page(port=0, sign_in=True, limits=PageLimits(heartbeat_s=0.5))
        server = Server(ServerSettings(port=0, page=served), kube, ServerClocks(clock or Clock(), lambda: 1))
        running = asyncio.create_task(server.run())
        async with asyncio.timeout(60):
            await server.listening.wait()
            await server.synced()
        try:
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.page_port}", timeout=30) as client:
                yield client
        finally:
            server.stop()
            await running


def bearer(one: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {one}"}


@pytest.mark.anyio
async def test_each_account_sees_what_it_may_list_and_no_other_name(tenants: Cluster) -> None:
    async with page(tenants) as client:
        everything = await client.get("/api/fleet", headers=bearer(token(tenants, "admin")))
        assert {HIDDEN, OPEN} <= set(everything.json()["namespaces"])
        part = await client.get("/api/fleet", headers=bearer(token(tenants, "viewer")))
        assert part.json()["namespaces"] == [OPEN]
        assert [each["pod"] for each in part.json()["pending"]] == ["mine"]
        assert b"hidden" not in part.content
        assert b"secret" not in part.content
        for who in (bearer(token(tenants, "nobody")), bearer("no token"), {}):
            refused = await client.get("/api/fleet", headers=who)
            assert refused.status_code in {401, 403}
            assert HIDDEN.encode() not in refused.content


@pytest.mark.anyio
async def test_a_right_that_is_taken_away_ends_the_view(tenants: Cluster) -> None:
    clock = Clock()
    async with page(tenants, clock) as client:
        headers = bearer(token(tenants, "viewer"))
        async with client.stream("GET", "/api/events", headers=headers) as answer, asyncio.timeout(60):
            tenants.kubectl("delete", "rolebinding", "sees", f"--namespace={OPEN}")
            clock.now_s += REMEMBERED_S
            async for _ in answer.aiter_lines():
                pass  # until the server ends it
        assert (await client.get("/api/fleet", headers=headers)).status_code == 403
