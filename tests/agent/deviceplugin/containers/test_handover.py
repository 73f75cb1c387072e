"""What a container gets with devices that it requests by name, and their indices as the driver numbers them now."""

from pathlib import Path

import pytest

from builders.gpunodes import facts, offered, sevenths
from tessera.agent.deviceplugin.containers.changerequests import ChangeRequests
from tessera.agent.deviceplugin.containers.devicemaker import DeviceMaker, PluginPaths
from tessera.agent.deviceplugin.containers.handover import DeviceHandover
from tessera.core.deviceplugin.allocations.agentallocations import AllocatedDevice
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.node.liststrategies import DeviceInjection
from tessera.errors import Unavailable

WHOLE = Sharing(modes=(Mode.WHOLE,))


@pytest.fixture
def maker(tmp_path: Path) -> DeviceMaker:
    """Return the devices of a node with two GPUs."""
    paths = PluginPaths(minors=tmp_path / "minors", dev=tmp_path)
    made = DeviceMaker(paths, ChangeRequests(), complain=lambda error: pytest.fail(str(error)))
    made.observe(Inventory(gpus=(facts(0, "T4"), facts(1, layout=sevenths()[:2]))))
    return made


def test_a_container_sees_its_devices_as_the_node_hands_them_over_now(maker: DeviceMaker) -> None:
    (resource,) = offered((facts(0, "T4"), WHOLE)).values()
    handover = DeviceHandover(maker, DeviceInjection())
    uuid = facts(0).uuid
    assert dict(handover.give(resource, resource.devices).env)["NVIDIA_VISIBLE_DEVICES"] == uuid
    handover.injection = DeviceInjection(by_index=True)
    given = dict(handover.give(resource, resource.devices).env)
    assert (given["NVIDIA_VISIBLE_DEVICES"], given["TESSERA_GPU_UUIDS"]) == ("0", uuid)


def test_a_gpu_that_the_driver_does_not_list_any_more_is_refused_by_name(maker: DeviceMaker) -> None:
    (resource,) = offered((facts(2, "T4"), WHOLE)).values()
    with pytest.raises(Unavailable, match=f"nvidia.com/gpu on GPU {facts(2).uuid}.*does not list this GPU any more"):
        DeviceHandover(maker, DeviceInjection()).give(resource, resource.devices)


def test_an_index_is_the_drivers_and_none_where_the_device_is_not_there(maker: DeviceMaker) -> None:
    first, second, third = sevenths()[:3]
    split = facts(1).uuid
    devices = (
        DeviceId(facts(0).uuid),
        DeviceId(split, first),
        DeviceId(split, second),
        DeviceId(split, third),
        DeviceId("other"),
    )
    found = DeviceHandover(maker, DeviceInjection()).indices(tuple(AllocatedDevice(device=each) for each in devices))
    assert found == ("0", "1:0", "1:1", "none", "none")
