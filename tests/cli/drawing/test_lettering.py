"""Text that fits, and amounts for people."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.cli.drawing.lettering import break_lines, counted, elide, listing, percent, width

WORDS = st.text(st.characters(codec="utf-8"), max_size=80)


@given(text=WORDS, room=st.floats(0, 400), size=st.sampled_from([8.0, 11.0, 24.0]))
def test_shortened_text_fits(text: str, room: float, size: float) -> None:
    got = elide(text, room, size)
    assert got == text or width(got, size) <= room


@given(text=WORDS, room=st.floats(20, 400))
def test_broken_lines_fit_and_lose_nothing(text: str, room: float) -> None:
    lines = break_lines(text, room, 12)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert all(width(line, 12) <= room for line in lines)


ELIDED = {
    "what fits is left alone": ("batch-12", 200.0, "batch-12"),
    "the end tells pods apart": ("a-very-long-batch-name-12", 90.0, "a-very-lon…-12"),
    "only the end fits": ("inference-12", 32.0, "…-12"),
    "only the number fits": ("inference-12", 15.0, "12"),
    "nothing fits": ("inference-12", 5.0, ""),
}


@pytest.mark.parametrize(("text", "room", "want"), ELIDED.values(), ids=ELIDED)
def test_elide(text: str, room: float, want: str) -> None:
    assert elide(text, room, 11) == want


PERCENT = {
    "nothing of nothing": (0, 0, "0 %"),
    "a trace is not nothing": (1, 10_000, "1 %"),
    "nearly all is not all": (9_999, 10_000, "99 %"),
    "all": (7, 7, "100 %"),
    "more than all": (3, 2, "150 %"),
}


@pytest.mark.parametrize(("part", "whole", "want"), PERCENT.values(), ids=PERCENT)
def test_percent(part: int, whole: int, want: str) -> None:
    assert percent(part, whole) == want


def test_small_words() -> None:
    assert listing("abc", 2) == "a, b and 1 more"
    assert listing("ab", 2) == "a, b"
    assert (counted(1, "pod"), counted(2000, "pod")) == ("1 pod", "2,000 pods")
