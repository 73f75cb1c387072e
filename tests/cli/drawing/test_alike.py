"""Which nodes and GPUs of a large fleet are drawn once."""

import pytest

from builders.pictures import classed, drawn
from builders.scenes import SCENES
from tessera.cli.drawing.alike import EVERY_GPU, kinds
from tessera.cli.drawing.views import fleet

COLLAPSED = {
    "up to the threshold every GPU is drawn": (EVERY_GPU // 8, EVERY_GPU, 0),
    "past it one of each kind is drawn": (EVERY_GPU // 8 + 1, 3, 3),
}


@pytest.mark.parametrize(("nodes", "strips", "more"), COLLAPSED.values(), ids=COLLAPSED)
def test_large_fleets_are_drawn_once_for_each_kind(nodes: int, strips: int, more: int) -> None:
    root = drawn(SCENES["forty nodes, most alike"](nodes))
    assert (len(classed(root, "gpu")), len(classed(root, "more"))) == (strips, more)


def test_nodes_are_alike_if_only_their_names_zones_and_pods_differ() -> None:
    """Of the forty nodes one has other pods; each node is in one kind, and the runs are the GPUs of the first."""
    scene = SCENES["forty nodes, most alike"](EVERY_GPU // 8 + 1)
    whole = fleet(scene.plan, scene.snapshot)
    found = kinds(whole)
    assert sorted(node.name for kind in found for node in kind.nodes) == sorted(node.name for node in whole.nodes)
    for kind in found:
        assert [gpu for run in kind.runs for gpu in run.gpus] == list(kind.nodes[0].gpus)
        assert len({(len(node.gpus), len(node.others)) for node in kind.nodes}) == 1
    assert len(found) < len(whole.nodes)
