"""Fetches one at a time, and what is reported of models that do not fit; whole fetches are tested with the keeper."""

import asyncio
import errno
import fcntl
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.failedlooks import LOOKS, Looks
from harness.kills import not_killed
from harness.modelsyncs import run
from tessera.agent.storage.modelcache.disk import ModelDisk
from tessera.agent.storage.modelcache.fetching import Fetches, OpenedSource
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.reading import TransferLimits
from tessera.clients.disks import MemoryErofsMounts
from tessera.clients.store import Body, MemoryStore, Refused, Temporary
from tessera.clients.store.protocol import Contents
from tessera.core.storage.models.cacheplan import CachePlan
from tessera.core.storage.models.fetchhistory import FetchHistory
from tessera.core.storage.models.nodemodels import DesiredModel, ObservedModel
from tessera.core.storage.models.refusals import DiskRefusals
from tessera.core.storage.models.retention import TooLittleRoom
from tessera.core.storage.models.revisions import CHUNK_BYTES, StoredObject
from tessera.core.storage.models.syncplans import Pack
from tessera.errors import Unavailable
from tessera.log import logger

pytestmark = pytest.mark.anyio

SMALL, LARGE = DesiredModel(name="small", source="s3://b/small"), DesiredModel(name="large", source="s3://b/large")


async def never(model: DesiredModel) -> OpenedSource:
    await asyncio.Event().wait()
    raise AssertionError(model)


@pytest.fixture
def fetches(tmp_path: Path) -> Fetches:
    return Fetches(disk=ModelDisk(tmp_path), open_source=never, now_s=lambda: 2.0, wake=lambda: None, log=logger())


async def test_one_is_fetched_at_a_time(fetches: Fetches) -> None:
    fetches.begin(LARGE)
    fetches.begin(SMALL)
    assert (fetches.busy, fetches.report("small").state) == ("large", "Missing")
    await fetches.close()


def decided(
    fetches: Fetches,
    displaced: Mapping[str, str],
    refused: Mapping[str, int],
    model: DesiredModel = LARGE,
    *,
    stuck: str = "",
) -> None:
    """Decide on a model as if its last fetch had not fit."""
    named = {"large": frozenset({"small"})} if stuck else {}
    refusals = DiskRefusals(stuck={"small": stuck, "other": "not named"})
    plan = CachePlan(displaced, refused, protected={}, offered={}, steps=(), fetch=None, stuck=named)
    fetches.decided(["large"], plan, {"large": model}, refusals)


async def test_a_model_for_which_others_make_room_reports_it(fetches: Fetches) -> None:
    decided(fetches, {"small": "large"}, {})
    report = fetches.report("large")
    assert (report.state, report.failures) == ("Missing", 0)
    assert report.reason == "model large: not enough space: evicting small"
    assert not fetches.observed({"large": LARGE}).needs


async def test_a_model_for_which_there_is_no_room_has_failed_and_is_tried_again_later(fetches: Fetches) -> None:
    for failures in (1, 2):
        decided(fetches, {}, {"large": 5 << 20})
        report = fetches.report("large")
        assert (report.state, report.failures, report.failed_s) == ("Failed", failures, 2.0)
        assert "the disk for models lacks 5 MiB: use a larger disk" in report.reason


async def test_where_the_disk_refuses_to_remove_what_was_to_make_room_the_reason_is_that(fetches: Fetches) -> None:
    stuck = "model small: /models/small: Input/output error: replace the disk"
    decided(fetches, {}, {"large": 5 << 20}, stuck=stuck)
    reason = fetches.report("large").reason
    assert reason.endswith(f": the disk for models lacks 5 MiB, and the disk refused to make room: {stuck}")


