"""`tessera logs`: the output of a Job."""

import asyncio
from pathlib import Path

import click

from tessera.cli.clusteraccess import ClusterSource, connected, kubeconfig_options, namespace_of, namespace_option
from tessera.cli.work.follow.following import print_log
from tessera.cli.work.jobreading import state_of
from tessera.errors import InvalidInput

__all__ = ["logs"]


@click.command(
    epilog="""
\b
Examples:
  tessera logs pytorch-x7k2p
  tessera logs pytorch-x7k2p -n ml > train.log
"""
)
@click.argument("name")
@namespace_option
@kubeconfig_options
def logs(name: str, namespace: str, kubeconfig: Path | None, context: str | None) -> None:
    """Print the output of Job NAME so far; `tessera attach` follows it."""
    cluster = ClusterSource(kubeconfig=kubeconfig, context=context)
    asyncio.run(_print(cluster, name, namespace_of(cluster, namespace)))


async def _print(cluster: ClusterSource, name: str, namespace: str) -> None:
    async with connected(cluster) as kube:
        state = await state_of(kube, name, namespace)
        if not state.started:
            found = f"{state.stage.value}{': ' if state.reason else ''}{state.reason}"
            if not state.stage.ended:
                hint = "try again when its pod has started"
            elif state.pod:
                hint = "there is no log; correct that, and submit it again"
            else:
                hint = "its pod was deleted, and its log with it"
            raise InvalidInput(f"job {namespace}/{name}", found=found, hint=hint)
        await print_log(kube, state)
