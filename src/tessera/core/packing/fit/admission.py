"""Whether a node admits a pod: name, labels, affinity, taints, cached models, units, with kube-scheduler's semantics.

Free resources and the kinds of GPUs are ignored here: everything in this module is fixed for a pair of need and node.
"""

import enum
import re
from collections.abc import Mapping

from tessera.core.cluster.snapshot import MemoryUnits, Node, Taint
from tessera.core.gpu.sharing import names_device
from tessera.core.workload.need import Form, Need, Requirement, SelectorTerm, Toleration

__all__ = ["Refusal", "admits", "matches", "refusal", "unadvertised", "withheld"]

UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""The taint that stands for `spec.unschedulable`. Source: kube-scheduler plugin NodeUnschedulable."""

_SCHEDULER_HEEDS = frozenset({"NoSchedule", "NoExecute"})
_KUBELET_HEEDS = frozenset({"NoExecute"})
_INTEGER = re.compile(r"[+-]?[0-9]+")


class Refusal(enum.StrEnum):
    """Why a node does not admit a pod, in the order of kube-scheduler's plugins."""

    NODE_NAME = "node-name"
    UNSCHEDULABLE = "unschedulable"
    TAINT = "taint"
    SELECTOR = "node-selector"
    AFFINITY = "node-affinity"
    MODEL = "cached-model"
    UNITS = "memory-units"


def refusal(need: Need, node: Node) -> tuple[Refusal, str] | None:
    """Return the first rule by which `node` rejects `need`, with its detail; None if it admits it.

    A pod pinned to the node by `spec.nodeName` bypasses the scheduler: a cordon and `NoSchedule` taints do not keep
    it off. The kubelet admits it by its node selector, its affinity and `NoExecute` taints, and by free resources.

    Source: kube-scheduler plugins NodeName, NodeUnschedulable, TaintToleration, NodeAffinity. `PreferNoSchedule`
    taints do not filter. NodeResourcesFit compares units, whatever each side means by one: more MiB than the node has
    GiB are never admitted. For pinned pods kubernetes `pkg/kubelet/lifecycle/predicate.go`.
    """
    if need.node_name and need.node_name != node.name:
        return Refusal.NODE_NAME, need.node_name
    pinned = bool(need.node_name)
    if node.unschedulable and not pinned and not _tolerated(UNSCHEDULABLE, need.tolerations):
        return Refusal.UNSCHEDULABLE, ""
    for taint in node.taints:
        if taint.effect in (_KUBELET_HEEDS if pinned else _SCHEDULER_HEEDS) and not _tolerated(taint, need.tolerations):
            return Refusal.TAINT, f"{taint.key}={taint.value}:{taint.effect}"
    labels = dict(node.labels)
    for key, value in need.node_selector:
        if labels.get(key) != value:
            return Refusal.SELECTOR, f"{key}={value}"
    if need.affinity is not None and not any(matches(term, labels, node.name) for term in need.affinity):
        return Refusal.AFFINITY, ""
    return _not_offered(need, node)


def admits(need: Need, node: Node) -> bool:
    """Return whether a node admits a pod, and gives devices to such pods at all.

    What a node without agent does not advertise does not matter here: a plan may be for agents yet to come.
    """
    known = not need.requests or (node.reported and not node.problem)
    return known and refusal(need, node) is None and not withheld(need, node)


def withheld(need: Need, node: Node) -> str:
    """Return why a node's agent does not advertise a requested resource; empty where it does."""
    resources = {request.resource for request in need.requests} if node.withheld else set[str]()
    return next((reason for resource, reason in node.withheld if resource in resources), "")


def unadvertised(need: Need, node: Node) -> str:
    """Return the device requested by name that a node without agent does not advertise; empty for none."""
    if node.advertised is None:
        return ""
    named = (
        request.resource for request in need.requests if request.form is Form.EXACT and names_device(request.resource)
    )
    return next((resource for resource in named if resource not in node.advertised), "")


def _not_offered(need: Need, node: Node) -> tuple[Refusal, str] | None:
    """Return the first extended resource that NodeResourcesFit finds short, whatever runs on the node."""
    if node.cached_models is not None and (missing := sorted({*need.cached_models} - {*node.cached_models})):
        return Refusal.MODEL, missing[0]
    return _miscounted(need, node.units)


def _miscounted(need: Need, units: MemoryUnits | None) -> tuple[Refusal, str] | None:
    """Return that a pod requests more units than a node has, because it counts in smaller ones."""
    if units is None or need.unit_mib >= units.mib:
        return None
    requested = max(
        (request.memory_mib // need.unit_mib for request in need.requests if request.form is Form.NEED), default=0
    )
    return (Refusal.UNITS, f"{requested} units with {units.count}") if requested > units.count else None


def _tolerated(taint: Taint, tolerations: tuple[Toleration, ...]) -> bool:
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Source: k8s.io/api core/v1 `ToleratesTaint`; `Gt` and `Lt` compare the taint's value with the toleration's."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    if toleration.operator == "Equal":
        return toleration.value == taint.value
    return _compares(toleration.operator, taint.value, toleration.value)


def matches(term: SelectorTerm, labels: Mapping[str, str], name: str) -> bool:
    """Return whether a node of this name with these labels matches a term; none matches an empty term."""
    if not term.expressions and not term.fields:
        return False
    fields = {"metadata.name": name}
    return all(_holds(r, labels) for r in term.expressions) and all(_holds(r, fields) for r in term.fields)


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    """Source: k8s.io/apimachinery labels.Requirement.Matches: an absent label satisfies NotIn and DoesNotExist only."""
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case operator:
            return (
                value is not None and len(requirement.values) == 1 and _compares(operator, value, *requirement.values)
            )


def _compares(operator: str, actual: str, limit: str) -> bool:
    """Compare as integers; anything else never matches."""
    if not (_INTEGER.fullmatch(actual) and _INTEGER.fullmatch(limit)):
        return False
    return int(actual) > int(limit) if operator == "Gt" else int(actual) < int(limit)
