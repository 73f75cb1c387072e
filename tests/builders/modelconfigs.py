"""`config.json` of published models, the fields that size them."""

from typing import Any, Final

__all__ = ["DEEPSEEK_V2_LITE", "GEMMA", "LLAMA_8B", "QWEN3_235B", "TINY"]

LLAMA_8B: Final[dict[str, Any]] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
"""Of Llama 3 8B, which has 8,030,261,248 parameters."""
QWEN3_235B: Final[dict[str, Any]] = {
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "moe_intermediate_size": 1536,
    "num_attention_heads": 64,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 94,
    "num_key_value_heads": 4,
    "quantization_config": {"quant_method": "fp8"},
    "vocab_size": 151936,
}
DEEPSEEK_V2_LITE: Final[dict[str, Any]] = {
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
    "vocab_size": 102400,
}
GEMMA: Final[dict[str, Any]] = {
    "text_config": {
        "dtype": "float32",
        "head_dim": 256,
        "hidden_size": 640,
        "intermediate_size": 2048,
        "layer_types": ["sliding_attention"] * 4 + ["full_attention", "linear_attention"],
        "num_attention_heads": 4,
        "num_hidden_layers": 6,
        "num_key_value_heads": 1,
        "sliding_window": 512,
        "vocab_size": 262144,
    },
    "tie_word_embeddings": True,
}
"""Not a published one: layers of three kinds in the fields of a model that sees."""
TINY: Final[dict[str, Any]] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "max_position_embeddings": 1024,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "torch_dtype": "bfloat16",
    "vocab_size": 1000,
}
"""That of a server that ran on the CPU: 2 layers, 2 heads of 64."""
