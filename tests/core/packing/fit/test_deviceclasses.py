"""Classes of devices: an option of an existing device has the class of a device on that GPU."""

import pytest

from builders.mixedclusters import ASKS, GPU_KINDS
from tessera.core.cluster.gputypes import GpuType
from tessera.core.cluster.snapshot import Gpu
from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.packing.fit.deviceclasses import class_of


@pytest.mark.parametrize(("model", "sharing"), GPU_KINDS)
def test_an_option_of_an_existing_device_has_the_class_of_one_there(model: GpuModel, sharing: Sharing) -> None:
    kind = GpuType.of(Gpu(index=0, model=model, memory_mib=model.memory_mib, sharing=sharing))
    there = {class_of(device) for device in kind.devices}
    asked = {request for requests in ASKS for request in requests}
    options = [option for request in asked for option in kind.options(request) if option.exists]
    assert {class_of(option) for option in options if option.mode is not Mode.WHOLE} <= there
    assert len(there) <= len(kind.devices)


def test_devices_that_differ_for_a_pod_are_of_different_classes() -> None:
    kinds = [GpuType.of(Gpu(index=0, model=m, memory_mib=m.memory_mib, sharing=s)) for m, s in GPU_KINDS]
    devices = {device for kind in kinds for device in kind.devices}
    by_class = {class_of(each): each for each in devices}
    for each in devices:
        other = by_class[class_of(each)]
        assert (each.resource, each.memory_mib, each.compute_percent, each.mode) == (
            other.resource,
            other.memory_mib,
            other.compute_percent,
            other.mode,
        )
    assert len(by_class) > 5
