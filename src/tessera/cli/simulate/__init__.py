"""`tessera simulate`: replay a workload under several packing policies and compare them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import click
import msgspec
from rich.console import Console

from tessera.cli.inputs import ShareUnit, fleet_options, input_options, note_skipped, read_snapshot
from tessera.cli.options import (
    CommandGroup,
    Number,
    WholeNumber,
    check_output,
    check_outputs,
    output_option,
    policy_option,
    refuse_beside,
    refuse_without,
    with_options,
    write_output,
    write_outputs,
)
from tessera.cli.printing import headed_table, print_document, trimmed, wide_console
from tessera.cli.progress import Report, progress_bar
from tessera.cli.simulate.cluster import simulate_cluster
from tessera.cli.simulate.serving import simulate_serving
from tessera.core.packing.pack import POLICIES
from tessera.errors import InvalidInput
from tessera.sim.compare import simulate as simulate_policy
from tessera.sim.engine import Log, RunRules
from tessera.sim.metrics import RunMetrics, measure
from tessera.sim.replay import replay
from tessera.sim.report import check_figures, figures, log_lines, table_lines, title
from tessera.sim.workloads import MILLI, Trace, Workload, departing, filling, openb
from tessera.sim.workloads.pending import in_order
from tessera.sim.workloads.synthetic import PUBLISHED_MIX, ClassMix, make, plain_nodes

__all__ = ["simulate"]

_FROM_0 = WholeNumber(min=0)


class SimulationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options shared by all workloads: policies, rules, and outputs."""

    policy: tuple[str, ...]
    seed: int
    queue: Literal["drop", "fifo", "backfill"]
    moves: int
    create_s: float
    log: Path | None
    plots: Path | None
    output: str

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies, each once, in their order."""
        return tuple(dict.fromkeys(self.policy))

    @property
    def rules(self) -> RunRules:
        """The rules of the run."""
        return RunRules(queue=self.queue, moves=self.moves, create_s=self.create_s)

    def log_of(self, policy: str) -> Path:
        """Return the log file of one policy: FILE itself if it is the only one, else with its name in it."""
        assert self.log is not None
        return self.log if len(self.policies) == 1 else self.log.with_suffix(f".{policy}{self.log.suffix}")


run_options = with_options(
    policy_option(tuple(POLICIES), multiple=True, default=("fgd", "tessera")),
    click.option("--seed", type=_FROM_0, default=42, show_default=True, help="Seed of the arrivals."),
    click.option(
        "--queue",
        type=click.Choice(["drop", "fifo", "backfill"]),
        default="drop",
        show_default=True,
        help="Pods that do not fit are dropped, wait in order, or wait while later pods pass them.",
    ),
    click.option(
        "--moves",
        metavar="N",
        type=_FROM_0,
        default=0,
        show_default=True,
        help="Most running pods to move in the run, one for each pod that would not fit.",
    ),
    click.option(
        "--create-s",
        type=Number(0, 86_400),
        default=0.0,
        show_default=True,
        help="Seconds it takes to create a MIG instance.",
    ),
    click.option(
        "--log",
        type=click.Path(path_type=Path),
        help="Write one JSON object for each arrival; with several policies, run.jsonl becomes run.fgd.jsonl etc.",
    ),
    click.option("--plots", type=click.Path(path_type=Path), help="Write figures as PNG and SVG to this folder."),
    output_option(),
)
"""Adds the options shared by all workloads; the command passes them on as `Desired(**options)`."""


arrival_options = with_options(
    click.option(
        "--ratio",
        type=Number(0, 100, min_open=True),
        default=1.3,
        show_default=True,
        help="Arriving GPU demand as a multiple of capacity; no pod departs.",
    ),
    click.option(
        "--load",
        type=Number(0, 100, min_open=True),
        help="Instead, pods arrive and depart: mean offered GPU demand as a multiple of capacity.",
    ),
    click.option(
        "--lifetimes",
        type=Number(0, 1000, min_open=True),
        default=2.0,
        show_default=True,
        help="With --load: length of the measurement in mean pod lifetimes of one hour.",
    ),
)
"""Adds the options that turn a trace into arrivals; the command passes them to `arrivals`."""


@click.group(
    cls=CommandGroup,
    epilog="""
\b
Examples:
  tessera simulate openb FOLDER --policy fgd --policy tessera --plots plots/
  tessera simulate openb FOLDER --trace gpuspec33 --load 1.0 --queue backfill
  tessera simulate manifests --gpus 8xH100-80GB -f manifests/
  tessera simulate synthetic --nodes 200 --demand 60 36.7 3.3
""",
)
def simulate() -> None:
    """Replay a workload under several packing policies and compare the results.

    Every policy gets the same arrivals. The same seed gives the same result.
    """


@simulate.command(
    "openb",
    short_help="Replay an openb trace.",
    epilog="""
\b
Examples:
  tessera simulate openb FOLDER --policy fgd --policy tessera
  tessera simulate openb FOLDER --load 0.9 --queue backfill
""",
)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--trace",
    default="default",
    show_default=True,
    metavar="NAME",
    help="Name of the pod list: openb_pod_list_NAME.csv.",
)
@arrival_options
@run_options
def simulate_openb(folder: Path, trace: str, **options: Any) -> None:
    """Replay an openb trace: 1,213 GPU nodes of a production cluster and their pods.

    FOLDER has the CSV files of cluster-trace-gpu-v2023. By default pods arrive as in the published comparison of
    packing policies: in random order, more than fit, and none departs.
    """
    compare(arrivals(openb.read(folder, trace), options), SimulationOptions(**options))


simulate.add_command(simulate_serving)
simulate.add_command(simulate_cluster)


@simulate.command(
    "manifests",
    short_help="Replay the pods of manifests.",
    epilog="""
