"""What decides which running pods may be evicted, from their Pod objects and PodDisruptionBudgets."""

from collections.abc import Iterable, Sequence

from tessera.api.fields import Field, identity
from tessera.api.kubernetes.workloads import controller
from tessera.core.packing.defrag.evictable import Budget, Evictable, PodFacts, evictable
from tessera.core.workload.need import PodKey, Requirement, SelectorTerm
from tessera.errors import InvalidInput

__all__ = ["read_evictable"]


def read_evictable(fields: Sequence[Field]) -> dict[PodKey, Evictable]:
    """Return for each pod of a cluster whether it may be evicted; other kinds of objects are ignored.

    Raises:
        InvalidInput: a PodDisruptionBudget that cannot be read.

    """
    budgets = [each for field in fields if field.get("kind").value == "PodDisruptionBudget" for each in _budget(field)]
    pods = (each for field in fields if field.get("kind").value == "Pod" for each in _facts(field))
    return {found.pod: found for found in (evictable(pod, budgets) for pod in pods)}


def _budget(field: Field) -> Iterable[Budget]:
    """Yield the budget, unless it selects nothing."""
    namespace, name = identity(field)
    selector = field.get("spec", "selector")
    if not selector.present:
        return
    labels = [(key, value.text()) for key, value in selector.get("matchLabels").members()]
    requirements = [Requirement(key=key, operator="In", values=(value,)) for key, value in labels]
    requirements += map(_requirement, selector.get("matchExpressions").elements())
    allowed = field.get("status", "disruptionsAllowed").integer(0)
    term = SelectorTerm(expressions=tuple(requirements)) if requirements else None
    yield Budget(namespace=namespace, name=name, term=term, allowed=allowed)


def _requirement(field: Field) -> Requirement:
    return Requirement(
        key=field.get("key").text(),
        operator=field.get("operator").choice("In", "NotIn", "Exists", "DoesNotExist"),
        values=tuple(each.text() for each in field.get("values").elements()),
    )


def _facts(field: Field) -> Iterable[PodFacts]:
    """Yield the facts of a pod; nothing for one without a name or with invalid labels, which is not moved then."""
    try:
        namespace, name = identity(field)
        metadata = field.get("metadata")
        yield PodFacts(
            namespace=namespace,
            name=name,
            labels={key: value.text() for key, value in metadata.get("labels").members()},
            annotations={key: value.text() for key, value in metadata.get("annotations").members()},
            controller=controller(field, namespace).partition("/")[0],
        )
    except InvalidInput:
        return
