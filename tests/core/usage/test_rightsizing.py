"""What would fit a container."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.gpu.gpumodels import GpuModel, model
from tessera.core.usage.rightsizing import Advice, DeviceUsage, Sizing, advise

A100, T4 = model("A100-40GB"), model("T4")
SMALL, LARGE = (next(each.memory_mib for each in A100.profiles if each.name == name) for name in ("1g.5gb", "3g.20gb"))


def whole(allocated_mib: int | None, peak_mib: int | None) -> DeviceUsage:
    return DeviceUsage(allocated_mib=allocated_mib, peak_mib=peak_mib)


def amount(allocated_mib: int, peak_mib: int) -> DeviceUsage:
    return DeviceUsage(amount=True, allocated_mib=allocated_mib, peak_mib=peak_mib)


CASES: dict[str, tuple[DeviceUsage, GpuModel | None, Advice]] = {
    "a whole GPU for what a small instance holds": (
        whole(A100.memory_mib, 3000),
        A100,
        Advice(verdict=Sizing.TOO_MUCH, fits="1g.5gb", saved_mib=A100.memory_mib - SMALL),
    ),
    "an instance that is as small as can be": (whole(SMALL, 3000), A100, Advice(verdict=Sizing.FITS)),
    "an instance that is nearly full": (
        whole(SMALL, SMALL - 10),
        A100,
        Advice(verdict=Sizing.TOO_LITTLE, fits="1g.10gb"),
    ),
    "a GPU that is nearly full": (
        whole(A100.memory_mib, A100.memory_mib - 10),
        A100,
        Advice(verdict=Sizing.TOO_LITTLE),
    ),
    "a GPU without MIG": (whole(T4.memory_mib, 10), T4, Advice(verdict=Sizing.FITS)),
    "a GPU of a model that nobody knows": (whole(40000, 10), None, Advice(verdict=Sizing.FITS)),
    "an amount of which little is used": (
        amount(8192, 2000),
        None,
        Advice(verdict=Sizing.TOO_MUCH, fits="3 GiB", saved_mib=5120),
    ),
    "an amount that is just enough": (amount(3072, 2400), None, Advice(verdict=Sizing.FITS)),
    "an amount that was used up": (amount(2048, 2048), None, Advice(verdict=Sizing.TOO_LITTLE, fits="3 GiB")),
    "nothing was used": (whole(LARGE, 0), A100, Advice(verdict=Sizing.UNUSED, saved_mib=LARGE)),
    "nobody knows what was used": (whole(LARGE, None), A100, Advice(verdict=Sizing.UNKNOWN)),
    "nobody knows what was allocated": (whole(None, 7), A100, Advice(verdict=Sizing.UNKNOWN)),
}


@pytest.mark.parametrize("case", CASES)
def test_advice(case: str) -> None:
    observed, known, want = CASES[case]
    assert advise(observed, known) == want


@given(st.integers(1, 80_000), st.integers(0, 80_000), st.booleans())
def test_what_is_advised_holds_the_peak_with_a_fifth_to_spare(
    allocated_mib: int, peak_mib: int, by_amount: bool
) -> None:
    advice = advise(DeviceUsage(amount=by_amount, allocated_mib=allocated_mib, peak_mib=peak_mib), A100)
    assert 0 <= advice.saved_mib <= allocated_mib
    if advice.verdict is Sizing.TOO_MUCH:
        left_mib = allocated_mib - advice.saved_mib
        assert left_mib >= peak_mib * 1.2
        assert advice.saved_mib > 0
