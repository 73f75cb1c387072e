"""ModelServer objects (tessera.dev/v1alpha1): a model server, its part of a GPU and its replicas.

The spec is `core.serving.modelserver`'s; see docs/model-server.md.
"""

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from tessera.api.fields import in_place, refused_form
from tessera.api.kubernetes.conditions import Conditions, Finding, updated_conditions
from tessera.api.kubernetes.modelpods import read_woken
from tessera.api.tessera.v1alpha1.gpupolicies import ValidationRule
from tessera.api.tessera.v1alpha1.objects import API_VERSION, Tally, subject_of
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.sharing import GPU_RESOURCE
from tessera.core.serving import modelserver as core
from tessera.core.serving.annotations import KIND, WAKE
from tessera.core.serving.serverstatus import ServerProgress, StatusFinding, desired_replicas, status_findings
from tessera.errors import InvalidInput, shown

__all__ = [
    "API_VERSION",
    "KIND",
    "RULES",
    "ModelServerStatus",
    "read_model_server",
    "refused_status",
    "server_status",
    "without_bad_wake",
]

_MESSAGE_CHARACTERS: Final = 2048
_MODEL_SOURCES: Final = ("cache", "claim", "nfs", "hostPath")
_MAY_HAVE_LINES: Final = frozenset({"args", "command", "value", "annotations"})
_VALUE_SOURCES: Final = ("configMapKeyRef", "secretKeyRef", "fieldRef", "resourceFieldRef")


RULES: Final[Mapping[type[msgspec.Struct], tuple[ValidationRule, ...]]] = {
    core.ModelLocation: (
        ValidationRule(
            f"[{', '.join(f'has(self.{each})' for each in _MODEL_SOURCES)}].exists_one(each, each)",
            "say where the model is in exactly one way: cache, claim, nfs or hostPath",
            lambda each: sum(one is not None for one in (each.cache, each.claim, each.nfs, each.host_path)) == 1,
        ),
        ValidationRule(
            "!(has(self.cache) && has(self.name))",
            "a cached model has the name of its ModelCache: remove name",
            lambda each: each.cache is None or each.name is None,
        ),
        ValidationRule(
            "!has(self.hostPath) || !self.hostPath.matches('(^|/)[.][.](/|$)')",
            "Kubernetes takes no .. in a hostPath: write the folder itself",
            lambda each: each.host_path is None or ".." not in each.host_path.split("/"),
        ),
    ),
    core.GpuRequest: (
        ValidationRule(
            "has(self.memoryGiB) != has(self.resource)",
            "say the part of a GPU in exactly one way: memoryGiB or resource",
            lambda each: (each.memory_gib is None) != (each.resource is None),
        ),
        ValidationRule(
            "!has(self.compute) || has(self.memoryGiB)",
            "compute requires memoryGiB",
            lambda each: each.compute is None or each.memory_gib is not None,
        ),
        ValidationRule(
            f"!has(self.count) || self.count == 1 || (has(self.resource) && self.resource == '{GPU_RESOURCE}')",
            f"a process sees one MIG instance: set count to 1, or resource to {GPU_RESOURCE}",
            lambda each: each.count == 1 or each.resource == GPU_RESOURCE,
        ),
    ),
    core.ReplicaSpec: (
        ValidationRule(
            "!has(self.max) || !has(self.min) || self.min <= self.max",
            "min must be at most max",
            lambda each: each.max_replicas is None or each.min_replicas <= each.max_replicas,
        ),
    ),
    core.Autoscaling: (
        ValidationRule(
            "!has(self.autoscaler) || self.autoscaler != 'KEDA' || (has(self.metric) && self.metric == 'queue-time')",
            "KEDA reads Prometheus: with it metric must be queue-time",
            lambda each: each.autoscaler != "KEDA" or each.metric == "queue-time",
        ),
    ),
    core.EnvironmentVariable: (
        ValidationRule(
            "!(has(self.value) && has(self.valueFrom))",
            "a variable has value or valueFrom, not both",
            lambda each: each.value is None or each.value_from is None,
        ),
    ),
    core.EnvironmentSource: (
        ValidationRule(
            f"[{', '.join(f'has(self.{each})' for each in _VALUE_SOURCES)}].exists_one(each, each)",
            f"say where the value is in exactly one way: {', '.join(_VALUE_SOURCES[:-1])} or {_VALUE_SOURCES[-1]}",
            lambda each: sum(getattr(each, name) is not None for name in each.__struct_fields__) == 1,
        ),
    ),
}
"""Validation beyond types."""

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?")
"""A Service's name, short enough for those of its pods. Source: kubernetes `pkg/apis/core/validation` (DNS-1035)."""


class ModelServerStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The state of the server."""

    observed_generation: Tally = 0
    """Generation of the spec that this status is for."""
    replicas: Tally = 0
    """Number of pods."""
    ready_replicas: Tally = 0
    """Number of ready pods."""
    desired_replicas: Tally = 0
    """Desired pods, fixed or by the autoscaler."""
    conditions: Conditions = ()
    """`Accepted`: it is valid; `Applied`: all objects are as desired; `Ready`: all replicas serve, by this spec."""


def without_bad_wake(obj: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Return an object without the annotation that wakes it where that is not a time, and why; else empty.

    Each user who may patch it can annotate it: what runs stays repaired and scaled.
    """
    metadata = obj["metadata"]
    annotations = dict(metadata.get("annotations") or {})
    try:
        read_woken(annotations)
    except InvalidInput as error:
        del annotations[WAKE]
        return {**obj, "metadata": {**metadata, "annotations": annotations}}, str(error)
    return obj, ""


class _Metadata(msgspec.Struct, frozen=True):
    name: str
    namespace: str = ""
    uid: str = ""
    annotations: dict[str, str] | None = None


