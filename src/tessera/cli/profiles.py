"""`tessera profiles`: what Tessera knows of GPU models, and how it knows it."""

from typing import Any

import click
import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from tessera.cli.options import output_option
from tessera.cli.printing import trimmed, wide_console
from tessera.core.gpu.gpumodels import CATALOGUE, SOURCES, GpuModel, Profile, model
from tessera.core.gpu.mig import ALL_MEDIA, maximal_counts, maximal_layouts, named_layouts, placements, placements_of

__all__ = ["profiles"]


_AXIS_CELLS = 48
"""Characters that a drawing gives to all units together; the lengths 4, 8 and 12 divide it."""

_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red")

_KNOWN = {
    "observed": ("seen", "nvidia-smi's list of placements was seen for this product"),
    "published-table": ("table", "a table of placements was published for this product"),
    "inferred": ("inferred", "placements are those of a product of the same die family, not seen on this one"),
    "unknown": ("unknown", "placements were not found, so no instance can be planned"),
}
"""How placements are known, in a word and in a sentence."""


_EPILOG = """
\b
Examples:
  tessera profiles
  tessera profiles A100-40GB
  tessera profiles nvidia-h100-80gb -o json
"""


@click.command(epilog=_EPILOG)
@click.argument("gpu", metavar="[MODEL]", required=False)
@output_option("table", "json")
def profiles(gpu: str | None, output: str) -> None:
    """Show the GPU models Tessera knows, or one MODEL's MIG profiles and where their instances may start.

    MODEL is a catalogue name, a product name as nvidia-smi or the label nvidia.com/gpu.product has it, GKE's name of
    the accelerator, or a PCI device id as mig-parted writes it.
    """
    if output == "json":
        facts = [_summary(each) for each in CATALOGUE] if gpu is None else _facts(model(gpu))
        click.echo(msgspec.json.format(msgspec.json.encode(facts)).decode())
        return
    console = wide_console()
    if gpu is None:
        console.print(trimmed(_catalogue()))
        console.print("~ is an estimate below what the driver will show; `tessera profiles MODEL` tells more.")
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
        "units": gpu.units,
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


def _table(*headings: str, left: int = 1) -> Table:
    """Return an empty table with its first `left` columns and the last one left-aligned."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for number, heading in enumerate(headings):
        justify: JustifyMethod = "left" if number < left or number == len(headings) - 1 else "right"
        table.add_column(heading, justify=justify, no_wrap=number == 0, overflow="fold")
    return table


def _catalogue() -> Table:
    table = _table("model", "architecture", "MiB", "slices", "units", "known", left=2)
    for each in CATALOGUE:
        placement = _placement(each)
        table.add_row(
            each.name,
            each.arch,
            _memory(each),
            str(each.compute_slices) if each.profiles else "no MIG",
            str(each.units or ""),
            _KNOWN[placement][0] if placement else "",
        )
    return table


def _print_model(console: Console, gpu: GpuModel) -> None:
    head = f"[bold]{gpu.name}[/], {gpu.arch}, {_memory(gpu)} MiB usable"
    units = f"{gpu.units} placement units" if gpu.units else "placement units not known"
    mig = f"{gpu.compute_slices} compute slices, {units}" if gpu.profiles else "no MIG"
    console.print(f"{head}, {mig}", soft_wrap=True)
    if gpu.profiles:
        console.print(trimmed(_profile_table(gpu)))
        console.print()
    if gpu.units:
        _print_drawing(console, gpu)
    notes = Table.grid(padding=(0, 2))
    for label, text in _notes(gpu):
        notes.add_row(label, Text(text, overflow="fold"))
    console.print(trimmed(notes))


def _profile_table(gpu: GpuModel) -> Table:
    table = _table("profile", "slices", "memory MiB", "most", "SM", "id", "starts", "known")
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
    """Print the axis of units, and below it a line for each profile with its placements as boxes."""
    cell = _AXIS_CELLS // gpu.units
    width = max(len(each.name) for each in gpu.profiles) + 2
    axis = "".join(str(unit).center(cell) for unit in range(gpu.units)).rstrip()
    console.print(Text(f"{'unit'.ljust(width)}{axis}", "dim"))
    for number, each in enumerate(gpu.profiles):
        boxes = Text(each.name.ljust(width))
        drawn = 0
        for place in placements_of(gpu, each.name):
            boxes.append(" " * ((place.start - drawn) * cell))
            boxes.append(f"[{str(place.start).center(place.size * cell - 2, '─')}]", _COLOURS[number % len(_COLOURS)])
            drawn = place.start + place.size
        console.print(boxes)
    console.print()


def _notes(gpu: GpuModel) -> list[tuple[str, str]]:
    """Return what is said below the tables: what about, and what."""
    lines = [("media", f"one GPU holds one instance with +{kind} at most") for kind in gpu.at_most_one]
    if ALL_MEDIA in gpu.at_most_one:
        lines.append(("", f"+{ALL_MEDIA} holds all media engines: only instances without any fit beside it"))
    if gpu.units:
        layouts, counts = len(maximal_layouts(gpu)), len(maximal_counts(gpu))
        lines.append(
            (
                "layouts",
                f"{layouts} are maximal (nothing can be added); {counts} of their profile counts are exceeded by none",
            )
        )
        lines.append(("mig-parted", ", ".join(named_layouts(gpu))))
    if not (gpu.memory_known and all(each.memory_known for each in gpu.profiles)):
        lines.append(("memory", "~ is an estimate below what the driver will show"))
    lines += [_KNOWN[placement] for placement in dict.fromkeys(each.placement for each in gpu.profiles)]
    lines += [("note", gpu.note)] if gpu.note else []
    lines += [("also called", ", ".join((*gpu.aliases, *gpu.pci)))] if gpu.aliases or gpu.pci else []
    sources = [f"{key}: {SOURCES[key]}" for key in _sources(gpu)]
    return [*lines, *zip(["sources", *[""] * (len(sources) - 1)], sources, strict=True)]
