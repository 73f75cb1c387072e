"""The servers' keys stay published: whatever is deleted, pods that run hold what they hold, until a key is revoked."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from builders.kubeobjects import gpu, pod, share
from builders.signed import AGENT, STRANGER, config_map, signed
from harness.servers import FULL, LARGE, NEED, Asked, FaultyKube, check, make_node, make_pod, servers, settle
from tessera.api.tessera.pods.signatures import (
    KEYS,
    SECRET,
    Authority,
    is_signed,
    key_id,
    published_keys,
    secret,
    secret_seed,
)
from tessera.api.tessera.v1alpha1.objects import NAMESPACE
from tessera.clients.kube import (
    CONFIG_MAPS,
    EVERYTHING,
    PODS,
    SECRETS,
    Kind,
    MemoryKube,
    Object,
    Selection,
    WatchEvent,
    annotations_of,
)
from tessera.errors import Unavailable
from tessera.server.settings import ServerLimits
from tessera.signing import Signer, verify

pytestmark = pytest.mark.anyio

QUICK = ServerLimits(sweep_s=0.05)


class Swept(MemoryKube):
    """An API that counts how often servers read their key: once in each sweep."""

    def __init__(self) -> None:
        super().__init__()
        self.sweeps = 0

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        self.sweeps += kind == SECRETS
        return await super().get(kind, name, namespace)

    async def sweep(self, times: int) -> None:
        """Wait for so many sweeps from now on."""
        last = self.sweeps + times
        async with asyncio.timeout(20):
            while self.sweeps < last:  # noqa: ASYNC110 (nobody tells)
                await asyncio.sleep(0.01)


@pytest.fixture
async def kube() -> Swept:
    """Return a cluster with one node of one GPU, whose agent signs."""
    made = Swept()
    await make_node(made, "a", gpu(0))
    return made


async def published(kube: MemoryKube) -> set[str]:
    return set(published_keys(await kube.get(CONFIG_MAPS, KEYS, NAMESPACE)))


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await holds():  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.01)


async def replaced(kube: MemoryKube, server: Asked) -> tuple[str, str]:
    """Let the servers have another key; return the ids of the former and the present one."""
    former = server.server.key.id
    await kube.delete(SECRETS, SECRET, namespace=NAMESPACE)
    await server.server.key.renew()
    await settle()
    assert await published(kube) == {former, server.server.key.id}
    return former, server.server.key.id


async def without(kube: MemoryKube, key: str) -> None:
    """Take one entry out of the ConfigMap, as an administrator revokes a key."""
    await kube.patch(CONFIG_MAPS, KEYS, {"data": {key: None}}, namespace=NAMESPACE)
    await settle()


async def test_keys_that_are_deleted_are_written_again_at_once_also_the_former_ones(kube: MemoryKube) -> None:
    """Long before a server would look again: a server that starts meanwhile would know none of them."""
    async with servers(kube) as (server,):
        keys = await replaced(kube, server)
        await kube.delete(CONFIG_MAPS, KEYS, namespace=NAMESPACE)
        await settle()
        assert await published(kube) == set(keys)


async def test_a_former_key_counts_though_another_server_writes_the_object_anew(kube: MemoryKube) -> None:
    """Two servers know different keys, as where one starts: neither takes the other's away."""
    async with servers(kube) as (server,):
        assert await server.schedule(await make_pod(kube, "old", FULL), "a") == ""
        former, present = await replaced(kube, server)
        other = await make_pod(kube, "new", FULL)
        await settle()
        assert await server.fitting(other, "a") == []
        await kube.delete(CONFIG_MAPS, KEYS, namespace=NAMESPACE)
        await kube.apply(CONFIG_MAPS, config_map(STRANGER), manager="another")
        for _ in range(30):
            assert await server.fitting(other, "a") == []
            await asyncio.sleep(0)
        assert await published(kube) == {former, present, key_id(STRANGER.public)}
        async with servers(kube) as (second,):
            assert await second.fitting(other, "a") == []


async def test_the_key_that_signs_is_replaced_where_its_entry_is_removed(kube: MemoryKube) -> None:
    """Who revokes a key need not delete the Secret first: no server publishes what was taken out."""
    async with servers(kube, 2, limits=QUICK) as (server, other):
        revoked = server.server.key.id
        await without(kube, revoked)
        await until(lambda: _signs_with_another(kube, server, revoked))
        await until(lambda: _signs_with_another(kube, other, revoked))
        assert not await _has(kube, revoked)
        assert key_id(Signer(secret_seed(await kube.get(SECRETS, SECRET, NAMESPACE) or {})).public) != revoked
        assert await server.schedule(await make_pod(kube, "p", FULL), "a") == ""


async def _signs_with_another(kube: MemoryKube, server: Asked, revoked: str) -> bool:
    key = server.server.key
    return key.id != revoked and not key.void and await _has(kube, key.id)


async def _has(kube: MemoryKube, key: str) -> bool:
    return key in await published(kube)


async def test_a_key_that_is_revoked_is_not_written_again_and_what_it_signed_is_void(kube: Swept) -> None:
    """An administrator removes one entry from the object that exists: that is meant."""
    async with servers(kube, 2, limits=QUICK) as (server, other):
        assert await server.schedule(await make_pod(kube, "old", FULL), "a") == ""
        former, present = await replaced(kube, server)
        await other.server.key.renew()
        waiting = await make_pod(kube, "new", FULL)
        await without(kube, former)
        await kube.sweep(8)
        assert await published(kube) == {present}
        for each in (server, other):
            assert set(each.server.view.keys.authority.servers) == {present}
            assert await each.fitting(waiting, "a") == ["a"]
        found = await kube.get(PODS, "old", "ns") or {}
        assert former in annotations_of(found)["tessera.dev/assignment-signature"]


