"""Which of the free devices a container should get."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.gpunodes import facts, offered, sevenths
from tessera.core.deviceplugin.offers.advertise import Resource
from tessera.core.deviceplugin.offers.prefer import AllocationPolicy, PreferenceRequest, prefer
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.errors import InvalidInput

SLICED = Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 3),))
WHOLE = Sharing(modes=(Mode.WHOLE,))
SEVEN = Sharing(modes=(Mode.MIG,), layout=sevenths(), allow_repartition=False)
MEMORY = Sharing(modes=(Mode.MEMORY_SHARE,))

REPLICAS = offered((facts(0, "T4"), SLICED), (facts(1, "T4"), SLICED))["nvidia.com/gpu"]
GPUS = offered(*((facts(i, "T4", numa=i % 2), WHOLE) for i in range(6)))["nvidia.com/gpu"]
SLICES = offered(*((facts(i, layout=sevenths()), SEVEN) for i in range(2)))["nvidia.com/mig-1g.5gb"]
UNITS = offered((facts(0), MEMORY), (facts(1, "T4"), MEMORY))["aliyun.com/gpu-mem"]

# sentence: (resource, positions of the available devices, of those to include, size, policy, distinct, want)
CHOICES: dict[str, tuple[Resource, list[int], list[int], int, AllocationPolicy, bool, list[int]]] = {
    "distributed takes the less used GPU": (REPLICAS, [1, 2, 3, 4, 5], [], 1, "distributed", False, [3]),
    "packed takes the more used GPU": (REPLICAS, [1, 2, 3, 4, 5], [], 1, "packed", False, [1]),
    "distributed spreads two": (REPLICAS, [0, 1, 2, 3, 4, 5], [], 2, "distributed", False, [0, 3]),
    "packed keeps two together": (REPLICAS, [0, 1, 2, 3, 4, 5], [], 2, "packed", False, [0, 1]),
    "distinct GPUs though packed": (REPLICAS, [1, 2, 3, 4, 5], [], 2, "packed", True, [1, 3]),
    "distinct GPUs though one is used more": (REPLICAS, [0, 1, 2, 5], [], 2, "distributed", True, [0, 5]),
    "a second replica of a GPU when all are chosen": (REPLICAS, [0, 1, 3], [], 3, "distributed", True, [0, 3, 1]),
    "what must be included counts": (REPLICAS, [0, 1, 2, 3, 4, 5], [4], 2, "distributed", True, [4, 0]),
    "whole GPUs of one NUMA node": (GPUS, [0, 1, 2, 3, 4, 5], [], 2, "distributed", False, [0, 2]),
    "the NUMA node with the fewest that are enough": (GPUS, [0, 1, 2, 3, 4], [], 2, "distributed", False, [1, 3]),
    "the fuller NUMA node when none is enough": (GPUS, [0, 1, 2, 3, 4], [], 4, "distributed", False, [0, 2, 4, 1]),
    "near what is held already": (GPUS, [0, 1, 2, 3, 5], [0], 2, "distributed", False, [0, 2]),
    "instances from the GPU that is used already": (
        SLICES,
        [0, 1, 2, 3, 4, 5, 6, 8, 9],
        [],
        2,
        "distributed",
        False,
        [8, 9],
    ),
    "two instances of one GPU, though replicas would be spread": (
        SLICES,
        list(range(14)),
        [],
        2,
        "distributed",
        True,
        [0, 1],
    ),
    "none": (REPLICAS, [0, 1], [], 0, "distributed", False, []),
}


@pytest.mark.parametrize("case", CHOICES)
def test_what_is_preferred(case: str) -> None:
    resource, available, must, size, policy, distinct, want = CHOICES[case]
    ids = [device.id for device in resource.devices]
    desired = PreferenceRequest(
        available=tuple(ids[i] for i in available), must_include=tuple(ids[i] for i in must), size=size
    )
    assert [ids.index(each) for each in prefer(resource, desired, policy, distinct=distinct)] == want


def test_ids_that_are_no_longer_offered_come_last() -> None:
    desired = PreferenceRequest(available=("gone", REPLICAS.devices[0].id), size=2)
    assert prefer(REPLICAS, desired) == (REPLICAS.devices[0].id, "gone")
    assert prefer(REPLICAS, PreferenceRequest(available=("gone",), must_include=("gone",), size=1)) == ("gone",)


@pytest.mark.parametrize(
    ("case", "desired"),
    [
        ("more than are available", PreferenceRequest(available=("a", "b", "a"), size=3)),
        ("more must be included", PreferenceRequest(available=("a", "b"), must_include=("a", "b"), size=1)),
        ("less than none", PreferenceRequest(available=("a",), size=-1)),
    ],
)
def test_what_cannot_be_preferred(case: str, desired: PreferenceRequest) -> None:
    with pytest.raises(InvalidInput, match=r"nvidia\.com/gpu") as error:
        prefer(REPLICAS, desired)
    assert error.value.found, case


@given(st.data())
def test_laws_of_the_preferred_allocation(data: st.DataObject) -> None:
    resource = data.draw(st.sampled_from([REPLICAS, GPUS, SLICES, UNITS]))
    ids = [device.id for device in resource.devices]
    available = data.draw(st.lists(st.sampled_from([*ids, "gone"]), unique=True))
    must = data.draw(st.lists(st.sampled_from(available), unique=True)) if available else []
    size = data.draw(st.integers(len(must), len(available)))
    policies: list[AllocationPolicy] = ["distributed", "packed"]
    policy = data.draw(st.sampled_from(policies))
    distinct = data.draw(st.booleans())
    desired = PreferenceRequest(available=tuple(available), must_include=tuple(must), size=size)
    got = prefer(resource, desired, policy, distinct=distinct)
    assert len(got) == len(set(got)) == size
    assert set(must) <= set(got) <= set(available)
    if distinct and resource is not SLICES and not must and "gone" not in available:  # slices are no replicas
        of = {device.id: device.gpu_uuid for device in resource.devices}
        gpus = Counter(of[each] for each in got)
        assert len(gpus) == min(size, len({of[each] for each in available}))
