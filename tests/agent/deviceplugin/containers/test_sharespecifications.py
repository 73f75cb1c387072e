"""The specifications of containers with shares."""

import json
from pathlib import Path

from structlog.testing import capture_logs

from tessera.agent.deviceplugin import CdiFolder
from tessera.agent.deviceplugin.containers.sharespecifications import Prepared, ShareSpecifications
from tessera.core.deviceplugin.containers.edits import ShareEdits
from tessera.log import logger

PREPARED = Prepared(visible=("GPU-0",), edits=ShareEdits(env=(("CUDA_VISIBLE_DEVICES", "GPU-0"),)))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_container_s_devices_are_those_of_its_specification_alone(tmp_path: Path) -> None:
    ShareSpecifications(CdiFolder(tmp_path), logger()).write("a", PREPARED, dev_root="/")
    (device,) = json.loads((tmp_path / "tessera.dev-share-a.json").read_text())["devices"]
    assert device["name"] == "a"
    assert device["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void", "CUDA_VISIBLE_DEVICES=GPU-0"]


def test_one_is_removed_at_the_second_cleanup_that_does_not_need_it(tmp_path: Path) -> None:
    """Its container may be in the kubelet's record a moment after the cleanup has read that."""
    folder = CdiFolder(tmp_path)
    specifications = ShareSpecifications(folder, logger())
    folder.write("gpu", "{}")
    for name in ("a", "b"):
        specifications.write(name, PREPARED, dev_root="/")
    with capture_logs() as logs:
        specifications.keep(frozenset({"a", "b"}))
        specifications.keep(frozenset({"a"}))
        assert names(tmp_path) == [f"tessera.dev-{each}.json" for each in ("gpu", "share-a", "share-b")]
        specifications.keep(frozenset({"a"}))
        assert names(tmp_path) == [f"tessera.dev-{each}.json" for each in ("gpu", "share-a")]
        specifications.keep(frozenset())
        specifications.keep(frozenset())
    assert names(tmp_path) == ["tessera.dev-gpu.json"]
    assert [each["shares"] for each in logs] == [["b"], ["a"]]
