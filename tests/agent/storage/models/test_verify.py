"""Files compared with their manifest."""

import subprocess
from pathlib import Path

from harness.modelsyncs import CONTENTS, LARGE, content, run
from tessera.agent.storage.models.digests import start_checksum
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.verify import damaged_files
from tessera.clients.store import MemoryStore
from tessera.core.storage.models.revisions import CHUNK_BYTES


def test_damage_is_found_and_mended(tmp_path: Path) -> None:
    store = MemoryStore(CONTENTS)
    revision = run(store, tmp_path).revision
    folder = ModelFolder(tmp_path)
    with (tmp_path / "current/weights/a b+%.bin").open("r+b") as file:
        file.seek(CHUNK_BYTES)
        file.write(bytes([LARGE[CHUNK_BYTES] ^ 1]))
    (tmp_path / "current/config.json").unlink()
    found = damaged_files(folder.versions / revision, folder.manifest(revision), content=True)
    assert found.keys() == {"config.json", "weights/a b+%.bin"}
    assert run(store, tmp_path, check=True).revision == revision
    assert content(tmp_path / "current") == CONTENTS


def test_gits_own_ids_of_files_are_verified(tmp_path: Path) -> None:
    for data in (b"", b"content", LARGE):
        (tmp_path / "file").write_bytes(data)
        said = subprocess.run(("git", "hash-object", tmp_path / "file"), check=True, capture_output=True, text=True)
        checksum = start_checksum("git:", len(data))
        assert checksum
        checksum.update(memoryview(data))
        assert checksum.hexdigest() == said.stdout.strip()
