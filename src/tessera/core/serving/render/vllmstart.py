"""The options that keep vLLM in its container's share of memory.

This runs in an image that has Python and nothing of Tessera, so it imports the standard library alone. What a pod knows
only as it starts is decided here: which device serves a request for memory is decided when the pod is bound.

On a device that other pods use, what they allocate while vLLM measures would count as its own and what they free ends
it, so that there the KV cache gets a size and nothing is measured. Source: vllm 0.33.0, `vllm/v1/worker/gpu_worker.py`
(`determine_available_memory`).
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from tessera.core.serving.modelmemory import Number, batch_bytes, stored_bytes, widths
from tessera.core.serving.render.vllmdevice import first_of, usable_memory

__all__ = ["CONFIG", "INDEX", "memory_options"]

CONFIG: Final = "config.json"
INDEX: Final = "model.safetensors.index.json"


def memory_options(
    memory: tuple[int, int],
    environment: Mapping[str, str],
    sizes: dict[str, int],
    documents: Mapping[str, bytes],
    batch: tuple[int, int],
) -> list[str]:
    """Return the options that keep vLLM in its share.

    Args:
        memory: bytes of the device that are free, and all.
        environment: `TESSERA_GPU_MEMORY_MIB` and `TESSERA_GPU_MODE`, of each device; empty without Tessera.
        sizes: of the files in the model's folder, by name.
        documents: those of them that say what the model is, `CONFIG` and `INDEX`.
        batch: sequences and tokens of the largest.

    Raises:
        SystemExit: the model has no room, or its files do not say how much it needs.

    """
    allocated, usable, utilization = usable_memory(memory, environment)
    if first_of(environment, "TESSERA_GPU_MODE") in ("", "whole", "mig"):
        return [utilization]
    metadata = _document(documents, INDEX).get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, dict) else 0
    weights = stored_bytes(sizes, size if isinstance(size, int) and size > 1 else 0)
    if not weights:
        raise SystemExit("the model has no *.safetensors, *.bin or *.pt: give --kv-cache-memory-bytes in spec.args")
    # Where config.json does not say so they are those of Llama 3 8B.
    found = widths(_number(_config(documents)), hidden=4096, vocabulary=128256)
    overhead = batch_bytes(*batch, found.hidden, found.intermediate, found.vocabulary, 2)
    cache = usable - weights - overhead
    if cache <= 0:
        needs = f"the model has {weights >> 20} MiB and needs {overhead >> 20} MiB more, too little for a KV cache"
        raise SystemExit(f"share of {allocated >> 20} MiB: {needs}: request what `tessera size` says")
    return [utilization, f"--kv-cache-memory-bytes={cache}"]


def _config(documents: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the fields of the language model; models that see have them one level below."""
    config = _document(documents, CONFIG)
    below = config.get("text_config")
    return below if isinstance(below, dict) and below else config


def _document(documents: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """Return the object in a file; an empty one without the file."""
    try:
        found = json.loads(documents.get(name, b"{}"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise SystemExit(f"{name} is not a JSON object: fix it, or set --kv-cache-memory-bytes in spec.args")
    return found


def _number(config: Mapping[str, Any]) -> Number:
    def number(names: tuple[str, ...], default: int | None, most: int) -> int:
        name = next((each for each in names if config.get(each) is not None), names[0])
        found = config.get(name)
        if found is None:
            return default or 0
        if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= most:
            raise SystemExit(
                f"config.json: {name} is not a number from 0 to {most}: set --kv-cache-memory-bytes in spec.args"
            )
        return found or default or 0

    return number
