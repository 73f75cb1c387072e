"""A folder opened whatever its form."""

from pathlib import Path

import pytest

from harness.modelsyncs import FIRST, QUICK, run
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.mirror import sync_mirror
from tessera.agent.storage.models.mirrorfolder import MirrorFolder
from tessera.agent.storage.models.opening import open_folder
from tessera.clients.store import MemoryStore
from tessera.errors import InvalidInput


def test_a_folder_is_opened_in_its_form(tmp_path: Path) -> None:
    sync_mirror(MemoryStore(FIRST), tmp_path / "mirror", QUICK)
    run(MemoryStore(FIRST), tmp_path / "revisions")
    (tmp_path / "empty").mkdir()
    forms = {name: type(open_folder(tmp_path / name)) for name in ("mirror", "revisions", "empty")}
    assert forms == {"mirror": MirrorFolder, "revisions": ModelFolder, "empty": ModelFolder}
    with pytest.raises(InvalidInput, match="there is no such folder"):
        open_folder(tmp_path / "none")


def test_both_forms_of_the_same_files_are_the_same_revision_whole_and_in_the_page_cache(tmp_path: Path) -> None:
    done = sync_mirror(MemoryStore(FIRST), tmp_path / "mirror", QUICK)
    assert run(MemoryStore(FIRST), tmp_path / "revisions").revision == done.revision
    for name in ("mirror", "revisions"):
        folder = open_folder(tmp_path / name)
        folder.refuse_broken()
        (one,) = folder.revisions()
        assert (one.revision, one.current, one.files) == (done.revision, True, len(FIRST))
        assert folder.damaged(one.revision, None) == {}
        assert folder.warm(one.revision) == one.bytes
