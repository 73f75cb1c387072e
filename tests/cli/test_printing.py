"""What is printed for people has no blanks at the ends of lines, at any width, and keeps what is seen."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tessera.cli.printing import headed_table, titled, trimmed, wide_console

WORDS = st.lists(st.text(alphabet="ab c", max_size=12), min_size=2, max_size=2)


def printed(*parts: object, columns: int = 40, color: bool = False) -> str:
    paper = io.StringIO()
    console = Console(
        file=paper, width=columns, force_terminal=color, color_system="standard" if color else None, highlight=False
    )
    console.print(trimmed(*parts))  # type: ignore[arg-type]  # what it takes is what rich prints
    return paper.getvalue()


def table(*rows: list[str]) -> Table:
    made = Table("one", "two", box=None, pad_edge=False)
    for row in rows:
        made.add_row(*row)
    return made


@given(rows=st.lists(WORDS, max_size=4), columns=st.integers(10, 60))
def test_no_line_ends_with_blanks_and_no_word_is_lost(rows: list[list[str]], columns: int) -> None:
    got = printed("a text", table(*rows), columns=columns)
    assert all(line == line.rstrip() for line in got.splitlines())
    plain = io.StringIO()
    Console(file=plain, width=columns, highlight=False).print("a text", table(*rows), sep="\n")
    assert [line.rstrip() for line in plain.getvalue().splitlines()] == got.splitlines()


def test_a_background_is_seen_and_stays() -> None:
    got = printed(Text.assemble("a", ("   ", "on red"), "  "), color=True)
    assert got == "a\x1b[41m   \x1b[0m\n"


def test_a_line_of_blanks_is_an_empty_line() -> None:
    assert printed("a", "   ", "", "b") == "a\n\n\nb\n"


@pytest.mark.parametrize("columns", [20, 80])
def test_a_title_is_broken_at_the_width_of_the_terminal_alone(columns: int) -> None:
    got = printed(titled("Each node, had it been empty", table(["x", "y"])), columns=columns)
    want = ["Each node, had it", "been empty"] if columns == 20 else ["Each node, had it been empty"]  # the narrow one
    assert got.splitlines() == [*want, "one  two", "x    y"]


@pytest.mark.parametrize(("told", "want"), [("", 160), ("70", 70)])
def test_output_that_is_no_terminal_is_as_wide_as_columns_says(
    told: str, want: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if told:
        monkeypatch.setenv("COLUMNS", told)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert wide_console().width == want


def test_headings_are_in_capitals_except_units_and_names() -> None:
    made = headed_table("MIG device", "KV GiB", "latency ms", "compute\nslices", "x clairvoyant")
    made.add_column("first-fit")
    cells = ["1g.5gb", "1", "2", "3", "4", "5"]
    made.add_row(*cells)
    above, heading, row = printed(made, columns=100).splitlines()
    assert above.split() == ["COMPUTE"]
    assert heading.split() == ["MIG", "DEVICE", "KV", "GiB", "LATENCY", "ms", "SLICES", "x", "CLAIRVOYANT", "first-fit"]
    assert row.split() == cells
