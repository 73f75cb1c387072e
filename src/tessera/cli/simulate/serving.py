"""`tessera simulate serving`: replay requests to a model server under several autoscaling policies."""

from pathlib import Path
from typing import Any

import click
import numpy as np

from tessera.cli.options import (
    Number,
    WholeNumber,
    check_output,
    check_outputs,
    output_option,
    with_options,
    write_output,
    write_outputs,
)
from tessera.cli.printing import headed_table, print_document, trimmed, wide_console
from tessera.cli.progress import progress_bar
from tessera.errors import InvalidInput
from tessera.sim.report import check_figures
from tessera.sim.report.replicafigures import replica_figures
from tessera.sim.serving.compare import HEADER, Comparison, compare, log_lines, rows
from tessera.sim.serving.policies import POLICIES
from tessera.sim.serving.replicamodel import ReplicaModel
from tessera.sim.serving.traces import Requests, read_requests

__all__ = ["simulate_serving"]

_DEFAULTS = ReplicaModel()

model_options = with_options(
    click.option(
        "--cold-start",
        type=Number(0, 86_400),
        default=_DEFAULTS.cold_start_s,
        show_default=True,
        metavar="SECONDS",
        help="Seconds until a new replica serves.",
    ),
    click.option(
        "--max-replicas",
        type=WholeNumber(1, 1000),
        default=16,
        show_default=True,
        help="Upper bound of the replicas.",
    ),
    click.option(
        "--slots",
        type=WholeNumber(1, 10_000),
        default=_DEFAULTS.slots,
        show_default=True,
        help="Requests that a replica serves at once.",
    ),
    click.option(
        "--spec-slots",
        type=WholeNumber(1, 100_000),
        default=None,
        help="Slots that policies assume, such as vLLM's --max-num-seqs where its KV cache is full earlier.",
    ),
    click.option(
        "--slo",
        type=Number(0, 86_400),
        default=_DEFAULTS.slo_s,
        show_default=True,
        metavar="SECONDS",
        help="Longest wait for a slot.",
    ),
    click.option(
        "--service",
        type=Number(0, 3600),
        nargs=3,
        default=(_DEFAULTS.base_s, _DEFAULTS.context_s, _DEFAULTS.generated_s),
        show_default=True,
        metavar="BASE PROMPT ANSWER",
        help="Seconds for each request, each token of its prompt and each token of its answer.",
    ),
    click.option(
        "--grace",
        type=Number(0, 86_400),
        default=_DEFAULTS.grace_s,
        show_default=True,
        metavar="SECONDS",
        help="Grace period in which a removed replica finishes its requests.",
    ),
    click.option(
        "--idle-seconds",
        type=Number(60, 604_800),
        metavar="SECONDS",
        help="Policy tessera: scale to zero after this time without a request.  [default: keep one replica]",
    ),
)


_EPILOG = """
\b
Examples:
  tessera simulate serving azure_llm_2023_conv.csv
  tessera simulate serving rates.csv --column m_large_rps --mean-rate 3.5
"""


