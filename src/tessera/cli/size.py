"""`tessera size`: on which GPUs and MIG instances a language model fits, and how many tokens fit with it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from tessera._planning import read_bytes
from tessera.api import documents
from tessera.api.huggingface.modelconfigs import WEIGHT_BYTES, ModelConfig, read_config, read_index
from tessera.cli.completion import complete_models
from tessera.cli.options import Number, WholeNumber, output_option
from tessera.cli.printing import headed_table, print_document, trimmed, wide_console
from tessera.core.gpu.gpumodels import model
from tessera.core.serving.modelmemory import stored_bytes
from tessera.core.serving.sizing import UTILIZATION, Architecture, Fit, fit, least_gib, sequence_bytes
from tessera.errors import InvalidInput, shown

__all__ = ["size"]

_EPILOG = """
\b
Examples:
  tessera size /models/llama-8b --gpu A100-40GB --gpu H100-80GB
  tessera size config.json --parameters 8.03B --dtype fp8 --context 8192
  tessera size --parameters 8.03B --layers 32 --kv-heads 8 --head-dim 128
"""
_CONTEXT: Final = 8192
_SEQUENCES: Final = (1, 8, 16, 64)
"""For so many sequences at once the memory to request is printed."""
_GIB: Final = 1 << 30
_FAMILIAR: Final = ("A100-40GB", "A100-80GB", "H100-80GB", "L4", "T4")
_SUFFIX: Final = {"": 1, "M": 10**6, "B": 10**9, "T": 10**12}
_KV_BYTES: Final = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0}


@click.command(epilog=_EPILOG)
@click.argument("path", metavar="[MODEL]", required=False, type=click.Path(path_type=Path))
@click.option("--gpu", multiple=True, metavar="MODEL", shell_complete=complete_models, help="GPU model; repeatable.")
@click.option("--parameters", metavar="N", help="Number of parameters, such as 8.03B.  [default: from MODEL]")
@click.option(
    "--dtype", type=click.Choice(sorted(WEIGHT_BYTES)), help="Data type of the weights.  [default: from MODEL]"
)
@click.option("--kv-dtype", type=click.Choice(sorted(_KV_BYTES)), default="bf16", show_default=True, help="KV cache.")
@click.option("--context", type=WholeNumber(1, 1 << 24), help="Tokens of a sequence.  [default: 8192, or the model's]")
@click.option("--layers", type=WholeNumber(1, 4096), help="Layers, where there is no MODEL.")
@click.option("--kv-heads", type=WholeNumber(1, 4096), help="Heads of keys and values, where there is no MODEL.")
@click.option("--head-dim", type=WholeNumber(1, 65_536), help="Width of a head, where there is no MODEL.")
@click.option(
    "--utilization",
    type=Number(0.01, 1),
    default=UTILIZATION,
    show_default=True,
    help="Fraction of the memory that vLLM uses (--gpu-memory-utilization).",
)
@output_option()
def size(path: Path | None, gpu: tuple[str, ...], output: str, **given: Any) -> None:
    """Print the GPUs and MIG instances on which a language model fits, and the tokens of its KV cache.

    Below them is the memory to request, gpu.memoryGiB of a ModelServer, for some numbers of sequences at once. Of MIG
    profiles of the same memory one has a row; the others are named below. The figures are for vLLM. MODEL is a model's
    folder in Hugging Face's format, or its config.json. The size of the weights comes from --parameters, else from the
    files or model.safetensors.index.json. Weights and KV cache follow from the model. Activations, CUDA graphs and the
    rest of CUDA are estimates.
    """
    config = _by_options(given) if path is None else _by_files(path, given)
    architecture = config.architecture
    context = given["context"] or min(_CONTEXT, architecture.context)
    kv_bytes = _KV_BYTES[given["kv_dtype"]]
    rows, taken = [], given["utilization"]
    for name, profiles, memory_mib in _devices(gpu or _FAMILIAR):
        found = fit(architecture, memory_mib, context=context, kv_element_bytes=kv_bytes, utilization=taken)
        device = {"gpu": name, "profile": profiles[0], "alike": profiles[1:], "memory_mib": memory_mib}
        rows.append({**device, **msgspec.to_builtins(found)})
    requests = [
        {
            "sequences": count,
            "memory_gib": least_gib(architecture, count, context=context, kv_element_bytes=kv_bytes, utilization=taken),
        }
        for count in _SEQUENCES
    ]
    facts = {
        "parameters": config.parameters,
        "dtype": config.dtype,
        "weight_bytes": architecture.weight_bytes,
        "context": context,
        "kv_bytes_per_sequence": round(sequence_bytes(architecture, context, kv_bytes)),
        "requests": requests,
        "notes": config.notes,
        "devices": rows,
    }
    if not print_document(facts, output):
        _print(facts, output)


def _print(facts: dict[str, Any], output: str) -> None:
    console = wide_console(output=output)
    table = headed_table("GPU", "slice", "MiB", "fits", "KV GiB", "tokens", "seqs", "batch")
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[2:]:
        column.justify = "right"
    for row in facts["devices"]:
        found = msgspec.convert(row, Fit)
        lacks = f"{max(0.1, (facts['kv_bytes_per_sequence'] - found.kv_bytes) / _GIB):.1f} GiB short"
        room = (f"{found.kv_bytes / _GIB:.1f}", f"{found.tokens:,}", f"{found.sequences:,.1f}")
        batch = f"{found.batch.sequences}x{found.batch.tokens}"
        cells = ("yes", *room, batch) if found.fits else (lacks,)
        table.add_row(row["gpu"], row["profile"] or "whole", str(row["memory_mib"]), *cells)
    console.print(trimmed(table))
    if alike := dict.fromkeys(f"{each} as {row['profile']}" for row in facts["devices"] for each in row["alike"]):
        console.print(trimmed(f"profiles of the same memory: {', '.join(alike)}"))
    weights, each = facts["weight_bytes"] / _GIB, facts["kv_bytes_per_sequence"] / _GIB
    model_size = f"{facts['parameters'] / 1e9:.2f}B parameters in {facts['dtype']}, {weights:.2f} GiB"
    sequence = f"a sequence of {facts['context']:,} tokens takes {each:.3f} GiB of KV cache"
    console.print(trimmed(f"{model_size}; {sequence}"))
    first, *further = (f"{each['memory_gib']} for {each['sequences']}" for each in facts["requests"])
    console.print(trimmed(f"memoryGiB to request: {first} sequence of this length, {', '.join(further)}"))
    console.print(trimmed(*(f"note: {note}" for note in facts["notes"])))


def _devices(names: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """Yield GPU, profiles of the same memory, and that memory, the smallest of a GPU first; "" for the whole GPU."""
    for gpu in dict.fromkeys(model(name) for name in names):
        for memory_mib in sorted({each.memory_mib for each in gpu.profiles}):
            yield gpu.name, tuple(each.name for each in gpu.profiles if each.memory_mib == memory_mib), memory_mib
        yield gpu.name, ("",), gpu.memory_mib


def _parameters(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([MBT]?)", text)
    number = float(found[1]) * _SUFFIX[found[2]] if found else 0
    if not 1 <= number <= 10**15:
        raise InvalidInput("--parameters", found=shown(text), expected="a number such as 8.03B or 350M")
    return round(number)


def _by_options(given: dict[str, Any]) -> ModelConfig:
    """Return a model by its numbers; its widths are typical of models of this size."""
    missing = [name for name in ("parameters", "layers", "kv_heads", "head_dim") if not given[name]]
    if missing:
        options = [f"--{name.replace('_', '-')}" for name in missing]
        hint = f"give a folder or config.json, or {', '.join(options)}"
        raise InvalidInput("MODEL", found="it is missing, and not all of its numbers are given", hint=hint)
    parameters, dtype = _parameters(given["parameters"]), given["dtype"] or "bf16"
    hidden = max(1, round((parameters / (12 * given["layers"])) ** 0.5))
    architecture = Architecture(
        layers=given["layers"],
        kv_heads=given["kv_heads"],
        head_dim=given["head_dim"],
        hidden=hidden,
        intermediate=7 * hidden // 2,
        vocabulary=131_072,
        context=1 << 24,
        weight_bytes=round(parameters * WEIGHT_BYTES[dtype]),
    )
    return ModelConfig(architecture=architecture, parameters=parameters, dtype=dtype)


def _by_files(path: Path, given: dict[str, Any]) -> ModelConfig:
    """Return the model of a folder, with the best available size of its weights."""
    file = path / "config.json" if path.is_dir() else path
    config = read_config(documents.one(*read_bytes(str(file))))
    dtype = given["dtype"] or config.dtype
    parameters = _parameters(given["parameters"]) if given["parameters"] else config.parameters
    weights = round(parameters * WEIGHT_BYTES[dtype])
    if not given["parameters"] and not given["dtype"]:
        weights = _stored(file.parent) or weights
    notes = config.notes
    if weights == config.architecture.weight_bytes:
        notes = (*notes, "the size of the weights is computed from the widths in config.json; --parameters sets it")
    architecture = msgspec.structs.replace(config.architecture, weight_bytes=weights)
    return ModelConfig(architecture=architecture, parameters=parameters, dtype=dtype, notes=notes)


def _stored(folder: Path) -> int:
    """Return the bytes of the weights in a folder; 0 for none."""
    index = folder / "model.safetensors.index.json"
    total = read_index(documents.one(*read_bytes(str(index)))) if index.is_file() else 0
    return stored_bytes({each.name: each.stat().st_size for each in folder.iterdir() if each.is_file()}, total)