\b
Examples:
  tessera simulate manifests --gpus 8xH100-80GB -f manifests/
  tessera simulate manifests --cluster today.json -f manifests/ --log -
""",
)
@input_options
@run_options
def simulate_manifests(
    cluster: str | None,
    gpus: tuple[str, ...],
    gpu_model: tuple[str, ...],
    filename: tuple[str, ...],
    share_unit: ShareUnit | None,
    **options: Any,
) -> None:
    """Replay the pods of Kubernetes manifests, one by one in file order; none departs."""
    snapshot = read_snapshot(cluster, gpus, filename, share_unit, gpu_model)
    note_skipped(snapshot.nodes)
    compare(in_order(snapshot, options["seed"]), SimulationOptions(**options))


@simulate.command(
    "synthetic",
    short_help="Replay a synthetic workload.",
    epilog="""
\b
Examples:
  tessera simulate synthetic --nodes 200 --demand 60 36.7 3.3
  tessera simulate synthetic --gpus '20x(8xH100-80GB)' --load 0.9
""",
)
@fleet_options
@click.option(
    "--nodes",
    metavar="N",
    type=WholeNumber(1, 100_000),
    default=100,
    show_default=True,
    help="Without a fleet: number of nodes with 8 GPUs, 136 cores and 640 GiB.",
)
@click.option(
    "--demand",
    type=Number(0, 1e6),
    nargs=3,
    default=(PUBLISHED_MIX.part, PUBLISHED_MIX.one, PUBLISHED_MIX.several),
    show_default=True,
    metavar="PART ONE SEVERAL",
    help="Weights of GPU demand from pods that request part of a GPU, one, or several.",
)
@click.option(
    "--without-gpu",
    type=Number(0, 100, max_open=True),
    default=PUBLISHED_MIX.without_percent,
    show_default=True,
    metavar="PERCENT",
    help="Percent of pods without a GPU.",
)
@arrival_options
@run_options
def simulate_synthetic(
    cluster: str | None,
    gpus: tuple[str, ...],
    gpu_model: tuple[str, ...],
    nodes: int,
    demand: tuple[float, float, float],
    **options: Any,
) -> None:
    """Replay a synthetic workload, by default with the class mix of the openb trace, on nodes of your choice."""
    for other in ("--cluster", "--gpus"):
        refuse_beside("--nodes", other)
    part, one, several = demand
    mix = ClassMix(part=part, one=one, several=several, without_percent=options.pop("without_gpu"))
    given = read_snapshot(cluster, gpus, (), gpu_models=gpu_model).nodes if cluster or gpus else plain_nodes(nodes)
    note_skipped(given)
    compare(arrivals(make(given, options["seed"], mix), options), SimulationOptions(**options))


def arrivals(trace: Trace, options: dict[str, Any]) -> Workload:
    """Return the arrivals for `arrival_options`, and remove these options."""
    refuse_beside("--ratio", "--load")
    refuse_without("--lifetimes", "--load")
    ratio, load, lifetimes = options.pop("ratio"), options.pop("load"), options.pop("lifetimes")
    if load is None:
        return filling(trace, options["seed"], ratio)
    return departing(trace, options["seed"], load, lifetimes=lifetimes)


def compare(workload: Workload, desired: SimulationOptions) -> None:
    """Run the policies, write the requested files, print the comparison."""
    _check_targets(desired)
    with progress_bar() as report:
        logs = tuple(_run(workload, policy, desired.rules, report) for policy in desired.policies)
    runs = tuple(measure(log, replay(log)) for log in logs)
    if desired.log is not None:
        for log in logs:
            write_output(desired.log_of(log.policy), "".join(log_lines(log)))
    if desired.plots is not None:
        write_outputs(desired.plots, dict(figures(runs)))
    if not print_document(_report(workload, desired, runs), desired.output):
        _print_table(runs, wide_console(80, output=desired.output))


def _check_targets(desired: SimulationOptions) -> None:
    """Check before a long run that its outputs could be written."""
    if str(desired.log) == "-" and len(desired.policies) > 1:
        raise InvalidInput(
            "--log -", found=f"{len(desired.policies)} policies have a log each", hint="give one policy, or a file"
        )
    if desired.log is not None:
        for policy in desired.policies:
            check_output(desired.log_of(policy))
    if desired.plots is not None:
        check_figures()
        check_outputs(desired.plots)


def _run(workload: Workload, policy: str, rules: RunRules, report: Report) -> Log:
    count = len(workload.arrivals)
    return simulate_policy(workload, policy, rules, progress=lambda done: report(policy, done, count))


def _report(workload: Workload, desired: SimulationOptions, runs: Sequence[RunMetrics]) -> dict[str, Any]:
    return {
        "workload": workload.name,
        "seed": workload.seed,
        "gpus": workload.capacity_milli // MILLI,
        "rules": desired.rules,
        "runs": runs,
    }


def _print_table(runs: Sequence[RunMetrics], console: Console) -> None:
    """Print the policies side by side, as many as fit the terminal, and the others below."""
    lines = table_lines(runs)
    first = max(len(line[0]) for line in lines) + 2
    widest = max(len(cell) for line in lines for cell in line[1:]) + 2
    together = max(1, (console.width - first) // widest)
    console.print(title(runs[0]), highlight=False)
    for at in range(1, len(runs) + 1, together):
        shown = headed_table(lines[0][0])
        for policy in lines[0][at : at + together]:
            shown.add_column(policy, justify="right")
        for line in lines[1:]:
            shown.add_row(line[0], *line[at : at + together])
        console.print(trimmed(shown))
