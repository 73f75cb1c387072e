"""The strip of one GPU as SVG: its devices, the pods on them, the free parts."""

from tessera.cli.drawing.elements import Block, corner, element, group, lock, rect, text, title
from tessera.cli.drawing.geometry import BAND, Cell, Frame, row
from tessera.cli.drawing.lettering import BOLD, counted, elide, first_fitting, listing, percent, width
from tessera.cli.drawing.palette import deep, tone
from tessera.cli.drawing.views import MIG_MODES, DrawnDevice, DrawnFleet, DrawnGpu, DrawnPod, pod_name
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Mode
from tessera.core.workload.need import Isolation
from tessera.core.workload.units import gib

__all__ = ["STRIP_X", "device_words", "pod_words", "strip"]

STRIP_X = 112
"""Width of the column at the left that names the GPU."""
STRIP = 888
"""A multiple of 8, 12 and 4, so that memory slices are whole pixels."""
_STRIPE = 4.0
_PAD = 6.0
_ROOMY = 70.0
_TWO_LINES = 20.0
_OUTLINED = 5.0

MODES = {
    Mode.WHOLE: "whole GPU",
    Mode.MIG: "MIG",
    Mode.MIG_TIME_SLICING: "time-slicing",
    Mode.MIG_MPS: "MPS",
    Mode.MPS: "MPS",
    Mode.TIME_SLICING: "time-slicing",
    Mode.MEMORY_SHARE: "memory shares",
}
_GRADES = {
    Isolation.HARDWARE: "isolated by hardware",
    Isolation.DRIVER: "limits enforced by the driver",
    Isolation.NONE: "no memory isolation",
}


def strip(fleet: DrawnFleet, gpus: tuple[DrawnGpu, ...], *, node: str) -> Block:
    """Return the line of a GPU: name, strip, memory allocated; further GPUs that look the same are named."""
    gpu = gpus[0]
    shape = row(gpu, STRIP)
    body = [rect((0, 0, STRIP, shape.height), rx=5, class_="bed")]
    body += [_frame(gpu.devices[frame.device], frame, shape.height) for frame in shape.frames]
    body += [_cell(fleet, gpu, cell) for cell in shape.cells]
    name = f"GPU {gpu.index}" if len(gpus) == 1 else f"GPU {gpu.index}\u2013{gpus[-1].index}"
    name += "?" * gpu.unrecorded
    middle = shape.height / 2
    label = text(elide(name, (STRIP_X - 10) / BOLD, 12.5), 0, middle - 1, 12.5, class_="h")
    model = gpu.model if len(gpus) == 1 else f"{len(gpus)} \u00d7 {gpu.model}"
    size = next((size for size in (10, 9.5, 9) if width(model, size) <= STRIP_X - 8), 8.5)
    label += text(elide(model, STRIP_X - 8, size), 0, middle + 13, size, class_="mute")
    label = title("\n".join(_gpu_words(node, one) for one in gpus)) + label
    strip_ = group("".join(body), STRIP_X, 0, class_="strip")
    return Block(group(group(label) + strip_ + _amounts(gpu, middle - 15), class_="gpu"), shape.height)


def _gpu_words(node: str, gpu: DrawnGpu) -> str:
    pods = listing((holder.pod for device in gpu.devices for holder in device.pods), 10**9)
    return f"{node}, GPU {gpu.index}, {gpu.model}, {gib(gpu.memory_mib)}: {pods or 'no pods'}"


def _amounts(gpu: DrawnGpu, y: float) -> str:
    allocated = min(gpu.allocated_mib, gpu.memory_mib)
    share = 104 * allocated / gpu.memory_mib if gpu.memory_mib else 0
    body = (
        text(percent(gpu.allocated_mib, gpu.memory_mib), 0, 10, 12, class_="h")
        + rect((0, 15, 104, 4), rx=2, class_="track")
        + (rect((0, 15, share, 4), rx=2, class_="bar") if allocated else "")
        + text(f"{gib(gpu.allocated_mib)} of {gib(gpu.memory_mib)}", 0, 31, 9.5, class_="mute")
    )
    return group(body, STRIP_X + STRIP + 16, y)


