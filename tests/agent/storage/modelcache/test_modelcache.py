"""A node's model cache with a kubelet in this process: models are fetched, mounted, held, replaced and removed."""

import asyncio
import base64
import contextlib
import errno
import hashlib
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from builders.nodepods import ListedPods
from conformance.kubesuite import definition
from harness.peernodes import PeerNode, peer_tls
from harness.serving import running
from tessera.agent.pods.podsview import PodsView
from tessera.agent.storage.modelcache import ModelDisk, ModelKeeper, ModelSources, Places
from tessera.agent.storage.modelcache.peers import PeerService, PeerSettings
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.reading import TransferLimits
from tessera.agent.storage.models.staging import SyncOptions
from tessera.agent.storage.models.sync import sync
from tessera.api.tessera.v1alpha1.modelcaches import API_VERSION, node_spec, node_status, read_node_models
from tessera.certificates import asking_context_of
from tessera.clients.disks import HostErofsMounts, MemoryErofsMounts
from tessera.clients.kube import (
    CUSTOM_RESOURCE_DEFINITIONS,
    NODE_MODELS,
    NODES,
    PODS,
    SECRETS,
    Forbidden,
    Kind,
    MemoryKube,
    Object,
    Selection,
    follow,
)
from tessera.clients.kubelet import Container, DeviceCheckpoint, MemoryKubelet, PodResources
from tessera.clients.store import MemoryStore, ObjectStore, Refused, Temporary
from tessera.clients.store.peers import ChunkAbsent, PeerConnections
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.core.deviceplugin.offers.modeloffers import CLIENTS
from tessera.core.storage.models.cacheplan import ModelOnDisk
from tessera.core.storage.models.nodemodels import DesiredModel, NodeModels, ObservedModel
from tessera.core.storage.models.peers.owners import PeerPatience, content_key
from tessera.core.storage.models.retention import RevisionOnDisk
from tessera.core.storage.models.revisions import StoredObject
from tessera.errors import Conflict, InvalidInput, Unavailable
from tessera.log import logger
from tessera.measures import Measures

pytestmark = pytest.mark.anyio

NEWER: tuple[dict[str, Any], ...] = ({"pack": "Zstd"}, {}, {})
"""What a newer controller writes of models beside what this version knows."""

LLAMA = "models.tessera.dev/llama"
MIB = 2**20
PATIENCE_S = 120.0
"""A sync waits until its disk has all that was written to it, by others too, which takes long on a busy machine."""


class Node:
    """A node whose model cache runs inside `running`; sources are folders below `bucket`."""

    def __init__(self, kubelet: MemoryKubelet, root: Path) -> None:
        self.kube = MemoryKube()
        self.measures = Measures()
        self.kubelet = kubelet
        self.bucket = root / "bucket"
        self.folder = root / "disk" / "models"
        self.folder.parent.mkdir()
        (self.folder.parent / "not-empty").touch()
        self.now_s = 1000.0
        self.record = PodResources(kubelet.pod_resources)

    async def _list(self) -> Any:
        return await self.kube.list(PODS)

    @asynccontextmanager
    async def running(
        self,
        disk: ModelDisk | None = None,
        sources: ModelSources | None = None,
        limits: TransferLimits = TransferLimits(),  # noqa: B008 - it is immutable
    ) -> AsyncIterator[None]:
        disk = disk or ModelDisk(self.folder, most_percent=99)
        keeper = ModelKeeper(
            "n1",
            self.kube,
            Places(disk, sources or ModelSources((self.bucket,)), self.kubelet.plugins, limits),
            interval_s=0.05,
            now_s=lambda: self.now_s,
        )
        view = PodsView(ListedPods(tuple, self._list), DeviceCheckpoint(self.kubelet.plugins), self.record)
        async with running(keeper.run(view, self.measures)):
            yield

    def put(self, name: str, **files: bytes) -> str:
        """Make what a source has; return its address."""
        folder = self.bucket / name
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        for file, content in files.items():
            (folder / file).write_bytes(content)
        return f"file://{folder}"

    async def tell(self, *desired: DesiredModel) -> None:
        body = {"apiVersion": API_VERSION, "kind": "NodeModels", "metadata": {"name": "n1"}}
        spec = {**body, "spec": node_spec(desired)}
        await self.kube.apply(NODE_MODELS, spec, manager="tessera-controller", force=True)

    async def tell_of_another_version(self, model: DesiredModel, *others: DesiredModel) -> None:
        """Desire models, the first with a value that this version does not know."""
        models = [{**each, **more} for each, more in zip(node_spec((model, *others))["models"], NEWER, strict=False)]
        body = {"apiVersion": API_VERSION, "kind": "NodeModels", "metadata": {"name": "n1"}, "spec": {"models": models}}
        await self.kube.apply(NODE_MODELS, body, manager="tessera-controller", force=True)

    async def reports(self, ready: Callable[[NodeModels], bool]) -> NodeModels:
        """Return what the agent reports when it is as desired."""
        return read_node_models(await self.writes(lambda each: ready(read_node_models(each))))

    async def writes(self, ready: Callable[[Object], bool]) -> Object:
        """Return the same as the object of the API."""
        last = None
        try:
            async with asyncio.timeout(PATIENCE_S):
                async for change in follow(self.kube, NODE_MODELS, Selection(), on_error=lambda _: None):
                    if change.object is not None and change.object.get("status"):
                        last = change.object
                        if ready(last):
                            return last
        except TimeoutError:
            raise AssertionError(last) from None
        raise AssertionError

    async def model(self, ready: Callable[[ObservedModel], bool], name: str = "llama") -> ObservedModel:
        """Return what it reports of one model."""
        found = await self.reports(lambda node: any(each.name == name and ready(each) for each in node.observed))
        return next(each for each in found.observed if each.name == name)

    async def passes(self, count: int) -> None:
        """Return after so many passes of the agent."""
        for _ in range(count):
            last = self.measures._turned_s["models"]
            async with asyncio.timeout(PATIENCE_S):
                while self.measures._turned_s["models"] == last:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

    async def start(self, pod: str, resource: str = LLAMA, revision: str = "") -> ContainerResponse:
        """Let a pod start, once the kubelet has the devices of a revision; return what its container gets."""
        await self.kubelet.until_allocatable(resource, CLIENTS, begin=revision[:48])
        made = await self.kube.create(PODS, {"metadata": {"name": pod, "namespace": "x"}})
        container = Container(name="main", limits=((resource, 1),))
        await self.kubelet.admit("x", pod, container, uid=made["metadata"]["uid"])
        return await self.kubelet.create("x", pod, "main")

    async def end(self, pod: str) -> None:
        await self.kube.delete(PODS, pod, namespace="x", grace_s=0)
        self.kubelet.remove("x", pod)


@pytest.fixture
async def node(socket_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr("tessera.core.deviceplugin.offers.listing.STAYS_S", 0.1)
    async with MemoryKubelet(socket_folder) as kubelet:
        one = Node(kubelet, tmp_path)
        await one.kube.create(NODES, {"metadata": {"name": "n1", "uid": "uid-1"}})
        yield one


def desired(source: str, name: str = "llama", **more: Any) -> DesiredModel:
    return DesiredModel(name=name, source=source, **more)


def has(revision: str = "") -> Callable[[ObservedModel], bool]:
    return lambda found: found.state == "Ready" and bool(found.revision) and revision in ("", found.revision)


async def until_gone(path: Path) -> None:
    """Return when a path is no more, of which nothing tells."""
    async with asyncio.timeout(PATIENCE_S):
        while path.exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.02)


def mounted(response: ContainerResponse) -> bytes:
    """Return what a container reads of file `a`."""
    return Path(response.mounts[0].host_path, "a").read_bytes()


