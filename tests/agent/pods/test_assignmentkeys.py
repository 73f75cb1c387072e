"""The agent's own key, whose signatures count on its node, and what forged assignments get there."""

import asyncio
import base64
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from builders.kubeobjects import amount
from builders.signed import SERVER, STRANGER, config_map, public
from builders.signed import keys as keys_of
from harness.agentmachine import Machine
from harness.servers import Clock
from tessera.agent.agenttimes import AgentTimes
from tessera.agent.pods.assignmentkeys import AssignmentKeys
from tessera.api.tessera.pods.assignments import write_shares
from tessera.api.tessera.pods.signatures import KEYS, Keys, is_signed, key_id, public_keys
from tessera.api.tessera.v1alpha1.objects import NAMESPACE
from tessera.clients.kube import (
    CONFIG_MAPS,
    GPU_NODES,
    NODES,
    PODS,
    Kind,
    MemoryKube,
    Object,
    Subresource,
    Unanswered,
    annotations_of,
)
from tessera.core.cluster.snapshot import Share
from tessera.errors import Conflict, Unavailable
from tessera.log import logger
from tessera.signing import Signer, verify

pytestmark = pytest.mark.anyio

NEED = "tessera.dev/gpu-memory"
ASSIGNMENT = "tessera.dev/assignment"
SIGNATURE = "tessera.dev/assignment-signature"


def keys_at(
    path: Path, kube: MemoryKube | None = None, clock_s: Callable[[], float] = time.monotonic
) -> AssignmentKeys:
    return AssignmentKeys(kube or MemoryKube(), "n1", path, logger(), wake=lambda: None, clock_s=clock_s)


# The key


def test_the_key_is_made_once_and_kept_for_root_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "assignment-key"
    with capture_logs() as logs:
        first = keys_at(path)
        first.open(())
        again = keys_at(path)
        again.open(first.published)
    assert path.stat().st_mode & 0o777 == 0o600
    assert first.published == again.published
    assert path.read_text() not in json.dumps(logs, default=str)


def test_a_state_folder_that_was_lost_voids_nothing(tmp_path: Path) -> None:
    first, second = keys_at(tmp_path / "one"), keys_at(tmp_path / "two")
    first.open(())
    second.open(first.published)
    assert second.published == (second.published[0], *first.published)
    pod: Object = {"metadata": {"uid": "u", "annotations": {}}, "spec": {"nodeName": "n1"}}
    pod["metadata"]["annotations"] = first.sealed(pod, {ASSIGNMENT: "[]"})
    assert is_signed(pod, second.keys)
    assert not is_signed({**pod, "spec": {"nodeName": "n2"}}, second.keys)


def test_no_more_former_keys_are_reported_than_the_object_takes(tmp_path: Path) -> None:
    keys = keys_at(tmp_path / "key")
    keys.open(tuple(str(number) for number in range(20)))
    assert len(keys.published) == 8


def test_a_key_that_an_editor_ended_with_a_newline_is_the_same_key(tmp_path: Path) -> None:
    key = base64.b64encode(bytes(32))
    (tmp_path / "key").write_bytes(key + b"\n")
    with capture_logs() as logs:
        keys_at(tmp_path / "key").open(())
    assert logs == []
    assert (tmp_path / "key").read_bytes() == key + b"\n"


@pytest.mark.parametrize("content", [b"", b"no base64", base64.b64encode(b"short"), b"\xff"])
def test_a_key_that_is_broken_is_replaced_with_a_word(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with capture_logs() as logs:
        keys = keys_at(tmp_path / "key")
        keys.open(())
    assert [each["event"] for each in logs] == ["key_not_read", "key_created"]
    assert len(base64.b64decode((tmp_path / "key").read_bytes())) == 32


def test_a_key_that_cannot_be_kept_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "key", tmp_path / "folder"):
        with pytest.raises(Unavailable, match="--state-dir, where the key"):
            keys_at(path).open(())
    assert (tmp_path / "folder").is_dir()


