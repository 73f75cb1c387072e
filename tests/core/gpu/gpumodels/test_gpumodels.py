"""The facts: what publications say of a product, and what must hold for every product."""

import pytest

from tessera.core.gpu.gpumodels import CATALOG, INSTANCE_TYPES, SOURCES, GpuModel, model

every_model = pytest.mark.parametrize("gpu", CATALOG, ids=lambda each: each.name)
every_mig_model = pytest.mark.parametrize(
    "gpu", [each for each in CATALOG if each.profiles], ids=lambda each: each.name
)


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("A100-40GB", {"1g.5gb": 7, "2g.10gb": 3, "3g.20gb": 2, "7g.40gb": 1}),
        ("A100-80GB", {"1g.10gb": 7, "2g.20gb": 3, "3g.40gb": 2, "7g.80gb": 1}),
        ("H100-80GB", {"1g.10gb": 7, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "7g.80gb": 1}),
    ],
)
def test_gke_table_of_partitions_comes_out(name: str, want: dict[str, int]) -> None:
    """Source: Google Kubernetes Engine documentation, Run multi-instance GPUs."""
    offered = {each.name: each.max_instances for each in model(name).profiles}
    assert {profile: offered[profile] for profile in want} == want


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("T4", 15360),
        ("L4", 23034),
        ("A10", 23028),
        ("L40S", 46068),
        ("V100-32GB", 32768),
        ("A100-40GB", 40960),
        ("H100-80GB", 81559),
        ("H200-141GB", 143771),
        ("B200-180GB", 183359),
    ],
)
def test_memory_of_a_gpu_is_what_nvidia_smi_prints(name: str, want: int) -> None:
    assert model(name).memory_mib == want
    assert model(name).memory_known


@pytest.mark.parametrize(
    ("name", "profile", "want"),
    [
        ("A100-40GB", "1g.5gb", (4864, True)),
        ("H100-80GB", "1g.10gb", (9984, True)),
        ("H100-80GB", "3g.40gb", (40448, True)),
        ("B200-180GB", "1g.23gb", (20992, True)),
        ("H100-94GB", "1g.12gb", (10780, False)),
        ("GH200-144GB", "7g.144gb", (4 * 36096, False)),
    ],
)
def test_memory_of_a_profile_is_the_listed_free_memory_or_an_estimate(
    name: str, profile: str, want: tuple[int, bool]
) -> None:
    found = next(each for each in model(name).profiles if each.name == profile)
    assert (found.memory_mib, found.memory_known) == want


def test_all_products_with_mig_and_the_usual_ones_without_are_there() -> None:
    assert sum(1 for each in CATALOG if each.profiles) == 15
    assert {"T4", "V100-16GB", "V100-32GB", "L4", "L40", "L40S", "A10", "A40", "RTX-A6000", "RTX-4090", "P100"} <= {
        each.name for each in CATALOG
    }


@every_model
def test_every_fact_has_a_source_that_is_explained(gpu: GpuModel) -> None:
    assert gpu.sources
    assert set(gpu.sources) <= SOURCES.keys()
    assert all(each.sources and set(each.sources) <= SOURCES.keys() for each in gpu.profiles)
    assert ("smi" in gpu.sources) == gpu.memory_known
    assert ("name" in gpu.sources) != gpu.memory_known


def test_every_source_is_used() -> None:
    used = {key for gpu in CATALOG for sources in (gpu.sources, *(p.sources for p in gpu.profiles)) for key in sources}
    used |= {each.source for each in INSTANCE_TYPES.values()}
    assert SOURCES.keys() - used == {"gke"}


@every_mig_model
def test_profiles_fit_the_gpu(gpu: GpuModel) -> None:
    for each in gpu.profiles:
        assert 0 < each.compute_slices <= gpu.compute_slices
        assert 0 < each.memory_mib < gpu.memory_mib
        assert all(start + each.size <= gpu.memory_slices for start in each.starts)
        assert bool(each.starts) == bool(each.size) == (each.placement != "unknown")
        assert list(each.starts) == sorted(set(each.starts))
    names = [each.name for each in gpu.profiles]
    assert len(set(names)) == len(names)


@every_mig_model
def test_instances_side_by_side_have_no_more_memory_than_the_gpu(gpu: GpuModel) -> None:
    for each in gpu.profiles:
        assert each.memory_mib * each.max_instances <= gpu.memory_mib


@every_mig_model
def test_equal_memory_slices_have_equal_memory_and_more_have_more(gpu: GpuModel) -> None:
    by_size = {each.size: each.memory_mib for each in gpu.profiles}
    assert all(by_size[each.size] == each.memory_mib for each in gpu.profiles if each.size)
    sizes = sorted(by_size.items())
    assert all(mib * (more // size) <= larger for size, mib in sizes for more, larger in sizes if 0 < size < more)


@every_model
def test_records_are_hashable_and_equal_by_value(gpu: GpuModel) -> None:
    assert {gpu: 1}[model(gpu.name)] == 1
