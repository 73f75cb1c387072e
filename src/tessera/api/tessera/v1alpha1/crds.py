"""CustomResourceDefinitions of Tessera's kinds, generated from the records that read and write them.

Types, bounds and defaults come from the records, further schema from the
`extra_json_schema` beside its type, descriptions from docstrings, CEL rules from the modules' `RULES`.
`scripts/generate` writes them to deploy/chart/templates/crds.
"""

import ast
import enum
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from msgspec import inspect as kinds

from tessera.api.documents import Plain
from tessera.api.kubernetes import conditions
from tessera.api.tessera import shares
from tessera.api.tessera.v1alpha1 import environments, gpunodes, gpupolicies, imagewarmups, modelcaches, modelservers
from tessera.api.tessera.v1alpha1.gpunodes import fields
from tessera.core.serving import modelserver

__all__ = ["RESOURCES", "SOURCES", "definitions", "descriptions"]

SOURCES: Final = (
    conditions,
    environments,
    fields,
    gpupolicies,
    imagewarmups,
    modelcaches,
    modelserver,
    modelservers,
    shares,
)
"""Modules with the records of the definitions."""

Descriptions = Mapping[tuple[str, str], str]

_GROUP, _VERSION = gpupolicies.API_VERSION.split("/")
_MOST_CHARACTERS: Final = 1024
"""For fields without a bound of their own: the API server estimates a rule's cost by the largest value."""
_ATOMIC: Final[dict[str, Plain]] = {"x-kubernetes-list-type": "atomic"}

_GPU_NODE_RULES: Final[Mapping[type[msgspec.Struct], tuple[gpupolicies.ValidationRule, ...]]] = {
    fields.DesiredDevicesFields: (
        gpupolicies.ValidationRule(
            "!(has(self.whole) && self.whole) || !has(self.instances) || self.instances.size() == 0",
            "a GPU is desired as a whole or as instances, not both",
            lambda each: not (each.whole and each.instances),
        ),
    )
}
_RULES: Final[Mapping[type[msgspec.Struct], tuple[gpupolicies.ValidationRule, ...]]] = {
    **gpupolicies.RULES,
    **imagewarmups.RULES,
    **modelservers.RULES,
    **_GPU_NODE_RULES,
}


class Column(msgspec.Struct, frozen=True):
    """A column of `kubectl get`."""

    name: str
    path: str
    description: str
    type: str = "string"
    wide: bool = False


class CustomKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of object."""

    kind: str
    plural: str
    short: str
    description: str
    spec: type[msgspec.Struct]
    status: type[msgspec.Struct]
    defaults: bool
    """Whether the API server writes the defaults of the spec into objects, for people to see."""
    columns: tuple[Column, ...]
    namespaced: bool = False


def _condition(kind: str, description: str) -> Column:
    """Return the column of a condition, which says True, False or Unknown."""
    return Column(kind, f'.status.conditions[?(@.type=="{kind}")].status', description)


_SELECTED = Column("Nodes", ".status.nodes", "Nodes that are selected and run Tessera's agent.", type="integer")
_PROBLEM = Column("Problem", ".status.problems[0].reason", "The first problem.", wide=True)
_AGE = Column("Age", ".metadata.creationTimestamp", "When it was created.", type="date")
RESOURCES: Final = (
    CustomKind(
        kind=gpupolicies.KIND,
        plural="gpupolicies",
        short="gpol",
        description="How the GPUs of some nodes are shared; see docs/policy.md.",
        spec=gpupolicies.GpuPolicySpec,
        status=gpupolicies.GpuPolicyStatus,
        defaults=True,
        columns=(
            Column("Priority", ".spec.priority", "Which policy applies where several select a node.", type="integer"),
            Column("Nodes", ".status.nodes", "Nodes that it applies to.", type="integer"),
            Column("GPUs", ".status.gpus", "GPUs of these nodes.", type="integer"),
            Column(
                "Desired",
                ".status.desiredSlices",
                "Devices desired for pods that request them by name.",
                type="integer",
            ),
            Column("Pending", ".status.pendingPods", "Pending pods that need GPUs of these nodes.", type="integer"),
            _condition("Accepted", "Whether the policy is valid."),
            _condition("Ready", "Whether it is in force on all nodes."),
            _AGE,
            Column("Decision", ".status.decision", "The last decision and its reason.", wide=True),
        ),
    ),
    CustomKind(
        kind=gpunodes.KIND,
        plural="gpunodes",
        short="gn",
        description="A GPU node, where agent, controller and server meet: what it has, what is desired on it, and "
        "what is being allocated. Written by Tessera alone.",
        spec=fields.GpuNodeSpec,
        status=fields.GpuNodeStatus,
        defaults=False,
        columns=(
            Column("Ready", ".status.summary.ready", "Healthy GPUs of all GPUs."),
            Column("Model", ".status.summary.models", "Models of the GPUs."),
            Column("Sharing", ".status.summary.sharing", "How the GPUs are shared."),
            Column("Instances", ".status.summary.instances", "MIG instances that exist."),
            Column("Policy", ".spec.policy.name", "The GPUPolicy that applies."),
            _AGE,
            Column("Driver", ".status.driver", "Version of the GPU driver.", wide=True),
            Column("Unit", ".status.unitMiB", "MiB of one unit of GPU memory.", type="integer", wide=True),
        ),
    ),
    CustomKind(
        kind=imagewarmups.IMAGE_WARMUP,
        plural="imagewarmups",
        short="iw",
        description="Images that some nodes pull before pods need them; see docs/image-warmup.md.",
        spec=imagewarmups.ImageWarmupSpec,
        status=imagewarmups.ImageWarmupStatus,
        defaults=True,
        columns=(
            _SELECTED,
            Column("Ready", ".status.ready", "Nodes that have all images.", type="integer"),
            Column("Pulling", ".status.pulling", "Nodes that pull one of them.", type="integer"),
            Column("Pinned", ".status.pinned", "Nodes that have all of them pinned.", type="integer"),
            _AGE,
            _PROBLEM,
        ),
    ),
    CustomKind(
        kind=environments.KIND,
        plural="environments",
        short="env",
        description="An image by a name that people know, for `tessera run` and `tessera notebook`; see docs/run.md.",
        spec=environments.EnvironmentSpec,
        status=environments.EnvironmentStatus,
        defaults=True,
        columns=(
            Column("Image", ".spec.image", "What pods run."),
            Column("Notebook", ".spec.notebook", "Whether it has JupyterLab.", type="boolean"),
            Column("Nodes", ".status.nodes", "Nodes that pull its image before pods need it.", type="integer"),
            Column("Ready", ".status.ready", "Those of them that have it.", type="integer"),
            _AGE,
            Column("Description", ".spec.description", "For whom it is.", wide=True),
        ),
    ),
    CustomKind(
        kind=modelservers.KIND,
        plural="modelservers",
        short="ms",
        description="A model server on parts of GPUs: Triton or vLLM, its replicas and how they scale; see "
        "docs/model-server.md.",
        spec=modelserver.ModelServerSpec,
        status=modelservers.ModelServerStatus,
        defaults=True,
        columns=(
            Column("Engine", ".spec.engine", "What serves."),
            Column("Ready", ".status.readyReplicas", "Replicas that serve.", type="integer"),
            Column("Desired", ".status.desiredReplicas", "Desired replicas.", type="integer"),
            _condition("Accepted", "Whether the spec is valid."),
            _condition("Applied", "Whether all objects are as desired."),
            _AGE,
            Column("Problem", '.status.conditions[?(@.type=="Applied")].message', "Why not.", wide=True),
        ),
        namespaced=True,
    ),
    CustomKind(
        kind=imagewarmups.NODE_IMAGES,
        plural="nodeimages",
        short="ni",
        description="The images that ImageWarmups declare for a node, and those that it has. Written by Tessera alone.",
        spec=imagewarmups.NodeImagesSpec,
        status=imagewarmups.NodeImagesStatus,
        defaults=False,
        columns=(
            Column("Disk", ".status.diskPercent", "How full the disk with the images is, in percent.", type="integer"),
            Column("Runtime", ".status.runtime", "The container runtime."),
            _AGE,
        ),
    ),
    CustomKind(
        kind=modelcaches.MODEL_CACHE,
        plural="modelcaches",
        short="mc",
        description="A model that some nodes keep on their local disk, for pods that request models.tessera.dev/NAME; "
        "see docs/model-cache.md.",
        spec=modelcaches.ModelCacheSpec,
        status=modelcaches.ModelCacheStatus,
        defaults=True,
        columns=(
            _SELECTED,
            Column("Ready", ".status.ready", "Nodes that have the model.", type="integer"),
            Column("Fetching", ".status.fetching", "Nodes that fetch it.", type="integer"),
            Column("Containers", ".status.containers", "Containers that use it.", type="integer"),
            Column("Pending", ".status.pendingPods", "Pending pods that request it.", type="integer"),
            _AGE,
            Column("Source", ".spec.source", "Where it is fetched from.", wide=True),
            Column("Revision", ".status.revision", "The revision of most nodes.", wide=True),
            _PROBLEM,
        ),
    ),
    CustomKind(
        kind=modelcaches.NODE_MODELS,
        plural="nodemodels",
        short="nm",
        description="The models that ModelCaches declare for a node, and those that it has. Written by Tessera alone.",
        spec=modelcaches.NodeModelsSpec,
        status=modelcaches.NodeModelsStatus,
        defaults=False,
        columns=(
            Column("Folder", ".status.folder", "The folder of its models."),
            Column("Free", ".status.freeBytes", "Bytes free there.", type="integer"),
            _AGE,
            Column("Problem", ".status.reason", "Why it cannot have any model, or no further one.", wide=True),
        ),
    ),
)


def descriptions(sources: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """Return the docstrings of records and of their fields, as one line of text each.

    Args:
        sources: Python text of modules by their names.

    Returns:
        By `MODULE.CLASS` and attribute; the attribute is empty for the class itself.

    """
    found = {}
    for module, text in sources.items():
        for each in ast.parse(text).body:
            if isinstance(each, ast.ClassDef):
                found[f"{module}.{each.name}", ""] = ast.get_docstring(each) or ""
                found.update({(f"{module}.{each.name}", name): words for name, words in _attributes(each)})
    return {key: " ".join(words.split()) for key, words in found.items() if words}


def _attributes(definition: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for former, statement in zip(definition.body, definition.body[1:], strict=False):
        match former, statement:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                yield name, words


def definitions(texts: Descriptions) -> dict[str, dict[str, Plain]]:
    """Return the CustomResourceDefinitions by the names of their files.

    Args:
        texts: the result of `descriptions` for `SOURCES`.

    """
    return {f"{_GROUP}_{each.plural}.yaml": _definition(each, texts) for each in RESOURCES}


def _definition(kind: CustomKind, texts: Descriptions) -> dict[str, Plain]:
    names: dict[str, Plain] = {
        "kind": kind.kind,
        "listKind": f"{kind.kind}List",
        "plural": kind.plural,
        "singular": kind.kind.lower(),
        "shortNames": [kind.short],
        "categories": ["tessera"],
    }
    version: dict[str, Plain] = {
        "name": _VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(column) for column in kind.columns],
        "schema": {"openAPIV3Schema": _object(kind, texts)},
    }
    scope = "Namespaced" if kind.namespaced else "Cluster"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{_GROUP}"},
        "spec": {"group": _GROUP, "names": names, "scope": scope, "versions": [version]},
    }


def _column(column: Column) -> dict[str, Plain]:
    written: dict[str, Plain] = {
        "name": column.name,
        "type": column.type,
        "jsonPath": column.path,
        "description": column.description,
    }
    return {**written, "priority": 1} if column.wide else written


def _object(kind: CustomKind, texts: Descriptions) -> dict[str, Plain]:
    spec = _Schemas(texts, defaults=kind.defaults).of(kinds.type_info(kind.spec))
    properties: dict[str, Plain] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": {**spec, "default": {}} if kind.defaults and _can_be_left_out(kind.spec) else spec,
        "status": _Schemas(texts, defaults=False).of(kinds.type_info(kind.status)),
    }
    return {"description": kind.description, "type": "object", "properties": properties}


def _can_be_left_out(record: type[msgspec.Struct]) -> bool:
    """Return whether a record without any field is valid: the API server refuses an invalid default."""
    if any(each.required for each in _fields(record)):
        return False
    return all(rule.holds(record()) for rule in _RULES.get(record, ()))


class _Schemas:
    """Structural schemas of records, in the API server's subset of OpenAPI."""

    def __init__(self, texts: Descriptions, *, defaults: bool) -> None:
        self._texts = texts
        self._defaults = defaults

    def of(self, info: kinds.Type) -> dict[str, Plain]:
        """Return the schema of a type."""
        match info:
            case kinds.Metadata(type=inner, extra_json_schema=more):
                return self.of(inner) | (more or {})
            case kinds.StructType():
                return self._record(info)
            case kinds.UnionType(types=types):
                # A type that may be left out; or one of integer and text, which has no type of its own.
                given = [each for each in types if not isinstance(each, kinds.NoneType)]
                return self.of(given[0]) if len(given) == 1 else {}
            case kinds.VarTupleType() | kinds.DictType():
                return self._collection(info)
        return _scalar(info)

    def _collection(self, info: kinds.VarTupleType | kinds.DictType) -> dict[str, Plain]:
        least, most = info.min_length, info.max_length
        if isinstance(info, kinds.VarTupleType):
            return {
                "type": "array",
                "items": self.of(info.item_type),
                **_given(minItems=least, maxItems=most),
                **_ATOMIC,
            }
        if isinstance(info.value_type, kinds.AnyType):
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        values: dict[str, Plain] = {"type": "object", "additionalProperties": self.of(info.value_type)}
        return {**values, **_given(minProperties=least, maxProperties=most)}

    def _record(self, info: kinds.StructType) -> dict[str, Plain]:
        name = f"{info.cls.__module__}.{info.cls.__name__}"
        properties: dict[str, Plain] = {each.encode_name: self._field(info.cls, each) for each in info.fields}
        required: list[Plain] = [each.encode_name for each in info.fields if each.required]
        rules: list[Plain] = [{"rule": each.cel, "message": each.message} for each in _RULES.get(info.cls, ())]
        schema: dict[str, Plain] = {"description": self._texts.get((name, ""), ""), "type": "object"}
        schema |= {"required": required} if required else {}
        return schema | {"properties": properties} | ({"x-kubernetes-validations": rules} if rules else {})

    def _field(self, record: type, field: kinds.Field) -> dict[str, Plain]:
        schema = self.of(field.type)
        text = self._texts.get((f"{record.__module__}.{record.__name__}", field.name))
        head: dict[str, Plain] = {"description": text} if text else {}
        default = _default(field) if self._defaults else None
        tail: dict[str, Plain] = {} if default is None else {"default": default}
        return {
            **head,
            **{key: value for key, value in schema.items() if key not in head},
            **tail,
        }