def test_nothing_is_signed_before_there_is_a_key(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no key to sign with yet"):
        keys_at(tmp_path / "key").sealed({"metadata": {}}, {ASSIGNMENT: "[]"})


async def test_the_servers_keys_are_followed_and_outlive_their_object(tmp_path: Path) -> None:
    kube, changed = MemoryKube(), asyncio.Event()
    keys = AssignmentKeys(kube, "n1", tmp_path / "key", logger(), wake=changed.set)
    running = asyncio.ensure_future(keys.store.run())

    async def until_published(holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not holds():
                changed.clear()
                await changed.wait()

    await keys.synced()
    keys.open(())
    own = keys.keys
    assert keys.keys is own
    await kube.apply(CONFIG_MAPS, config_map(SERVER), manager="one")
    await until_published(lambda: public(SERVER).items() <= keys.keys.public.items())
    assert keys.keys is keys.keys
    await kube.apply(CONFIG_MAPS, config_map(STRANGER), manager="two")
    await until_published(lambda: public(SERVER, STRANGER).items() <= keys.keys.public.items())
    changed.clear()  # what it was set by has been told
    await kube.delete(CONFIG_MAPS, KEYS, namespace=NAMESPACE)
    await until_published(changed.is_set)
    assert public(SERVER, STRANGER).items() <= keys.keys.public.items()
    changed.clear()
    await kube.apply(CONFIG_MAPS, config_map(STRANGER), manager="three")
    await until_published(changed.is_set)
    assert public(SERVER, STRANGER).items() <= keys.keys.public.items(), "another object revokes nothing"
    await kube.apply(CONFIG_MAPS, config_map(SERVER), manager="two")
    await until_published(lambda: keys.keys is not own and len(keys._ring.shown) == 2)
    await kube.patch(CONFIG_MAPS, KEYS, {"data": {key_id(SERVER.public): None}}, namespace=NAMESPACE)
    await until_published(lambda: not public(SERVER).items() <= keys.keys.public.items())
    running.cancel()


async def after_a_look(path: Path, kube: MemoryKube) -> AssignmentKeys:
    """Return the keys of an agent that has started, and has looked once."""
    keys = keys_at(path, kube)
    running = asyncio.ensure_future(keys.store.run())
    await keys.synced()
    running.cancel()
    keys.open(())
    return keys


async def test_an_agent_that_starts_again_knows_the_servers_keys_though_nobody_publishes_them(tmp_path: Path) -> None:
    kube, path = MemoryKube(), tmp_path / "key"
    await kube.apply(CONFIG_MAPS, config_map(SERVER), manager="one")
    assert public(SERVER).items() <= (await after_a_look(path, kube)).keys.public.items()
    await kube.delete(CONFIG_MAPS, KEYS, namespace=NAMESPACE)
    assert public(SERVER).items() <= (await after_a_look(path, kube)).keys.public.items()
    await kube.apply(CONFIG_MAPS, config_map(STRANGER), manager="two")
    assert public(SERVER, STRANGER).items() <= (await after_a_look(path, kube)).keys.public.items()
    assert (tmp_path / "server-keys.json").stat().st_mode & 0o777 == 0o600


async def test_servers_keys_of_a_file_without_version_are_known(tmp_path: Path) -> None:
    kube, path = MemoryKube(), tmp_path / "key"
    await kube.apply(CONFIG_MAPS, config_map(SERVER), manager="one")
    await after_a_look(path, kube)
    await kube.delete(CONFIG_MAPS, KEYS, namespace=NAMESPACE)
    kept = tmp_path / "server-keys.json"
    content = msgspec.json.decode(kept.read_bytes())
    assert content["version"] == 1
    kept.write_bytes(msgspec.json.encode(content["ring"]))
    assert public(SERVER).items() <= (await after_a_look(path, kube)).keys.public.items()


async def test_a_key_that_was_revoked_while_no_agent_ran_does_not_count(tmp_path: Path) -> None:
    kube, path = MemoryKube(), tmp_path / "key"
    await kube.apply(CONFIG_MAPS, config_map(SERVER), manager="one")
    await kube.apply(CONFIG_MAPS, config_map(STRANGER), manager="two")
    await after_a_look(path, kube)
    await kube.patch(CONFIG_MAPS, KEYS, {"data": {key_id(SERVER.public): None}}, namespace=NAMESPACE)
    for _ in range(2):
        found = (await after_a_look(path, kube)).keys.public
        assert key_id(SERVER.public) not in found
        assert key_id(STRANGER.public) in found


async def test_what_was_remembered_yields_to_the_present_of_a_cluster_that_was_made_anew(tmp_path: Path) -> None:
    """Its versions begin anew: the first look began after all that was remembered."""
    old, path = MemoryKube(), tmp_path / "key"
    for _ in range(9):
        await old.apply(CONFIG_MAPS, config_map(STRANGER), manager="one")
        await old.delete(CONFIG_MAPS, KEYS, namespace=NAMESPACE)
    await old.apply(CONFIG_MAPS, config_map(STRANGER), manager="one")
    await after_a_look(path, old)
    new = MemoryKube()
    await new.apply(CONFIG_MAPS, config_map(SERVER), manager="one")
    assert public(SERVER).items() <= (await after_a_look(path, new)).keys.public.items()


async def said_with_keys(folder: Path) -> list[str]:
    """Return the events of a look after which the server's keys count."""
    kube = MemoryKube()
    await kube.apply(CONFIG_MAPS, config_map(SERVER), manager="one")
    with capture_logs() as logs:
        keys = await after_a_look(folder / "key", kube)
    assert public(SERVER).items() <= keys.keys.public.items()
    return [each["event"] for each in logs]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b"\xff", b'{"public": 1}', b'{"version": 2, "ring": {}}', b" " * ((1 << 20) + 1)]
)
async def test_remembered_keys_that_are_broken_are_left_with_a_word(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "server-keys.json").write_bytes(content)
    assert "server_keys_forgotten" in await said_with_keys(tmp_path)


