"""What is printed for people: no blanks at the end of a line, and titles above tables that are narrower than they."""

import os
import sys
from collections.abc import Iterator, Sequence

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tessera.cli.drawing.lettering import clean
from tessera.cli.options import write_output

__all__ = ["ENDLESS", "print_document", "ruled_table", "titled", "trimmed", "wide_console", "yaml_text"]


ENDLESS = 1000
"""Characters of a line that is as long as it needs."""


def wide_console(columns: int = 160, *, output: str = "table") -> Console:
    """Return the terminal's console; where the output is none, and COLUMNS says nothing, one of so many characters.

    With output `wide` lines are as long as they need.
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


def ruled_table(*headings: str, title: str | None = None) -> Table:
    """Return an empty table with a line below its headings, whose cells fold."""
    table = Table(
        box=SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", padding=(0, 1, 0, 0), show_edge=False
    )
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def titled(title: str, table: Table) -> RenderableType:
    """Return a table below its title, which is as wide as it needs; a title of the table's own is broken to its width.

    A table without rows has its headings all the same.
    """
    return Group(Text(clean(title), "bold"), table)


def trimmed(*parts: RenderableType) -> RenderableType:
    """Return the parts one below the other without the blanks that fill cells and lines up to their width.

    Blanks with a background stay: they are what one sees.
    """
    return _Trimmed(Group(*parts))


class _Trimmed:
    """What is printed line by line, each without blanks at its end."""

    def __init__(self, inside: RenderableType) -> None:
        self._inside = inside

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Give the segments of each line and its end."""
        for line in console.render_lines(self._inside, options, pad=False):
            yield from _without_blanks(line)
            yield Segment.line()


def _without_blanks(line: Sequence[Segment]) -> Iterator[Segment]:
    kept = list(line)
    while kept:
        text, style, control = kept[-1]
        seen = control or (style is not None and style.bgcolor is not None)
        bare = text if seen else text.rstrip(" ")
        if bare or control:
            kept[-1] = Segment(bare, style, control)
            break
        kept.pop()
    yield from kept