async def test_a_model_is_fetched_and_a_pod_gets_it_read_only_by_its_revision(node: Node) -> None:
    await node.tell(desired(node.put("llama", config=b"{}", weights=b"w" * 100)))
    async with node.running():
        found = await node.model(has())
        assert (found.files, found.bytes, found.checked_s, found.reason) == (2, 102, 1000.0, "")
        response = await node.start("p")
        (mount,) = response.mounts
        path = node.folder / "llama" / "versions" / found.revision
        assert (mount.host_path, mount.container_path, mount.read_only) == (str(path), "/models/llama", True)
        assert dict(response.env) == {"TESSERA_MODEL_LLAMA_PATH": "/models/llama"}
        assert (path / "weights").read_bytes() == b"w" * 100
        assert (await node.model(lambda each: each.containers == 1)).revision == found.revision
        text = node.measures.render().decode()
        assert {'tessera_node_models{state="Ready"} 1', "tessera_node_models_bytes 102"} <= {*text.splitlines()}
        loops = {f'loop="{each}"' for each in ("models", "model-plugins", "watch-nodemodels")}
        async with asyncio.timeout(PATIENCE_S):  # a loop has an age after its first turn, of which nothing tells
            while not all(each in node.measures.render().decode() for each in loops):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_a_node_whose_desired_models_are_unknown_removes_nothing(node: Node) -> None:
    await node.tell(desired(node.put("llama", a=b"1")))
    async with node.running():
        await node.model(has())
    await node.kube.delete(NODE_MODELS, "n1")
    async with node.running():
        await node.reports(lambda found: found.desired is None)
        assert (node.folder / "llama").is_dir()
        await node.tell()
        await until_gone(node.folder / "llama")


async def test_pods_keep_their_revision_and_new_ones_get_the_new(node: Node) -> None:
    source = node.put("llama", a=b"1")
    await node.tell(desired(source, interval_s=60, keep=1))
    async with node.running():
        first = (await node.model(has())).revision
        old = await node.start("old")
        node.put("llama", a=b"22")
        node.now_s += 61
        second = (await node.model(lambda each: has()(each) and each.revision != first)).revision
        new = await node.start("new", revision=second)
        assert mounted(old) == b"1"
        assert mounted(new) == b"22"
        assert await node.kubelet.create("x", "old", "main") == old
    async with node.running():  # an agent that starts anew holds the same
        await node.model(lambda each: each.containers == 2)
        assert mounted(old) == b"1"
        await node.end("old")
        await until_gone(Path(old.mounts[0].host_path))
        assert ModelFolder(node.folder / "llama").current() == second
        assert mounted(new) == b"22"
    assert not node.kubelet.panics


async def test_a_rollback_takes_what_is_on_the_disk(node: Node) -> None:
    source = node.put("llama", a=b"1")
    await node.tell(desired(source))
    async with node.running():
        first = (await node.model(has())).revision
        node.put("llama", a=b"2")
        await node.tell(desired(source, interval_s=1))
        node.now_s += 2
        second = (await node.model(lambda each: has()(each) and each.revision != first)).revision
        (node.bucket / "llama" / "a").unlink()
        await node.tell(desired(source, revision=first))
        assert (await node.model(has(first))).reason == ""
        response = await node.start("p", revision=first)
        assert response.mounts[0].host_path.endswith(first)
        await node.tell(desired(source, revision="f" * 64))
        found = await node.model(lambda each: each.state == "Failed")
        assert (found.revision, second != first) == ("", True)
        node.put("llama", a=b"3")
        node.now_s += 1000
        found = await node.model(lambda each: "spec.revision is ffffffffffff" in each.reason)
        assert found.revision == ""


async def test_a_model_that_the_disk_damages_is_found_withdrawn_and_mended(node: Node) -> None:
    week_s = 7 * 24 * 3600
    source = node.put("llama", a=b"right", b=b"right, too")
    await node.tell(desired(source, verify_interval_s=week_s))
    async with node.running():
        found = await node.model(has())
        assert abs(found.verified_s - time.time()) < 60
        assert found.unverified_bytes == found.bytes == len(b"right" + b"right, too")
        path = node.folder / "llama" / "versions" / found.revision / "a"
        path.write_bytes(b"wrong")
        (node.bucket / "llama").rename(node.bucket / "away")  # the source does not answer
        node.now_s = found.verified_s + week_s + 300  # it may have been compared once more meanwhile
        damaged = await node.model(lambda each: each.state == "Failed")
        assert (damaged.revision, "there is no such folder" in damaged.reason) == ("", True)
        assert ModelFolder(node.folder / "llama").records.verification(found.revision).damaged == ("a",)
        (node.bucket / "away").rename(node.bucket / "llama")
        node.now_s += 1000
        mended = await node.model(has(found.revision))
        assert (path.read_bytes(), mended.reason) == (b"right", "")
        assert mended.verified_s >= found.verified_s