async def test_keys_that_cannot_be_kept_count_all_the_same(tmp_path: Path) -> None:
    (tmp_path / f".server-keys.json.{os.getpid()}").mkdir()
    assert "server_keys_not_kept" in await said_with_keys(tmp_path)


async def test_after_etcd_was_restored_the_keys_that_are_read_count_and_can_be_revoked(tmp_path: Path) -> None:
    """Versions went back: what is read is older than what was read before, and yet it is the present."""
    kube = Versioned()
    keys = AssignmentKeys(kube, "n1", tmp_path / "key", logger(), wake=lambda: None)
    keys.open(())
    kube.show(900, SERVER)
    await keys.refresh()
    assert keys.knows_servers
    kube.show(500, SERVER, STRANGER)
    await keys.refresh()
    assert public(SERVER, STRANGER).items() <= keys.keys.public.items()
    kube.show(501, SERVER)
    await keys.refresh()
    assert not public(STRANGER).items() <= keys.keys.public.items()
    assert public(SERVER).items() <= keys.keys.public.items()


class Versioned(MemoryKube):
    """Reads of one object show it at a version that a test says."""

    def show(self, version: int, *signers: Signer) -> None:
        data = {name: text for each in signers for name, text in config_map(each)["data"].items()}
        self.shown = {"metadata": {"uid": "u", "resourceVersion": str(version)}, "data": data}

    async def get(self, *_: object) -> Object | None:
        return self.shown


# A whole agent


async def told_keys(machine: Machine) -> list[str]:
    """Return the keys in the GPUNode as soon as there are any."""
    found = await machine.until_object(GPU_NODES, "n1", lambda each: bool(_keys_of(each)))
    return _keys_of(found)


def _keys_of(found: Object) -> list[str]:
    return list((found.get("status") or {}).get("assignmentKeys") or ())


async def bound(machine: Machine, name: str, annotations: dict[str, str], units: int = 4) -> Object:
    """Make a pod that gives itself its node and its annotations."""
    limits = {"limits": {NEED: str(units)}}
    spec = {"nodeName": "n1", "containers": [{"name": "c", "image": "none", "resources": limits}]}
    metadata = {"name": name, "namespace": "default", "annotations": annotations}
    return await machine.kube.create(PODS, {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})


def assigned(*shares: Share) -> dict[str, str]:
    return {ASSIGNMENT: write_shares(shares)}


