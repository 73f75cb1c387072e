"""What is drawn of a plan and a snapshot."""

from builders.pictures import drawn
from builders.scenes import SCENES, Scene
from tessera.cli.drawing.views import fleet
from tessera.core.cluster.snapshot import Snapshot


def test_pods_that_only_the_plan_names_are_drawn() -> None:
    scene = SCENES["a T4 with 14 clients"]()
    got = fleet(scene.plan, Snapshot(nodes=()))
    assert len(got.pods) == 14
    assert [node.name for node in got.nodes] == ["t4-node"]
    assert got.nodes[0].cpu_milli == 0


def test_an_instance_that_a_pod_runs_on_is_there() -> None:
    scene = Scene()
    node = scene.node("n", "H100-80GB")
    scene.instance((node, 0), "3g.40gb", 0, [scene.pod("runs", running=True)], exists=False)
    assert "to be created" not in " ".join(drawn(scene).itertext()).replace("none to be created", "")
