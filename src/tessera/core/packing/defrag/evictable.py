"""Which running pods may be evicted: by their controllers, their annotations and their PodDisruptionBudgets."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from tessera.core.packing.fit.admission import matches
from tessera.core.workload.kubernetesnames import MIRROR
from tessera.core.workload.need import PodKey, SelectorTerm

__all__ = ["DO_NOT_EVICT", "Budget", "Evictable", "PodFacts", "evictable"]

DO_NOT_EVICT: Final = "tessera.dev/do-not-evict"
"""Annotation of a pod: `"true"` keeps it on its node. Set by users; read by `tessera defrag`."""
_SAFE: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
"""Source: kubernetes/autoscaler cluster-autoscaler FAQ, "What types of pods can prevent CA from removing a node?"."""
_SYSTEM: Final = "kube-system"


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """A PodDisruptionBudget."""

    namespace: str
    name: str
    term: SelectorTerm | None = None
    """None selects every pod of the namespace."""
    allowed: int = 0
    """The disruptions that it allows now."""


class PodFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What decides about a pod."""

    namespace: str
    name: str
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    controller: str = ""
    """Kind of its controller; empty for none."""


class Evictable(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a running pod may be evicted."""

    pod: PodKey
    refused: str = ""
    """Why it must stay, without full stop; empty where it may be moved."""
    budgets: tuple[str, ...] = ()
    """The PodDisruptionBudgets that select it."""


def evictable(pod: PodFacts, budgets: Iterable[Budget]) -> Evictable:
    """Return whether a pod may be evicted.

    Pods stay if no controller would recreate them elsewhere (none at all, a DaemonSet, the node itself,
    a Job unless the pod says that it is safe to evict), those of kube-system, those with the annotation, and
    those that a PodDisruptionBudget protects now.
    """
    mine = [each for each in budgets if _selects(each, pod)]
    return Evictable(
        pod=PodKey(f"{pod.namespace}/{pod.name}"),
        refused=_refused(pod) or _protected(mine),
        budgets=tuple(each.name for each in mine),
    )


def _selects(budget: Budget, pod: PodFacts) -> bool:
    return budget.namespace == pod.namespace and (budget.term is None or matches(budget.term, pod.labels, ""))


def _refused(pod: PodFacts) -> str:
    safe, kind = pod.annotations.get(_SAFE), pod.controller
    rules = (
        (pod.namespace == _SYSTEM, f"it is in namespace {_SYSTEM}"),
        (pod.annotations.get(DO_NOT_EVICT) == "true", f"its annotation {DO_NOT_EVICT} forbids it"),
        (safe == "false", f"its annotation {_SAFE} forbids it"),
        (MIRROR in pod.annotations or kind == "Node", "it is a static pod of its node"),
        (not kind, "no controller would recreate it"),
        (kind == "DaemonSet", "its DaemonSet would recreate it on the same node"),
        (
            kind == "Job" and safe != "true",
            f'its Job would restart its work; the annotation {_SAFE}: "true" allows that',
        ),
    )
    return next((why for applies, why in rules if applies), "")


def _protected(budgets: list[Budget]) -> str:
    """Return why the Eviction API would refuse now. Source: kubernetes pkg/registry/core/pod/storage/eviction.go."""
    if len(budgets) > 1:
        return f"PodDisruptionBudgets {budgets[0].name} and {budgets[1].name} both select it; then nothing evicts it"
    if budgets and budgets[0].allowed < 1:
        return f"PodDisruptionBudget {budgets[0].name} allows no disruption now"
    return ""
