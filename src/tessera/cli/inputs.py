"""The inputs of `plan`, `explain` and `simulate`: fleets and manifests, from files, folders and standard input."""

from collections.abc import Iterable, Sequence
from typing import get_args

import click

from tessera._planning import ShareUnit, read_documents, snapshot_of
from tessera.cli.completion import complete_gpus
from tessera.cli.options import with_options
from tessera.core.cluster.snapshot import Node, Snapshot

__all__ = ["ShareUnit", "fleet_options", "input_options", "note_skipped", "read_snapshot"]


fleet_options = with_options(
    click.option(
        "--cluster",
        "--fleet",
        metavar="FILE",
        help="Nodes: a saved cluster (`kubectl get nodes,pods,gpunodes -A -o json`) or a fleet file; - is stdin.",
    ),
    click.option(
        "--gpus",
        multiple=True,
        metavar="NxMODEL",
        help="A node in short form, such as 8xH100-80GB, or several, such as '4x(8xH100-80GB)'; repeatable.",
        shell_complete=complete_gpus,
    ),
    click.option(
        "--gpu-model",
        multiple=True,
        metavar="NODE=MODEL",
        help="GPU model of nodes that have no label for it, by name, pattern ('gpu-*') or label (pool=a); repeatable.",
    ),
)
"""Adds the options for the fleet."""

input_options = with_options(
    fleet_options,
    click.option(
        "-f",
        "--filename",
        multiple=True,
        metavar="PATH",
        help="Manifests: a file, a folder, or - for stdin; repeatable.",
    ),
    click.option(
        "--share-unit",
        type=click.Choice(get_args(ShareUnit)),
        help="Unit of aliyun.com/gpu-mem in the fleet and in manifests.  [default: the nodes' unit, else GiB]",
    ),
)
"""Adds the options for the workloads."""


def read_snapshot(
    cluster: str | None,
    gpus: Sequence[str],
    manifests: Sequence[str],
    share_unit: ShareUnit | None = None,
    gpu_models: Iterable[str] = (),
) -> Snapshot:
    """Return the fleet with the manifests' pods pending; its notes are printed on standard error.

    Nodes with unknown GPUs are reported by the command; `note_skipped` names them where it does not.

    Raises:
        InvalidInput: no fleet, a node or pod twice, or anything unreadable in the files.

    """
    fleet = read_documents(cluster) if cluster is not None else ()
    documents = tuple(document for path in manifests for document in read_documents(path))
    snapshot = snapshot_of(fleet, gpus, documents, share_unit, gpu_models)
    for note in snapshot.notes:
        click.echo(f"note: {note}", err=True)
    if manifests and not any(document.data for document in documents):
        click.echo(f"note: no workload in {', '.join(manifests)}", err=True)
    return snapshot


def note_skipped(nodes: Iterable[Node]) -> None:
    """Name the nodes with unknown GPUs on standard error."""
    for node in nodes:
        if node.problem:
            click.echo(f"note: {node.name} is left out, because its GPUs are not known: {node.problem}", err=True)
