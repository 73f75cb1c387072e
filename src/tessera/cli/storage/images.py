"""`tessera images`: what container images have in common, and what nodes would pull."""

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import RenderableType
from rich.text import Text

from tessera._planning import read_documents
from tessera.api.fields import Field, objects
from tessera.api.kubernetes.images import images_of, node_images
from tessera.api.oci.manifests import Platform, read_platform
from tessera.api.oci.references import read_reference
from tessera.cli.options import CommandGroup, output_option
from tessera.cli.printing import headed_table, print_document, titled, trimmed, wide_console
from tessera.cli.progress import progress_bar
from tessera.clients.registry import HttpRegistry, Keychain, Registry, read_image
from tessera.core.storage.images.layers import Analysis, Image, analyze
from tessera.errors import InvalidInput, TesseraError

__all__ = ["images"]

_MIB = 1 << 20
_MOST_ROWS = 10


class Unread(msgspec.Struct, frozen=True):
    """A skipped image."""

    image: str
    reason: str


class _Report(msgspec.Struct, frozen=True):
    """The JSON output."""

    analysis: Analysis
    unread: tuple[Unread, ...]


@click.group(cls=CommandGroup, epilog="\b\nExample:\n  tessera images analyze -f deployment.yaml\n")
def images() -> None:
    """Show the layers that container images share, and the bytes that nodes would pull."""


@images.command(
    name="analyze",
    epilog="""
\b
Examples:
  tessera images analyze registry.example/{server,trainer}:1.2
  tessera images analyze -f deployment.yaml -o json
  kubectl get nodes,pods -A -o json | tessera images analyze --cluster -

Credentials are those of `docker login`: DOCKER_CONFIG, ~/.docker/config.json and the programs named there.
""",
)
@click.argument("names", nargs=-1, metavar="[IMAGE]...")
@click.option(
    "-f",
    "--filename",
    multiple=True,
    metavar="PATH",
    help="Read image names from these files; - is stdin; repeatable.",
)
@click.option(
    "--cluster", metavar="FILE", help="A saved cluster (`kubectl get nodes,pods -A -o json`): what its nodes lack."
)
@click.option("--platform", default="linux/amd64", show_default=True, metavar="OS/ARCH", help="Platform of the images.")
@click.option(
    "--docker-config",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    help="Credentials for registries.  [default: DOCKER_CONFIG, else ~/.docker/config.json]",
)
@click.option("--plain-http", multiple=True, metavar="HOST", help="Registry without TLS, with its port; repeatable.")
@output_option()
def analyze_images(*, names: tuple[str, ...], cluster: str | None, platform: str, output: str, **given: Any) -> None:
    """Show the layers that images share, what a node would pull, and the best base.

    The images are those named, those of manifests and, where neither is given, those of the cluster's pods. Sizes are
    compressed, as the registry has them. Nothing is pulled but manifests and configurations. The best
    base is the image on whose layers the others would save most.
    """
    # 1. Collect the images, and those that nodes have.
    saved = _objects((cluster,)) if cluster is not None else []
    listed = images_of(_objects(given["filename"]))
    if not names and not given["filename"]:
        listed = images_of(saved)
    if not names and not listed:
        if read := [*given["filename"], *([] if cluster is None else [cluster])]:
            raise InvalidInput(", ".join(read), found="no image is named there", hint="name another file, or IMAGE")
        raise InvalidInput("images", found="none is named", hint="give IMAGE, -f or --cluster")
    for name in names:
        read_reference(name)
    desired = read_platform(platform)
    on_nodes = {each.node: each.names for each in node_images(saved) if each.platform in ("", desired.name)}
    # 2. Read them.
    with progress_bar("reading the registry"):
        registry = HttpRegistry(Keychain.of_this_user(given["docker_config"]), plain=frozenset(given["plain_http"]))
        found, unread = asyncio.run(_read(registry, names, listed, desired))
    # 3. Analyze, and print.
    report = _Report(analyze(found, on_nodes), unread)
    for each in unread:
        click.echo(f"note: {each.image} is left out: {each.reason}", err=True)
    if not print_document(report, output):
        console = wide_console(output=output)
        console.print(trimmed(*_tables(report.analysis, everything=output == "wide")))


