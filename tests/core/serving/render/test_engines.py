"""The command and ports of each engine, and what it is told of its part of a GPU."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from builders.modelconfigs import DEEPSEEK_V2_LITE, GEMMA, LLAMA_8B, QWEN3_235B, TINY
from builders.rendered import VLLM, container, rendered
from tessera.api import documents
from tessera.api.huggingface.modelconfigs import read_config
from tessera.cli.size import size
from tessera.core.serving.render.vllmstart import START, START_SIZED
from tessera.core.serving.sizing import Batch, overhead_bytes

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


MEMORY: dict[str, tuple[dict[str, Any], int, int, int, str, int | None]] = {
    "an instance of its own": ({"mode": "mig", "allocated": 9728}, 9728, 9500, 0, "0.9200", None),
    "no word of Tessera's": ({}, 40000, 39000, 0, "0.9200", None),
    "less is free than its fraction": ({"mode": "mig", "allocated": 4864}, 4864, 4400, 0, "0.8519", None),
    "a share under MPS": ({"mode": "mps", "allocated": 20480}, 81920, 60000, 6000, "0.2300", 11016),
    "two shares": ({"mode": "mps,mps", "allocated": "20480,20480"}, 81920, 60000, 6000, "0.2300", 11016),
    "a share of a full GPU": ({"mode": "mps", "allocated": 20480}, 81920, 100, 6000, "too little for vLLM", None),
    "too large a model": ({"mode": "mps", "allocated": 4096}, 81920, 60000, 6000, "too little for a KV cache", None),
    "no weights": ({"mode": "mps", "allocated": 20480}, 81920, 60000, 0, "give --kv-cache-memory-bytes", None),
}


class Started(NamedTuple):
    """What came of the program."""

    code: int
    options: str
    error: str

    @property
    def cache_bytes(self) -> list[int]:
        return [int(each) for each in re.findall(r"--kv-cache-memory-bytes=(\d+)", self.options)]


def start(folder: Path, given: dict[str, Any], total: int, free: int, *words: str) -> Started:
    """Run the program as it would in the image, beside a torch that says what the GPU has and a vllm that prints."""
    image = folder / "image"
    image.mkdir()
    (image / "torch.py").write_text(
        f"class cuda:\n    mem_get_info = staticmethod(lambda: ({free} << 20, {total} << 20))\n"
    )
    vllm = image / "vllm"
    # As vLLM does it: the class by its import path, once vLLM runs.
    load = "import renewed_connections as found; print(found.RenewedConnections.__name__)"
    vllm.write_text(f'#!/bin/sh\necho "$@"\n{sys.executable} -c "{load}"\n')
    vllm.chmod(0o755)
    environment = {"PYTHONPATH": str(image), "PATH": f"{image}:{os.environ['PATH']}"}
    if given:
        environment |= {"TESSERA_GPU_MODE": given["mode"], "TESSERA_GPU_MEMORY_MIB": str(given["allocated"])}
    program = (sys.executable, "-c", *(words or (START, "256", "2048")), str(folder), "--port=8000")
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    return Started(done.returncode, done.stdout, done.stderr)


def files(folder: Path, sizes: dict[str, int]) -> Path:
    """Make empty files of these sizes in MiB."""
    for name, size_mib in sizes.items():
        with (folder / name).open("wb") as file:
            file.truncate(size_mib << 20)
    return folder


@pytest.mark.parametrize("case", MEMORY)
def test_vllm_takes_the_memory_that_the_container_was_given(case: str, tmp_path: Path) -> None:
    given, total, free, weights, want, cache = MEMORY[case]
    done = start(files(tmp_path, {"a.safetensors": weights} if weights else {}), given, total, free)
    if not want[0].isdecimal():
        assert (done.code, done.options) == (1, "")
        assert want in done.error
        return
    assert done.options.startswith(f"serve {tmp_path} --port=8000 --gpu-memory-utilization="), done.error
    assert float(done.options.split("utilization=")[1].split()[0]) == float(want)
    assert [each >> 20 for each in done.cache_bytes] == ([] if cache is None else [cache])


SHARE, TOTAL, FREE = {"mode": "mps", "allocated": 24576}, 81920, 60000
SHARDS = {"model-00001-of-00002.safetensors": 7000, "model-00002-of-00002.safetensors": 7000}
STORED: dict[str, tuple[dict[str, int], int, int]] = {
    "by the index": (SHARDS, 13_990, 13_990),
    "shards without an index": (SHARDS, 0, 14_000),
    "shards, and once more in one file": (SHARDS | {"consolidated.safetensors": 13_991}, 14_000, 13_991),
    "one file of that name alone": ({"consolidated.safetensors": 14_000}, 0, 14_000),
    "of PyTorch": ({"pytorch_model-1.bin": 9000, "pytorch_model-2.bin": 5000, "training_args.bin": 1}, 0, 14_000),
    "of both formats": (SHARDS | {"pytorch_model.bin": 14_000}, 0, 14_000),
    "of checkpoints": ({"model.pt": 14_000, "optimizer.pt": 5000}, 0, 14_000),
    "none": ({"tokenizer.json": 3, "training_args.bin": 1}, 0, 0),
}


@pytest.mark.parametrize("case", STORED)
def test_weights_count_once_as_tessera_size_counts_them(case: str, tmp_path: Path) -> None:
    sizes, total_mib, want = STORED[case]
    (files(tmp_path, sizes) / "config.json").write_text(json.dumps(LLAMA_8B))
    if total_mib:
        index = {"metadata": {"total_size": total_mib << 20}, "weight_map": {}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    printed = CliRunner().invoke(size, [str(tmp_path), "-o", "json"]).stdout
    counted = json.loads(printed)["weight_bytes"]
    assert counted == (want << 20 or 2 * 8_030_261_248), "without files by the widths"
    done = start(tmp_path, SHARE, TOTAL, FREE)
    if want:
        (cache,) = done.cache_bytes
        overhead = overhead_bytes(read_config(documents.one("", json.dumps(LLAMA_8B))).architecture, Batch(256, 2048))
        assert cache == int(0.92 * 24576 * (1 << 20)) - (want << 20) - overhead
    else:
        assert "give --kv-cache-memory-bytes" in done.error


CONFIGS = {
    "Llama": LLAMA_8B,
    "experts": QWEN3_235B,
    "experts of two kinds": DEEPSEEK_V2_LITE,
    "a small one": TINY,
    "one below a model of images": GEMMA,
}


@pytest.mark.parametrize("case", CONFIGS)
def test_what_is_kept_beside_the_cache_is_what_tessera_size_says_of_the_model(case: str, tmp_path: Path) -> None:
    config = CONFIGS[case]
    (files(tmp_path, {"model.safetensors": 1000}) / "config.json").write_text(json.dumps(config))
    (cache,) = start(tmp_path, SHARE, TOTAL, FREE).cache_bytes
    overhead = overhead_bytes(read_config(documents.one("", json.dumps(config))).architecture, Batch(256, 2048))
    assert cache == int(0.92 * 24576 * (1 << 20)) - (1000 << 20) - overhead


@pytest.mark.parametrize("words", [(START, "256", "2048"), (START_SIZED,)])
def test_vllm_loads_what_renews_its_connections(words: tuple[str, ...], tmp_path: Path) -> None:
    done = start(files(tmp_path, {}), {}, TOTAL, FREE, *words)
    serve, loaded = done.options.splitlines()
    assert serve.endswith(" --middleware=renewed_connections.RenewedConnections"), done.error
    assert loaded == "RenewedConnections"


def test_the_memory_of_vllm_is_the_users_where_the_user_says_it() -> None:
    assert container(VLLM)["command"] == ["python3", "-c", START, "64", "2048"]
    assert container(VLLM | {"args": ["--gpu-memory-utilization=0.4"]})["command"] == ["python3", "-c", START_SIZED]
    assert "mem_get_info" not in START_SIZED
    assert container(VLLM | {"command": ["/serve"]})["command"] == ["/serve"]
