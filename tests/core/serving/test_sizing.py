"""Sizes of models against what vLLM logged, and laws of them."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.modelconfigs import DEEPSEEK_V2_LITE, LLAMA_8B, QWEN3_235B, TINY
from tessera.api import documents
from tessera.api.huggingface.modelconfigs import read_config
from tessera.core.serving.render.vllmdevice import usable_memory
from tessera.core.serving.sizing import (
    GIB,
    Architecture,
    Batch,
    batch_for,
    fit,
    least_gib,
    overhead_bytes,
    sequence_bytes,
)

RECORDED = Path(__file__).parents[2] / "data" / "servermetrics"


def architecture(config: dict[str, Any], **changed: Any) -> Architecture:
    found = read_config(documents.one("config.json", json.dumps(config))).architecture
    return msgspec.structs.replace(found, **changed)


LOGGED = {
    # The server of the project's own measurement: 1 GiB of KV cache, 1,048,576 tokens.
    "a CPU server's 1 GiB": (TINY, 1, GIB / 1_048_576, 0),
    # vllm-project/vllm#15871: "0.95 GiB KV cache is needed" for 32,768 tokens.
    "latent attention": (DEEPSEEK_V2_LITE, 1, 0.95 * GIB / 32_768, 0.005),
    # vllm-project/vllm#21348: 8.11 GiB on each of four GPUs, 178,880 tokens.
    "grouped queries on four GPUs": (QWEN3_235B, 4, 8.11 * GIB / 178_880, 0.012),
    # vllm-project/vllm#17122: 128 KiB a token is what everybody knows of it.
    "Llama 8B": (LLAMA_8B, 1, 128 * 1024, 0),
}


@pytest.mark.parametrize("case", LOGGED)
def test_a_token_takes_what_vllm_logged(case: str) -> None:
    config, gpus, want, tolerance = LOGGED[case]
    assert sequence_bytes(architecture(config), 1024, 2) / 1024 / gpus == pytest.approx(want, rel=tolerance or 1e-9)


def test_the_room_for_the_kv_cache_is_what_vllm_logged() -> None:
    """vllm-project/vllm#10511, Llama 3 8B: 79.22 GiB x 0.90, weights 14.96, activations 1.26, KV cache 53.29 GiB."""
    llama = architecture(LLAMA_8B)
    assert llama.weight_bytes / GIB == pytest.approx(14.96, abs=0.01)
    activations = overhead_bytes(llama, Batch(256, 8192)) - overhead_bytes(llama, Batch(0, 0))
    assert activations / GIB == pytest.approx(1.26, rel=0.05)
    found = fit(llama, round(79.22 * 1024), context=8192, kv_element_bytes=2, utilization=0.9)
    assert found.kv_bytes / GIB == pytest.approx(53.29, rel=0.03)
    assert found.fits
    assert found.tokens == pytest.approx(found.kv_bytes / (128 * 1024), rel=0.01)


def test_the_tokens_and_sequences_are_what_a_real_vllm_logged() -> None:
    """The log line says how many fit in 1 GiB; the model is the one that it served."""
    one = architecture(json.loads((RECORDED / "vllm-config.json").read_text()))
    logged = re.search(
        r"KV cache size: ([\d,]+) tokens, .* for ([\d,]+) tokens per request: ([\d.]+)x",
        (RECORDED / "vllm-log.txt").read_text(),
    )
    assert logged
    tokens, context, sequences = (float(each.replace(",", "")) for each in logged.groups())
    fitting = GIB / sequence_bytes(one, int(context), 2)
    assert (fitting * context, fitting) == (tokens, sequences)


