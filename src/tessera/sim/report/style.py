"""How figures look: colors, axes without clutter, labels beside the lines instead of legends.

matplotlib comes with the extra `report` and is imported when a figure is made. Nothing global is changed: no pyplot,
no backend switch, settings hold only while a figure is rendered.
"""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from tessera.errors import Unsupported

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["INK", "MUTED", "check_figures", "color_of", "end_labels", "figure", "plain", "render", "titles"]

INK = "#1b1f24"
MUTED = "#6a737d"
_GRID = "#e4e7eb"

# The palette of Okabe and Ito, distinct with every common color blindness, without its yellow, too pale on white;
# gray for the policies that are only a floor. Source: M. Okabe, K. Ito, "Color Universal Design", 2008.
_COLORS = {
    "tessera": "#d55e00",
    "fgd": "#0072b2",
    "best-fit": "#009e73",
    "gpu-packing": "#cc79a7",
    "gpu-clustering": "#b8860b",
    "dot-product": "#56b4e9",
    "fragmentation-min": "#1b1f24",
    "first-fit": "#6a737d",
    "random": "#8d96a0",
}


def color_of(policy: str) -> str:
    """Return the color that a policy has in every figure."""
    return _COLORS.get(policy, INK)


def check_figures() -> None:
    """Return if figures can be made.

    Raises:
        Unsupported: matplotlib is not installed; the message says how to install it.

    """
    figure(1, 1)


def figure(width_in: float, height_in: float) -> "Figure":
    """Return an empty figure of a size in inches; see `check_figures` for what it raises."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra, and slow to import
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise Unsupported(
            "figures",
            found="this Python has no matplotlib",
            hint="run pip install '.[report]' in a checkout of Tessera",
        ) from error
    figure = Figure(figsize=(width_in, height_in), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def render(figure: "Figure", form: Literal["png", "svg"]) -> bytes:
    """Return the figure as a file's content; the same figure gives the same bytes."""
    import matplotlib as mpl  # noqa: PLC0415 - an extra, and slow to import

    metadata = {"Date": None} if form == "svg" else {"Software": None}
    with mpl.rc_context({"svg.hashsalt": "tessera", "svg.fonttype": "none"}), io.BytesIO() as file:
        figure.savefig(file, format=form, dpi=160, metadata=metadata)
        return file.getvalue()


def titles(figure: "Figure", title: str, subtitle: str) -> None:
    """Write what the figure says and of what, at its top left."""
    height = figure.get_figheight()
    figure.text(0.02, 1 - 0.16 / height, title, fontsize=14, fontweight="bold", color=INK, va="top")
    figure.text(0.02, 1 - 0.46 / height, subtitle, fontsize=9.5, color=MUTED, va="top")


def plain(axes: "Axes", x_label: str, y_label: str) -> None:
    """Leave of the axes what helps reading: horizontal lines, a base line, labels in gray."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=9, labelcolor=MUTED, pad=5)
    axes.tick_params(axis="x", pad=8)
    axes.set_xlabel(x_label, fontsize=9.5, color=MUTED)
    axes.set_title(y_label, fontsize=9.5, color=INK, loc="left", pad=8)


def end_labels(axes: "Axes", ends: Sequence[tuple[str, float, str]], x: float, gap: float) -> None:
    """Write labels right of `x` at the heights of the line ends, moved apart where closer than `gap` in data units.

    Each of `ends` is text, height and color. A thin line leads from where the label had to move.
    """
    ordered = sorted(ends, key=lambda end: end[1])
    for (text, y, color), at in zip(ordered, _apart([y for _, y, _ in ordered], gap), strict=True):
        axes.annotate(
            text,
            xy=(x, y),
            xytext=(14, _points(axes, at - y)),
            textcoords="offset points",
            fontsize=9.5,
            color=color,
            fontweight="bold" if text.startswith("tessera") else "normal",
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": color,
                "linewidth": 0.7,
                "shrinkA": 2,
                "shrinkB": 1,
                "relpos": (0, 0.5),
            },
        )


def _points(axes: "Axes", data: float) -> float:
    low, high = axes.get_ylim()
    figure = axes.get_figure(root=True)
    assert figure is not None
    return data / (high - low) * axes.get_position().height * figure.get_figheight() * 72


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Return the sorted heights moved as little as needed to be `gap` apart: groups are centered on their mean."""
    groups: list[list[float]] = []
    for height in heights:
        groups.append([height])
        while len(groups) > 1 and _top(groups[-2], gap) + gap > _bottom(groups[-1], gap):
            last = groups.pop()
            groups[-1] += last
    return [_bottom(group, gap) + gap * number for group in groups for number in range(len(group))]


def _bottom(group: Sequence[float], gap: float) -> float:
    return sum(group) / len(group) - gap * (len(group) - 1) / 2


def _top(group: Sequence[float], gap: float) -> float:
    return sum(group) / len(group) + gap * (len(group) - 1) / 2
