"""A node's model cache with a kubelet in this process: models are fetched, mounted, held, replaced and removed."""

import asyncio
import contextlib
import errno
import hashlib
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from conformance.kubesuite import definition
from harness.modelnode import LLAMA, MIB, PATIENCE_S, Node, desired, has, mounted, until_gone
from harness.peernodes import PeerNode, peer_tls
from harness.serving import running
from tessera.agent.storage.modelcache import ModelDisk, ModelKeeper, ModelSources, Places
from tessera.agent.storage.modelcache.peers import PeerService, PeerSettings
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.reading import TransferLimits
from tessera.agent.storage.models.staging import SyncOptions
from tessera.api.tessera.v1alpha1.modelcaches import API_VERSION, node_spec, node_status
from tessera.certificates import asking_context_of
from tessera.clients.disks import HostErofsMounts, MemoryErofsMounts
from tessera.clients.kube import CUSTOM_RESOURCE_DEFINITIONS, NODE_MODELS, SECRETS, Forbidden, Kind, Object
from tessera.clients.kubelet import Container
from tessera.clients.store import MemoryStore, ObjectStore
from tessera.clients.store.peers import ChunkAbsent, PeerConnections
from tessera.core.deviceplugin.offers.modeloffers import CLIENTS
from tessera.core.storage.models.nodemodels import DesiredModel
from tessera.core.storage.models.peers.owners import PeerPatience, content_key
from tessera.core.storage.models.revisions import StoredObject
from tessera.errors import Conflict, Unavailable
from tessera.log import logger

pytestmark = pytest.mark.anyio


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
