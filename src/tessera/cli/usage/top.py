"""`tessera top`: live GPU usage."""

import asyncio
import contextlib
import signal
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import click
import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from tessera.cli.clusteraccess import ClusterSource
from tessera.cli.drawing.lettering import clean
from tessera.cli.inspect.watching import Screen
from tessera.cli.options import Seconds, output_option
from tessera.cli.printing import print_document, trimmed, wide_console, yaml_text
from tessera.cli.usage.agents import agents, agents_options, note_silent, refuse_two_sources
from tessera.cli.usage.tables import top_table
from tessera.clients.nodeusage import NodeReports, NodeUsages
from tessera.errors import TesseraError

__all__ = ["top"]


@click.command(
    epilog="""
\b
Examples:
  tessera top
  tessera top --context prod --once -o json
  tessera top --agent 10.0.3.7 --agent 10.0.3.8
"""
)
@agents_options
@click.option("--once", is_flag=True, help="Print once and end.")
@click.option("--interval-s", type=Seconds(0.1), default=5.0, show_default=True, help="Time between two updates.")
@output_option()
def top(
    agent: tuple[str, ...], kubeconfig: Path | None, context: str | None, *, once: bool, interval_s: float, output: str
) -> None:
    """Show GPU usage live: memory used of what was allocated, load, throttling, and its causes.

    Queries every node's agent through the API server (needs `get pods/proxy` in tessera-system), or the agents given
    with --agent. Agents observe their GPUs every 15 s. It names agents that do not answer and leaves them out.
    """
    refuse_two_sources()
    source = agents(agent, ClusterSource(kubeconfig=kubeconfig, context=context))
    asyncio.run(_once(source, output) if once else _live(source, interval_s, output))


async def _once(usages: AbstractAsyncContextManager[NodeUsages], output: str) -> None:
    async with usages as source:
        found = await source.read()
    reports = found.some()
    note_silent(found.silent)
    if not print_document(reports, output):
        wide_console(output=output).print(trimmed(top_table(reports)))


async def _live(usages: AbstractAsyncContextManager[NodeUsages], interval_s: float, output: str) -> None:
    """Show it until SIGINT or SIGTERM, which end it without an error.

    A document does not name the pods that are left out: stderr does, whenever they change.
    """
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)

    def drawn(reports: NodeReports) -> RenderableType:
        if output == "json":
            return Text(msgspec.json.encode(reports.reports).decode())
        if output == "yaml":
            return Text(f"---\n{yaml_text(reports.reports).decode().rstrip()}")
        left_out = (Text(f"left out: {clean(str(each))}", "bold yellow") for each in reports.silent)
        return Group(trimmed(top_table(reports.reports)), *left_out)

    with contextlib.suppress(asyncio.CancelledError):
        async with usages as source:
            with Screen(wide_console(output=output), drawn) as screen:
                noted: list[str] = []
                while True:
                    try:
                        found = await source.read()
                        found.some()
                        screen.show(found)
                        if output in {"json", "yaml"} and noted != (now := sorted(map(str, found.silent))):
                            note_silent(found.silent)
                            noted = now
                    except TesseraError as error:
                        screen.trouble(error)
                    await asyncio.sleep(interval_s)