def _objects(paths: Iterable[str]) -> list[Field]:
    return [field for path in paths for document in read_documents(path) for field in objects(document)]


async def _read(
    registry: HttpRegistry, named: tuple[str, ...], listed: tuple[str, ...], desired: Platform
) -> tuple[tuple[Image, ...], tuple[Unread, ...]]:
    """Return the images; unreadable ones that were not named explicitly are skipped with the reason.

    Raises:
        TesseraError: a named one cannot be read, or none at all.

    """
    texts = dict.fromkeys((*named, *listed))
    async with registry:
        answers = await asyncio.gather(*(_one(registry, text, desired) for text in texts))
    refused = {text: each for text, each in zip(texts, answers, strict=True) if isinstance(each, TesseraError)}
    found = {each.name: each for each in answers if isinstance(each, Image)}
    for text, error in refused.items():
        if text in named or not found:
            raise error
    return tuple(found.values()), tuple(Unread(text, str(error)) for text, error in refused.items())


async def _one(registry: Registry, text: str, desired: Platform) -> Image | TesseraError:
    try:
        return await read_image(registry, read_reference(text), desired)
    except TesseraError as error:
        return error


def _tables(analysis: Analysis, *, everything: bool) -> list[RenderableType]:
    """Return the output for people."""
    rows = headed_table("IMAGE", "MiB", "LAYERS", "SHARED MiB", "DIGEST")
    for each in analysis.images:
        digest = each.digest if everything else _short(each.digest)
        rows.add_row(each.name, _mib(each.bytes), str(each.layers), _mib(each.shared_bytes), digest)
    parts: list[RenderableType] = [rows]
    if analysis.shared:
        layers = headed_table("LAYER", "MiB", "IMAGES")
        for layer in analysis.shared if everything else analysis.shared[:_MOST_ROWS]:
            digest = layer.digest if everything else _short(layer.digest)
            layers.add_row(digest, _mib(layer.bytes), ", ".join(layer.images))
        parts += (Text(), titled(f"Shared layers: {len(analysis.shared)}", layers))
    if analysis.nodes:
        nodes = headed_table("NODE", "MISSING", "PULLS MiB")
        for node in analysis.nodes if everything else sorted(analysis.nodes, key=lambda each: -each.bytes)[:_MOST_ROWS]:
            nodes.add_row(node.node, f"{len(node.missing)} of {len(analysis.images)}", _mib(node.bytes))
        parts += (Text(), titled(f"Nodes: {len(analysis.nodes)}", nodes))
    parts.append(Text("\n".join(("", *_sentences(analysis)))))
    return parts


def _sentences(analysis: Analysis) -> Iterator[str]:
    pulled = f"A node without these images pulls {_mib(analysis.bytes)} MiB"
    if len(analysis.images) == 1:
        yield f"A node without this image pulls {_mib(analysis.bytes)} MiB."
    else:
        yield f"{pulled}; {_mib(analysis.bytes_without_sharing)} MiB if they had no layer in common."
    if analysis.base is None:
        yield "No base would save anything: no images begin with the same build steps in different layers."
        return
    base = analysis.base
    layers = "layer" if base.layers == 1 else f"{base.layers} layers"
    yield (
        f"Build {', '.join(base.rebuilt)} on the lowest {layers} of {base.image}: "
        f"the build steps are the same. A node pulls {_mib(base.saved_bytes)} MiB less."
    )


def _mib(number: int) -> str:
    return f"{number / _MIB:.1f}"


def _short(digest: str) -> str:
    return digest.partition(":")[2][:12]