async def test_a_forged_assignment_gets_nothing_and_its_event_says_why(machine: Machine) -> None:
    await machine.label(gpushare="true")
    async with machine.agent():
        await machine.kubelet.until_allocatable(NEED, 80)
        honest = amount(0, container="c")
        await machine.pod("honest", {NEED: 4}, (honest,))
        held = await machine.start("honest", NEED, 4)
        forged = {
            "more": assigned(amount(1, memory_mib=38000, container="c")),
            "whole": assigned(amount(0, memory_mib=40960, container="c")),
            "index": {"ALIYUN_COM_GPU_MEM_IDX": "0"},
            "foreign": STRANGER.sealed(assigned(amount(1, container="c")), uid="uid-1", node="n1"),
        }
        for name, annotations in forged.items():
            await bound(machine, name, annotations, units=1)
            with pytest.raises(Conflict) as raised:
                await machine.start(name, NEED, 1)
            assert "assignments not signed by Tessera: a signature of key" in str(raised.value) or (
                "assignments not signed by Tessera: no signature" in str(raised.value)
            )
            assert "default/" not in str(raised.value), "whose they are is nobody else's business"
            assert "schedulerName: tessera-scheduler" in str(raised.value)
            await machine.kube.delete(PODS, name, namespace="default")  # as it is Failed
        await machine.pod("other", {NEED: 4}, (amount(0, container="c"),))
        assert (await machine.start("other", NEED, 4))["NVIDIA_VISIBLE_DEVICES"] == held["NVIDIA_VISIBLE_DEVICES"]


async def test_the_key_is_reported_before_anything_is_signed_and_devices_by_name_are_signed(machine: Machine) -> None:
    async with machine.agent():
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
        told = await told_keys(machine)
        await machine.pod("p", {"nvidia.com/gpu": 1})
        await machine.start("p", "nvidia.com/gpu")
        pod = await machine.until_object(PODS, "p", lambda each: ASSIGNMENT in annotations_of(each))
        found = annotations_of(pod)
    version, key, _ = found["tessera.dev/assignment-signature"].split(".")
    assert (version, key) == ("v1", key_id(base64.b64decode(told[0])))
    async with machine.agent():
        assert await told_keys(machine) == told


async def run_unsigned(machine: Machine) -> str:
    """Let a pod run on a machine whose agent has ended, remove its assignment's signature, and return that."""
    await machine.label(gpushare="true")
    async with machine.agent():
        await machine.kubelet.until_allocatable(NEED, 80)
        await told_keys(machine)
        await machine.pod("p", {NEED: 4}, (amount(0, container="c"),))
        await machine.start("p", NEED, 4)
        await machine.kube.patch(PODS, "p", {"status": {"phase": "Running"}}, namespace="default", subresource="status")
    signed = annotations_of(await machine.kube.get(PODS, "p", "default") or {})
    unsigned = {"metadata": {"annotations": {SIGNATURE: None}}}
    await machine.kube.patch(PODS, "p", unsigned, namespace="default")
    return signed[SIGNATURE]


@pytest.mark.parametrize("former", ["did not sign", "signed", "signed, and its GPUNode was deleted"])
async def test_what_runs_when_agents_begin_to_sign_is_signed_once(machine: Machine, former: str) -> None:
    """An agent before this one let pods start whose assignments nobody signed; one that signs lets none.

    A signature that was removed from a pod that was started with it comes back.
    """
    signature = await run_unsigned(machine)
    if former == "signed, and its GPUNode was deleted":
        await machine.kube.delete(GPU_NODES, "n1")
    if former == "did not sign":
        await machine.kube.patch(GPU_NODES, "n1", {"status": {"assignmentKeys": []}}, subresource="status")
    waiting = await bound(machine, "waits", assigned(amount(1, container="c")))
    async with machine.agent():
        await machine.kubelet.until_allocatable(NEED, 80)
        await told_keys(machine)
        p = await machine.until_object(PODS, "p", lambda each: SIGNATURE in annotations_of(each))
        waits = await machine.kube.get(PODS, "waits", "default") or {}
    restored = annotations_of(p)[SIGNATURE] == signature
    assert restored == (former != "did not sign"), "what its container was started with counts, if that was signed"
    assert annotations_of(waits) == annotations_of(waiting)
    assert SIGNATURE not in annotations_of(waiting)


async def test_what_a_tenant_writes_on_a_pod_of_its_own_ends_no_agent(machine: Machine) -> None:
    await machine.label(gpushare="true")
    async with machine.agent():
        await machine.kubelet.until_allocatable(NEED, 80)
        await machine.pod("hostile", {NEED: 4}, (amount(0, container="c"),))
        endless = {"metadata": {"annotations": {"ALIYUN_COM_GPU_MEM_ASSUME_TIME": "9" * 5000}}}
        await machine.kube.patch(PODS, "hostile", endless, namespace="default")
        await machine.pod("honest", {NEED: 4}, (amount(1, container="c"),))
        await machine.start("hostile", NEED, 4)
        await machine.start("honest", NEED, 4)


