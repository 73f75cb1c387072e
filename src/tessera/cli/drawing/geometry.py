"""Where each cell of a GPU's strip lies: to scale, side by side or in lanes, never one on another."""

from typing import Literal

import msgspec

from tessera.cli.drawing.seating import MIG_MODES, Bench, GpuView, Seat

__all__ = ["BAND", "ROW", "Cell", "Frame", "Row", "row"]

ROW = 42.0
"""Height of a strip whose devices have one holder each."""
BAND = 15.0
"""Height of the line above the seats of a shared device that says how it is shared."""
_COLUMN = 33.0
_LANE = 14.0
_NARROWEST_COLUMN = 56.0
_MOST_LANES = 10
_GAP = 2.0
_SLIVER = 3.0


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One rectangle of a strip; coordinates within the strip, in pixels."""

    kind: Literal["seat", "open", "rest", "free"]
    """A pod; an unused device or replica; unallocated memory of a shared device; memory slices of no device."""
    x: float
    y: float
    width: float
    height: float
    seat: Seat | None = None
    bench: int | None = None
    """Which of the GPU's devices it belongs to."""
    amount: int = 0
    """Units or MiB that are free."""
    start: int = 0
    """First of the units that are free."""


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """The extent of one device on the strip."""

    x: float
    width: float
    bench: int
    shared: bool
    """Whether a line above the seats says how the device is shared."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The strip of one GPU."""

    height: float
    frames: tuple[Frame, ...]
    cells: tuple[Cell, ...]


def row(gpu: GpuView, width: float, *, flat: bool = False) -> Row:
    """Return the cells of a GPU's strip; `flat` puts all seats side by side on one line without a band."""
    frames = tuple(_frame(gpu, number, width, flat=flat) for number in range(len(gpu.benches)))
    laned = not flat and any(_wants_lanes(gpu.benches[frame.bench], frame.width) for frame in frames)
    height = ROW if not flat else 0.0
    for frame in frames:
        bench = gpu.benches[frame.bench]
        if frame.shared and laned and _seats(bench) > 1:
            height = max(height, BAND + _LANE * min(_seats(bench), _MOST_LANES) + 3)
        elif frame.shared:
            height = max(height, BAND + _COLUMN + 3)
    cells: list[Cell] = []
    for frame in frames:
        cells += _cells(gpu.benches[frame.bench], frame, height, laned=laned)
    cells += _free(gpu, frames, width, height)
    return Row(height=height, frames=frames, cells=tuple(cells))


def _frame(gpu: GpuView, number: int, width: float, *, flat: bool) -> Frame:
    bench = gpu.benches[number]
    unit = width / gpu.units if gpu.units and bench.size else 0.0
    shared = not flat and (bench.clients != 1 or len(bench.seats) > 1)
    gap = _GAP / 2 if not flat else 0.5
    x, extent = (bench.start * unit, bench.size * unit) if unit else (0.0, width)
    return Frame(x=x + gap, width=extent - 2 * gap, bench=number, shared=shared)


def _seats(bench: Bench) -> int:
    return max(bench.clients, len(bench.seats))


def _wants_lanes(bench: Bench, width: float) -> bool:
    seats = _seats(bench)
    return bench.clients > 1 and seats <= _MOST_LANES and width / seats < _NARROWEST_COLUMN


def _cells(bench: Bench, frame: Frame, height: float, *, laned: bool) -> list[Cell]:
    if not frame.shared and _seats(bench) == 1:
        seat = bench.seats[0] if bench.seats else None
        kind: Literal["seat", "open"] = "seat" if seat else "open"
        return [Cell(kind=kind, x=frame.x, y=0, width=frame.width, height=height, seat=seat, bench=frame.bench)]
    if bench.clients == 0:
        return _amounts(bench, frame, height)
    return _replicas(bench, frame, height, laned=laned)


def _room(frame: Frame, height: float) -> tuple[float, float, float, float]:
    """Return x, y, width and height of what lies below the band, inside the frame's line."""
    if not frame.shared:
        return frame.x, 0.0, frame.width, height
    return frame.x + 2, BAND, frame.width - 4, height - BAND - 2


def _replicas(bench: Bench, frame: Frame, height: float, *, laned: bool) -> list[Cell]:
    x, y, wide, high = _room(frame, height)
    seats = _seats(bench)
    lanes = laned and seats <= _MOST_LANES
    step = (high if lanes else wide) / seats
    gap = min(1.5, step / 4)
    cells = []
    for number in range(seats):
        seat = bench.seats[number] if number < len(bench.seats) else None
        cells.append(
            Cell(
                kind="seat" if seat else "open",
                x=x if lanes else x + number * step,
                y=y + number * step if lanes else y,
                width=wide if lanes else step - gap,
                height=step - gap if lanes else high,
                seat=seat,
                bench=frame.bench,
            )
        )
    return cells


def _amounts(bench: Bench, frame: Frame, height: float) -> list[Cell]:
    """Return cells as wide as the memory allocated; the rest pays for making thin ones visible."""
    x, y, wide, high = _room(frame, height)
    left = max(0, bench.memory_mib - bench.granted_mib)
    weights = [*(seat.memory_mib for seat in bench.seats), left]
    scale = wide / max(1, sum(weights))
    thin = min(_SLIVER, wide / max(1, len(weights)))
    widths = [max(thin, weight * scale) for weight in weights[:-1]]
    widths.append(left * scale)
    over = sum(widths) - wide
    if over > 0:
        spare = sum(extent - thin for extent in widths if extent > thin)
        share = min(1.0, over / spare) if spare else 0.0
        widths = [extent - (extent - thin) * share if extent > thin else extent for extent in widths]
    cells = []
    for seat, extent in zip((*bench.seats, None), widths, strict=True):
        gap = min(1.5, extent / 4)
        if seat is not None:
            cells.append(_amount("seat", (x, y, extent - gap, high), bench=frame.bench, seat=seat))
        elif left and extent > gap:
            cells.append(_amount("rest", (x, y, extent, high), bench=frame.bench, amount=left))
        x += extent
    return cells


def _amount(
    kind: Literal["seat", "rest"],
    area: tuple[float, float, float, float],
    *,
    bench: int,
    seat: Seat | None = None,
    amount: int = 0,
) -> Cell:
    x, y, wide, high = area
    return Cell(kind=kind, x=x, y=y, width=wide, height=high, seat=seat, bench=bench, amount=amount)


def _free(gpu: GpuView, frames: tuple[Frame, ...], width: float, height: float) -> list[Cell]:
    if not frames:
        return [Cell(kind="free", x=0, y=0, width=width, height=height, amount=gpu.units or gpu.memory_mib)]
    if not gpu.units or any(bench.mode not in MIG_MODES for bench in gpu.benches):
        return []
    taken = {unit for bench in gpu.benches for unit in range(bench.start, bench.start + bench.size)}
    step = width / gpu.units
    cells = []
    start = 0
    while start < gpu.units:
        end = start
        while end < gpu.units and end not in taken:
            end += 1
        if end > start:
            extent = (end - start) * step - _GAP
            x = start * step + _GAP / 2
            free = Cell(kind="free", x=x, y=0, width=extent, height=height, amount=end - start, start=start)
            cells.append(free)
        start = max(end, start + 1)
    return cells
