"""`tessera doctor`: what is wrong on this GPU node, and how to fix it."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

import click
import msgspec
from rich.console import Console
from rich.text import Text

from tessera.agent.declarations.configuration import Sources
from tessera.agent.doctor import DoctorPaths, observe
from tessera.agent.sharing import MpsDaemons, MpsSettings
from tessera.cli.nodeoptions import node_options
from tessera.cli.options import output_option
from tessera.cli.printing import headed_table, print_document, trimmed, wide_console
from tessera.clients.gpu import GpuDriver, NvmlDriver
from tessera.clients.kube import HttpKube
from tessera.core.node.doctor import Check, CheckResult, HostFacts, checks
from tessera.core.node.nodesharing import ListStrategy, Strategy
from tessera.errors import TesseraError

__all__ = ["doctor"]

_FAILED = 1
_BROAD = 120
"""Width of a terminal from which a fix has a column of its own."""
_STYLES = {
    CheckResult.OK: "green",
    CheckResult.WARNING: "yellow",
    CheckResult.FAILED: "bold red",
    CheckResult.SKIPPED: "dim",
}


class _Given(TypedDict):
    """The options as click passes them."""

    node: str | None
    kubeconfig: Path | None
    sharing_config: Path | None
    sharing_default: str
    device_list_strategy: tuple[ListStrategy, ...]
    node_policy: Path | None
    strategy: Strategy | None
    plugins_dir: Path
    pod_resources: Path
    cdi_dir: Path
    driver_folder: str
    mps_dir: Path
    mps_control: str
    root: Path
    output: str


_Command = TypeVar("_Command", bound=Callable[..., object])
_PLACES = DoctorPaths()
_FILE = click.Path(path_type=Path)


def _agents(name: str, *, more: Sequence[str] = (), **settings: Any) -> Callable[[_Command], _Command]:
    """Return an option shared with the agent, also read from the agent's environment variables."""
    variable = name.replace("-", "_").upper()
    names = [f"TESSERA_DOCTOR_{variable}", f"TESSERA_AGENT_{variable}", *more]
    return click.option(f"--{name}", envvar=names, **settings)


_EPILOG = """
\b
Examples:
  tessera doctor
  tessera doctor --node gpu-1 --node-policy /etc/tessera/policy.yaml
  kubectl exec -n tessera-system ds/tessera-agent -- tessera doctor -o json

Exit codes: 1 if a check failed, else 0; warnings and skipped checks are not failures.
"""


@click.command(epilog=_EPILOG)
@_agents("node", more=["NODE_NAME"], metavar="NAME", help="Also check this Node object.")
@_agents(
    "kubeconfig", type=_FILE, help="With --node: kubeconfig file.  [default: KUBECONFIG, else the service account]"
)
@node_options("TESSERA_DOCTOR", "TESSERA_AGENT")
@click.option(
    "--root",
    type=click.Path(file_okay=False, resolve_path=True, path_type=Path),
    default=Path("/"),
    show_default=True,
    metavar="DIR",
    help="Where the node's file system is mounted.",
)
@output_option()
@click.pass_context
def doctor(context: click.Context, /, **given: Unpack[_Given]) -> None:
    """Check this GPU node: driver, MIG, MPS, container runtime, CDI, kubelet, configuration, labels.

    Run it on the node, or in the agent's container, where it takes the agent's settings from the environment. It says
    how to fix each failure, and changes nothing.
    """
    found = checks(asyncio.run(_observed(given)))
    if not print_document(found, given["output"]):
        _print(found, wide_console(output=given["output"]))
    context.exit(_FAILED if any(each.verdict is CheckResult.FAILED for each in found) else 0)


async def _observed(given: _Given) -> HostFacts:
    places = DoctorPaths(
        mps_root=given["mps_dir"],
        cdi=(*_PLACES.cdi[:-1], given["cdi_dir"]),
        plugins=given["plugins_dir"],
        pod_resources=given["pod_resources"],
        driver_specs=(_PLACES.driver_specs[0], given["cdi_dir"] / _PLACES.driver_specs[1].name),
        driver_folder=given["driver_folder"],
        list_strategies=given["device_list_strategy"],
    ).under(given["root"])
    sources = Sources(
        sharing=given["sharing_config"],
        default=given["sharing_default"],
        policy=given["node_policy"],
        strategy=given["strategy"],
    )
    async with contextlib.AsyncExitStack() as stack:
        driver = await _driver(stack)
        kube = await stack.enter_async_context(HttpKube.connect(given["kubeconfig"])) if given["node"] else None
        daemons = MpsDaemons(MpsSettings(program=given["mps_control"], root=places.mps_root))
        return await observe(
            msgspec.structs.replace(places, sources=sources), driver, daemons, kube, given["node"] or ""
        )


async def _driver(stack: contextlib.AsyncExitStack) -> GpuDriver | TesseraError:
    """Return the driver, or why there is none."""
    try:
        return await stack.enter_async_context(await NvmlDriver.open())
    except TesseraError as error:
        return error


def _print(checks: tuple[Check, ...], console: Console) -> None:
    broad = console.width >= _BROAD
    table = headed_table("CHECK", "", *(("FOUND", "FIX") if broad else ("FOUND, FIX",)))
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    for each in checks:
        verdict = Text(each.verdict, style=_STYLES[each.verdict])
        cells = (each.found, each.advice) if broad else ("\n".join(filter(None, (each.found, each.advice))),)
        table.add_row(Text(each.name), verdict, *map(Text, cells))
    console.print(trimmed(table))
    counts = {verdict: sum(each.verdict is verdict for each in checks) for verdict in CheckResult}
    console.print(", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count))
