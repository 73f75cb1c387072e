"""Room for MIG instances, against trying every set of placements."""

import functools
import itertools
import operator

import numpy as np
import pytest

from builders.profiles import profile
from tessera.core.gpu.gpumodels import GpuModel, model
from tessera.core.gpu.instancecounts import occupied, profile_of, rooms, starts
from tessera.core.gpu.mig import Placement, all_layouts, open_placements, remaining

MODEL = GpuModel(
    name="six",
    arch="",
    memory_mib=6,
    memory_slices=6,
    profiles=(
        profile("1g", 1, (0, 1, 2, 3, 4)),
        profile("1g+me", 1, (0, 1, 2, 3, 4), media="me"),
        profile("2g", 2, (0, 2, 4)),
        profile("3g", 3, (0, 2, 3)),
        profile("none", 2, ()),
    ),
    at_most_one=("me",),
)
ME = 1 << MODEL.memory_slices


@pytest.mark.parametrize("name", [p.name for p in MODEL.profiles])
def test_room_is_the_most_disjoint_placements_in_every_state(name: str) -> None:
    own = profile_of(MODEL, name)
    table = rooms(MODEL, own)
    assert len(table) == 2 * ME
    for state in range(len(table)):
        spots = [Placement(s, own.size, name) for s in starts(MODEL, own, state)]
        most = max(
            len(chosen)
            for n in range(len(spots) + 1)
            for chosen in itertools.combinations(spots, n)
            if sum(p.mask for p in chosen).bit_count() == n * own.size
        )
        assert table[state] == (min(most, 1) if own.media == "me" else most)
    assert table.dtype == np.int8


def test_room_on_a_gpu_whose_media_engines_one_instance_can_take_is_what_the_layouts_say() -> None:
    gpu = model("RTX-PRO-6000")
    tables = {each.name: rooms(gpu, each) for each in gpu.profiles}
    for layout in all_layouts(gpu):
        state = functools.reduce(operator.or_, (occupied(gpu, place) for place in layout), 0)
        assert {name: int(table[state]) for name, table in tables.items()} == remaining(gpu, layout)
        free = {(each.profile, each.start) for each in open_placements(gpu, layout)}
        assert {(each.name, start) for each in gpu.profiles for start in starts(gpu, each, state)} == free


def test_an_instance_takes_its_units_and_its_media_kind() -> None:
    assert occupied(MODEL, Placement(2, 3, "3g")) == 0b11100
    assert occupied(MODEL, Placement(1, 1, "1g+me")) == 0b10 | ME
    assert starts(MODEL, profile_of(MODEL, "1g+me"), ME) == ()
    assert starts(MODEL, profile_of(MODEL, "1g"), ME | 1) == (1, 2, 3, 4)