def test_sequences_are_counted_in_blocks_as_vllm_does() -> None:
    """vllm-project/vllm#12569: 1381 blocks, "Maximum concurrency for 2048 tokens per request: 10.79x"."""
    one = architecture(LLAMA_8B)
    blocks = 1381 * sequence_bytes(one, 16, 2)
    assert round(blocks / sequence_bytes(one, 2048, 2), 2) == 10.79
    assert sequence_bytes(one, 1, 2) == sequence_bytes(one, 16, 2)
    tiny = architecture(TINY, weight_bytes=0, vocabulary=1)
    budget = 8 * 1024 - 768  # of 8 GiB the context of CUDA leaves less than 0.92
    found = fit(tiny, 8 * 1024, context=1024, kv_element_bytes=2, utilization=1)
    assert found.kv_bytes == budget * 1024 * 1024 - overhead_bytes(tiny, found.batch)
    assert found.sequences == found.kv_bytes * 100 // (1 << 20) / 100


def test_a_window_bounds_what_a_layer_keeps() -> None:
    one = architecture(TINY, layers=1, windowed_layers=1, window=512)
    layer = 2 * 2 * 64 * 2
    assert sequence_bytes(one, 256, 2) == 2 * 256 * layer
    assert sequence_bytes(one, 4096, 2) == (4096 + 512) * layer


def test_what_does_not_fit_says_how_much_is_lacking() -> None:
    found = fit(architecture(LLAMA_8B), 9984, context=8192, kv_element_bytes=2)
    assert (found.fits, found.tokens, found.sequences) == (False, 0, 0)
    assert found.kv_bytes < 0


@pytest.mark.parametrize(("gib", "want"), [(4.75, 64), (15.9, 64), (16, 256), (40, 256), (64, 1024), (141, 1024)])
def test_batches_grow_with_the_device(gib: float, want: int) -> None:
    assert batch_for(gib).sequences == want


@given(
    memory_mib=st.integers(1024, 200_000),
    more=st.integers(0, 4096),
    context=st.integers(1, 200_000),
    kv=st.sampled_from([1.0, 2.0]),
)
def test_more_memory_never_holds_less(memory_mib: int, more: int, context: int, kv: float) -> None:
    """Nor does a smaller cache element, where the batch is the same."""
    llama = architecture(LLAMA_8B)
    one = fit(llama, memory_mib, context=context, kv_element_bytes=kv)
    other = fit(llama, memory_mib + more, context=context, kv_element_bytes=kv)
    if one.batch == other.batch:
        assert (one.kv_bytes, one.tokens) <= (other.kv_bytes, other.tokens)
    assert one.fits == (one.sequences >= 1)
    assert one.tokens <= max(0, one.kv_bytes) / sequence_bytes(llama, 1, kv) * 16
    assert fit(llama, memory_mib, context=context, kv_element_bytes=kv / 2).tokens >= one.tokens


@pytest.mark.parametrize("sequences", [1, 8, 64])
@pytest.mark.parametrize("utilization", [0.3, 0.92, 1.0])
def test_the_memory_to_request_is_the_least_of_all_on_which_the_sequences_fit(
    sequences: int, utilization: float
) -> None:
    model = architecture(LLAMA_8B)

    def enough(gib: int) -> bool:
        found = fit(model, gib << 10, context=8192, kv_element_bytes=2, utilization=utilization)
        return found.sequences >= sequences

    least = next(gib for gib in range(1, 1000) if enough(gib))
    assert least_gib(model, sequences, context=8192, kv_element_bytes=2, utilization=utilization) == least


@given(memory_mib=st.integers(2048, 300_000))
def test_what_fits_is_what_the_program_that_starts_vllm_lets_it_take(memory_mib: int) -> None:
    """On a device of its own, of whose memory the CUDA context of 512 MiB is not free."""
    model = architecture(LLAMA_8B)
    batch = batch_for(memory_mib / 1024)
    found = fit(model, memory_mib, context=4096, kv_element_bytes=2)
    _, usable, _ = usable_memory((memory_mib - 512 << 20, memory_mib << 20), {})
    assert found.kv_bytes + model.weight_bytes + overhead_bytes(model, batch) == usable
