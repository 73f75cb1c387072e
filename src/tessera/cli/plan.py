"""`tessera plan`: GPU layouts, a node and GPU for each pod, and why the others stay pending."""

from pathlib import Path
from typing import TypedDict, Unpack

import click
import rich

from tessera.api.nvidia import adminfiles
from tessera.api.tessera import plans
from tessera.cli.drawing import svg
from tessera.cli.inputs import ShareUnit, input_options, read_snapshot
from tessera.cli.options import (
    Seconds,
    check_output,
    check_outputs,
    output_option,
    refuse_beside,
    refuse_without,
    write_output,
    write_outputs,
)
from tessera.cli.printing import trimmed
from tessera.cli.progress import progress_bar
from tessera.cli.tables import plan_tables
from tessera.core.packing import plan as core
from tessera.errors import InvalidInput

__all__ = ["plan"]

_OTHER_PICTURES = {".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf", ".html"}


class _Given(TypedDict):
    """The options as click passes them."""

    fleet: str | None
    gpus: tuple[str, ...]
    gpu_model: tuple[str, ...]
    filename: tuple[str, ...]
    share_unit: ShareUnit | None
    policy: str
    exact: bool
    limit: float
    output: str
    draw: str | None
    write: str | None


@click.command(
    epilog="""
\b
Examples:
  tessera plan --gpus 8xH100-80GB -f examples/2-vllm-replicas/vllm.yaml
  tessera plan --fleet fleet.yaml -f manifests/ --draw plan.svg
  kubectl get nodes,pods -A -o json | tessera plan --fleet - -f new-deployment.yaml
  tessera plan --fleet fleet.yaml -f manifests/ --write out/   # files to apply
"""
)
@input_options
@click.option(
    "--policy", type=click.Choice(core.PLAN_POLICIES), default="tessera", show_default=True, help="Packing policy."
)
@click.option("--exact", is_flag=True, help="Solve for the most pods with an integer program (HiGHS).")
@click.option(
    "--limit",
    type=Seconds(),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="With --exact: time limit of the solver; the best plan found by then is shown, with its bound.",
)
@output_option("table", "json", "yaml")
@click.option("--draw", type=click.Path(dir_okay=False), metavar="FILE.svg", help="Draw every GPU with its pods.")
@click.option(
    "--write",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Write mig-parted files, device plugin files and node labels.",
)
def plan(**given: Unpack[_Given]) -> None:
    """Plan a cluster: GPU layouts, a node and GPU for each pod, and why the others stay pending. Changes nothing.

    The nodes come from a file (--fleet: a fleet file, Node objects, or `kubectl get nodes,pods -A -o json`, whose
    running pods stay where they are) or in short form (--gpus, one node each). Workloads come from -f.
    """
    refuse_beside("--policy", "--exact")
    refuse_without("--limit", "--exact")
    with progress_bar(wanted=given["output"] == "table") as report:
        report("reading", 0, 0)
        snapshot = read_snapshot(
            given["fleet"], given["gpus"], given["filename"], given["share_unit"], given["gpu_model"]
        )
        _check_targets(given["draw"], given["write"])
        if not snapshot.pending and not given["filename"]:
            click.echo("note: no pending pods; pass manifests with -f", err=True)
        made = core.plan(
            snapshot, policy=given["policy"], exact=given["exact"], limit_s=given["limit"], progress=report
        )
    if given["draw"] is not None:
        write_output(given["draw"], svg(made, snapshot, title="Tessera plan"))
    if given["write"] is not None:
        write_outputs(given["write"], adminfiles.render(made, snapshot))
    if given["output"] == "table":
        rich.print(trimmed(plan_tables(made, snapshot)))
    else:
        write_output("-", plans.to_json(made) if given["output"] == "json" else plans.to_yaml(made))


def _check_targets(draw: str | None, write: str | None) -> None:
    """Find out before a long run what could not be written after it."""
    if draw is not None:
        if Path(draw).suffix.lower() in _OTHER_PICTURES:
            raise InvalidInput(f"--draw {draw}", found="another image format", expected="a name ending in .svg")
        check_output(draw)
    if write is not None:
        check_outputs(write)
