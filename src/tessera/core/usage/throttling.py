"""Why a GPU's clocks are lowered."""

import enum

__all__ = ["KNOWN_REASONS", "ThrottleCause", "causes"]


class ThrottleCause(enum.StrEnum):
    """Causes of lowered clocks. Source: NVML, nvmlClocksEventReason*."""

    POWER_CAP = "power-cap"
    """The power limit."""
    THERMAL = "thermal"
    """Too hot: the driver lowers clocks."""
    HARDWARE_THERMAL = "hardware-thermal"
    """Too hot: the hardware halves clocks, or more."""
    HARDWARE_SLOWDOWN = "hardware-slowdown"
    """The hardware lowers clocks and does not say why: for example the supply dropped."""
    POWER_BRAKE = "power-brake"
    """The machine's power supply requests it."""


_BITS = {
    ThrottleCause.POWER_CAP: 0x4,
    ThrottleCause.THERMAL: 0x20,
    ThrottleCause.HARDWARE_THERMAL: 0x40,
    ThrottleCause.HARDWARE_SLOWDOWN: 0x8,
    ThrottleCause.POWER_BRAKE: 0x80,
}

KNOWN_REASONS = 0x7FF
"""All bits that NVML defines; those beside the causes: idle, clocks set by a user, sync boost, display clocks, and
of earlier drivers board limit and reliability."""


_SPECIFIC = frozenset({ThrottleCause.HARDWARE_THERMAL, ThrottleCause.POWER_BRAKE})
"""NVML sets the bit of the hardware slowdown beside theirs."""


def causes(reasons: float | None) -> tuple[ThrottleCause, ...]:
    """Return why clocks are lowered, by the driver's bits; none if idle or set by a user.

    The hardware's slowdown is left out where it says why.
    """
    found = tuple(cause for cause, bit in _BITS.items() if int(reasons or 0) & bit)
    specific = _SPECIFIC.intersection(found)
    return tuple(each for each in found if not (specific and each is ThrottleCause.HARDWARE_SLOWDOWN))
