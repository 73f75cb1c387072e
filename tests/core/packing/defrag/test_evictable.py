"""Which running pods may be evicted; read from objects in tests/api/kubernetes/test_evictable."""

import msgspec
import pytest

from tessera.core.packing.defrag.evictable import DO_NOT_EVICT, Budget, PodFacts, evictable
from tessera.core.workload.need import Requirement, SelectorTerm

WEB = PodFacts(namespace="ns", name="web", labels={"app": "web"}, controller="ReplicaSet")
DB_ONLY = SelectorTerm(expressions=(Requirement(key="app", operator="In", values=("db",)),))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"namespace": "kube-system"}, "it is in namespace kube-system"),
        ({"annotations": {DO_NOT_EVICT: "true"}}, DO_NOT_EVICT),
        ({"controller": ""}, "no controller would recreate it"),
        ({"controller": "DaemonSet"}, "its DaemonSet would recreate it on the same node"),
        ({"controller": "Job"}, "its Job would restart its work"),
        ({"controller": "Node"}, "it is a static pod of its node"),
    ],
)
def test_pods_that_stay(change: dict[str, object], words: str) -> None:
    assert evictable(WEB, ()).refused == ""
    assert words in evictable(msgspec.structs.replace(WEB, **change), ()).refused


def test_a_budget_counts_where_it_selects_the_pod() -> None:
    everything = Budget(namespace="ns", name="all", allowed=1)
    others = (Budget(namespace="ns", name="db", term=DB_ONLY), Budget(namespace="other", name="all"))
    assert evictable(WEB, (everything, *others)).refused == ""
    assert evictable(WEB, (everything, *others)).budgets == ("all",)
    spent = msgspec.structs.replace(everything, allowed=0)
    assert evictable(WEB, (spent,)).refused == "PodDisruptionBudget all allows no disruption now"
    assert "both select it" in evictable(WEB, (everything, spent)).refused