async def test_a_device_that_was_chosen_just_before_its_revision_was_found_damaged_is_refused(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tessera.core.deviceplugin.offers.listing.STAYS_S", 60.0)
    await node.tell(desired(node.put("llama", a=b"right"), verify_interval_s=100))
    async with node.running():
        found = await node.model(has())
        await node.start("before")
        (node.folder / "llama" / "versions" / found.revision / "a").write_bytes(b"wrong")
        (node.bucket / "llama").rename(node.bucket / "away")  # it is not mended
        node.now_s = found.verified_s + 300  # it may have been compared once more meanwhile
        await node.model(lambda each: not each.revision)
        chosen = f"{found.revision[:48]}-{CLIENTS - 1}"
        with pytest.raises(Conflict, match=r"1 file differs from what was fetched \(a\): recreate the pod"):
            await node.kubelet.allocate("x", "late", Container(name="main", limits=((LLAMA, 1),)), (chosen,))
        assert mounted(await node.kubelet.create("x", "before", "main")) == b"wrong", "a running pod keeps its mount"
    assert not node.kubelet.panics


async def test_a_revision_is_used_when_a_pod_gets_it_and_while_it_has_it_not_when_its_source_is_checked(
    node: Node,
) -> None:
    await node.tell(desired(node.put("llama", a=b"1"), interval_s=60))
    folder = ModelFolder(node.folder / "llama")

    async def until_used() -> None:
        async with asyncio.timeout(PATIENCE_S):  # nothing tells of it
            while folder.revisions()[0].last_used_s <= 1000:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async with node.running():
        revision = (await node.model(has())).revision
        manifest = node.folder / "llama" / ".tessera" / "manifests" / f"{revision}.json"
        os.utime(manifest, (1000, 1000))
        node.now_s += 61
        await node.model(lambda each: each.checked_s == node.now_s)
        assert folder.revisions()[0].last_used_s == 1000
        await node.start("p")
        await until_used()
        os.utime(manifest, (1000, 1000))
        await until_used()


async def test_where_checksums_are_required_new_pods_get_nothing_that_none_verified(node: Node) -> None:
    source = node.put("llama", a=b"1")  # of folders there are no checksums
    await node.tell(desired(source))
    async with node.running():
        first = (await node.model(has())).revision
        for revision in ("", first):
            await node.tell(desired(source, verification="Required", revision=revision))
            refused = await node.model(lambda each: each.state == "Failed")
            assert (refused.revision, refused.bytes) == ("", 0)
            assert "object 'a': the source gives no checksum that verifies it" in refused.reason
            await node.kubelet.until_allocatable(LLAMA, 0)
            await node.tell(desired(source))
            assert (await node.model(has(first))).reason == ""


async def test_a_revision_that_cannot_be_compared_stops_no_other(node: Node) -> None:
    await node.tell(
        desired(node.put("first", a=b"1"), "first", verify_interval_s=100),
        desired(node.put("second", a=b"2"), "second", verify_interval_s=100),
    )
    async with node.running():
        first, second = [(await node.model(has(), name)) for name in ("first", "second")]
        manifest = node.folder / "first" / ".tessera" / "manifests" / f"{first.revision}.json"
        manifest.write_bytes(b"broken")
        other = node.folder / "second" / "current" / "a"
        other.write_bytes(b"3")
        node.now_s = second.verified_s + 300
        async with asyncio.timeout(PATIENCE_S):  # it is mended, of which nothing tells
            while other.read_bytes() != b"2":  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_current_is_never_a_revision_that_is_not_the_named_one(node: Node) -> None:
    source = node.put("llama", a=b"1")
    other = node.put("other", a=b"1")
    await node.tell(desired(source), desired(other, "other", revision="f" * 64))
    read = set[str]()

    async def reader() -> None:
        link = node.folder / "llama" / "current"
        while True:
            if link.is_symlink():
                read.add(link.readlink().name)
            await asyncio.sleep(0.002)

    async with node.running(), running(reader()):
        first = (await node.model(has())).revision
        await node.model(lambda each: "spec.revision is ffffffffffff" in each.reason, "other")
        node.put("llama", a=b"2")
        await node.tell(desired(source, revision="f" * 64), desired(other, "other", revision="f" * 64))
        await node.model(lambda each: "spec.revision is ffffffffffff" in each.reason)
        node.now_s += 1000
        await node.model(lambda each: each.failures == 2)
        assert (read, (node.folder / "llama" / "current").readlink().name) == ({first}, first)
        assert not (node.folder / "other" / "current").is_symlink()
        # Once it is the desired one, it is there without another fetch.
        await node.tell(desired(source))
        await node.model(lambda each: has()(each) and each.revision != first)


async def test_a_model_that_is_no_longer_desired_stays_while_pods_have_it(node: Node) -> None:
    await node.tell(desired(node.put("llama", a=b"1")))
    async with node.running():
        await node.model(has())
        response = await node.start("p")
        await node.tell()
        await node.kubelet.until_allocatable(LLAMA, 0)
        await node.reports(lambda found: not found.observed)
        await node.writes(lambda each: each["status"].get("removing") == ["llama"])
        assert mounted(response) == b"1"
        await node.end("p")
        await until_gone(node.folder / "llama")
        await node.writes(lambda each: "removing" not in each["status"])


REFUSED = {
    "a folder of the node": ("file:///etc", "models do not come from this folder of the node"),
    "one by way of an allowed folder": ("file://{bucket}/../etc", "models do not come from this folder of the node"),
    "another scheme": ("ftp://h/x", "scheme 'ftp'"),
    "nothing there": ("file://{bucket}/none", "there is no such folder"),
    "an empty folder": ("file://{bucket}/empty", "no objects"),
    "a link to elsewhere": ("file://{bucket}/link", "a link that leads out of"),
    "a file that is a link": ("file://{bucket}/file", "a link that leads out of"),
    "a pipe": ("file://{bucket}/pipe", "is a pipe, not a regular file: move it out"),
    "a name that leads out": ("file://{bucket}/odd", "control character"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_cannot_be_fetched_reports_why(node: Node, case: str) -> None:
    source, want = REFUSED[case]
    for name in ("empty", "file", "pipe", "odd", "etc"):
        (node.bucket / name).mkdir(parents=True)
    (node.bucket / "link").symlink_to("/etc")
    (node.bucket / "file" / "token").symlink_to("/etc/hostname")
    (node.bucket / "odd" / "a\nb").touch()
    os.mkfifo(node.bucket / "pipe" / "a")
    await node.tell(desired(source.format(bucket=node.bucket)))
    async with node.running():
        found = await node.model(lambda each: each.state == "Failed")
    assert want in found.reason
    assert (found.revision, found.failed_s) == ("", 1000.0)
    assert not list(node.folder.glob("*/versions/*"))


async def test_a_folder_of_somebody_else_is_left_alone(node: Node) -> None:
    (node.folder / "llama").mkdir(parents=True)
    (node.folder / "llama" / "mine").touch()
    await node.tell(desired(node.put("llama", a=b"1")))
    async with node.running():
        found = await node.model(lambda each: each.state == "Failed")
        assert "the agent did not make this folder" in found.reason
        await node.tell()
        await node.reports(lambda found: not found.observed)
        assert (node.folder / "llama" / "mine").exists()


async def test_a_folder_that_could_not_be_marked_is_fetched_to_later(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No inode is left for the mark, for a moment."""
    await node.tell(desired(node.put("llama", a=b"1")))
    touch = Path.touch

    def full(path: Path, *args: Any, **more: Any) -> None:
        if path.name == "kept-by-agent":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        touch(path, *args, **more)

    async with node.running():
        with monkeypatch.context() as patch:
            patch.setattr(Path, "touch", full)
            found = await node.model(lambda each: each.state == "Failed")
        assert "No space left" in found.reason
        assert list(node.folder.iterdir()) == []
        node.now_s += 1000
        await node.model(has())


@pytest.mark.parametrize(("inside", "is_ours"), [((".tessera/",), True), ((".tessera/x",), False), (("x",), False)])
def test_a_folder_whose_claim_was_interrupted_is_claimed(
    tmp_path: Path, inside: tuple[str, ...], is_ours: bool
) -> None:
    (tmp_path / "file").touch()
    top = tmp_path / "models/llama"
    for each in inside:
        (top / each).parent.mkdir(parents=True, exist_ok=True)
        (top / each).mkdir(exist_ok=True)
    disk = ModelDisk(tmp_path / "models")
    if is_ours:
        disk.claim("llama")
        assert disk.observe() == ({"llama": ModelOnDisk("", ())}, {}, {}, set())
    else:
        with pytest.raises(InvalidInput, match="did not make this folder"):
            disk.claim("llama")


async def test_a_value_of_another_version_affects_its_model_alone(node: Node) -> None:
    new, other = desired(node.put("new", a=b"1"), "new"), desired(node.put("other", a=b"2"), "other", interval_s=60)
    await node.tell(new, other)
    async with node.running():
        first = (await node.model(has(), "new")).revision
        second = (await node.model(has(), "other")).revision
        pod = await node.start("pod", "models.tessera.dev/new")
        await node.tell_of_another_version(new, other)
        node.put("other", a=b"22")
        node.now_s += 61
        await node.model(lambda each: has()(each) and each.revision != second, "other")
        failed = await node.model(lambda each: each.state == "Failed", "new")
        assert re.match("model new: pack: 'Zstd' .*: upgrade Tessera on this node", failed.reason)
        assert failed.revision == first, "it is followed as before"
    async with node.running():
        failed = await node.model(lambda each: each.state == "Failed" and not each.revision, "new")
        assert (failed.containers, "Zstd" in failed.reason, failed.identity) == (1, True, new.identity)
    await node.end("pod")
    async with node.running():
        await node.model(lambda each: each.containers == 0, "new")
        await node.tell_of_another_version(new, desired(node.put("third", a=b"3"), "third"))
        await node.model(has(), "third")
        await until_gone(node.folder / "other")
        await node.passes(2)
        assert mounted(pod) == b"1", "what it has stays"
        assert "removing" not in (await node.writes(bool))["status"]
        node.put("new", a=b"not the one that was fetched once")
        await node.tell(new)
        assert (await node.model(has(), "new")).revision == first


@pytest.mark.parametrize("is_evicted", [True, False])
def test_a_manifest_that_cannot_be_read_is_a_revision_s_only_while_that_has_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_evicted: bool
) -> None:
    (tmp_path / "file").touch()
    disk, store = ModelDisk(tmp_path / "models", most_percent=100), MemoryStore({"a": b"1"})
    folder = disk.claim("llama")
    revisions = [sync(store, folder, SyncOptions()).revision]
    store.contents["a"] = b"22"
    revisions.append(sync(store, folder, SyncOptions()).revision)
    disk.pin("llama", [revisions[0]])
    fail_at(f"manifests/{revisions[0]}.json", errno.EBADMSG, monkeypatch)
    if is_evicted:
        folder.evict(revisions[0])
    found, errors, *_ = disk.observe()
    assert (found["llama"].revisions, errors) == ((revisions[1],), {})
    assert [*found["llama"].unreadable] == ([] if is_evicted else [revisions[0]])
    assert folder.records.is_pinned(revisions[0]) is not is_evicted


DISKS: dict[str, tuple[Callable[[Path], None], str]] = {
    "none": (lambda disk: disk.rmdir(), "there is no"),
    "one that is not mounted": (lambda _: None, "nothing is mounted there"),
    "a link": (lambda disk: (disk / "models").symlink_to("/"), "is a symbolic link"),
}


@pytest.mark.parametrize("case", DISKS)
async def test_without_a_disk_it_reports_what_to_do(node: Node, case: str) -> None:
    prepare, want = DISKS[case]
    disk = node.folder.parent
    (disk / "not-empty").unlink()
    prepare(disk)
    await node.tell(desired(node.put("llama", a=b"1")))
    async with node.running():
        found = await node.reports(lambda found: bool(found.reason))
    assert want in found.reason
    assert "models" not in {each.name for each in disk.parent.glob("disk/*") if not each.is_symlink()}


async def test_credentials_are_those_of_the_secret_that_is_named(node: Node) -> None:
    await node.tell(desired("s3://models/llama", endpoint="http://127.0.0.1:9", secret="bucket"))
    async with node.running():
        found = await node.model(lambda each: each.state == "Failed")
        assert "Secret tessera-system/bucket: there is no Secret" in found.reason
        secret = {"metadata": {"name": "bucket", "namespace": "tessera-system"}, "data": {"password": "cA=="}}
        await node.kube.create(SECRETS, secret)
        node.now_s += 1000
        found = await node.model(lambda each: "none of the keys" in each.reason)
        assert found.failures == 2


@pytest.mark.parametrize(
    ("error", "want"),
    [
        (
            Forbidden("Secret x", found="no right to get it", hint="grant it"),
            "name it in the chart's value agent.modelS",
        ),
        (Unavailable("Secret x", found="no answer in 10 s", hint="try again"), "no answer in 10 s: try again"),
    ],
    ids=["forbidden", "no answer"],
)
async def test_a_secret_that_cannot_be_read_is_said_to_lack_a_right_where_it_does(
    node: Node, monkeypatch: pytest.MonkeyPatch, error: Unavailable, want: str
) -> None:
    get = node.kube.get

    async def failing(kind: Kind, name: str, namespace: str = "") -> Object | None:
        if kind == SECRETS:
            raise error
        return await get(kind, name, namespace)

    monkeypatch.setattr(node.kube, "get", failing)
    await node.tell(desired("s3://models/llama", secret="bucket"))
    async with node.running():
        found = await node.model(lambda each: each.state == "Failed")
    assert want in found.reason
    assert ("modelSecrets" in found.reason) is isinstance(error, Forbidden)


async def test_a_fetch_keeps_the_bandwidth_limit_of_the_node(node: Node) -> None:
    await node.tell(desired(node.put("llama", a=os.urandom(MIB))))
    begun = time.monotonic()
    async with node.running(limits=TransferLimits(bytes_per_second=MIB)):
        await node.model(has())
    assert time.monotonic() - begun > 0.7  # a quarter of a second's bytes may come ahead


async def test_a_fetch_is_interrupted_by_a_model_that_pods_wait_for_and_continues_after_it(node: Node) -> None:
    slow = node.put("slow", **{f"{number}": os.urandom(MIB // 4) for number in range(10)})
    quick = node.put("quick", a=b"1")
    await node.tell(desired(slow, "slow"))
    async with node.running(limits=TransferLimits(bytes_per_second=MIB)):
        await node.model(lambda each: each.state == "Fetching", "slow")
        await node.tell(desired(quick, "quick", has_pending_pods=True), desired(slow, "slow"))
        found = await node.reports(lambda each: any(has()(one) for one in each.observed))
        assert {each.name: each.state for each in found.observed if has()(each)} == {"quick": "Ready"}
        report = await node.model(has(), "slow")
        assert (report.failures, report.reason) == (0, "")


def test_below_the_mount_point_of_a_disk_that_was_unmounted_no_model_is_made(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    with pytest.raises(Unavailable, match=r"is empty and nothing is mounted there: run `tessera disks apply`"):
        ModelDisk(tmp_path / "disk" / "models").claim("llama")
    assert list((tmp_path / "disk").iterdir()) == []


class SmallFolder(ModelFolder):
    """On a disk of 9 MiB for all models, as they are counted on it."""

    def free_bytes(self) -> int:
        files = {}
        for folder, _, names in os.walk(self.top.parent):  # what goes meanwhile is left out
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    found = Path(folder, name).lstat()
                    files[found.st_ino] = found.st_blocks * 512
        return max(0, 9 * MIB - sum(files.values()))


class SmallDisk(ModelDisk):
    reserve_bytes = 0

    def free_bytes(self) -> int:
        return self.model("any").free_bytes()

    def model(self, name: str) -> ModelFolder:
        return SmallFolder(self.folder / name)


async def test_a_full_disk_serves_the_higher_priority_and_reports_what_has_no_room(node: Node) -> None:
    small = node.put("small", a=os.urandom(6 * MIB))
    large = node.put("large", a=os.urandom(8 * MIB))
    await node.tell(desired(small, "small"))
    async with node.running(SmallDisk(node.folder)):
        await node.model(has(), "small")
        # 1. Of equal priority: it has to wait.
        await node.tell(desired(large, "large"), desired(small, "small"))
        found = await node.model(lambda each: each.state == "Failed", "large")
        assert " MiB: use a larger disk" in found.reason
        # 2. Of higher priority, while a pod has the other: the same.
        await node.start("p", "models.tessera.dev/small")
        await node.model(lambda each: each.containers == 1, "small")
        await node.tell(desired(large, "large", priority=1), desired(small, "small"))
        node.now_s += 1000
        await node.model(lambda each: each.state == "Failed" and each.failures == 2, "large")
        # 3. When it has ended, the other one goes.
        await node.end("p")
        await node.model(lambda each: not each.containers, "small")
        node.now_s += 1000
        await node.model(has(), "large")
        found = await node.model(lambda each: each.state == "Failed", "small")
        assert (found.revision, "the disk for models lacks" in found.reason) == ("", True)
        await node.kubelet.until_allocatable("models.tessera.dev/small", 0)
    assert not node.kubelet.panics


async def test_a_disk_that_is_full_of_revisions_with_the_same_weights_has_room_for_a_higher_priority(
    node: Node,
) -> None:
    small = node.put("small", weights=os.urandom(6 * MIB), config=b"1")
    large = node.put("large", a=os.urandom(8 * MIB))
    await node.tell(desired(small, "small", interval_s=60))
    async with node.running(SmallDisk(node.folder)):
        first = (await node.model(has(), "small")).revision
        (node.bucket / "small" / "config").write_bytes(b"22")
        node.now_s += 61
        await node.model(lambda each: has()(each) and each.revision != first, "small")
        versions = node.folder / "small" / "versions"
        assert {path.stat().st_nlink for path in versions.glob("*/weights")} == {2}
        await until_gone(node.folder / "small" / ".tessera" / "pins" / first)
        await node.tell(desired(large, "large", priority=1), desired(small, "small"))
        await node.model(has(), "large")
        assert not list(versions.iterdir())


class HalfStore(MemoryStore):
    """A store with an object that does not come."""

    def __init__(self, problem: Exception) -> None:
        super().__init__({"early": os.urandom(6 * MIB), "late": b"1"})
        self.problem = problem
        self.go = threading.Event()

    def read(self, stored: StoredObject, start: int, stop: int) -> Any:
        if stored.path == "late":
            self.go.wait(PATIENCE_S)
            raise self.problem
        return super().read(stored, start, stop)


@pytest.mark.parametrize("problem", [Temporary("no data for 10 s"), Refused("status 403")], ids=["silent", "refuses"])
async def test_what_is_not_fetched_completely_makes_room_for_a_model_of_higher_priority(
    node: Node, problem: Exception
) -> None:
    half, whole = HalfStore(problem), MemoryStore({"a": os.urandom(8 * MIB)})

    class Sources(ModelSources, frozen=True):
        def open(self, model: DesiredModel, credentials: Mapping[str, str]) -> ObjectStore:  # noqa: ARG002
            return half if model.name == "low" else whole

    low, high = desired("memory://low", "low"), desired("memory://high", "high", priority=1)
    disk = SmallDisk(node.folder)
    await node.tell(low)
    async with node.running(disk, Sources()):
        async with asyncio.timeout(PATIENCE_S):
            while disk.staged_bytes("low") < 6 * MIB:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        half.go.set()
        if isinstance(problem, Refused):
            await node.model(lambda each: each.state == "Failed", "low")
        await node.tell(high, low)
        report = await node.model(lambda each: has()(each) or each.state == "Failed", "high")
        assert (report.reason, report.failures, disk.staged_bytes("low")) == ("", 0, 0)
        node.now_s += 1000
        report = await node.model(lambda each: each.state == "Failed" and "lacks" in each.reason, "low")


async def test_staged_files_that_another_process_works_on_are_named_and_make_room_later(node: Node) -> None:
    half, whole = HalfStore(Refused("status 403")), MemoryStore({"a": os.urandom(8 * MIB)})

    class Sources(ModelSources, frozen=True):
        def open(self, model: DesiredModel, credentials: Mapping[str, str]) -> ObjectStore:  # noqa: ARG002
            return half if model.name == "low" else whole

    low, high = desired("memory://low", "low"), desired("memory://high", "high", priority=1)
    disk = SmallDisk(node.folder)
    await node.tell(low)
    async with node.running(disk, Sources()):
        async with asyncio.timeout(PATIENCE_S):
            while disk.staged_bytes("low") < 6 * MIB:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        half.go.set()
        await node.model(lambda each: each.state == "Failed", "low")
        with disk.model("low").locked():
            await node.tell(high, low)
            report = await node.model(lambda each: has()(each) or each.state == "Failed", "high")
            assert report.reason == "model low: another process works in its folder: retrying"
            assert disk.staged_bytes("low") >= 6 * MIB
        node.now_s += 1000
        await node.model(has(), "high")
        assert disk.staged_bytes("low") == 0


class Locked(MemoryStore):
    """A store that lists its object, and sends it to those with the right key."""

    def __init__(self, key: str) -> None:
        super().__init__({"a": os.urandom(8 * MIB)})
        self.key = key

    def read(self, stored: StoredObject, start: int, stop: int) -> Any:
        if self.key != "right":
            raise Refused("status 403")
        return super().read(stored, start, stop)


def failed_more_often(failures: int) -> Callable[[ObservedModel], bool]:
    return lambda each: each.failures > failures


async def test_room_that_was_made_in_vain_is_made_again_as_soon_as_the_secret_is_corrected(node: Node) -> None:
    low_store, opened = MemoryStore({"a": os.urandom(6 * MIB)}), Counter[str]()

    class Sources(ModelSources, frozen=True):
        def open(self, model: DesiredModel, credentials: Mapping[str, str]) -> ObjectStore:
            opened[model.name] += 1
            return low_store if model.name == "low" else Locked(credentials["AWS_ACCESS_KEY_ID"])

    async def put_secret(key: str) -> None:
        data = {"AWS_ACCESS_KEY_ID": base64.b64encode(key.encode()).decode()}
        await node.kube.create(SECRETS, {"metadata": {"name": "s", "namespace": "tessera-system"}, "data": data})

    low, high = desired("memory://low", "low"), desired("memory://high", "high", priority=1, secret="s")
    await put_secret("wrong")
    await node.tell(low)
    async with node.running(SmallDisk(node.folder), Sources()):
        await node.model(has(), "low")
        await node.tell(high, low)
        await node.model(lambda each: "status 403" in each.reason, "high")
        await node.model(has(), "low")
        node.now_s += 1000
        paused = await node.model(lambda each: "its last fetch got no further" in each.reason, "high")
        # It is written anew with the same credentials, and others beside them: the pause goes on.
        for number in range(2):
            note = {"metadata": {"annotations": {"seen": f"{number}"}}, "data": {"other": "eA=="}}
            await node.kube.patch(SECRETS, "s", note, namespace="tessera-system")
            before = Counter(opened)
            tried = asyncio.ensure_future(node.model(failed_more_often(paused.failures), "high"))
            while not tried.done():
                node.now_s += 20
                await asyncio.sleep(0.05)
            paused = await tried
            await node.model(has(), "low")
            assert opened["low"] == before["low"], "it was evicted, and fetched again"
        await node.kube.delete(SECRETS, "s", namespace="tessera-system")
        await put_secret("right")
        fetched = asyncio.ensure_future(node.model(has(), "high"))
        while not fetched.done():
            node.now_s = min(node.now_s + 20, 4500)  # the pause lasts until 4,600
            await asyncio.sleep(0.05)
        await fetched
    assert re.search(
        r"other models stay until 1970-01-01T01:1\d:\d\dZ, or until its Secret or source changes", paused.reason
    )


class WatchedDisk(SmallDisk):
    """A small disk that says when a plan looks at a model to make room."""

    looked_at: Callable[[], object] | None = None

    def revisions(self, name: str) -> tuple[RevisionOnDisk, ...]:
        if self.looked_at is not None and name == "small":
            self.looked_at()
        return super().revisions(name)


async def test_a_pod_that_gets_what_was_chosen_to_make_room_stops_no_model_for_ever(node: Node) -> None:
    small, large = node.put("small", a=os.urandom(6 * MIB)), node.put("large", a=os.urandom(8 * MIB))
    loop, disk = asyncio.get_running_loop(), WatchedDisk(node.folder)

    def start() -> None:
        disk.looked_at = None
        asyncio.run_coroutine_threadsafe(node.start("p", "models.tessera.dev/small"), loop).result(PATIENCE_S)

    await node.tell(desired(small, "small"))
    async with node.running(disk):
        await node.model(has(), "small")
        disk.looked_at = start
        await node.tell(desired(large, "large", priority=1), desired(small, "small"))
        found = await node.model(lambda each: each.state == "Failed", "large")
        assert " MiB: use a larger disk" in found.reason
        await node.kubelet.until_allocatable("models.tessera.dev/small", CLIENTS)
    assert not node.kubelet.panics


@pytest.mark.skipif(bool(HostErofsMounts().why_not()), reason="root, EROFS and loop devices")
async def test_a_packed_model_is_an_image_that_is_mounted_before_a_pod_gets_it_and_after_a_reboot(node: Node) -> None:
    source = node.put("llama", a=b"1", b=b"same")
    await node.tell(desired(source, interval_s=60, keep=1, pack="Always"))
    try:
        async with node.running():
            await node.model(has())
            old = await node.start("old")
            assert HostErofsMounts().is_mounted(Path(old.mounts[0].host_path))
            assert mounted(old) == b"1"
        ModelFolder(node.folder / "llama").unmount_images()  # a reboot
        keeper = ModelKeeper("n1", node.kube, Places(ModelDisk(node.folder), ModelSources(), node.kubelet.plugins))
        with pytest.raises(Unavailable, match="cannot be read on this node any more"):
            await keeper._responses.respond(LLAMA, f"{Path(old.mounts[0].host_path).name[:48]}-1")
        async with node.running():
            first = (await node.model(lambda each: each.containers == 1)).revision
            assert mounted(old) == b"1"
            node.put("llama", a=b"22", b=b"same")
            node.now_s += 61
            await node.model(lambda each: has()(each) and each.revision != first)
            await node.kubelet.until_capacity(LLAMA, CLIENTS)
            new = await node.start("new")
            assert (mounted(old), mounted(new)) == (b"1", b"22")
            await node.end("old")
            await until_gone(Path(old.mounts[0].host_path))
            assert mounted(new) == b"22"
            await node.end("new")
            await node.tell()
            await until_gone(node.folder / "llama")
    finally:
        ModelFolder(node.folder / "llama").unmount_images()


async def test_where_the_kernel_mounts_no_images_auto_keeps_files_and_always_is_reported(node: Node) -> None:
    source = node.put("llama", a=b"1")
    disk = ModelDisk(node.folder, most_percent=99, images=MemoryErofsMounts(problem="the kernel 6.1 has no EROFS"))
    await node.tell(desired(source, pack="Always"))
    async with node.running(disk):
        assert "has no EROFS: do not pack" in (await node.model(lambda each: each.state == "Failed")).reason
    await node.tell(desired(source, pack="Auto"))
    node.now_s += 1000
    async with node.running(disk):
        found = await node.model(has())
        assert (node.folder / "llama/versions" / found.revision / "a").read_bytes() == b"1"


async def test_a_revision_that_is_not_on_the_disk_is_mounted_into_no_pod(node: Node) -> None:
    """The runtime would make an empty folder of it."""
    places = Places(ModelDisk(node.folder), ModelSources(), node.kubelet.plugins)
    keeper = ModelKeeper("n1", node.kube, places)
    with pytest.raises(Unavailable, match="cannot be read on this node any more"):
        await keeper._responses.respond(LLAMA, f"{'0' * 48}-1")


async def test_a_revision_whose_manifest_is_broken_is_withheld_and_fetched_again(node: Node) -> None:
    await node.tell(desired(node.put("llama", a=b"1")))
    async with node.running():
        revision = (await node.model(has())).revision
        old = await node.start("old")
        (node.bucket / "llama").rename(node.bucket / "away")
        (node.folder / "llama" / ".tessera" / "manifests" / f"{revision}.json").write_bytes(b"\xff")
        found = await node.model(lambda each: each.state == "Failed")
        assert (found.revision, found.bytes) == ("", 0)
        assert mounted(old) == b"1", "a running pod keeps its mount"
        (node.bucket / "away").rename(node.bucket / "llama")
        node.now_s += 1000
        found = await node.model(has(revision))
        assert (found.bytes, found.reason) == (1, "")


class SlowStore(MemoryStore):
    """A store whose objects come when they are let go."""

    def __init__(self, contents: dict[str, bytes]) -> None:
        super().__init__(contents)
        self.go, self.others = threading.Event(), threading.Semaphore(0)

    @contextlib.contextmanager
    def read(self, found: StoredObject, start: int, stop: int) -> Iterator[Any]:
        if found.path == "b":
            self.go.wait(PATIENCE_S)
        with super().read(found, start, stop) as body:
            yield body
        self.others.release()


async def test_progress_is_reported_now_and_then_and_a_fetch_ends_when_the_model_is_not_desired(node: Node) -> None:
    """Each report wakes the loop again: reports of every byte would never end."""
    store = SlowStore({"a": b"1" * 100, "b": b"2" * 50, "c": b"3"})

    class Sources(ModelSources, frozen=True):
        def open(self, model: DesiredModel, credentials: Mapping[str, str]) -> ObjectStore:  # noqa: ARG002
            return store

    await node.tell(desired("memory://models"))
    async with node.running(sources=Sources()):
        found = await node.model(lambda each: each.state == "Fetching")
        assert (found.fetched_bytes, found.total_bytes) == (0, 0)
        for _ in range(2):
            await asyncio.to_thread(store.others.acquire, timeout=PATIENCE_S)
        node.now_s += 10
        assert (await node.model(lambda each: each.total_bytes == 151)).fetched_bytes == 101
        await node.tell()
        await node.reports(lambda found: not found.observed)
        store.go.set()
        await until_gone(node.folder / "llama")


async def test_it_runs_once_the_api_answers(node: Node) -> None:
    """An API server that is gone, then a kind that is not there yet."""
    node.kube.uninstall(NODE_MODELS)
    async with node.running():
        await asyncio.sleep(0)
        node.kube.stop()
        await asyncio.sleep(0)
        node.kube.start()
        await node.kube.create(CUSTOM_RESOURCE_DEFINITIONS, definition(NODE_MODELS))
        await node.tell(desired(node.put("llama", a=b"1")))
        await node.model(has())


async def test_an_agent_that_ends_leaves_the_kubelet_no_device_to_choose(node: Node) -> None:
    await node.tell(desired(node.put("llama", a=b"1")))
    async with node.running():
        await node.model(has())
        await node.kubelet.until_allocatable(LLAMA, CLIENTS)
    await node.kubelet.until_allocatable(LLAMA, 0)


async def test_a_node_fetches_from_the_peers_that_its_nodemodels_name_and_reports_where_it_serves(
    node: Node, pki: Path, tmp_path: Path
) -> None:
    content = {"large": os.urandom(MIB), "small": b"{}"}
    store = MemoryStore(content)

    class Sources(ModelSources, frozen=True):
        def open(self, model: DesiredModel, credentials: Mapping[str, str]) -> ObjectStore:  # noqa: ARG002
            return store

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    service = PeerService(PeerSettings("127.0.0.1", port, peer_tls(pki)), logger())
    with contextlib.closing(PeerNode(tmp_path / "n2", pki)) as other:
        await asyncio.to_thread(other.sync, store, SyncOptions(reserve_bytes=0))
        body = {"apiVersion": API_VERSION, "kind": "NodeModels", "metadata": {"name": "n2"}}
        await node.kube.apply(
            NODE_MODELS, {**body, "spec": node_spec([desired("memory://models")])}, manager="tessera-controller"
        )
        await node.kube.apply(
            NODE_MODELS,
            {**body, "status": node_status((), folder="/m", free_bytes=0, reason="", peer=other.address)},
            manager="tessera-agent",
            subresource="status",
        )
        await node.tell(desired("memory://models"))
        running = asyncio.create_task(service.run())
        async with node.running(
            disk=ModelDisk(node.folder, most_percent=99, sharing=service.sharing), sources=Sources()
        ):
            reported = await node.reports(lambda each: each.name == "n1" and any(map(has(), each.observed)))
            assert reported.peer == f"127.0.0.1:{port}"
            assert service.peers.bytes_from_peers == MIB
            lines = {*node.measures.render().decode().splitlines()}
            assert {
                f'tessera_node_models_read_bytes_total{{source="peers"}} {MIB}',
                'tessera_node_models_read_bytes_total{source="stores"} 2',
                "tessera_node_models_peers_banned 0",
            } <= lines
            # What is there is given: by an agent that knows the certificate, at the address that was reported.
            key = content_key(f"md5:{hashlib.md5(content['large']).hexdigest()}", MIB)
            view = memoryview(bytearray(MIB))
            with contextlib.closing(PeerConnections(asking_context_of(peer_tls(pki)), PeerPatience())) as peers:
                await asyncio.to_thread(peers.fill, reported.peer, f"verified/{key}/0", view, lambda: False)
                assert bytes(view) == content["large"]
                await node.tell()
                await until_gone(node.folder / "llama")
                with pytest.raises(ChunkAbsent):
                    await asyncio.to_thread(peers.fill, reported.peer, f"verified/{key}/0", view, lambda: False)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_port_of_peers_that_is_taken_is_reported(pki: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = PeerSettings("127.0.0.1", taken.getsockname()[1], peer_tls(pki))
        with pytest.raises(Unavailable, match="in use"):
            await PeerService(settings, logger()).serve()


def fail_at(part: str, error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk fail wherever one looks at or opens a path with this part, as a bad sector does."""

    def failing(look: Callable[..., Any]) -> Callable[..., Any]:
        def looked(path: Any = ".", *more: Any, **others: Any) -> Any:
            if isinstance(path, str | Path) and part in str(path):
                raise OSError(error, os.strerror(error), str(path))
            return look(path, *more, **others)

        return looked

    for name in ("lstat", "stat", "open", "scandir", "listdir", "readlink", "unlink"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))


async def three_revisions(node: Node, name: str) -> list[str]:
    """Fetch three revisions of a model, the last of which is the current one; return them."""
    found: list[str] = []
    async with node.running():
        for number in range(3):
            source = node.put(name, a=b"x" * (number + 1))
            await node.tell(desired(source, name, interval_s=60, keep=3))
            node.now_s += 61
            report = await node.model(lambda each: has()(each) and each.revision not in found, name)
            found.append(report.revision)
    return found


@pytest.mark.parametrize("error", [errno.EIO, errno.EBADMSG, errno.EUCLEAN], ids=errno.errorcode.get)
@pytest.mark.parametrize("which", [0, 2], ids=["former", "current"])
async def test_a_revision_that_cannot_be_read_stops_no_other_model(
    node: Node, which: int, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    revisions = await three_revisions(node, "bad")
    fail_at(f"manifests/{revisions[which]}.json", error, monkeypatch)
    bad = desired(f"file://{node.bucket}/bad", "bad", interval_s=60, keep=1)
    await node.tell(bad, desired(node.put("good", a=b"2"), "good"))
    async with node.running():
        await node.model(has(), "good")
        state = "Ready" if which == 0 else "Failed"
        report = await node.model(lambda each: each.state == state and bool(each.reason), "bad")
        assert report.revision == (revisions[2] if which == 0 else "")
        assert f"{os.strerror(error)}: replace the disk; the kernel's log names it" in report.reason
        assert (node.folder / "bad" / "versions" / revisions[which]).is_dir()
        if which == 0:  # updates still come
            node.put("bad", a=b"new")
            node.now_s += 1000
            await node.model(lambda each: has()(each) and each.revision not in revisions, "bad")
            assert (node.folder / "bad" / "versions" / revisions[0]).is_dir()


@pytest.mark.parametrize("part", [".tessera/manifests", ".tessera/kept-by-agent", "current"])
async def test_a_model_that_cannot_be_read_fails_alone_and_keeps_what_pods_have(
    node: Node, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, gone = desired(node.put("bad", a=b"1"), "bad"), desired(node.put("gone", a=b"1"), "gone")
    await node.tell(bad, gone)
    async with node.running():
        revision = (await node.model(has(), "bad")).revision
        await node.model(has(), "gone")
        for name in ("bad", "gone"):
            await node.start(f"of-{name}", f"models.tessera.dev/{name}")
        await node.reports(lambda found: all(each.containers for each in found.observed))
        with monkeypatch.context() as patched:
            for name in ("bad", "gone"):
                fail_at(f"/{name}/{part}", errno.EIO, patched)
            await node.tell(bad, desired(node.put("good", a=b"2"), "good"))
            await node.model(has(), "good")
            failed = await node.model(lambda each: each.state == "Failed", "bad")
            assert f"{part}" in failed.reason
            assert "Input/output error: replace the disk" in failed.reason
        assert (node.folder / "bad" / ".tessera" / "pins" / revision).exists()
        assert (node.folder / "gone" / "current" / "a").read_bytes() == b"1"
        node.now_s += 1000
        assert (await node.model(lambda each: has()(each) and not each.reason, "bad")).revision == revision


async def test_a_model_that_cannot_be_pinned_or_removed_keeps_no_other_from_being_fetched(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, gone = desired(node.put("kept", a=b"1"), "kept", interval_s=60), desired(node.put("gone", a=b"1"), "gone")
    await node.tell(kept, gone)
    async with node.running():
        revision = (await node.model(has(), "kept")).revision
        await node.model(has(), "gone")
        (node.folder / "kept" / ".tessera" / "pins" / "lost+found").mkdir()  # nobody minds
        staging = node.folder / "gone" / ".tessera" / "staging"
        staging.rmdir()
        staging.symlink_to("/")
        await node.tell(kept)
        await node.reports(lambda each: [found.name for found in each.observed] == ["kept"])
        await node.tell(desired(node.put("new", a=b"2"), "new"), kept)
        await node.model(has(), "new")
        node.put("kept", a=b"22")
        node.now_s += 61
        await node.model(lambda each: has()(each) and each.revision != revision, "kept")
        fail_at("/kept/.tessera/pins", errno.ENOSPC, monkeypatch)
        failed = await node.model(lambda each: each.state == "Failed", "kept")
        assert "No space left on device: free space or inodes on this disk" in failed.reason
        node.now_s += 1000  # it is due again, and first
        await node.tell(kept, desired(node.put("last", a=b"3"), "last"))
        await node.model(has(), "last")
    assert (node.folder / "gone" / "current").is_symlink()


async def test_a_former_revision_that_cannot_be_removed_keeps_its_model_from_no_update(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    revisions = await three_revisions(node, "llama")
    real = os.rename

    def rename(path: Any, *more: Any, **others: Any) -> None:
        if str(path).endswith(f"versions/{revisions[0]}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        real(path, *more, **others)

    llama = desired(f"file://{node.bucket}/llama", interval_s=60, keep=1)
    await node.tell(llama)
    async with node.running():
        with monkeypatch.context() as patched:
            patched.setattr(os, "rename", rename)
            for number in range(5, 7):
                node.put("llama", a=b"x" * number)
                node.now_s += 61
                found = await node.model(
                    lambda each: has()(each) and each.revision not in revisions and bool(each.reason)
                )
                revisions.append(found.revision)
                assert (found.state, found.failures) == ("Ready", 0)
                assert re.match(rf"model llama: .*{revisions[0]}: Input/output error: replace the disk", found.reason)
        await until_gone(node.folder / "llama" / "versions" / revisions[0])
        await node.model(lambda each: has()(each) and not each.reason)


async def test_a_disk_that_does_not_answer_at_all_is_reported_of_the_node(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    llama = desired(node.put("llama", a=b"1"))
    await node.tell(llama)
    async with node.running():
        await node.model(has())
        with monkeypatch.context() as patched:
            fail_at(str(node.folder.parent), errno.EIO, patched)
            found = await node.reports(lambda each: bool(each.reason))
            assert "Input/output error: replace the disk; the kernel's log names it" in found.reason
        await node.reports(lambda each: not each.reason and all(map(has(), each.observed)))


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[Callable[[str], None]]:
    """A file system of its own; gives what mounts it anew with an option."""

    def remount(option: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{option}", str(path)], check=True)

    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "x", str(path)], check=True)
    (path / "not-empty").touch()
    try:
        yield remount
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="root, which mounts")
async def test_a_disk_that_becomes_read_only_is_reported_and_keeps_offering_what_it_has(node: Node) -> None:
    with small_disk(node.folder.parent) as remount:
        kept, gone = desired(node.put("kept", a=b"1"), "kept"), desired(node.put("gone", a=b"1"), "gone")
        await node.tell(kept, gone)
        async with node.running():
            for name in ("kept", "gone"):
                await node.model(has(), name)
            remount("ro")
            try:
                await node.tell(kept, desired(node.put("new", a=b"2"), "new"))
                found = await node.reports(lambda each: bool(each.reason))
                want = "Read-only file system: mount this disk writable again"
                assert want in found.reason
                failed = await node.model(lambda each: each.state == "Failed", "new")
                assert want in failed.reason
                assert mounted(await node.start("p", "models.tessera.dev/kept")) == b"1"
            finally:
                remount("rw")
            node.now_s += 1000
            await node.model(has(), "new")
            await until_gone(node.folder / "gone")
            await node.reports(lambda each: not each.reason)


@pytest.mark.parametrize("is_gone", [False, True], ids=["source-changed", "source-gone"])
@pytest.mark.parametrize("part", ["/llama/current", "manifests/{}.json", "verified/{}.json", "/llama/.tessera/pins"])
async def test_an_error_of_the_disk_that_passes_leaves_a_model_that_is_fetched_once_as_it_was(
    node: Node, part: str, is_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.tell(desired(node.put("llama", a=b"1")))
    async with node.running():
        first = (await node.model(has())).revision
    if is_gone:
        (node.bucket / "llama").rename(node.bucket / "away")
    else:
        node.put("llama", a=b"2")  # which this cache is not to have
    path = part.format(first)
    async with node.running():
        before = await node.model(has(first))
        with monkeypatch.context() as patched:
            fail_at(path, errno.ENOMEM, patched)
            failed = await node.model(lambda each: each.state == "Failed")
            assert os.strerror(errno.ENOMEM) in failed.reason
            assert path in failed.reason
            node.now_s += 1000
            await node.passes(3)
        await node.model(has(first))
        node.now_s += 5000
        await node.passes(3)
        assert await node.model(has(first)) == before
    with monkeypatch.context() as patched:
        fail_at(path, errno.ENOMEM, patched)
        async with node.running():  # an agent that starts in it
            await node.model(lambda each: each.state == "Failed")
    async with node.running():
        assert await node.model(has(first)) == before


async def test_a_model_that_the_disk_does_not_let_go_leaves_making_room_to_another(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (desired(node.put(each, a=os.urandom(4 * MIB)), each) for each in ("first", "second"))
    high = desired(node.put("high", a=os.urandom(4 * MIB)), "high", priority=1)
    real = os.rename

    def renamed(path: Any, *more: Any, **others: Any) -> None:
        if "/first/versions" in str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        real(path, *more, **others)

    async with node.running(SmallDisk(node.folder)):
        await node.tell(first)
        revision = (await node.model(has(), "first")).revision
        os.utime(node.folder / "first" / ".tessera" / "manifests" / f"{revision}.json", (1000, 1000))
        await node.tell(first, second)
        await node.model(has(), "second")
        monkeypatch.setattr(os, "rename", renamed)
        await node.tell(high, first, second)
        failed = await node.model(lambda each: "Input/output error: replace the disk" in each.reason, "high")
        assert failed.state == "Failed"
        for _ in range(60):
            node.now_s += 30
            await node.passes(1)
        await node.model(has(), "high")
        assert (await node.model(has(), "first")).revision == revision
    assert not node.kubelet.panics


def refuse_removal(how: str, of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk refuse to rename a folder, or to remove the files named `a` that are in it or were."""
    real = getattr(os, how)

    def refused(path: Any, *more: Any, **others: Any) -> None:
        folder = Path(f"/proc/self/fd/{others['dir_fd']}").readlink() if how == "unlink" and "dir_fd" in others else ""
        if of in str(folder) and str(path) == "a" if how == "unlink" else str(path).endswith(of):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        real(path, *more, **others)

    monkeypatch.setattr(os, how, refused)


@pytest.mark.parametrize("how", ["rename", "unlink"])
@pytest.mark.parametrize("is_alone", [False, True], ids=["with another", "alone"])
async def test_a_deleted_model_that_the_disk_refuses_to_remove_stops_no_more_urgent_one_and_is_named(
    node: Node, is_alone: bool, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (desired(node.put(each, a=os.urandom(4 * MIB)), each) for each in ("first", "second"))
    high = desired(node.put("high", a=os.urandom((8 if is_alone else 4) * MIB)), "high", priority=1)
    others = () if is_alone else (second,)
    async with node.running(SmallDisk(node.folder)):
        for models in ((first,), (first, *others)):
            await node.tell(*models)
            await node.model(has(), models[-1].name)
        refuse_removal(how, {"rename": "/models/first", "unlink": "/models/.removed-first"}[how], monkeypatch)
        await node.tell(high, *others)
        for _ in range(12):
            node.now_s += 300
            await node.passes(2)
        if is_alone:
            failed = await node.model(lambda each: "lacks" in each.reason, "high")
            assert "MiB, and the disk refused to make room: model first: " in failed.reason
            assert re.search(r"/models/\S*first\S*: Input/output error: replace the disk", failed.reason)
            assert (await node.writes(bool))["status"]["removing"] == ["first"]
            node.now_s += 1000
            await node.model(failed_more_often(failed.failures), "high")
            monkeypatch.undo()  # its next turn is minutes away
        await node.model(has(), "high")


async def test_a_revision_that_is_evicted_in_part_is_named_and_goes_as_soon_as_the_disk_lets_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    low = desired(node.put("low", a=os.urandom(4 * MIB), b=b"x"), "low")
    high = desired(node.put("high", a=os.urandom(8 * MIB)), "high", priority=1)
    async with node.running(SmallDisk(node.folder)):
        await node.tell(low)
        await node.model(has(), "low")
        with monkeypatch.context() as patched:
            refuse_removal("unlink", "/low/.tessera/trash", patched)
            await node.tell(high, low)
            for _ in range(12):
                node.now_s += 300
                await node.passes(2)
            failed = await node.model(lambda each: "lacks" in each.reason, "high")
            assert re.search(r"model low: \S*/low/.tessera/trash/\S*: Input/output error: replace", failed.reason)
            assert (await node.writes(bool))["status"].get("removing") is None, "it is desired"
        node.now_s += 1000  # its next turn
        await node.model(has(), "high")
    assert not node.kubelet.panics


async def test_a_pod_is_refused_with_the_reason_where_the_disk_for_models_hangs(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet has no deadline, and starts no other pod meanwhile."""
    await node.tell(desired(node.put("llama", a=b"1")))
    async with node.running():
        await node.model(has())
        hangs, real = threading.Event(), os.utime

        def utime(*arguments: Any, **more: Any) -> None:
            if threading.current_thread().name.startswith("model-mounts"):
                hangs.wait(PATIENCE_S)
            real(*arguments, **more)

        monkeypatch.setattr(os, "utime", utime)
        with monkeypatch.context() as patched:
            patched.setattr("tessera.agent.storage.modelcache.plugin._ANSWER_S", 0.2)
            for name in ("p", "q", "r", "s", "t"):  # more than threads
                with pytest.raises(Conflict, match="the disk for models has not answered in"):
                    await node.start(name)
        hangs.set()
        assert mounted(await node.start("after")) == b"1"


@pytest.mark.parametrize("is_gone", [False, True], ids=["newer source", "no source"])
async def test_a_packed_model_that_is_fetched_once_stays_where_its_image_cannot_be_mounted_for_a_while(
    node: Node, is_gone: bool
) -> None:
    images = MemoryErofsMounts()
    await node.tell(desired(node.put("llama", a=b"1" * 5000), pack="Always"))
    async with node.running(ModelDisk(node.folder, most_percent=99, images=images)):
        first = (await node.model(has())).revision
    if is_gone:
        (node.bucket / "llama").rename(node.bucket / "away")
    else:
        node.put("llama", a=b"2" * 5000)
    rebooted = MemoryErofsMounts()
    rebooted.refusal = "no free loop device"
    async with node.running(ModelDisk(node.folder, most_percent=99, images=rebooted)):
        failed = await node.model(lambda each: each.state == "Failed")
        want = f"revision {first[:12]}: its image is not mounted: no free loop device: the agent tries again by itself"
        assert (failed.revision, failed.reason) == ("", want)
        for _ in range(5):
            node.now_s += 1000
            await node.passes(2)
        rebooted.refusal = ""
        found = await node.model(has())
        assert (found.revision, found.reason) == (first, "")


async def test_the_agent_goes_on_while_the_disk_for_models_is_slow(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """One loop serves the models' and the GPUs' pods."""
    await node.tell(desired(node.put("llama", a=b"1")))
    here = threading.get_ident()
    in_loop = set[str]()

    def watched(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(path: Any = ".", *more: Any, **others: Any) -> Any:
            if threading.get_ident() == here and str(node.folder / "llama") in str(path):
                in_loop.add(f"{name} {path}")
            return real(path, *more, **others)

        return call

    async with node.running():
        await node.model(has())
        for name in ("lstat", "stat", "open", "scandir", "listdir", "readlink", "utime"):
            monkeypatch.setattr(os, name, watched(name))
        await node.start("p")
        await node.model(lambda each: each.containers == 1)
        monkeypatch.undo()
    assert not in_loop


@pytest.mark.parametrize("manifest", [b"{}", None], ids=["broken", "lost"])
@pytest.mark.parametrize("is_deleted", [False, True], ids=["updated", "deleted"])
async def test_a_revision_that_a_pod_has_stays_where_its_manifest_is_broken_or_lost(
    node: Node, manifest: bytes | None, is_deleted: bool
) -> None:
    source = node.put("llama", a=b"1")
    await node.tell(desired(source, interval_s=60, keep=1))
    async with node.running():
        first = (await node.model(has())).revision
        old = await node.start("old")
        node.put("llama", a=b"22")
        node.now_s += 61
        last = (await node.model(lambda each: has()(each) and each.revision != first)).revision
        path = node.folder / "llama" / ".tessera" / "manifests" / f"{first}.json"
        path.unlink() if manifest is None else path.write_bytes(manifest)
        if is_deleted:
            await node.tell()
            await node.passes(3)
        for number in (3, 4) if not is_deleted else ():
            node.put("llama", a=b"x" * number)
            node.now_s += 61
            seen = last
            last = (await node.model(lambda each, seen=seen: has()(each) and each.revision != seen)).revision  # type: ignore[misc]
        assert mounted(old) == b"1"
        await node.end("old")
        if is_deleted:
            await until_gone(node.folder / "llama")
        else:
            async with asyncio.timeout(PATIENCE_S):
                while (node.folder / "llama" / "versions" / first).exists():
                    node.now_s += 61
                    await node.passes(1)
    assert not node.kubelet.panics
