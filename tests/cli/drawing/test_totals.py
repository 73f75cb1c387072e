"""The totals of a plan: sums over its fleet, each pod once."""

import pytest

from builders.scenes import SCENES, Scene
from tessera.cli.drawing.totals import totals
from tessera.cli.drawing.views import fleet
from tessera.core.gpu.sharing import Mode
from tessera.core.workload.need import Isolation


@pytest.mark.parametrize("scene", [pytest.param(build(), id=name) for name, build in SCENES.items()])
def test_totals_are_those_of_plan_and_fleet(scene: Scene) -> None:
    whole = fleet(scene.plan, scene.snapshot)
    found = totals(whole)
    assert (found.nodes, found.gpus) == (len(whole.nodes), sum(len(node.gpus) for node in whole.nodes))
    assert found.pending == len(scene.plan.pending)
    assert found.allocated_mib <= found.memory_mib
    assert found.gpus_used <= found.gpus
    pods = {holder.pod for gpu in whole.gpus for device in gpu.devices for holder in device.pods}
    assert sum(count for _, count in found.grades) == len(pods)


def test_a_pod_on_several_devices_counts_with_its_weakest_isolation() -> None:
    scene = Scene()
    node = scene.node("n", "T4", "T4")
    pod = scene.pod("both")
    scene.whole((node, 0), Mode.WHOLE, 1, {pod: 15360})
    scene.whole((node, 1), Mode.TIME_SLICING, 4, {pod: 3840})
    found = totals(fleet(scene.plan, scene.snapshot))
    assert dict(found.grades) == {Isolation.NONE: 1, Isolation.DRIVER: 0, Isolation.HARDWARE: 0}
    assert (found.gpus_used, found.instances) == (2, 0)
