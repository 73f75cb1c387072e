"""What a model's files say of its memory."""

from typing import Any

import pytest

from builders.modelconfigs import DEEPSEEK_V2_LITE, LLAMA_8B, QWEN3_235B
from tessera.core.serving.modelmemory import MOST, Widths, batch_bytes, stored_bytes, widths

WIDTHS: dict[str, tuple[dict[str, Any], Widths]] = {
    "Llama": (LLAMA_8B, Widths(4096, 14336, 128256, 1, 1)),
    "experts": (QWEN3_235B, Widths(4096, 8 * 1536, 151936, 128, 8)),
    "experts of two kinds": (DEEPSEEK_V2_LITE, Widths(2048, 8 * 1408, 102400, 66, 8)),
    "no width of experts": (LLAMA_8B | {"num_experts": 8, "num_experts_per_tok": 2}, Widths(4096, 28672, 128256, 8, 2)),
    "experts of which none are known": (LLAMA_8B | {"num_experts_per_tok": 2}, Widths(4096, 14336, 128256, 1, 1)),
    "names of older models": ({"n_embd": 768, "vocab_size": 50257}, Widths(768, 3072, 50257, 1, 1)),
    "none": ({}, Widths(1000, 4000, 2000, 1, 1)),
}


@pytest.mark.parametrize("case", WIDTHS)
def test_widths_are_those_of_a_token(case: str) -> None:
    config, want = WIDTHS[case]
    limits = set[int]()

    def number(names: tuple[str, ...], default: int | None, most: int) -> int:
        limits.add(most)
        return int(next((config[each] for each in names if each in config), default or 0))

    assert widths(number, hidden=1000, vocabulary=2000) == want
    assert max(limits) == MOST


def test_a_batch_needs_more_the_wider_the_model() -> None:
    assert batch_bytes(0, 0, 1, 1, 1, 2) == (1 << 29) + (3 << 28)
    assert batch_bytes(2, 3, 5, 7, 11, 2) - batch_bytes(0, 0, 1, 1, 1, 2) == 3 * (3 * 7 + 4 * 5) * 2 + 2 * 11 * 10


def test_weights_of_one_format_count() -> None:
    assert stored_bytes({"a.safetensors": 3, "b.safetensors": 4, "a.bin": 9}, 0) == 7
    assert stored_bytes({"a.safetensors": 3, "consolidated.safetensors": 5}, 6) == 5
    assert stored_bytes({"a.bin": 9, "training_args.bin": 1, "tokenizer.json": 2}, 0) == 9
    assert stored_bytes({"tokenizer.json": 2}, 0) == 0