async def test_nothing_makes_room_for_a_while_for_a_fetch_that_brought_nothing_in_room_made_for_it(
    tmp_path: Path,
) -> None:
    readable = False

    class Unreadable(MemoryStore):
        @contextmanager
        def read(self, stored: StoredObject, start: int, stop: int) -> Iterator[Any]:
            if not (readable or stored.path == "a"):
                raise Refused("403 Forbidden")
            with super().read(stored, start, stop) as body:
                yield body

    async def opened(_model: DesiredModel) -> OpenedSource:
        return OpenedSource(Unreadable({"a": b"first", "b": b"second"}))

    (tmp_path / "models").mkdir()
    disk = ModelDisk(tmp_path / "models", most_percent=100)
    fetches = Fetches(disk=disk, open_source=opened, now_s=lambda: 2.0, wake=lambda: None, log=logger())

    async def counted() -> int:
        fetches.begin(LARGE)
        assert fetches._task is not None
        await fetches._task
        backoff = fetches.observed({"large": LARGE}).history("large").backoff
        return 0 if backoff is None else backoff.count

    assert [await counted(), await counted()] == [0, 0], "no room was made"
    for count, until in ((1, "1970-01-01T01:00:02Z"), (2, "1970-01-01T02:00:02Z")):
        decided(fetches, {"small": "large"}, {})
        assert [await counted(), await counted()] == [count, count]
        decided(fetches, {}, {"large": 5 << 20})
        reason = fetches.report("large").reason
        assert re.fullmatch(
            rf"model large: its last fetch got no further \(.*403 Forbidden.*\): other models stay until {until}, "
            "or until its Secret or source changes",
            reason,
        )
    readable = True
    assert await counted() == 0


async def test_a_secret_that_could_not_be_read_in_room_that_was_made_starts_no_back_off(tmp_path: Path) -> None:
    answers = True

    async def opened(_model: DesiredModel) -> OpenedSource:
        if not answers:
            raise Unavailable("Secret s", found="no answer in 10 s", hint="try again")
        return OpenedSource(MemoryStore({"a": b"first"}))

    (tmp_path / "models").mkdir()
    disk = ModelDisk(tmp_path / "models", most_percent=100)
    fetches = Fetches(disk=disk, open_source=opened, now_s=lambda: 2.0, wake=lambda: None, log=logger())

    async def fetch() -> FetchHistory:
        fetches.begin(LARGE)
        assert fetches._task is not None
        await fetches._task
        return fetches.observed({"large": LARGE}).history("large")

    decided(fetches, {"small": "large"}, {})
    answers = False
    for failures in (1, 2):
        failed = await fetch()
        assert (failed.backoff, failed.room, failed.report.state) == (None, "", "Failed")
        assert (failed.report.failures, "no answer" in failed.report.reason) == (failures, True)
    answers = True
    assert (await fetch()).report.state == "Ready"


async def test_further_bytes_end_the_back_off_and_bytes_of_another_source_are_not_compared(tmp_path: Path) -> None:
    contents: dict[str, bytes] = {}

    class Broken(MemoryStore):
        @contextmanager
        def read(self, stored: StoredObject, start: int, stop: int) -> Iterator[Any]:
            if stored.path == "z":
                raise Refused("403 Forbidden")
            with super().read(stored, start, stop) as body:
                yield body

    async def opened(_model: DesiredModel) -> OpenedSource:
        return OpenedSource(Broken({**contents, "z": b"closed"}))

    (tmp_path / "models").mkdir()
    disk, one_thread = ModelDisk(tmp_path / "models", most_percent=100), TransferLimits(threads=1)
    fetches = Fetches(
        disk=disk, open_source=opened, now_s=lambda: 2.0, wake=lambda: None, log=logger(), limits=one_thread
    )

    async def counted(model: DesiredModel) -> int:
        decided(fetches, {}, {}, model)
        fetches.begin(model)
        assert fetches._task is not None
        await fetches._task
        backoff = fetches.observed({"large": model}).history("large").room_backoff(2.0)
        return 0 if backoff is None else backoff.count

    other = msgspec.structs.replace(LARGE, source="s3://b/other")
    contents["a"] = b"a" * 20 * CHUNK_BYTES
    assert [await counted(LARGE), await counted(LARGE)] == [0, 1]
    contents["b"] = b"b" * CHUNK_BYTES
    assert await counted(LARGE) == 0, "it brought further bytes"
    contents.clear()
    contents["c"] = b"c" * CHUNK_BYTES
    assert [await counted(other), await counted(other)] == [0, 1]


