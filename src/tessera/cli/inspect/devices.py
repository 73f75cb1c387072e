"""`tessera inspect`: every GPU with its layout drawn, mode, isolation, pods, memory, health, fragmentation.

From 170 characters on it is one line a GPU with the node in the first column. In narrower terminals nodes are headings,
and what does not fit is on a GPU's second line.
"""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tessera.cli.drawing.lettering import clean, counted, listing, percent
from tessera.cli.inspect.bar import LEGEND, bar, signs
from tessera.cli.printing import ENDLESS
from tessera.core.cluster.cluster import Phase, Record
from tessera.core.cluster.enforcement import Level
from tessera.core.explain.inspection import GpuHealth, GpuInspection, InspectedShare, Inspection, NodeInspection
from tessera.core.gpu.sharing import Mode
from tessera.core.workload.units import gib

__all__ = ["devices"]

_ONE_LINE = 170
"""Width from which everything about a GPU fits on one line."""
_ROOMY = 100
"""Width from which an unhealthy GPU's reason is beside the word, in a table with nodes as headings."""
_BROAD = 190
"""Width from which bars may be long."""
_BAR, _LONG_BAR = 34, 50
_NAME = 24
"""Longest name of a node on one line with everything else."""
_MOST_PODS = 12
"""Pods listed for one GPU, and pending pods; the others are counted."""
_MOST_SENTENCES = 20
"""Conflicts and problems shown."""
_MODES = {
    Mode.WHOLE: "whole",
    Mode.MIG: "MIG",
    Mode.MIG_TIME_SLICING: "MIG time-sliced",
    Mode.MIG_MPS: "MIG with MPS",
    Mode.MPS: "MPS",
    Mode.TIME_SLICING: "time-sliced",
    Mode.MEMORY_SHARE: "memory share",
}
_LEVELS = {
    Level.HARDWARE: "hardware",
    Level.DRIVER_MPS: "MPS",
    Level.DRIVER_DMEM: "memory",
    Level.NONE: "none",
}
_HEALTH = {GpuHealth.HEALTHY: "green", GpuHealth.UNHEALTHY: "bold red", GpuHealth.UNKNOWN: "dim"}


def devices(inspection: Inspection, width: int) -> RenderableType:
    """Return all GPUs, then pending pods, problems, the legend, and the totals."""
    numbers = _numbers(inspection)
    lines = _wide(inspection.nodes, width, numbers) if width >= _ONE_LINE else _narrow(inspection.nodes, width, numbers)
    return Group(*lines, *_pending(inspection), *_wrong(inspection), *_legend(inspection), _sum(inspection))


def _numbers(inspection: Inspection) -> Mapping[str, int]:
    """Return a number for each pod, in order of appearance."""
    gpus = (gpu for node in inspection.nodes for gpu in node.gpus)
    return {pod: n for n, pod in enumerate(dict.fromkeys(holder.pod for gpu in gpus for holder in gpu.pods))}


# One line a GPU


