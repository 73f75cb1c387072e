"""The tables of `kubectl inspect gpushare`: one line a node with each GPU's memory allocated and in total; details.

Piped, a line is as long as it needs and looks like that program's output; in a terminal GPUs that do not fit
continue in further lines. Source: AliyunContainerService/gpushare-device-plugin `cmd/inspect/display.go`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tessera.cli.drawing.lettering import clean
from tessera.core.explain.inspection import Inspection, NodeInspection

__all__ = ["details", "summary"]

_GAP = "  "
_GIB_MIB = 1024
_NO_ADDRESS = "unknown"
_UNKNOWN = "?/?"


def summary(inspection: Inspection, width: int | None) -> str:
    """Return the table and the cluster's total below it.

    Args:
        inspection: the GPU usage.
        width: of the terminal; None for lines of any length.

    """
    unit = _unit(inspection.nodes)
    gpus = max((len(node.gpus) for node in inspection.nodes), default=0)
    rows = [_row(node, gpus, unit) for node in inspection.nodes]
    pending = any(node.unplaced for node in inspection.nodes)
    table = _fitted(rows, gpus, width, f"GPU Memory({'GiB' if unit == _GIB_MIB else 'MiB'})", pending=pending)
    return "\n".join((*table, *_total(inspection.nodes, unit, longest=max(map(len, table), default=0)))) + "\n"


class _Row:
    """One node's cells."""

    def __init__(self, node: NodeInspection, gpus: Sequence[str], pending: str, memory: str) -> None:
        self.head = (clean(node.name), clean(node.address) or _NO_ADDRESS)
        self.gpus = tuple(gpus)
        self.pending = pending
        self.memory = memory


def _row(node: NodeInspection, gpus: int, unit: int) -> _Row:
    if node.problem:
        return _Row(node, [_UNKNOWN] * gpus, "", _UNKNOWN)
    cells = [f"{gpu.in_units(gpu.allocated_mib, unit)}/{gpu.memory_mib // unit}" for gpu in node.gpus]
    pending = f"{_units(node.unplaced_mib, unit)}" if node.unplaced else ""
    allocated, total = _sums([node], unit)
    return _Row(node, cells + ["0/0"] * (gpus - len(cells)), pending, f"{allocated}/{total}")


def _fitted(rows: Sequence[_Row], gpus: int, width: int | None, memory: str, *, pending: bool) -> list[str]:
    """Return the lines of the table, with short headings and several lines a node if it is too wide otherwise."""
    every = range(gpus)
    named = _table(rows, [every], memory, pending=pending, suffix="(Allocated/Total)")
    if width is None or all(len(line) <= width for line in named):
        return named
    for each in range(gpus, 0, -1):
        runs = [range(first, min(first + each, gpus)) for first in range(0, gpus, each)]
        lines = _table(rows, runs, memory, pending=pending, suffix="")
        if each == 1 or all(len(line) <= width for line in lines):
            return ["Allocated/Total of each GPU", *lines]
    return named


def _table(rows: Sequence[_Row], runs: Sequence[range], memory: str, *, pending: bool, suffix: str) -> list[str]:
    ends = ["PENDING(Allocated)", memory] if pending else [memory]
    lines: list[list[str]] = []
    for number, run in enumerate(runs):
        head = ["NAME", "IPADDRESS"] if number == 0 else ["", ""]
        pad = [""] * (len(runs[0]) - len(run))
        lines.append([*head, *(f"GPU{gpu}{suffix}" for gpu in run), *pad, *(ends if number == 0 else [])])
    for row in rows:
        own = [row.pending, row.memory] if pending else [row.memory]
        for number, run in enumerate(runs):
            pad = [""] * (len(runs[0]) - len(run))
            own_head = row.head if number == 0 else ("", "")
            lines.append([*own_head, *(row.gpus[gpu] for gpu in run), *pad, *(own if number == 0 else [])])
    return _aligned(lines)


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    columns = max((len(line) for line in lines), default=0)
    widths = [max(len(line[column]) for line in lines if column < len(line)) for column in range(columns)]
    return [_GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)).rstrip() for line in lines]


def _total(nodes: Sequence[NodeInspection], unit: int, longest: int) -> Iterator[str]:
    allocated, total = _sums(nodes, unit)
    yield "-" * longest
    yield "Allocated/Total GPU Memory In Cluster:"
    yield f"{allocated}/{total} ({_percent(allocated, total)}%)"


def _sums(nodes: Iterable[NodeInspection], unit: int) -> tuple[int, int]:
    """Return allocated units, including pods without a GPU, and total units, GPU by GPU."""
    allocated = total = 0
    for node in nodes:
        allocated += sum(gpu.in_units(gpu.allocated_mib, unit) for gpu in node.gpus) + _units(node.unplaced_mib, unit)
        total += sum(gpu.memory_mib // unit for gpu in node.gpus)
    return allocated, total


def _percent(part: int, whole: int) -> int:
    return 100 * part // whole if whole else 0


def _units(mib: int, unit: int) -> int:
    """Return units, rounded up: the rest of one cannot be used."""
    return -(-mib // unit)


def _unit(nodes: Iterable[NodeInspection]) -> int:
    """Return the MiB of the displayed unit: GiB if every node counts so, else MiB."""
    return _GIB_MIB if all(node.unit_mib == _GIB_MIB for node in nodes) else 1


# Details


def details(inspection: Inspection) -> str:
    """Return each node's pods with what they have of each GPU, as `kubectl inspect gpushare -d` prints them."""
    unit = _unit(inspection.nodes)
    parts = [_node(node, unit) for node in inspection.nodes]
    allocated, total = _sums(inspection.nodes, unit)
    end = f"\nAllocated/Total GPU Memory In Cluster:  {allocated}/{total} ({_percent(allocated, total)}%)\n"
    return "\n".join(parts) + end


def _node(node: NodeInspection, unit: int) -> str:
    pending = ["Pending(Allocated)"] if node.unplaced else []
    lines = [["NAME", "NAMESPACE", *(f"GPU{gpu.index}(Allocated)" for gpu in node.gpus), *pending]]
    for number, gpu in enumerate(node.gpus):
        by_pod = Counter[str]()
        for holder in gpu.pods:
            by_pod[holder.pod] += holder.share.memory_mib
        for pod, mib in by_pod.items():
            lines.append(_line(pod, number, gpu.in_units(mib, unit), len(node.gpus) + len(pending)))
    last = len(node.gpus)
    lines += [_line(each.pod, last, _units(each.memory_mib, unit), last + 1) for each in node.unplaced]
    table = _aligned(lines)
    allocated, total = _sums([node], unit)
    head = _aligned([["NAME:", clean(node.name)], ["IPADDRESS:", clean(node.address) or _NO_ADDRESS]])
    sums = _aligned([["Allocated :", f"{allocated} ({_percent(allocated, total)}%)"], ["Total :", f"{total}"]])
    return "\n".join((*head, "", *table, *sums, "-" * max(map(len, table)), ""))


def _line(pod: str, number: int, amount: int, columns: int) -> list[str]:
    namespace, _, name = clean(pod).partition("/")
    return [name, namespace, *(str(amount) if column == number else "0" for column in range(columns))]
