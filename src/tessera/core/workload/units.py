"""Kubernetes quantities, read exactly, and the integer units the core counts in: milli-cpu, MiB, devices.

Source of the grammar: kubernetes/apimachinery `pkg/api/resource/quantity.go` (`parseQuantityString`, `ParseQuantity`)
and `suffix.go`. Where Kubernetes caps a quantity at 2^63 - 1 or reads a lone suffix as zero, this module rejects it:
both are mistakes in a manifest.
"""

import re
from fractions import Fraction

from tessera.errors import InvalidInput, shown

__all__ = [
    "MIB",
    "MOST_CPU_MILLI",
    "cores",
    "count",
    "cpu_milli",
    "gib",
    "memory_mib",
    "quantity",
    "round_down",
    "round_up",
]

MIB = 1 << 20
"""Bytes in one MiB."""
MOST_CPU_MILLI = 1 << 40
"""A thousand million cores, the cap of cpu amounts: no node has them, and sums of them stay within 64 bits."""

_MIB_IN_GIB = 1024
_LARGEST = (1 << 63) - 1
_NANO = 10**9
_GRAMMAR = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+)|([numkMGTPE]?|[KMGTPE]i))", re.ASCII)
_SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "": Fraction(1),
} | {
    suffix: scale
    for power, letter in enumerate("KMGTPE", start=1)
    for suffix, scale in (
        ("k" if letter == "K" else letter, Fraction(1000**power)),
        (f"{letter}i", Fraction(1024**power)),
    )
}
_ACCEPTED = (
    "write a number with an optional suffix n u m k M G T P E Ki Mi Gi Ti Pi Ei or an exponent, as 1, 500m, 1.5Gi, 2e3"
)
_WITHIN = "a quantity of at most 2^63 - 1"
_MAX_TEXT = 64
"""Longest quantity read; the largest number with nano precision has 29 characters. Integers need fewer bits."""


def quantity(value: object, subject: str) -> Fraction:
    """Return a Kubernetes quantity as an exact number, rounded away from zero to whole nano-units as Kubernetes does.

    Args:
        value: the quantity as it stands in a manifest: text, an integer or a decimal number.
        subject: the place of the quantity, for the error.

    Raises:
        InvalidInput: not a quantity, or its magnitude is above 2^63 - 1.

    """
    text = _text(value)
    if isinstance(value, int) and value.bit_length() >= _MAX_TEXT:
        raise InvalidInput(subject, found=text, expected=_WITHIN)
    match = _GRAMMAR.fullmatch(text)
    if match is None or not (match[2] or match[3]) or len(text) > _MAX_TEXT:
        raise InvalidInput(subject, found=shown(text), expected="a Kubernetes quantity", hint=_ACCEPTED)
    sign, whole, part, exponent, suffix = match.groups(default="")
    # Clipped so far out that the result is refused or rounds up to one nano.
    scale = Fraction(10) ** max(-2 * _MAX_TEXT, min(2 * _MAX_TEXT, int(exponent))) if exponent else _SUFFIXES[suffix]
    number = int(whole + part) * scale / 10 ** len(part)
    if number > _LARGEST:
        raise InvalidInput(subject, found=shown(text), expected=_WITHIN)
    nano = Fraction(round_up(number * _NANO), _NANO)
    return -nano if sign == "-" else nano


def _text(value: object) -> str:
    """Return the value's text; booleans and non-scalars are no quantities."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and value.bit_length() >= _MAX_TEXT:
        return f"an integer of {value.bit_length()} bits"
    return str(value)


def gib(mib: int, *, up: bool = False) -> str:
    """Return an amount of memory for people: MiB below one GiB, else GiB, with one decimal below a thousand.

    Rounded down, so that no text promises more than is free; `up` for what is missing or has to be free. All commands
    and the page write memory by this rule (`gib` in server/page/files/fleet.js), but for what other programs read.
    """
    if 0 < mib < _MIB_IN_GIB:
        return f"{mib} MiB"
    parts = 1 if mib >= 1000 * _MIB_IN_GIB else 10
    rounded = -(-parts * mib // _MIB_IN_GIB) if up else parts * mib // _MIB_IN_GIB
    return f"{f'{rounded / parts:,.1f}'.removesuffix('.0')} GiB"


def cores(milli: int) -> str:
    """Return an amount of CPU for people, exactly: 15.2."""
    return f"{milli / 1000:.3f}".rstrip("0").rstrip(".")


def round_up(number: Fraction) -> int:
    """Return the smallest integer that is at least `number`."""
    return -(-number.numerator // number.denominator)


def round_down(number: Fraction) -> int:
    """Return the largest integer that is at most `number`."""
    return number.numerator // number.denominator


def _not_negative(value: object, subject: str) -> Fraction:
    number = quantity(value, subject)
    if number < 0:
        raise InvalidInput(subject, found=shown(_text(value)), expected="a quantity of zero or more")
    return number


def cpu_milli(value: object, subject: str, *, capacity: bool = False) -> int:
    """Return a cpu quantity in thousandths of a core, `MOST_CPU_MILLI` at most; requests round up, capacities down.

    Raises:
        InvalidInput: not a quantity, negative, or too large.

    """
    number = 1000 * _not_negative(value, subject)
    return min(round_down(number) if capacity else round_up(number), MOST_CPU_MILLI)


def memory_mib(value: object, subject: str, *, capacity: bool = False) -> int:
    """Return a quantity of bytes in MiB; requests round up, capacities down.

    Raises:
        InvalidInput: not a quantity, negative, or too large.

    """
    number = _not_negative(value, subject) / MIB
    return round_down(number) if capacity else round_up(number)


def count(value: object, subject: str) -> int:
    """Return the whole number of a quantity of devices, as Kubernetes requires of extended resources.

    Raises:
        InvalidInput: not a quantity, negative, a fraction, or too large.

    """
    number = _not_negative(value, subject)
    if number.denominator != 1:
        raise InvalidInput(subject, found=shown(_text(value)), expected="a whole number")
    return number.numerator
