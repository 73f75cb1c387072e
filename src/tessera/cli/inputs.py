"""What `plan`, `explain` and `simulate` read: fleets and manifests, from files, folders and standard input."""

import contextlib
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import click

from tessera.api import documents
from tessera.api.documents import Document
from tessera.api.kubernetes import workloads
from tessera.api.kubernetes.asks import SHARE_MEMORY
from tessera.api.kubernetes.nodemodels import ModelRule, model_rules
from tessera.api.tessera import fleets
from tessera.cli.options import with_options
from tessera.core.cluster.snapshot import LeftOut, Node, Snapshot
from tessera.core.workload.need import Form, Pod
from tessera.errors import InvalidInput

__all__ = ["ShareUnit", "fleet_options", "input_options", "note_skipped", "read_documents", "read_snapshot"]

ShareUnit = Literal["GiB", "MiB"]
_MIB: dict[ShareUnit, int] = {"GiB": 1024, "MiB": 1}
_ENDINGS = {".yaml", ".yml", ".json"}
_EXAMPLES = 3
"""Objects of one kind named in a note; the others are counted."""
_MOST_BYTES = 256 << 20
"""A file larger than this is not a manifest; the JSON of 10,000 nodes and 100,000 pods is about as large."""


fleet_options = with_options(
    click.option(
        "--fleet",
        metavar="FILE",
        help="Nodes: a fleet file, Node objects, or `kubectl get nodes,pods -A -o json`; - is stdin.",
    ),
    click.option(
        "--gpus", multiple=True, metavar="NxMODEL", help="A node in short form, such as 8xH100-80GB; repeatable."
    ),
    click.option(
        "--gpu-model",
        multiple=True,
        metavar="NODE=MODEL",
        help="GPU model of Node objects that do not say it: by name, pattern ('gpu-*') or label (pool=a); repeatable.",
    ),
)
"""Adds the options that say which fleet."""

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
        type=click.Choice(tuple(_MIB)),
        help="Unit of aliyun.com/gpu-mem in the fleet and in manifests.  [default: what the nodes advertise, else GiB]",
    ),
)
"""Adds the options that say what to plan for."""


def read_snapshot(
    fleet: str | None,
    gpus: Iterable[str],
    manifests: Sequence[str],
    share_unit: ShareUnit | None = None,
    gpu_models: Iterable[str] = (),
) -> Snapshot:
    """Return the fleet with the manifests' pods pending; skipped objects are named on standard error.

    Nodes whose GPUs are not known say so themselves; `note_skipped` names them where nothing else does.

    Raises:
        InvalidInput: no fleet, a node or pod twice, or anything unreadable in the files.

    """
    observed, unit_mib = _observed(fleet, _MIB[share_unit] if share_unit else None, model_rules(gpu_models))
    short = tuple(fleets.short(text, index) for index, text in enumerate(gpus))
    nodes = (*observed.nodes, *short)
    if not nodes:
        raise InvalidInput(
            "fleet",
            found="no node",
            expected="at least one node with GPUs",
            hint="--fleet FILE or --gpus 8xH100-80GB",
        )
    read = workloads.read(
        tuple(document for path in manifests for document in read_documents(path)), share_unit_mib=unit_mib, nodes=nodes
    )
    for note in (*observed.notes, *read.notes, *_left_out(read.left_out)):
        click.echo(f"note: {note}", err=True)
    if manifests and not read.pods and not read.left_out:
        click.echo(f"note: no workload in {', '.join(manifests)}", err=True)
    if share_unit is None and _looks_like_mib(nodes, (*observed.pending, *read.pods)):
        click.echo(f"note: {SHARE_MEMORY} is read as GiB; if it counts MiB, use --share-unit MiB", err=True)
    twice = next((name for name, count in Counter(node.name for node in nodes).items() if count > 1), None)
    if twice is not None:
        raise InvalidInput(f"node {twice}", found="it in both --fleet and --gpus", expected="each node once")
    there = {pod.key for pod in (*(running.pod for running in observed.running), *observed.pending)}
    for key in (pod.key for pod in read.pods if pod.key in there):
        click.echo(f"note: pod {key} is already in the fleet; the manifest is ignored", err=True)
    pending = (*observed.pending, *(pod for pod in read.pods if pod.key not in there))
    notes = (*observed.notes, *read.notes)
    return Snapshot(nodes=nodes, running=observed.running, pending=pending, notes=notes, left_out=read.left_out)


