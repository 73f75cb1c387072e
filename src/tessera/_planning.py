"""The implementation of `tessera.plan`, and the reading of files shared with the commands."""

import contextlib
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from tessera.api import documents
from tessera.api.documents import Document
from tessera.api.fields import Field
from tessera.api.kubernetes import workloads
from tessera.api.kubernetes.labeledgpus import model_rules
from tessera.api.tessera.cluster import fleets
from tessera.api.tessera.cluster.plans import (
    AssignmentDocument,
    CostDocument,
    DeviceDocument,
    FitDocument,
    LayoutDocument,
    LeftOutDocument,
    NodesDocument,
    PendingPodDocument,
    PlanDocument,
    SliceDocument,
    SummaryDocument,
    document,
)
from tessera.api.tessera.v1alpha1.modelservers import API_VERSION, KIND, read_model_server
from tessera.core.cluster.snapshot import LeftOut, Node, Snapshot
from tessera.core.packing import plan as core
from tessera.core.packing.linear import TimeBudget
from tessera.core.serving.render.engines import program
from tessera.core.serving.render.pods import pod_template
from tessera.core.workload.need import Form, Pod
from tessera.core.workload.resources import MODEL_RESOURCE, SHARE_MEMORY
from tessera.errors import Conflict, InvalidInput, TesseraError, Unavailable, Unsupported

__all__ = [
    "AssignmentDocument",
    "Conflict",
    "CostDocument",
    "DeviceDocument",
    "FitDocument",
    "FleetInput",
    "InvalidInput",
    "LayoutDocument",
    "LeftOutDocument",
    "ManifestInput",
    "NodesDocument",
    "PendingPodDocument",
    "PlanDocument",
    "ShareUnit",
    "SliceDocument",
    "SummaryDocument",
    "TesseraError",
    "Unavailable",
    "Unsupported",
    "plan",
    "read_bytes",
    "read_documents",
    "snapshot_of",
    "with_pods",
]

FleetInput: TypeAlias = str | Path | Mapping[str, Any]
"""Nodes: the short form `8xH100-80GB` as a text, a file as a Path, or an object: a fleet, a Node, or a List."""
ManifestInput: TypeAlias = str | Path | Mapping[str, Any]
"""Workloads: YAML as a text, a file or folder as a Path, or an object."""
ShareUnit: TypeAlias = Literal["GiB", "MiB"]

_MIB: dict[ShareUnit, int] = {"GiB": 1024, "MiB": 1}
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_ENDINGS = {".yaml", ".yml", ".json"}
_EXAMPLES = 3
"""Objects of one kind named in a note; the others are counted."""
_MOST_BYTES = 256 << 20
"""A file larger than this is not a manifest; the JSON of 10,000 nodes and 100,000 pods is about as large."""


def plan(
    fleet: FleetInput | Sequence[FleetInput],
    manifests: ManifestInput | Sequence[ManifestInput] = (),
    *,
    policy: str = "tessera",
    exact: bool = False,
    limit_s: float = 60.0,
    share_unit: ShareUnit | None = None,
) -> PlanDocument:
    """Return where the pods of manifests go on a fleet, how each GPU is partitioned, and why the others stay pending.

    The record is that of `tessera plan -o json`. Nothing is printed, and no cluster is read or changed.

    Args:
        fleet: the nodes, or several inputs that make them up: a text is the short form, `8xH100-80GB`; a Path is a
            file; a mapping is an object. A saved cluster brings its pods: running ones stay where they are.
        manifests: the workloads: a text is YAML, a Path is a file or a folder, a mapping is an object.
        policy: the packing policy.
        exact: improve on it by an integer program for at most `limit_s` seconds.
        limit_s: see `exact`.
        share_unit: unit of `aliyun.com/gpu-mem`; by default as the nodes advertise it, else GiB.

    Raises:
        InvalidInput: an input cannot be read, or there is no node; the message has place and fix.

    """
    if policy not in core.PLAN_POLICIES:
        raise InvalidInput("policy", found=policy, expected="a policy", hint=", ".join(core.PLAN_POLICIES))
    nodes, pods = _each(fleet), _each(manifests)
    snapshot = snapshot_of(
        _documents(each for each in nodes if not isinstance(each, str)),
        [each for each in nodes if isinstance(each, str)],
        _documents(pods),
        share_unit,
    )
    planned = core.plan(snapshot, policy=policy, exact=exact, budget=TimeBudget(limit_s))
    return document(planned)


def _each(given: FleetInput | Sequence[FleetInput]) -> Sequence[FleetInput]:
    return (given,) if isinstance(given, str | Path | Mapping) else given


def _documents(inputs: Iterable[ManifestInput]) -> tuple[Document, ...]:
    found: list[Document] = []
    for number, each in enumerate(inputs, start=1):
        if isinstance(each, Path):
            found += read_documents(str(each))
        elif isinstance(each, str):
            found += documents.read(f"text {number}", each)
        else:
            found.append(Document(source=f"object {number}", number=1, data=dict(each), first_line=1))
    return tuple(found)


