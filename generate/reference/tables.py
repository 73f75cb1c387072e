"""Markdown of the reference."""

import re
from collections.abc import Iterable, Sequence

__all__ = ["plain", "table"]

_PAGE = re.compile(r"\bdocs/([a-z-]+\.md)")


def plain(text: str) -> str:
    """Return text in one line that Markdown shows as it is, with links to the pages that it names."""
    parts = " ".join(text.split()).split("`")
    outside = (_PAGE.sub(r"[\g<0>](../\g<1>)", part.replace("<", "&lt;").replace("*", r"\*")) for part in parts[::2])
    inside = (f"`{part}`" for part in parts[1::2])
    return "".join(part for pair in zip(outside, [*inside, ""], strict=True) for part in pair)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a bar in a cell stays a bar, between backquotes too."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
