"""Kubernetes workloads as the pods they run at once.

Pods are themselves; the kinds in `kinds` stand for pods by their rows; other kinds are searched for pod specs
(`unknown`). Objects without pods are left out with a reason. Pods of one part share one `Need` value.

Names: a Pod has its own; others are NAME-0, NAME-1, ..., with the part's name between if a kind has several, and
NAME-NODE for a DaemonSet. Where two workloads of different kinds have one name, the later one's pods have its kind in
theirs.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from tessera.api.documents import Document
from tessera.api.documents import Path as DocumentPath
from tessera.api.fields import Field, checked_name, identity, objects
from tessera.api.kubernetes.podspecs import PREFIX, ignored_constraints, read_need
from tessera.api.kubernetes.podstates import is_finished
from tessera.api.kubernetes.workloads.autoscalers import AUTOSCALERS, Target, scales
from tessera.api.kubernetes.workloads.counting import DAEMON_TOLERATIONS, CountedPart, Scale, follow, places
from tessera.api.kubernetes.workloads.kinds import KINDS, TEMPLATES, PodPart, WorkloadKind, runs_no_pods
from tessera.api.kubernetes.workloads.unknown import find, gpu_names
from tessera.core.cluster.snapshot import LeftOut, Node
from tessera.core.packing.fit.admission import Refusal, refusal
from tessera.core.workload.need import Need, Pod, PodKey, Requirement, SelectorTerm

__all__ = ["ReadWorkloads", "controller", "read"]

_MAX_PODS = 1_000_000
"""Most pods read at once; Kubernetes supports 150,000 in a cluster."""
_BUILT_IN_PRIORITY = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
"""Source: kubernetes `pkg/apis/scheduling/types.go`."""
_MOST_NEGATIVE = -(1 << 31)
_ROWS = {(row.group, name): row for row in KINDS for name in row.names}
_BUILT_IN = {name: row for row in reversed(KINDS) for name in row.names if row.group in {"", "apps", "batch"}}
"""Rows by kind alone, for manifests without apiVersion."""
_REFERRED = TEMPLATES.keys() | {("apps", "Deployment"), ("apps", "ReplicaSet")}
"""Kinds whose pod templates other objects use by name."""
_CONTAINERS = ("containers", "initContainers")
_WORD = re.compile(r"[a-z0-9]([-a-z0-9.]{0,62})")
_NOT_AN_OBJECT = (
    "no apiVersion and kind; if it has values of a Helm chart, pass what `helm template` prints in its place"
)


class ReadWorkloads(msgspec.Struct, frozen=True, kw_only=True):
    """The pods of a set of documents."""

    pods: tuple[Pod, ...] = ()
    """In their order."""
    left_out: tuple[LeftOut, ...] = ()
    """Objects that run no pods or whose pods are not read, in their order."""
    notes: tuple[str, ...] = ()
    """What was ignored, or assumed about a count; one sentence each."""


class _Set(msgspec.Struct, frozen=True):
    """Equal pods of one object."""

    pod: Field
    """Their template, or the Pod itself."""
    count: int
    words: tuple[str, ...] = ()
    """Distinguishes them from others of the object."""


class _Object(msgspec.Struct, frozen=True):
    """The pods of one object."""

    field: Field
    sets: tuple[_Set, ...] = ()
    notes: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    row: WorkloadKind | None = None


def read(documents: Iterable[Document], *, share_unit_mib: int = 1024, nodes: Sequence[Node] = ()) -> ReadWorkloads:
    """Return the pods that the documents' workloads run at once, in order.

    Args:
        documents: manifests, as `documents.read` returns them.
        share_unit_mib: MiB in one `aliyun.com/gpu-mem`.
        nodes: the nodes that DaemonSets may run on.

    Raises:
        InvalidInput: a workload that Kubernetes or Tessera would reject, or two pods of one name.

    """
    fields = [field for document in documents for field in objects(document)]
    scaled = scales((_group(field), field) for field in fields)
    others = {
        (kind, name): field
        for field in fields
        if (_group(field), kind := field.get("kind").text("")) in _REFERRED
        and isinstance(name := field.get("metadata", "name").value, str)
    }
    maker = _Maker(_priorities(fields), share_unit_mib, nodes)
    found = [_read(field, scaled, others) for field in fields]
    makers = {"/".join((each.field.get("kind").text(), *_target(each.field))) for each in found if each.sets}
    found = [_unless_made(each, makers) for each in found]
    for each in found:
        maker.make(each)
    return ReadWorkloads(
        pods=tuple(maker.pods),
        left_out=tuple(part for each in found for part in each.left_out),
        notes=tuple(maker.notes),
    )


def controller(pod: Field, namespace: str) -> str:
    """Return the workload of a pod, by its owner references; empty for a bare pod."""
    for owner in pod.get("metadata", "ownerReferences").elements():
        if owner.get("controller").value is True:
            return f"{owner.get('kind').text()}/{namespace}/{owner.get('name').text()}"
    return ""


# One object


def _group(field: Field) -> str:
    """Return the API group of an object; that of a built-in workload without apiVersion is its own."""
    version = field.get("apiVersion")
    if not version.present:
        row = _BUILT_IN.get(field.get("kind").text(""))
        return row.group if row else ""
    group, slash, _ = version.text().partition("/")
    return group if slash else ""


def _read(field: Field, scaled: dict[Target, Scale], others: dict[tuple[str, str], Field]) -> _Object:
    kind, group = field.get("kind").text(""), _group(field)
    row = _ROWS.get((group, kind))
    if (group, kind) == ("", "Pod"):
        return _Object(field, (_Set(field, 0 if is_finished(field) else 1),))
    if row is not None:
        scale = scaled.get((kind, *_target(field))) if scaled else None
        return _known(field, row, scale, others)
    if not kind:
        return _left_out(field, _NOT_AN_OBJECT, gpu_names(field))
    if (group, kind) in TEMPLATES:
        return _left_out(field, f"runs no pods itself, only for {TEMPLATES[group, kind]}", gpu_names(field))
    if (group, kind) in AUTOSCALERS or runs_no_pods(group, kind):
        return _left_out(field, "runs no pods", ())
    return _unknown(field)


def _target(field: Field) -> tuple[str, str]:
    """Return namespace and name by which an autoscaler refers to an object."""
    metadata = field.get("metadata")
    return metadata.get("namespace").text("default"), metadata.get("name").text("")


def _left_out(field: Field, reason: str, resources: tuple[str, ...]) -> _Object:
    return _Object(field, left_out=(LeftOut(object=field.label or field.place, reason=reason, resources=resources),))


def _unless_made(read: _Object, makers: set[str]) -> _Object:
    """Leave out an object created by another of the objects, as in a saved cluster, so that no pod counts twice."""
    owner = controller(read.field, _target(read.field)[0]) if read.sets else ""
    if owner not in makers:
        return read
    kind, _, name = owner.split("/", 2)
    return _left_out(read.field, f"made by {kind} {name}, which is counted", ())


def _known(field: Field, row: WorkloadKind, scale: Scale | None, others: dict[tuple[str, str], Field]) -> _Object:
    sets: list[_Set] = []
    notes: list[str] = []
    for part in row.parts:
        for place in places(field, part.at):
            place.scale, place.others = scale, others
            pod = _pod(part, place)
            notes.extend(place.notes)
            if pod is None:
                continue
            place.notes.clear()
            count = 1
            for factor in part.times:
                count *= factor(place)
            sets.append(_Set(pod, count, (*place.words, part.word) if part.word else place.words))
            notes.extend(place.notes)
    if not sets:
        return _left_out(field, notes[0] if notes else "describes no pods here", gpu_names(field))
    unread = gpu_names(field, _read_of(sets)) if row.group not in {"", "apps", "batch"} else ()
    missed = (LeftOut(object=field.label, reason="Tessera reads no pod where it names these", resources=unread),)
    named_notes = [f"{field.label}: {note}" for note in dict.fromkeys((*notes, *((row.note,) if row.note else ())))]
    return _Object(field, tuple(sets), tuple(named_notes), missed if unread else (), row)


def _pod(part: PodPart, place: CountedPart) -> Field | None:
    if part.required and not place.field.present:
        return place.field
    annotations = (
        follow(place.root, part.annotations, place.keys)
        if part.annotations
        else Field(place.field.document, None, place.field.path, root=place.field.root, label=place.field.label)
    )
    return part.shape(place, annotations)


def _unknown(field: Field) -> _Object:
    """Read an object of a kind without a row by the pods described in it."""
    found = list(find(field))
    sets = tuple(_Set(each.pod, each.count, (each.word,) if each.word else ()) for each in found)
    unread = gpu_names(field, _read_of(sets))
    left_out = _left_out(
        field, "Tessera does not know this kind and reads no pod where it names these", unread
    ).left_out
    if not found:
        reason = "Tessera does not know this kind, and there is no pod in it"
        return _left_out(field, reason, ()) if not unread else _Object(field, left_out=left_out)
    count = sum(each.count for each in found)
    pods = "1 pod" if count == 1 else f"{count} pods"
    note = f"{field.label}: Tessera does not know this kind; {pods} counted by the pods it describes and their replicas"
    return _Object(field, sets, (note,), left_out if unread else ())


def _read_of(sets: Iterable[_Set]) -> tuple[DocumentPath, ...]:
    """Return the paths of the resources that pods are read from."""
    specs = [each.pod.get("spec") for each in sets]
    containers = (each for spec in specs for name in _CONTAINERS for each in spec.get(name).elements())
    return tuple(each.get("resources").path for each in (*specs, *containers))


# Pods


class _Maker:
    """Makes pods, each name once."""

    def __init__(self, priorities: dict[str, int], share_unit_mib: int, nodes: Sequence[Node]) -> None:
        self.pods: list[Pod] = []
        self.notes: list[str] = []
        self._priorities = priorities
        self._share_unit_mib = share_unit_mib
        self._nodes = nodes
        self._field_of: dict[str, Field] = {}
        self._owners: dict[str, str] = {}
        self._generated = Counter[tuple[str, str]]()

    def make(self, read: _Object) -> None:
        """Add the pods of an object.

        Raises:
            InvalidInput: an object that Kubernetes or Tessera would reject.

        """
        if not read.sets:
            return
        field = read.field
        bare = read.sets[0].pod is field
        namespace, name = self._identity(field)
        kind = field.get("kind").text()
        owner = controller(field, namespace) if bare else f"{kind}/{namespace}/{name}"
        base = name if bare else self._base(namespace, name, kind)
        self.notes.extend(read.notes)
        words = Counter[str]()
        for each in read.sets:
            _refuse_misplaced(field, each.pod)
            word = "-".join(part for part in map(str.lower, each.words) if _WORD.fullmatch(part))
            words[word] += 1
            again = f"-{words[word] - 1}" if words[word] > 1 else ""
            stem = f"{base}-{word}{again}" if word else f"{base}{again}"
            self._add(read, each, PodKey(f"{namespace}/{stem}"), owner)

    def _add(self, read: _Object, pods: _Set, stem: PodKey, owner: str) -> None:
        field = read.field
        if len(self.pods) + pods.count > _MAX_PODS:
            raise field.refuse(found=f"{pods.count} more pods are more than {_MAX_PODS} in all")
        need = read_need(pods.pod, share_unit_mib=self._share_unit_mib)
        priority = self._priority(pods.pod.get("spec"))
        if pods.pod is field:
            named = [(stem, need)][: pods.count]
        elif read.row is not None and read.row.daemon:
            named = self._on_nodes(field, stem, need)
        else:
            first = follow(field, read.row.first).integer(0) if read.row is not None and read.row.first else 0
            named = [(PodKey(f"{stem}-{first + index}"), need) for index in range(pods.count)]
        for key, own in named:
            if key in self._field_of:
                before = self._field_of[key]
                found = f"pod {key} is there again, after {before.label} at {before.place}"
                raise field.refuse(found=found, hint="name each pod once")
            self._field_of[key] = field
            self.pods.append(Pod(key=key, need=own, priority=priority, owner=owner))
        self.notes.extend(f"{field.label}: {what}" for what in _notes(pods.pod, self._priorities))

    def _on_nodes(self, field: Field, stem: str, need: Need) -> list[tuple[PodKey, Need]]:
        """Return a pod for each node that admits it, as the DaemonSet controller binds it: by the node's name."""
        need = msgspec.structs.replace(need, tolerations=(*need.tolerations, *DAEMON_TOLERATIONS))
        rules = ((node.name, refusal(need, node)) for node in self._nodes)
        names = [name for name, rule in rules if rule is None or rule[0] is Refusal.UNITS]
        if not names:
            self.notes.append(f"{field.label}: no node admits its pods, so none is planned")
        terms = [
            (SelectorTerm(fields=(Requirement(key="metadata.name", operator="In", values=(name,)),)),) for name in names
        ]
        return [
            (PodKey(f"{stem}-{name}"), msgspec.structs.replace(need, affinity=term))
            for name, term in zip(names, terms, strict=True)
        ]

    def _base(self, namespace: str, name: str, kind: str) -> str:
        """Return the prefix of a workload's pod names: its name, unless another kind's pods have it."""
        return name if self._owners.setdefault(f"{namespace}/{name}", kind) == kind else f"{name}-{kind.lower()}"

    def _identity(self, field: Field) -> tuple[str, str]:
        """Return namespace and name of an object; generated names are numbered."""
        prefix = field.get("metadata", "generateName")
        if field.get("metadata", "name").present or not prefix.present:
            return identity(field)
        namespace = checked_name(field.get("metadata", "namespace"), "default")
        short = Field(prefix.document, prefix.text().rstrip("-."), prefix.path, root=prefix.root, label=prefix.label)
        base = checked_name(short)
        self._generated[namespace, base] += 1
        return namespace, f"{base}-{self._generated[namespace, base] - 1}"

    def _priority(self, spec: Field) -> int:
        # A class that is not among the documents counts as none.
        usual = self._priorities.get(spec.get("priorityClassName").text(""), self._priorities.get("", 0))
        return spec.get("priority").integer(usual, least=_MOST_NEGATIVE)