def device_words(device: DrawnDevice) -> str:
    """Return a device in words."""
    name = device.label or "whole GPU"
    if device.clients == 1 and len(device.pods) <= 1:
        return name
    times = f" \u00d7 {device.clients}" if device.clients else ""
    return f"{name} \u00b7 {MODES[device.mode]}{times}"


def _frame(device: DrawnDevice, frame: Frame, height: float) -> str:
    if not frame.shared:
        return ""
    dashes = {"stroke_dasharray": "4 3"} if device.isolation is Isolation.NONE else {}
    outline = rect((frame.x + 0.5, 0.5, frame.width - 1, height - 1), rx=4, class_="edge", stroke_width=1, **dashes)
    band = rect((frame.x + 1, 1, frame.width - 2, BAND - 2), rx=3, class_="band")
    mark = lock(frame.x + 5, 2.3, closed=device.isolation is not Isolation.NONE)
    new = corner(frame.x + frame.width, 0, "#10202e") if _is_new(device) else ""
    words = text(_band(device, frame.width - 32), frame.x + 17, 11, 9.5, class_="mute b")
    return group(title(_device_title(device)) + band + outline + mark + words + new, class_="frame")


def _band(device: DrawnDevice, room: float) -> str:
    """Return how a device is shared, in as many words as fit."""
    times = f" \u00d7 {device.clients}" if device.clients else ""
    kind = f"{MODES[device.mode]}{times}"
    name = f"{device.label} \u00b7 " if device.label else ""
    short = f"{device.label}{times}" if device.label else kind
    wordings = (f"{name}{kind} \u00b7 {_GRADES[device.isolation]}", f"{name}{kind}", short, device.label)
    return first_fitting(wordings, room / BOLD, 9.5)


def _is_new(device: DrawnDevice) -> bool:
    return device.mode in MIG_MODES and not device.exists


def _cell(fleet: DrawnFleet, gpu: DrawnGpu, cell: Cell) -> str:
    area = (cell.x, cell.y, cell.width, cell.height)
    if cell.kind == "free":
        return _free(gpu, cell)
    assert cell.device is not None
    device = gpu.devices[cell.device]
    if cell.kind == "rest":
        amount = gib(cell.amount)
        words = first_fitting((f"{amount} free", amount), cell.width - 2 * _PAD, 11)
        body = rect(area, rx=3, fill="url(#hatch)") + _words(cell, ("", words), "")
        return group(title(f"{gib(cell.amount)} not allocated") + body, class_="rest")
    if cell.holder is None:
        return _open(device, cell)
    return _pod(fleet, gpu, device, cell)


def _free(gpu: DrawnGpu, cell: Cell) -> str:
    area = (cell.x, cell.y, cell.width, cell.height)
    if not gpu.devices:
        long, words = "nothing is allocated here", ("", f"free \u00b7 {gib(gpu.memory_mib)}")
    else:
        units = counted(cell.amount, "slice")
        long, words = f"{cell.amount} of {gpu.memory_slices} memory slices in no MIG instance", ("", f"{units} free")
        if gpu.openings is not None:
            fits = _fitting(gpu.openings, cell)
            long += f"; fits {', '.join(fits) or 'nothing'}"
            words = (f"{units} free", f"fits {fits[0]}" if fits else "nothing fits")
    body = rect(area, rx=4, fill="url(#hatch)") + _words(cell, words, "")
    return group(title(long) + body, class_="free")


def _fitting(openings: tuple[Placement, ...], cell: Cell) -> list[str]:
    """Return the profiles that fit in free memory slices, the largest first."""
    end = cell.start + cell.amount
    inside = [place for place in openings if place.start >= cell.start and place.start + place.size <= end]
    return list(dict.fromkeys(place.profile for place in sorted(inside, key=lambda place: -place.size)))


def _open(device: DrawnDevice, cell: Cell) -> str:
    area = (cell.x + 0.5, cell.y + 0.5, cell.width - 1, cell.height - 1)
    single = cell.y == 0 and device.clients == 1
    words = (device.label or "whole GPU", "unused") if single else ("", "free")
    dashes = {"stroke_dasharray": "2 2"} if not single else {}
    body = rect(area, rx=3, class_="edge", stroke_width=1, **dashes) + _words(cell, words, "")
    new = corner(cell.x + cell.width, 0, "#5b6b7b") if single and _is_new(device) else ""
    return group(title(f"{_device_title(device)}\nunused") + body + new, class_="open")