def snapshot_of(
    fleet: Sequence[Document],
    gpus: Sequence[str],
    manifests: Sequence[Document],
    share_unit: ShareUnit | None = None,
    gpu_models: Iterable[str] = (),
) -> Snapshot:
    """Return the fleet with the manifests' pods pending; its notes list what was left out or assumed.

    Args:
        fleet: nodes and their pods.
        gpus: more nodes, in short form.
        manifests: workloads.
        share_unit: unit of `aliyun.com/gpu-mem`; by default as the nodes advertise it.
        gpu_models: `NODE=MODEL` for Node objects without a GPU model.

    Raises:
        InvalidInput: no node, a node or pod twice, or anything unreadable.

    """
    unit_mib = _MIB[share_unit] if share_unit else fleets.share_unit_mib(fleet)
    rules = model_rules(gpu_models)
    observed = fleets.read(fleet, share_unit_mib=unit_mib, gpu_models=rules) if fleet else Snapshot(nodes=())
    nodes = (*observed.nodes, *fleets.short(gpus))
    if not nodes:
        raise InvalidInput("fleet", found="it has no node", hint="give --cluster FILE or --gpus 8xH100-80GB")
    read = workloads.read(with_pods(manifests), share_unit_mib=unit_mib, nodes=nodes)
    notes = [*observed.notes, *read.notes, *_left_out(read.left_out)]
    if share_unit is None and _looks_like_mib(nodes, (*observed.pending, *read.pods)):
        notes.append(f"{SHARE_MEMORY} is read as GiB; if it counts MiB, use --share-unit MiB")
    notes += _assumed_models(nodes, (*observed.pending, *read.pods))
    twice = next((name for name, count in Counter(node.name for node in nodes).items() if count > 1), None)
    if twice is not None:
        raise InvalidInput(f"node {twice}", found="it is in both --cluster and --gpus", hint="leave out one")
    there = {pod.key for pod in (*(running.pod for running in observed.running), *observed.pending)}
    notes += [
        f"pod {pod.key} is already in the fleet; the manifest is ignored" for pod in read.pods if pod.key in there
    ]
    pending = (*observed.pending, *(pod for pod in read.pods if pod.key not in there))
    return msgspec.structs.replace(observed, nodes=nodes, pending=pending, notes=tuple(notes), left_out=read.left_out)


def with_pods(manifests: Iterable[Document]) -> tuple[Document, ...]:
    """Return manifests in which each ModelServer has `spec.template`, the pods that the controller would create.

    Raises:
        InvalidInput: a ModelServer that the controller would reject.

    """
    return tuple(_completed(each) for each in manifests)


def _completed(document: Document) -> Document:
    whole = Field(document, document.data)
    if not isinstance(document.data, dict):
        return document
    items = whole.get("items")
    if isinstance(items.value, list):
        data: documents.Plain = {**document.data, "items": [_with_template(each) for each in items.elements()]}
        changed = any(_is_server(each) for each in items.elements())
    else:
        data, changed = _with_template(whole), _is_server(whole)
    # What was made has no line of its own; errors about it name the document's first.
    return msgspec.structs.replace(document, data=data, text="") if changed else document


def _is_server(field: Field) -> bool:
    each = field.value
    return isinstance(each, dict) and each.get("kind") == KIND and each.get("apiVersion") == API_VERSION


def _with_template(field: Field) -> documents.Plain:
    if not _is_server(field):
        return field.value
    each, source = field.mapping(), field.place
    server = read_model_server(each, source)
    template = pod_template(server, program(server, f"{source}: {KIND} {server.name}"))
    replicas: documents.Plain = {"min": server.min_replicas, "max": server.max_replicas}
    return {**each, "spec": {"replicas": replicas, "template": template}}


def _assumed_models(nodes: Sequence[Node], pods: Iterable[Pod]) -> Iterator[str]:
    """Yield that cached models are assumed on nodes whose models the fleet does not have."""
    if any(node.cached_models is None for node in nodes):
        names = sorted({f"{MODEL_RESOURCE}{name}" for pod in pods for name in pod.need.cached_models})
        if names:
            yield f"{', '.join(names)}: presumed on each node whose models the fleet does not list"


def _looks_like_mib(nodes: Sequence[Node], pods: Iterable[Pod]) -> bool:
    """Return whether some memory share is larger than every GPU, and would fit one in MiB."""
    largest = max((gpu.memory_mib for node in nodes for gpu in node.gpus), default=0)
    shares = {request.memory_mib for pod in pods for request in pod.need.requests if request.form is Form.SHARE}
    return any(share > largest >= share / 1024 for share in shares)


def _left_out(parts: Sequence[LeftOut]) -> Iterator[str]:
    """Yield a sentence for each kind of object and reason that was left out, with examples."""
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
    """Yield a file, or the manifests below a folder, sorted; hidden files and folders are left out."""
    if address := _ADDRESS.match(path):
        fetched = f"curl -fsSL {path}" if address[1].lower() in ("http", "https") else "what fetches it"
        raise InvalidInput(path, found="it is an address, and nothing is fetched", hint=f"{fetched} | tessera ... -f -")
    if not path:
        raise InvalidInput(
            "a file to read", found="its name is empty", hint="name a file, a folder, or - for standard input"
        )
    try:
        found = None if path == "-" or not (folder := Path(path)).is_dir() else sorted(_manifests(folder))
    except OSError as error:
        raise _unreadable(str(error.filename or path), error) from error
    if found is None:
        yield path
        return
    if not found:
        raise InvalidInput(
            path, found="the folder has no manifests", hint="name a folder with files ending in .yaml, .yml or .json"
        )
    yield from map(str, found)


def _manifests(folder: Path) -> Iterator[Path]:
    inside = (p for p in folder.rglob("*") if not any(part.startswith(".") for part in p.relative_to(folder).parts))
    return (p for p in inside if p.suffix in _ENDINGS and p.is_file())


def _unreadable(path: str, error: OSError) -> InvalidInput:
    return InvalidInput(path, found=error.strerror or str(error), hint="name a file that can be read")


def read_bytes(path: str) -> tuple[str, bytes]:
    """Return the name of a file for errors, and its bytes; `-` is standard input.

    Raises:
        InvalidInput: the file is missing, unreadable or absurdly large.

    """
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(data) > _MOST_BYTES:
        raise InvalidInput(path, found="it has more than 256 MiB", hint="divide it")
    return ("standard input" if path == "-" else path), data
