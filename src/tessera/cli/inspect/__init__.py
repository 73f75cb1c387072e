"""`tessera inspect`: who holds what on the GPUs of a cluster."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Collection
from typing import Literal, TypedDict, Unpack

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from tessera.cli.inspect.devices import ENDLESS, devices
from tessera.cli.inspect.summary import details, summary
from tessera.cli.livecluster import Place, cluster_options, connected, follow, observe, place_of, read_file
from tessera.cli.options import output_option, refuse_beside, write_output
from tessera.core import inspection as core
from tessera.core.cluster import Cluster
from tessera.core.inspection import Inspection
from tessera.errors import InvalidInput

__all__ = ["inspect"]

_MOST_NOTES = 10
_MOST_NODES = 10


class _Given(TypedDict):
    """The options as click passes them."""

    nodes: tuple[str, ...]
    filename: str | None
    kubeconfig: object
    context: str | None
    namespace: str
    selector: str
    details: bool
    watch: bool
    output: Literal["table", "wide", "json"]


class _Choice(msgspec.Struct, frozen=True):
    """What of a cluster is shown, and how."""

    nodes: tuple[str, ...]
    labels: tuple[tuple[str, str], ...]
    namespace: str
    details: bool
    output: Literal["table", "wide", "json"]

    def of(self, cluster: Cluster) -> Inspection:
        """Return who holds what there."""
        missing = [name for name in self.nodes if name not in {each.node.name for each in cluster.nodes}]
        if missing:
            known = [each.node.name for each in cluster.nodes]
            raise InvalidInput(
                f"node {missing[0]}", found="no node of this name", wanted="nodes of the cluster", accepted=_few(known)
            )
        return core.inspect(cluster, self.nodes, labels=self.labels, namespace=self.namespace)


def _few(names: Collection[str]) -> str:
    return ", ".join([*names][:_MOST_NODES]) + (", ..." if len(names) > _MOST_NODES else "")


@click.command(
    epilog="""
\b
Examples:
  tessera inspect                     # the table of kubectl inspect gpushare
  tessera inspect -o wide node-a      # each GPU of a node, drawn slice by slice
  tessera inspect -o wide --watch -n team-a
  kubectl get nodes,pods,gpunodes -A -o json | tessera inspect -f - -o wide
"""
)
@click.argument("nodes", nargs=-1, metavar="[NODE]...")
@cluster_options
@click.option("-n", "--namespace", default="", metavar="NAME", help="Only nodes with pods of this namespace.")
@click.option("-l", "--selector", default="", metavar="KEY=VALUE,...", help="Only nodes with these labels.")
@click.option("-d", "--details", is_flag=True, help="With the table: each pod of each node.")
@click.option("-w", "--watch", is_flag=True, help="Follow the cluster until interrupted.")
@output_option("table", "wide", "json")
def inspect(**given: Unpack[_Given]) -> None:
    """Show who holds what on the GPUs of a cluster: pods, memory, layout, isolation, health, fragmentation.

    The table counts memory as gpushare does, all pods included. `-o wide` is one line a GPU; docs/inspect.md
    describes every column. Changes nothing anywhere.
    """
    for other in ("--kubeconfig", "--context", "--watch"):
        refuse_beside(other, "--filename")
    choice = _Choice(given["nodes"], _labels(given["selector"]), given["namespace"], given["details"], given["output"])
    if choice.details and choice.output != "table":
        raise InvalidInput(
            "--details", found=f"-o {choice.output} beside it", wanted="the table, which it is a form of"
        )
    place = place_of(given)
    if place.filename is not None:
        _show(choice.of(read_file(place.filename)[0]), choice)
    elif given["watch"]:
        asyncio.run(_watch(place, choice))
    else:
        _show(choice.of(asyncio.run(_observed(place))), choice)


def _labels(selector: str) -> tuple[tuple[str, str], ...]:
    pairs = [part.partition("=") for part in selector.split(",") if part]
    if any(not key or not equals for key, equals, _ in pairs):
        raise InvalidInput("--selector", found=selector, wanted="labels with their values", accepted="zone=a,pool=gpu")
    return tuple((key.strip(), value.removeprefix("=").strip()) for key, _, value in pairs)


async def _observed(place: Place) -> Cluster:
    async with connected(place) as kube:
        return await observe(kube)


def _show(found: Inspection, choice: _Choice) -> None:
    console = _console()
    for note in found.notes[:_MOST_NOTES]:
        click.echo(f"note: {note}", err=True)
    if len(found.notes) > _MOST_NOTES:
        click.echo(f"note: and {len(found.notes) - _MOST_NOTES} more; all with -o json", err=True)
    if choice.output == "json":
        write_output("-", msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    elif choice.output == "wide":
        console.print(devices(found, console.width))
    else:
        write_output("-", _table(found, choice, console.width if console.is_terminal else None))


def _table(found: Inspection, choice: _Choice, width: int | None) -> str:
    return details(found) if choice.details else summary(found, width)


def _console() -> Console:
    told = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if told else ENDLESS, highlight=False)


# Watching


async def _watch(place: Place, choice: _Choice) -> None:
    """Show the cluster again after each change, until SIGINT or SIGTERM."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    console = _console()
    troubles: list[str] = []

    def show(cluster: Cluster) -> None:
        frame = _frame(choice.of(cluster), choice, console.width, troubles)
        if console.is_terminal:
            live.update(frame, refresh=True)
        else:
            console.print(frame)

    async with connected(place) as kube:
        with contextlib.suppress(asyncio.CancelledError), Live(console=console, auto_refresh=False) as live:
            await follow(kube, show, lambda error: troubles.append(str(error)))


def _frame(found: Inspection, choice: _Choice, width: int, troubles: list[str]) -> RenderableType:
    if choice.output == "wide":
        shown: RenderableType = devices(found, width)
    elif choice.output == "json":
        shown = Text(msgspec.json.encode(found).decode())
    else:
        shown = Text(_table(found, choice, width))
    told = [Text(f"the API was not reached for a while: {troubles[-1]}", "yellow")] if troubles else []
    troubles.clear()
    return Group(shown, *told)
