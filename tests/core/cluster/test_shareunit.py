"""One unit for `aliyun.com/gpu-mem`, whatever single nodes report."""

from tessera.core.cluster.shareunit import common_unit_mib, mixed_units


def test_the_largest_unit_counts() -> None:
    assert common_unit_mib(()) == 1024
    assert common_unit_mib((1, 1)) == 1
    assert common_unit_mib((1, 1024)) == 1024


def test_different_units_are_named_with_the_fix() -> None:
    assert mixed_units(()) == ""
    assert mixed_units((1024, 1024)) == ""
    assert mixed_units((1, 1024, 1)) == (
        "nodes count aliyun.com/gpu-mem in units of 1 MiB and 1024 MiB, and requests are read in units of 1024 MiB: "
        "set the same unit in the GPUPolicies of all nodes"
    )
