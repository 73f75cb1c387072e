"""Which part of a GPU fits a language model under vLLM, and how many tokens and sequences fit beside it.

Memory goes to weights, the KV cache, activations of the largest batch, CUDA graphs and the rest of CUDA. Weights and
the KV cache of a token follow exactly from the model; the others are estimates, on the large side.

Source: vllm 0.33.0, `vllm/v1/worker/gpu_worker.py` (`determine_available_memory`), `vllm/v1/core/kv_cache_utils.py`
(blocks of 16 tokens; concurrency is tokens over those of a request). Checked against what vLLM logged, in
tests/core/serving/test_sizing.py.
"""

import math
from typing import Final

import msgspec

from tessera.core.serving.modelmemory import batch_bytes

__all__ = [
    "BATCHES",
    "Architecture",
    "Batch",
    "Fit",
    "batch_for",
    "fit",
    "least_gib",
    "overhead_bytes",
    "parameters_of",
    "sequence_bytes",
]

GIB: Final = 1 << 30
_MIB: Final = 1 << 20
UTILIZATION: Final = 0.92
"""The part of the device that vLLM takes by default, from 0.19 on."""
_CONTEXT_MIB: Final = 768
"""The least it must leave: the CUDA context, and a reserve."""
_BLOCK: Final = 16


class Batch(msgspec.Struct, frozen=True):
    """The largest batch: `--max-num-seqs` and `--max-num-batched-tokens`."""

    sequences: int
    tokens: int


BATCHES: Final = (
    (16.0, Batch(64, 2048)),
    (32.0, Batch(256, 2048)),
    (64.0, Batch(256, 8192)),
    (math.inf, Batch(1024, 8192)),
)
"""By the GiB below which a device gets it. The last two are vLLM's own below and above 70 GiB, except the tokens, of
which a slice of 35 GiB lost 28 to 53 % of its throughput with 2048: vllm-project/vllm#55381."""


def batch_for(gib: float) -> Batch:
    """Return the largest batch for a device of this memory: activations grow with it."""
    return next(batch for below, batch in BATCHES if gib < below)


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder-only language model, by its `config.json`."""

    layers: int
    """Layers that keep keys and values of all tokens."""
    windowed_layers: int = 0
    """Layers that keep those of the last `window` tokens."""
    window: int = 0
    kv_heads: int
    head_dim: int
    latent: int = 0
    """Values that a token keeps in a layer with multi-head latent attention (MLA); 0 for keys and values."""
    hidden: int
    intermediate: int
    """Width of the feed-forward network, of all experts that a token goes through."""
    vocabulary: int
    context: int
    """Most tokens of a sequence."""
    element_bytes: int = 2
    """Of activations, and of the KV cache unless another is set."""
    weight_bytes: int


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """How a model fits on a device."""

    fits: bool
    """Whether there is room for one sequence of the context."""
    kv_bytes: int
    """Room for the KV cache; negative if the rest alone is too large."""
    tokens: int
    """Tokens in it, of sequences of the context; what vLLM logs as `GPU KV cache size`."""
    sequences: float
    """Sequences of the context in it; what vLLM logs as `Maximum concurrency`."""
    batch: Batch


def sequence_bytes(model: Architecture, tokens: int, element_bytes: float) -> float:
    """Return the bytes of the KV cache of a sequence of so many tokens, in whole blocks."""
    layer = (model.latent or 2 * model.kv_heads * model.head_dim) * element_bytes
    windowed = min(tokens, model.window)
    return layer * (model.layers * _blocks(tokens) + model.windowed_layers * _blocks(windowed)) * _BLOCK


def _blocks(tokens: int) -> int:
    return -(-tokens // _BLOCK)


def overhead_bytes(model: Architecture, batch: Batch) -> int:
    """Return everything but weights and KV cache: activations and logits of the batch, CUDA graphs, the rest."""
    widths = (model.hidden, model.intermediate, model.vocabulary)
    return batch_bytes(batch.sequences, batch.tokens, *widths, model.element_bytes)


def fit(
    model: Architecture, memory_mib: int, *, context: int, kv_element_bytes: float, utilization: float = UTILIZATION
) -> Fit:
    """Return how a model fits on a device.

    Args:
        model: the model.
        memory_mib: the device's memory, by its driver.
        context: tokens of a sequence.
        kv_element_bytes: of a value in the KV cache.
        utilization: the part of the memory that vLLM may take.

    """
    batch = batch_for(memory_mib * _MIB / GIB)
    budget = min(utilization * memory_mib, memory_mib - _CONTEXT_MIB) * _MIB
    room = math.floor(budget) - model.weight_bytes - overhead_bytes(model, batch)
    sequences = max(0, room) / sequence_bytes(model, context, kv_element_bytes)
    return Fit(
        fits=sequences >= 1,
        kv_bytes=room,
        tokens=math.floor(sequences * context),
        sequences=math.floor(100 * sequences) / 100,
        batch=batch,
    )


def least_gib(
    model: Architecture, sequences: int, *, context: int, kv_element_bytes: float, utilization: float = UTILIZATION
) -> int:
    """Return the `memoryGiB` to request for so many sequences at once: the least on which they fit.

    Args:
        model: the model.
        sequences: of the context.
        context: tokens of a sequence.
        kv_element_bytes: of a value in the KV cache.
        utilization: the part of the memory that vLLM may take.

    """
    cache = sequences * sequence_bytes(model, context, kv_element_bytes)
    gib = max(1, math.floor((model.weight_bytes + cache) / utilization / GIB))
    while (
        fit(model, gib << 10, context=context, kv_element_bytes=kv_element_bytes, utilization=utilization).sequences
        < sequences
    ):
        gib += 1
    return gib


def parameters_of(model: Architecture, *, heads: int, experts: int, active: int, tied: bool) -> int:
    """Return about how many parameters a model has: embeddings, attention, gated feed-forward networks.

    Exact for Llama, Mistral and their like without biases; with latent attention it is an estimate.

    Args:
        model: the model; its weights are not used.
        heads: attention heads.
        experts: feed-forward networks of a layer.
        active: those that a token goes through.
        tied: whether input and output share the embedding.

    """
    attention = 2 * model.hidden * heads * model.head_dim + 2 * model.hidden * model.kv_heads * model.head_dim
    feed_forward = 3 * model.hidden * (model.intermediate // active) * experts
    layers = model.layers + model.windowed_layers
    norms = (2 * layers + 1) * model.hidden
    return (1 if tied else 2) * model.vocabulary * model.hidden + layers * (attention + feed_forward) + norms
