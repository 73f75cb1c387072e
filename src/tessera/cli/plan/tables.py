"""A plan as tables for a terminal: placed pods, every GPU as one line, pending pods, warnings, the totals."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import msgspec
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from tessera.cli.drawing.alike import DrawnKind, kinds
from tessera.cli.drawing.geometry import Cell, row
from tessera.cli.drawing.lettering import clean, counted, listing, percent
from tessera.cli.drawing.palette import tone
from tessera.cli.drawing.sheet import MOST_REASONS
from tessera.cli.drawing.totals import totals
from tessera.cli.drawing.views import DrawnFleet, DrawnGpu, DrawnWorkload, fleet, pod_name
from tessera.cli.printing import headed_table
from tessera.core.cluster.snapshot import Assignment, LeftOut, Share, Snapshot
from tessera.core.gpu.sharing import Mode
from tessera.core.packing.plan import Plan
from tessera.core.packing.savings import cost, gpu_use
from tessera.core.packing.sizing import FleetSizing, NodeType
from tessera.core.workload.units import gib

__all__ = ["letter", "plan_tables", "where"]

_NARROWEST, _WIDEST = 16, 96
_WHOLE_PERCENT = 100
_FINE = 8
"""Pixels of geometry per character of a strip."""
_HAIR = 1.0
"""The gap between cells, which is less than a character."""
_NAMED = 6
_WORD = 26
"""The longest word that is not broken, in a terminal of 80 characters."""
_MOST_NODES = 50
"""Most nodes, or kinds of nodes, whose GPUs are listed; the others are counted."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_MODES = {
    Mode.WHOLE: "whole GPU",
    Mode.MIG: "",
    Mode.MIG_TIME_SLICING: "time-sliced",
    Mode.MIG_MPS: "with MPS",
    Mode.MPS: "MPS share",
    Mode.TIME_SLICING: "time-sliced share",
    Mode.MEMORY_SHARE: "memory share",
}


def plan_tables(
    plan: Plan,
    snapshot: Snapshot,
    prices: Mapping[str, float] | None = None,
    fit: tuple[Sequence[NodeType], FleetSizing] | None = None,
) -> RenderableType:
    """Return a plan for a terminal; each workload has the letter and color of its parts of the GPUs.

    Above `alike.EVERY_GPU` GPUs, those that look the same are one line.

    Args:
        plan: the plan.
        snapshot: the input of the plan.
        prices: money per hour of one GPU, by model.
        fit: the node types, and the fleet of them that was found.

    """
    drawn = fleet(plan, snapshot)
    parts: list[RenderableType] = []
    if plan.assignments:
        parts.append(_placed(plan, drawn))
    if drawn.gpus:
        parts.append(_gpus(drawn))
    if drawn.pending:
        parts.append(_pending(drawn))
    if drawn.warnings:
        parts.append(_warnings(drawn.warnings))
    lines = [
        *([_fleet(*fit, money=bool(prices))] if fit else []),
        *_savings(plan, prices or {}),
        _sum(drawn, plan.left_out),
    ]
    return Group(*(Padding(part, (0, 0, 1, 0)) for part in parts), *lines)


def _warnings(warnings: Sequence[str]) -> Group:
    left = len(warnings) - MOST_REASONS
    shown = (*warnings[:MOST_REASONS], *((f"and {counted(left, 'more warning')}",) if left > 0 else ()))
    return Group(*(Text.assemble(("Warning: ", "bold yellow"), clean(words)) for words in shown))


def letter(workload: int) -> str:
    """Return the letter of a workload; those after the fifty-second share a sign."""
    return _LETTERS[workload] if workload < len(_LETTERS) else "#"


def _unbroken(table: Table, column: int, names: Iterable[Text]) -> None:
    """Make a column wide enough for the longest word of its names, up to a third of a narrow terminal."""
    words = (word for name in names for word in name.plain.split())
    table.columns[column].min_width = min(_WORD, max(map(len, words), default=0))


def _key(workload: DrawnWorkload) -> Text:
    look = tone(workload.number)
    return Text(f" {letter(workload.number)} ", Style(color=look.ink, bgcolor=look.fill))


def _name(workload: DrawnWorkload) -> Text:
    return Text(clean(f"{workload.kind} {workload.name}".strip()))


