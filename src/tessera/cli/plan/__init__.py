"""`tessera plan`: GPU layouts, a node and GPU for each pod, and why the others stay pending."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

import click
import msgspec
import rich

from tessera.api.nvidia import adminfiles
from tessera.api.tessera.cluster import plans
from tessera.cli.completion import complete_prices
from tessera.cli.drawing.sheet import svg
from tessera.cli.inputs import ShareUnit, input_options, read_snapshot
from tessera.cli.options import (
    Seconds,
    check_output,
    check_outputs,
    output_option,
    policy_option,
    refuse_beside,
    refuse_without,
    write_output,
    write_outputs,
)
from tessera.cli.plan.tables import plan_tables
from tessera.cli.printing import print_document, trimmed, wide_console
from tessera.cli.progress import Report, progress_bar
from tessera.core.cluster.snapshot import Snapshot
from tessera.core.gpu.gpumodels import model
from tessera.core.packing import plan as core
from tessera.core.packing.linear import TimeBudget
from tessera.core.packing.sizing import FleetSizing, NodeType, SizingRules, smallest_fleet
from tessera.errors import InvalidInput, shown

__all__ = ["plan"]

_OTHER_PICTURES = {".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf", ".html"}
_MOST_MONEY = 1e9
_PENDING = 6
"""Exit code of `--fail-pending`."""


class _Given(TypedDict):
    """The options as click passes them."""

    cluster: str | None
    gpus: tuple[str, ...]
    gpu_model: tuple[str, ...]
    filename: tuple[str, ...]
    share_unit: ShareUnit | None
    policy: str
    exact: bool
    limit: float
    fit: bool
    price: tuple[str, ...]
    fail_pending: bool
    output: str
    draw: str | None
    write: str | None


class _PlanOutcome(msgspec.Struct, frozen=True):
    """A plan, its snapshot, and the further options."""

    plan: core.Plan
    snapshot: Snapshot
    prices: Mapping[str, float]
    fit: tuple[Sequence[NodeType], FleetSizing] | None = None


@click.command(
    epilog="""
\b
Examples:
  tessera plan --gpus 8xH100-80GB -f examples/2-vllm-replicas/vllm.yaml
  tessera plan --cluster fleet.yaml -f manifests/ --draw plan.svg
  kubectl get nodes,pods -A -o json | tessera plan --cluster - -f new.yaml
  tessera plan --fit --gpus 8xH100-80GB --gpus 4xL40S -f manifests/ \\
    --price H100-80GB=2.50 --price L40S=0.90
  tessera plan --cluster fleet.yaml -f manifests/ --fail-pending  # in CI
  tessera plan --cluster fleet.yaml -f manifests/ --write out/
