"""`tessera doctor`: what is wrong on this GPU node, and what to do about it."""

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TypedDict, Unpack

import click
import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tessera.agent.configuration import Sources
from tessera.agent.doctor import Places, observe
from tessera.agent.sharing import MpsDaemons, MpsSettings
from tessera.cli.options import output_option
from tessera.clients.gpu import GpuDriver, NvmlDriver
from tessera.clients.kube import Kube, LightkubeKube
from tessera.core.doctor import Check, Observed, Verdict, checks
from tessera.errors import TesseraError

__all__ = ["doctor"]

_WIDE = 160
"""Columns for output that no terminal limits."""
_FAILED = 1
_STYLES = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAILED: "bold red", Verdict.SKIPPED: "dim"}


class _Given(TypedDict):
    """The options as click passes them."""

    node: str | None
    kubeconfig: str | None
    sharing: str | None
    policy: str | None
    root: str
    output: str


_EPILOG = """
\b
Examples:
  tessera doctor
  tessera doctor --node gpu-1 --sharing /etc/tessera/sharing --policy /etc/tessera/policy.yaml
  kubectl exec -n tessera-system ds/tessera-agent -- tessera doctor -o json

\b
Exit codes: 1 when a check failed, 0 when none did; warnings and what was skipped are no failures.
"""


@click.command(epilog=_EPILOG)
@click.option("--node", envvar="NODE_NAME", metavar="NAME", help="Compare with this Node object too.")
@click.option("--kubeconfig", type=click.Path(dir_okay=False), metavar="FILE", help="With --node: the API and a user.")
@click.option("--sharing", type=click.Path(), metavar="PATH", help="NVIDIA's sharing configuration, file or folder.")
@click.option("--policy", type=click.Path(dir_okay=False), metavar="FILE", help="The node policy.")
@click.option(
    "--root",
    type=click.Path(file_okay=False, resolve_path=True),
    default="/",
    show_default=True,
    metavar="DIR",
    help="Where the node's file system is, for all but the files above.",
)
@output_option("table", "json")
@click.pass_context
def doctor(context: click.Context, /, **given: Unpack[_Given]) -> None:
    """Check this GPU node: driver, MIG, MPS, container runtime, CDI, kubelet, configuration, labels.

    Run it on the node, or in the agent's container, which sees what the agent sees. It says what to do about each
    failure, and changes nothing.
    """
    found = checks(asyncio.run(_observed(given)))
    if given["output"] == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    else:
        _print(found)
    context.exit(_FAILED if any(each.verdict is Verdict.FAILED for each in found) else 0)


async def _observed(given: _Given) -> Observed:
    sources = Sources(sharing=_path(given["sharing"]), policy=_path(given["policy"]))
    places = msgspec.structs.replace(Places().under(Path(given["root"])), sources=sources)
    async with contextlib.AsyncExitStack() as stack:
        driver = await _driver(stack)
        kube = await _kube(stack, given)
        daemons = MpsDaemons(MpsSettings(root=places.mps_root))
        return await observe(places, driver, daemons, kube, given["node"] or "")


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


async def _driver(stack: contextlib.AsyncExitStack) -> GpuDriver | str:
    """Return the driver, or why there is none."""
    try:
        return await stack.enter_async_context(await NvmlDriver.open())
    except TesseraError as error:
        return str(error)


async def _kube(stack: contextlib.AsyncExitStack, given: _Given) -> Kube | None:
    if not given["node"]:
        return None
    return await stack.enter_async_context(LightkubeKube.connect(_path(given["kubeconfig"])))


def _print(found: tuple[Check, ...]) -> None:
    console = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for heading in ("CHECK", "", "FOUND", "WHAT TO DO"):
        table.add_column(heading, no_wrap=heading in {"CHECK", ""}, overflow="fold")
    for each in found:
        verdict = Text(each.verdict, style=_STYLES[each.verdict])
        table.add_row(Text(each.name), verdict, Text(each.found), Text(each.advice))
    console.print(table)
    counts = {verdict: sum(each.verdict is verdict for each in found) for verdict in Verdict}
    console.print(", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count))
