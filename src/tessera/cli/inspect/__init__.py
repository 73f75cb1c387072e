"""`tessera inspect`: GPU usage in a live cluster."""

import asyncio
from collections.abc import Callable
from typing import TypedDict, Unpack

import click
import msgspec
from rich.console import Console, RenderableType
from rich.text import Text

from tessera.cli.clusteraccess import ClusterSource, connected
from tessera.cli.inspect.devices import devices
from tessera.cli.inspect.summary import details, summary
from tessera.cli.inspect.watching import watch
from tessera.cli.livecluster import cluster_options, observe, place_of, read_file
from tessera.cli.options import output_option, refuse_beside, write_output
from tessera.cli.printing import print_document, trimmed, wide_console, yaml_text
from tessera.cli.progress import progress_bar
from tessera.core.cluster.cluster import Cluster
from tessera.core.explain import inspection as core
from tessera.core.explain.inspection import Inspection
from tessera.errors import InvalidInput

__all__ = ["inspect"]

_MOST_NOTES = 10
_MOST_NODES = 10


class _Given(TypedDict):
    """The options as click passes them."""

    nodes: tuple[str, ...]
    cluster: str | None
    kubeconfig: object
    context: str | None
    namespace: str
    selector: str
    details: bool
    watch: bool
    output: str


class _Choice(msgspec.Struct, frozen=True):
    """What to show of a cluster, and how."""

    nodes: tuple[str, ...]
    labels: tuple[tuple[str, str], ...]
    namespace: str
    details: bool
    output: str

    def check(self, cluster: Cluster) -> None:
        """Reject unknown nodes."""
        missing = [name for name in self.nodes if name not in {each.node.name for each in cluster.nodes}]
        if missing:
            known = [each.node.name for each in cluster.nodes]
            accepted = ", ".join(known[:_MOST_NODES]) + (", ..." if len(known) > _MOST_NODES else "")
            raise InvalidInput(
                f"node {missing[0]}",
                found="the cluster has no such node",
                hint=f"name {accepted}" if accepted else "check the name",
            )

    def of(self, cluster: Cluster) -> Inspection:
        """Return the GPU usage of the chosen nodes."""
        return core.inspect(cluster, self.nodes, labels=self.labels, namespace=self.namespace)


@click.command(
    epilog="""
\b
Examples:
  tessera inspect                     # each GPU, drawn to scale
  tessera inspect -o wide node-a      # one line for each GPU of a node
  tessera inspect --watch -n team-a
  tessera inspect -o gpushare -d      # the tables of kubectl inspect gpushare
  kubectl get nodes,pods,gpunodes -A -o json | tessera inspect --cluster -
"""
)
@click.argument("nodes", nargs=-1, metavar="[NODE]...")
@cluster_options
@click.option("-n", "--namespace", default="", metavar="NAME", help="Only nodes with pods of this namespace.")
@click.option("-l", "--selector", default="", metavar="KEY=VALUE,...", help="Only nodes with these labels.")
@click.option("-d", "--details", is_flag=True, help="With -o gpushare: list the pods of each node.")
@click.option("-w", "--watch", is_flag=True, help="Update after each change until interrupted.")
@output_option("gpushare")
def inspect(**given: Unpack[_Given]) -> None:
    """Show GPU usage in a live cluster: pods, memory, layout, isolation, health, fragmentation. Changes nothing.

    Every GPU is drawn to scale; docs/inspect.md describes the columns. `-o gpushare` prints the table of
    `kubectl inspect gpushare`, with all pods counted.
    """
    for other in ("--kubeconfig", "--context", "--watch"):
        refuse_beside(other, "--cluster")
    choice = _Choice(given["nodes"], _labels(given["selector"]), given["namespace"], given["details"], given["output"])
    if choice.details and choice.output != "gpushare":
        raise InvalidInput(
            "--details", found=f"it adds to -o gpushare, and -o is {choice.output}", hint="give -o gpushare as well"
        )
    place = place_of(given)
    if given["watch"]:
        console = wide_console(output=choice.output)
        asyncio.run(watch(place, console, _frames(choice, console)))
        return
    with progress_bar("reading the cluster"):
        cluster = read_file(place.file)[0] if place.file is not None else asyncio.run(_observed(place))
        choice.check(cluster)
        found = choice.of(cluster)
    _show(found, choice)


def _labels(selector: str) -> tuple[tuple[str, str], ...]:
    pairs = [part.partition("=") for part in selector.split(",") if part]
    if any(not key or not equals for key, equals, _ in pairs):
        raise InvalidInput("--selector", found=selector, expected="labels with values", hint="zone=a,pool=gpu")
    return tuple((key.strip(), value.removeprefix("=").strip()) for key, _, value in pairs)


async def _observed(place: ClusterSource) -> Cluster:
    async with connected(place) as kube:
        return await observe(kube)


def _show(inspection: Inspection, choice: _Choice) -> None:
    console = wide_console(output=choice.output)
    problems = [f"node {node.name}: {node.problem}" for node in inspection.nodes if node.problem]
    notes = [*inspection.notes, *(problems if choice.output == "gpushare" else ())]
    for note in notes[:_MOST_NOTES]:
        click.echo(f"note: {note}", err=True)
    if len(notes) > _MOST_NOTES:
        click.echo(f"note: and {len(notes) - _MOST_NOTES} more; -o json has all", err=True)
    if choice.output == "gpushare":
        write_output("-", _gpushare(inspection, choice, console))
    elif not print_document(inspection, choice.output):
        console.print(trimmed(devices(inspection, console.width)))


def _gpushare(inspection: Inspection, choice: _Choice, console: Console) -> str:
    return (
        details(inspection) if choice.details else summary(inspection, console.width if console.is_terminal else None)
    )


def _frames(choice: _Choice, console: Console) -> Callable[[Cluster], RenderableType]:
    """Return the function that draws a cluster; a node that existed once may be deleted."""
    checked: list[Cluster] = []

    def drawn(cluster: Cluster) -> RenderableType:
        if not checked:
            choice.check(cluster)
            checked.append(cluster)
        found = choice.of(cluster)
        if choice.output == "json":
            return Text(msgspec.json.encode(found).decode())
        if choice.output == "yaml":
            return Text(f"---\n{yaml_text(found).decode().rstrip()}")
        if choice.output == "gpushare":
            return Text(_gpushare(found, choice, console))
        return trimmed(devices(found, console.width))

    return drawn
