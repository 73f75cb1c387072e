"""`tessera attach`: follow a Job again."""

from pathlib import Path

import click

from tessera.cli.livecluster import Place, connected, kubeconfig_options
from tessera.cli.work.following import ended_or_interrupted, follow_job, state_of

__all__ = ["attach"]

_INTERRUPTED = 130


@click.command(
    epilog="""
\b
Examples:
  tessera attach pytorch-x7k2p
  tessera attach pytorch-x7k2p -n ml
"""
)
@click.argument("name")
@click.option("-n", "--namespace", default="default", show_default=True, metavar="NAME", help="Its namespace.")
@kubeconfig_options
def attach(name: str, namespace: str, kubeconfig: Path | None, context: str | None) -> int:
    """Follow Job NAME: why it waits, its log from the start, its end. Ends with the exit code of its command."""

    async def work() -> int:
        async with connected(Place(kubeconfig=kubeconfig, context=context)) as kube:
            await state_of(kube, name, namespace)
            return await follow_job(kube, name, namespace)

    async def left() -> int:
        return _INTERRUPTED

    return ended_or_interrupted(work(), left)