def _placed(plan: Plan, drawn: DrawnFleet) -> Table:
    """Return one line for each workload and kind of share it gets."""
    numbers = {holder.pod: holder.workload for holder in drawn.pods}
    groups: defaultdict[tuple[int, str, str], list[Assignment]] = defaultdict(list)
    for assignment in plan.assignments:
        gets, isolation = _gets(assignment.shares)
        groups[numbers[assignment.pod], gets, isolation].append(assignment)
    table = headed_table("", "Workload", "Pods", "Per pod", "Isolation", "Where", title="Placed")
    table.columns[2].justify = "right"
    unrecorded = {layout.node for layout in plan.layouts if layout.unrecorded}
    for (number, gets, isolation), members in sorted(groups.items(), key=lambda group: group[0][0]):
        workload = drawn.workloads[number]
        table.add_row(
            _key(workload),
            _name(workload),
            f"{len(members):,}",
            _Amounts(gets),
            isolation,
            Text(clean(where(members, unrecorded))),
        )
    _unbroken(table, 1, (_name(drawn.workloads[number]) for number, _, _ in groups))
    return table


def _gets(shares: tuple[Share, ...]) -> tuple[str, str]:
    """Return a pod's shares, and their weakest isolation."""
    if not shares:
        return "no GPU", ""
    counts = Counter(map(_share_words, shares))
    words = " + ".join(f"{count} \u00d7 {one}" if count > 1 else one for one, count in counts.items())
    order = ("none", "driver", "hardware")
    return words, min((share.isolation.value for share in shares), key=order.index)


class _Amounts(msgspec.Struct, frozen=True):
    """The shares of a pod, folded between amounts: none is separated from its unit."""

    words: str

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the least and the most characters it takes."""
        return Text(self.words).__rich_measure__(console, options)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Give its lines."""
        del console
        first, *others = re.split(r"(?<=,) | (?=\+ )", self.words)
        lines = [first]
        for part in others:
            if len(f"{lines[-1]} {part}") <= options.max_width:
                lines[-1] += f" {part}"
            else:
                lines.append(part)
        yield Text("\n".join(lines))


def _share_words(share: Share) -> str:
    kind = " ".join(part for part in (share.profile or "", _MODES[share.mode]) if part)
    compute = f", {share.compute_percent} %" if 0 < share.compute_percent < _WHOLE_PERCENT else ""
    return f"{kind}, {gib(share.memory_mib)}{compute}"


def where(members: Sequence[Assignment], unrecorded: Collection[str] = ()) -> str:
    """Return nodes and GPUs: `a GPU 0-3, 5; b GPU 1`, with `?` where the indices are guesses."""
    places: defaultdict[str, set[int]] = defaultdict(set)
    for assignment in members:
        places[assignment.node].update(share.gpu for share in assignment.shares)
    named = [
        f"{node} GPU {_ranges(gpus)}{'?' * (node in unrecorded)}" if gpus else node for node, gpus in places.items()
    ]
    more = f"; {counted(len(named) - _NAMED, 'more node')}" if len(named) > _NAMED else ""
    return "; ".join(named[:_NAMED]) + more


def _ranges(numbers: set[int]) -> str:
    """Return whole numbers as ranges: `0-3, 5`."""
    runs = []
    for _, run in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        runs.append(f"{members[0]}-{members[-1]}" if len(members) > 1 else f"{members[0]}")
    return ", ".join(runs)


class _Strip(msgspec.Struct, frozen=True):
    """A GPU's strip that fills its width, in whole steps of `grain` characters if there is room."""

    gpu: DrawnGpu
    grain: int

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the least and the most characters it takes."""
        del console
        return Measurement(_NARROWEST, max(_NARROWEST, min(_WIDEST, options.max_width)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Give one line of text."""
        del console
        room = max(1, min(_WIDEST, options.max_width))
        yield _strip(self.gpu, room - room % self.grain if room >= self.grain else room)


def _strip(gpu: DrawnGpu, room: int) -> Text:
    """Return a GPU to scale in `room` characters: a letter for the workload, then its device if that fits."""
    line = Text(no_wrap=True)
    cells = row(gpu, float(room * _FINE), flat=True).cells
    for cell, extent in _together(gpu, tuple(_runs(cells, room)), cells):
        words, style = _device_words(gpu, cell) if isinstance(cell, int) else _cell_words(gpu, cell)
        inside = extent - 1 if extent > 1 else 1
        fitting = next((one for one in words if len(one) <= inside), words[-1][:inside])
        free = cell is None or (isinstance(cell, Cell) and cell.kind in {"rest", "free"})
        filler = "\u2591" if free else " "
        line.append(fitting.ljust(inside, filler), style)
        if extent > 1:
            line.append("\u2502", "dim")
    return line


