"""The figures of a comparison: how full the fleet was, what was fragmented, who was dropped."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tessera.sim.metrics import Curve, RunMetrics
from tessera.sim.report.style import INK, MUTED, color_of, end_labels, figure, plain, render, titles
from tessera.sim.report.table import title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["figures"]

_ARRIVED = "GPU demand that arrived, % of capacity"
_TIME = "time, hours"
_LABELS_IN = 1.65
"""Room for labels at the right of the lines, in inches."""
_ZOOMED = 30.0
"""Width of the close-up, in percent of arrivals."""


def figures(runs: Sequence[RunMetrics]) -> Iterator[tuple[str, bytes]]:
    """Yield file names and contents: `allocation`, `fragmentation` (where worked out) and `dropped`, PNG and SVG each.

    Raises:
        Unsupported: matplotlib is not installed.

    """
    made = [("allocation", _allocation(runs)), ("dropped", _dropped(runs))]
    if runs[0].curve.fragmented_percent:
        made.append(("fragmentation", _fragmentation(runs)))
    for name, drawn in made:
        yield f"{name}.png", render(drawn, "png")
        yield f"{name}.svg", render(drawn, "svg")


def _x(curve: Curve) -> tuple[list[float], str]:
    if curve.axis == "time_s":
        return [at_s / 3600 for at_s in curve.x], _TIME
    return list(curve.x), _ARRIVED


def _draw(axes: "Axes", run: RunMetrics, values: Sequence[float]) -> None:
    ours = run.policy == "tessera"
    axes.plot(_x(run.curve)[0], values, color=color_of(run.policy), linewidth=2.4 if ours else 1.5, zorder=3 + ours)


def _panels(message: str, run: RunMetrics) -> tuple["Figure", "Axes", "Axes"]:
    """Return a figure with two panels side by side, the right one with room for labels."""
    width, height = 10.6, 4.6
    drawn = figure(width, height)
    titles(drawn, message, title(run))
    bottom, tall = 0.13, 0.63
    span = 1 - 0.055 - 0.075 - _LABELS_IN / width
    left = drawn.add_axes((0.055, bottom, span * 0.5, tall))
    right = drawn.add_axes((0.055 + span * 0.5 + 0.075, bottom, span * 0.5, tall))
    return drawn, left, right


def _allocation(runs: Sequence[RunMetrics]) -> "Figure":
    drawn, whole, close = _panels("How much of the GPUs was allocated", runs[0])
    x, x_label = _x(runs[0].curve)
    over_time = runs[0].curve.axis == "time_s"
    start = x[0] if over_time else max(x[0], x[-1] - _ZOOMED)
    plain(whole, x_label, "allocated, % of GPU capacity")
    plain(close, x_label, "unallocated, % of GPU capacity" + ("" if over_time else ", close-up"))
    if not over_time:
        _ideal(whole, x)
    unallocated = [[100 - value for value in run.curve.allocated_percent] for run in runs]
    for run, values in zip(runs, unallocated, strict=True):
        _draw(whole, run, run.curve.allocated_percent)
        _draw(close, run, values)
    visible = [y for values in unallocated for at, y in zip(x, values, strict=True) if at >= start]
    whole.set(xlim=(x[0], x[-1]), ylim=(0, 103))
    close.set(xlim=(start, x[-1]), ylim=(0, max(visible) * 1.05 or 1))
    _label(close, runs, unallocated, [run.mean_unallocated_percent for run in runs])
    return drawn


def _ideal(axes: "Axes", x: Sequence[float]) -> None:
    """Draw what a fleet without any loss would hold."""
    axes.plot(x, [min(at, 100.0) for at in x], color=MUTED, linewidth=1, linestyle=(0, (2, 2)))
    axes.annotate(
        "all that arrived", (40, 40), (-6, 4), textcoords="offset points", ha="right", color=MUTED, fontsize=9
    )


def _fragmentation(runs: Sequence[RunMetrics]) -> "Figure":
    drawn, of_idle, of_all = _panels("How much of the idle GPUs the mix of pods could not use", runs[0])
    x, x_label = _x(runs[0].curve)
    plain(of_idle, x_label, "fragmented, % of idle GPUs")
    plain(of_all, x_label, "fragmented, % of GPU capacity")
    for run in runs:
        _draw(of_idle, run, run.curve.fragmented_of_idle_percent)
        _draw(of_all, run, run.curve.fragmented_percent)
    of_idle.set(xlim=(x[0], x[-1]), ylim=(0, 103))
    highest = max(max(run.curve.fragmented_percent) for run in runs)
    of_all.set(xlim=(x[0], x[-1]), ylim=(0, highest * 1.05 or 1))
    values = [run.curve.fragmented_percent for run in runs]
    _label(of_all, runs, values, [sum(line) / len(line) for line in values])
    return drawn


def _label(
    axes: "Axes", runs: Sequence[RunMetrics], lines: Sequence[Sequence[float]], means: Sequence[float | None]
) -> None:
    """Label lines at their ends, over arrivals with the value there, over time with the mean that the table has."""
    over_time = runs[0].curve.axis == "time_s"
    low, high = axes.get_ylim()
    labels = []
    for run, line, mean in zip(runs, lines, means, strict=True):
        value = mean if over_time and mean is not None else line[-1]
        labels.append((f"{run.policy}  {value:.2f}", line[-1], color_of(run.policy)))
    end_labels(axes, labels, axes.get_xlim()[1], (high - low) * 0.062)
    if over_time:
        axes.annotate(
            "mean", (1, 1), (14, 10), xycoords="axes fraction", textcoords="offset points", fontsize=9, color=MUTED
        )


def _dropped(runs: Sequence[RunMetrics]) -> "Figure":
    width, height = 10.6, 1.75 + 0.3 * len(runs)
    drawn = figure(width, height)
    measured = "% of the GPU demand of a class, or of its pods where they request no GPU"
    titles(drawn, "Who was dropped", f"{title(runs[0])}; {measured}")
    most = max(group.percent for run in runs for group in run.groups) or 1.0
    left, gap = 0.14, 0.02
    span = (1 - left - 0.03 - 3 * gap) / 4
    for number in range(len(runs[0].groups)):
        axes = drawn.add_axes((left + number * (span + gap), 0.25 / height, span, (height - 1.45) / height))
        _bars(axes, runs, number, most)
        if number == 0:
            _names(axes, runs)
    return drawn


def _bars(axes: "Axes", runs: Sequence[RunMetrics], number: int, most: float) -> None:
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set(xlim=(0, most * 1.25), ylim=(len(runs) - 0.5, -0.5), xticks=[], yticks=[])
    axes.axvline(0, color=MUTED, linewidth=1)
    group = runs[0].groups[number]
    axes.set_title(f"{group.group}\n", fontsize=10.5, color=INK, loc="left", pad=4, fontweight="bold")
    axes.text(0, 1.0, f"{group.arrived:,} pods", transform=axes.transAxes, fontsize=9, color=MUTED, va="bottom")
    for at, run in enumerate(runs):
        percent = run.groups[number].percent
        axes.barh(at, percent, height=0.62, color=color_of(run.policy))
        axes.annotate(
            f"{percent:.1f}", (percent, at), (4, 0), textcoords="offset points", va="center", fontsize=9.5, color=INK
        )


def _names(axes: "Axes", runs: Sequence[RunMetrics]) -> None:
    for at, run in enumerate(runs):
        axes.text(
            -0.04,
            at,
            run.policy,
            transform=axes.get_yaxis_transform(),
            ha="right",
            va="center",
            fontsize=10,
            color=color_of(run.policy),
            fontweight="bold" if run.policy == "tessera" else "normal",
        )
