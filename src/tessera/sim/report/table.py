"""The table of a comparison, as text in lines and cells."""

from collections.abc import Iterator, Sequence

from tessera.sim.metrics import HEADLINES, RunMetrics

__all__ = ["table_lines", "title"]

Line = tuple[str, list[str]]
"""A measure, and a cell for each run."""


def title(run: RunMetrics) -> str:
    """Return what a comparison is about, in one line."""
    return f"workload {run.workload}, seed {run.seed}, {run.arrived:,} pods"


def table_lines(runs: Sequence[RunMetrics]) -> tuple[tuple[str, ...], ...]:
    """Return the measures of runs of one workload, a line each, a cell for each run; the first line names the policies.

    Measures that say nothing about this workload are left out.
    """
    lines = [("policy", [run.policy for run in runs]), *_fullness(runs), *_losses(runs), *_extras(runs)]
    return tuple((measure, *cells) for measure, cells in lines)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _fullness(runs: Sequence[RunMetrics]) -> Iterator[Line]:
    for arrived in HEADLINES:
        if arrived in runs[0].unallocated_percent:
            cells = [_percent(run.unallocated_percent.get(arrived)) for run in runs]
            yield f"unallocated % at {arrived} % arrived", cells
    if runs[0].curve.axis == "arrived_percent" and runs[0].curve.x[-1] not in HEADLINES:
        yield "unallocated % at the end", [_percent(100 - run.curve.allocated_percent[-1]) for run in runs]
    if runs[0].mean_unallocated_percent is not None:
        yield "mean unallocated %", [_percent(run.mean_unallocated_percent) for run in runs]
    if runs[0].curve.fragmented_percent:
        over_time = runs[0].curve.axis == "time_s"
        fragmented = [run.curve.fragmented_percent for run in runs]
        yield (
            "mean fragmented %" if over_time else "fragmented % at the end",
            [_percent(sum(each) / len(each) if over_time else each[-1]) for each in fragmented],
        )


def _losses(runs: Sequence[RunMetrics]) -> Iterator[Line]:
    yield "pods dropped", [f"{run.dropped:,}" for run in runs]
    yield "GPU demand dropped %", [_percent(run.dropped_demand_percent) for run in runs]
    yield "multi-GPU demand dropped %", [_percent(run.dropped_multi_gpu_percent) for run in runs]
    yield "pods without GPU dropped", [f"{run.dropped_without_gpu:,}" for run in runs]
    if runs[0].curve.axis == "arrived_percent":
        yield "first drop at % arrived", [_percent(run.first_drop_percent) for run in runs]


def _extras(runs: Sequence[RunMetrics]) -> Iterator[Line]:
    """Yield what is worth a line only if there is any."""
    if any(run.longest_wait_s for run in runs):
        yield "mean wait s", [f"{run.mean_wait_s:,.0f}" for run in runs]
        yield "longest wait s", [f"{run.longest_wait_s:,.0f}" for run in runs]
    if any(run.moves for run in runs):
        yield "moves", [f"{run.moves:,}" for run in runs]
    if any(run.instances_created for run in runs):
        yield "instances created", [f"{run.instances_created:,}" for run in runs]
    if any(run.refused_though_fitting for run in runs):
        yield "refused though fitting", [f"{run.refused_though_fitting or 0:,}" for run in runs]
