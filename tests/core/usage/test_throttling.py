from tessera.core.usage.throttling import ThrottleCause, causes


def test_causes_are_those_that_lower_clocks() -> None:
    assert causes(None) == causes(0) == causes(0x1 | 0x2 | 0x10 | 0x100) == ()
    assert causes(0x4 | 0x20) == (ThrottleCause.POWER_CAP, ThrottleCause.THERMAL)
    assert causes(0x1FF) == tuple(ThrottleCause)
