"""The command and ports of each engine, and its options for a part of a GPU."""

import re
from typing import Any

import pytest

from builders.rendered import VLLM, container, rendered
from tessera.core.serving.render.vllmprogram import START, START_ALONE, START_SIZED

NEED = {"memoryGiB": 20}


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
    assert found["startupProbe"]["failureThreshold"] == 62
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
    "a GPU that NVIDIA's plugin shares": ({"resource": "nvidia.com/gpu.shared"}, ["256", "2048"]),
    "a known GPU that it shares": ({"resource": "nvidia.com/gpu.shared", "models": ["H100-80GB"]}, ["256", "2048"]),
    "a MIG instance that it shares": ({"resource": "nvidia.com/mig-1g.10gb.shared"}, ["64", "2048"]),
    "a whole large GPU": ({"resource": "nvidia.com/gpu", "models": ["H100-80GB"]}, ["1024", "8192"]),
}


@pytest.mark.parametrize("case", LIMITS)
def test_on_a_part_of_a_gpu_vllm_gets_the_size_of_its_batches(case: str) -> None:
    gpu, want = LIMITS[case]
    args = container(VLLM | {"gpu": gpu})["args"]
    given = [each.partition("=")[2] for each in args if re.match("--max-num-(seqs|batched-tokens)=", each)]
    assert given == want
    assert f"--tensor-parallel-size={gpu.get('count', 1)}" in args


def test_a_program_of_the_users_gets_the_options() -> None:
    found = container({"command": ["/serve"]})
    assert (found["command"], found["args"][0]) == (["/serve"], "--model-repository=/models/ranker")


BATCH_ARGS: dict[str, tuple[list[str], list[str]]] = {
    "both": (["--max-num-batched-tokens=32768", "--max-num-seqs", "1024"], ["1024", "32768"]),
    "one": (["--max_num_seqs=7"], ["7", "2048"]),
    "the last counts": (["--max-num-seqs=7", "--max-num-seqs=9"], ["9", "2048"]),
}


@pytest.mark.parametrize("case", BATCH_ARGS)
def test_memory_is_kept_for_the_batch_of_the_users_args(case: str) -> None:
    args, want = BATCH_ARGS[case]
    assert container(VLLM | {"gpu": NEED, "args": args})["command"] == ["python3", "-c", START, *want]


def test_the_memory_of_vllm_is_the_users_where_the_user_says_it() -> None:
    assert container(VLLM)["command"] == ["python3", "-c", START_ALONE]
    assert container(VLLM | {"gpu": NEED | {"isolation": "hardware"}})["command"] == ["python3", "-c", START_ALONE]
    assert container(VLLM | {"gpu": NEED})["command"] == ["python3", "-c", START, "256", "2048"]
    shared = {"resource": "nvidia.com/mig-1g.10gb.shared"}
    assert container(VLLM | {"gpu": shared})["command"] == ["python3", "-c", START, "64", "2048"]
    assert container(VLLM | {"args": ["--gpu-memory-utilization=0.4"]})["command"] == ["python3", "-c", START_SIZED]
    assert container(VLLM | {"command": ["/serve"]})["command"] == ["/serve"]
