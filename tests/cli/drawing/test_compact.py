"""The tiles of a fleet that is too large for strips."""

from builders.pictures import classed, drawn
from builders.scenes import SCENES
from tessera.cli.drawing.compact import MOST_TILES
from tessera.core.gpu.sharing import Mode


def test_a_fleet_without_likeness_is_tiles_of_reasonable_height() -> None:
    root = drawn(SCENES["forty nodes, each different"]())
    assert len(classed(root, "tile")) > 30
    assert float(root.get("height", 0)) < 2000


def test_nodes_past_the_most_tiles_are_counted() -> None:
    scene = SCENES["an empty fleet"]()
    for n in range(MOST_TILES + 2):
        pod = scene.pod(f"a-{n}", f"Job/default/{n}")
        scene.whole((scene.node(f"n-{n}", "T4"), 0), Mode.WHOLE, 1, {pod: 15360})
    root = drawn(scene)
    assert len(classed(root, "tile")) == MOST_TILES
    assert "and 2 more nodes with 2 GPUs, not drawn" in " ".join(root.itertext())
    assert f"default/a-{MOST_TILES + 1}" in " ".join(root.itertext())
