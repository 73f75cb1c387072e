"""ModelCache and NodeModels objects (tessera.dev/v1alpha1): models that nodes keep on their local disk.

A ModelCache selects nodes and names their desired model, and its status summarizes them. Each of these nodes has a
NodeModels object, with the desired models from the controller and the node's models from the agent
(docs/model-cache.md).
"""

import base64
import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from tessera.api.fields import refused_form
from tessera.api.kubernetes.conditions import Conditions, updated_conditions
from tessera.api.kubernetes.times import read_time, time_text
from tessera.api.tessera.v1alpha1.gpupolicies import LabelSelector
from tessera.api.tessera.v1alpha1.objects import (
    API_VERSION,
    Metadata,
    Reason,
    Tally,
    coverage,
    object_of_node,
    of_this_version,
    read_object,
    reason_text,
    subject_of,
)
from tessera.core.storage.models import nodemodels as core
from tessera.core.storage.models.syncplans import Pack
from tessera.core.storage.models.verifications import ChecksumRule
from tessera.core.workload.objectnames import SUBDOMAIN, LabelName, is_label
from tessera.core.workload.resources import MODEL_RESOURCE
from tessera.errors import InvalidInput

__all__ = [
    "API_VERSION",
    "MODEL_CACHE",
    "NODE_MODELS",
    "ModelCache",
    "ModelCacheSpec",
    "ModelCacheStatus",
    "NodeModelsSpec",
    "NodeModelsStatus",
    "cache_status",
    "new_node_models",
    "node_spec",
    "node_status",
    "read_credentials",
    "read_model_cache",
    "read_node_models",
]

MODEL_CACHE, NODE_MODELS = "ModelCache", "NodeModels"
_MOST_OF_NODE = core.MOST_OF_NODE
_WEEK_S = 604_800
_VARIABLES = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN"),
    *("GOOGLE_CREDENTIALS", "HF_TOKEN"),
)
_BOUND = ("AZURE_STORAGE_SERVICE_ENDPOINT", "HF_ENDPOINT")
"""Endpoints that may get the credentials beside them."""

_Source = Annotated[str, msgspec.Meta(max_length=1024, pattern="^[a-z0-9]+://[!-~]+$")]
_Address = Annotated[str, msgspec.Meta(max_length=256, pattern="^(https?://[!-~]+)?$")]
_Region = Annotated[str, msgspec.Meta(max_length=64, pattern="^[-a-z0-9]*$")]
_Secret = Annotated[str, msgspec.Meta(max_length=253, pattern=f"^({SUBDOMAIN})?$")]
_Revision = Annotated[str, msgspec.Meta(max_length=64, pattern="^([0-9a-f]{64})?$")]
_Interval = Annotated[int, msgspec.Meta(ge=0, le=31_536_000)]
_Patterns = Annotated[
    tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=256)], ...], msgspec.Meta(max_length=32)
]
_Priority = Annotated[int, msgspec.Meta(ge=-1_000_000, le=1_000_000)]
_Keep = Annotated[int, msgspec.Meta(ge=1, le=16)]
_Peer = Annotated[str, msgspec.Meta(max_length=64, pattern="^([0-9.]+|\\[[0-9a-f:]+\\]):[0-9]+$|^$")]
_Moment = Annotated[str, msgspec.Meta(max_length=32)]
_Model = TypeVar("_Model")


