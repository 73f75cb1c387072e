"""The folder of CDI specifications."""

import json
import os
from pathlib import Path

import pytest

from tessera.agent.deviceplugin import CdiFolder
from tessera.core.deviceplugin.containers.edits import ShareEdits
from tessera.errors import InvalidInput, Unavailable


def test_a_specification_is_written_once_and_whole(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path / "run" / "cdi")
    assert folder.write("gpu", "{}")
    assert not folder.write("gpu", "{}")
    assert folder.write("gpu", "{1}")
    assert [(path.name, path.read_text()) for path in (tmp_path / "run" / "cdi").iterdir()] == [
        ("tessera.dev-gpu.json", "{1}")
    ]


def test_files_that_are_no_text_and_names_that_are_none_are_replaced_and_removed(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path)
    (tmp_path / "tessera.dev-gpu.json").write_bytes(b'{"a": "\xff\xfe"}')
    assert folder.write("gpu", "{}")
    assert (tmp_path / "tessera.dev-gpu.json").read_text() == "{}"
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/tessera.dev-share-\xff.json")).touch()
    removed = folder.keep((), prefix="share-")
    assert [name.encode().decode() for name in removed] == ["share-\N{REPLACEMENT CHARACTER}"], "can be logged"


def test_stale_ones_go_and_those_of_others_stay(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path)
    for name in ("gpu", "share-a", "share-b"):
        folder.write(name, "{}")
    for name in ("nvidia.json", "share-x.json", "tessera.dev-share-c.partial"):
        (tmp_path / name).touch()
    assert folder.keep({"share-b"}, prefix="share-") == ("share-a", "share-c")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "nvidia.json",
        "share-x.json",
        "tessera.dev-gpu.json",
        "tessera.dev-share-b.json",
    ]
    assert CdiFolder(tmp_path / "absent").keep((), prefix="share-") == ()


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc/passwd", "a\0", "-a", "a" * 200])
def test_names_that_would_leave_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="CDI specification"):
        CdiFolder(tmp_path).write(name, "{}")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="cdi_spec_dirs"):
        CdiFolder(tmp_path / "file" / "cdi").write("gpu", "{}")
    (tmp_path / "tessera.dev-share-a.json").mkdir()
    with pytest.raises(Unavailable, match=r"tessera.dev-share-a.json: a folder is in its place: remove it"):
        CdiFolder(tmp_path).keep((), prefix="share-")
    with pytest.raises(Unavailable, match=r"tessera.dev-share-a.json: a folder is in its place: remove it"):
        CdiFolder(tmp_path).write("share-a", "{}")


def test_the_specification_of_gpus_has_the_driver_s_edits_and_stays_where_these_cannot_be_read(tmp_path: Path) -> None:
    driver = tmp_path / "nvidia.yaml"
    folder = CdiFolder(tmp_path / "cdi", driver_specs=(tmp_path / "absent", driver), driver_folder="/opt/driver")
    written = tmp_path / "cdi" / "tessera.dev-gpu.json"
    edits = [("GPU-1", ShareEdits(device_nodes=("/dev/nvidia0",)))]
    folder.write_gpus(edits, dev_root="/")
    spec = json.loads(written.read_text())
    assert [each["name"] for each in spec["devices"]] == ["GPU-1"]
    assert [each["hostPath"] for each in spec["containerEdits"]["mounts"]] == ["/opt/driver"]
    driver.write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ncontainerEdits: {env: [LIB=1]}\n")
    folder.write_gpus(edits, dev_root="/")
    before = written.read_text()
    assert json.loads(before)["containerEdits"] == {"env": ["LIB=1"]}
    driver.write_text("[")
    with pytest.raises(InvalidInput, match="write valid YAML"):
        folder.write_gpus(edits, dev_root="/")
    assert written.read_text() == before
    driver.write_text("")
    folder.write_gpus(edits, dev_root="/")
    assert "containerEdits" not in json.loads(written.read_text())
