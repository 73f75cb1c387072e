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
from tessera.cli.usage.agents import agents, agents_options, answers, note_silent, refuse_two_sources
from tessera.cli.usage.tables import top_table
from tessera.clients.nodeusage import NodeUsages
from tessera.core.usage.usagereport import UsageReport
from tessera.errors import TesseraError, Unavailable

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
    silent: list[Unavailable] = []
    source = agents(agent, ClusterSource(kubeconfig=kubeconfig, context=context), silent.append)
    asyncio.run(_once(source, silent, output) if once else _live(source, silent, interval_s, output))


async def _once(usages: AbstractAsyncContextManager[NodeUsages], silent: list[Unavailable], output: str) -> None:
    async with usages as source:
        found = await answers(source, silent)
    note_silent(silent)
    if not print_document(found, output):
        wide_console(output=output).print(trimmed(top_table(found)))


async def _live(
    usages: AbstractAsyncContextManager[NodeUsages], silent: list[Unavailable], interval_s: float, output: str
) -> None:
    """Show it until SIGINT or SIGTERM, which end it without an error.

    A document names nobody who is left out: stderr does, whenever they change.
    """
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)

    def drawn(found: tuple[UsageReport, ...]) -> RenderableType:
        if output == "json":
            return Text(msgspec.json.encode(found).decode())
        if output == "yaml":
            return Text(f"---\n{yaml_text(found).decode().rstrip()}")
        left_out = (Text(f"left out: {clean(str(each))}", "bold yellow") for each in silent)
        return Group(trimmed(top_table(found)), *left_out)

    with contextlib.suppress(asyncio.CancelledError):
        async with usages as source:
            with Screen(wide_console(output=output), drawn) as screen:
                noted: list[str] = []
                while True:
                    try:
                        screen.show(await answers(source, silent))
                        if output in {"json", "yaml"} and noted != (now := sorted(map(str, silent))):
                            note_silent(silent)
                            noted = now
                    except TesseraError as error:
                        screen.trouble(error)
                    await asyncio.sleep(interval_s)