def _scalar(info: kinds.Type) -> dict[str, Plain]:
    match info:
        case kinds.IntType(ge=least, le=most):
            return {"type": "integer", "format": "int64", **_given(minimum=0 if least is None else least, maximum=most)}
        case kinds.BoolType():
            return {"type": "boolean"}
        case kinds.EnumType(cls=words):
            return {"type": "string", "enum": [str(word.value) for word in words]}
        case kinds.LiteralType(values=values):
            return {"type": "string", "enum": [str(value) for value in values]}
        case kinds.StrType(min_length=least, max_length=most, pattern=pattern):
            return {"type": "string", **_given(minLength=least, maxLength=most or _MOST_CHARACTERS, pattern=pattern)}
    raise TypeError(f"a record with {info}, which no schema allows")


def _given(**bounds: float | str | None) -> dict[str, Plain]:
    """Return the existing bounds; those of integers are integers."""
    return {name: int(each) if isinstance(each, float) else each for name, each in bounds.items() if each is not None}


def _default(field: kinds.Field) -> Plain:
    """Return the API server's default for a missing field; None for lists, mappings and optional fields."""
    match field.default:
        case enum.Enum(value=value):
            return str(value)
        case msgspec.Struct() as record:
            parts = ((part.encode_name, _default(part)) for part in _fields(type(record)))
            return {name: value for name, value in parts if value is not None}
        case bool() | int() | str() as value:
            return value
    return None


def _fields(record: type[msgspec.Struct]) -> tuple[kinds.Field, ...]:
    info = kinds.type_info(record)
    assert isinstance(info, kinds.StructType), record
    return info.fields
