"""GPU usage as tables."""

from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from tessera.cli.drawing.lettering import clean
from tessera.cli.printing import headed_table
from tessera.core.usage.contention import Contention
from tessera.core.usage.usagereport import GpuReport, UsageReport, gpus_by_urgency
from tessera.core.workload.units import gib

__all__ = ["contention_words", "top_notes", "top_table"]

_BAR = 12
_UNKNOWN = "-"
_SILENT_S = 60.0
"""Agents observe their GPUs every 15 s, and report none after so long without an answer of the driver."""


def top_notes(reports: Sequence[UsageReport]) -> list[Text]:
    """Return which nodes' drivers do not answer, and what slows GPUs down."""
    silent = [
        Text(f"node {clean(each.node)}: the driver has not answered for {each.age_s:.0f} s", "bold yellow")
        for each in reports
        if (each.age_s or 0.0) > _SILENT_S
    ]
    slow = [
        Text(f"node {clean(node)}, GPU {gpu.index}: {contention_words(each)}", "yellow")
        for node, gpu in gpus_by_urgency(reports)
        for each in gpu.contention
    ]
    return silent + slow


def top_table(reports: Sequence[UsageReport]) -> Table:
    """Return the GPUs of all nodes with their containers: slow ones first, then the busiest."""
    table = headed_table("NODE", "GPU", "DEVICE", "MEMORY", "USED / OF", "GPU %", "CONTAINER", "STATE")

    def add_row(*cells: str) -> None:
        table.add_row(*map(Text, cells))  # text of an agent is not markup

    for node, gpu in gpus_by_urgency(reports):
        _add_gpu(add_row, node, gpu)
    for report in reports:
        if not report.gpus:
            silent = report.age_s is None or report.age_s > _SILENT_S
            add_row(clean(report.node), *[""] * 6, "the driver does not answer" if silent else "no GPU")
    return table


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
            add_row("", "", "", "", "", f"{device.ended_percent:.0f}", "exited processes", "")
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
    where = "on this node" if contention.scope == "node" else "on this GPU"
    slows = f"; slowed down: {', '.join(map(clean, contention.affected))}" if contention.affected else ""
    match contention.verdict:
        case "caused":
            there = f" {where}" if contention.scope == "node" else ""
            why = f", caused by {', '.join(map(clean, contention.caused_by))}{there}{slows}"
        case "even":
            *most, last = map(clean, contention.evenly)
            why = f": {', '.join(most)} and {last} use it about equally"
        case "nobody":
            why = f": no busy pod {where}: check cooling and power supply{slows}"
        case _:
            why = f", cause unknown: not all load can be attributed to pods{slows}"
    ended = "; part of the load came from processes that exited and cannot be attributed" if contention.ended else ""
    return f"{clean(contention.cause)}{why}{ended}"
