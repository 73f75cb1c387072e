"""The program that starts vLLM: what it makes of the GPU, the share and the model's files, in the image alone."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from builders.modelconfigs import DEEPSEEK_V2_LITE, GEMMA, LLAMA_8B, QWEN3_235B, TINY
from tessera.api import documents
from tessera.api.huggingface.modelconfigs import read_config
from tessera.cli.size import size
from tessera.core.serving.render.vllmprogram import START, START_ALONE, START_SIZED
from tessera.core.serving.render.vllmstart import CONFIG, INDEX, memory_options
from tessera.core.serving.sizing import Batch, overhead_bytes
from tessera.errors import InvalidInput

MEMORY: dict[str, tuple[dict[str, Any], int, int, int, str, int | None]] = {
    "an instance of its own": ({"mode": "mig", "allocated": 9728}, 9728, 9500, 0, "0.9200", None),
    "no word of Tessera's": ({}, 40000, 39000, 0, "0.9200", None),
    "less is free than its fraction": ({"mode": "mig", "allocated": 4864}, 4864, 4400, 0, "0.8519", None),
    "a share under MPS": ({"mode": "mps", "allocated": 20480}, 81920, 60000, 6000, "0.2300", 10992),
    "two shares": ({"mode": "mps,mps", "allocated": "20480,20480"}, 81920, 60000, 6000, "0.2300", 10992),
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


def start(folder: Path, given: dict[str, Any], total: int, free: int, *arguments: str) -> Started:
    """Run the program as it would in the image, beside a torch that says what the GPU has and a vllm that prints."""
    image = folder / "image"
    image.mkdir()
    (image / "torch.py").write_text(
        f"class cuda:\n    mem_get_info = staticmethod(lambda: ({free} << 20, {total} << 20))\n"
    )
    vllm = image / "vllm"
    # As vLLM does it: the class by its import path, once vLLM runs.
    load = "import renewed_connections as found; print(found.RenewedByChance.__mro__[1].__name__)"
    vllm.write_text(f'#!/bin/sh\necho "$@"\n{sys.executable} -c "{load}"\n')
    vllm.chmod(0o755)
    environment = {"PYTHONPATH": str(image), "PATH": f"{image}:{os.environ['PATH']}"}
    if given:
        environment |= {"TESSERA_GPU_MODE": given["mode"], "TESSERA_GPU_MEMORY_MIB": str(given["allocated"])}
    program = (sys.executable, "-c", *(arguments or (START, "256", "2048")), str(folder), "--port=8000")
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    return Started(done.returncode, done.stdout, done.stderr)


def options_of(folder: Path, memory: tuple[int, int], environment: dict[str, str]) -> list[str]:
    """Return what the program adds, in this process."""
    sizes = {each.name: each.stat().st_size for each in folder.iterdir() if each.is_file()}
    documents: dict[str, bytes] = {name: (folder / name).read_bytes() for name in (CONFIG, INDEX) if name in sizes}
    return memory_options(memory, environment, sizes, documents, (256, 2048))


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


@pytest.mark.parametrize("case", [case for case, (given, *_) in MEMORY.items() if "mps" not in given.get("mode", "")])
def test_on_a_device_of_its_own_the_short_program_does_the_same(case: str, tmp_path: Path) -> None:
    given, total, free, *_ = MEMORY[case]
    (tmp_path / "long").mkdir()
    (tmp_path / "short").mkdir()
    long, short = (
        start(tmp_path / "long", given, total, free),
        start(tmp_path / "short", given, total, free, START_ALONE),
    )
    assert short.options.replace("short", "long") == long.options != ""
    full = start(files(tmp_path, {}), given, total, 100, START_ALONE)
    assert (full.code, "too little for vLLM" in full.error) == (1, True)


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


FIELDS = (
    "hidden_size",
    "n_embd",
    "intermediate_size",
    "n_inner",
    "vocab_size",
    "num_experts_per_tok",
    "num_experts",
    "n_routed_experts",
    "moe_intermediate_size",
    "n_shared_experts",
    "text_config",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9000) | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=2),
    max_leaves=4,
)


@given(base=st.sampled_from([*CONFIGS.values()]), more=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3))
def test_any_config_gives_the_memory_of_tessera_size_or_a_sentence(base: dict[str, Any], more: dict[str, Any]) -> None:
    config = base | more
    environment = {"TESSERA_GPU_MODE": "mps", "TESSERA_GPU_MEMORY_MIB": "60000"}
    with TemporaryDirectory() as name:
        folder = files(Path(name), {"model.safetensors": 1})
        (folder / "config.json").write_text(json.dumps(config))
        try:
            *_, option = options_of(folder, (80 << 30, 80 << 30), environment)
        except SystemExit as error:
            option = str(error)
    try:
        architecture = read_config(documents.one("", json.dumps(config))).architecture
    except InvalidInput:
        assert re.match(r"--kv-cache-memory-bytes=\d+$|config.json: \w+ is not a |the model has ", option), option
        return
    want = int(0.92 * (60000 << 20)) - (1 << 20) - overhead_bytes(architecture, Batch(256, 2048))
    assert option == f"--kv-cache-memory-bytes={want}" or (want <= 0 and "too little for a KV cache" in option)


BROKEN: dict[str, tuple[dict[str, bytes], str]] = {
    "no JSON": ({"config.json": b"{"}, "config.json is not a JSON object"),
    "no text": ({"config.json": b"\xff\xfe\xfd"}, "config.json is not a JSON object"),
    "a list": ({"config.json": b"[]"}, "config.json is not a JSON object"),
    "lists without end": ({"config.json": b"[" * 100_000}, "config.json is not a JSON object"),
    "a width that is a list": ({"config.json": b'{"intermediate_size": [1]}'}, "intermediate_size is not a number"),
    "an index that is none": ({"model.safetensors.index.json": b"3"}, "index.json is not a JSON object"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_model_of_broken_files_does_not_start_and_says_why(case: str, tmp_path: Path) -> None:
    broken, want = BROKEN[case]
    for name, content in broken.items():
        (files(tmp_path, {"model.safetensors": 1000}) / name).write_bytes(content)
    environment = {"TESSERA_GPU_MODE": "mps", "TESSERA_GPU_MEMORY_MIB": "24576"}
    with pytest.raises(SystemExit, match=want):
        options_of(tmp_path, (FREE << 20, TOTAL << 20), environment)
    done = start(tmp_path, SHARE, TOTAL, FREE)
    assert (done.code, done.options, done.error.count("\n")) == (1, "", 1), done.error
    assert want in done.error
    assert "--kv-cache-memory-bytes in spec.args" in done.error


@pytest.mark.parametrize("metadata", [b"[]", b'{"total_size": -5}', b'{"total_size": "9"}', b'{"total_size": true}'])
def test_an_index_without_its_size_leaves_that_of_the_files(metadata: bytes, tmp_path: Path) -> None:
    (files(tmp_path, {"model.safetensors": 1000}) / "config.json").write_text(json.dumps(LLAMA_8B))
    (without,) = start(tmp_path, SHARE, TOTAL, FREE).cache_bytes
    (tmp_path / "model.safetensors.index.json").write_bytes(b'{"metadata": ' + metadata + b"}")
    environment = {"TESSERA_GPU_MODE": "mps", "TESSERA_GPU_MEMORY_MIB": "24576"}
    found = options_of(tmp_path, (FREE << 20, TOTAL << 20), environment)
    assert found[1] == f"--kv-cache-memory-bytes={without}"


UNSTARTED = {
    "no memory": (100 << 20, {"model.safetensors": 1}, "too little for vLLM"),
    "no weights": (70 << 30, {}, "give --kv-cache-memory-bytes"),
    "no room": (1 << 29, {"model.safetensors": 1}, "too little for a KV cache"),
}


@pytest.mark.parametrize("case", UNSTARTED)
def test_what_cannot_start_says_why(case: str, tmp_path: Path) -> None:
    free, sizes, want = UNSTARTED[case]
    with pytest.raises(SystemExit, match=want):
        options_of(files(tmp_path, sizes), (free, 80 << 30), {"TESSERA_GPU_MODE": "mps"})
    assert options_of(tmp_path, (70 << 30, 80 << 30), {}) == ["--gpu-memory-utilization=0.8718"]


@pytest.mark.parametrize("arguments", [(START, "256", "2048"), (START_ALONE,), (START_SIZED,)])
def test_vllm_loads_what_renews_its_connections(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = start(files(tmp_path, {}), {}, TOTAL, FREE, *arguments)
    serve, loaded = done.options.splitlines()
    assert serve.endswith(" --middleware=renewed_connections.RenewedByChance"), done.error
    assert loaded == "RenewedConnections"
