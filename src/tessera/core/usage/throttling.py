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
    """The hardware lowers clocks: too hot, power brake, or a drop of the supply."""
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


def causes(reasons: float | None) -> tuple[ThrottleCause, ...]:
    """Return why clocks are lowered, by the driver's bits; none if idle or set by a user."""
    return tuple(cause for cause, bit in _BITS.items() if int(reasons or 0) & bit)
