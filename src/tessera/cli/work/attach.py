"""`tessera attach`: follow a Job again."""

from pathlib import Path

import click

from tessera.cli.clusteraccess import ClusterSource, connected, kubeconfig_options, namespace_of, namespace_option
from tessera.cli.signals import INTERRUPTED, ended_or_interrupted
from tessera.cli.work.follow.following import follow_job
from tessera.cli.work.follow.forwarding import follow_notebook, port_option, token_of
from tessera.cli.work.jobreading import state_of

__all__ = ["attach"]


@click.command(
    epilog="""
\b
Examples:
  tessera attach pytorch-x7k2p
  tessera attach pytorch-x7k2p -n ml
"""
)
@click.argument("name")
@namespace_option
@port_option
@kubeconfig_options
def attach(name: str, namespace: str, port: int | None, kubeconfig: Path | None, context: str | None) -> int:
    """Follow Job NAME: why it is pending, its log or the address of its notebook, its end.

    Ends with the exit code of its command.
    """
    cluster = ClusterSource(kubeconfig=kubeconfig, context=context)
    where = namespace_of(cluster, namespace)

    async def work() -> int:
        async with connected(cluster) as kube:
            state = await state_of(kube, name, where)
            if state.token_secret:
                return await follow_notebook(kube, (where, name), await token_of(kube, state), port)
            return await follow_job(kube, name, where)

    async def on_interrupt() -> int:
        return INTERRUPTED

    return ended_or_interrupted(work(), on_interrupt)
