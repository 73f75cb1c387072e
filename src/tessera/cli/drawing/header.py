"""The head of the drawing: title, totals, and the legend of colors and marks."""

import math
from collections.abc import Iterable, Iterator

from tessera.cli.drawing.elements import Block, corner, group, lock, phrase, rect, stack, text, title
from tessera.cli.drawing.lettering import BOLD, counted, elide, percent, width
from tessera.cli.drawing.palette import deep, tone
from tessera.cli.drawing.totals import Totals, totals
from tessera.cli.drawing.views import MIG_MODES, DrawnFleet, DrawnGpu, DrawnWorkload
from tessera.core.workload.need import Isolation
from tessera.core.workload.units import gib

__all__ = ["INNER", "chip", "header"]

INNER = 1152.0
"""Width between the margins of the sheet."""
_MOST_CHIPS = 36
_COLUMN = INNER / 48


def header(fleet: DrawnFleet, heading: str, *, marks: bool) -> Block:
    """Return title, totals and legend, with or without the marks that only large strips have."""
    sums = totals(fleet)
    line = " \u00b7 ".join(
        part
        for part in (
            f"{counted(sums.gpus, 'GPU')} on {counted(sums.nodes, 'node')}",
            f"policy {fleet.policy}",
            fleet.proof,
        )
        if part
    )
    head = Block(
        text(elide(heading, INNER / BOLD, 24), 0, 24, 24, class_="h")
        + text(elide(line, INNER, 12.5), 0, 46, 12.5, class_="mute"),
        54,
    )
    blocks = [head, _tiles(sums)]
    if fleet.workloads:
        blocks.append(_legend(fleet, marked=marks))
    return stack(blocks, 14)


def _tiles(sums: Totals) -> Block:
    requested = sums.placed + sums.pending
    running = f", {sums.running} already running" if sums.running else ""
    on_gpus = sum(count for _, count in sums.grades)
    alone = on_gpus - dict(sums.grades)[Isolation.NONE]
    tiles = (
        (
            "Pods placed",
            f"{sums.placed:,} of {requested:,}",
            f"{sums.pending or 'none'} pending{running}",
            (sums.placed, requested),
        ),
        ("GPUs in use", f"{sums.gpus_used:,} of {sums.gpus:,}", _instances(sums), (sums.gpus_used, sums.gpus)),
        (
            "GPU memory allocated",
            percent(sums.allocated_mib, sums.memory_mib),
            f"{gib(sums.allocated_mib)} of {gib(sums.memory_mib)}",
            (sums.allocated_mib, sums.memory_mib),
        ),
        ("Pods whose memory is isolated", f"{alone:,} of {on_gpus:,}", _grades(sums), (alone, on_gpus)),
    )
    wide = (INNER - 3 * 14) / 4
    body = "".join(group(_tile(tile, wide), number * (wide + 14), 0) for number, tile in enumerate(tiles))
    return Block(body, 84)


def _instances(sums: Totals) -> str:
    if not sums.instances:
        return f"{sums.gpus - sums.gpus_used or 'none'} free"
    created = f", {sums.instances_new} new" if sums.instances_new else ""
    unused = f", {sums.instances_unused} unused" if sums.instances_unused else ""
    return f"{counted(sums.instances, 'MIG instance')}{created}{unused}"


def _grades(sums: Totals) -> str:
    shown = [(grade, count) for grade, count in reversed(sums.grades) if count]
    words = {
        Isolation.HARDWARE: "by hardware",
        Isolation.DRIVER: "by driver",
        Isolation.NONE: "not" if len(shown) > 1 else "not isolated",
    }
    return ", ".join(f"{count:,} {words[grade]}" for grade, count in shown) or "no pod on a GPU"


def _tile(tile: tuple[str, str, str, tuple[int, int]], wide: float) -> str:
    name, value, detail, (part, whole) = tile
    bar = ""
    if whole:
        bar = rect((16, 72, wide - 32, 4), rx=2, class_="track")
        bar += rect((16, 72, (wide - 32) * min(part, whole) / whole, 4), rx=2, class_="bar") if part else ""
    return (
        rect((0, 0, wide, 84), rx=8, class_="card")
        + text(name, 16, 22, 11, class_="mute")
        + text(elide(value, wide - 32, 22), 16, 47, 22, class_="h")
        + text(elide(detail, wide - 32, 11), 16, 64, 11, class_="mute")
        + bar
    )


