"""A pod specification as a core `Need`: containers, annotations, node selection, tolerations.

Source of the fields and their checks: k8s.io/api core/v1 `PodSpec`; kubernetes `pkg/apis/core/validation`.
"""

from fractions import Fraction
from functools import partial
from typing import Literal

from tessera.api.fields import Field, in_place
from tessera.api.kubernetes.containerrequests import (
    RequestRules,
    container_need,
    quantities,
    refuse_share_counts,
    refuse_zeros,
)
from tessera.core.gpu.gpumodels import model
from tessera.core.workload import units
from tessera.core.workload.foreignnames import CLAIM, FRACTION_ANNOTATIONS
from tessera.core.workload.need import (
    ContainerNeed,
    DeviceRequest,
    EffectiveNeed,
    Form,
    Isolation,
    Need,
    Requirement,
    SelectorTerm,
    Toleration,
    effective_need,
)
from tessera.core.workload.resources import MODEL_RESOURCE
from tessera.core.workload.tesseranames import GPU_MODEL, ISOLATION

__all__ = [
    "ASSIGNMENT",
    "MEMORY_UNIT",
    "PREFIX",
    "SIGNATURE",
    "ignored_constraints",
    "read_need",
]

PREFIX = "tessera.dev/"
MEMORY_UNIT = "tessera.dev/gpu-memory-unit"
"""Annotation of a pod: the unit of `tessera.dev/gpu-memory`, `GiB` or `MiB`. Set by users; read by the server, the
agent, the controller and the planner."""
ASSIGNMENT = "tessera.dev/assignment"
"""Annotation of a pod: the devices that it was assigned, as JSON. Set by the server when it binds, corrected by the
agent; read by all processes."""
SIGNATURE = "tessera.dev/assignment-signature"
"""Annotation of a pod: who wrote its assignment, as a signature. Set by the server and the agent; read by the
agent, the server and the controller."""
_ANNOTATIONS = (ISOLATION, GPU_MODEL, MEMORY_UNIT, ASSIGNMENT, SIGNATURE)
_Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
_MAX_CONTAINERS = 250


