"""`tessera disk-agent`: the process that keeps the local disks of a node ready."""

import asyncio
import contextlib
from pathlib import Path
from typing import Unpack

import click

from tessera.agent.storage.disks.keeper import DisksKeeper, KeeperSettings
from tessera.cli.options import Seconds, WholeNumber, health_option, kubeconfig_option
from tessera.cli.processes.logoptions import log_options
from tessera.cli.signals import cancel_on_signal, ending_in_time
from tessera.cli.storage.diskoptions import GivenDisks, client_of, disk_options, spec_of
from tessera.clients.disks import Disks
from tessera.clients.kube import HttpKube
from tessera.core.storage.disks.localvolumes import VolumeSpec
from tessera.errors import InvalidInput
from tessera.log import Format, Level, configure
from tessera.processports import serving_probes

__all__ = ["disk_agent"]

_MOST_VOLUMES = 1000
_SETTINGS = KeeperSettings(node="")
_EPILOG = """
\b
Examples:
  tessera disk-agent --node $NODE_NAME
  tessera disk-agent --volumes 4 --reserve-gib 500
  kubectl get nodes -L tessera.dev/disks

RBAC: get and patch nodes, patch nodes/status; list, create and delete persistentvolumes; get, create and patch events.
"""


class _Given(GivenDisks):
    """The options as click passes them."""

    node: str
    volumes: int
    reserve_gib: int
    interval_s: float
    kubeconfig: Path | None
    health_port: int | None
    log_level: Level
    log_format: Format


@click.command(epilog=_EPILOG)
@disk_options
@click.option("--node", envvar="NODE_NAME", default="", metavar="NAME", help="Name of this Node object.  [$NODE_NAME]")
@click.option(
    "--volumes",
    type=WholeNumber(0, _MOST_VOLUMES),
    default=0,
    show_default=True,
    help="Local PersistentVolumes to offer, of StorageClass tessera-local.",
)
@click.option(
    "--reserve-gib",
    type=WholeNumber(0),
    default=0,
    show_default=True,
    help="Space of the disks that volumes do not get: for models, data sets and images.",
)
@click.option(
    "--interval-s",
    type=Seconds(0.1),
    default=_SETTINGS.interval_s,
    show_default=True,
    help="Longest time between two reconciliations.",
)
@kubeconfig_option
@health_option
@log_options
@click.pass_obj
def disk_agent(client: Disks | None, /, **given: Unpack[_Given]) -> None:
    """Run the disk agent: keep this node's local disks one filesystem, and report them.

    It does what `tessera disks apply` does, until stopped; the chart runs it as a DaemonSet (`disks.enabled`). The node
    gets label tessera.dev/disks and condition TesseraDisksReady. Disks that `apply` would refuse are left as they are.
    Stopping it leaves everything mounted.
    """
    if not given["node"]:
        raise InvalidInput(
            "--node",
            found="the agent's node has no name",
            hint="give --node or NODE_NAME, the name of this Node object",
        )
    configure(given["log_level"], given["log_format"])
    settings = KeeperSettings(
        node=given["node"],
        disks=spec_of(given),
        volumes=VolumeSpec(count=given["volumes"], reserved_bytes=given["reserve_gib"] << 30),
        interval_s=given["interval_s"],
    )
    asyncio.run(_run(settings, client_of(client, given), given["kubeconfig"], given["health_port"]))


async def _run(settings: KeeperSettings, disks: Disks, kubeconfig: Path | None, health_port: int | None) -> None:
    """Run until SIGTERM or SIGINT."""
    cancel_on_signal()
    with ending_in_time():
        async with HttpKube.connect(kubeconfig) as kube:
            keeper = DisksKeeper(settings, disks, kube)
            with contextlib.suppress(asyncio.CancelledError):
                async with serving_probes(health_port, keeper.waiting_for):
                    await keeper.run()
