"""GPU usage as tables."""

from collections.abc import Callable, Iterable

from rich.console import Group, RenderableType
from rich.text import Text

from tessera.cli.drawing.lettering import clean
from tessera.cli.printing import headed_table
from tessera.core.usage.neighbors import Contention
from tessera.core.usage.usagereport import GpuReport, UsageReport
from tessera.core.workload.units import gib

__all__ = ["contention_words", "top_table"]

_BAR = 12
_UNKNOWN = "-"


def top_table(reports: Iterable[UsageReport]) -> RenderableType:
    """Return the GPUs of all nodes with their containers, and below them what slows them down."""
    table = headed_table("NODE", "GPU", "DEVICE", "MEMORY", "USED / OF", "GPU %", "CONTAINER", "STATE")
    contention = []

    def add_row(*cells: str) -> None:
        table.add_row(*map(Text, cells))  # text of an agent is not markup

    for report in reports:
        for gpu in report.gpus:
            _add_gpu(add_row, report.node, gpu)
            contention += [
                Text(f"node {clean(report.node)}, GPU {gpu.index}: {contention_words(each)}", "yellow")
                for each in gpu.contention
            ]
        if not report.gpus:
            add_row(clean(report.node), "", "", "", "", "", "", "no GPU was observed")
    return Group(table, *contention)


def _add_gpu(add_row: Callable[..., None], node: str, gpu: GpuReport) -> None:
    state = _state(gpu)
    if not gpu.devices:
        add_row(clean(node), _named(gpu), "", "", "", "", "", state)
    for device in gpu.devices:
        name = f"{clean(device.profile)}@{device.start}" if device.profile else "whole"
        shared = len(device.containers) != 1 or not device.containers[0].exclusive
        if shared:
            used_by = _counted(len(device.containers))
            use = _use(device.used_mib, device.memory_mib, device.gpu_percent)
            add_row(clean(node), _named(gpu), name, *use, used_by, state)
        if device.ended_percent:
            add_row("", "", "", "", "", f"{device.ended_percent:.0f}", "processes that have ended", "")
        for each in device.containers:
            place = ("", "", "") if shared else (clean(node), _named(gpu), name)
            use = _use(each.used_mib, each.allocated_mib, each.gpu_percent)
            add_row(*place, *use, clean(each.name), "" if shared else state)


def _counted(containers: int) -> str:
    return {0: "no container", 1: "1 container"}.get(containers, f"{containers} containers")


def _named(gpu: GpuReport) -> str:
    return f"{gpu.index} {clean(gpu.model)}"


def _use(used_mib: int | None, of_mib: int | None, percent: float | None) -> tuple[str, str, str]:
    return _bar(used_mib, of_mib), _part(used_mib, of_mib), "-" if percent is None else f"{percent:.0f}"


def _bar(used_mib: int | None, of_mib: int | None) -> str:
    if used_mib is None or not of_mib:
        return ""
    full = min(round(_BAR * used_mib / of_mib), _BAR)
    return "█" * full + "░" * (_BAR - full)


def _part(used_mib: int | None, of_mib: int | None) -> str:
    return " / ".join(_UNKNOWN if mib is None else gib(mib) for mib in (used_mib, of_mib))


def _state(gpu: GpuReport) -> str:
    if gpu.lost:
        return "lost"
    hot = "" if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} C"
    watts = "" if gpu.power_watts is None else f"{gpu.power_watts:.0f} W"
    slow = f"throttled: {', '.join(map(clean, gpu.throttled))}" if gpu.throttled else ""
    return ", ".join(each for each in (hot, watts, slow) if each)


def contention_words(contention: Contention) -> str:
    """Return what slows down a GPU, which containers cause it, and which it slows down."""
    ended = "; some of the load is of processes that have ended, whose pods are unknown" if contention.ended else ""
    if contention.evenly:
        *most, last = map(clean, contention.evenly)
        return f"{clean(contention.cause)}: {', '.join(most)} and {last} use it about equally{ended}"
    containers = ", ".join(map(clean, contention.caused_by)) or "unknown pods"
    others = f"; slowed down: {', '.join(map(clean, contention.affected))}" if contention.affected else ""
    where = " on this node" if contention.scope == "node" else ""
    return f"{clean(contention.cause)}, caused by {containers}{where}{others}{ended}"
