"""What a GPU model's record says of its profiles."""

import pytest

from tessera.core.gpu.gpumodels import CATALOG, GpuModel, model


@pytest.mark.parametrize("gpu", [each for each in CATALOG if each.profiles], ids=lambda each: each.name)
def test_instances_side_by_side_have_no_more_compute_than_the_gpu(gpu: GpuModel) -> None:
    for each in gpu.profiles:
        part = gpu.compute_part(each.name)
        assert part is not None
        assert 0 < part * each.max_instances <= 1


def test_the_part_of_the_compute_is_that_of_a_profile_of_the_gpu() -> None:
    h100 = model("H100-80GB")
    assert [h100.compute_part(each) for each in ("1g.10gb", "3g.40gb", "1g.5gb")] == [1 / 7, 3 / 7, None]
    assert model("T4").compute_part("1g.10gb") is None
