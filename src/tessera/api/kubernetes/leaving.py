"""Which running pods may be evicted, by their Pod objects and PodDisruptionBudgets."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from tessera.api.fields import Field, identity
from tessera.api.kubernetes.workloads import controller
from tessera.core.packing.defrag import Leave
from tessera.core.packing.fit.admission import matches
from tessera.core.workload.need import PodKey, Requirement, SelectorTerm
from tessera.errors import InvalidInput

__all__ = ["DO_NOT_EVICT", "read_leaves"]

DO_NOT_EVICT: Final = "tessera.dev/do-not-evict"
"""Annotation of a pod: `"true"` keeps it on its node. Set by users; read by `tessera defrag`."""
_SAFE: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
"""Source: kubernetes/autoscaler cluster-autoscaler FAQ, "What types of pods can prevent CA from removing a node?"."""
_MIRROR: Final = "kubernetes.io/config.mirror"
_SYSTEM: Final = "kube-system"


class _Budget(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    term: SelectorTerm | None
    """None selects every pod of the namespace."""
    allowed: int

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        return namespace == self.namespace and (self.term is None or matches(self.term, labels, ""))


def read_leaves(fields: Sequence[Field]) -> dict[PodKey, Leave]:
    """Return for each pod of a cluster whether it may be evicted; other kinds of objects are ignored.

    Pods stay if no controller would recreate them elsewhere (none at all, a DaemonSet, the node itself,
    a Job unless the pod says that it is safe to evict), those of kube-system, those with the annotation, and
    those that a PodDisruptionBudget protects now.

    Raises:
        InvalidInput: a PodDisruptionBudget that cannot be read.

    """
    budgets = [each for field in fields if field.get("kind").value == "PodDisruptionBudget" for each in _budget(field)]
    return {
        leave.pod: leave for field in fields if field.get("kind").value == "Pod" for leave in _leave(field, budgets)
    }


def _budget(field: Field) -> Iterable[_Budget]:
    """Yield the budget, unless it selects nothing."""
    namespace, name = identity(field)
    selector = field.get("spec", "selector")
    if not selector.given:
        return
    labels = [(key, value.text()) for key, value in selector.get("matchLabels").members()]
    requirements = [Requirement(key=key, operator="In", values=(value,)) for key, value in labels]
    requirements += map(_requirement, selector.get("matchExpressions").elements())
    allowed = field.get("status", "disruptionsAllowed").integer(0)
    term = SelectorTerm(expressions=tuple(requirements)) if requirements else None
    yield _Budget(namespace, name, term, allowed)


def _requirement(field: Field) -> Requirement:
    return Requirement(
        key=field.get("key").text(),
        operator=field.get("operator").choice("In", "NotIn", "Exists", "DoesNotExist"),
        values=tuple(each.text() for each in field.get("values").elements()),
    )


def _leave(field: Field, budgets: Iterable[_Budget]) -> Iterable[Leave]:
    """Yield a pod's answer; nothing for one without a name or with invalid labels, which is not moved then."""
    try:
        namespace, name = identity(field)
        labels = {key: value.text() for key, value in field.get("metadata", "labels").members()}
        refused = _refused(field, namespace)
    except InvalidInput:
        return
    mine = [each for each in budgets if each.selects(namespace, labels)]
    yield Leave(
        pod=PodKey(f"{namespace}/{name}"),
        refused=refused or _protected(mine),
        budgets=tuple(each.name for each in mine),
    )


def _refused(field: Field, namespace: str) -> str:
    notes = field.get("metadata", "annotations")
    safe = notes.get(_SAFE).value
    kind = controller(field, namespace).partition("/")[0]
    rules = (
        (namespace == _SYSTEM, f"it is of {_SYSTEM}"),
        (notes.get(DO_NOT_EVICT).value == "true", f"its annotation {DO_NOT_EVICT} forbids it"),
        (safe == "false", f"its annotation {_SAFE} forbids it"),
        (notes.get(_MIRROR).given or kind == "Node", "it is a static pod of its node"),
        (not kind, "it has no controller that would make it again"),
        (kind == "DaemonSet", "its DaemonSet would make it again on the same node"),
        (
            kind == "Job" and safe != "true",
            f'its Job would restart its work; the annotation {_SAFE}: "true" allows that',
        ),
    )
    return next((why for applies, why in rules if applies), "")


def _protected(budgets: Sequence[_Budget]) -> str:
    """Return why the Eviction API would refuse now. Source: kubernetes pkg/registry/core/pod/storage/eviction.go."""
    if len(budgets) > 1:
        return f"PodDisruptionBudgets {budgets[0].name} and {budgets[1].name} both select it; then nothing evicts it"
    if budgets and budgets[0].allowed < 1:
        return f"PodDisruptionBudget {budgets[0].name} allows no disruption now"
    return ""
