"""The key that servers sign with: shared, published, replaced, shown to nobody."""

import asyncio
import base64
import json

import pytest
from structlog.testing import capture_logs

from builders.kubeobjects import gpu
from builders.signed import AGENT
from harness.servers import FULL, NEED, make_node, make_pod, servers, settle
from tessera.api.tessera.pods.signatures import (
    KEYS,
    NAMESPACE,
    SECRET,
    Authority,
    is_signed,
    published_keys,
    secret,
)
from tessera.clients.kube import (
    CONFIG_MAPS,
    PODS,
    SECRETS,
    MemoryKube,
    annotations_of,
)
from tessera.errors import Unavailable
from tessera.signing import Signer, verify

pytestmark = pytest.mark.anyio


@pytest.fixture
async def kube() -> MemoryKube:
    """Return a cluster with one node of one GPU, whose agent signs."""
    made = MemoryKube()
    await make_node(made, "a", gpu(0))
    return made


async def the_keys(kube: MemoryKube) -> dict[str, bytes]:
    return published_keys(await kube.get(CONFIG_MAPS, KEYS, NAMESPACE))


async def signer_of(kube: MemoryKube, name: str) -> str:
    found = await kube.get(PODS, name, "ns") or {}
    return annotations_of(found)["tessera.dev/assignment-signature"].split(".")[1]


async def test_what_is_bound_is_signed_by_a_key_that_is_published(kube: MemoryKube) -> None:
    async with servers(kube) as (server,):
        assert await server.schedule(await make_pod(kube, "p", NEED), "a") == ""
    bound = await kube.get(PODS, "p", "ns")
    assert bound is not None
    keys = Authority(servers=await the_keys(kube), verify=verify).keys(None)
    assert is_signed(bound, keys)
    for moved in ({"uid": "another"}, {"name": "p"}):
        assert is_signed({**bound, "metadata": {**bound["metadata"], **moved}}, keys) == ("name" in moved)


async def test_servers_share_one_key_and_show_it_to_nobody(kube: MemoryKube) -> None:
    with capture_logs() as logs:
        async with servers(kube, 3) as several:
            assert len({server.server.key.id for server in several}) == 1
        async with servers(kube) as (later,):
            assert later.server.key.id == several[0].server.key.id
    assert len(await the_keys(kube)) == 1
    kept = await kube.get(SECRETS, SECRET, NAMESPACE) or {}
    private = kept["data"]["seed"]
    told = json.dumps(logs, default=str)
    assert private not in told
    assert base64.b64decode(private).hex() not in told


async def test_a_key_that_is_deleted_is_replaced_and_what_it_signed_goes_on_to_count(kube: MemoryKube) -> None:
    async with servers(kube) as (server,):
        assert await server.schedule(await make_pod(kube, "old", FULL), "a") == ""
        await kube.delete(SECRETS, SECRET, namespace=NAMESPACE)
        await server.server.key.renew()
        await settle()
        assert len(await the_keys(kube)) == 2
        waiting = await make_pod(kube, "p", NEED)
        assert await server.fitting(waiting, "a") == []
        await kube.delete(PODS, "old", namespace="ns")
        await settle()
        assert await server.schedule(waiting, "a") == ""
    assert await signer_of(kube, "p") == server.server.key.id
    async with servers(kube) as (another,):
        assert await another.fitting(await make_pod(kube, "q", FULL), "a") == []


async def test_a_secret_without_a_key_is_said_and_nothing_is_bound_before_there_is_one(kube: MemoryKube) -> None:
    await kube.create(SECRETS, secret(b""))
    async with servers(kube, synced=False) as (server,):
        await settle()
        code, text = await server.get("/readyz")
        assert code == 503
        assert "found no private key in data.seed" in text
        with pytest.raises(Unavailable, match="not read yet"):
            _ = server.server.key.signer
        await kube.delete(SECRETS, SECRET, namespace=NAMESPACE)
        async with asyncio.timeout(10):
            await server.server.synced()
        assert await server.schedule(await make_pod(kube, "p", NEED), "a") == ""


def test_two_signers_have_two_keys() -> None:
    assert Signer().public != Signer().public
    assert Signer(AGENT.seed).public == AGENT.public
