"""`tessera stop`: delete Jobs."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import click

from tessera.cli.clusteraccess import ClusterSource, connected, kubeconfig_options, namespace_of, namespace_option
from tessera.cli.work.jobreading import state_of
from tessera.cli.work.submit.ownsecret import adopt_or_delete_secrets
from tessera.clients.kube import JOBS, Kube
from tessera.errors import InvalidInput

__all__ = ["stop", "stop_jobs"]


@click.command(
    epilog="""
\b
Examples:
  tessera stop pytorch-x7k2p
  tessera stop pytorch-x7k2p pytorch-9d4tz -n ml
"""
)
@click.argument("name", nargs=-1, required=True)
@namespace_option
@kubeconfig_options
def stop(name: tuple[str, ...], namespace: str, kubeconfig: Path | None, context: str | None) -> None:
    """Delete the Jobs NAME with their pods and logs.

    Refuses Jobs that `tessera jobs` does not list.
    """
    cluster = ClusterSource(kubeconfig=kubeconfig, context=context)
    asyncio.run(_stop(cluster, name, namespace_of(cluster, namespace)))


async def _stop(cluster: ClusterSource, names: tuple[str, ...], namespace: str) -> None:
    async with connected(cluster) as kube:
        await stop_jobs(kube, names, namespace)


async def stop_jobs(kube: Kube, names: Sequence[str], namespace: str) -> None:
    """Delete Jobs and report it, or none of them.

    Raises:
        InvalidInput: a Job does not exist, or is not one of those that `tessera jobs` lists.
        Conflict: another Job took the name of one meanwhile, and stays.

    """
    uids = dict[str, str]()
    for each in names:
        state = await state_of(kube, each, namespace)
        if not (state.by_run or state.by_render):
            hint = f"`kubectl delete job {each} -n {namespace}` deletes it"
            raise InvalidInput(f"job {namespace}/{each}", found="`tessera jobs` does not list it", hint=hint)
        uids[each] = state.uid
    await adopt_or_delete_secrets(kube, namespace)
    for each, uid in uids.items():
        await kube.delete(JOBS, each, namespace=namespace, uid=uid)
        click.echo(f"deleted {namespace}/{each}")
