"""How much memory is one `aliyun.com/gpu-mem`, where nodes may count it in different units?"""

from collections.abc import Iterable

__all__ = ["UNITS_MIB", "common_unit_mib", "mixed_units"]

_GIB_MIB = 1024
UNITS_MIB = (1, _GIB_MIB)
"""The units that a GPUPolicy can name. No other counts: one node's report must not change all requests."""


def common_unit_mib(units: Iterable[int]) -> int:
    """Return the MiB in one unit, by the units of the nodes that have some: the largest.

    A pod's request does not say which unit it means. Read in the largest, no pod gets less than it requests, whatever
    one node reports.
    """
    return max(units, default=_GIB_MIB)


def mixed_units(units: Iterable[int]) -> str:
    """Return the cause and the fix where nodes count in different units; empty where they do not."""
    different = sorted(set(units))
    if len(different) <= 1:
        return ""
    listed = " and ".join(f"{unit} MiB" for unit in different)
    return (
        f"nodes count aliyun.com/gpu-mem in units of {listed}, and requests are read in units of {different[-1]} MiB: "
        "set the same unit in the GPUPolicies of all nodes"
    )