def _runs(cells: tuple[Cell, ...], room: int) -> Iterator[tuple[Cell | None, int]]:
    """Yield the cells of a strip's characters, each with its number of characters."""
    owners = []
    for column in range(room):
        middle = (column + 0.5) * _FINE
        at = (n for n, cell in enumerate(cells) if cell.x - _HAIR <= middle < cell.x + cell.width + _HAIR)
        owners.append(next(at, None))
    for owner, run in groupby(owners):
        yield (cells[owner] if owner is not None else None), len(list(run))


def _together(
    gpu: DrawnGpu, runs: tuple[tuple[Cell | None, int], ...], cells: tuple[Cell, ...]
) -> Iterator[tuple[Cell | int | None, int]]:
    """Yield the runs, with those of a replicated device merged, as a number, if a client has no room of its own.

    A client needs room for its letter and a separator.
    """
    room = {id(cell): extent for cell, extent in runs if cell is not None}
    replicated = {number for number, device in enumerate(gpu.devices) if device.clients > 1}
    cramped = {cell.device for cell in cells if room.get(id(cell), 0) <= 1}.intersection(replicated)

    def owner(cell: Cell | None) -> int | None:
        return cell.device if cell and cell.device in cramped else None

    for number, run in groupby(runs, key=lambda one: owner(one[0])):
        members = tuple(run)
        if number is None:
            yield from members
        else:
            yield number, sum(extent for _, extent in members)


def _device_words(gpu: DrawnGpu, number: int) -> tuple[tuple[str, ...], Style]:
    """Return the possible texts for all clients of a device together, longest first, and the colors of the first."""
    device = gpu.devices[number]
    counts = Counter(letter(holder.workload) for holder in device.pods)
    if not counts:
        return ("- unused", "-"), Style(dim=True)
    look = tone(device.pods[0].workload)
    many = "+".join(f"{key}\u00d7{count}" for key, count in counts.items())
    close = "".join(f"{key}{count}" for key, count in counts.items())
    return (f"{many} of {device.clients}", many, close, "".join(counts)), Style(color=look.ink, bgcolor=look.fill)


def _cell_words(gpu: DrawnGpu, cell: Cell | None) -> tuple[tuple[str, ...], Style]:
    """Return the possible texts of a cell, longest first, and its colors."""
    pale = Style(dim=True)
    if cell is None or cell.kind in {"free", "rest"} or cell.device is None:
        return ("",), pale
    device = gpu.devices[cell.device]
    kind = device.label or _MODES[device.mode]
    if cell.holder is None:
        return (f"- {kind} unused", f"- {kind}", "-"), pale
    look = tone(cell.holder.workload)
    key = letter(cell.holder.workload)
    pod = clean(pod_name(cell.holder.pod))
    what = kind if device.clients == 1 else gib(cell.holder.memory_mib)
    short = what.partition(".")[0] if what == device.label else what
    return (f"{key} {what} {pod}", f"{key} {what}", f"{key} {short}", key), Style(color=look.ink, bgcolor=look.fill)


def _gpus(drawn: DrawnFleet) -> Table:
    table = headed_table("Node", "GPU", "Model", "Layout", "Allocated", title="GPUs")
    table.columns[3].ratio = 1
    table.columns[4].justify = "right"
    table.columns[4].no_wrap = True
    grain = math.lcm(*(gpu.memory_slices for gpu in drawn.gpus if gpu.memory_slices))
    groups = kinds(drawn)
    left = sum(len(kind.nodes) for kind in groups[_MOST_NODES:])
    for kind in groups[:_MOST_NODES]:
        for number, run in enumerate(kind.runs):
            gpu = run.gpus[0]
            index = f"{gpu.index}" if len(run.gpus) == 1 else f"{gpu.index}-{run.gpus[-1].index}"
            index += "?" * gpu.unrecorded
            name = Text(clean(_node_words(kind))) if number == 0 else Text()
            model = (
                Text(clean(gpu.model)) if number == 0 or gpu.model != kind.runs[number - 1].gpus[0].model else Text()
            )
            table.add_row(name, index, model, _Strip(gpu, grain), _allocated(gpu))
    _unbroken(table, 0, (Text(clean(_node_words(kind))) for kind in groups[:_MOST_NODES]))
    if left:
        table.add_row(f"and {counted(left, 'more node')}", "", "", Text("-o json has all"), "")
    return table


def _allocated(gpu: DrawnGpu) -> str:
    amount = f"{gib(gpu.allocated_mib).removesuffix(' GiB')} of {gib(gpu.memory_mib)}"
    return f"{amount} {percent(gpu.allocated_mib, gpu.memory_mib):>5}"


def _node_words(kind: DrawnKind) -> str:
    more = len(kind.nodes) - 1
    return f"{kind.nodes[0].name} and {more} like it" if more else kind.nodes[0].name


