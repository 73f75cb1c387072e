"""Which running pods may be evicted, from objects as others wrote them."""

from typing import Any

import pytest

from builders.kubeobjects import Object, pod
from tessera.api.kubernetes.evictable import read_evictable
from tessera.api.tessera.cluster.clusters import as_fields
from tessera.core.workload.need import PodKey
from tessera.errors import InvalidInput

SAFE = "cluster-autoscaler.kubernetes.io/safe-to-evict"
LABELS = {"app": "web", "tier": "front"}


def made(kind: str = "ReplicaSet", **more: Any) -> Object:
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": "web", "uid": "u", "controller": True}
    metadata = {"ownerReferences": [owner] if kind else [], "labels": LABELS} | more.pop("metadata", {})
    each = pod("me", metadata=metadata)
    each["metadata"]["annotations"] = more
    return each


def budget(name: str, selector: Object | None, allowed: object = 1, namespace: str = "ns") -> Object:
    return {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": selector},
        "status": {"disruptionsAllowed": allowed},
    }


ALL: Object = {}
FRONT = {"matchLabels": {"tier": "front"}}
BACK = {"matchLabels": {"tier": "back"}}
IN = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "db"]}]}
NO_APP = {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}

# Keyed by a sentence: the objects; desired is why it stays, empty where it may go, and the budgets that select it.
CASES: dict[str, tuple[list[Object], str, tuple[str, ...]]] = {
    "a pod of a ReplicaSet goes": ([made()], "", ()),
    "a pod of a StatefulSet goes": ([made("StatefulSet")], "", ()),
    "a bare pod stays": ([made("")], "no controller would recreate it", ()),
    "a pod of a DaemonSet stays": ([made("DaemonSet")], "its DaemonSet would recreate it on the same node", ()),
    "a static pod stays": ([made("Node")], "it is a static pod of its node", ()),
    "a mirrored pod stays": ([made(**{"kubernetes.io/config.mirror": "x"})], "it is a static pod of its node", ()),
    "a pod of a Job stays": (
        [made("Job")],
        f'its Job would restart its work; the annotation {SAFE}: "true" allows that',
        (),
    ),
    "a pod of a Job that says it is safe goes": ([made("Job", **{SAFE: "true"})], "", ()),
    "a pod that says it is not safe stays": ([made(**{SAFE: "false"})], f"its annotation {SAFE} forbids it", ()),
    "a pod that says it shall not be evicted stays": (
        [made(**{"tessera.dev/do-not-evict": "true"})],
        "its annotation tessera.dev/do-not-evict forbids it",
        (),
    ),
    "another value of the annotation says nothing": ([made(**{"tessera.dev/do-not-evict": "false"})], "", ()),
    "a budget that allows a disruption": ([made(), budget("b", FRONT)], "", ("b",)),
    "a budget that allows none": (
        [made(), budget("b", ALL, 0)],
        "PodDisruptionBudget b allows no disruption now",
        ("b",),
    ),
    "a budget by expressions": ([made(), budget("b", IN), budget("c", NO_APP, 0)], "", ("b",)),
    "budgets of others": ([made(), budget("b", BACK, 0), budget("c", ALL, 0, "other"), budget("d", None, 0)], "", ()),
    "two budgets": (
        [made(), budget("b", FRONT), budget("c", IN)],
        "PodDisruptionBudgets b and c both select it; then nothing evicts it",
        ("b", "c"),
    ),
}


@pytest.mark.parametrize(("objects", "refused", "budgets"), CASES.values(), ids=CASES)
def test_which_pods_may_be_evicted(objects: list[Object], refused: str, budgets: tuple[str, ...]) -> None:
    got = read_evictable(as_fields(objects))[PodKey("ns/me")]
    assert (got.refused, got.budgets) == (refused, budgets)


def test_pods_of_kube_system_stay() -> None:
    each = made()
    each["metadata"]["namespace"] = "kube-system"
    assert read_evictable(as_fields([each]))[PodKey("kube-system/me")].refused == "it is in namespace kube-system"


def test_a_pod_that_cannot_be_read_is_left_out_and_so_stays() -> None:
    assert read_evictable(as_fields([made(metadata={"labels": {"app": 1}}), {"kind": "Service"}])) == {}


def test_a_budget_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(InvalidInput, match="disruptionsAllowed"):
        read_evictable(as_fields([made(), budget("b", ALL, "many")]))
