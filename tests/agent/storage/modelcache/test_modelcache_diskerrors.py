"""A node's model cache on a disk that fails: an error affects its model alone, and only while it lasts."""

import asyncio
import contextlib
import errno
import os
import re
import shutil
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from harness.modelnode import PATIENCE_S, Node, desired, fail_at, has, mounted, small_disk, three_revisions, until_gone
from tessera.agent.storage.modelcache import ModelDisk
from tessera.clients.disks import MemoryErofsMounts
from tessera.errors import Conflict

pytestmark = pytest.mark.anyio


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


async def test_a_pod_is_refused_with_the_reason_where_the_disk_for_models_hangs(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet has no deadline, and starts no other pod meanwhile: of many pods it waits for the first alone.

    Pods of a model for which the disk answers start.
    """
    await node.tell(desired(node.put("llama", a=b"1")), desired(node.put("gemma", a=b"2"), name="gemma"))
    async with node.running():
        await node.model(has(), name="gemma")
        await node.model(has())
        hangs, real, asked = threading.Event(), os.utime, list[str]()

        def utime(*arguments: Any, **more: Any) -> None:
            if threading.current_thread().name.startswith("model-mounts") and "llama" in str(arguments[0]):
                asked.append(threading.current_thread().name)
                hangs.wait(PATIENCE_S)
            real(*arguments, **more)

        monkeypatch.setattr(os, "utime", utime)
        with monkeypatch.context() as patched:
            patched.setattr("tessera.agent.storage.modelcache.plugin._ANSWER_S", 0.2)
            for name in ("p", "q", "r", "s", "t"):  # more than threads
                with pytest.raises(Conflict, match="the disk for models has not answered in"):
                    await node.start(name)
            assert len(asked) == 1
            assert mounted(await node.start("other", "models.tessera.dev/gemma")) == b"2"
            hangs.set()
            async with asyncio.timeout(PATIENCE_S):
                for number in count():
                    with contextlib.suppress(Conflict):  # until the thread is back
                        assert mounted(await node.start(f"after-{number}")) == b"1"
                        break
                    await asyncio.sleep(0.01)


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
        image = node.folder / f"llama/.tessera/images/{first}.erofs"
        want = (
            f"revision {first[:12]}: image {image} is not mounted: no free loop device: the agent tries again by itself"
        )
        assert (failed.revision, failed.reason) == ("", want)
        for _ in range(5):
            node.now_s += 1000
            await node.passes(2)
        rebooted.refusal = ""
        found = await node.model(has())
        assert (found.revision, found.reason) == (first, "")


async def test_a_fetch_that_fails_says_why_also_while_the_image_on_the_disk_cannot_be_mounted(node: Node) -> None:
    await node.tell(desired(node.put("llama", a=b"1" * 5000), interval_s=60, pack="Always"))
    async with node.running(ModelDisk(node.folder, most_percent=99, images=MemoryErofsMounts())):
        await node.model(has())
    (node.bucket / "llama").rename(node.bucket / "away")
    rebooted = MemoryErofsMounts()
    rebooted.refusal = "no free loop device"
    async with node.running(ModelDisk(node.folder, most_percent=99, images=rebooted)):
        await node.model(lambda each: each.state == "Failed" and "is not mounted" in each.reason)
        node.now_s += 61
        await node.model(lambda each: each.state == "Failed" and f"{node.bucket / 'llama'}: " in each.reason)


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