def _pending(drawn: DrawnFleet) -> Table:
    table = headed_table("", "Workload", "Pods", "Reason", title="Pending")
    table.columns[2].justify = "right"
    table.columns[3].ratio = 1
    for queue in drawn.pending[:MOST_REASONS]:
        workload = drawn.workloads[queue.workload]
        why = Text(clean(queue.reason))
        if workload.kind != "Pod":
            why.append("\n").append(clean(listing(map(pod_name, queue.pods), _NAMED)), "dim")
        table.add_row(_key(workload), _name(workload), f"{len(queue.pods):,}", why)
    rest = sum(len(queue.pods) for queue in drawn.pending[MOST_REASONS:])
    _unbroken(table, 1, (_name(drawn.workloads[queue.workload]) for queue in drawn.pending[:MOST_REASONS]))
    if rest:
        table.add_row("", "others", f"{rest:,}", "other reasons; -o json has all")
    return table


def _sum(drawn: DrawnFleet, left_out: Sequence[LeftOut]) -> Text:
    sums = totals(drawn)
    requested = sums.placed + sums.pending
    line = Text()
    line.append(f"{sums.placed:,} of {counted(requested, 'pod')} placed", "bold green" if not sums.pending else "bold")
    line.append(f", {sums.pending:,} pending" if sums.pending else "", "bold yellow")
    parts = (
        f"{sums.running:,} already running" if sums.running else "",
        f"{sums.gpus_used:,} of {counted(sums.gpus, 'GPU')} in use",
        f"{counted(sums.instances, 'MIG instance')}, {sums.instances_new or 'none'} to be created"
        if sums.instances
        else "",
        f"{percent(sums.allocated_mib, sums.memory_mib)} of GPU memory allocated",
        f"{counted(drawn.skipped, 'node')} left out: GPUs not known" if drawn.skipped else "",
        f"policy {clean(drawn.policy)}",
        drawn.proof,
        _left_out(left_out),
    )
    return line.append("".join(f"; {part}" for part in parts if part))


def _left_out(parts: Sequence[LeftOut]) -> str:
    """Name left-out objects that mention GPUs, and count the others."""
    named = list(dict.fromkeys(clean(each.object) for each in parts if each.resources))
    others = sum(not each.resources for each in parts)
    if not named:
        return f"{counted(others, 'object')} without pods left out" if others else ""
    listed = ", ".join(named[:_NAMED]) + (f" and {len(named) - _NAMED} more" if len(named) > _NAMED else "")
    return f"not counted: {listed}" + (f", and {counted(others, 'object')} without pods" if others else "")


def _savings(plan: Plan, prices: Mapping[str, float]) -> Iterator[Text]:
    """Yield what sharing saves, in GPUs and in money; nothing if no GPU is in use."""
    use = gpu_use(plan.layouts)
    used, unshared = sum(each.used for each in use), sum(each.unshared for each in use)
    if unshared > used:
        fewer = percent(unshared - used, unshared)
        yield Text(f"{counted(used, 'GPU')} instead of {unshared:,} without sharing ({fewer} fewer)", "bold")
    elif used:
        yield Text(f"{counted(used, 'GPU')}, as many as without sharing")
    if prices:
        money = cost(use, prices)
        line = (
            f"{money.used:,.2f} per hour instead of {money.unshared:,.2f} without sharing; all GPUs {money.fleet:,.2f}"
        )
        without = f"; no price given for {', '.join(money.unpriced)}" if money.unpriced else ""
        yield Text(f"{line}{without}")


def _fleet(types: Sequence[NodeType], sizing: FleetSizing, *, money: bool) -> Text:
    """Return the fleet that was found, and its proven bound."""
    chosen = [f"{count} \u00d7 ({each.gpus})" for each, count in zip(types, sizing.counts, strict=True) if count]
    if not chosen:
        return Text("No fleet: no pod fits on a node of these types", "bold yellow")
    amount = f"{sizing.cost:,.2f} per hour" if money else counted(round(sizing.cost), "GPU")
    least = f"{sizing.at_least:,.2f} per hour" if money else f"{sizing.at_least:,.0f}"
    if sizing.optimal:
        proof = "proved cheapest" if money else "proved smallest"
    else:
        proof = f"no fleet of these node types {'costs less' if money else 'has fewer'} than {least}"
    rest = len(sizing.plan.pending)
    left = f"; {counted(rest, 'pod')} that fit no such node {'is' if rest == 1 else 'are'} left out" if rest else ""
    return Text(f"Smallest fleet: {' + '.join(chosen)}, {amount}; {proof}{left}", "bold")
