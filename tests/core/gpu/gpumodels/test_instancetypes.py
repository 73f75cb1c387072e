"""Cloud instance types: each has its GPUs, whole or a part, and a source."""

import pytest

from tessera.core.gpu.gpumodels import INSTANCE_TYPES, SOURCES


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("g4dn.12xlarge", ("T4", 4, 15360)),
        ("p5.48xlarge", ("H100-80GB", 8, 81559)),
        ("g5g.xlarge", ("T4G", 1, 15258)),
        ("g6f.large", ("L4", 1, 2861)),
        ("gr6f.4xlarge", ("L4", 1, 11444)),
        ("Standard_NC24ads_A100_v4", ("A100-80GB", 1, 81920)),
        ("Standard_ND96asr_v4", ("A100-40GB", 8, 40960)),
        ("Standard_ND128isr_NDR_GB200_v6", ("GB200-186GB", 4, 189471)),
        ("Standard_NV36adms_A10_v5", ("A10", 1, 23028)),
        ("a2-megagpu-16g", ("A100-40GB", 16, 40960)),
        ("a3-edgegpu-8g", ("H100-80GB", 8, 81559)),
        ("a4x-highgpu-4g-nolssd", ("GB200-186GB", 4, 189471)),
        ("a4x-maxgpu-4g-metal", ("GB300", 4, 284208)),
        ("g4-standard-6", ("RTX-PRO-6000-Blackwell-96GB", 1, 11444)),
        ("g4-standard-384", ("RTX-PRO-6000-Blackwell-96GB", 8, 97887)),
        ("g7.48xlarge", ("RTX-PRO-4500-Blackwell-32GB", 8, 30517)),
        ("p6e-gb200.36xlarge", ("GB200-186GB", 4, 189471)),
        ("Standard_NCC40ads_H100_v5", ("H100-94GB", 1, 95830)),
        ("Standard_NC72ds_xl_RTXPRO6000BSE_v6", ("RTX-PRO-6000-Blackwell-96GB", 1, 45776)),
        ("Standard_NC288lds_xl_RTXPRO6000BSE_v6", ("RTX-PRO-6000-Blackwell-96GB", 2, 97887)),
        ("BM.GPU.A100-v2.8", ("A100-80GB", 8, 81920)),
        ("BM.GPU.B300.8", ("B300", 8, 275040)),
    ],
)
def test_the_gpus_of_an_instance_type(name: str, want: tuple[str, int, int]) -> None:
    got = INSTANCE_TYPES[name.casefold()]
    assert (got.model.name, got.count, got.memory_mib) == want


def test_every_row_has_a_source_and_no_more_memory_than_its_model() -> None:
    assert len(INSTANCE_TYPES) > 150
    for each in INSTANCE_TYPES.values():
        assert each.source in SOURCES
        assert 0 < each.memory_mib <= each.model.memory_mib
        assert 1 <= each.count <= 16
