"""What a model server becomes in Kubernetes: objects, options of the engine, memory, drains."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from builders.modelservers import server
from builders.rendered import VLLM, container, pod_template, rendered
from tessera.core.serving.render import SERVER_LABEL, job
from tessera.core.serving.render.engines import START
from tessera.core.serving.render.queuetime import queue_time_query
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


def test_in_a_cluster_the_server_owns_them_without_a_right_to_its_finalizers() -> None:
    found = rendered(namespace="serving", uid="u1")
    owner = {"apiVersion": "tessera.dev/v1alpha1", "kind": "ModelServer", "name": "ranker", "uid": "u1"}
    assert all(each["metadata"]["ownerReferences"] == [owner | {"controller": True}] for each in found.values())
    assert {each["metadata"]["namespace"] for each in found.values()} == {"serving"}


def test_triton_has_its_repository_ports_and_the_grace_period() -> None:
    found = container({"terminationGracePeriodSeconds": 200, "startupSeconds": 601})
    assert found["command"] == ["tritonserver"]
    assert found["args"][0] == "--model-repository=/models/ranker"
    assert "--exit-timeout-secs=180" in found["args"]
    assert found["ports"] == [
        {"name": "http", "containerPort": 8000},
        {"name": "grpc", "containerPort": 8001},
        {"name": "metrics", "containerPort": 8002},
    ]
    assert found["startupProbe"]["failureThreshold"] == 61
    assert found["startupProbe"]["httpGet"]["path"] == "/v2/health/ready"
    assert found["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"
    assert found["lifecycle"] == {"preStop": {"sleep": {"seconds": 15}}}
    deployment = rendered({"startupSeconds": 601})["Deployment"]["spec"]
    assert deployment["progressDeadlineSeconds"] > 601


def test_vllm_has_its_metrics_on_the_port_of_its_api() -> None:
    found = rendered(VLLM)
    (one,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert one["ports"] == [{"name": "http", "containerPort": 8000}]
    assert found["Service"]["spec"]["ports"] == [
        {"name": "http", "port": 8000, "targetPort": "http"},
        {"name": "metrics", "port": 8002, "targetPort": "http"},
    ]
    assert found["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["port"] == "http"
    assert rendered()["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["port"] == "metrics"


LIMITS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a small MIG instance": ({"resource": "nvidia.com/mig-1g.10gb"}, ["64", "2048"]),
    "a MIG instance": ({"resource": "nvidia.com/mig-2g.35gb"}, ["256", "8192"]),
    "a need": (NEED, ["256", "2048"]),
    "a large need": ({"memoryGiB": 70}, ["1024", "8192"]),
    "whole GPUs, of which vLLM knows the memory": ({"resource": "nvidia.com/gpu", "count": 2}, ["256"]),
    "whole GPUs of known models": ({"resource": "nvidia.com/gpu", "models": ["L4", "H100-80GB"]}, ["256", "2048"]),
    "a whole large GPU": ({"resource": "nvidia.com/gpu", "models": ["H100-80GB"]}, ["1024", "8192"]),
}


@pytest.mark.parametrize("case", LIMITS)
def test_on_a_part_of_a_gpu_vllm_is_told_the_size_of_its_batches(case: str) -> None:
    gpu, want = LIMITS[case]
    args = container(VLLM | {"gpu": gpu})["args"]
    given = [each.partition("=")[2] for each in args if re.match("--max-num-(seqs|batched-tokens)=", each)]
    assert given == want
    assert f"--tensor-parallel-size={gpu.get('count', 1)}" in args


def test_a_program_of_the_users_gets_the_options() -> None:
    found = container({"command": ["/serve"]})
    assert (found["command"], found["args"][0]) == (["/serve"], "--model-repository=/models/ranker")


MEMORY: dict[str, tuple[dict[str, Any], int, int, int, str, int | None]] = {
    "an instance of its own": ({"mode": "mig", "allocated": 9728}, 9728, 9500, 0, "0.9200", None),
    "no word of Tessera's": ({}, 40000, 39000, 0, "0.9200", None),
    "less is free than its fraction": ({"mode": "mig", "allocated": 4864}, 4864, 4400, 0, "0.8519", None),
    "a share under MPS": ({"mode": "mps", "allocated": 20480}, 81920, 60000, 6000, "0.2300", 18841 - 6000 - 2048),
    "two shares": ({"mode": "mps,mps", "allocated": "20480,20480"}, 81920, 60000, 6000, "0.2300", 10793),
    "a share of a full GPU": ({"mode": "mps", "allocated": 20480}, 81920, 100, 6000, "too little for vLLM", None),
    "too large a model": ({"mode": "mps", "allocated": 4096}, 81920, 60000, 6000, "too little for a KV cache", None),
}


@pytest.mark.parametrize("case", MEMORY)
def test_vllm_takes_the_memory_that_the_container_was_given(case: str, tmp_path: Path) -> None:
    """The program runs as it would in the image, beside a torch that says what the GPU has and a vllm that prints."""
    given, total, free, weights, want, cache = MEMORY[case]
    (tmp_path / "torch.py").write_text(
        f"class cuda:\n    mem_get_info = staticmethod(lambda: ({free} << 20, {total} << 20))\n"
    )
    vllm = tmp_path / "vllm"
    vllm.write_text('#!/bin/sh\necho "$@"\n')
    vllm.chmod(0o755)
    with (tmp_path / "a.safetensors").open("wb") as file:
        file.truncate(weights << 20)
    environment = {"PYTHONPATH": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    if given:
        environment |= {"TESSERA_GPU_MODE": given["mode"], "TESSERA_GPU_MEMORY_MIB": str(given["allocated"])}
    words = (sys.executable, "-c", START, "2048", str(tmp_path), "--port=8000")
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if want.startswith("too little"):
        assert (done.returncode, done.stdout) == (1, "")
        assert want in done.stderr
        return
    assert done.stdout.startswith(f"serve {tmp_path} --port=8000 --gpu-memory-utilization="), done.stderr
    assert float(done.stdout.split("utilization=")[1].split()[0]) == float(want)
    sizes = re.findall(r"--kv-cache-memory-bytes=(\d+)", done.stdout)
    assert [int(each) >> 20 for each in sizes] == ([] if cache is None else [cache])


def test_vllm_is_started_plainly_where_the_user_says_its_memory() -> None:
    assert container(VLLM)["command"][:2] == ["python3", "-c"]
    assert container(VLLM | {"args": ["--gpu-memory-utilization=0.4"]})["command"] == ["vllm", "serve"]


SHARED_MEMORY: dict[str, tuple[dict[str, Any], bool, str | None]] = {
    "an exact instance": ({"resource": "nvidia.com/mig-1g.10gb"}, True, "hardware"),
    "a shared one": ({"resource": "nvidia.com/mig-1g.10gb.shared"}, False, None),
    "a GPU that may be shared": ({"resource": "nvidia.com/gpu", "isolation": "none"}, False, "none"),
    "a need": (NEED, False, None),
    "a need for oneself": (ALONE, True, "hardware"),
}


@pytest.mark.parametrize("case", SHARED_MEMORY)
def test_shared_memory_is_the_pods_own_only_where_mps_cannot_serve(case: str) -> None:
    """A client of MPS that has /dev/shm of its own does not reach the daemon."""
    gpu, want, asked = SHARED_MEMORY[case]
    found = pod_template({"gpu": gpu})
    assert (
        {"name": "shared-memory", "mountPath": "/dev/shm"} in found["spec"]["containers"][0]["volumeMounts"]
    ) is want
    assert ("shared-memory" in {each["name"] for each in found["spec"]["volumes"]}) is want
    assert found["metadata"].get("annotations", {}).get("tessera.dev/isolation") == asked


MODELS = {
    "a cache": ({"cache": "llama"}, None, "/models/llama"),
    "a claim": (
        {"claim": "c", "name": "m"},
        {"persistentVolumeClaim": {"claimName": "c", "readOnly": True}},
        "/models/m",
    ),
    "NFS": (
        {"nfs": {"server": "nfs", "path": "/a"}},
        {"nfs": {"server": "nfs", "path": "/a", "readOnly": True}},
        "/models/ranker",
    ),
    "the host": ({"hostPath": "/mnt"}, {"hostPath": {"path": "/mnt", "type": "Directory"}}, "/models/ranker"),
}


@pytest.mark.parametrize("case", MODELS)
def test_the_model_is_read_only_and_where_the_engine_looks(case: str) -> None:
    model, want, path = MODELS[case]
    found = pod_template({"model": model})["spec"]
    volumes = {each.pop("name"): each for each in found["volumes"]}
    (one,) = found["containers"]
    mounts = [each for each in one["volumeMounts"] if each["name"] == "model"]
    assert volumes.get("model") == want
    assert mounts == ([{"name": "model", "mountPath": path, "readOnly": True}] if want else [])
    assert one["args"][0] == f"--model-repository={path}"
    assert one["resources"]["limits"].get("models.tessera.dev/llama") == (None if want else "1")


def test_a_need_is_asked_for_in_tesseras_words() -> None:
    gpu = {"memoryGiB": 20, "compute": 30, "models": ["A100-40GB", "H100-80GB"]}
    found = pod_template({"gpu": gpu})
    limits = found["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"memory": "8Gi", "tessera.dev/gpu-memory": "20", "tessera.dev/gpu-compute": "30"}
    assert found["metadata"]["annotations"] == {"tessera.dev/gpu-model": "A100-40GB, H100-80GB"}


def test_a_need_names_the_scheduler_that_serves_it_and_a_device_by_name_any() -> None:
    """Where nothing routes pods, another scheduler would place them, and their Deployment make them for ever."""
    assert pod_template({"gpu": NEED})["spec"]["schedulerName"] == "tessera-scheduler"
    assert "schedulerName" not in pod_template({"gpu": {"resource": "nvidia.com/mig-1g.10gb"}})["spec"]


def test_a_pod_has_what_the_restricted_standard_asks_and_no_token() -> None:
    found = pod_template()["spec"]
    (one,) = found["containers"]
    assert found["automountServiceAccountToken"] is False
    assert found["securityContext"]["runAsNonRoot"] is True
    assert found["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert one["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert pod_template({"runAsUser": 0})["spec"]["securityContext"]["runAsNonRoot"] is False


def test_the_users_words_for_the_pod_are_in_it() -> None:
    spec = {
        "env": [
            {"name": "HOME", "value": "/h"},
            {"name": "T", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}},
        ],
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "tolerationSeconds": 5}],
        "imagePullSecrets": ["registry"],
    }
    found = pod_template(spec)["spec"]
    assert found["containers"][0]["env"] == [
        {"name": "USER", "value": "server"},
        {"name": "HOME", "value": "/h"},
        {"name": "T", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}},
    ]
    assert found["nodeSelector"] == {"pool": "gpu"}
    assert found["tolerations"] == [{"key": "gpu", "operator": "Exists", "tolerationSeconds": 5}]
    assert found["imagePullSecrets"] == [{"name": "registry"}]


def test_services_for_clients_outside_and_for_those_that_balance_themselves() -> None:
    outside = rendered({"expose": {"type": "LoadBalancer", "annotations": {"a": "b"}}})["Service"]
    assert outside["spec"]["type"] == "LoadBalancer"
    assert [each["name"] for each in outside["spec"]["ports"]] == ["http", "grpc"], "metrics stay inside"
    assert outside["metadata"]["annotations"] == {"a": "b"}
    assert rendered({"expose": {"type": "Headless"}})["Service"]["spec"]["clusterIP"] == "None"


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
    assert "annotations" not in rendered({"autoscaling": {}})["Deployment"]["metadata"]
    assert "replicas" not in scaled["Deployment"]["spec"]
    found = scaled["HorizontalPodAutoscaler"]["spec"]
    assert (found["minReplicas"], found["maxReplicas"]) == (1, 7)
    (metric,) = found["metrics"]
    assert metric["external"]["metric"]["selector"] == {"matchLabels": {SERVER_LABEL: "ranker"}}
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "1"}


def test_a_server_that_sleeps_has_an_autoscaler_that_every_cluster_takes() -> None:
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


def test_replicas_that_may_be_the_only_ones_are_replaced_by_ready_ones() -> None:
    def unavailable(replicas: dict[str, int]) -> int | str:
        found: int | str = rendered({"replicas": replicas})["Deployment"]["spec"]["strategy"]["rollingUpdate"][
            "maxUnavailable"
        ]
        return found

    bounds = ({"min": 1}, {"min": 2}, {"min": 0, "max": 1}, {"min": 1, "max": 4})
    assert [unavailable(each) for each in bounds] == [0, 1, "25%", "25%"], "rounded down: 0 of up to 3"


def test_replicas_that_may_share_a_gpu_start_one_after_another() -> None:
    def policies(gpu: dict[str, Any]) -> list[dict[str, Any]]:
        spec = {"gpu": gpu, "replicas": {"max": 3}, "autoscaling": {"metric": "queue-time"}}
        found = rendered(spec)["HorizontalPodAutoscaler"]["spec"]
        assert found["metrics"][0]["pods"]["target"]["averageValue"] == "500m"
        assert found["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 600
        return list(found["behavior"]["scaleUp"]["policies"])

    assert policies(NEED) == [{"type": "Pods", "value": 1, "periodSeconds": 180}]
    assert len(policies(ALONE)) == 2


def test_keda_asks_the_prometheus_of_the_installation() -> None:
    found = rendered(KEDA, prometheus="http://prometheus:9090", namespace="serving")["ScaledObject"]["spec"]
    (trigger,) = found["triggers"]
    assert trigger["metadata"]["serverAddress"] == "http://prometheus:9090"
    assert trigger["metadata"]["threshold"] == "0.5"
    assert 'serving_tessera_dev_server="ranker",namespace="serving"' in trigger["metadata"]["query"]
    assert (found["minReplicaCount"], found["maxReplicaCount"]) == (1, 3)
    with pytest.raises(InvalidInput, match="--prometheus") as caught:
        rendered(KEDA)
    with pytest.raises(InvalidInput, match="KEDA's query would count servers of this name in all namespaces"):
        rendered(KEDA, prometheus="http://prometheus:9090")
    assert caught.value.subject == "server: spec.autoscaling.autoscaler"


def test_the_queue_time_is_in_seconds_and_none_where_nobody_asks() -> None:
    triton, vllm = queue_time_query("triton", "a", ""), queue_time_query("vllm", "a", "n")
    assert "nv_inference_queue_duration_us" in triton
    assert "* 1e-06 /" in triton
    assert "namespace" not in triton
    assert vllm.endswith(
        "or (0 * sum(increase(vllm:request_queue_time_seconds_count"
        '{serving_tessera_dev_server="a",namespace="n"}[120s])))'
    )


def test_a_job_has_the_servers_model_and_gpu_and_is_not_found_by_its_service() -> None:
    found = job(server(VLLM | {"gpu": ALONE}), ("python3", "run.py"), parallelism=4, completions=60)
    assert (found["kind"], found["spec"]["parallelism"], found["spec"]["completions"]) == ("Job", 4, 60)
    template = found["spec"]["template"]
    (one,) = template["spec"]["containers"]
    assert one["command"] == ["python3", "run.py"]
    assert (
        one["resources"]["limits"].items() >= {"tessera.dev/gpu-memory": "20", "models.tessera.dev/llama": "1"}.items()
    )
    assert not {"args", "ports", "readinessProbe", "lifecycle"} & one.keys()
    assert SERVER_LABEL not in template["metadata"]["labels"]
    assert template["spec"]["restartPolicy"] == "Never"
    assert "command" not in job(server(), (), parallelism=1, completions=1)["spec"]["template"]["spec"]["containers"][0]
