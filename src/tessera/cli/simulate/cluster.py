"""`tessera simulate cluster`: a cluster with simulated GPUs in this process, and the dashboard page that shows it."""

import asyncio
import contextlib
import os
import sys
import webbrowser
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from tessera.cli.options import Number, PortNumber
from tessera.cli.signals import cancel_on_signal

if TYPE_CHECKING:
    from tessera.sim.embedded import Embedded

__all__ = ["simulate_cluster"]

_EPILOG = """
\b
Examples:
  tessera simulate cluster
  tessera simulate cluster --port 8085 --speed 60
  ssh -L 8085:127.0.0.1:8085 HOST    # to see one that runs on HOST
"""


@click.command("cluster", epilog=_EPILOG)
@click.option(
    "--port",
    type=PortNumber(),
    default=8085,
    show_default=True,
    help="Port of the page; 0 for any free one.",
)
@click.option(
    "--speed",
    type=Number(1, 120),
    default=30.0,
    show_default=True,
    help="Seconds of the workloads' load that pass in a second.",
)
@click.option("--open/--no-open", default=None, help="Open the page in a browser.  [default: with a desktop]")
@click.option("--verbose", is_flag=True, help="Print what server, controller and agents log.")
def simulate_cluster(*, port: int, speed: float, verbose: bool, **given: bool | None) -> None:
    """Run a cluster with simulated GPUs in this process and show it on the dashboard page, until Ctrl-C.

    The server, controller and agents are those of a real cluster; Kubernetes, kubelets and GPUs are in memory. Model
    servers scale with a load that rises and falls, and MIG layouts change with what is pending. It needs no GPU, no
    cluster and no network.
    """
    from tessera.log import configure  # noqa: PLC0415 - needs the extra `cluster`, as all that follows
    from tessera.server.settings import Page  # noqa: PLC0415
    from tessera.sim.embedded import Embedded  # noqa: PLC0415

    configure("info" if verbose else "error", "auto")
    one = Embedded(Page(port=port, sign_in=False), speed)
    desktop = sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))

    def ready(bound_port: int) -> None:
        url = f"http://127.0.0.1:{bound_port}/"
        click.echo(
            f"{url}\nfrom another machine: ssh -L {bound_port}:127.0.0.1:{bound_port} HOST, then the same address there"
        )
        click.echo("Ctrl-C ends it")
        if desktop if given["open"] is None else given["open"]:
            webbrowser.open(url)

    asyncio.run(_run(one, ready))


async def _run(one: "Embedded", ready: Callable[[int], None]) -> None:
    """Run until SIGTERM or SIGINT."""
    cancel_on_signal()
    with contextlib.suppress(asyncio.CancelledError):
        await one.run(ready)