async def test_what_a_model_without_room_has_staged_makes_room_until_it_is_fetched_again(fetches: Fetches) -> None:
    def is_free() -> bool:
        return fetches.observed({"large": LARGE}).history("large").room == "Refused"

    assert not is_free()
    decided(fetches, {}, {"large": 5 << 20})
    assert is_free()
    fetches.begin(SMALL)
    await asyncio.sleep(0)
    assert is_free()
    await fetches.close()
    fetches.begin(LARGE)
    assert not is_free()
    await fetches.close()


async def test_of_models_that_are_not_desired_any_more_and_of_former_sources_nothing_is_known(
    fetches: Fetches,
) -> None:
    other = msgspec.structs.replace(LARGE, source="s3://b/other")
    reported = ObservedModel(name="large", identity=LARGE.identity, state="Ready", checked_s=1.0)
    fetches.follow({"large": LARGE, "small": SMALL}, [reported, ObservedModel(name="gone")])
    assert fetches.observed({"large": LARGE, "small": SMALL}).histories.keys() == {"large", "small"}
    assert fetches.report("large") == reported, "of an agent that has ended"
    decided(fetches, {}, {"large": 5 << 20})
    fetches.follow({"large": LARGE}, [reported])
    assert fetches.observed({"large": LARGE}).histories.keys() == {"large"}
    history = fetches.observed({"large": LARGE}).history("large")
    assert (history.room, history.report.failures, history.report.checked_s) == ("Refused", 1, 1.0)
    fetches.follow({"large": other}, [])
    assert (fetches.observed({"large": other}).history("large").room, fetches.report("large").identity) == (
        "",
        LARGE.identity,
    )
    fetches.follow({}, [])
    assert (fetches.observed({"large": LARGE}).history("large").report, fetches.report("large")) == (
        ObservedModel(name="large"),
        ObservedModel(name="large"),
    )


