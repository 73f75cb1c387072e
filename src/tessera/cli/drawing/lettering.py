"""Text that fits: how wide a text is at most, shortening it, breaking it into lines, amounts for people."""

import unicodedata
from collections.abc import Iterable

__all__ = ["BOLD", "break_lines", "clean", "counted", "elide", "gib", "listing", "percent", "width"]

_ADVANCES = {
    191: "'",
    222: "ijl",
    260: "|",
    278: " !,-./:;I[\\]ft\u00b7",
    334: '"()`r{}',
    389: "*",
    469: "^",
    500: "Jcksvxyz",
    556: "#$0123456789?L_abdeghnopqu\u2013",
    584: "+<=>~\u00d7",
    611: "FTZ",
    667: "&ABEKPSVXY",
    722: "CDHNRUw",
    778: "GOQ",
    833: "Mm",
    889: "%",
    944: "W",
    1015: "@\u2026",
}
_EM = {character: advance / 1000 for advance, group in _ADVANCES.items() for character in group}
"""Advance widths in em. Source: the AFM metrics of Helvetica, to which Arial and Liberation Sans are equal."""
_WIDEST_EM = 1.0
_MARGIN = 1.12
"""The reader's sans-serif font is not known; Inter, Segoe UI, Roboto and DejaVu Sans are up to so much wider."""
_MIB_PER_GIB = 1024
BOLD = 1.1
"""How much wider the bold face is at most."""


def clean(text: str) -> str:
    """Return a text without what XML forbids and without what could reorder or hide it on a screen."""
    return "".join("\ufffd" if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Co", "Cn"} else c for c in text)


def width(text: str, size: float) -> float:
    """Return the most pixels that a text of this font size takes in the sans-serif fonts in use."""
    return size * _MARGIN * sum(_EM.get(character, _WIDEST_EM) for character in text)


def elide(text: str, room: float, size: float) -> str:
    """Return the text, shortened in its middle to fit; the end tells pods of one workload apart, so it is kept.

    Empty when not even three characters fit.
    """
    if width(text, size) <= room:
        return text
    tail = text[-min(len(text) - text.rfind("-"), 6) :] if "-" in text else text[-2:]
    for keep in range(len(text) - len(tail) - 1, 1, -1):
        short = f"{text[:keep].rstrip('-/. ')}…{tail}"
        if width(short, size) <= room:
            return short
    for short in (f"…{tail}", tail, tail.lstrip("-")):
        if width(short, size) <= room:
            return short
    return ""


def break_lines(text: str, room: float, size: float) -> tuple[str, ...]:
    """Return the text in lines that fit, broken at spaces, inside a word only when the word alone is too long."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        tried = f"{line} {word}" if line else word
        if width(tried, size) <= room:
            line = tried
            continue
        if line:
            lines.append(line)
        line = word
        while width(line, size) > room:
            cut = max(1, next(n for n in range(len(line) + 1) if width(line[: n + 1], size) > room))
            lines.append(line[:cut])
            line = line[cut:]
            if not line:
                break
    return (*lines, line) if line else tuple(lines)


def gib(mib: int) -> str:
    """Return an amount of memory for people: MiB below one GiB, else GiB, with one decimal below a thousand."""
    if 0 < mib < _MIB_PER_GIB:
        return f"{mib} MiB"
    if mib >= 1000 * _MIB_PER_GIB:
        return f"{mib / _MIB_PER_GIB:,.0f} GiB"
    return f"{f'{mib / _MIB_PER_GIB:.1f}'.removesuffix('.0')} GiB"


def percent(part: int, whole: int) -> str:
    """Return a share in percent, never rounded up to 100 nor down to 0."""
    if not whole:
        return "0 %"
    rounded = round(100 * part / whole)
    if 0 < part < whole:
        rounded = min(99, max(1, rounded))
    return f"{rounded} %"


def counted(count: int, noun: str) -> str:
    """Return a number of things."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listing(names: Iterable[str], most: int) -> str:
    """Return names with commas, those past `most` as a number."""
    every = list(names)
    rest = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + rest
