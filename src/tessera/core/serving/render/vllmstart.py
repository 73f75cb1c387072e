"""The program that starts vLLM in the container's share of memory, and renews its connections.

It runs in an image that has Python and nothing of Tessera, so it imports the standard library alone. What a pod knows
only as it starts is decided here: which device serves a request for memory is decided when the pod is bound.

vLLM budgets a fraction of the device it sees, by default 0.92, and refuses to start when less is free. On a device that
other pods use, what they allocate while vLLM measures would count as its own and what they free ends it, so that there
the KV cache gets a size and nothing is measured. Source: vllm 0.33.0, `vllm/v1/worker/utils.py` (`request_memory`) and
`gpu_worker.py` (`determine_available_memory`).
"""

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tessera.core.serving.modelmemory import Number, batch_bytes, stored_bytes, widths

__all__ = ["memory_options", "serve", "start"]


def start(words: Sequence[str], middleware: str) -> None:
    """Start vLLM in the container's share of memory.

    Args:
        words: sequences and tokens of the largest batch, the model's folder, and options of `vllm serve`.
        middleware: source of the module that renews connections.

    """
    sequences, tokens, model, *options = words
    free, total = importlib.import_module("torch").cuda.mem_get_info()
    options += memory_options(free, total, os.environ, Path(model), (int(sequences), int(tokens)))
    serve([model, *options], middleware)


def serve(words: Sequence[str], middleware: str) -> None:
    """Start vLLM with the model's folder and options of `vllm serve`.

    vLLM closes a connection that is idle for 5 s and never one that is busy, so that its client stays with its replica.
    Source: vllm 0.33.0 `vllm/entrypoints/launchers/api_server/entry.py` (uvicorn's `timeout_keep_alive`) and
    `entrypoints/serve/middleware/register.py`.
    """
    folder = tempfile.mkdtemp()
    Path(folder, "renewed_connections.py").write_text(middleware)
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    renews = "--middleware=renewed_connections.RenewedConnections"
    os.execvp("vllm", ["vllm", "serve", *words, renews])  # noqa: S606, S607  # the image's own


def memory_options(
    free: int, total: int, environment: Mapping[str, str], folder: Path, batch: tuple[int, int]
) -> list[str]:
    """Return the options that keep vLLM in its share.

    Args:
        free: bytes of the device.
        total: bytes of the device.
        environment: `TESSERA_GPU_MEMORY_MIB` and `TESSERA_GPU_MODE`, of each device; empty without Tessera.
        folder: the model's.
        batch: sequences and tokens of the largest.

    Raises:
        SystemExit: the model has no room, or its files do not say how much it needs.

    """
    allocated = min(int(_first(environment, "TESSERA_GPU_MEMORY_MIB") or 0) << 20 or total, total)
    usable = min(0.92 * allocated, free - (256 << 20))
    if usable <= 0:
        sys.exit(f"{free >> 20} MiB of the GPU are free: too little for vLLM")
    utilization = f"--gpu-memory-utilization={int(10000 * usable / total) / 10000}"
    if _first(environment, "TESSERA_GPU_MODE") in ("", "whole", "mig"):
        return [utilization]
    weights = _weights(folder)
    if not weights:
        sys.exit(f"{folder} has no *.safetensors, *.bin or *.pt: give --kv-cache-memory-bytes in spec.args")
    # Where config.json does not say so they are those of Llama 3 8B.
    found = widths(_number(_config(folder)), hidden=4096, vocabulary=128256)
    overhead = batch_bytes(*batch, found.hidden, found.intermediate, found.vocabulary, 2)
    cache = int(usable) - weights - overhead
    if cache <= 0:
        needs = f"the model has {weights >> 20} MiB and needs {overhead >> 20} MiB more"
        sys.exit(f"{needs}, the share {allocated >> 20} MiB: too little for a KV cache")
    return [utilization, f"--kv-cache-memory-bytes={cache}"]


def _first(environment: Mapping[str, str], name: str) -> str:
    """Return what a variable says of the first device."""
    return environment.get(name, "").split(",")[0]


def _weights(folder: Path) -> int:
    metadata = _document(folder / "model.safetensors.index.json").get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else 0
    sizes = {each.name: each.stat().st_size for each in folder.iterdir() if each.is_file()}
    return stored_bytes(sizes, total if isinstance(total, int) and total > 1 else 0)


def _config(folder: Path) -> dict[str, Any]:
    """Return the fields of the language model; models that see have them one level below."""
    config = _document(folder / "config.json")
    below = config.get("text_config")
    return below if isinstance(below, dict) and below else config


def _document(file: Path) -> dict[str, Any]:
    """Return the mapping in a file; an empty one without the file."""
    try:
        found = json.loads(file.read_bytes()) if file.is_file() else {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        sys.exit(f"{file} is no JSON object: mend it, or give --kv-cache-memory-bytes in spec.args")
    return found


def _number(config: Mapping[str, Any]) -> Number:
    def number(names: tuple[str, ...], default: int | None, most: int) -> int:
        name = next((each for each in names if config.get(each) is not None), names[0])
        found = config.get(name)
        if found is None:
            return default or 0
        if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= most:
            sys.exit(f"config.json: {name} is no number from 0 to {most}: give --kv-cache-memory-bytes in spec.args")
        return found or default or 0

    return number
