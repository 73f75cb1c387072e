"""What syncs of both forms do before they publish: room is counted, objects are fetched beside."""

import os
from pathlib import Path

import msgspec
import pytest

from harness.modelsyncs import CONTENTS, QUICK
from tessera.agent.storage.models.cancellation import Cancellation
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.reading import Progress, TransferSource
from tessera.agent.storage.models.staging import desired_objects, evictions_for, refuse_nested, stage, unstaged_bytes
from tessera.clients.store import MemoryStore
from tessera.clients.store.folders import FolderStore
from tessera.core.storage.models.retention import TooLittleRoom
from tessera.core.storage.models.syncplans import SyncPlan
from tessera.errors import InvalidInput


def test_what_is_staged_needs_no_further_room(tmp_path: Path) -> None:
    store, staged = MemoryStore({"a": os.urandom(3 << 20), "b": os.urandom(1 << 20)}), tmp_path / "staged"
    objects = desired_objects(store, QUICK)
    plan = SyncPlan({}, objects)
    assert unstaged_bytes(plan, staged) == 4 << 20
    source = TransferSource(store, QUICK.limits, Progress(lambda _done, _total: None, 0), Cancellation())
    (file,) = stage(source, ModelFolder(tmp_path), staged, objects[:1], QUICK)
    assert (file.path, (staged / "files/a").read_bytes()) == ("a", store.contents["a"])
    assert unstaged_bytes(plan, staged) <= 1 << 20
    with pytest.raises(TooLittleRoom):
        evictions_for(ModelFolder(tmp_path), (), 1, msgspec.structs.replace(QUICK, reserve_bytes=2**60))


def test_a_destination_in_its_source_is_refused_and_one_beside_it_is_not(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    store = FolderStore(tmp_path / "source")
    refuse_nested(store, tmp_path / "sourced")
    refuse_nested(MemoryStore(CONTENTS), tmp_path / "source")
    with pytest.raises(InvalidInput, match="it is in its source"):
        refuse_nested(store, tmp_path / "source" / "dst")