def _pod(fleet: DrawnFleet, gpu: DrawnGpu, device: DrawnDevice, cell: Cell) -> str:
    holder = cell.holder
    assert holder is not None
    look = tone(holder.workload)
    area = (cell.x, cell.y, cell.width, cell.height)
    radius = min(4.0, cell.height / 4)
    body = [title(pod_words(fleet, gpu, device, holder)), rect(area, rx=radius, fill=look.fill, **deep(look))]
    if look.striped:
        body.append(rect((cell.x, cell.y, min(_STRIPE, cell.width / 2), cell.height), fill=look.edge))
    if holder.running and min(cell.width, cell.height) > _OUTLINED:
        inner = (cell.x + 1, cell.y + 1, cell.width - 2, cell.height - 2)
        body.append(rect(inner, rx=max(1.0, radius - 1), fill="none", stroke=look.edge, stroke_width=2))
    alone = cell.y == 0
    if alone and _is_new(device):
        body.append(corner(cell.x + cell.width, 0, look.edge))
    name = pod_name(holder.pod) + (f" \u00b7 {holder.part} of {holder.parts}" if holder.parts > 1 else "")
    if alone:
        first = device.label or f"whole GPU \u00b7 {gib(device.memory_mib)}"
    else:
        compute = f" \u00b7 {holder.compute_percent} %" if holder.compute_percent else ""
        first = f"{gib(holder.memory_mib)}{compute}" if not device.clients else ""
    body.append(_words(cell, (first, name), look.ink, indent=_STRIPE * look.striped))
    return group("".join(body), class_="pod")


def _words(cell: Cell, words: tuple[str, str], ink: str, *, indent: float = 0) -> str:
    """Return the text of a cell, shortened to fit and cut off at the cell's edge whatever font is used."""
    first, second = words
    pad = indent + (_PAD if cell.width - indent > _ROOMY else _PAD / 2)
    room = cell.width - 2 * pad + indent
    paint = {"style": f"fill:{ink}"} if ink else {"class_": "mute halo"}
    if cell.height < _TWO_LINES:
        size = min(9.5, cell.height - 2.5)
        body = text(elide(second, room, size), pad, cell.height / 2 + size * 0.35, size, **paint)
    else:
        bold = {"class_": "b"} if ink else {}
        middle = cell.height / 2
        if not first and width(second, 11) * BOLD > room and "-" in second:
            first, _, second = second.rpartition("-")
            first = elide(first, room, 9.5)
        first = first if width(first, 9.5) <= room else ""
        body = text(first, pad, middle - 5, 9.5, **paint)
        shift = 10.0 if first else 4.0
        body += text(elide(second, room / BOLD, 11), pad, middle + shift, 11, **{**paint, **bold})
    if not body:
        return ""
    return element("svg", body, x=cell.x, y=cell.y, width=cell.width, height=cell.height)


def _device_title(device: DrawnDevice) -> str:
    place = f" at {device.start}" if device.label else ""
    state = ""
    if device.mode in MIG_MODES:
        state = ", exists" if device.exists else ", to be created"
    return f"{device_words(device)}{place}, {gib(device.memory_mib)}, {_GRADES[device.isolation]}{state}"


def pod_words(fleet: DrawnFleet, gpu: DrawnGpu, device: DrawnDevice, holder: DrawnPod) -> str:
    """Return everything known about one pod's share of a device, in three lines."""
    workload = fleet.workloads[holder.workload]
    compute = f", {holder.compute_percent} % of the compute" if holder.compute_percent else ""
    part = f", share {holder.part} of {holder.parts}" if holder.parts > 1 else ""
    state = "running" if holder.running else "placed by this plan"
    return "\n".join(
        (
            f"{holder.pod} ({workload.kind} {workload.name}), {state}{part}".replace("( ", "("),
            f"GPU {gpu.index}: {_device_title(device)}",
            f"allocated: {gib(holder.memory_mib)}{compute}",
        )
    )
