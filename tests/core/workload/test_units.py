"""Kubernetes quantities: exact values, rounding, and what is refused."""

import contextlib
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.workload import units
from tessera.errors import InvalidInput

_SCALES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(1000),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}

READ = {
    "a plain integer": ("2", Fraction(2)),
    "a YAML integer": (2, Fraction(2)),
    "a YAML decimal": (Decimal("0.1"), Fraction(1, 10)),
    "a float is read as its shortest text": (0.1, Fraction(1, 10)),
    "a decimal in exponent form": (Decimal("1E+3"), Fraction(1000)),
    "a plus sign": ("+2", Fraction(2)),
    "a negative quantity is read, its users refuse it": ("-1500m", Fraction(-3, 2)),
    "leading zeros": ("007", Fraction(7)),
    "a trailing point, as Kubernetes allows": ("1.Gi", Fraction(2**30)),
    "a leading point": (".5", Fraction(1, 2)),
    "E alone is exa": ("1E", Fraction(10**18)),
    "E with digits is an exponent": ("1E3", Fraction(1000)),
    "a signed exponent": ("15e-1", Fraction(3, 2)),
    "an exponent with plus": ("1e+3", Fraction(1000)),
    "a fraction of Gi": ("1.5Gi", Fraction(3 * 2**29)),
    "finer than nano rounds up to one nano": ("0.1n", Fraction(1, 10**9)),
    "finer than nano rounds away from zero": ("-0.1n", Fraction(-1, 10**9)),
    "a tiny exponent rounds up to one nano": ("1e-999999999999", Fraction(1, 10**9)),
    "zero with an absurd exponent is zero": ("0e999999999999", Fraction(0)),
    "the largest": (str(2**63 - 1), Fraction(2**63 - 1)),
}


@pytest.mark.parametrize(("value", "want"), READ.values(), ids=READ)
def test_quantity_is_read_exactly(value: object, want: Fraction) -> None:
    assert units.quantity(value, "cpu") == want


REFUSED = {
    "nothing": "",
    "a sign alone": "-",
    "a suffix alone": "Gi",
    "a point alone": ".",
    "white space": " 1",
    "a space before the suffix": "1 Gi",
    "a trailing newline": "1\n",
    "a unit that does not exist": "1GB",
    "a lower-case gi": "1gi",
    "a lone k with i": "1ki",
    "an exponent without digits": "1e",
    "a fractional exponent": "1e1.5",
    "an exponent and a suffix": "1e3Mi",
    "hexadecimal": "0x10",
    "digits of another script": "\u0661",
    "two points": "1.2.3",
    "above 2^63": "9223372036854775808",
    "8Ei": "8Ei",
    "an exponent bomb": "1e400",
    "an exponent bomb of many digits": "1e999999999999",
    "a long text": "1" * 10_000,
    "a large integer": 10**400,
    "an integer that has no text": 10**10_000,
    "not a number": Decimal("NaN"),
    "infinity": Decimal("Infinity"),
    "a boolean": True,
    "nothing at all": None,
    "a list": [1],
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_quantity_is_refused_with_its_place(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"^pods\.yaml, line 7: ") as caught:
        units.quantity(value, "pods.yaml, line 7")
    assert len(str(caught.value)) < 400


ROUNDED = {
    "cpu requests round up": (units.cpu_milli("1.0001", "cpu"), 1001),
    "cpu capacity rounds down": (units.cpu_milli("1.0009", "cpu", capacity=True), 1000),
    "cpu beyond any machine": (units.cpu_milli("9e18", "cpu"), units.MOST_CPU_MILLI),
    "cpu capacity beyond any machine": (units.cpu_milli("9e18", "cpu", capacity=True), units.MOST_CPU_MILLI),
    "cpu in milli": (units.cpu_milli("250m", "cpu"), 250),
    "cpu in nano as the kubelet reports it": (units.cpu_milli("1500000n", "cpu"), 2),
    "memory requests round up": (units.memory_mib("1048577", "memory"), 2),
    "memory capacity rounds down": (units.memory_mib("65843540Ki", "memory", capacity=True), 64300),
    "memory in decimal gigabytes": (units.memory_mib("1G", "memory"), 954),
    "a count": (units.count("4", "gpu"), 4),
    "a count with a suffix": (units.count("1k", "gpu"), 1000),
    "a count that milli makes whole": (units.count("2000m", "gpu"), 2),
}


@pytest.mark.parametrize(("got", "want"), ROUNDED.values(), ids=ROUNDED)
def test_rounding(got: int, want: int) -> None:
    assert got == want


@pytest.mark.parametrize("read", [units.cpu_milli, units.memory_mib, units.count])
def test_negative_is_refused(read: object) -> None:
    assert callable(read)
    with pytest.raises(InvalidInput, match="'-1' is not a quantity of zero or more"):
        read("-1", "limits")


def test_half_a_device_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'500m' is not a whole number"):
        units.count("500m", "limits")


@given(st.integers(0, 10**9), st.integers(0, 10**6 - 1), st.sampled_from(sorted(_SCALES)))
def test_quantity_equals_its_fraction(whole: int, part: int, suffix: str) -> None:
    digits = f"{part:06d}"
    want = (Fraction(whole) + Fraction(part, 10**6)) * _SCALES[suffix]
    text = f"{whole}.{digits}{suffix}"
    if want > 2**63 - 1:
        with pytest.raises(InvalidInput):
            units.quantity(text, "cpu")
    else:
        got = units.quantity(text, "cpu")
        assert 0 <= got - want < Fraction(1, 10**9)
        assert (got * 10**9).denominator == 1


@given(st.integers(-(10**6), 10**6), st.integers(-30, 12))
def test_exponents_equal_their_fraction(mantissa: int, exponent: int) -> None:
    want = mantissa * Fraction(10) ** exponent
    got = units.quantity(f"{mantissa}e{exponent}", "cpu")
    assert 0 <= abs(got) - abs(want) < Fraction(1, 10**9)
    assert got * want >= 0


@given(st.fractions(0, 10**6))
def test_rounding_brackets_the_number(number: Fraction) -> None:
    assert units.round_down(number) <= number <= units.round_up(number)
    assert units.round_up(number) - units.round_down(number) == (number.denominator != 1)


@pytest.mark.parametrize(
    ("mib", "want", "up"),
    [
        (0, "0 GiB", "0 GiB"),
        (1_023, "1023 MiB", "1023 MiB"),
        (1_024, "1 GiB", "1 GiB"),
        (4_864, "4.7 GiB", "4.8 GiB"),
        (81_559, "79.6 GiB", "79.7 GiB"),
        (1_023_999, "999.9 GiB", "1,000 GiB"),
        (2_097_153, "2,048 GiB", "2,049 GiB"),
    ],
)
def test_memory_for_people(mib: int, want: str, up: str) -> None:
    assert (units.gib(mib), units.gib(mib, up=True)) == (want, up)


@given(st.integers(0, 1 << 24))
def test_no_text_promises_more_memory_than_there_is(mib: int) -> None:
    def written(text: str) -> Fraction:
        number, unit = text.replace(",", "").split()
        return Fraction(number) * {"MiB": 1, "GiB": 1024}[unit]

    assert written(units.gib(mib)) <= mib <= written(units.gib(mib, up=True))


@given(st.text() | st.integers() | st.decimals() | st.booleans())
def test_any_value_is_read_or_refused(value: object) -> None:
    with contextlib.suppress(InvalidInput):
        assert isinstance(units.quantity(value, "cpu"), Fraction)
