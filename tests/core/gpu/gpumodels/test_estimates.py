"""Estimated memory is never above what a listing says."""

import re

import pytest

from tessera.core.gpu.gpumodels import CATALOG, GpuModel
from tessera.core.gpu.gpumodels.estimates import gpu_memory_mib, profile_memory_mib


@pytest.mark.parametrize("gpu", [each for each in CATALOG if each.profiles], ids=lambda each: each.name)
def test_estimates_are_below_every_listing(gpu: GpuModel) -> None:
    """What the rule would have said of a profile with a listing is not more than the listing."""
    listed = {each.size: each.memory_mib for each in gpu.profiles if each.memory_known}
    for size, mib in listed.items():
        smaller = {other: listed[other] for other in listed if other < size}
        assert profile_memory_mib(gpu.memory_mib, (size, gpu.memory_slices), smaller) <= mib


@pytest.mark.parametrize("gpu", CATALOG, ids=lambda each: each.name)
def test_the_estimate_of_a_gpu_is_below_its_listing(gpu: GpuModel) -> None:
    nominal = re.search(r"(\d+)GB", gpu.name)
    if nominal:
        assert gpu_memory_mib(int(nominal[1])) <= gpu.memory_mib


@pytest.mark.parametrize(
    ("listed", "want"),
    [
        ({}, 9000),  # nine tenths of a quarter of 40000
        ({1: 4900}, 9800),  # twice a listed profile of half the slices
        ({4: 19900}, 9000),  # a larger profile says nothing
    ],
)
def test_a_profile_has_the_larger_of_both_bounds(listed: dict[int, int], want: int) -> None:
    assert profile_memory_mib(40_000, (2, 8), listed) == want
