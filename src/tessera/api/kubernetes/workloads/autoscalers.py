"""Objects that change how many replicas a workload has: HorizontalPodAutoscaler, KEDA's ScaledObject, AIBrix."""

from collections.abc import Iterable

import msgspec

from tessera.api.fields import Field, checked_name, identity
from tessera.api.kubernetes.workloads.counting import Scale

__all__ = ["AUTOSCALERS", "scales"]

Target = tuple[str, str, str]
"""Kind, namespace and name of a workload."""


class _Autoscaler(msgspec.Struct, frozen=True):
    """The bounds of a kind of autoscaler, and their defaults."""

    least: str
    default_least: int
    most: str
    default_most: int | None
    from_zero: bool


_OWN = _Autoscaler("minReplicas", 1, "maxReplicas", None, from_zero=False)
AUTOSCALERS = {
    ("autoscaling", "HorizontalPodAutoscaler"): _OWN,
    ("autoscaling.aibrix.ai", "PodAutoscaler"): _OWN,
    ("keda.sh", "ScaledObject"): _Autoscaler("minReplicaCount", 0, "maxReplicaCount", 100, from_zero=True),
}
"""Sources: k8s.io/api autoscaling/v2; vllm-project/aibrix `api/autoscaling/v1alpha1`; kedacore/keda
`apis/keda/v1alpha1/scaledobject_types.go`.
"""


def scales(fields: Iterable[tuple[str, Field]]) -> dict[Target, Scale]:
    """Return the bounds of the autoscalers among objects, each with its API group, by workload.

    Raises:
        InvalidInput: invalid bounds.

    """
    found: dict[Target, Scale] = {}
    for group, field in fields:
        kind = field.get("kind").text("")
        rules = AUTOSCALERS.get((group, kind))
        target = field.get("spec", "scaleTargetRef") if rules else None
        if rules is None or target is None or not target.present:
            continue
        spec, (namespace, name) = field.get("spec"), identity(field)
        least = spec.get(rules.least).integer(rules.default_least)
        most = spec.get(rules.most)
        number = most.integer(rules.default_most)
        if number < max(least, 1):
            raise most.refuse(f"at least {max(least, 1)}, which is what it starts from")
        key = (target.get("kind").text("Deployment"), namespace, checked_name(target.get("name")))
        found[key] = Scale(by=f"{kind} {name}", least=least, most=number, from_zero=rules.from_zero)
    return found
