"""`tessera explain`: one workload, the ways it could be served, where it goes or what stands in its way."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TypedDict, Unpack

import click
import msgspec
import rich
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from tessera.cli.drawing.lettering import clean
from tessera.cli.inputs import ShareUnit, input_options, read_snapshot
from tessera.cli.options import output_option, write_output
from tessera.cli.tables import where
from tessera.core import explain as core
from tessera.core.need import Pod
from tessera.core.plan import PLAN_POLICIES
from tessera.core.sharing import Mode, Option
from tessera.core.snapshot import Snapshot
from tessera.errors import InvalidInput

__all__ = ["explain"]

_MOST_NODES = 20
_WORD = 20
"""The longest word that is not broken, in a terminal of 80 characters."""
_MADE = {Mode.WHOLE: "a free GPU", Mode.MIG: "to be cut"}


class _Given(TypedDict):
    """The options as click passes them."""

    workload: str
    fleet: str | None
    gpus: tuple[str, ...]
    filename: tuple[str, ...]
    share_unit: ShareUnit | None
    policy: str
    output: str


@click.command(
    epilog="""
\b
Examples:
  tessera explain vllm --gpus 8xH100-80GB -f examples/2-vllm-replicas/vllm.yaml
  tessera explain Job/default/embed --gpus 8xH100-80GB -f examples/1-job-of-60-slices/job.yaml
  kubectl get nodes,pods -A -o json | tessera explain default/notebook-3 --fleet -
"""
)
@click.argument("workload")
@input_options
@click.option(
    "--policy", type=click.Choice(PLAN_POLICIES), default="tessera", show_default=True, help="As in `tessera plan`."
)
@output_option("table", "json")
def explain(**given: Unpack[_Given]) -> None:
    """Explain WORKLOAD: what it needs, the ways GPUs could serve it, where it goes, what stands in its way.

    WORKLOAD is a pod (namespace/name), a workload (Kind/namespace/name) or just a name. All pending pods are planned
    with it, as `tessera plan` does.
    """
    snapshot = read_snapshot(given["fleet"], given["gpus"], given["filename"], given["share_unit"])
    found = core.explain(snapshot, _named(snapshot, given["workload"]), policy=given["policy"])
    if given["output"] == "json":
        write_output("-", msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    else:
        rich.print(Group(*(part for each in found for part in _tables(each))))


def _named(snapshot: Snapshot, workload: str) -> tuple[Pod, ...]:
    """Return the pending pods that a name means: the pod, or those of the workload."""
    ends = f"/{workload}"
    chosen = tuple(
        pod
        for pod in snapshot.pending
        if workload in {pod.key, pod.owner} or pod.key.endswith(ends) or pod.owner.endswith(ends)
    )
    if not chosen:
        known = sorted({pod.owner or pod.key for pod in snapshot.pending})
        raise InvalidInput(
            f"workload {workload}",
            found="no pending pod of this name",
            wanted="a pod or workload of the manifests",
            accepted=", ".join(known[:_MOST_NODES]) or "give manifests with -f",
        )
    return chosen


def _tables(found: core.Explanation) -> Iterator[RenderableType]:
    alone = len(found.pods) == 1
    yield f"[bold]{escape(_listed(found.pods))}[/bold] {'needs' if alone else 'need'} {escape(found.need)}\n"
    columns = "GPUs mode profile MiB compute% isolation device"
    for ask, ways in groupby(found.ways, key=lambda way: way.ask):
        yield _table(f"Ways to serve {escape(ask)}, the preferred first", columns, [_cells(way) for way in ways])
        yield ""
    yield from (f"{escape(sentence)}\n" for sentence in found.foreign)
    places = f" ({escape(clean(where(found.placed)))})" if found.placed else ""
    yield f"{len(found.placed)} placed{places}, {len(found.waiting)} waiting\n"
    alike: dict[tuple[str, str], list[str]] = {}
    for verdict in found.nodes:
        alike.setdefault((verdict.obstacle or "has room", verdict.detail), []).append(verdict.node)
    nodes = [(_listed(names), *told) for told, names in alike.items()]
    yield _table("One more such pod after the plan", "node verdict detail", nodes[:_MOST_NODES])
    if len(nodes) > _MOST_NODES:
        more = sum(len(names) for names in list(alike.values())[_MOST_NODES:])
        yield f"and {more} more nodes; all with -o json"


def _cells(way: core.Way) -> tuple[str, ...]:
    """Return the cells of one way to serve an ask."""
    option = way.option
    amounts = str(option.memory_mib), str(option.compute_percent)
    isolation = option.mode.isolation.value
    return f"{way.gpus} x {way.model}", option.mode.value, option.profile or "", *amounts, isolation, _device(option)


def _device(option: Option) -> str:
    """Return where the device comes from."""
    if option.exists:
        return "exists"
    return "an amount" if option.amount else _MADE[option.mode]


def _listed(nodes: Sequence[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more"


def _table(title: str, columns: str, rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for number, column in enumerate(columns.split()):
        words = (word for row in rows for word in row[number].split())
        table.add_column(column, overflow="fold", min_width=min(_WORD, max(map(len, (column, *words)))))
    for row in rows:
        table.add_row(*map(escape, row))
    return table
