"""Workloads that autoscalers change: planned where they start, with their bounds told."""

import pytest

from builders.manifests import pods_of
from tessera.errors import InvalidInput

DEPLOYMENT = (
    "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\n"
    "spec: {{{}template: {{spec: {{containers: [{{name: m}}]}}}}}}\n---\n"
)
HPA = (
    "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: web}\n"
    "spec: {scaleTargetRef: {kind: Deployment, name: web}, minReplicas: 2, maxReplicas: 5}\n"
)
KEDA = (
    "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {name: web}\n"
    "spec: {scaleTargetRef: {name: web}, maxReplicaCount: 4}\n"
)
AIBRIX = HPA.replace("autoscaling/v2", "autoscaling.aibrix.ai/v1alpha1").replace("HorizontalPod", "Pod")

PLANNED = {
    "below the least": ("", HPA, 2, "HorizontalPodAutoscaler web scales from 2 to 5"),
    "between": ("replicas: 3, ", HPA, 3, "HorizontalPodAutoscaler web scales from 2 to 5"),
    "above the most": ("replicas: 9, ", HPA, 5, "HorizontalPodAutoscaler web scales from 2 to 5"),
    "KEDA from zero": ("replicas: 0, ", KEDA, 1, "ScaledObject web scales from 0 to 4"),
    "AIBrix": ("", AIBRIX, 2, "PodAutoscaler web scales from 2 to 5"),
}


@pytest.mark.parametrize(("replicas", "scaler", "want", "told"), PLANNED.values(), ids=PLANNED)
def test_a_workload_is_planned_where_it_starts(replicas: str, scaler: str, want: int, told: str) -> None:
    got = pods_of(DEPLOYMENT.format(replicas) + scaler)
    number = "1 replica" if want == 1 else f"{want} replicas"
    assert (len(got.pods), got.notes) == (want, (f"Deployment web: planned with {number}; {told}",))


def test_zero_replicas_switch_a_horizontal_pod_autoscaler_off() -> None:
    got = pods_of(DEPLOYMENT.format("replicas: 0, ") + HPA)
    assert (got.pods, got.notes) == ((), ())


OTHERS = {
    "another name": HPA.replace("name: web}, min", "name: other}, min"),
    "another namespace": HPA.replace("metadata: {name: web}", "metadata: {name: web, namespace: other}"),
    "another kind": HPA.replace("kind: Deployment", "kind: StatefulSet"),
    "no target": HPA.replace("scaleTargetRef: {kind: Deployment, name: web}, ", ""),
}


@pytest.mark.parametrize("scaler", OTHERS.values(), ids=OTHERS)
def test_an_autoscaler_of_another_workload_changes_nothing(scaler: str) -> None:
    assert len(pods_of(DEPLOYMENT.format("") + scaler).pods) == 1


def test_bounds_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidInput, match="maxReplicas: 1 is not at least 2"):
        pods_of(DEPLOYMENT.format("") + HPA.replace("maxReplicas: 5", "maxReplicas: 1"))