@click.command("serving", short_help="Replay requests to a model server.", epilog=_EPILOG)
@click.argument("trace", type=click.Path(path_type=Path), metavar="TRACE.csv")
@click.option(
    "--policy",
    type=click.Choice(list(POLICIES)),
    multiple=True,
    default=tuple(POLICIES),
    show_default=True,
    help="Autoscaling policy; repeatable.",
)
@click.option("--column", metavar="NAME", help="Column of a file of rates.")
@click.option(
    "--mean-rate",
    type=Number(0, 1e6, min_open=True),
    metavar="N",
    help="Scale the trace to so many requests per second.",
)
@click.option("--hours", type=Number(0, 1e5, min_open=True), metavar="N", help="Replay the first hours only.")
@click.option("--seed", type=WholeNumber(min=0), default=42, show_default=True, help="Seed of the random draws.")
@model_options
@click.option("--log", type=click.Path(path_type=Path), help="Write one JSON object for each change of replicas.")
@click.option("--plots", type=click.Path(path_type=Path), help="Write figures as PNG and SVG to this folder.")
@output_option()
def simulate_serving(
    trace: Path,
    policy: tuple[str, ...],
    column: str | None,
    mean_rate: float | None,
    hours: float | None,
    seed: int,
    **options: Any,
) -> None:
    """Replay requests to a model server under several autoscaling policies.

    TRACE.csv is a trace of requests (Azure LLM 2023: TIMESTAMP,ContextTokens,GeneratedTokens; Mooncake:
    timestamp_ms,input_length,output_length) or a file of rates (ServeGen: t_s and columns of requests a second, or its
    clients), known by its header. A file of rates needs --mean-rate, and --column where it has several.

    A replica serves --slots requests at once and others in order; a request goes to the replica that serves it first,
    and takes 0.03 s, 0.3 ms for each token of its prompt and 20 ms for each of its answer (--service). Policies decide
    every 15 s, through the arithmetic of Kubernetes' HorizontalPodAutoscaler. A new replica serves after --cold-start;
    a removed one finishes its requests. All policies begin with the same replicas, ready: the most
    that the clairvoyant plan has in its first ten minutes. That plan knows all requests, starts replicas in no time,
    and lets 1 % of the requests wait too long. Replica-hours count replicas that are requested or drain, until the last
    request. With --idle-seconds a request that finds no replica wakes one and waits for it, as behind a queue; in a
    cluster without a queue it is refused.
    """
    _check_targets(options)
    if options["idle_seconds"] is not None and "tessera" not in policy:
        cause = "it has no effect without --policy tessera"
        raise InvalidInput("--idle-seconds", found=cause, hint="add that policy, or leave it out")
    requests = _read(trace, column, mean_rate, seed)
    requests = requests if hours is None else requests.first(hours * 3600)
    base_s, context_s, generated_s = options["service"]
    model = ReplicaModel(
        slots=options["slots"],
        spec_slots=options["spec_slots"],
        base_s=base_s,
        context_s=context_s,
        generated_s=generated_s,
        cold_start_s=options["cold_start"],
        grace_s=options["grace"],
        slo_s=options["slo"],
        idle_s=options["idle_seconds"],
    )
    with progress_bar() as report:
        found = compare(requests, model, tuple(dict.fromkeys(policy)), options["max_replicas"], report)
    if options["log"] is not None:
        write_output(options["log"], "".join(log_lines(found)))
    if options["plots"] is not None:
        write_outputs(options["plots"], dict(replica_figures(found)))
    if not print_document(list(rows(found)), options["output"]):
        _print(found, options["output"])


def _check_targets(options: dict[str, Any]) -> None:
    """Check before a long run that its outputs could be written."""
    if options["log"] is not None:
        check_output(options["log"])
    if options["plots"] is not None:
        check_figures()
        check_outputs(options["plots"])


def _read(trace: Path, column: str | None, mean_rate: float | None, seed: int) -> Requests:
    try:
        with trace.open(encoding="utf-8", newline="") as lines:
            return read_requests(lines, str(trace), column=column, mean_rate=mean_rate, rng=np.random.default_rng(seed))
    except OSError as error:
        raise InvalidInput(
            str(trace), found=error.strerror or str(error), hint="name a file that can be read"
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(str(trace), found="it has bytes that are not UTF-8", hint="name a CSV file") from error


def _print(comparison: Comparison, output: str) -> None:
    console = wide_console(80, output=output)
    count, hours = len(comparison.requests.arrival_s), comparison.requests.span_s / 3600
    plan = f"{comparison.plan.replica_hours:.1f} replica-hours, {comparison.plan.within_slo:.1%} within SLO"
    console.print(f"{count:,} requests in {hours:.1f} h; plan: {plan}", highlight=False)
    shown = headed_table(*HEADER)
    for column in shown.columns[1:]:
        column.justify = "right"
    for each in rows(comparison):
        ratio = each.replica_hours / each.clairvoyant_replica_hours if each.clairvoyant_replica_hours else 1.0
        shown.add_row(
            each.policy,
            f"{each.replica_hours:.1f}",
            f"{ratio:.2f}",
            f"{each.within_slo:.2%}",
            f"{each.changes:,}",
            f"{each.lost:,}",
        )
    console.print(trimmed(shown))
