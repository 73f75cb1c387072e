"""GPU usage as tables."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import RenderableType
from rich.text import Text

from tessera.cli.drawing.lettering import clean
from tessera.cli.printing import WIDE_COLUMNS, Section, headed_table, sectioned_table
from tessera.core.usage.contention import Contention
from tessera.core.usage.usagereport import GpuReport, UsageReport, gpus_by_urgency
from tessera.core.workload.units import gib

__all__ = ["contention_words", "top_notes", "top_table"]

_BAR = 12
_UNKNOWN = "-"
_EXITED = "exited processes"
_SILENT_S = 60.0
"""Agents observe their GPUs every 15 s, and report none after so long without an answer of the driver."""


def top_notes(reports: Sequence[UsageReport]) -> list[Text]:
    """Return which nodes' drivers or agents do not answer, and what slows GPUs down."""
    silent = [Text(f"node {clean(each.node)}: {why}", "bold yellow") for each in reports if (why := _silence(each))]
    slow = [
        Text(f"GPU {gpu.index}: {contention_words(each)} (node {clean(node)})", "yellow")
        for node, gpu in gpus_by_urgency(reports)
        for each in gpu.contention
    ]
    return silent + slow


def _silence(report: UsageReport) -> str:
    """Return who on a node has not answered for long; empty for nobody."""
    if report.age_s is not None and _driver_is_silent(report):
        return f"the driver has not answered for {report.age_s:.0f} s"
    return f"its agent last answered {report.answered_s:.0f} s ago" if report.answered_s > _SILENT_S else ""


def _driver_is_silent(report: UsageReport) -> bool:
    """Return whether an agent answered without an observation, or with an old one."""
    return report.age_s is None or report.age_s - report.answered_s > _SILENT_S


def top_table(reports: Sequence[UsageReport], columns: int) -> RenderableType:
    """Return the GPUs of all nodes with their containers: slow ones first, then the busiest.

    In less than 120 columns each GPU has a line of its own above its devices.
    """
    if columns < WIDE_COLUMNS:
        gpus = [Section(_titled(node, gpu), tuple(_narrow(_rows(gpu)))) for node, gpu in gpus_by_urgency(reports)]
        nodes = [Section(f"{clean(each.node)}: {_without_gpus(each)}") for each in reports if not each.gpus]
        return sectioned_table(("DEVICE", "USED / OF", "GPU %", "CONTAINER"), gpus + nodes)
    table = headed_table("NODE", "GPU", "DEVICE", "MEMORY", "USED / OF", "GPU %", "CONTAINER", "STATE")
    for node, gpu in gpus_by_urgency(reports):
        for row in _rows(gpu) or [_Row()]:
            place = (clean(node), _named(gpu), row.device) if row.device or not gpu.devices else ("", "", "")
            cells = (*place, _bar(row.used_mib, row.of_mib), row.use, row.percent, row.used_by)
            table.add_row(*map(Text, cells), Text(_state(gpu) if place[0] else ""))  # text of an agent is not markup
    for report in reports:
        if not report.gpus:
            table.add_row(Text(clean(report.node)), *[""] * 6, _without_gpus(report))
    return table


class _Row(NamedTuple):
    """A device and who uses it, or a container of a shared device."""

    device: str = ""
    """Empty below the row of its device."""
    used_mib: int | None = None
    of_mib: int | None = None
    gpu_percent: float | None = None
    used_by: str = ""

    @property
    def use(self) -> str:
        """Memory used, of what was allocated."""
        if not self.used_by or self.used_by == _EXITED:
            return ""
        used, of = (_UNKNOWN if mib is None else gib(mib) for mib in (self.used_mib, self.of_mib))
        unit = of[of.find(" ") :]
        return f"{used.removesuffix(unit)} / {of}"

    @property
    def percent(self) -> str:
        """Load, rounded."""
        known = "" if not self.used_by else _UNKNOWN
        return known if self.gpu_percent is None else f"{self.gpu_percent:.0f}"


def _rows(gpu: GpuReport) -> list[_Row]:
    """Return a row for each device, below it its containers; a container with the device to itself is in its row."""
    rows: list[_Row] = []
    for device in gpu.devices:
        name = f"{clean(device.profile)}@{device.start}" if device.profile else "whole"
        shared = len(device.containers) != 1 or not device.containers[0].exclusive
        if shared:
            used_by = _counted(len(device.containers))
            rows.append(_Row(name, device.used_mib, device.memory_mib, device.gpu_percent, used_by))
        if device.ended_percent:
            rows.append(_Row(gpu_percent=device.ended_percent, used_by=_EXITED))
        for each in device.containers:
            first = "" if shared else name
            rows.append(_Row(first, each.used_mib, each.allocated_mib, each.gpu_percent, clean(each.name)))
    return rows


def _narrow(rows: Sequence[_Row]) -> Iterator[tuple[str, ...]]:
    for row in rows:
        yield row.device, row.use, row.percent, row.used_by


def _titled(node: str, gpu: GpuReport) -> str:
    state = _state(gpu)
    return f"{clean(node)} GPU {_named(gpu)}{state and ': '}{state}"


def _without_gpus(report: UsageReport) -> str:
    return "the driver does not answer" if _driver_is_silent(report) else "no GPU"


def _counted(containers: int) -> str:
    return {0: "no container", 1: "1 container"}.get(containers, f"{containers} containers")


def _named(gpu: GpuReport) -> str:
    return f"{gpu.index} {clean(gpu.model)}"


def _bar(used_mib: int | None, of_mib: int | None) -> str:
    if used_mib is None or not of_mib:
        return ""
    full = min(round(_BAR * used_mib / of_mib), _BAR)
    return "█" * full + "░" * (_BAR - full)


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
