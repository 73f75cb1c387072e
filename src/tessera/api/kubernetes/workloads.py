"""Kubernetes workloads as the pods they run at once.

| kind | pods | names |
|---|---|---|
| Pod | itself | its own; `RUN-0`, `RUN-1`, ... for each more of `generateName: RUN-` |
| Deployment, ReplicaSet, ReplicationController | `spec.replicas`, 1 by default | `NAME-0`, `NAME-1`, ... |
| StatefulSet | the same | `NAME-0`, ... from `spec.ordinals.start` |
| Job | `spec.parallelism`, at most `spec.completions`; none while suspended | `NAME-0`, ... |
| CronJob | those of one run of its Job | `NAME-0`, ... |

Everything else is named as skipped. Pods of one workload share one `Need` value.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from tessera.api.documents import Document
from tessera.api.fields import Field, checked_name, identity, objects
from tessera.api.kubernetes.podspecs import PREFIX, ignored_constraints, read_need
from tessera.core.workload.need import Pod, PodKey

__all__ = ["Workloads", "controller", "is_finished", "read"]

_MAX_PODS = 1_000_000
"""Most pods read at once; Kubernetes supports 150,000 in a cluster."""
_BUILT_IN_PRIORITY = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
"""Source: kubernetes `pkg/apis/scheduling/types.go`."""
_MOST_NEGATIVE = -(1 << 31)


class Workloads(msgspec.Struct, frozen=True, kw_only=True):
    """The pods of a set of documents."""

    pods: tuple[Pod, ...] = ()
    """In the order written."""
    skipped: tuple[str, ...] = ()
    """Objects that run no pods or whose pods are not read, as `Service default/web`, in the order written."""
    notes: tuple[str, ...] = ()
    """What was read but is not considered, one sentence each."""


class _Template(msgspec.Struct, frozen=True):
    """One workload: its pod template, how many pods, and the number in the first one's name."""

    field: Field
    pod: Field
    replicas: int
    first: int = 0


def read(documents: Iterable[Document], *, share_unit_mib: int = 1024) -> Workloads:
    """Return the pods that the documents' workloads run at once, in order.

    Args:
        documents: manifests, as `documents.read` returns them.
        share_unit_mib: MiB in one `aliyun.com/gpu-mem`.

    Raises:
        InvalidInput: a workload that Kubernetes or Tessera would refuse, or two pods of one name.

    """
    pods: list[Pod] = []
    skipped: list[str] = []
    notes: list[str] = []
    fields = [field for document in documents for field in objects(document)]
    priorities = _priorities(fields)
    seen: dict[str, Field] = {}
    generated = Counter[str]()
    for field in fields:
        template = _template(field)
        if template is None:
            skipped.append(field.label or field.place)
            continue
        _refuse_misplaced(template)
        if len(pods) + template.replicas > _MAX_PODS:
            raise field.refuse(f"at most {_MAX_PODS} pods in all", found=f"{template.replicas} more pods")
        made = _pods(template, priorities, generated, share_unit_mib)
        for pod in made:
            if pod.key in seen:
                first = seen[pod.key]
                raise field.refuse(
                    "each pod name once", found=f"pod {pod.key} again, after {first.label} at {first.place}"
                )
            seen[pod.key] = field
        pods.extend(made)
        notes.extend(f"{field.label}: {what}" for what in _notes(template.pod, priorities))
    return Workloads(pods=tuple(pods), skipped=tuple(skipped), notes=tuple(notes))


def _notes(pod: Field, priorities: dict[str, int]) -> Iterator[str]:
    for name in ignored_constraints(pod):
        yield f"{name} is not considered"
    spec = pod.get("spec")
    name = spec.get("priorityClassName").text("")
    if name and name not in priorities and not spec.get("priority").given:
        yield f"PriorityClass {name} is not among the documents, so the priority is {priorities.get('', 0)}"


def _refuse_misplaced(template: _Template) -> None:
    """Refuse Tessera's annotations on a workload itself, where no pod would carry them."""
    if template.field is template.pod:
        return
    for key, annotation in template.field.get("metadata", "annotations").members():
        if key.startswith(PREFIX):
            wanted = "the annotation on the pods"
            raise annotation.refuse(wanted, "metadata.annotations of the pod template", found=f"{key} on the workload")


def is_finished(pod: Field) -> bool:
    """Return whether a Pod object has run to its end and holds nothing."""
    return pod.get("status", "phase").value in ("Succeeded", "Failed")


def _template(field: Field) -> _Template | None:
    """Return the workload an object is; None for a kind that is skipped."""
    spec = field.get("spec")
    match field.get("kind").text():
        case "Pod":
            return _Template(field, field, 0 if is_finished(field) else 1)
        case "Deployment" | "ReplicaSet" | "ReplicationController":
            return _Template(field, spec.get("template"), spec.get("replicas").integer(1))
        case "StatefulSet":
            first = spec.get("ordinals", "start").integer(0)
            return _Template(field, spec.get("template"), spec.get("replicas").integer(1), first)
        case "Job":
            return _Template(field, spec.get("template"), _parallel(spec))
        case "CronJob":
            job = spec.get("jobTemplate", "spec")
            suspended = spec.get("suspend").boolean(default=False)
            return _Template(field, job.get("template"), 0 if suspended else _parallel(job))
        case _:
            return None


def _parallel(job: Field) -> int:
    """Return how many pods a Job runs at once. Source: k8s.io/api batch/v1 `JobSpec`."""
    parallelism, completions = job.get("parallelism").integer(1), job.get("completions")
    if job.get("suspend").boolean(default=False):
        return 0
    return min(parallelism, completions.integer()) if completions.given else parallelism


def _pods(template: _Template, priorities: dict[str, int], generated: Counter[str], share_unit_mib: int) -> list[Pod]:
    field = template.field
    kind = field.get("kind").text()
    bare = kind == "Pod"
    namespace, name = _generated(field, generated) if bare else identity(field)
    need = read_need(template.pod, share_unit_mib=share_unit_mib)
    spec = template.pod.get("spec")
    # A class that is not among the documents counts as none.
    usual = priorities.get(spec.get("priorityClassName").text(""), priorities.get("", 0))
    priority = spec.get("priority").integer(usual, least=_MOST_NEGATIVE)
    owner = controller(field, namespace) if bare else f"{kind}/{namespace}/{name}"
    names = [name] if bare else [f"{name}-{template.first + index}" for index in range(template.replicas)]
    return [
        Pod(key=PodKey(f"{namespace}/{pod_name}"), need=need, priority=priority, owner=owner)
        for pod_name in names[: template.replicas]
    ]


def _generated(pod: Field, generated: Counter[str]) -> tuple[str, str]:
    """Return namespace and name of a Pod; names to be generated are numbered as they come."""
    prefix = pod.get("metadata", "generateName")
    if pod.get("metadata", "name").given or not prefix.given:
        return identity(pod)
    namespace = checked_name(pod.get("metadata", "namespace"), "default")
    base = checked_name(Field(prefix.document, prefix.text().removesuffix("-"), prefix.path, label=prefix.label))
    generated[f"{namespace}/{base}"] += 1
    return namespace, f"{base}-{generated[f'{namespace}/{base}'] - 1}"


def controller(pod: Field, namespace: str) -> str:
    """Return the workload that made a pod, as its owner references name it; empty for a bare pod."""
    for owner in pod.get("metadata", "ownerReferences").elements():
        if owner.get("controller").value is True:
            return f"{owner.get('kind').text()}/{namespace}/{owner.get('name').text()}"
    return ""


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
