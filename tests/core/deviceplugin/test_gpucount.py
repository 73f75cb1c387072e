"""What gpushare's programs get of a node."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.shares import share
from tessera.core.deviceplugin.allocations.kubeletallocations import RequestKey
from tessera.core.deviceplugin.allocations.matching import AssignedRequest
from tessera.core.deviceplugin.gpucount import gpus_to_count
from tessera.core.deviceplugin.offers.advertise import PluginDevice, Resource
from tessera.core.gpu.sharing import Mode
from tessera.core.workload.resources import SHARE_MEMORY

# sentence: (GPU of each unit, GPUs of which pods were allocated memory, the number)
CASES = {
    "no GPU shares its memory": ([], [], 0),
    "memory that is still allocated of a node that offers none": ([], [1], 0),
    "two GPUs of two units each": (["a", "a", "b", "b"], [0, 1], 2),
    "a GPU that does not share its memory is not counted, whatever its index": (["b", "c"], [], 2),
    "nor where the GPUs in use are shown without it": (["b", "c"], [1], 2),
    "it is counted where memory in use would not be shown otherwise": (["b", "c"], [1, 2], 3),
}


def offered(gpus: Iterable[object]) -> tuple[Resource, ...]:
    """Return what is advertised where units are of these GPUs; of the other resource nothing counts."""
    devices = tuple(
        PluginDevice(id=f"{number}", gpu_uuid=str(gpu), uuid=str(gpu), mode=Mode.MEMORY_SHARE)
        for number, gpu in enumerate(gpus)
    )
    other = PluginDevice(id="x", gpu_uuid="x", uuid="x", mode=Mode.WHOLE)
    return (Resource(name="nvidia.com/gpu", devices=(other,)), Resource(name=SHARE_MEMORY, devices=devices))


def requested(gpus: Iterable[int]) -> list[AssignedRequest]:
    """Return what pods were assigned that have memory of these GPUs, beside one that has a whole GPU."""
    keys = ((SHARE_MEMORY, gpu) for gpu in gpus)
    return [
        AssignedRequest(key=RequestKey("ns", "p", "c", resource), units=1, shares=(share(gpu),))
        for resource, gpu in (*keys, ("nvidia.com/gpu", 7))
    ]


@pytest.mark.parametrize(("shared", "used", "want"), CASES.values(), ids=CASES)
def test_gpus_to_count(shared: list[str], used: list[int], want: int) -> None:
    assert gpus_to_count(offered(shared), requested(used)) == want


@given(st.sets(st.integers(0, 7), min_size=1), st.data())
def test_all_memory_in_use_is_shown(shared: set[int], data: st.DataObject) -> None:
    used = data.draw(st.sets(st.sampled_from(sorted(shared))))
    count = gpus_to_count(offered(shared), requested(used))
    assert count >= len(shared)
    assert all(index < count for index in used)