async def test_a_fetch_that_ends_when_its_model_is_not_desired_any_more_needs_no_room(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def opened(_model: DesiredModel) -> OpenedSource:
        raise TooLittleRoom("disk", 9, 0, found="9 bytes too little", hint="free some")

    fetches = Fetches(disk=ModelDisk(tmp_path), open_source=opened, now_s=lambda: 2.0, wake=ended.set, log=logger())
    fetches.begin(LARGE)
    fetches.follow({"small": SMALL}, [])
    await ended.wait()
    other = msgspec.structs.replace(LARGE, source="s3://b/other")
    for desired, want in (({"small": SMALL}, {}), ({"large": other}, {}), ({"large": LARGE}, {"large": 9})):
        assert fetches.observed(desired).needs == want


@pytest.mark.parametrize(
    ("code", "want"),
    [
        (errno.EIO, "Input/output error: replace the disk; the kernel's log names it"),
        (errno.ENOSPC, "No space left on device: free space or inodes on this disk"),
        (errno.EBADMSG, "Bad message: replace the disk; the kernel's log names it"),
        (
            errno.EROFS,
            "Read-only file system: mount this disk writable again; the kernel's log says why it is read-only",
        ),
        (errno.EPERM, "Operation not permitted: correct this path; the agent tries again by itself"),
    ],
)
async def test_an_error_of_the_disk_has_its_fix(code: int, want: str, tmp_path: Path) -> None:
    class Failing(MemoryStore):
        def objects(self, *_: object) -> tuple[StoredObject, ...]:
            raise OSError(code, os.strerror(code))

    async def opened(_model: DesiredModel) -> OpenedSource:
        return OpenedSource(Failing({}))

    ended = asyncio.Event()
    fetches = Fetches(disk=ModelDisk(tmp_path), open_source=opened, now_s=lambda: 2.0, wake=ended.set, log=logger())
    fetches.begin(LARGE)
    await ended.wait()
    assert fetches.report("large").reason == f"{tmp_path}/large: {want}"


@pytest.mark.parametrize("is_rollback", [False, True], ids=["fetch", "rollback"])
async def test_each_error_of_the_disk_in_a_fetch_or_a_rollback_names_its_path_on_the_host_and_what_to_do(
    is_rollback: bool, tmp_path: Path
) -> None:
    host = tmp_path / "host"
    (host / "disks").mkdir(parents=True)
    (host / "disks" / "not-empty").touch()
    disk = ModelDisk(Path("/disks/models"), root=host, most_percent=100, images=MemoryErofsMounts())
    with not_killed():
        folder = disk.claim("large")
        revision, _ = (run(MemoryStore({"a": each}), folder.top, keep=9).revision for each in (b"1", b"2"))
    model = msgspec.structs.replace(LARGE, revision=revision if is_rollback else "")

    async def opened(_model: DesiredModel) -> OpenedSource:
        assert not is_rollback, "the revision is on the disk"
        return OpenedSource(MemoryStore({"a": b"2"}))

    reasons, has_failed = set[str](), True
    fetches = Fetches(disk=disk, open_source=opened, now_s=lambda: 2.0, wake=lambda: None, log=logger())
    failing = 0
    while has_failed:
        failing += 1 if is_rollback else 7  # a fetch has hundreds
        looks = Looks(host, failing, errno.EIO, (*LOOKS, "mkdir", "rename", "replace"))
        with not_killed(), looks.observed():
            fetches.begin(model)
            assert fetches._task is not None
            await fetches._task
        has_failed = bool(looks.failed)
        reasons.add(fetches.report("large").reason)
    assert len(reasons - {""}) > 1
    for reason in reasons - {""}:
        assert re.fullmatch(r"/disks\S*: Input/output error: replace the disk; .*", reason), reason


class LockedFolder(ModelDisk):
    """A disk on which another process works in the folder of a model."""

    def claim(self, name: str) -> ModelFolder:
        """Return the folder of a model."""
        folder = super().claim(name)
        (folder.notes / "lock").write_text("17")
        number = os.open(folder.notes / "lock", os.O_RDWR)
        fcntl.flock(number, fcntl.LOCK_EX)  # as long as it is open, so to the end of the test
        return folder


def foreign(folder: Path) -> None:
    (folder / "file").touch()


def linked(folder: Path) -> None:
    (folder / "current").mkdir(parents=True)
    (folder / ".tessera").mkdir()
    (folder / ".tessera/kept-by-agent").touch()


@pytest.mark.parametrize(
    ("kind", "pack", "prepare", "want"),
    [
        (ModelDisk, "Never", foreign, "/disks/models/large: the agent did not make this folder: move it away"),
        (LockedFolder, "Never", None, "/disks/models/large: process 17 has the lock"),
        (ModelDisk, "Never", linked, "/disks/models/large/current: it is not the symbolic link that Tessera makes"),
        (ModelDisk, "Always", None, "/disks/models/large/.tessera/images/REVISION.erofs: no free loop device"),
    ],
)
async def test_each_other_error_of_a_fetch_names_its_path_on_the_host_too(
    kind: type[ModelDisk], pack: Pack, prepare: Callable[[Path], None] | None, want: str, tmp_path: Path
) -> None:
    host = tmp_path / "host"
    (host / "disks/models/large").mkdir(parents=True)
    images = MemoryErofsMounts()
    images.refusal = "no free loop device"
    disk = kind(Path("/disks/models"), root=host, most_percent=100, images=images)
    if prepare is not None:
        prepare(host / "disks/models/large")

    async def opened(_model: DesiredModel) -> OpenedSource:
        return OpenedSource(MemoryStore({"a": b"2"}))

    fetches = Fetches(disk=disk, open_source=opened, now_s=lambda: 2.0, wake=lambda: None, log=logger())
    with not_killed():
        fetches.begin(msgspec.structs.replace(LARGE, pack=pack))
        assert fetches._task is not None
        await fetches._task
    reason = re.sub("[0-9a-f]{64}", "REVISION", fetches.report("large").reason)
    assert reason.startswith(want)
    assert str(tmp_path) not in reason
    if pack == "Always":
        unmounted = next(iter(disk.observe()[0]["large"].unreadable.values()))
        assert re.fullmatch(
            r"revision \S{12}: image /disks/models/large/.tessera/images/\S+.erofs is not mounted: "
            "no free loop device: the agent tries again by itself",
            unmounted,
        )


class Silent:
    """A store that does not answer, to a listing or to a read, and counts these requests."""

    source, requests, pipelines = "memory://silent", 0, False

    def __init__(self, *, lists: bool, etag: str = "e") -> None:
        self.lists, self.etag = lists, etag
        self.asked = threading.Semaphore(0)

    def objects(self, *_: object) -> tuple[StoredObject, ...]:
        if self.lists:
            return (StoredObject("w", 3 * CHUNK_BYTES, self.etag),)
        self.asked.release()
        raise Temporary("no data for 10 s")

    def read_small(self, objects: Iterable[StoredObject]) -> Contents:
        return ((each, None) for each in objects)

    def read(self, stored: StoredObject, start: int, stop: int) -> AbstractContextManager[Body]:  # noqa: ARG002
        self.asked.release()
        raise Temporary("no data for 10 s")

    def close(self) -> None:
        pass


class Slow(Silent):
    """A store that answers with a few bytes at a time."""

    etag_is_checksum = True

    def read(self, stored: StoredObject, start: int, stop: int) -> AbstractContextManager[Body]:  # noqa: ARG002
        return nullcontext(self)

    def readinto(self, view: memoryview) -> int:
        self.asked.release()
        return min(len(view), 512)


SLOW_SOURCES: dict[str, tuple[Callable[[], Silent], float]] = {
    "that does not list": (lambda: Silent(lists=False), 0.0),
    "that is silent": (lambda: Silent(lists=True), 0.0),
    "that is slow": (lambda: Slow(lists=True), 0.0),
    "without ETags, that is slow": (lambda: Slow(lists=True, etag=""), 0.0),
    "read at a small bandwidth": (lambda: Slow(lists=True), 1024.0),
}


@pytest.mark.parametrize("case", SLOW_SOURCES)
async def test_a_canceled_fetch_ends_before_its_source_answers_and_is_no_failure_of_the_model(
    case: str, tmp_path: Path
) -> None:
    made, rate = SLOW_SOURCES[case]
    store, ended = made(), asyncio.Event()

    async def opened(_model: DesiredModel) -> OpenedSource:
        return OpenedSource(store)

    disk, limits = ModelDisk(tmp_path, most_percent=100), TransferLimits(bytes_per_second=rate)
    fetches = Fetches(disk=disk, open_source=opened, now_s=lambda: 2.0, wake=ended.set, log=logger(), limits=limits)
    (tmp_path / "not-empty").touch()
    fetches.begin(LARGE)
    for _ in range(3):
        assert await asyncio.to_thread(store.asked.acquire, timeout=10)
    fetches.cancel()
    async with asyncio.timeout(10):
        await ended.wait()
    report = fetches.report("large")
    assert (report.state, report.failures, report.reason, fetches.observed({"large": LARGE}).needs) == (
        "Missing",
        0,
        "",
        {},
    )


async def test_a_fetch_that_is_canceled_before_its_source_is_known_reads_nothing(tmp_path: Path) -> None:
    store, opening, go, ended = Silent(lists=False), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def opened(_model: DesiredModel) -> OpenedSource:
        opening.set()
        await go.wait()
        return OpenedSource(store)

    (tmp_path / "not-empty").touch()
    fetches = Fetches(disk=ModelDisk(tmp_path), open_source=opened, now_s=lambda: 2.0, wake=ended.set, log=logger())
    fetches.begin(LARGE)
    await opening.wait()
    fetches.cancel()
    go.set()
    await ended.wait()
    assert (fetches.report("large").failures, store.asked.acquire(blocking=False)) == (0, False)
