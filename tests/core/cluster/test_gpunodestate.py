"""The devices that a record of a GPU names, one by one."""

from builders.gpufacts import at
from tessera.core.cluster.gpunodestate import DesiredDevices, UnhealthyDevice
from tessera.core.gpu.deviceids import DeviceId

TWO = at("A100-40GB", ("1g.5gb", 0), ("2g.10gb", 2))


def test_desired_devices_are_the_whole_gpu_or_its_instances() -> None:
    assert DesiredDevices(gpu="u", whole=True).devices == (DeviceId("u"),)
    assert DesiredDevices(gpu="u", instances=TWO).devices == (DeviceId("u", TWO[0]), DeviceId("u", TWO[1]))
    assert DesiredDevices(gpu="u").devices == ()


def test_what_is_unhealthy_is_a_gpu_or_an_instance() -> None:
    assert UnhealthyDevice(device=DeviceId("u")).device == DeviceId("u")
    assert UnhealthyDevice(device=DeviceId("u", TWO[1])).device == DeviceId("u", TWO[1])
