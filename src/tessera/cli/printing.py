"""Output for people: no trailing blanks, and titles above tables, even narrower ones."""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tessera.cli.drawing.lettering import clean
from tessera.cli.options import write_output

__all__ = [
    "ENDLESS",
    "WIDE_COLUMNS",
    "Section",
    "headed_table",
    "print_document",
    "sectioned_table",
    "titled",
    "trimmed",
    "wide_console",
    "yaml_text",
]


ENDLESS = 1000
"""Width of unlimited lines."""
WIDE_COLUMNS = 120
"""Where a table of ten columns with long names is readable."""


def wide_console(columns: int = 160, *, output: str = "table") -> Console:
    """Return the terminal's console; if the output is none, and COLUMNS is not set, one of this width.

    With output `wide` lines are not limited.
    """
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=ENDLESS if output == "wide" else None if known else columns, highlight=False)


def print_document(value: object, output: str) -> bool:
    """Print a value as indented JSON, or as YAML of the same keys; return whether either is the desired output."""
    if output not in {"json", "yaml"}:
        return False
    write_output("-", yaml_text(value) if output == "yaml" else msgspec.json.format(msgspec.json.encode(value)) + b"\n")
    return True


def yaml_text(value: object) -> bytes:
    """Return a value as a YAML document."""
    return msgspec.yaml.encode(msgspec.to_builtins(value), order=None)


_AS_THEY_ARE: Final = frozenset({"GiB", "MiB", "ms", "x"})


def headed_table(*headings: str, title: str | None = None) -> Table:
    """Return an empty table whose cells fold.

    Headings are in capitals without a line below, as kubectl's are; units keep their letters. A column whose heading is
    a name is added to it.
    """
    table = Table(
        box=None,
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        padding=(0, 2, 0, 0),
        pad_edge=False,
    )
    for heading in headings:
        table.add_column(_in_capitals(heading), overflow="fold")
    return table


class Section(NamedTuple):
    """A title and the rows below it."""

    title: str
    rows: tuple[tuple[str, ...], ...] = ()


def sectioned_table(headings: Sequence[str], sections: Sequence[Section]) -> RenderableType:
    """Return a table with titles between its rows, for long names in a narrow terminal; titles may fill the line.

    Columns are aligned over all sections. The last one breaks long names after `/`.
    """
    rows = [headings, *(row for section in sections for row in section.rows)]
    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(headings) - 1)]

    def aligned(rows: Sequence[Sequence[str]], style: str = "") -> RenderableType:
        table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
        for width in widths:
            table.add_column(width=width, style=style)
        table.add_column(overflow="fold", style=style)
        for row in rows:
            table.add_row(*map(Text, row[:-1]), _Name(row[-1]))
        return Padding(table, (0, 0, 0, 2))

    parts: list[RenderableType] = [aligned([headings], "bold")]
    for section in sections:
        parts += [Text(section.title, "bold", overflow="fold"), *([aligned(section.rows)] if section.rows else [])]
    return Group(*parts)


class _Name:
    """A name that is broken after `/`, and after `-` where what is between two `/` is longer than a line."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield its lines."""
        lines = [""]
        for part in self._parts(options.max_width):
            if lines[-1] and cell_len(lines[-1] + part.rstrip()) > options.max_width:
                lines.append("")
            lines[-1] += part
        yield Text("\n".join(lines), overflow="fold")

    def _parts(self, width: int) -> Iterator[str]:
        for part in re.findall(r"[^/\s]*[/\s]?", self._name):
            yield from [part] if cell_len(part.rstrip()) <= width else re.findall(r"[^-]*-?", part)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return its widths: as narrow as need be."""
        return Measurement(1, min(max(cell_len(self._name), 1), options.max_width))


def _in_capitals(heading: str) -> str:
    """Return a heading as tables print it."""
    return re.sub(r"\S+", lambda word: word[0] if word[0] in _AS_THEY_ARE else word[0].upper(), heading)


def titled(title: str, table: Table) -> RenderableType:
    """Return a table below its title, at its natural width; a rich title would be broken to the table's width.

    An empty table still has its headings.
    """
    return Group(Text(clean(title), "bold"), table)


def trimmed(*parts: RenderableType) -> RenderableType:
    """Return the parts one below the other without padding at the ends of lines.

    Blanks with a background stay: they are visible.
    """
    return _Trimmed(Group(*parts))


class _Trimmed:
    """Content that is printed line by line, without trailing blanks."""

    def __init__(self, inside: RenderableType) -> None:
        self._inside = inside

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the segments of each line and its end."""
        for line in console.render_lines(self._inside, options, pad=False):
            yield from _without_blanks(line)
            yield Segment.line()


def _without_blanks(line: Sequence[Segment]) -> Iterator[Segment]:
    kept = list(line)
    while kept:
        text, style, control = kept[-1]
        visible = control or (style is not None and style.bgcolor is not None)
        bare = text if visible else text.rstrip(" ")
        if bare or control:
            kept[-1] = Segment(bare, style, control)
            break
        kept.pop()
    yield from kept
