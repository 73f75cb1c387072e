"""Whoever cannot look at the disk does not take what is there for missing: each look of a sync fails once."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from harness.failedlooks import Looks
from harness.kills import not_killed
from harness.modelsyncs import QUICK, content, contents, run
from tessera.agent.storage.models.chunkreads import ChunkReads
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.mirror import sync_mirror
from tessera.agent.storage.models.mirrorfolder import MirrorFolder
from tessera.agent.storage.models.reading import TransferLimits
from tessera.clients.store import MemoryStore
from tessera.errors import TesseraError

ONE_THREAD = msgspec.structs.replace(QUICK, limits=TransferLimits(threads=1))
PINNED, CURRENT, NEW = {"f": b"12", "s/x": b"1"}, {"f": b"345", "s/x": b"1"}, {"f": b"6789", "s/x": b"1"}


def each_look_failing(orig: Path, call: Callable[[Path], object], check: Callable[[Path, bool], str]) -> int:
    """Let each look of a call fail on a copy of a folder of its own; return how many there were.

    Args:
        orig: the folder.
        call: gets the copy.
        check: gets the copy, and whether the call ended well; returns what is wrong.

    """
    wrong: list[tuple[int, str, bool, str]] = []
    number = 0
    with not_killed():
        while True:
            number += 1
            top = orig.with_name("copy")
            shutil.copytree(orig, top, symlinks=True)
            looks, is_well = Looks(top, number, errno.EIO), True
            try:
                with looks.observed():
                    call(top)
            except (OSError, TesseraError):
                is_well = False
            if not looks.failed:
                assert (wrong, is_well) == ([], True)
                return number - 1
            if problem := check(top, is_well):
                wrong.append((number, looks.failed, is_well, problem))
            shutil.rmtree(top)


@pytest.mark.parametrize(("after", "keep"), [(CURRENT, 1), (NEW, 9)], ids=["unchanged", "new"])
def test_a_sync_that_cannot_look_removes_no_revision_that_is_pinned_or_current(
    after: dict[str, bytes], keep: int, tmp_path: Path
) -> None:
    orig = tmp_path / "orig"
    with not_killed():
        pinned, current = (run(MemoryStore(each), orig, keep=9).revision for each in (PINNED, CURRENT))
    ModelFolder(orig).records.pin(pinned, pinned=True)
    options = {"keep": keep, "limits": ONE_THREAD.limits}

    def check(top: Path, is_well: bool) -> str:
        folder = ModelFolder(top)
        expected = {pinned: PINNED} | ({current: CURRENT} if keep == 9 else {})
        found = {name: content(top / "versions" / name) for name in folder.names() if name in expected}
        if found != expected or not folder.records.is_pinned(pinned):
            return f"it has {found}"
        now = content(top / "current")
        return "" if now == after or (now == CURRENT and not is_well) else f"its current one has {now}"

    assert each_look_failing(orig, lambda top: run(MemoryStore(after), top, **options), check) > 60


def test_a_mirror_that_cannot_look_says_so_or_has_all_new_files(tmp_path: Path) -> None:
    orig, before = tmp_path / "orig", {"f": b"12", "g": b"1", "s/x": b"1", "goes": b"4"}
    after = {"f": b"67", "g": b"1", "s/x": b"2"}
    with not_killed():
        sync_mirror(MemoryStore(before), orig, ONE_THREAD)

    def check(top: Path, is_well: bool) -> str:
        found = contents(top)
        if is_well and found != after:
            return f"it has {found}"
        if any(found.get(path) not in {before[path], data} for path, data in after.items()):
            return f"files of neither state: {found}"
        sync_mirror(MemoryStore(after), top, ONE_THREAD)
        folder = MirrorFolder(top)
        if contents(top) != after or folder.damaged(folder.current(), ChunkReads()):
            return f"the next sync left {contents(top)}"
        return ""

    assert each_look_failing(orig, lambda top: sync_mirror(MemoryStore(after), top, ONE_THREAD), check) > 40
