"""Policies under one trace, side by side, with the clairvoyant plan as their bound: as rows, log and figure."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from tessera.sim.report.style import color_of, figure, plain, render, titles
from tessera.sim.serving.clairvoyant import Plan, clairvoyant
from tessera.sim.serving.policies import POLICIES
from tessera.sim.serving.replicas import Model
from tessera.sim.serving.run import Run, run
from tessera.sim.serving.traces import Requests

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["HEADER", "Comparison", "Row", "compare", "figures", "log_lines", "rows"]

HEADER: Final = ("policy", "replica-hours", "x clairvoyant", "within SLO", "changes", "lost")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One policy, as JSON has it."""

    policy: str
    replica_hours: float
    clairvoyant_replica_hours: float
    within_slo: float
    changes: int
    lost: int


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one trace under each policy."""

    plan: Plan
    runs: tuple[tuple[str, Run], ...]
    requests: Requests


def compare(
    requests: Requests,
    model: Model,
    policies: Sequence[str],
    most: int,
    report: Callable[[str, int, int], None] = lambda _step, _done, _total: None,
) -> Comparison:
    """Return what becomes of a trace under policies.

    Args:
        requests: the trace.
        model: of the replicas.
        policies: names from `POLICIES`.
        most: replicas.
        report: called with the step, how many requests of it are done, and of how many.

    """
    service_s = model.base_s + model.context_s * requests.context + model.generated_s * requests.generated
    total = len(requests.arrival_s)
    report("clairvoyant plan", 0, 0)
    plan = clairvoyant(requests.arrival_s, service_s, model, most)
    runs = []
    for name in policies:
        scaler = POLICIES[name](model, most)

        def step(done: int, name: str = name) -> None:
            report(name, done, total)

        runs.append((name, run(requests.arrival_s, service_s, model, scaler, min(plan.warm, most), step)))
    return Comparison(plan=plan, runs=tuple(runs), requests=requests)


def rows(found: Comparison) -> tuple[Row, ...]:
    """Return a row for each policy."""
    return tuple(
        Row(
            policy=name,
            replica_hours=round(each.replica_hours, 3),
            clairvoyant_replica_hours=round(found.plan.replica_hours, 3),
            within_slo=round(each.within_slo, 6),
            changes=each.changes,
            lost=each.lost,
        )
        for name, each in found.runs
    )


def log_lines(found: Comparison) -> Iterator[str]:
    """Yield one JSON object for each change of a policy's replicas, the first at 0 s, each with its line end."""
    for name, each in found.runs:
        for change in each.log:
            yield json.dumps({"policy": name, **msgspec.structs.asdict(change)}) + "\n"


def figures(found: Comparison) -> Iterator[tuple[str, bytes]]:
    """Yield file name and content of `replicas.png` and `replicas.svg`: each policy's replicas over the plan's.

    Raises:
        Unsupported: matplotlib is not installed.

    """
    drawn = _replicas(found)
    yield "replicas.png", render(drawn, "png")
    yield "replicas.svg", render(drawn, "svg")


def _replicas(found: Comparison) -> "Figure":
    tall = 1.5
    drawn = figure(10.6, 1.2 + tall * len(found.runs))
    height = 1.2 + tall * len(found.runs)
    hours = f"{found.requests.span_s / 3600:.1f} h, {len(found.requests.arrival_s):,} requests"
    titles(drawn, "Replicas asked for, over those of a clairvoyant plan (grey)", hours)
    planned = [step * found.plan.step_s / 3600 for step in range(len(found.plan.replicas) + 1)]
    highest = max(*(change.desired for _, each in found.runs for change in each.log), *found.plan.replicas)
    for number, (name, each) in enumerate(found.runs):
        bottom = (0.55 + tall * (len(found.runs) - 1 - number)) / height
        axes = drawn.add_axes((0.06, bottom, 0.9, (tall - 0.45) / height))
        last = number == len(found.runs) - 1
        share = f"{each.replica_hours / found.plan.replica_hours:.2f} x, {each.within_slo:.1%} within SLO"
        plain(axes, "time, hours" if last else "", name)
        axes.stairs([*found.plan.replicas], planned, fill=True, color="#d9dee4")
        times = [*(change.time_s / 3600 for change in each.log), found.requests.span_s / 3600]
        axes.stairs([change.desired for change in each.log], times, baseline=None, color=color_of(name), linewidth=1.1)
        axes.set(xlim=(0, found.requests.span_s / 3600), ylim=(0, highest * 1.1))
        axes.text(1.0, 1.02, share, transform=axes.transAxes, ha="right", va="bottom", fontsize=8)
    return drawn
