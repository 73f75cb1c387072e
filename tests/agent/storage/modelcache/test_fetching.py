"""Which model is fetched next, where one has made room for another; whole fetches are tested with the keeper."""

import asyncio
from pathlib import Path

import pytest

from tessera.agent.storage.modelcache.disk import ModelDisk
from tessera.agent.storage.modelcache.fetching import Fetches
from tessera.clients.store import ObjectStore
from tessera.core.storage.models.cache import DesiredModel, ObservedModel
from tessera.core.storage.models.cacheplan import ModelOnNode, OnDisk
from tessera.log import logger

pytestmark = pytest.mark.anyio

SMALL, LARGE = DesiredModel(name="small", source="s3://b/small"), DesiredModel(name="large", source="s3://b/large")
DESIRED = {each.name: each for each in (LARGE, SMALL)}
THERE = ModelOnNode(OnDisk("1", ("1",)))
READY = ObservedModel(name="large", state="Ready", identity=LARGE.identity, checked_s=1.0)


class Node:
    """A node with a disk, on which a small model was to make room for a large one."""

    def __init__(self, folder: Path) -> None:
        self.woken = 0
        self.fetches = Fetches(
            disk=ModelDisk(folder),
            open_store=self._open,
            neighbors=dict,
            now_s=lambda: 2.0,
            wake=self._wake,
            log=logger(),
        )
        self.fetches.displaced = {"small": "large"}

    async def _open(self, model: DesiredModel) -> ObjectStore:
        await asyncio.Event().wait()
        raise AssertionError(model)

    def _wake(self) -> None:
        self.woken += 1

    async def begin(self, *there: str) -> str:
        """Return what is fetched where these models are on the disk."""
        offered = {name: "1" for name in there if name not in self.fetches.displaced}
        self.fetches.begin(DESIRED, offered, dict.fromkeys(there, THERE))
        return self.fetches.busy


async def test_what_room_was_made_for_is_fetched_once_there_is_room(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert await node.begin("small") == "", "it is still there"
    assert await node.begin() == "large"
    assert node.fetches.displaced == {"small": "large"}
    assert await node.begin() == "large", "one at a time"
    await node.fetches.close()


async def test_what_made_room_that_nothing_needs_any_more_is_fetched_again(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.fetches.reports["large"] = READY
    assert await node.begin("small", "large") == ""
    assert (node.fetches.displaced, node.woken) == ({"small": "large"}, 0)
    assert await node.begin("large") == ""
    assert (node.fetches.displaced, node.woken) == ({}, 1)
    assert await node.begin("large") == "small"
    await node.fetches.close()
