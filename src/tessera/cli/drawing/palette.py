"""Colors that people with any color vision can distinguish, one per workload."""

import msgspec

__all__ = ["Tone", "deep", "tone"]


class Tone(msgspec.Struct, frozen=True, kw_only=True):
    """The style of a workload's cells."""

    fill: str
    ink: str
    """Color of the text on the fill; contrast at least 4.5."""
    edge: str
    """A darker or lighter shade of the fill: outline of running pods, marks."""
    striped: bool = False
    """Whether a stripe of the edge's color distinguishes it from another workload with the same fill."""


# Paul Tol's "light" scheme, made for labeled cells with dark text, without its gray, then the four dark colors
# of his "muted" scheme with light text.
# Source: Paul Tol, Color Schemes, SRON/EPS/TN/09-002, issue 3.2 (2021).
_DARK_INK = "#10202e"
_PALETTE = (
    ("#77aadd", _DARK_INK, "#1f4e7d"),
    ("#ee8866", _DARK_INK, "#8a2f10"),
    ("#44bb99", _DARK_INK, "#0b5a45"),
    ("#eedd88", _DARK_INK, "#7c6a08"),
    ("#ffaabb", _DARK_INK, "#96304a"),
    ("#99ddff", _DARK_INK, "#1a6a94"),
    ("#bbcc33", _DARK_INK, "#566005"),
    ("#332288", "#ffffff", "#b9b0ee"),
    ("#117733", "#ffffff", "#9be0b1"),
    ("#882255", "#ffffff", "#efb3d0"),
    ("#aaaa00", _DARK_INK, "#4d4d00"),
    ("#aa4499", "#ffffff", "#f6c6ee"),
)


def deep(look: Tone) -> dict[str, str]:
    """Return the class of fills that need an edge on a dark background."""
    return {"class_": "deep"} if look.ink != _DARK_INK else {}


def tone(number: int) -> Tone:
    """Return the style of a workload by its number; after twelve fills they repeat with a stripe, then again."""
    fill, ink, edge = _PALETTE[number % len(_PALETTE)]
    return Tone(fill=fill, ink=ink, edge=edge, striped=number // len(_PALETTE) % 2 == 1)
