"""The label's configurations as the file has them now, and its state as the node shows it."""

from pathlib import Path

import pytest

from tessera.agent.nodestate.noderecord import NodeRecord
from tessera.agent.partition.label import MigConfigLabel
from tessera.clients.kube import NODES, MemoryKube, labels_of
from tessera.core.node.layouts import LayoutRequest, LayoutState
from tessera.errors import InvalidInput
from tessera.log import logger

pytestmark = pytest.mark.anyio

FILE = """\
version: v1
mig-configs:
  {name}:
    - devices: all
      mig-enabled: false
"""


@pytest.fixture
async def kube() -> MemoryKube:
    kube = MemoryKube()
    await kube.create(NODES, {"metadata": {"name": "n1", "labels": {"nvidia.com/mig.config": "ours"}}})
    return kube


async def test_configurations_are_those_of_the_file_now(kube: MemoryKube, tmp_path: Path) -> None:
    file, record = tmp_path / "mig.yaml", NodeRecord(kube, "n1", logger())
    assert MigConfigLabel(None, record).configurations() == {}
    label = MigConfigLabel(file, record)
    with pytest.raises(InvalidInput, match="name a mig-parted file that can be read"):
        label.configurations()
    for name in ("ours", "theirs"):
        file.write_text(FILE.format(name=name))
        assert list(label.configurations()) == [name]


async def test_the_state_of_the_label_is_another_label_and_a_condition(kube: MemoryKube) -> None:
    label = MigConfigLabel(None, NodeRecord(kube, "n1", logger()))
    await label.report(LayoutRequest(name="ours", state=LayoutState.SUCCESS))
    node = await kube.get(NODES, "n1")
    assert node is not None
    assert labels_of(node) == {"nvidia.com/mig.config": "ours", "nvidia.com/mig.config.state": "success"}
    assert [each["status"] for each in node["status"]["conditions"]] == ["True"]
    await label.report(LayoutRequest())
    node = await kube.get(NODES, "n1")
    assert node is not None
    assert labels_of(node) == {"nvidia.com/mig.config": "ours"}
    assert node["status"]["conditions"] == []
