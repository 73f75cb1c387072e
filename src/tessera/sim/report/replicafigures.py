"""The figure of a comparison of autoscaling policies: each one's replicas over those of the clairvoyant plan."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tessera.sim.report.style import color_of, figure, plain, render, titles
from tessera.sim.serving.compare import Comparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["replica_figures"]


def replica_figures(comparison: Comparison) -> Iterator[tuple[str, bytes]]:
    """Yield file name and content of `replicas.png` and `replicas.svg`: each policy's replicas over the plan's.

    Raises:
        Unsupported: matplotlib is not installed.

    """
    drawn = _replicas(comparison)
    yield "replicas.png", render(drawn, "png")
    yield "replicas.svg", render(drawn, "svg")


def _replicas(comparison: Comparison) -> "Figure":
    tall = 1.5
    drawn = figure(10.6, 1.2 + tall * len(comparison.runs))
    height = 1.2 + tall * len(comparison.runs)
    hours = f"{comparison.requests.span_s / 3600:.1f} h, {len(comparison.requests.arrival_s):,} requests"
    titles(drawn, "Desired replicas, over those of a clairvoyant plan (gray)", hours)
    planned = [step * comparison.plan.step_s / 3600 for step in range(len(comparison.plan.replicas) + 1)]
    highest = max(*(change.desired for _, each in comparison.runs for change in each.log), *comparison.plan.replicas)
    for number, (name, each) in enumerate(comparison.runs):
        bottom = (0.55 + tall * (len(comparison.runs) - 1 - number)) / height
        axes = drawn.add_axes((0.06, bottom, 0.9, (tall - 0.45) / height))
        last = number == len(comparison.runs) - 1
        share = f"{each.replica_hours / comparison.plan.replica_hours:.2f} x, {each.within_slo:.1%} within SLO"
        plain(axes, "time, hours" if last else "", name)
        axes.stairs([*comparison.plan.replicas], planned, fill=True, color="#d9dee4")
        times = [*(change.time_s / 3600 for change in each.log), comparison.requests.span_s / 3600]
        axes.stairs([change.desired for change in each.log], times, baseline=None, color=color_of(name), linewidth=1.1)
        axes.set(xlim=(0, comparison.requests.span_s / 3600), ylim=(0, highest * 1.1))
        axes.text(1.0, 1.02, share, transform=axes.transAxes, ha="right", va="bottom", fontsize=8)
    return drawn
