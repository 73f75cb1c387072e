"""`tessera top`: live GPU usage."""

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypedDict, Unpack

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.text import Text

from tessera.api.tessera.usage.usagejson import usage_fields
from tessera.cli.clusteraccess import ClusterSource
from tessera.cli.drawing.lettering import clean
from tessera.cli.options import Seconds, output_option
from tessera.cli.printing import print_document, trimmed, wide_console, yaml_text
from tessera.cli.screen import Screen
from tessera.cli.signals import cancel_on_signal
from tessera.cli.usage.agents import agents, agents_options, note_silent, refuse_two_sources
from tessera.cli.usage.tables import top_notes, top_table
from tessera.clients.nodeusage import NodeReports, UsageSource
from tessera.core.usage.usagereport import UsageReport
from tessera.errors import InvalidInput, TesseraError, Unavailable

__all__ = ["top"]


class _Shown(TypedDict):
    """What is shown, and how."""

    node: str
    interval_s: float
    output: str


@click.command(
    epilog="""
\b
Examples:
  tessera top
  tessera top --node gpu-7
  tessera top --context prod --once -o json
  tessera top --agent 10.0.3.7 --agent 10.0.3.8
"""
)
@agents_options
@click.option("--node", default="", metavar="NAME", help="Show one node only.")
@click.option("--once", is_flag=True, help="Print once and end.")
@click.option("--interval-s", type=Seconds(0.1), default=5.0, show_default=True, help="Time between two updates.")
@output_option()
def top(
    agent: tuple[str, ...], kubeconfig: Path | None, context: str | None, *, once: bool, **shown: Unpack[_Shown]
) -> None:
    """Show GPU usage live: memory used of what was allocated, load, throttling, and its causes.

    Queries every node's agent through the API server (needs `get pods/proxy` in tessera-system), or the agents given
    with --agent. Agents observe their GPUs every 15 s. First come agents that do not answer and what slows down GPUs,
    then the GPUs: slow ones first, then the busiest.
    """
    refuse_two_sources()
    source = agents(agent, ClusterSource(kubeconfig=kubeconfig, context=context), node=shown["node"])
    asyncio.run(_once(source, shown) if once else _live(source, shown))


def _of_node(reports: NodeReports, node: str) -> tuple[UsageReport, ...]:
    """Return the reports, or that of one node.

    Raises:
        InvalidInput: no agent reports that node, and all answered.
        Unavailable: no agent reports it that answered.

    """
    found = tuple(each for each in reports.some() if node in {"", each.node})
    if not found and reports.silent:
        one, *more = reports.silent
        others = f", and {len(more)} more agents" if more else ""
        raise Unavailable(
            f"node {node}",
            found=f"no agent that answers reports it, and one does not{others}: {one.subject}: {one.cause}",
            hint=one.hint or "try again",
        )
    if not found:
        raise InvalidInput(f"node {node}", found="no agent reports it", hint="kubectl get nodes lists the nodes")
    return found


async def _once(usages: AbstractAsyncContextManager[UsageSource], shown: _Shown) -> None:
    async with usages as source:
        found = await source.read()
    reports = _of_node(found, shown["node"])
    note_silent(found.silent)
    if not print_document(tuple(map(usage_fields, reports)), shown["output"]):
        console = wide_console(output=shown["output"])
        console.print(trimmed(*top_notes(reports), top_table(reports, console.width)))


async def _live(usages: AbstractAsyncContextManager[UsageSource], shown: _Shown) -> None:
    """Show it until SIGINT or SIGTERM, which end it without an error.

    A document does not name the pods that are left out: stderr does, whenever they change.
    """
    cancel_on_signal()
    output = shown["output"]
    console = wide_console(output=output)

    def drawn(read: NodeReports) -> RenderableType:
        reports = _of_node(read, shown["node"])
        if output == "json":
            return Text(msgspec.json.encode(tuple(map(usage_fields, reports))).decode())
        if output == "yaml":
            return Text(f"---\n{yaml_text(tuple(map(usage_fields, reports))).decode().rstrip()}")
        left_out = [Text(f"left out: {clean(str(each))}", "bold yellow") for each in read.silent]
        table = trimmed(top_table(reports, console.width))
        return Group(*_first(left_out, console), *_first(top_notes(reports), console), table)

    with contextlib.suppress(asyncio.CancelledError):
        async with usages as source:
            with Screen(console, drawn) as screen:
                noted: list[str] = []
                while True:
                    try:
                        found = await source.read()
                        screen.show(found)
                        if output in {"json", "yaml"} and noted != (now := sorted(map(str, found.silent))):
                            note_silent(found.silent)
                            noted = now
                    except TesseraError as error:
                        screen.show_error(error)
                    await asyncio.sleep(shown["interval_s"])


def _first(notes: list[Text], console: Console) -> Iterator[Text]:
    """Yield the first notes in a fourth of a terminal's lines, and how many more there are; elsewhere all.

    A terminal cuts what is below its last line: notes come first, and have half of it at the most.
    """
    if not console.is_terminal or not notes:
        yield from notes
        return
    most = max(console.height // 4, 1)
    more = len(notes) - most + 1
    shown = notes if more < 2 else [*notes[: most - 1], Text(f"and {more} more; --once prints all", "yellow")]  # noqa: PLR2004
    for each in shown:
        lines = each.wrap(console, console.width)
        kept = lines[: max(most // len(shown), 1)]
        if len(kept) < len(lines):
            kept[-1].append("…")
            kept[-1].truncate(console.width, overflow="ellipsis")
        yield from kept
