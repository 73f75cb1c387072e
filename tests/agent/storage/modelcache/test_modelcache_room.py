"""A node's model cache on a disk that is full: who makes room for whom, and what a disk that refuses it changes."""

import asyncio
import base64
import errno
import os
import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from harness.modelnode import (
    MIB,
    PATIENCE_S,
    Node,
    SmallDisk,
    desired,
    failed_more_often,
    has,
    refuse_removal,
    small_disk,
    until_gone,
)
from tessera.agent.storage.modelcache import ModelDisk, ModelSources
from tessera.clients.kube import SECRETS
from tessera.clients.store import MemoryStore, ObjectStore, Refused, Temporary
from tessera.core.deviceplugin.offers.modeloffers import CLIENTS
from tessera.core.storage.models.nodemodels import DesiredModel
from tessera.core.storage.models.retention import RevisionOnDisk
from tessera.core.storage.models.revisions import StoredObject

pytestmark = pytest.mark.anyio


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


async def test_an_error_at_one_removal_keeps_a_model_that_is_made_anew_from_making_room_no_longer(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = desired(node.put("first", a=os.urandom(4 * MIB)), "first")
    high = desired(node.put("high", a=os.urandom(8 * MIB)), "high", priority=1)
    async with node.running(SmallDisk(node.folder)):
        await node.tell(first)
        await node.model(has(), "first")
        with monkeypatch.context() as patched:
            refuse_removal("rename", "/models/first", patched)
            await node.tell()
            await node.passes(2)
            assert (node.folder / "first").exists()
        await until_gone(node.folder / "first")
        await node.tell(first)
        await node.model(has(), "first")
        await node.tell(high, first)
        await node.model(has(), "high")
    assert not node.kubelet.panics


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="root, which mounts")
@pytest.mark.parametrize("is_own", [False, True], ids=["below a mount point", "a mount point"])
async def test_a_model_that_lacks_room_waits_for_its_next_turn_wherever_the_disk_is_mounted(
    node: Node, is_own: bool
) -> None:
    """The disk above has much more room than the one that the models are on."""
    node.folder.mkdir()
    with small_disk(node.folder if is_own else node.folder.parent):
        await node.tell(desired(node.put("big", a=os.urandom(80 * MIB)), "big"))
        async with node.running(ModelDisk(node.folder, most_percent=100)):
            await node.model(lambda each: each.state == "Failed", "big")
            await node.passes(8)
            assert (await node.model(lambda each: each.state == "Failed", "big")).failures == 1


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
