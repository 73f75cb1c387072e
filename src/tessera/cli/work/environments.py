"""`tessera environments`: images under familiar names."""

import asyncio
from pathlib import Path

import click
from rich.text import Text

from tessera.api.tessera.v1alpha1.environments import NO_ENVIRONMENT, Catalog
from tessera.cli.clusteraccess import ClusterSource, connected, kubeconfig_options
from tessera.cli.drawing.lettering import clean
from tessera.cli.options import output_option
from tessera.cli.printing import headed_table, print_document, trimmed, wide_console
from tessera.cli.work.environmentcatalog import read_environments

__all__ = ["environments"]


@click.command(
    epilog="""
\b
Examples:
  tessera environments
  tessera environments -o json
  tessera run --environment pytorch --gpu-memory 10 -- python train.py
"""
)
@kubeconfig_options
@output_option()
def environments(*, kubeconfig: Path | None, context: str | None, output: str) -> None:
    """List the environments of `tessera run` and `notebook`: images by name, and their contents.

    NODES says on how many of the nodes that pull an image in advance (ImageWarmup) it is; `-` where none does.
    """
    found = asyncio.run(_read(ClusterSource(kubeconfig=kubeconfig, context=context)))
    for error in found.broken.values():
        click.echo(f"left out: {error}", err=True)
    if print_document(found.known, output):
        return
    if not found.known:
        click.echo(f"no environments: {NO_ENVIRONMENT}", err=True)
        return
    table = headed_table("NAME", "NOTEBOOK", "NODES", "TOOLS", "IMAGE", "DESCRIPTION")
    for each in found.known:
        warm = f"{each.status.ready}/{each.status.nodes}" if each.status.nodes else "-"
        about = (", ".join(each.tools), each.image, each.description)
        cells = (each.name, "yes" if each.notebook else "-", warm, *about)
        table.add_row(*(Text(clean(cell)) for cell in cells))
    wide_console(output=output).print(trimmed(table))


async def _read(cluster: ClusterSource) -> Catalog:
    async with connected(cluster) as kube:
        return await read_environments(kube)
