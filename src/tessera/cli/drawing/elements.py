"""SVG elements as text: escaping, numbers of fixed form, icons, and the style of the sheet."""

from html import escape

import msgspec

from tessera.cli.drawing.lettering import clean

__all__ = ["STYLE", "Block", "corner", "element", "group", "lock", "number", "phrase", "rect", "stack", "text", "title"]

STYLE = """
text{font-family:Inter,"Segoe UI","Helvetica Neue",Helvetica,Arial,"Liberation Sans",sans-serif;fill:#10202e}
.page{fill:#f3f6f9}.card{fill:#fff;stroke:#d9e0e7}.track{fill:#e6ebf0}.bar{fill:#3f7fbf}.warm{fill:#d9822b}
.bed{fill:#f6f8fa}.band{fill:#e9eef3}.rule{stroke:#d9e0e7}.edge{stroke:#8896a5;fill:none}.hatch{stroke:#cdd6df}
.mute{fill:#566676}.new{fill:#10202e}.glyph{stroke:#566676;fill:none}.alarm{fill:#8a4b08}.alert{fill:#fff8ec;stroke:#ecd3ab}
.halo{paint-order:stroke;stroke:#f6f8fa;stroke-width:3px;stroke-linejoin:round}.b{font-weight:600}.h{font-weight:700}.pod:hover>rect:first-of-type{stroke:#10202e;stroke-width:2}
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1520}.card{fill:#141f2c;stroke:#273444}
.track{fill:#273444}.bar{fill:#5b9bd9}.bed{fill:#18242f}.band{fill:#22303e}.rule{stroke:#273444}.edge{stroke:#6b7b8c}
.hatch{stroke:#3a4a5b}.deep{stroke:#6b7b8c}.mute{fill:#9db0c2}.new{fill:#e6edf3}.glyph{stroke:#9db0c2}.alarm{fill:#f0b465}
.alert{fill:#231c10;stroke:#54421f}.pod:hover>rect:first-of-type{stroke:#fff}.halo{stroke:#18242f}}
"""
"""Colors of everything but the workloads, for light and dark mode; no font is fetched."""


class Block(msgspec.Struct, frozen=True):
    """A piece of the sheet drawn from its own origin downwards."""

    body: str
    height: float


def number(value: float) -> str:
    """Return a coordinate with at most two decimals, the same bytes on every machine."""
    digits = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if digits == "-0" else digits


def element(tag: str, body: str = "", **attributes: str | float) -> str:
    """Return an element; attribute names have `_` for `-`, a last `_` is dropped, values are escaped."""
    pairs = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{number(v) if not isinstance(v, str) else escape(clean(v))}"'
        for name, v in attributes.items()
    )
    return f"<{tag}{pairs}>{body}</{tag}>" if body else f"<{tag}{pairs}/>"


def title(words: str) -> str:
    """Return the tooltip of the element around it; line breaks are kept."""
    lines = "\n".join(clean(line) for line in words.split("\n"))
    return f"<title>{escape(lines, quote=False)}</title>"


def text(words: str, x: float, y: float, size: float, **attributes: str | float) -> str:
    """Return one line of text with its baseline at `y`."""
    return element("text", escape(clean(words), quote=False), x=x, y=y, font_size=size, **attributes) if words else ""


def phrase(*pieces: tuple[str, float, str], x: float, y: float) -> str:
    """Return pieces of text one after the other, each with its size and class; the font decides their lengths."""
    spans: list[str] = []
    for words, size, class_ in pieces:
        gap = {"dx": 7} if spans else {}
        spans.append(element("tspan", escape(clean(words), quote=False), **gap, font_size=size, class_=class_))
    return element("text", "".join(spans), x=x, y=y)


def rect(area: tuple[float, float, float, float], **attributes: str | float) -> str:
    """Return a rectangle given as x, y, width and height."""
    x, y, wide, high = area
    return element("rect", "", x=x, y=y, width=wide, height=high, **attributes)


def group(body: str, x: float = 0, y: float = 0, **attributes: str | float) -> str:
    """Return elements moved together."""
    return element("g", body, transform=f"translate({number(x)} {number(y)})", **attributes)


def stack(blocks: list[Block], gap: float) -> Block:
    """Return blocks one below the other."""
    parts = []
    y = 0.0
    for block in blocks:
        parts.append(group(block.body, 0, y))
        y += block.height + gap
    return Block("".join(parts), max(0.0, y - gap))


def lock(x: float, y: float, *, closed: bool) -> str:
    """Return a padlock 8 pixels wide and 10 high, open where nothing isolates one pod from another."""
    shackle = "M2 5V3.2a2 2 0 0 1 4 0V5" if closed else "M2 5V2.8a2 2 0 0 1 4 0"
    return group(
        element("path", d=shackle, class_="glyph", stroke_width=1.3)
        + element("rect", x=0.7, y=5, width=6.6, height=4.6, rx=1, class_="mute"),
        x,
        y,
    )


def corner(right: float, top: float, fill: str) -> str:
    """Return the folded corner of a new MIG instance."""
    return element("path", d=f"M{number(right - 9)} {number(top)}h5a4 4 0 0 1 4 4v5z", fill=fill)
