"""The objects beside the pods: services, budgets, monitors, autoscalers."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from builders.rendered import VLLM, pod_template, rendered
from tessera.core.serving.annotations import SERVER_LABEL
from tessera.core.serving.autoscaling.hpa import Behavior, HpaHistory, ReplicaBounds, advance
from tessera.core.serving.serverstatus import StartedReplicas
from tessera.errors import InvalidInput

NEED = {"memoryGiB": 20}
ALONE = {"memoryGiB": 20, "isolation": "hardware"}
KEDA = {"replicas": {"max": 3}, "autoscaling": {"metric": "queue-time", "autoscaler": "KEDA"}}


def test_a_server_is_a_deployment_a_service_a_budget_and_a_monitor() -> None:
    found = rendered()
    assert list(found) == ["Deployment", "Service", "PodDisruptionBudget", "PodMonitor"]
    assert {each["metadata"]["name"] for each in found.values()} == {"ranker"}
    assert all("namespace" not in each["metadata"] for each in found.values())
    assert all("ownerReferences" not in each["metadata"] for each in found.values())
    selector = {"matchLabels": {SERVER_LABEL: "ranker"}}
    assert found["Deployment"]["spec"]["selector"] == selector
    assert found["PodDisruptionBudget"]["spec"]["selector"] == selector
    assert found["Service"]["spec"]["selector"] == selector["matchLabels"]
    assert selector["matchLabels"].items() <= pod_template()["metadata"]["labels"].items()


def test_the_autoscaler_of_a_deployment_of_ones_own_scales_down_as_a_rendered_one() -> None:
    """The page's example; up, the API server's default is what is rendered."""
    page = (Path(__file__).parents[4] / "docs" / "autoscaling.md").read_text()
    example = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])["spec"]
    found = rendered({"replicas": {"max": 7}, "autoscaling": {"slots": 8}})["HorizontalPodAutoscaler"]["spec"]
    assert example["behavior"]["scaleDown"].items() <= found["behavior"]["scaleDown"].items()
    assert example["metrics"][0]["external"]["target"] == found["metrics"][0]["external"]["target"]


def test_in_a_cluster_the_server_owns_them_without_a_right_to_its_finalizers() -> None:
    found = rendered(namespace="serving", uid="u1")
    owner = {"apiVersion": "tessera.dev/v1alpha1", "kind": "ModelServer", "name": "ranker", "uid": "u1"}
    assert all(each["metadata"]["ownerReferences"] == [owner | {"controller": True}] for each in found.values())
    assert {each["metadata"]["namespace"] for each in found.values()} == {"serving"}


def test_services_for_clients_outside_and_for_those_that_balance_themselves() -> None:
    outside = rendered({"expose": {"type": "LoadBalancer", "annotations": {"a": "b"}}})["Service"]
    assert outside["spec"]["type"] == "LoadBalancer"
    assert [each["name"] for each in outside["spec"]["ports"]] == ["http", "grpc"], "metrics stay inside"
    assert outside["metadata"]["annotations"] == {"a": "b"}
    assert rendered({"expose": {"type": "Headless"}})["Service"]["spec"]["clusterIP"] == "None"


def test_a_node_is_drained_of_one_replica_at_a_time_and_of_those_that_do_not_start() -> None:
    budget = rendered()["PodDisruptionBudget"]["spec"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")


def test_a_monitor_has_the_labels_that_prometheus_selects_by_or_there_is_none() -> None:
    found = rendered({"monitor": {"labels": {"release": "prometheus"}}})["PodMonitor"]
    assert found["metadata"]["labels"]["release"] == "prometheus"
    assert found["spec"]["podTargetLabels"] == [SERVER_LABEL]
    assert "PodMonitor" not in rendered({"monitor": {"enabled": False}})


def test_the_number_of_replicas_is_fixed_or_the_autoscalers() -> None:
    fixed = rendered({"replicas": {"min": 3}})
    assert (fixed["Deployment"]["spec"]["replicas"], "HorizontalPodAutoscaler" in fixed) == (3, False)
    scaled = rendered({"replicas": {"min": 1, "max": 7}})
    assert scaled["Deployment"]["metadata"]["annotations"] == {"serving.tessera.dev/slots": "8"}
    assert "annotations" not in rendered({"autoscaling": {}})["Deployment"]["metadata"], "Triton's are unknown"
    assert "replicas" not in scaled["Deployment"]["spec"]
    found = scaled["HorizontalPodAutoscaler"]["spec"]
    assert (found["minReplicas"], found["maxReplicas"]) == (1, 7)
    (metric,) = found["metrics"]
    assert metric["external"]["metric"]["selector"] == {"matchLabels": {SERVER_LABEL: "ranker"}}
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "1"}


def test_a_server_that_scales_to_zero_has_an_autoscaler_that_every_cluster_takes() -> None:
    spec = {"replicas": {"min": 0, "max": 3}, "autoscaling": {"slots": 8, "idleSeconds": 600}}
    found = rendered(spec, annotations={"serving.tessera.dev/wake": "2026-11-26T09:00:00+01:00"})
    bounds = found["HorizontalPodAutoscaler"]["spec"]
    assert (bounds["minReplicas"], bounds["maxReplicas"]) == (1, 3)
    assert found["Deployment"]["metadata"]["annotations"] == {
        "serving.tessera.dev/slots": "8",
        "serving.tessera.dev/idle-seconds": "600",
        "serving.tessera.dev/wake": "2026-11-26T08:00:00Z",
    }
    assert "replicas" not in found["Deployment"]["spec"]
    never = rendered({"replicas": {"min": 0}})
    assert (
        never["HorizontalPodAutoscaler"]["spec"]["minReplicas"],
        never["Deployment"]["metadata"]["annotations"],
    ) == (
        1,
        {"serving.tessera.dev/slots": "8", "serving.tessera.dev/idle-seconds": "1200"},
    )


@pytest.mark.parametrize("replicas", [{"min": 1}, {"min": 2}, {"min": 8}, {"min": 0, "max": 1}, {"min": 1, "max": 4}])
def test_up_to_three_replicas_are_replaced_by_ready_ones(replicas: dict[str, int]) -> None:
    """Kubernetes rounds down: a quarter of three is none."""
    strategy = rendered({"replicas": replicas})["Deployment"]["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": "25%"}


SLOTS: dict[str, tuple[dict[str, Any], str]] = {
    "by the part of a GPU": ({}, "256"),
    "by an option": ({"args": ["--max_num_seqs", "7"]}, "7"),
    "by the field": ({"args": ["--max-num-seqs=7"], "autoscaling": {"slots": 4}}, "4"),
}


@pytest.mark.parametrize("case", SLOTS)
def test_the_deployment_says_how_many_requests_a_replica_of_vllm_serves(case: str) -> None:
    spec, want = SLOTS[case]
    deployment = rendered(VLLM | {"gpu": NEED, "autoscaling": {}} | spec)["Deployment"]
    assert deployment["metadata"]["annotations"] == {"serving.tessera.dev/slots": want}


PLUGIN = {"resource": "nvidia.com/gpu.shared"}
PACED: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "Triton measures nothing": ({}, NEED, False),
    "Triton on a GPU that NVIDIA's plugin shares": ({}, PLUGIN, False),
    "vLLM whose KV cache gets its size from the share": (VLLM, NEED, False),
    "vLLM on a device of its own": (VLLM, ALONE, False),
    "vLLM on a device of its own, by a fraction": (VLLM | {"args": ["--gpu-memory-utilization=0.8"]}, ALONE, False),
    "vLLM by a fraction of what others use": (VLLM | {"args": ["--gpu-memory-utilization=0.4"]}, NEED, True),
    "vLLM with a KV cache of its user's": (VLLM | {"args": ["--kv-cache-memory-bytes=1G"]}, NEED, False),
    "a program that starts vLLM somehow": (VLLM | {"command": ["/serve"]}, NEED, True),
    "vLLM on a GPU that NVIDIA's plugin shares": (VLLM, PLUGIN, True),
}


@pytest.mark.parametrize("case", PACED)
def test_replicas_start_one_after_another_only_where_vllm_measures_a_gpu_of_others(case: str) -> None:
    spec, gpu, paced = PACED[case]
    scaled = spec | {"gpu": gpu, "replicas": {"max": 3}, "autoscaling": {"metric": "queue-time"}}
    found = rendered(scaled)["HorizontalPodAutoscaler"]["spec"]
    assert found["metrics"][0]["pods"]["target"]["averageValue"] == "500m"
    assert found["behavior"]["scaleDown"] == {
        "stabilizationWindowSeconds": 600,
        "selectPolicy": "Max",
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}],
    }
    each = {"type": "Pods", "value": 1, "periodSeconds": 180}
    by_default = [
        {"type": "Pods", "value": 4, "periodSeconds": 15},
        {"type": "Percent", "value": 100, "periodSeconds": 15},
    ]
    up = {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [each] if paced else by_default}
    assert found["behavior"]["scaleUp"] == up
    scaled["autoscaling"] = {"slots": 8}
    found = rendered(scaled)
    up["policies"] = by_default
    assert found["HorizontalPodAutoscaler"]["spec"]["behavior"]["scaleUp"] == up, "the metric knows which are ready"
    marked = found["Deployment"]["metadata"].get("annotations", {}).get("serving.tessera.dev/start-one-by-one")
    assert marked == ("true" if paced else None)


ONE_BY_ONE = VLLM | {"gpu": PLUGIN, "replicas": {"min": 3, "max": 8}}
BY_QUEUE_TIME = {"autoscaling": {"metric": "queue-time"}}
BY_KEDA = {"autoscaling": {"metric": "queue-time", "autoscaler": "KEDA"}}


@pytest.mark.parametrize(
    ("desired", "ready", "want"),
    [
        (0, 0, (1, 1)),  # a new server, or one without a replica
        (1, 0, (1, 1)),
        (1, 1, (2, 2)),
        (2, 1, (2, 2)),
        (2, 2, (3, 3)),
        (3, 3, (3, 4)),
        (5, 2, (3, 5)),  # those that are requested stay
        (8, 8, (3, 8)),
    ],
)
def test_in_a_cluster_the_next_replica_is_requested_when_all_others_are_ready(
    desired: int, ready: int, want: tuple[int, int]
) -> None:
    """The first ones too, and whatever scales: what measures the free memory of a GPU starts alone."""
    started, fewest = StartedReplicas(desired, ready), want[0]
    fixed = rendered(ONE_BY_ONE | {"replicas": {"min": 3}}, started=started)["Deployment"]["spec"]
    assert fixed["replicas"] == fewest
    assert fixed["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    by_tessera = rendered(ONE_BY_ONE, started=started)["HorizontalPodAutoscaler"]["spec"]
    assert (by_tessera["minReplicas"], by_tessera["maxReplicas"]) == (fewest, 8), "the policy waits for ready ones"
    by_time = rendered(ONE_BY_ONE | BY_QUEUE_TIME, started=started)["HorizontalPodAutoscaler"]["spec"]
    assert (by_time["minReplicas"], by_time["maxReplicas"]) == want
    assert [each["periodSeconds"] for each in by_time["behavior"]["scaleUp"]["policies"]] == [15, 15], "by no clock"
    keda = rendered(ONE_BY_ONE | BY_KEDA, prometheus="http://p:9090", namespace="n", started=started)["ScaledObject"]
    assert (keda["spec"]["minReplicaCount"], keda["spec"]["maxReplicaCount"]) == want


@pytest.mark.parametrize("start_s", [20, 100, 200, 700])
def test_however_long_a_start_takes_one_replica_starts_at_a_time(start_s: int) -> None:
    """Queue time asks for all from the first pass on; the objects are those of the replicas of the moment before."""
    ready_s, history, counts = [float(start_s)], HpaHistory(), list[int]()
    for now_s in range(0, 10 * start_s + 150, 15):
        ready = sum(each <= now_s for each in ready_s)
        found = rendered(ONE_BY_ONE | BY_QUEUE_TIME, started=StartedReplicas(len(ready_s), ready))
        spec = found["HorizontalPodAutoscaler"]["spec"]
        bounds = ReplicaBounds(spec["minReplicas"], spec["maxReplicas"])
        current = len(ready_s)
        decision = advance(history, 40, float(now_s), current=current, bounds=bounds, behavior=Behavior())
        history = decision.history
        ready_s += [now_s + start_s] * (decision.replicas - current)
        counts.append(sum(each > now_s for each in ready_s))
    assert max(counts) == 1
    assert len(ready_s) == 8


def test_where_nothing_is_measured_all_replicas_start_at_once() -> None:
    spec, started = {"replicas": {"min": 3, "max": 8}} | BY_QUEUE_TIME, StartedReplicas(1, 0)
    found = rendered(spec, started=started)["HorizontalPodAutoscaler"]["spec"]
    assert (found["minReplicas"], found["maxReplicas"]) == (3, 8)
    assert rendered({"replicas": {"min": 3}}, started=started)["Deployment"]["spec"]["replicas"] == 3


def test_keda_asks_the_prometheus_of_the_installation() -> None:
    found = rendered(KEDA, prometheus="http://prometheus:9090", namespace="serving")["ScaledObject"]["spec"]
    (trigger,) = found["triggers"]
    assert trigger["metadata"]["serverAddress"] == "http://prometheus:9090"
    assert trigger["metadata"]["threshold"] == "0.5"
    assert trigger["metricType"] == "Value", (
        "an average would be of the replicas: as many as wait / threshold, for ever"
    )
    assert 'serving_tessera_dev_server="ranker",namespace="serving"' in trigger["metadata"]["query"]
    assert (found["minReplicaCount"], found["maxReplicaCount"]) == (1, 3)
    assert trigger["metadata"]["ignoreNullValues"] == "false", "no answer is not no wait"
    assert found["fallback"] == {"failureThreshold": 3, "replicas": 1, "behavior": "currentReplicasIfHigher"}
    with pytest.raises(InvalidInput, match="--prometheus") as caught:
        rendered(KEDA)
    with pytest.raises(InvalidInput, match="KEDA's query would count servers of this name in all namespaces"):
        rendered(KEDA, prometheus="http://prometheus:9090")
    assert caught.value.subject == "server: spec.autoscaling.autoscaler"
