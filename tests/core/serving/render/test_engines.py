"""The command and ports of each engine, and what it is told of its part of a GPU."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from builders.rendered import VLLM, container, rendered
from tessera.core.serving.render.engines import START

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
def test_on_a_part_of_a_gpu_vllm_gets_the_size_of_its_batches(case: str) -> None:
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
