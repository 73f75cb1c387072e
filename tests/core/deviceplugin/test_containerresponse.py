"""Which devices an answer names: those that it was made of."""

import pytest

from tessera.core.deviceplugin.containerresponse import visible_devices
from tessera.core.deviceplugin.containers.edits import ShareEdits
from tessera.core.deviceplugin.containers.injection import GPU_KIND, by_cdi, container_response, driver_mount
from tessera.core.node.liststrategies import DeviceInjection
from tessera.core.node.nodesharing import ListStrategy

EDITS = ShareEdits(env=(("A", "1"),), mounts=(driver_mount("/h"),))
TWO = ("GPU-a", "MIG-b")


@pytest.mark.parametrize(
    "strategies", [("envvar",), ("volume-mounts",), ("envvar", "volume-mounts"), ("envvar", "cdi-cri")]
)
@pytest.mark.parametrize("names", [TWO, ("0:1",), ("GPU-a",)])
def test_which_devices_an_answer_names(strategies: tuple[ListStrategy, ...], names: tuple[str, ...]) -> None:
    how = DeviceInjection(strategies=strategies)
    assert visible_devices(container_response(how, by_cdi(how, GPU_KIND, TWO), names, EDITS)) == names


def test_an_answer_by_cdi_alone_names_none() -> None:
    how = DeviceInjection(strategies=("cdi-cri",))
    assert visible_devices(container_response(how, by_cdi(how, GPU_KIND, TWO), TWO, EDITS)) == ()
