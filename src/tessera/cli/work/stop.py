"""`tessera stop`: end Jobs."""

import asyncio
from pathlib import Path

import click

from tessera.cli.livecluster import Place, connected, kubeconfig_options
from tessera.cli.work.following import state_of
from tessera.clients.kube import JOBS

__all__ = ["stop"]


@click.command(
    epilog="""
\b
Examples:
  tessera stop pytorch-x7k2p
  tessera stop pytorch-x7k2p pytorch-9d4tz -n ml
"""
)
@click.argument("name", nargs=-1, required=True)
@click.option("-n", "--namespace", default="default", show_default=True, metavar="NAME", help="Their namespace.")
@kubeconfig_options
def stop(name: tuple[str, ...], namespace: str, kubeconfig: Path | None, context: str | None) -> None:
    """Delete the Jobs NAME with their pods and logs."""
    asyncio.run(_stop(Place(kubeconfig=kubeconfig, context=context), name, namespace))


async def _stop(place: Place, names: tuple[str, ...], namespace: str) -> None:
    async with connected(place) as kube:
        for each in names:
            await state_of(kube, each, namespace)
            await kube.delete(JOBS, each, namespace=namespace)
            click.echo(f"deleted {namespace}/{each}")