class ModelCacheSpec(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """The model, and the nodes that should have it. Pods request it by the limit `models.tessera.dev/NAME: 1`."""

    source: _Source
    """The source: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX`, `hf://OWNER/NAME@REVISION`,
    `https://HOST/FOLDER/`, or `file:///FOLDER` below a folder of the nodes that the chart's value
    `agent.modelSourceFolder` names. No credentials in it."""
    endpoint: _Address = ""
    """Endpoint of the service if it is none of AWS, Google, Azure or the Hub: `https://rgw.example.com`."""
    region: _Region = ""
    """Region of the bucket; `us-east-1` where it is left out."""
    secret: _Secret = ""
    """Secret of tessera-system with credentials: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, where needed,
    AWS_SESSION_TOKEN; GOOGLE_CREDENTIALS, the JSON of a service account; AZURE_STORAGE_ACCOUNT with AZURE_STORAGE_KEY
    or AZURE_STORAGE_SAS_TOKEN; or HF_TOKEN. A token for another endpoint than the service's own needs that endpoint
    beside it, as AZURE_STORAGE_SERVICE_ENDPOINT or HF_ENDPOINT. The agent may read those that the chart's value
    `agent.modelSecrets` names."""
    node_selector: LabelSelector = LabelSelector()
    """The nodes; those without Tessera's agent never count."""
    revision: _Revision = ""
    """The desired revision, as shown in the status; left out for the source's current one. One on a node's disk is
    used from there, so that a rollback takes no time."""
    interval_seconds: _Interval = 0
    """Interval of checks of the source for changes; 0 for once."""
    include: _Patterns = ()
    """Only files that match one of these: `*.safetensors`, `original/*`."""
    exclude: _Patterns = ()
    """No files that match one of these."""
    priority: _Priority = 0
    """Models of higher priority are fetched first, and evict others if the disk is full."""
    pinned: bool = False
    """Whether it stays on the disk, whatever the priority of others."""
    keep: _Keep = 2
    """Revisions that stay on a node's disk, including the current one."""
    pack: Pack = "Never"
    """Whether nodes keep a revision as one read-only image instead of files: `Always`, `Never`, or `Auto` if it has
    at least 1,000 files of less than 256 KiB on average and the kernel mounts EROFS. What is on the disk keeps its
    form."""
    verification: ChecksumRule = "IfGiven"
    """Which files nodes accept: also those for which the source gives no checksum (`IfGiven`), or those that one
    verified alone (`Required`). With `Required` a revision that has others is withheld from new pods, and a source
    without checksums is an error."""
    verify_interval_seconds: _Interval = _WEEK_S
    """Interval in which nodes compare each revision on their disks with its digests; 0 for never. A damaged revision is
    withdrawn from new pods, and what is damaged of it is fetched again."""


class ModelProblemFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Why a node does not have the model, or not its source's current revision."""

    node: Annotated[str, msgspec.Meta(max_length=253)]
    reason: Reason


class ModelCacheStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The state of the nodes."""

    observed_generation: Tally = 0
    """Generation of the spec that this status is for."""
    nodes: Tally = 0
    """Nodes that are selected and run Tessera's agent."""
    ready: Tally = 0
    """Nodes that have the model."""
    fetching: Tally = 0
    """Nodes that are fetching it, or a new revision of it."""
    revision: _Revision = ""
    """The revision of most of these nodes."""
    on_revision: Tally = 0
    """Nodes that have that one."""
    bytes: Tally = 0
    """Of that revision."""
    unverified_bytes: Tally = 0
    """Of that revision's files for which the source has no checksum."""
    containers: Tally = 0
    """Containers that use it."""
    pending_pods: Tally = 0
    """Pending pods that request it."""
    problems: Annotated[tuple[ModelProblemFields, ...], msgspec.Meta(max_length=16)] = ()
    """The first of them."""
    conditions: Conditions = ()
    """`Accepted`: it is valid; `Ready`: all of its nodes have the model."""


class ModelCache(msgspec.Struct, frozen=True):
    """A ModelCache object."""

    metadata: Metadata
    spec: ModelCacheSpec
    status: ModelCacheStatus = ModelCacheStatus()


class DesiredModelFields(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={
        "interval_s": "intervalSeconds",
        "verify_interval_s": "verifyIntervalSeconds",
        "has_pending_pods": "hasPendingPods",
    },
    omit_defaults=True,
):
    """A model that the node should have; the fields are those of its ModelCache."""

    name: LabelName
    source: _Source
    endpoint: _Address = ""
    region: _Region = ""
    secret: _Secret = ""
    revision: _Revision = ""
    interval_s: _Interval = 0
    include: _Patterns = ()
    exclude: _Patterns = ()
    priority: _Priority = 0
    pinned: bool = False
    keep: _Keep = 2
    pack: Pack = "Never"
    verification: ChecksumRule = "IfGiven"
    verify_interval_s: _Interval = 0
    has_pending_pods: bool = False


class NodeModelsSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The desired models of the node, by the controller."""

    models: Annotated[tuple[DesiredModelFields, ...], msgspec.Meta(max_length=_MOST_OF_NODE)] | None = None
    """In fetching order; left out until the controller has decided, so that nothing is removed."""


class ObservedModelFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The state of a model on the node."""

    name: LabelName
    state: Literal["Missing", "Fetching", "Ready", "Failed"]
    """Result of the last check of the source, or that it is running; with a revision the model is there in any case."""
    revision: _Revision = ""
    """What new pods get."""
    bytes: Tally = 0
    files: Tally = 0
    unverified_bytes: Tally = 0
    """Of the files for which the source has no checksum."""
    verified_at: _Moment = ""
    """When the revision was last compared with its digests, RFC 3339 in UTC; when it was fetched counts."""
    fetched_bytes: Tally = 0
    """Of the current fetch."""
    total_bytes: Tally = 0
    containers: Tally = 0
    """Containers that use it, in any revision."""
    identity: Annotated[str, msgspec.Meta(max_length=16)] = ""
    """Of the last fetched source."""
    checked_at: _Moment = ""
    """When the source was last observed to have this revision, RFC 3339 in UTC."""
    failed_at: _Moment = ""
    failures: Tally = 0
    """In a row."""
    reason: Reason = ""


class NodeModelsStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The models of the node, as its agent reports them."""

    models: Annotated[tuple[ObservedModelFields, ...], msgspec.Meta(max_length=_MOST_OF_NODE)] = ()
    removing: Annotated[tuple[LabelName, ...], msgspec.Meta(max_length=_MOST_OF_NODE)] = ()
    """Models on the disk that are not desired any more; they are removed when no pod uses them."""
    folder: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    """The folder of its models."""
    free_bytes: Tally = 0
    """Free bytes there, above the reserve."""
    reason: Reason = ""
    """Why it cannot have any model, or no further one."""
    peer: _Peer = ""
    """Address and port at which it serves chunks of models to other nodes; left out if it does not."""


_Rows = Annotated[tuple[dict[str, Any], ...], msgspec.Meta(max_length=_MOST_OF_NODE)]
"""Models as any version writes them; each is read alone."""


class _NodeSpec(msgspec.Struct, frozen=True):
    models: _Rows | None = None


class _NodeStatus(msgspec.Struct, frozen=True):
    models: _Rows = ()
    reason: Reason = ""
    peer: _Peer = ""


class _NodeObject(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()


def read_model_cache(
    obj: Mapping[str, Any], nodes: frozenset[str] = frozenset()
) -> tuple[ModelCache, core.DesiredCache]:
    """Return a ModelCache, parsed.

    Args:
        obj: the object.
        nodes: the nodes that it selects.

    Raises:
        InvalidInput: an unknown field, a wrong type, a name that no resource can have, credentials in an address.

    """
    found, subject = read_object(MODEL_CACHE, obj, ModelCache), subject_of(MODEL_CACHE, obj)
    name = found.metadata.name
    if not is_label(name):
        raise InvalidInput(
            subject,
            found="its name is not a label of RFC 1123",
            hint=f"use at most 63 of a-z, 0-9 and -, as in {MODEL_RESOURCE}llama",
        )
    spec = found.spec
    for key, address in (("source", spec.source), ("endpoint", spec.endpoint)):
        if "@" in address.partition("://")[2].partition("/")[0]:
            raise InvalidInput(
                f"{subject}: spec.{key}",
                found="credentials in an address can be read by everybody who sees this object",
                hint="put them in a Secret of tessera-system, named by spec.secret",
            )
    rows = {each: getattr(spec, each) for each in ModelCacheSpec.__struct_fields__}
    rows["interval_s"] = rows.pop("interval_seconds")
    rows["verify_interval_s"] = rows.pop("verify_interval_seconds")
    return found, core.DesiredCache(msgspec.convert({"name": name, **rows}, core.DesiredModel), nodes)


def read_node_models(obj: Mapping[str, Any], *, ready: bool = True) -> core.NodeModels:
    """Return the desired models of a node and its report.

    A model that another version wrote otherwise is among the unknown ones; the report of one is a failure.

    Raises:
        InvalidInput: the object is malformed.

    """
    with of_this_version(NODE_MODELS, obj):
        found = msgspec.convert(obj, _NodeObject)
        desired, unknown = _each(found.spec.models or (), _desired)
        observed, unread = _each(found.status.models, _observed)
    failed = (core.ObservedModel(name=name, state="Failed", reason=reason) for name, reason in unread.items())
    return core.NodeModels(
        name=found.metadata.name,
        ready=ready,
        desired=None if found.spec.models is None else desired,
        unknown=unknown,
        observed=(*observed, *failed),
        reason=found.status.reason,
        peer=found.status.peer,
    )


def _each(rows: _Rows, read: Callable[[dict[str, Any]], _Model]) -> tuple[tuple[_Model, ...], dict[str, str]]:
    """Return the models that this version can read, and the names of the others, each with the reason.

    Raises:
        ValueError: one has no name that this version knows.

    """
    found, unknown = list[_Model](), dict[str, str]()
    for row in rows:
        try:
            found.append(read(row))
        except ValueError as error:
            name = msgspec.convert(row.get("name"), LabelName)
            fix = "upgrade Tessera on this node, or take the value out of the ModelCache"
            unknown[name] = str(refused_form(error, row, f"model {name}", fix))
    return tuple(found), unknown


def _desired(row: dict[str, Any]) -> core.DesiredModel:
    return msgspec.convert(msgspec.convert(row, DesiredModelFields), core.DesiredModel, from_attributes=True)


def _observed(row: dict[str, Any]) -> core.ObservedModel:
    rows = msgspec.structs.asdict(msgspec.convert(row, ObservedModelFields))
    for key in ("verified", "checked", "failed"):
        moment = rows.pop(f"{key}_at")
        rows[f"{key}_s"] = read_time(moment) if moment else 0.0
    return core.ObservedModel(**rows)


def new_node_models(node: str, uid: str) -> dict[str, Any]:
    """Return a new object for a node, owned by the Node."""
    return object_of_node(NODE_MODELS, node, uid)


def node_spec(desired: Iterable[core.DesiredModel]) -> dict[str, Any]:
    """Return the spec of a NodeModels."""
    fields = [msgspec.convert(each, DesiredModelFields, from_attributes=True) for each in desired]
    return {"models": msgspec.to_builtins(fields)}


def node_status(
    observed: Iterable[core.ObservedModel],
    *,
    folder: str,
    free_bytes: int,
    reason: str,
    peer: str = "",
    removing: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the status of a NodeModels."""
    fields = [_fields(each) for each in observed]
    text = reason_text(reason)
    status = {"models": msgspec.to_builtins(fields), "folder": folder[:1024], "freeBytes": free_bytes, "reason": text}
    leaving = sorted(removing)[:_MOST_OF_NODE]
    return {**status, **({"peer": peer} if peer else {}), **({"removing": leaving} if leaving else {})}


def read_credentials(secret: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables with credentials in a Secret, and their endpoints; other keys are ignored.

    Raises:
        InvalidInput: it has none of them, or one that is not a text.

    """
    name = str((secret.get("metadata") or {}).get("name"))
    data = secret.get("data") or {}
    try:
        found = {
            key: base64.b64decode(str(data[key]), validate=True).decode()
            for key in (*_VARIABLES, *_BOUND)
            if key in data
        }
    except ValueError as error:  # of base64, and bytes that are not UTF-8
        raise InvalidInput(f"Secret {name}", found="a value is not text", hint="write credentials as text") from error
    lines = (value if key != "GOOGLE_CREDENTIALS" else "".join(value.split()) for key, value in found.items())
    if found.keys() <= set(_BOUND) or not all(each.isprintable() for each in lines):
        raise InvalidInput(
            f"Secret {name}",
            found="it has none of the keys, or a value of several lines",
            hint=f"give one line for each of {', '.join(_VARIABLES)}",
        )
    return found


def cache_status(cache: ModelCache, summary: core.ModelSummary, now: dt.datetime) -> ModelCacheStatus:
    """Return the status of a model; the same summary gives the same status."""
    generation = cache.metadata.generation
    return ModelCacheStatus(
        observed_generation=generation,
        nodes=summary.nodes,
        ready=summary.ready,
        fetching=summary.fetching,
        revision=summary.revision,
        on_revision=summary.on_revision,
        bytes=summary.bytes,
        unverified_bytes=summary.unverified_bytes,
        containers=summary.containers,
        pending_pods=summary.pending_pods,
        problems=tuple(ModelProblemFields(node=one.node, reason=reason_text(one.reason)) for one in summary.problems),
        conditions=updated_conditions(
            cache.status.conditions,
            coverage(summary.nodes, summary.ready, ("Fetching", "the model", "the model")),
            now,
            generation=generation,
        ),
    )


def _fields(model: core.ObservedModel) -> ObservedModelFields:
    rows = msgspec.structs.asdict(model)
    for key in ("verified", "checked", "failed"):
        moment = rows.pop(f"{key}_s")
        rows[f"{key}_at"] = time_text(moment) if moment else ""
    return ObservedModelFields(**{**rows, "reason": reason_text(model.reason)})
