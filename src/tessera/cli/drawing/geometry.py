"""The position of each cell of a GPU's strip: to scale, side by side or in lanes, never overlapping."""

from typing import Literal

import msgspec

from tessera.cli.drawing.views import MIG_MODES, DrawnDevice, DrawnGpu, DrawnPod

__all__ = ["BAND", "ROW", "Cell", "Frame", "StripRow", "row"]

ROW = 42.0
"""Height of a strip whose devices have one user each."""
BAND = 15.0
"""Height of the line above the pods of a shared device that tells how it is shared."""
_COLUMN = 33.0
_LANE = 14.0
_NARROWEST_COLUMN = 56.0
_MOST_LANES = 10
_GAP = 2.0
_SLIVER = 3.0


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One rectangle of a strip; coordinates within the strip, in pixels."""

    kind: Literal["pod", "open", "rest", "free"]
    """A pod; an unused device or replica; unallocated memory of a shared device; memory slices of no device."""
    x: float
    y: float
    width: float
    height: float
    holder: DrawnPod | None = None
    device: int | None = None
    """The device of the GPU that it belongs to."""
    amount: int = 0
    """Free memory slices or MiB."""
    start: int = 0
    """First of the free memory slices."""


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """The extent of one device on the strip."""

    x: float
    width: float
    device: int
    shared: bool
    """Whether a line above the pods tells how the device is shared."""


class StripRow(msgspec.Struct, frozen=True, kw_only=True):
    """The strip of one GPU."""

    height: float
    frames: tuple[Frame, ...]
    cells: tuple[Cell, ...]


def row(gpu: DrawnGpu, width: float, *, flat: bool = False) -> StripRow:
    """Return the cells of a GPU's strip; `flat` puts all pods side by side on one line without a band."""
    frames = tuple(_frame(gpu, number, width, flat=flat) for number in range(len(gpu.devices)))
    laned = not flat and any(_needs_lanes(gpu.devices[frame.device], frame.width) for frame in frames)
    height = ROW if not flat else 0.0
    for frame in frames:
        device = gpu.devices[frame.device]
        if frame.shared and laned and _holders(device) > 1:
            height = max(height, BAND + _LANE * min(_holders(device), _MOST_LANES) + 3)
        elif frame.shared:
            height = max(height, BAND + _COLUMN + 3)
    cells: list[Cell] = []
    for frame in frames:
        cells += _cells(gpu.devices[frame.device], frame, height, laned=laned)
    cells += _free(gpu, frames, width, height)
    return StripRow(height=height, frames=frames, cells=tuple(cells))


def _frame(gpu: DrawnGpu, number: int, width: float, *, flat: bool) -> Frame:
    device = gpu.devices[number]
    unit = width / gpu.memory_slices if gpu.memory_slices and device.size else 0.0
    shared = not flat and (device.clients != 1 or len(device.pods) > 1)
    gap = _GAP / 2 if not flat else 0.5
    x, extent = (device.start * unit, device.size * unit) if unit else (0.0, width)
    return Frame(x=x + gap, width=extent - 2 * gap, device=number, shared=shared)


def _holders(device: DrawnDevice) -> int:
    return max(device.clients, len(device.pods))


def _needs_lanes(device: DrawnDevice, width: float) -> bool:
    holders = _holders(device)
    return device.clients > 1 and holders <= _MOST_LANES and width / holders < _NARROWEST_COLUMN


def _cells(device: DrawnDevice, frame: Frame, height: float, *, laned: bool) -> list[Cell]:
    if not frame.shared and _holders(device) == 1:
        holder = device.pods[0] if device.pods else None
        kind: Literal["pod", "open"] = "pod" if holder else "open"
        return [Cell(kind=kind, x=frame.x, y=0, width=frame.width, height=height, holder=holder, device=frame.device)]
    if device.clients == 0:
        return _amounts(device, frame, height)
    return _replicas(device, frame, height, laned=laned)


def _room(frame: Frame, height: float) -> tuple[float, float, float, float]:
    """Return x, y, width and height of the area below the band, inside the frame."""
    if not frame.shared:
        return frame.x, 0.0, frame.width, height
    return frame.x + 2, BAND, frame.width - 4, height - BAND - 2


def _replicas(device: DrawnDevice, frame: Frame, height: float, *, laned: bool) -> list[Cell]:
    x, y, wide, high = _room(frame, height)
    holders = _holders(device)
    lanes = laned and holders <= _MOST_LANES
    step = (high if lanes else wide) / holders
    gap = min(1.5, step / 4)
    cells = []
    for number in range(holders):
        holder = device.pods[number] if number < len(device.pods) else None
        cells.append(
            Cell(
                kind="pod" if holder else "open",
                x=x if lanes else x + number * step,
                y=y + number * step if lanes else y,
                width=wide if lanes else step - gap,
                height=step - gap if lanes else high,
                holder=holder,
                device=frame.device,
            )
        )
    return cells


def _amounts(device: DrawnDevice, frame: Frame, height: float) -> list[Cell]:
    """Return cells as wide as the memory allocated; thin ones are widened at the expense of the rest."""
    x, y, wide, high = _room(frame, height)
    left = max(0, device.memory_mib - device.allocated_mib)
    weights = [*(holder.memory_mib for holder in device.pods), left]
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
    for holder, extent in zip((*device.pods, None), widths, strict=True):
        gap = min(1.5, extent / 4)
        if holder is not None:
            cells.append(_amount("pod", (x, y, extent - gap, high), device=frame.device, holder=holder))
        elif left and extent > gap:
            cells.append(_amount("rest", (x, y, extent, high), device=frame.device, amount=left))
        x += extent
    return cells


def _amount(
    kind: Literal["pod", "rest"],
    area: tuple[float, float, float, float],
    *,
    device: int,
    holder: DrawnPod | None = None,
    amount: int = 0,
) -> Cell:
    x, y, wide, high = area
    return Cell(kind=kind, x=x, y=y, width=wide, height=high, holder=holder, device=device, amount=amount)


def _free(gpu: DrawnGpu, frames: tuple[Frame, ...], width: float, height: float) -> list[Cell]:
    if not frames:
        return [Cell(kind="free", x=0, y=0, width=width, height=height, amount=gpu.memory_slices or gpu.memory_mib)]
    if not gpu.memory_slices or any(device.mode not in MIG_MODES for device in gpu.devices):
        return []
    taken = {unit for device in gpu.devices for unit in range(device.start, device.start + device.size)}
    step = width / gpu.memory_slices
    cells = []
    start = 0
    while start < gpu.memory_slices:
        end = start
        while end < gpu.memory_slices and end not in taken:
            end += 1
        if end > start:
            extent = (end - start) * step - _GAP
            x = start * step + _GAP / 2
            free = Cell(kind="free", x=x, y=0, width=extent, height=height, amount=end - start, start=start)
            cells.append(free)
        start = max(end, start + 1)
    return cells
