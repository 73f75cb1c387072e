"""`config.json` of models: what is read of the kinds that there are, and what is refused."""

import json
from typing import Any

import pytest

from builders.modelconfigs import DEEPSEEK_V2_LITE, GEMMA, LLAMA_8B, QWEN3_235B
from tessera.api import documents
from tessera.api.huggingface.modelconfigs import ModelConfig, read_config, read_index
from tessera.errors import InvalidInput


def config(data: Any) -> ModelConfig:
    return read_config(documents.one("config.json", json.dumps(data)))


def test_a_dense_model_is_counted_exactly() -> None:
    found = config(LLAMA_8B)
    assert found.parameters == 8_030_261_248
    assert (found.dtype, found.architecture.weight_bytes, found.notes) == ("bf16", 2 * 8_030_261_248, ())
    tied = config({**LLAMA_8B, "tie_word_embeddings": True})
    assert found.parameters - tied.parameters == 128256 * 4096


def test_experts_count_in_the_weights_and_those_of_a_token_in_activations() -> None:
    found = config(QWEN3_235B)
    assert found.parameters == pytest.approx(235e9, rel=0.01)
    assert (found.architecture.intermediate, found.dtype) == (8 * 1536, "fp8")
    assert found.architecture.weight_bytes == found.parameters


def test_latent_attention_keeps_the_latent_and_the_rotary_part() -> None:
    found = config(DEEPSEEK_V2_LITE).architecture
    assert (found.latent, found.intermediate) == (576, 8 * 1408)
    assert config(DEEPSEEK_V2_LITE).parameters == pytest.approx(15.7e9, rel=0.1), "an estimate"


def test_layers_are_reported_by_what_they_keep() -> None:
    found = config(GEMMA)
    assert (found.architecture.layers, found.architecture.windowed_layers, found.architecture.window) == (1, 4, 512)
    assert found.notes == ("1 layers keep a state of fixed size for each sequence, which is not counted",)
    assert found.dtype == "fp32"
    window = {**LLAMA_8B, "sliding_window": 4096}
    assert config(window).architecture.windowed_layers == 32
    for more in ({"use_sliding_window": False}, {"max_window_layers": 16}):
        assert config({**window, **more}).architecture.layers == 32


def test_names_of_older_models_are_known() -> None:
    older = {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
    found = config(older).architecture
    assert (found.layers, found.head_dim, found.kv_heads, found.intermediate) == (12, 64, 12, 3072)
    assert (found.context, config(older).dtype) == (1024, "bf16")


QUANTIZED = {
    "AWQ": ({"quant_method": "awq", "bits": 4}, "int4"),
    "GPTQ": ({"quant_method": "gptq", "bits": 8}, "int8"),
    "fp8": ({"quant_method": "fp8"}, "fp8"),
    "4 bits by name": ({"quant_method": "mxfp4"}, "int4"),
    "another": ({"quant_method": "compressed-tensors"}, "int8"),
}


@pytest.mark.parametrize("case", QUANTIZED)
def test_quantized_weights_are_known_by_their_method(case: str) -> None:
    quantization, want = QUANTIZED[case]
    assert config({**LLAMA_8B, "quantization_config": quantization}).dtype == want


BAD: dict[str, tuple[Any, str]] = {
    "a list": ([], "the config.json of a model"),
    "no layers": ({**LLAMA_8B, "num_hidden_layers": None}, "num_hidden_layers"),
    "layers without end": ({**LLAMA_8B, "num_hidden_layers": 10**9}, "an integer from 1 to 4096"),
    "no heads": ({**LLAMA_8B, "num_attention_heads": 0}, "num_attention_heads"),
    "a width in words": ({**LLAMA_8B, "hidden_size": "wide"}, "hidden_size: 'wide'"),
    "too many kinds of layers": ({**LLAMA_8B, "layer_types": ["full_attention"] * 4097}, "4097 layers"),
    "a kind that is a number": ({**LLAMA_8B, "layer_types": [1]}, "a text"),
    "a negative width": ({**LLAMA_8B, "intermediate_size": -1}, "intermediate_size"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_refused_with_its_field(case: str) -> None:
    data, want = BAD[case]
    with pytest.raises(InvalidInput) as caught:
        config(data)
    assert want in str(caught.value)
    assert str(caught.value).startswith("config.json, document 1, line 1")


def test_an_index_says_how_many_bytes_there_are() -> None:
    def read(data: Any) -> int:
        return read_index(documents.one("index", json.dumps(data)))

    assert read({"metadata": {"total_size": 16_060_522_496}}) == 16_060_522_496
    for bad in ({}, {"metadata": {"total_size": 0}}, {"metadata": {"total_size": 1 << 60}}):
        with pytest.raises(InvalidInput, match=r"metadata\.total_size"):
            read(bad)