def _notes(pod: Field, priorities: dict[str, int]) -> Iterator[str]:
    for name in ignored_constraints(pod):
        yield f"{name} is not considered"
    spec = pod.get("spec")
    name = spec.get("priorityClassName").text("")
    if name and name not in priorities and not spec.get("priority").present:
        yield f"PriorityClass {name} is not among the documents, so the priority is {priorities.get('', 0)}"


def _refuse_misplaced(field: Field, pod: Field) -> None:
    """Reject Tessera's annotations on a workload itself, where no pod would have them."""
    if field is pod or pod.get("metadata", "annotations").path == field.get("metadata", "annotations").path:
        return
    for key, annotation in field.get("metadata", "annotations").members():
        if key.startswith(PREFIX):
            raise annotation.refuse(
                found=f"{key} is on the workload, where it has no effect",
                hint="write it in metadata.annotations of the pod template",
            )


def _priorities(fields: Iterable[Field]) -> dict[str, int]:
    """Return the values of the PriorityClass objects; the default one also under the empty name."""
    values = dict(_BUILT_IN_PRIORITY)
    for field in fields:
        if field.get("kind").value == "PriorityClass":
            value = field.get("value").integer(least=_MOST_NEGATIVE)
            values[field.get("metadata", "name").text()] = value
            if field.get("globalDefault").boolean(default=False):
                values[""] = value
    return values