async def test_a_key_that_came_back_with_another_object_can_be_revoked_there(kube: Swept) -> None:
    async with servers(kube, limits=QUICK) as (server,):
        former, present = await replaced(kube, server)
        await kube.delete(CONFIG_MAPS, KEYS, namespace=NAMESPACE)
        await until(lambda: _has(kube, former))
        await settle()
        await without(kube, former)
        await kube.sweep(4)
        assert await published(kube) == {present}


async def test_a_key_that_was_stolen_signs_nothing_after_its_entry_is_removed(kube: MemoryKube) -> None:
    """The Secret is deleted, then the entry: long before a server would look again another key signs."""
    async with servers(kube, 2) as several:
        stolen = several[0].server.key.id
        await kube.delete(SECRETS, SECRET, namespace=NAMESPACE)
        await kube.patch(CONFIG_MAPS, KEYS, {"data": {stolen: None}}, namespace=NAMESPACE)
        errors = []
        for server, name in zip(several, ("p", "q"), strict=True):
            await until(lambda server=server: _counts_instead(server, stolen))  # type: ignore[misc]
            errors.append(await server.schedule(await make_pod(kube, name, LARGE), "a"))
            await settle()
        assert errors == ["", "nowhere"]
        assert {await signer_of(kube, "p")} == await published(kube)
    await check(kube)


async def _counts_instead(server: Asked, key: str) -> bool:
    return server.server.key.id != key and not server.server.key.void


async def test_nothing_is_bound_while_the_key_that_signs_does_not_count() -> None:
    """Revoked before the claim or after it, and the Secret cannot be read: pods wait, and nothing stays claimed."""
    kube = FaultyKube()
    await make_node(kube, "a", gpu(0))
    async with servers(kube) as (server,):
        waiting, other = await make_pod(kube, "p", LARGE), await make_pod(kube, "q", LARGE)
        stolen = server.server.key.id
        await settle()

        async def revoke() -> None:
            kube.faults["get"] = [Unavailable("API", found="silence", expected="an answer")] * 99
            await MemoryKube.patch(kube, CONFIG_MAPS, KEYS, {"data": {stolen: None}}, namespace=NAMESPACE)
            await settle()

        kube.before_patch = [revoke]
        for _ in range(2):
            error = await server.bind(waiting, "a")
            assert f"key {stolen}, which ConfigMap {NAMESPACE}/{KEYS} does not have any more" in error
            assert "another key" in error
            assert await server.fitting(other, "a") == ["a"]
        assert "bind" not in kube.calls


class Late(Swept):
    """An API that tells changes of the keys when a test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.tells = asyncio.Event()
        self.tells.set()

    async def watch(self, kind: Kind, since: str, selection: Selection = EVERYTHING) -> AsyncIterator[WatchEvent]:
        async for event in super().watch(kind, since, selection):
            if kind == CONFIG_MAPS:
                await self.tells.wait()
            yield event


async def test_a_key_that_was_revoked_unseen_is_not_written_again() -> None:
    """The server looks at the object before it writes, and takes in what it sees there."""
    kube = Late()
    await make_node(kube, "a", gpu(0))
    async with servers(kube, limits=QUICK) as (server,):
        former, present = await replaced(kube, server)
        kube.tells.clear()
        await without(kube, former)
        await kube.sweep(4)
        assert await published(kube) == {present}


class Forgetful(MemoryKube):
    """An API without the ConfigMap of keys for as long as a test wants it so."""

    def __init__(self) -> None:
        super().__init__()
        self.without = False
        self.requested = asyncio.Event()

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        if self.without and kind == CONFIG_MAPS:
            self.requested.set()
            return None
        return await super().get(kind, name, namespace)


async def test_who_asks_for_an_unknown_key_waits_while_the_object_is_gone() -> None:
    """That there are no keys at all says nothing about one of them: a server writes them again."""
    kube = Forgetful()
    await make_node(kube, "a", gpu(0))
    async with servers(kube) as (server,):
        kube.without = True
        forged = signed(pod("forged", FULL, share(0, 40000), node="a"), STRANGER)
        forged["metadata"]["resourceVersion"] = "1000"
        server.server.view.take_pod(forged)
        async with asyncio.timeout(20):
            await kube.requested.wait()
        await settle()
        assert server.server.view.ledger.pods_on("a")[0].shares
        kube.without = False
        await until(lambda: _settled(server))
        assert server.server.view.ledger.pods_on("a")[0].shares == ()


async def _settled(server: Asked) -> bool:
    return not server.server.view.keys.doubts


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
        assert "data.seed is not a private key" in text
        with pytest.raises(Unavailable, match="not read yet"):
            _ = server.server.key.signer
        await kube.delete(SECRETS, SECRET, namespace=NAMESPACE)
        async with asyncio.timeout(10):
            await server.server.synced()
        assert await server.schedule(await make_pod(kube, "p", NEED), "a") == ""


def test_two_signers_have_two_keys() -> None:
    assert Signer().public != Signer().public
    assert Signer(AGENT.seed).public == AGENT.public
