"""A model's `config.json` and `model.safetensors.index.json`: its architecture and size."""

from typing import Final

import msgspec

from tessera.api.documents import Document
from tessera.api.fields import Field
from tessera.core.serving.modelmemory import MOST, MOST_LAYERS, widths
from tessera.core.serving.sizing import Architecture, parameters_of

__all__ = ["WEIGHT_BYTES", "ModelConfig", "read_config", "read_index"]

WEIGHT_BYTES: Final = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5625}
"""Bytes of a weight; 4-bit weights have a scale of 16 bits for each group of 32 to 128."""
_DTYPES: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float": "fp32"}
_QUANTIZED: Final = {8: "int8", 4: "int4"}
_MOST_BYTES: Final = 1 << 50
_FULL, _SLIDING = "full_attention", "sliding_attention"


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a `config.json`."""

    architecture: Architecture
    """The weights' size is that of the parameters, computed from the widths."""
    parameters: int
    """Computed from the widths; an estimate for architectures other than Llama's."""
    dtype: str
    """Of the weights, a key of `WEIGHT_BYTES`."""
    notes: tuple[str, ...] = ()
    """What is not included."""


def read_config(document: Document) -> ModelConfig:
    """Return the content of a model's `config.json`.

    Raises:
        InvalidInput: a field is missing or absurd.

    """
    root = Field(document, document.data)
    if not isinstance(document.data, dict):
        raise root.refuse("the config.json of a model")
    # Vision models have the language model's fields one level below.
    text = root.get("text_config") if root.get("text_config").present else root
    layers = _number(text, "num_hidden_layers", "n_layer", most=MOST_LAYERS)
    found = widths(lambda names, default, most: _number(text, *names, default=default, most=most))
    heads = _number(text, "num_attention_heads", "n_head")
    latent = _number(text, "kv_lora_rank", default=0)
    full, windowed, notes = _layers(text, layers)
    architecture = Architecture(
        layers=full,
        windowed_layers=windowed,
        window=_number(text, "sliding_window", default=0) if windowed else 0,
        kv_heads=_number(text, "num_key_value_heads", default=heads),
        head_dim=_number(text, "head_dim", default=max(1, found.hidden // heads)),
        latent=latent + _number(text, "qk_rope_head_dim", default=0) if latent else 0,
        hidden=found.hidden,
        intermediate=found.intermediate,
        vocabulary=found.vocabulary,
        context=_number(text, "max_position_embeddings", "n_positions", default=4096),
        weight_bytes=0,
    )
    parameters = parameters_of(
        architecture,
        heads=heads,
        experts=found.experts,
        active=found.active,
        tied=bool(text.get("tie_word_embeddings").value) or bool(root.get("tie_word_embeddings").value),
    )
    dtype = _dtype(root, text)
    sized = msgspec.structs.replace(architecture, weight_bytes=round(parameters * WEIGHT_BYTES[dtype]))
    return ModelConfig(architecture=sized, parameters=parameters, dtype=dtype, notes=notes)


def _number(text: Field, *names: str, default: int | None = None, most: int = MOST) -> int:
    """Return the first existing field."""
    given = next((text.get(name) for name in names if text.get(name).present), text.get(names[0]))
    return given.integer(default, least=1 if default is None else 0, most=most) or (default or 0)


def _layers(text: Field, layers: int) -> tuple[int, int, tuple[str, ...]]:
    """Return the layers that keep all tokens, those that keep a window of them, and a note on those that keep none."""
    kinds = text.get("layer_types")
    if not kinds.present:
        uniform = text.get("sliding_window").present and text.get("use_sliding_window").value is not False
        # Where only some layers have a window and nothing says which, all count whole.
        return (0, layers, ()) if uniform and not text.get("max_window_layers").present else (layers, 0, ())
    found = [each.text() for each in kinds.elements()]
    if len(found) > MOST_LAYERS:
        raise kinds.refuse(found=f"it has {len(found)} layers, more than {MOST_LAYERS}")
    full, windowed = found.count(_FULL), found.count(_SLIDING)
    others = len(found) - full - windowed
    note = f"{others} layers keep a state of fixed size for each sequence, which is not counted" if others else ""
    return full, windowed, (note,) if note else ()


def _dtype(root: Field, text: Field) -> str:
    quantized = root.get("quantization_config")
    if quantized.present:
        method = str(quantized.get("quant_method").value)
        bits = quantized.get("bits").value
        if "fp8" in method:
            return "fp8"
        return _QUANTIZED.get(bits if isinstance(bits, int) else 0, "int4" if "4" in method else "int8")
    for each in (root, text):
        for name in ("torch_dtype", "dtype"):
            value = str(each.get(name).value)
            if value in _DTYPES:
                return _DTYPES[value]
    return "bf16"


def read_index(document: Document) -> int:
    """Return the bytes of all weights, from a `model.safetensors.index.json`.

    Raises:
        InvalidInput: it does not say so.

    """
    return Field(document, document.data).get("metadata", "total_size").integer(least=1, most=_MOST_BYTES)
