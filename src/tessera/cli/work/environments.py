"""`tessera environments`: images under familiar names, and the one of `--environment`."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec
from rich.text import Text

from tessera.api.tessera.v1alpha1.environments import Environment, read_environment
from tessera.cli.clusteraccess import ClusterSource, connected, kubeconfig_options
from tessera.cli.drawing.lettering import clean
from tessera.cli.options import output_option
from tessera.cli.printing import headed_table, print_document, trimmed, wide_console
from tessera.clients.kube import ENVIRONMENTS, Forbidden, Kube, name_of
from tessera.errors import InvalidInput, Unavailable

__all__ = ["Catalog", "choose_environment", "environments", "find_environment", "read_environments"]

_HINT = "apply an Environment of tessera.dev/v1alpha1, or name an image by --image"


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    """The environments of a cluster."""

    known: tuple[Environment, ...] = ()
    """In order of their names."""
    broken: Mapping[str, InvalidInput] = {}
    """Why some cannot be read, by name."""


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
    table = headed_table("NAME", "NOTEBOOK", "NODES", "TOOLS", "IMAGE", "DESCRIPTION")
    for each in found.known:
        warm = f"{each.status.ready}/{each.status.nodes}" if each.status.nodes else "-"
        about = (", ".join(each.tools), each.image, each.description)
        cells = (each.name, "yes" if each.notebook else "-", warm, *about)
        table.add_row(*(Text(clean(cell)) for cell in cells))
    wide_console(output=output).print(trimmed(table))


def find_environment(place: ClusterSource, name: str, *, notebook: bool) -> Environment:
    """Return the environment of this name in a cluster; arguments and errors as in `choose_environment`."""
    return choose_environment(asyncio.run(_read(place)), name, notebook=notebook)


def choose_environment(catalog: Catalog, name: str, *, notebook: bool) -> Environment:
    """Return the environment of this name.

    Args:
        catalog: the existing ones.
        name: as `tessera environments` lists it.
        notebook: whether it must have JupyterLab.

    Raises:
        InvalidInput: it does not exist, cannot be read, or has no JupyterLab; the error lists usable ones.

    """
    if name in catalog.broken:
        raise catalog.broken[name]
    fit = ", ".join(each.name for each in catalog.known if each.notebook or not notebook)
    fix = f"choose one of {fit}, or name an image by --image" if fit else _HINT
    found = next((each for each in catalog.known if each.name == name), None)
    if found is None:
        raise InvalidInput(f"--environment {name}", found="there is no such environment", hint=fix)
    if notebook and not found.notebook:
        raise InvalidInput(f"--environment {name}", found="it has no JupyterLab", hint=fix)
    return found


async def read_environments(kube: Kube) -> Catalog:
    """Return the environments of a cluster; an unreadable one hides no other.

    Raises:
        Unavailable: the cluster does not answer, lacks the CRD, or forbids it.

    """
    try:
        listed = await kube.list(ENVIRONMENTS)
    except Forbidden as error:
        fix = "request ClusterRole tessera-environments, which the chart binds to all users, or pass --image"
        raise Unavailable("environments", found=error.found, hint=fix) from error
    known, broken = list[Environment](), dict[str, InvalidInput]()
    for each in listed.objects:
        try:
            known.append(read_environment(each))
        except InvalidInput as error:
            broken[name_of(each)[1]] = error
    return Catalog(known=tuple(sorted(known, key=lambda each: each.name)), broken=broken)


async def _read(place: ClusterSource) -> Catalog:
    async with connected(place) as kube:
        return await read_environments(kube)