"""
)
@input_options
@policy_option(core.PLAN_POLICIES, default="tessera")
@click.option("--exact", is_flag=True, help="Solve for the most pods with an integer program (HiGHS).")
@click.option(
    "--limit",
    type=Seconds(),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="With --exact: time limit of the solver, with --fit in sum over all fleets; the best plan found by then is "
    "shown, with its bound.",
)
@click.option(
    "--fit",
    is_flag=True,
    help="Treat the nodes as node types, any number of each: find the smallest fleet for all pods.",
)
@click.option(
    "--price",
    multiple=True,
    metavar="MODEL=MONEY",
    help="Price of one GPU of a model per hour, such as H100-80GB=2.50; repeatable. With --fit: the cheapest fleet.",
    shell_complete=complete_prices,
)
@click.option("--fail-pending", is_flag=True, help=f"Exit with code {_PENDING} if a pod stays pending.")
@output_option()
@click.option("--draw", type=click.Path(dir_okay=False), metavar="FILE.svg", help="Draw every GPU with its pods.")
@click.option(
    "--write",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Write mig-parted files, device plugin files and node labels.",
)
@click.pass_context
def plan(context: click.Context, /, **given: Unpack[_Given]) -> None:
    """Plan a cluster: GPU layouts, a node and GPU for each pod, and why the others stay pending. Changes nothing.

    The nodes come from a file (--cluster: `kubectl get nodes,pods -A -o json`, whose running pods stay where they are,
    Node objects, or a fleet file) or in short form (--gpus). Workloads come from -f.
    """
    refuse_beside("--policy", "--exact")
    refuse_without("--limit", "--exact")
    prices = _prices(given["price"])
    with progress_bar() as report:
        snapshot = read_snapshot(
            given["cluster"], given["gpus"], given["filename"], given["share_unit"], given["gpu_model"]
        )
        _check_targets(given["draw"], given["write"])
        if not snapshot.pending and not given["filename"]:
            click.echo("note: no pending pods; pass manifests with -f", err=True)
        models = {gpu.model.name for node in snapshot.nodes for gpu in node.gpus}
        for name in (each for each in prices if each not in models):
            click.echo(f"note: --price {name}: no node has this GPU", err=True)
        outcome = (
            _fitted(snapshot, given, prices, report) if given["fit"] else _planned(snapshot, given, prices, report)
        )
    if given["draw"] is not None:
        write_output(given["draw"], svg(outcome.plan, outcome.snapshot, title="Tessera plan"))
    if given["write"] is not None:
        write_outputs(given["write"], adminfiles.render(outcome.plan, outcome.snapshot))
    if not print_document(plans.document(outcome.plan, prices, outcome.fit), given["output"]):
        console = wide_console(output="wide") if given["output"] == "wide" else rich.get_console()
        console.print(trimmed(plan_tables(outcome.plan, outcome.snapshot, outcome.prices, outcome.fit)))
    context.exit(_PENDING if given["fail_pending"] and outcome.plan.pending else 0)


def _planned(snapshot: Snapshot, given: _Given, prices: Mapping[str, float], report: Report) -> _PlanOutcome:
    budget = TimeBudget(given["limit"])
    outcome = core.plan(snapshot, policy=given["policy"], exact=given["exact"], budget=budget, progress=report)
    return _PlanOutcome(outcome, snapshot, prices)


def _fitted(snapshot: Snapshot, given: _Given, prices: Mapping[str, float], report: Report) -> _PlanOutcome:
    """Return the plan of the smallest fleet of the snapshot's kinds of nodes.

    Raises:
        InvalidInput: there are running pods, or a price is missing.

    """
    if snapshot.running:
        found = f"{len(snapshot.running)} running pods"
        raise InvalidInput(
            "--fit", found=found, hint="give node types: --gpus, or a fleet file with one node of each type"
        )
    kinds = {msgspec.structs.replace(node, name="", labels=()): node for node in reversed(snapshot.nodes)}
    nodes = [node for node in snapshot.nodes if node in kinds.values() and node.gpus]
    models = {gpu.model.name for node in nodes for gpu in node.gpus}
    missing = sorted(models - prices.keys()) if prices else []
    if missing:
        raise InvalidInput(
            "--price", found=f"there is no price of {missing[0]}", hint="give one for each GPU model, as --fit needs"
        )
    costs = prices or dict.fromkeys(models, 1.0)
    types = [NodeType(node=node, cost=sum(costs[gpu.model.name] for gpu in node.gpus)) for node in nodes]
    if not types:
        raise InvalidInput("--fit", found="there is no node with GPUs", hint="give node types: --gpus 8xH100-80GB")
    rules = SizingRules(policy=given["policy"], exact=given["exact"], limit_s=given["limit"])
    sized = smallest_fleet(types, snapshot.pending, rules, report)
    outcome = msgspec.structs.replace(sized.plan, notes=snapshot.notes, left_out=snapshot.left_out)
    return _PlanOutcome(outcome, sized.snapshot, prices, (types, sized))


def _prices(given: Sequence[str]) -> dict[str, float]:
    """Return the price of one GPU of each named model.

    Raises:
        InvalidInput: not a model and a price, or a model twice.

    """
    prices: dict[str, float] = {}
    for text in given:
        name, _, money = text.rpartition("=")
        try:
            price = float(money)
        except ValueError:
            price = math.nan
        if not name or not 0 <= price < _MOST_MONEY:
            raise InvalidInput(f"--price {text}", found=shown(text), expected="MODEL=MONEY", hint="H100-80GB=2.50")
        known = model(name).name
        if known in prices:
            raise InvalidInput(
                f"--price {text}", found=f"there is another price of {known}", hint="give one price of each model"
            )
        prices[known] = price
    return prices


def _check_targets(draw: str | None, write: str | None) -> None:
    """Check before a long run that its outputs could be written."""
    if draw is not None:
        if Path(draw).suffix.lower() in _OTHER_PICTURES:
            raise InvalidInput(f"--draw {draw}", found="only SVG is drawn", hint="give a name ending in .svg")
        check_output(draw)
    if write is not None:
        check_outputs(write)
