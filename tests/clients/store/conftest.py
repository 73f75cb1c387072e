"""The folder whose content a store has."""

import shutil
from pathlib import Path

import pytest

from conformance.storesuite import Fill


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bucket/m").mkdir(parents=True)
    return tmp_path / "bucket/m"


@pytest.fixture
def fill(folder: Path) -> Fill:
    def replace(contents: dict[str, bytes]) -> None:
        shutil.rmtree(folder)
        folder.mkdir()
        for name, data in contents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)

    return replace
