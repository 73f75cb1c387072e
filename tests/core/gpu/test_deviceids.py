"""GPUs and MIG instances: their order and words, which overlap, and which the kubelet's ids stand for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.gpufacts import at
from builders.gpunodes import facts, identity, sevenths
from tessera.core.gpu.deviceids import DeviceId, devices_of_ids, existing_devices, overlap
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.mig import Placement, placements

A100 = model("A100-40GB")
FIRST, SECOND = identity("GPU", 0), identity("GPU", 1)
SEVEN = sevenths()
(HALF,) = at("A100-40GB", ("3g.20gb", 0))
(OTHER,) = at("A100-40GB", ("3g.20gb", 4))
UNKNOWN = DeviceId("GPU-x", Placement(6, 0, "y"))
MODELS = {FIRST: A100, SECOND: A100}
DEVICES = st.builds(DeviceId, st.sampled_from((FIRST, SECOND)), st.none() | st.sampled_from(placements(A100)))


def test_a_gpu_comes_before_its_instances() -> None:
    devices = [DeviceId("b"), DeviceId("a", HALF), DeviceId("a"), DeviceId("a", SEVEN[0])]
    assert [str(each) for each in sorted(devices, key=DeviceId.order)] == [
        "GPU a",
        "1g.5gb at 0 of GPU a",
        "3g.20gb at 0 of GPU a",
        "GPU b",
    ]


OVERLAPS: dict[str, tuple[DeviceId, DeviceId, bool]] = {
    "a GPU with itself": (DeviceId(FIRST), DeviceId(FIRST), True),
    "two GPUs": (DeviceId(FIRST), DeviceId(SECOND), False),
    "a GPU with an instance on it": (DeviceId(FIRST), DeviceId(FIRST, HALF), True),
    "instances of two GPUs": (DeviceId(FIRST, HALF), DeviceId(SECOND, HALF), False),
    "an instance with one in its place": (DeviceId(FIRST, HALF), DeviceId(FIRST, SEVEN[3]), True),
    "an instance with its neighbor": (DeviceId(FIRST, HALF), DeviceId(FIRST, OTHER), False),
    "the places of two instances without size": (
        DeviceId(FIRST, Placement(0, 0, "3g.20gb")),
        DeviceId(FIRST, Placement(3, 0, "1g.5gb")),
        True,
    ),
    "an instance of a profile that the GPU does not have": (
        DeviceId(FIRST, HALF),
        DeviceId(FIRST, Placement(6, 0, "9g.9gb")),
        True,
    ),
    "instances of a GPU that nobody knows": (DeviceId("GPU-x", HALF), DeviceId("GPU-x", OTHER), False),
    "an instance without size of a GPU that nobody knows": (
        DeviceId("GPU-x", HALF),
        DeviceId("GPU-x", Placement(6, 0, "1g.5gb")),
        True,
    ),
    "what nobody knows, with itself": (
        DeviceId("GPU-x", Placement(6, 0, "y")),
        DeviceId("GPU-x", Placement(6, 0, "y")),
        True,
    ),
}


@pytest.mark.parametrize("sentence", OVERLAPS)
def test_overlap(sentence: str) -> None:
    a, b, want = OVERLAPS[sentence]
    assert overlap(a, b, MODELS) is want
    assert overlap(b, a, MODELS) is want


@given(DEVICES, DEVICES)
def test_overlap_is_symmetric_and_every_device_overlaps_itself(a: DeviceId, b: DeviceId) -> None:
    assert overlap(a, b, MODELS) is overlap(b, a, MODELS)
    assert overlap(a, a, MODELS)


def test_ids_of_the_kubelet_stand_for_devices_and_units_for_none() -> None:
    cut = facts(0, layout=SEVEN[:2])
    inventory = Inventory(gpus=(cut, facts(1)))
    ids = (cut.instances[1].uuid, f"{SECOND}::2", f"{SECOND}-_-4", "GPU-gone")
    assert devices_of_ids(ids, inventory) == {DeviceId(FIRST, SEVEN[1]), DeviceId(SECOND)}
    assert existing_devices(inventory) == {
        DeviceId(FIRST, SEVEN[0]): cut.instances[0].uuid,
        DeviceId(FIRST, SEVEN[1]): cut.instances[1].uuid,
        DeviceId(SECOND): SECOND,
    }
