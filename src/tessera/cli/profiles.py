"""`tessera profiles`: the known GPU models, their MIG profiles and placements, and the sources."""

from typing import Any

import click
import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tessera.cli.completion import complete_models
from tessera.cli.options import output_option
from tessera.cli.printing import headed_table, print_document, trimmed, wide_console
from tessera.core.gpu.gpumodels import CATALOG, SOURCES, GpuModel, Profile, model
from tessera.core.gpu.mig import ALL_MEDIA, maximal_counts, maximal_layouts, named_layouts, placements, placements_of

__all__ = ["profiles"]


_AXIS_CELLS = 48
"""Width of all memory slices together; 4, 8 and 12 divide it."""

_COLORS = ("cyan", "green", "yellow", "magenta", "blue", "red")

_KNOWN = {
    "observed": ("observed", "placements as nvidia-smi lists them on this product"),
    "published-table": ("published", "placements from a published table for this product"),
    "inferred": ("inferred", "placements of another product with the same die, not confirmed on this one"),
    "unknown": ("unknown", "placements are unknown, so no MIG instances can be planned"),
}
"""Source of placements, in a word and in a sentence."""


_EPILOG = """
\b
Examples:
  tessera profiles
  tessera profiles A100-40GB
  tessera profiles nvidia-h100-80gb -o json
"""


@click.command(epilog=_EPILOG)
@click.argument("gpu", metavar="[MODEL]", required=False, shell_complete=complete_models)
@output_option()
def profiles(gpu: str | None, output: str) -> None:
    """List the known GPU models, or one MODEL's MIG profiles and placements.

    MODEL is a name from the list, a product name (nvidia-smi, label nvidia.com/gpu.product), a GKE accelerator name, or
    a PCI device id as in mig-parted.
    """
    facts = [_summary(each) for each in CATALOG] if gpu is None else _facts(model(gpu))
    if print_document(facts, output):
        return
    console = wide_console(output=output)
    if gpu is None:
        console.print(trimmed(_catalog()))
        console.print("~ marks a low estimate; `tessera profiles MODEL` lists the profiles")
        return
    _print_model(console, model(gpu))


def _summary(gpu: GpuModel) -> dict[str, Any]:
    return {
        "name": gpu.name,
        "arch": gpu.arch,
        "memory_mib": gpu.memory_mib,
        "memory_known": gpu.memory_known,
        "mig": bool(gpu.profiles),
        "compute_slices": gpu.compute_slices,
        "memory_slices": gpu.memory_slices,
        "placement": _placement(gpu),
    }


def _facts(gpu: GpuModel) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(gpu)
    return facts | {
        "placements": msgspec.to_builtins(placements(gpu)),
        "maximal_layouts": len(maximal_layouts(gpu)),
        "configurations": {name: dict(counts) for name, counts in named_layouts(gpu).items()},
        "sources": {key: SOURCES[key] for key in _sources(gpu)},
    }


def _placement(gpu: GpuModel) -> str | None:
    return gpu.profiles[0].placement if gpu.profiles else None


def _sources(gpu: GpuModel) -> tuple[str, ...]:
    """Return the keys of a model's sources and its profiles', each once, in order of mention."""
    return tuple(dict.fromkeys((*gpu.sources, *(key for each in gpu.profiles for key in each.sources))))


def _memory(gpu: GpuModel | Profile) -> str:
    return f"{'' if gpu.memory_known else '~'}{gpu.memory_mib}"


def _table(*headings: str, left_aligned: int = 1) -> Table:
    """Return an empty table with its first `left_aligned` columns and the last one left-aligned."""
    table = headed_table(*headings)
    table.columns[0].no_wrap = True
    for column in table.columns[left_aligned:-1]:
        column.justify = "right"
    return table


def _catalog() -> Table:
    table = _table("model", "architecture", "MiB", "compute\nslices", "memory\nslices", "placements", left_aligned=2)
    for column in (*table.columns[:1], *table.columns[2:]):
        column.no_wrap = True
    for each in CATALOG:
        placement = _placement(each)
        table.add_row(
            each.name,
            each.arch,
            _memory(each),
            str(each.compute_slices) if each.profiles else "no MIG",
            str(each.memory_slices or ""),
            _KNOWN[placement][0] if placement else "",
        )
    return table