def _wide(nodes: Sequence[NodeInspection], width: int, numbers: Mapping[str, int]) -> Iterator[RenderableType]:
    table = _table()
    room = _BAR if width < _BROAD else _LONG_BAR
    for name in ("NODE", "GPU", "MODEL", "LAYOUT", "MODE", "ISOLATION"):
        table.add_column(name, min_width=room if name == "LAYOUT" else len(name), no_wrap=True)
    for name in ("ALLOCATED", "COMPUTE", "USED"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("HEALTH", overflow="fold", min_width=6)
    table.add_column("FRAG", justify="right", no_wrap=True)
    table.add_column("PODS", overflow="fold", ratio=1)
    for node in nodes:
        for gpu in node.gpus:
            table.add_row(
                Text(_short(clean(node.name), _NAME if width < ENDLESS else ENDLESS)),
                str(gpu.index),
                Text(clean(gpu.model)),
                bar(gpu, room, numbers),
                _mode(gpu),
                _level(gpu),
                _allocated(gpu),
                f"{gpu.allocated_percent} %",
                _used(gpu),
                _health(gpu),
                _fragmentation(gpu),
                _pods(gpu),
            )
    if table.row_count:
        yield table


def _short(name: str, most: int) -> str:
    """Return a shortened name; its end, which differs between nodes of a pool, is kept."""
    return name if len(name) <= most else f"{name[: most - 9]}\u2026{name[-8:]}"


# Nodes as headings


def _narrow(nodes: Sequence[NodeInspection], width: int, numbers: Mapping[str, int]) -> Iterator[RenderableType]:
    widths = (3, 0, 13, 12, 17 if width >= _ROOMY else 12)
    room = width - sum(widths) - len(widths)
    heading = ("GPU", "LAYOUT", "MODE", "ALLOCATED", "HEALTH")
    if any(node.gpus for node in nodes):
        below = ("", "PODS", "ISOLATION", "USED", "FRAGMENTED")
        yield _fixed(
            widths,
            room,
            [tuple(Text(f"{above}\n{under}", "bold") for above, under in zip(heading, below, strict=True))],
        )
    for node in nodes:
        yield _heading(node)
        rows = [
            (
                Text(str(gpu.index)),
                Group(bar(gpu, room, numbers), _pods(gpu)),
                Text("\n").join((_mode(gpu), _level(gpu))),
                Text(f"{_allocated(gpu)}\n{_used(gpu)}"),
                Text("\n").join((_health(gpu), Text(_fragmentation(gpu)))),
            )
            for gpu in node.gpus
        ]
        if rows:
            yield _fixed(widths, room, rows)


def _fixed(widths: Sequence[int], room: int, rows: Sequence[tuple[RenderableType, ...]]) -> Table:
    """Return a table whose columns align with the others."""
    table = _table(headed=False)
    for width in widths:
        table.add_column(width=width or room, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _heading(node: NodeInspection) -> Text:
    models = dict.fromkeys(gpu.model for gpu in node.gpus)
    parts = (
        clean(node.address),
        " + ".join(f"{sum(gpu.model == model for gpu in node.gpus)} x {clean(model)}" for model in models),
        f"driver {clean(node.driver)}" if node.driver else "",
        f"policy {clean(node.policy)}" if node.policy else "",
        "" if node.ready else "not ready",
    )
    return Text.assemble((clean(node.name), "bold"), *(f"  {part}" for part in parts if part))


def _table(*, headed: bool = True) -> Table:
    return Table(box=None, padding=(0, 1, 0, 0), show_edge=False, header_style="bold", show_header=headed)


# Cells


def _mode(gpu: GpuInspection) -> Text:
    """Return the modes in use; modes that are only possible in brackets; `-` where they are unknown."""
    if gpu.pods:
        return Text(" + ".join(_MODES[mode] for mode in gpu.modes))
    if not gpu.modes and gpu.health is GpuHealth.UNKNOWN:
        return Text("-", "dim")
    offered = "auto" if gpu.auto else " + ".join(_MODES[mode] for mode in gpu.modes) or "nothing"
    return Text(f"({offered})", "dim")


def _level(gpu: GpuInspection) -> Text:
    return Text(_LEVELS[gpu.level] if gpu.level else "-")


def _allocated(gpu: GpuInspection) -> str:
    return f"{gib(gpu.allocated_mib).removesuffix(' GiB')}/{gib(gpu.memory_mib)}"


def _used(gpu: GpuInspection) -> str:
    return "-" if gpu.used_mib is None else gib(gpu.used_mib)


def _health(gpu: GpuInspection) -> Text:
    problems = "; ".join((*map(clean, gpu.reasons), *(("conflict",) if gpu.conflicts else ())))
    style = _HEALTH[gpu.health] if not gpu.conflicts else "bold red"
    return Text(problems or gpu.health.value, style)


def _fragmentation(gpu: GpuInspection) -> str:
    return "-" if gpu.fragmentation_percent is None else f"{gpu.fragmentation_percent} %"


def _pods(gpu: GpuInspection) -> Text:
    marks: dict[str, str] = {}
    for holder in gpu.pods:
        marks.setdefault(clean(holder.pod), _marks(holder))
    return Text(listing((f"{pod}{mark}" for pod, mark in marks.items()), _MOST_PODS), "dim")


def _marks(holder: InspectedShare) -> str:
    states = (
        "" if holder.phase is Phase.RUNNING else holder.phase.value,
        "ending" if holder.ending else "",
        "a guess" if holder.record is Record.UNRECORDED else "",
    )
    words = ", ".join(word for word in states if word)
    return f" ({words})" if words else ""


# Below the table


def _pending(inspection: Inspection) -> Iterator[RenderableType]:
    for each in inspection.pending[:_MOST_PODS]:
        yield Text.assemble(
            ("pending: ", "bold yellow"), f"{clean(each.pod)} needs {clean(each.need)}; see tessera explain pod"
        )
    more = len(inspection.pending) - _MOST_PODS
    if more > 0:
        yield Text(f"and {counted(more, 'more pod')} pending")


def _wrong(inspection: Inspection) -> Iterator[RenderableType]:
    sentences = [*_sentences(inspection)]
    for subject, sentence in sentences[:_MOST_SENTENCES]:
        yield Text.assemble((f"{clean(subject)}: ", "bold red"), clean(sentence))
    if len(sentences) > _MOST_SENTENCES:
        yield Text(f"and {len(sentences) - _MOST_SENTENCES:,} more; -o json has all")


def _sentences(inspection: Inspection) -> Iterator[tuple[str, str]]:
    for node in inspection.nodes:
        if node.problem:
            yield node.name, node.problem
        for sentence in node.conflicts:
            yield node.name, sentence
        for gpu in node.gpus:
            for sentence in gpu.conflicts:
                yield f"{node.name} GPU {gpu.index}", sentence
        for each in node.unplaced:
            unknown = "runs here, and its GPU is not recorded"
            yield node.name, f"{each.pod} {f'gets no GPU: {each.problem}' if each.problem else unknown}"


def _legend(inspection: Inspection) -> Iterator[RenderableType]:
    found = {sign for node in inspection.nodes for gpu in node.gpus for sign in signs(gpu)}
    words = [f"{sign} {meaning}" for sign, meaning in LEGEND.items() if sign in found]
    if words:
        yield Text("   ".join(words), "dim")


def _sum(inspection: Inspection) -> Text:
    gpus = [gpu for node in inspection.nodes for gpu in node.gpus]
    allocated, memory = (sum(getattr(gpu, name) for gpu in gpus) for name in ("allocated_mib", "memory_mib"))
    unhealthy = sum(gpu.health is GpuHealth.UNHEALTHY for gpu in gpus)
    parts = (
        f"{sum(bool(gpu.pods) for gpu in gpus):,} of {counted(len(gpus), 'GPU')} in use",
        f"{gib(allocated)} of {gib(memory)} allocated ({percent(allocated, memory)})",
        _fragments(gpus),
        f"{counted(unhealthy, 'GPU')} unhealthy" if unhealthy else "",
        f"{counted(len(inspection.pending), 'pod')} pending" if inspection.pending else "",
    )
    return Text("; ".join(part for part in parts if part), "bold")


def _fragments(gpus: Sequence[GpuInspection]) -> str:
    """Return the fragmentation of all free capacity, each GPU weighted by its free part."""
    known = [(gpu.free_percent, gpu.fragmentation_percent) for gpu in gpus if gpu.fragmentation_percent is not None]
    free = sum(each for each, _ in known)
    lost = sum(each * fragmentation for each, fragmentation in known)
    return f"{round(lost / free)} % of free capacity fragmented" if free else ""
