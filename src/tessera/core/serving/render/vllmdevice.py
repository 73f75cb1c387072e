"""The part of its device's memory that vLLM may take.

This runs in an image that has Python and nothing of Tessera, so it imports the standard library alone.

vLLM budgets a fraction of the device it sees, by default 0.92, and refuses to start when less is free.
Source: vllm 0.33.0, `vllm/v1/worker/utils.py` (`request_memory`).
"""

from collections.abc import Mapping

__all__ = ["first_of", "usable_memory"]


def usable_memory(memory: tuple[int, int], environment: Mapping[str, str]) -> tuple[int, int, str]:
    """Return the bytes that the container is allocated, those that vLLM may take of them, and the option that says so.

    Args:
        memory: bytes of the device that are free, and all.
        environment: `TESSERA_GPU_MEMORY_MIB`, of each device; empty without Tessera.

    Raises:
        SystemExit: too little is free.

    """
    free, total = memory
    allocated = min(int(first_of(environment, "TESSERA_GPU_MEMORY_MIB") or 0) << 20 or total, total)
    usable = min(0.92 * allocated, free - (256 << 20))
    fraction = int(10000 * usable / total) / 10000
    if fraction <= 0:
        fix = "`tessera top` shows who uses it, `tessera size` how much to request"
        raise SystemExit(f"GPU: {free >> 20} of {total >> 20} MiB are free, too little for vLLM: {fix}")
    return allocated, int(usable), f"--gpu-memory-utilization={fraction}"


def first_of(environment: Mapping[str, str], name: str) -> str:
    """Return what a variable says of the first device."""
    return environment.get(name, "").split(",")[0]
