import pytest

from tessera.core.usage.throttling import ThrottleCause, causes


def test_causes_are_those_that_lower_clocks() -> None:
    assert causes(None) == causes(0) == causes(0x1 | 0x2 | 0x10 | 0x100) == ()
    assert causes(0x4 | 0x20) == (ThrottleCause.POWER_CAP, ThrottleCause.THERMAL)
    assert causes(0x8) == (ThrottleCause.HARDWARE_SLOWDOWN,)


@pytest.mark.parametrize("specific", [0x40, 0x80, 0xC0])
def test_a_hardware_slowdown_with_a_stated_cause_is_one_cause(specific: int) -> None:
    assert causes(0x8 | specific) == causes(specific)


def test_every_cause_has_a_bit() -> None:
    assert {cause for bit in range(9) for cause in causes(1 << bit)} == set(ThrottleCause)