async def test_the_servers_keys_are_known_as_soon_as_one_is_published(tmp_path: Path) -> None:
    kube = MemoryKube()
    keys = keys_at(tmp_path / "key", kube)
    keys.open(())
    assert not keys.knows_servers, "its own alone"
    await kube.apply(CONFIG_MAPS, config_map(SERVER), manager="one")
    await keys.refresh()
    assert keys.knows_servers


class FullKube(MemoryKube):
    """An API server that takes no change of any pod while it is `full`, as of one that is too large for etcd."""

    full = False

    async def patch(
        self, kind: Kind, name: str, body: Object, *, namespace: str = "", subresource: Subresource = ""
    ) -> Object:
        if self.full and kind == PODS:
            raise Unanswered("pod p", found="HTTP 500, request is too large")
        return await super().patch(kind, name, body, namespace=namespace, subresource=subresource)


async def test_one_pod_that_can_never_be_signed_keeps_no_node_from_serving(machine: Machine) -> None:
    kube = FullKube()
    await kube.create(NODES, await machine.node())
    machine = msgspec.structs.replace(machine, kube=kube)
    await machine.label(gpushare="true")
    async with machine.agent():
        await machine.kubelet.until_allocatable(NEED, 80)
        await told_keys(machine)
        await machine.pod("p", {NEED: 4}, (amount(0, container="c"),))
        await machine.start("p", NEED, 4)
        await machine.kube.patch(PODS, "p", {"status": {"phase": "Running"}}, namespace="default", subresource="status")
    unsigned = {"metadata": {"annotations": {SIGNATURE: None}}}
    await machine.kube.patch(PODS, "p", unsigned, namespace="default")
    await machine.kube.patch(GPU_NODES, "n1", {"status": {"assignmentKeys": []}}, subresource="status")
    kube.full = True
    async with machine.agent():
        assert await told_keys(machine)


async def test_a_key_that_counts_and_that_no_server_has_published_for_a_minute_is_known_as_such(tmp_path: Path) -> None:
    """The ConfigMap was deleted while no server ran, and another server made a new one."""
    kube, former, clock = MemoryKube(), key_id(SERVER.public), Clock()
    keys = keys_at(tmp_path / "key", kube, clock)
    keys.open(())
    await kube.apply(CONFIG_MAPS, config_map(SERVER), manager="one")
    await keys.refresh()
    await kube.delete(CONFIG_MAPS, KEYS, namespace=NAMESPACE)
    await keys.refresh()
    assert keys.unpublished == frozenset(), "nobody says that it is not published"
    await kube.apply(CONFIG_MAPS, config_map(STRANGER), manager="two")
    await keys.refresh()
    assert (keys.unpublished, keys.revoked(former)) == (frozenset(), False), "who knows it may publish it still"
    clock.now_s += 61
    assert keys.unpublished == {former}
    await kube.apply(CONFIG_MAPS, config_map(SERVER), manager="one")
    await keys.refresh()
    assert keys.unpublished == frozenset()
    await kube.patch(CONFIG_MAPS, KEYS, {"data": {former: None}}, namespace=NAMESPACE)
    await keys.refresh()
    assert (keys.unpublished, keys.revoked(former)) == (frozenset(), True)


async def test_what_lost_keys_signed_counts_for_every_server_once_the_agent_has_signed_it(machine: Machine) -> None:
    """Somebody deletes ConfigMap and Secret while no server runs; one that starts publishes a key of its own."""
    machine.times = AgentTimes(clock_s=lambda: 1000 * time.monotonic())
    await machine.label(gpushare="true")
    async with machine.agent():
        await machine.kubelet.until_allocatable(NEED, 80)
        for name, units in (("started", 4), ("waits", 5)):
            await machine.pod(name, {NEED: units}, (amount(0, memory_mib=1024 * units, container="c"),))
        await machine.start("started", NEED, 4)
        await machine.kube.delete(CONFIG_MAPS, KEYS, namespace=NAMESPACE)
        await machine.kube.apply(CONFIG_MAPS, config_map(STRANGER), manager="two")
        own = public_keys(await told_keys(machine))
        known = Keys(public={**public(STRANGER), **own}, verify=verify)
        await machine.until_object(PODS, "started", lambda pod: is_signed(pod, known))
        waits = await machine.kube.get(PODS, "waits", "default") or {}
        assert is_signed(waits, keys_of(SERVER)), "what no container was started with stays as it is"