def _print_model(console: Console, gpu: GpuModel) -> None:
    head = f"[bold]{gpu.name}[/], {gpu.arch}, {_memory(gpu)} MiB usable"
    units = f"{gpu.memory_slices} memory slices" if gpu.memory_slices else "memory slices unknown"
    mig = f"{gpu.compute_slices} compute slices, {units}" if gpu.profiles else "no MIG"
    console.print(f"{head}, {mig}", soft_wrap=True)
    if gpu.profiles:
        console.print(trimmed(_profile_table(gpu)))
        console.print()
    if gpu.memory_slices:
        _print_drawing(console, gpu)
    notes = Table.grid(padding=(0, 2))
    for label, text in _notes(gpu):
        notes.add_row(label, Text(text, overflow="fold"))
    if notes.row_count:
        console.print(trimmed(notes))
    console.print("sources")
    for key in _sources(gpu):
        source, mark, address = SOURCES[key].partition("https://")
        console.print(trimmed(Padding(Text(f"{key}: {source.rstrip('; ')}"), (0, 0, 0, 2))))
        if address:
            console.print(f"  {mark}{address}", soft_wrap=True)


def _profile_table(gpu: GpuModel) -> Table:
    table = _table("profile", "slices", "memory MiB", "max", "SMs", "id", "starts", "placements")
    for each in gpu.profiles:
        table.add_row(
            each.name,
            str(each.compute_slices),
            _memory(each),
            str(each.max_instances),
            "" if each.sm is None else str(each.sm),
            "" if each.profile_id is None else str(each.profile_id),
            " ".join(map(str, each.starts)) or "?",
            _KNOWN[each.placement][0],
        )
    return table


def _print_drawing(console: Console, gpu: GpuModel) -> None:
    """Print the axis of memory slices, and below it a line for each profile with its placements as boxes."""
    cell = _AXIS_CELLS // gpu.memory_slices
    width = max(len(each.name) for each in gpu.profiles) + 2
    axis = "".join(str(unit).center(cell) for unit in range(gpu.memory_slices)).rstrip()
    console.print(Text(f"{'slice'.ljust(width)}{axis}", "dim"))
    for number, each in enumerate(gpu.profiles):
        boxes = Text(each.name.ljust(width))
        drawn = 0
        for place in placements_of(gpu, each.name):
            boxes.append(" " * ((place.start - drawn) * cell))
            boxes.append(f"[{str(place.start).center(place.size * cell - 2, '─')}]", _COLORS[number % len(_COLORS)])
            drawn = place.start + place.size
        console.print(boxes)
    console.print()


def _notes(gpu: GpuModel) -> list[tuple[str, str]]:
    """Return the notes below the tables: subject and text."""
    lines = [("media", f"at most one +{kind} instance per GPU") for kind in gpu.at_most_one]
    if ALL_MEDIA in gpu.at_most_one:
        lines.append(("", f"+{ALL_MEDIA} takes all media engines: no other instance may have any"))
    if gpu.memory_slices:
        layouts, counts = len(maximal_layouts(gpu)), len(maximal_counts(gpu))
        lines.append(
            (
                "layouts",
                f"{layouts} maximal layouts (no other instance fits), with {counts} maximal profile counts",
            )
        )
        lines.append(("mig-parted", ", ".join(named_layouts(gpu))))
    if not (gpu.memory_known and all(each.memory_known for each in gpu.profiles)):
        lines.append(("memory", "~ marks a low estimate; the driver reports more"))
    lines += [_KNOWN[placement] for placement in dict.fromkeys(each.placement for each in gpu.profiles)]
    lines += [("note", gpu.note)] if gpu.note else []
    lines += [("also called", ", ".join((*gpu.aliases, *gpu.pci)))] if gpu.aliases or gpu.pci else []
    return lines