def note_skipped(nodes: Iterable[Node]) -> None:
    """Name the nodes whose GPUs are not known on standard error."""
    for node in nodes:
        if node.problem:
            click.echo(f"note: {node.name} is left out, because its GPUs are not known: {node.problem}", err=True)


def _looks_like_mib(nodes: Sequence[Node], pods: Iterable[Pod]) -> bool:
    """Return whether some memory share is larger than every GPU, and would fit one if its number were of MiB."""
    largest = max((gpu.memory_mib for node in nodes for gpu in node.gpus), default=0)
    shares = {ask.memory_mib for pod in pods for ask in pod.need.asks if ask.form is Form.SHARE}
    return any(share > largest >= share / 1024 for share in shares)


def _observed(fleet: str | None, unit_mib: int | None, gpu_models: Sequence[ModelRule]) -> tuple[Snapshot, int]:
    """Return the nodes and pods of `--fleet`, and the MiB in one `aliyun.com/gpu-mem`, as given or as seen there."""
    documents = read_documents(fleet) if fleet is not None else ()
    unit_mib = unit_mib or fleets.share_unit_mib(documents)
    if not documents:
        return Snapshot(nodes=()), unit_mib
    return fleets.read(documents, share_unit_mib=unit_mib, gpu_models=gpu_models), unit_mib


def _left_out(parts: Sequence[LeftOut]) -> Iterator[str]:
    """Yield a sentence for each kind of object that was left out and each reason, with the first of it as examples."""
    groups: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for each in parts:
        groups.setdefault((each.object.partition(" ")[0], each.reason, each.resources), []).append(each.object)
    for (_, reason, resources), alike in groups.items():
        more = len(alike) - _EXAMPLES
        rest = f" and {more} more" if more > 0 else ""
        names = f" ({', '.join(resources)})" if resources else ""
        yield f"{', '.join(alike[:_EXAMPLES])}{rest}: not counted, {reason}{names}"


def read_documents(path: str) -> tuple[Document, ...]:
    """Return the documents of a file, of the manifests below a folder, or of standard input (`-`).

    Raises:
        InvalidInput: nothing to read there, or a text that cannot be read.

    """
    return tuple(each for file in _files(path) for each in documents.read(*read_bytes(file)))


def _files(path: str) -> Iterator[str]:
    """Yield a file, or the manifests below a folder, sorted; what is hidden, or in a hidden folder, is left out."""
    if not path:
        raise InvalidInput(
            "a file to read", found="an empty name", expected="a file, a folder, or - for standard input"
        )
    folder = Path(path)
    if path == "-" or not folder.is_dir():
        yield path
        return
    inside = (p for p in folder.rglob("*") if not any(part.startswith(".") for part in p.relative_to(folder).parts))
    found = sorted(p for p in inside if p.suffix in _ENDINGS and p.is_file())
    if not found:
        raise InvalidInput(path, found="a folder without manifests", expected="files ending in .yaml, .yml or .json")
    yield from map(str, found)


def read_bytes(path: str) -> tuple[str, bytes]:
    """Return the name to use in errors and the bytes of a file; `-` is standard input.

    Raises:
        InvalidInput: the file is missing, unreadable or absurdly large.

    """
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InvalidInput(path, found=error.strerror or str(error), expected="a file that can be read") from error
    if len(data) > _MOST_BYTES:
        raise InvalidInput(path, found="more than 256 MiB", expected="manifests")
    return ("standard input" if path == "-" else path), data
