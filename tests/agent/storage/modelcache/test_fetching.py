"""Fetches one at a time, and what is reported of models that do not fit; whole fetches are tested with the keeper."""

import asyncio
import errno
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tessera.agent.storage.modelcache.disk import ModelDisk
from tessera.agent.storage.modelcache.fetching import Fetches
from tessera.clients.store import MemoryStore, ObjectStore
from tessera.core.storage.models.cacheplan import CachePlan
from tessera.core.storage.models.nodemodels import DesiredModel
from tessera.core.storage.models.revisions import StoredObject
from tessera.log import logger

pytestmark = pytest.mark.anyio

SMALL, LARGE = DesiredModel(name="small", source="s3://b/small"), DesiredModel(name="large", source="s3://b/large")


async def never(model: DesiredModel) -> ObjectStore:
    await asyncio.Event().wait()
    raise AssertionError(model)


@pytest.fixture
def fetches(tmp_path: Path) -> Fetches:
    return Fetches(disk=ModelDisk(tmp_path), open_store=never, now_s=lambda: 2.0, wake=lambda: None, log=logger())


async def test_one_is_fetched_at_a_time(fetches: Fetches) -> None:
    fetches.begin(LARGE)
    fetches.begin(SMALL)
    assert (fetches.busy, fetches.report("small").state) == ("large", "Missing")
    await fetches.close()


def decided(fetches: Fetches, displaced: Mapping[str, str], refused: Mapping[str, int]) -> None:
    fetches.needs["large"] = 9
    needs = fetches.observed(["large"]).needs
    plan = CachePlan(displaced, refused, protected={}, offered={}, steps=(), fetch=None)
    fetches.decided(needs, plan, {"large": LARGE})


async def test_a_model_for_which_others_make_room_reports_it(fetches: Fetches) -> None:
    decided(fetches, {"small": "large"}, {})
    report = fetches.report("large")
    assert (report.state, report.failures) == ("Missing", 0)
    assert report.reason == "model large: not enough space: evicting small"
    assert not fetches.needs


async def test_a_model_for_which_there_is_no_room_has_failed_and_is_tried_again_later(fetches: Fetches) -> None:
    for failures in (1, 2):
        decided(fetches, {}, {"large": 5 << 20})
        report = fetches.report("large")
        assert (report.state, report.failures, report.failed_s) == ("Failed", failures, 2.0)
        assert "the disk for models lacks 5 MiB: use a larger disk" in report.reason


@pytest.mark.parametrize(
    ("code", "want"),
    [
        (errno.EIO, "Input/output error: replace the disk; the kernel's log names it"),
        (errno.ENOSPC, "No space left on device: free space or inodes on this disk"),
        (errno.EROFS, "Read-only file system: give --model-dir, a disk that can be written"),
    ],
)
async def test_an_error_of_the_disk_has_its_fix(code: int, want: str, tmp_path: Path) -> None:
    class Failing(MemoryStore):
        def objects(self) -> tuple[StoredObject, ...]:
            raise OSError(code, os.strerror(code))

    async def opened(_model: DesiredModel) -> ObjectStore:
        return Failing({})

    ended = asyncio.Event()
    fetches = Fetches(disk=ModelDisk(tmp_path), open_store=opened, now_s=lambda: 2.0, wake=ended.set, log=logger())
    fetches.begin(LARGE)
    await ended.wait()
    assert fetches.report("large").reason == f"{tmp_path}: {want}"
