"""Text that fits: its maximum width, shortening, line breaks, amounts for people."""

import unicodedata
from collections.abc import Iterable

__all__ = ["BOLD", "break_lines", "clean", "counted", "elide", "first_fitting", "listing", "percent", "width"]

_ADVANCES = {
    280: "'ijl",
    320: " ,.I\u00b7",
    340: "/:;\\|",
    360: "f",
    380: "-",
    400: "()[]t",
    420: "!r",
    460: '"',
    500: "*`",
    540: "Jsz",
    580: "ck",
    600: "?L_vxy\u2013",
    620: "aeo",
    640: "$0123456789bdghnpqu{}",
    660: "FT",
    720: "ABEKPSVXYZ",
    780: "&CDHNRU",
    840: "#+<=>GOQ^w~\u00d7",
    900: "M",
    980: "%m",
    1020: "W",
    1080: "\u2026",
    1100: "@",
}
_EM = {character: advance / 1000 for advance, group in _ADVANCES.items() for character in group}
"""Advance widths in em: the larger of DejaVu Sans's and 1.08 times those of Liberation Sans, which are Helvetica's and
Arial's; the reader's font is not known. Source: both fonts as Chromium measures them."""
_WIDEST_EM = 1.2
BOLD = 1.13
"""How much wider the bold face is, but for the thinnest letters."""


def clean(text: str) -> str:
    """Return a text without characters that XML forbids or that could reorder or hide it on a screen."""
    return "".join("\ufffd" if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Co", "Cn"} else c for c in text)


def width(text: str, size: float) -> float:
    """Return the maximum width in pixels of a text of this font size in common sans-serif fonts."""
    return size * sum(_EM.get(character, _WIDEST_EM) for character in text)


def elide(text: str, room: float, size: float) -> str:
    """Return the text, shortened in its middle to fit; the end distinguishes pods of one workload, so it is kept.

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


def first_fitting(texts: Iterable[str], room: float, size: float) -> str:
    """Return the first of several wordings that fits whole, empty when none does."""
    return next((text for text in texts if width(text, size) <= room), "")


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


def percent(part: int, whole: int) -> str:
    """Return a fraction in percent, never rounded up to 100 nor down to 0."""
    if not whole:
        return "0 %"
    rounded = round(100 * part / whole)
    if 0 < part < whole:
        rounded = min(99, max(1, rounded))
    return f"{rounded} %"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listing(names: Iterable[str], most: int) -> str:
    """Return names with commas, those beyond `most` as a number."""
    every = list(names)
    rest = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + rest