class _Object(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: core.ModelServerSpec


def read_model_server(obj: Mapping[str, Any], source: str = "") -> core.ModelServer:
    """Return a model server, parsed.

    Args:
        obj: the object.
        source: where it was found, for errors: `server.yaml, document 1`.

    Raises:
        InvalidInput: an unknown field, a wrong type, a rule that does not hold, an unknown GPU model.

    """
    place = f"{source}: " if source else ""
    if not obj.get("kind"):
        hint = f"leave it out, or give a {KIND} of {API_VERSION}"
        raise InvalidInput(source or "a manifest", found="it has no kind", hint=hint)
    subject = f"{place}{subject_of(KIND, obj)}"
    if (obj.get("apiVersion"), obj.get("kind")) != (API_VERSION, KIND):
        found = f"{shown(obj.get('kind'))} of {shown(obj.get('apiVersion'))}"
        hint = f"give a manifest of kind {KIND} and apiVersion {API_VERSION}"
        raise InvalidInput(subject, found=found, expected=f"a {KIND} of {API_VERSION}", hint=hint)
    try:
        read = msgspec.convert(obj, _Object)
    except msgspec.ValidationError as error:
        hint = f"see `kubectl explain {KIND.lower()}.spec` for {API_VERSION}"
        raise refused_form(error, obj, subject, hint, form=_Object) from error
    if not _NAME.fullmatch(read.metadata.name):
        accepted = "at most 52 lower-case letters, digits and hyphens that begin with a letter"
        accepted += ", as names of pods and of a Service"
        raise InvalidInput(f"{subject}: metadata.name", found=shown(read.metadata.name), expected=accepted)
    _check(read.spec, subject)
    identity = read.metadata
    woken_s = in_place(f"{subject}: metadata.annotations", partial(read_woken, identity.annotations or {}))
    return core.ModelServer(
        name=identity.name, namespace=identity.namespace, uid=identity.uid, woken_s=woken_s, spec=read.spec
    )


def _ruled_parts(spec: core.ModelServerSpec) -> Iterator[tuple[str, msgspec.Struct]]:
    """Yield the parts of a spec that have rules, with their paths."""
    yield "model", spec.model
    yield "gpu", spec.gpu
    yield "replicas", spec.replicas
    yield "autoscaling", spec.autoscaling
    for place, each in enumerate(spec.env):
        yield f"env[{place}]", each
        if each.value_from is not None:
            yield f"env[{place}].valueFrom", each.value_from


def _ends_of_lines(value: object, path: str) -> Iterator[str]:
    """Yield the fields with a line end at their end, but for those that may have lines.

    A `$` of a pattern allows one in Python, where the API server's does not.
    """
    if isinstance(value, str) and value.endswith("\n"):
        yield path
    elif isinstance(value, dict):
        for name, each in value.items():
            if name not in _MAY_HAVE_LINES:
                yield from _ends_of_lines(each, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _ends_of_lines(each, f"{path}[{number}]")


def _check(spec: core.ModelServerSpec, subject: str) -> None:
    for path in _ends_of_lines(msgspec.to_builtins(spec), "spec"):
        raise InvalidInput(f"{subject}: {path}", found="it ends with a newline", hint="remove it")
    for path, record in _ruled_parts(spec):
        for rule in RULES[type(record)]:
            if not rule.holds(record):
                written = msgspec.json.encode(record).decode()
                raise InvalidInput(f"{subject}: spec.{path}", found=f"it is {written}", hint=rule.message)
    names = [each.name for each in spec.env]
    for place, name in enumerate(names):
        if (first := names.index(name)) < place:
            found = f"{shown(name)} is the name of env[{first}] too"
            raise InvalidInput(f"{subject}: spec.env[{place}].name", found=found, hint="remove one of the two")
    if spec.replicas.min_replicas == 0 and spec.autoscaling.metric == "queue-time":
        found = "0 replicas need metric tessera: queue-time is measured in pods, so nothing would start the first one"
        raise InvalidInput(f"{subject}: spec.replicas.min", found=found, hint="set at least 1")
    if (
        spec.replicas.scaled
        and spec.engine == "triton"
        and spec.autoscaling.metric == "tessera"
        and spec.autoscaling.slots is None
    ):
        raise InvalidInput(
            f"{subject}: spec.autoscaling.slots",
            found="it is not set, and Triton does not report it",
            hint="give the instances of the model times their largest batch, or use metric queue-time",
        )
    for product in spec.gpu.models:
        in_place(f"{subject}: spec.gpu.models", partial(model, product))


def server_status(
    former: ModelServerStatus, generation: int, observed: ServerProgress, now: dt.datetime
) -> ModelServerStatus:
    """Return the status of a valid server; the same observation gives the same status."""
    deployment, conditions = observed.deployment, status_findings(observed)
    return ModelServerStatus(
        observed_generation=generation,
        replicas=0 if deployment is None else deployment.replicas,
        ready_replicas=0 if deployment is None else deployment.ready,
        desired_replicas=desired_replicas(observed),
        conditions=updated_conditions(former.conditions, map(_condition, conditions), now, generation=generation),
    )


def refused_status(
    former: ModelServerStatus, generation: int, reason: str, problem: str, now: dt.datetime
) -> ModelServerStatus:
    """Return the status of an invalid server; its running objects are left alone."""
    found = (_condition(StatusFinding("Accepted", "False", reason, problem)),)
    conditions = updated_conditions(former.conditions, found, now, generation=generation)
    return msgspec.structs.replace(former, observed_generation=generation, conditions=conditions)


def _condition(finding: StatusFinding) -> Finding:
    return Finding(finding.type, finding.status, finding.reason, finding.message[:_MESSAGE_CHARACTERS])