def read_need(pod: Field, *, share_unit_mib: int = 1024, requested: Need | None = None) -> Need:
    """Return a pod's need, from an object with `metadata` and `spec`: a Pod or a pod template.

    Args:
        pod: the object.
        share_unit_mib: MiB in one `aliyun.com/gpu-mem`.
        requested: the requests and models signed with the pod's assignment; annotations about them are ignored then.

    Raises:
        InvalidInput: anything Kubernetes or Tessera would reject about it, with its position.

    """
    spec, annotations = pod.get("spec"), pod.get("metadata", "annotations")
    rules = RequestRules(unit_mib=1, share_unit_mib=1) if requested else _ask_rules(annotations, share_unit_mib)
    effective = _effective(spec, rules)
    affinity = spec.get("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    models = (request.resource for request in effective.requests if request.resource.startswith(MODEL_RESOURCE))
    requests = tuple(request for request in effective.requests if not request.resource.startswith(MODEL_RESOURCE))
    return Need(
        cpu_milli=min(units.round_up(1000 * effective.cpu), units.MOST_CPU_MILLI),
        memory_mib=units.round_up(effective.memory / units.MIB),
        requests=requested.requests if requested else (*(requests or _fractions(annotations)), *_claims(spec)),
        models=requested.models if requested else _models(annotations.get(GPU_MODEL)),
        cached_models=tuple(sorted({each.removeprefix(MODEL_RESOURCE) for each in models})),
        node_selector=tuple(sorted((key, value.text()) for key, value in spec.get("nodeSelector").members())),
        affinity=_affinity(affinity) if affinity.present else None,
        tolerations=tuple(_toleration(toleration) for toleration in spec.get("tolerations").elements()),
        node_name=spec.get("nodeName").text(""),
        unit_mib=_unit_mib(requests, requested.requests if requested else requests, rules.unit_mib),
    )


def _unit_mib(counted: tuple[DeviceRequest, ...], requested: tuple[DeviceRequest, ...], unit_mib: int) -> int:
    """Return MiB in one unit as the pod counts: what was asked by what is counted with units of `unit_mib`."""
    count = sum(request.memory_mib for request in counted if request.form is Form.NEED) // unit_mib
    asked_mib = sum(request.memory_mib for request in requested if request.form is Form.NEED)
    return max(asked_mib // count, 1) if count else Need().unit_mib


def ignored_constraints(pod: Field) -> tuple[str, ...]:
    """Return the names of hard constraints in the pod that planning does not consider."""
    spec = pod.get("spec")
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    names = [kind for kind in ("podAffinity", "podAntiAffinity") if spec.get("affinity", kind, required).present]
    spreads = spec.get("topologySpreadConstraints").elements()
    if any(spread.get("whenUnsatisfiable").value != "ScheduleAnyway" for spread in spreads):
        names.append("topologySpreadConstraints")
    return tuple(names)


def _ask_rules(annotations: Field, share_unit_mib: int) -> RequestRules:
    for key, annotation in annotations.members():
        if key.startswith(PREFIX) and key not in _ANNOTATIONS:
            raise annotation.refuse("an annotation Tessera knows", ", ".join(_ANNOTATIONS), found=key)
    isolation = annotations.get(ISOLATION)
    unit = annotations.get(MEMORY_UNIT).choice("GiB", "MiB", default="GiB")
    return RequestRules(
        isolation=isolation.choice(*Isolation) if isolation.present else None,
        unit_mib=1024 if unit == "GiB" else 1,
        share_unit_mib=share_unit_mib,
    )


def _models(annotation: Field) -> tuple[str, ...]:
    """Return the catalog names of the GPU models in an annotation, separated by commas."""
    names = (name.strip() for name in annotation.text("").split(","))
    return tuple(sorted({in_place(annotation, partial(model, name)).name for name in names if name}))


# Containers


def _effective(spec: Field, rules: RequestRules) -> EffectiveNeed:
    containers, init = tuple(spec.get("containers").elements()), tuple(spec.get("initContainers").elements())
    if not containers:
        raise spec.get("containers").refuse("at least one container")
    if len(containers) + len(init) > _MAX_CONTAINERS:
        found = f"{len(containers) + len(init)} containers"
        raise spec.refuse(found=f"{found}, more than {_MAX_CONTAINERS}")
    _refuse_same_names((*containers, *init))
    for container in (*containers, *init) if not spec.get("nodeName").present else ():  # one that is bound runs on
        refuse_share_counts(container)
    plain = [container_need(container, rules) for container in containers]
    first = [
        container_need(container, rules, sidecar=container.get("restartPolicy").text("") == "Always")
        for container in init
    ]
    effective = effective_need(plain, first)
    for container in (*containers, *init) if not effective.requests else ():
        refuse_zeros(container)
    cpu, memory = (_pod_amount(spec, name, plain + first, getattr(effective, name)) for name in ("cpu", "memory"))
    overhead = spec.get("overhead")
    return EffectiveNeed(
        cpu=cpu + _overhead(overhead.get("cpu")),
        memory=memory + _overhead(overhead.get("memory")),
        requests=effective.requests,
    )


def _refuse_same_names(containers: tuple[Field, ...]) -> None:
    names: set[str] = set()
    for container in containers:
        name = container.get("name")
        if name.text() in names:
            raise name.refuse("a name no other container of the pod has")
        names.add(name.text())


def _pod_amount(spec: Field, name: str, containers: list[ContainerNeed], together: Fraction) -> Fraction:
    """Return the pod's request: its own if it has one, else the sum of its containers', else its limit.

    Source: kubernetes `pkg/apis/core/v1/defaults.go` (`defaultPodRequests`), feature PodLevelResources.
    """
    own = spec.get("resources")
    if own.get("requests", name).present or not any(getattr(container, name) for container in containers):
        return quantities(own).get(name, together)
    return together


def _overhead(field: Field) -> Fraction:
    amount = field.read(units.quantity, Fraction(0))
    if amount < 0:
        raise field.refuse("a quantity of zero or more")
    return amount


def _claims(spec: Field) -> tuple[DeviceRequest, ...]:
    """Return the pod's claims for dynamically allocated devices as requests of a name that no node offers yet."""
    requests = []
    for claim in spec.get("resourceClaims").elements():
        name = claim.get("resourceClaimTemplateName").text("") or claim.get("resourceClaimName").text("")
        requests.append(DeviceRequest(resource=f"{CLAIM}{name or claim.get('name').text()}"))
    return tuple(requests)


def _fractions(annotations: Field) -> tuple[DeviceRequest, ...]:
    """Return the part of a GPU that a pod without a limit requests from KAI, so that it never runs without one."""
    return tuple(DeviceRequest(resource=name) for name in FRACTION_ANNOTATIONS if annotations.get(name).present)


# Node selection


def _affinity(required: Field) -> tuple[SelectorTerm, ...]:
    terms = tuple(required.get("nodeSelectorTerms").elements())
    if not terms:
        raise required.get("nodeSelectorTerms").refuse("at least one term")
    return tuple(
        SelectorTerm(
            expressions=tuple(_expression(field) for field in term.get("matchExpressions").elements()),
            fields=tuple(_field_expression(field) for field in term.get("matchFields").elements()),
        )
        for term in terms
    )


def _expression(field: Field) -> Requirement:
    operator: _Operator = field.get("operator").choice("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
    values = tuple(value.text() for value in field.get("values").elements())
    if operator in {"In", "NotIn"} and not values:
        raise field.get("values").refuse(f"at least one value for {operator}")
    if operator in {"Exists", "DoesNotExist"} and values:
        raise field.get("values").refuse(
            found=f"operator {operator} has a value", hint=f"write no value for {operator}"
        )
    if operator in {"Gt", "Lt"} and not (len(values) == 1 and _is_integer(values[0])):
        raise field.get("values").refuse(f"one integer in quotes for {operator}")
    return Requirement(key=field.get("key").text(), operator=operator, values=values)


def _is_integer(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) < len(str(1 << 63))


def _field_expression(field: Field) -> Requirement:
    requirement = _expression(field)
    if requirement.key != "metadata.name":
        raise field.get("key").refuse("metadata.name, the one field nodes are selected by")
    if requirement.operator not in {"In", "NotIn"} or len(requirement.values) != 1:
        raise field.refuse(found=f"{requirement.operator} is not supported", hint="write In or NotIn with one name")
    return requirement


def _toleration(field: Field) -> Toleration:
    toleration = Toleration(
        key=field.get("key").text(""),
        operator=field.get("operator").choice("Equal", "Exists", "Lt", "Gt", default="Equal"),
        value=field.get("value").text(""),
        effect=field.get("effect").choice("", "NoSchedule", "PreferNoSchedule", "NoExecute", default=""),
    )
    if not toleration.key and toleration.operator != "Exists":
        raise field.refuse(found=f"it has operator {toleration.operator} and no key", hint="write operator Exists")
    if toleration.operator == "Exists" and toleration.value:
        raise field.get("value").refuse(found="operator Exists has a value", hint="write no value for Exists")
    return toleration
