"""The memory that a language model needs beside its KV cache, by the files of its folder.

Its source is part of the program that starts vLLM, so it imports the standard library alone.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

__all__ = ["MOST", "MOST_LAYERS", "Number", "Widths", "batch_bytes", "stored_bytes", "widths"]

MOST: Final = 1 << 24
"""No width of a model is larger."""
MOST_LAYERS: Final = 4096
"""Nor has a model more layers, or experts in one."""

Number: TypeAlias = Callable[[tuple[str, ...], int | None, int], int]
"""Returns the first field of `config.json` that is there, the default where none is, and at most so much; the caller's
refuses what is no number. A missing field and null are the same."""


class Widths(NamedTuple):
    """What decides over the memory of a batch."""

    hidden: int
    intermediate: int
    """Of the feed-forward network, of all experts that a token goes through."""
    vocabulary: int
    experts: int
    """Feed-forward networks of a layer."""
    active: int
    """Those that a token goes through."""


def widths(number: Number, *, hidden: int | None = None, vocabulary: int | None = None) -> Widths:
    """Return the widths by `config.json`.

    Args:
        number: returns its fields.
        hidden: where it does not say so; None to require it.
        vocabulary: the same.

    """
    hidden = number(("hidden_size", "n_embd"), hidden, MOST)
    active = number(("num_experts_per_tok",), 0, MOST_LAYERS)
    experts = number(("num_local_experts", "n_routed_experts", "num_experts"), 0, MOST_LAYERS)
    shared = number(("n_shared_experts",), 0, MOST_LAYERS)
    width = number(("intermediate_size", "n_inner"), 4 * hidden, MOST)
    if active and experts:
        width = number(("moe_intermediate_size",), width, MOST)
        active, experts = active + shared, experts + shared
    else:
        active, experts = 1, 1
    return Widths(hidden, width * active, number(("vocab_size",), vocabulary, MOST), experts, active)


def batch_bytes(
    sequences: int, tokens: int, hidden: int, intermediate: int, vocabulary: int, element_bytes: int
) -> int:
    """Return everything but weights and KV cache, by the largest batch and the model's widths."""
    # Of CUDA graphs. Source: vLLM logs of 2026 estimate 0.14 to 0.36 GiB for small batches; 1.62 GiB for 86 graphs.
    graphs = 1 << 29
    # Of CUDA libraries and what is fragmented. Source: vllm-project/vllm#10511 logged 1.79 GiB with, #14447 0.20 GiB
    # without the context.
    others = 3 << 28
    # A logit has 16 bits, and twice 32 as it is sampled.
    return tokens * (3 * intermediate + 4 * hidden) * element_bytes + sequences * vocabulary * 10 + graphs + others


def stored_bytes(sizes: dict[str, int], total: int) -> int:
    """Return the bytes of a model's weights in its folder; 0 for none. Of several formats vLLM loads one.

    Source: vllm 0.33.0 `vllm/model_executor/model_loader/default_loader.py` (`_prepare_weights`).

    Args:
        sizes: of the folder's files, by name.
        total: by its `model.safetensors.index.json`; 0 without one.

    """
    weights = {name: size for name, size in sizes.items() if name.endswith((".safetensors", ".bin", ".pt"))}
    # Some repositories have the weights twice, whole and in shards.
    whole = [size for name, size in weights.items() if name.startswith("consolidated") and name.endswith("tensors")]
    if whole or total:
        return sum(whole) or total
    unused = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt")
    for ending in (".safetensors", ".bin", ".pt"):
        found = [size for name, size in weights.items() if name.endswith(ending) and not name.endswith(unused)]
        if found:
            return sum(found)
    return 0
