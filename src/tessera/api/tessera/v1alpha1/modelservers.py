"""ModelServer objects (tessera.dev/v1alpha1): a model server, its part of a GPU and its replicas.

The spec is `core.serving.modelserver`'s; see docs/model-server.md.
"""

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from tessera.api import documents
from tessera.api.documents import Document
from tessera.api.fields import Field, in_place, refused_form
from tessera.api.kubernetes.conditions import Conditions, Finding, settled
from tessera.api.kubernetes.modelpods import DeploymentStatus, read_woken
from tessera.api.tessera.v1alpha1.gpupolicies import ValidationRule
from tessera.api.tessera.v1alpha1.objects import API_VERSION, Tally, subject_of
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.sharing import GPU_RESOURCE
from tessera.core.serving import modelserver as core
from tessera.core.serving.annotations import WAKE
from tessera.core.serving.render import KIND, StartedReplicas
from tessera.core.serving.render.engines import program
from tessera.core.serving.render.pods import pod_template
from tessera.errors import InvalidInput, shown

__all__ = [
    "API_VERSION",
    "KIND",
    "RULES",
    "ModelServerStatus",
    "ObservedServer",
    "missing_rights",
    "observed",
    "read_model_server",
    "refused_status",
    "server_status",
    "started_replicas",
    "with_pods",
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


_ACCOUNT = re.compile(r"system:serviceaccount:([-a-z0-9]{1,63}):([-a-z0-9.]{1,253})")
"""The user in the API server's message about a forbidden request."""
_ROLE: Final = "tessera-model-servers"
"""The chart's ClusterRole and, by convention, the RoleBindings of it."""


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

    Anybody who may patch it can annotate it: what runs stays repaired and scaled.
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
        raise InvalidInput(subject, found=found, expected=f"a {KIND} of {API_VERSION}")
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
        raise InvalidInput(f"{subject}: {path}", found="it ends with a line end", hint="remove that")
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
        found = "it is 0, and metric queue-time is measured in pods, so that nothing would begin the first"
        raise InvalidInput(f"{subject}: spec.replicas.min", found=found, hint="set at least 1")
    scaled = (spec.replicas.max_replicas or max(1, spec.replicas.min_replicas)) > spec.replicas.min_replicas
    if scaled and spec.engine == "triton" and spec.autoscaling.metric == "tessera" and spec.autoscaling.slots is None:
        raise InvalidInput(
            f"{subject}: spec.autoscaling.slots",
            found="it is not set, and Triton does not report it",
            hint="give the instances of the model times their largest batch, or use metric queue-time",
        )
    for product in spec.gpu.models:
        in_place(f"{subject}: spec.gpu.models", partial(model, product))


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


class _DeploymentCondition(msgspec.Struct, frozen=True):
    type: str
    status: str
    message: str = ""


class _DeploymentStatus(DeploymentStatus, frozen=True, rename="camel"):
    conditions: tuple[_DeploymentCondition, ...] = ()


class _DeploymentSpec(msgspec.Struct, frozen=True):
    replicas: int = 1


class _DeploymentMetadata(msgspec.Struct, frozen=True):
    generation: int = 0


class _Deployment(msgspec.Struct, frozen=True):
    metadata: _DeploymentMetadata = _DeploymentMetadata()
    spec: _DeploymentSpec = _DeploymentSpec()
    status: _DeploymentStatus = _DeploymentStatus()


class ObservedServer(msgspec.Struct, frozen=True, kw_only=True):
    """The observation of a valid server in the cluster."""

    replicas: int = 0
    ready: int = 0
    desired: int = 0
    updated: int = 0
    """Replicas of the present spec."""
    rolling: bool = False
    """Whether others are there, or the Deployment controller has not observed the present spec."""
    scales_to_zero: bool = False
    """Whether it may scale to zero."""
    min_replicas: int = 0
    """Fewest of its spec; of those that start one by one fewer are desired at first."""
    problems: tuple[str, ...] = ()
    """Why objects are not as desired, each in a sentence without full stop."""
    unserved: str = ""
    """Why its Deployment is not as desired, so that ready replicas, if any, are not those of the spec."""
    notes: tuple[str, ...] = ()
    """What was skipped, and why."""


def observed(
    deployment: Mapping[str, Any],
    problems: tuple[str, ...],
    notes: tuple[str, ...],
    unserved: str = "",
    *,
    generation: int = 0,
) -> ObservedServer:
    """Return the observation of a server.

    Args:
        deployment: its Deployment; empty for none.
        problems: why objects are not as desired.
        notes: what was left out, and why.
        unserved: the one of the problems that is of the Deployment; empty for none.
        generation: of the Deployment as it was last written, which may be later than this one.

    """
    found = msgspec.convert(deployment, _Deployment)
    # Pods rejected by admission, Pod Security or a quota; and a rollout that does not complete.
    failing = {("ReplicaFailure", "True"), ("Progressing", "False")}
    failed = tuple(f"Deployment: {e.message}" for e in found.status.conditions if (e.type, e.status) in failing)
    if not deployment:
        unserved = unserved or "it has no Deployment yet"
    desired = found.spec.replicas if deployment else 0
    generation = max(generation, found.metadata.generation)
    unseen = (found.status.observed_generation or 0) < generation
    return ObservedServer(
        replicas=found.status.replicas,
        ready=found.status.ready_replicas,
        desired=desired,
        updated=0 if unseen else found.status.updated_replicas,
        rolling=desired > 0 and found.status.rolling(generation),
        problems=(*problems, *failed),
        unserved=unserved or "; ".join(failed),
        notes=notes,
    )


def started_replicas(deployment: Mapping[str, Any]) -> StartedReplicas:
    """Return how far the replicas of a Deployment are; an empty one stands for none.

    A rollout starts pods of its own, and those of before may still be ready: none counts as ready then.
    """
    if not deployment:
        return StartedReplicas(0, 0)
    found = msgspec.convert(deployment, _Deployment)
    rolling = found.status.rolling(found.metadata.generation)
    return StartedReplicas(found.spec.replicas, 0 if rolling else found.status.ready_replicas)


def server_status(
    former: ModelServerStatus, generation: int, observed: ObservedServer, now: dt.datetime
) -> ModelServerStatus:
    """Return the status of a valid server; the same observation gives the same status."""
    desired = max(observed.desired, observed.min_replicas) if observed.desired else 0
    message = "; ".join(observed.problems or observed.notes or ("all objects are as desired",))
    applied = (
        Finding("Applied", "False", "Failed", message)
        if observed.problems
        else Finding("Applied", "True", "Done", message)
    )
    serving = f"{observed.ready} of {desired} replicas serve"
    if observed.scales_to_zero and not desired:
        serving = "idle, so no replica serves and requests are refused; `tessera wake` starts one"
    if observed.unserved:
        serving = f"{observed.ready} of {desired} replicas serve, not as specified: {observed.unserved}"
        ready = Finding("Ready", "False", "DeploymentNotApplied", serving)
    elif observed.rolling:
        rolled = f"{min(observed.updated, desired)} of {desired} replicas are of the present spec"
        hint = "`tessera explain pod` shows why one is pending, `kubectl describe pod` why one does not start"
        ready = Finding("Ready", "False", "RollingOut", f"{rolled}, {observed.ready} serve; {hint}")
    elif not desired and not observed.scales_to_zero:
        cause = "its Deployment was scaled to zero by hand, and its autoscaler does not change that"
        hint = "`kubectl scale deployment --replicas=1` of its name starts one"
        ready = Finding("Ready", "False", "ScaledToZeroByHand", f"{cause}: {hint}")
    elif observed.ready >= desired:
        ready = Finding("Ready", "True", "Serving" if desired else "ScaledToZero", serving)
    else:
        ready = Finding("Ready", "False", "Starting", f"{serving}; `tessera explain pod` shows why one is pending")
    conditions = (Finding("Accepted", "True", "Valid", "the spec is valid"), applied, ready)
    return ModelServerStatus(
        observed_generation=generation,
        replicas=observed.replicas,
        ready_replicas=observed.ready,
        desired_replicas=desired,
        conditions=settled(former.conditions, map(_shortened, conditions), now, generation=generation),
    )


def refused_status(
    former: ModelServerStatus, generation: int, reason: str, problem: str, now: dt.datetime
) -> ModelServerStatus:
    """Return the status of an invalid server; its running objects are left alone."""
    found = (_shortened(Finding("Accepted", "False", reason, problem)),)
    conditions = settled(former.conditions, found, now, generation=generation)
    return msgspec.structs.replace(former, observed_generation=generation, conditions=conditions)


def missing_rights(namespace: str, refusal: str) -> str:
    """Return which RoleBinding a namespace lacks and how to create it.

    Args:
        namespace: where the controller lacks permissions.
        refusal: the API server's message, with the controller's account.

    """
    found = _ACCOUNT.search(refusal)
    account = ":".join(found.groups()) if found else "tessera-system:tessera-controller"
    command = f"kubectl create rolebinding {_ROLE} -n {namespace} --clusterrole={_ROLE} --serviceaccount={account}"
    return (
        f"namespace {namespace} has no RoleBinding of ClusterRole {_ROLE} for {account}, or the role lacks a right: "
        f"`{command}` creates it; {refusal}"
    )


def _shortened(finding: Finding) -> Finding:
    return Finding(finding.type, finding.status, finding.reason, finding.message[:_MESSAGE_CHARACTERS])