def chip(workload: int, x: float, y: float, size: float = 12) -> str:
    """Return a square in a workload's color."""
    look = tone(workload)
    stripe = rect((x, y, size / 3, size), fill=look.edge) if look.striped else ""
    return rect((x, y, size, size), rx=3, fill=look.fill, **deep(look)) + stripe


def _legend(fleet: DrawnFleet, *, marked: bool) -> Block:
    entries = [_entry(workload) for workload in fleet.workloads[:_MOST_CHIPS]]
    more = len(fleet.workloads) - _MOST_CHIPS
    if more > 0:
        entries.append((text(f"and {more} more workloads", 0, 10.5, 11.5, class_="mute"), 160.0))
    marks = [(icon + text(words, 18, 10.5, 11, class_="mute"), 18 + width(words, 11)) for icon, words in _marks(fleet)]
    return stack([_flow(entries), _flow(marks)] if marks and marked else [_flow(entries)], 8)


def _entry(workload: DrawnWorkload) -> tuple[str, float]:
    name = elide(workload.name, 330, 11.5)
    counts = ", ".join(
        f"{count} {word}"
        for count, word in ((workload.running, "running"), (workload.placed, "placed"), (workload.pending, "pending"))
        if count
    )
    detail = " \u00b7 ".join(part for part in (workload.kind, counts) if part)
    body = (
        title(f"{workload.kind} {workload.name}: {counts}".strip())
        + chip(workload.number, 0, 0)
        + phrase((name, 11.5, "b"), (detail, 11, "mute"), x=18, y=10.5)
    )
    return group(body), 18 + width(name, 11.5) * BOLD + 7 + width(detail, 11)


def _flow(entries: Iterable[tuple[str, float]]) -> Block:
    """Return entries of known width from left to right, on as many lines as they need."""
    body = []
    x = y = 0.0
    for entry, wide in entries:
        if x and x + wide > INNER:
            x, y = 0.0, y + 20
        body.append(group(entry, x, y))
        x += _COLUMN * math.ceil((wide + 12) / _COLUMN)
    return Block("".join(body), y + 14)


def _marks(fleet: DrawnFleet) -> Iterator[tuple[str, str]]:
    """Yield the marks in this drawing, with their meaning."""
    gpus = fleet.gpus
    devices = [device for gpu in gpus for device in gpu.devices]
    shared = [device for device in devices if device.clients != 1]
    box = (0.75, 0.75, 10.5, 10.5)
    if any(holder.running for device in devices for holder in device.pods):
        yield rect((1, 1, 10, 10), rx=2, fill="none", class_="edge", stroke_width=2), "running pod"
    if any(device.mode in MIG_MODES and not device.exists for device in devices):
        yield rect(box, rx=2, class_="edge", stroke_width=1) + corner(12, 0, "#5b6b7b"), "MIG instance to be created"
    if any(device.mode in MIG_MODES and device.exists for device in devices):
        yield rect(box, rx=2, class_="edge", stroke_width=1), "existing MIG instance"
    if any(device.isolation is Isolation.DRIVER for device in shared):
        yield lock(2, 1, closed=True), "shared, limits enforced by the driver"
    if any(device.isolation is Isolation.NONE for device in shared):
        yield lock(2, 1, closed=False), "shared without isolation (dashed edge)"
    if any(map(_has_rest, gpus)):
        yield rect((0, 0, 12, 12), rx=2, fill="url(#hatch)") + rect(box, rx=2, class_="edge", stroke_width=0.5), "free"


def _has_rest(gpu: DrawnGpu) -> bool:
    if not gpu.devices:
        return True
    if any(device.clients == 0 and device.allocated_mib < device.memory_mib for device in gpu.devices):
        return True
    sizes = sum(device.size for device in gpu.devices)
    return bool(sizes) and sizes < gpu.memory_slices
