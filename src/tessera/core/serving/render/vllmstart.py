"""The programs that start vLLM: within the container's share of memory, and with connections that are renewed."""

import inspect
from typing import Final

from tessera.core.serving.render import connections
from tessera.core.serving.sizing import batch_bytes, stored_bytes

__all__ = ["START", "START_SIZED"]

# The share of the device is known only to the container: which device serves a request for memory is decided when the
# pod is bound. vLLM reckons with a fraction of the device that it sees, refuses to start when less is free, and takes
# the 0.92 of the whole where nobody tells it. On a device that other pods use, what they allocate while vLLM measures
# would count as its own and what they free ends it, so that there the KV cache gets a size and nothing is measured.
# Source: vllm 0.33.0, `vllm/v1/worker/utils.py` (`request_memory`) and `gpu_worker.py` (`determine_available_memory`).
_MEMORY: Final = """\
sequences, tokens, model, *options = sys.argv[1:]
free, total = torch.cuda.mem_get_info()
first = lambda name: os.environ.get(name, "").split(",")[0]
allocated = min(int(first("TESSERA_GPU_MEMORY_MIB") or 0) << 20 or total, total)
usable = min(0.92 * allocated, free - (256 << 20))
if usable <= 0:
    sys.exit(f"{free >> 20} MiB of the GPU are free: too little for vLLM")
options.append(f"--gpu-memory-utilization={int(10000 * usable / total) / 10000}")
if first("TESSERA_GPU_MODE") not in ("", "whole", "mig"):
    files = {each.name: each for each in pathlib.Path(model).iterdir() if each.is_file()}
    read = lambda name: json.loads(files[name].read_text()) if name in files else {}
    index = read("model.safetensors.index.json").get("metadata", {})
    weights = stored_bytes({name: each.stat().st_size for name, each in files.items()}, index.get("total_size", 0))
    if not weights:
        sys.exit(f"{model} has no *.safetensors, *.bin or *.pt: give --kv-cache-memory-bytes in spec.args")
    config = read("config.json")
    config = config.get("text_config") or config
    experts = config.get("num_experts_per_tok") or 0
    width = experts and config.get("moe_intermediate_size") or config.get("intermediate_size", 14336)
    width *= experts + (config.get("n_shared_experts") or 0) if experts else 1
    widths = config.get("hidden_size", 4096), width, config.get("vocab_size", 128256)
    overhead = batch_bytes(int(sequences), int(tokens), *widths, 2)
    cache = int(usable) - weights - overhead
    if cache <= 0:
        needs = f"the model has {weights >> 20} MiB and needs {overhead >> 20} MiB more"
        sys.exit(f"{needs}, the share {allocated >> 20} MiB: too little for a KV cache")
    options.append(f"--kv-cache-memory-bytes={cache}")
"""
# vLLM closes a connection that is idle for 5 s and never one that is busy, so that its client stays with its replica.
# Source: vllm 0.33.0 `vllm/entrypoints/launchers/api_server/entry.py` (uvicorn's `timeout_keep_alive`) and
# `entrypoints/serve/middleware/register.py`.
_SERVE: Final = """\
folder = tempfile.mkdtemp()
pathlib.Path(folder, "renewed_connections.py").write_text(CONNECTIONS)
os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
options.append("--middleware=renewed_connections.RenewedConnections")
os.execvp("vllm", ["vllm", "serve", model, *options])
"""

_FUNCTIONS: Final = "\n".join(inspect.getsource(each) for each in (batch_bytes, stored_bytes))
_IMPORTS: Final = "import json, os, pathlib, sys, tempfile"
_CONNECTIONS: Final = f"CONNECTIONS = {inspect.getsource(connections)!r}"
START: Final = f"{_IMPORTS}, torch\n\n{_FUNCTIONS}\n{_CONNECTIONS}\n{_MEMORY}{_SERVE}"
"""The program: a text, because the image has Python, and nothing of Tessera.

Its arguments: the sequences and tokens of the largest batch, the model's folder, and options of `vllm serve`. Where
`config.json` does not have a width it is that of Llama 3 8B.
"""
START_SIZED: Final = f"{_IMPORTS}\n\n{_CONNECTIONS}\nmodel, *options = sys.argv[1:]\n{_SERVE}"
"""The same where an option says the memory already. Its arguments: the model's folder, and options of `vllm serve`."""
