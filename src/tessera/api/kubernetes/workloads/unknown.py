"""Pods in objects of any kind: pod specs anywhere, and GPUs outside of one.

They are counted by the numbers beside them on the path from the object's root: `replicas`, else `minReplicas`,
times `numOfHosts`, at least one where something scales, and not at all where `suspend` is set.
"""

import re
from collections.abc import Iterator

import msgspec

from tessera.api.documents import Path
from tessera.api.fields import Field, composed
from tessera.api.kubernetes.containerrequests import is_zero
from tessera.api.kubernetes.workloads.shapes import with_names
from tessera.core.gpu.sharing import names_device
from tessera.core.workload.foreignnames import names_foreign
from tessera.core.workload.resources import GPU_COMPUTE, GPU_COUNT, GPU_MEMORY, SHARE_MEMORY

__all__ = ["Found", "find", "gpu_names"]

_LABELS = frozenset({"nodeSelector", "matchLabels", "labels", "annotations", "selector", "podAnnotations"})
"""Mappings whose keys may look like resources and are not."""
_OURS = frozenset({GPU_MEMORY, GPU_COMPUTE, GPU_COUNT, SHARE_MEMORY})
_AMOUNTS = ("limits", "requests")
_QUOTA = re.compile(r"(requests|limits)\.")
_TEXTS = ("manifest", "podSpecPatch")
"""Texts of an Argo Workflow that are manifests themselves.

Source: argoproj/argo-workflows `pkg/apis/workflow/v1alpha1/workflow_types.go`.
"""
_NAME = re.compile(r"[a-z0-9.-]+\.[a-z]+/[A-Za-z0-9_.-]+")


class Found(msgspec.Struct, frozen=True):
    """A pod found in an object."""

    pod: Field
    count: int
    word: str


def is_gpu(name: str) -> bool:
    """Return whether a resource name stands for GPUs, in any known system."""
    return names_device(name) or name in _OURS or names_foreign(name)


def gpu_names(field: Field, beside: tuple[Path, ...] = ()) -> tuple[str, ...]:
    """Return the GPU resources below a field, without those below the paths `beside`."""
    found: dict[str, None] = {}
    for each in _walk(field):
        if any(each.path[: len(path)] == path for path in beside):
            continue
        if isinstance(each.value, dict):
            texts = (text for text in map(each.value.get, _TEXTS) if isinstance(text, str))
            named = (
                *(key for key, value in each.value.items() if not is_zero(value)),
                *(each.value.get(key) for key in ("name", "gpuType", "resourceName")),
                *(name for text in texts for name in _NAME.findall(text)),
            )
            names = (_QUOTA.sub("", name) for name in named if isinstance(name, str))
            found |= dict.fromkeys(name for name in names if is_gpu(name))
    return tuple(found)


def find(field: Field) -> Iterator[Found]:
    """Yield the pods described in an object: pod specs, and `resources` with GPUs outside of one.

    Raises:
        InvalidInput: a number next to one is invalid.

    """
    waiting: list[tuple[Field, int, str]] = [(field, 1, "")]
    while waiting:
        each, count, word = waiting.pop()
        if isinstance(each.value, list):
            inside = [(child, count, _name(child) or word) for child in each.elements()]
            waiting.extend(reversed(inside))
            continue
        if not isinstance(each.value, dict):
            continue
        spec = each.get("spec")
        if _is_pod_spec(spec):
            yield Found(with_names(each, "main"), _times(each, count), word)
        elif _is_pod_spec(each):
            yield Found(with_names(composed(each, {"spec": each}), "main"), _times(each, count), word)
            continue
        count = _times(each, count)
        resources = each.get("resources")
        if _asks_gpus(resources):
            yield Found(_pod(each), count, word)
        skipped = {"spec"} if _is_pod_spec(spec) else set()
        root = {"metadata", "status"} if each is field else set()
        inside = [
            (child, count, _name(child) or word) for key, child in each.members() if key not in skipped | root | _LABELS
        ]
        waiting.extend(reversed(inside))


def _walk(field: Field) -> Iterator[Field]:
    """Yield an object and every mapping and list in it, but labels and the object's metadata and status."""
    waiting = [field]
    while waiting:
        each = waiting.pop()
        yield each
        if isinstance(each.value, list):
            inside = list(each.elements())
        else:
            out = _LABELS | {"metadata", "status"} if each is field else _LABELS
            inside = [child for key, child in each.members() if key not in out]
        waiting.extend(child for child in inside if isinstance(child.value, dict | list))


def _is_pod_spec(field: Field) -> bool:
    if not isinstance(field.value, dict):
        return False
    containers = field.value.get("containers")
    return isinstance(containers, list) and bool(containers) and all(isinstance(each, dict) for each in containers)


def _asks_gpus(resources: Field) -> bool:
    if not isinstance(resources.value, dict):
        return False
    amounts = (resources.value.get(name) for name in _AMOUNTS)
    named = ((name, amount) for each in amounts if isinstance(each, dict) for name, amount in each.items())
    return any(is_gpu(name) and not is_zero(amount) for name, amount in named)


def _pod(beside: Field) -> Field:
    """Return a pod of one container with the `resources` of a mapping, and its node selection."""
    name = Field(beside.document, "main", beside.path, root=beside.root, label=beside.label)
    container = composed(beside, {"name": name, "resources": beside.get("resources")})
    kept = {key: beside.get(key) for key in ("nodeSelector", "affinity", "tolerations")}
    spec = composed(beside, {**kept, "containers": composed(beside, [container])})
    return composed(beside, {"spec": spec})


def _times(field: Field, count: int) -> int:
    """Return a count times the numbers that stand in a mapping."""
    replicas, least, hosts = field.get("replicas"), field.get("minReplicas"), field.get("numOfHosts")
    if _is_scalar(replicas):
        count *= replicas.integer()
    elif _is_scalar(least):
        count *= max(1, least.integer())
    if _is_scalar(hosts):
        count *= hosts.integer()
    return 0 if field.get("suspend").value is True else count


def _is_scalar(field: Field) -> bool:
    return field.present and not isinstance(field.value, dict | list)


def _name(field: Field) -> str:
    if not isinstance(field.value, dict):
        return ""
    name = field.value.get("name", field.value.get("groupName"))
    return name if isinstance(name, str) else ""
