"""The whole drawing: head, one card per node, pending pods with reasons, warnings."""

from collections import Counter

from tessera.api.kubernetes.nodes import CPU_MILLI, MEMORY_MIB
from tessera.cli.drawing.alike import DrawnKind, kinds
from tessera.cli.drawing.compact import MOST_STRIPS, compact, who
from tessera.cli.drawing.elements import STYLE, Block, element, group, phrase, rect, stack, text
from tessera.cli.drawing.elements import title as hover
from tessera.cli.drawing.header import INNER, chip, header
from tessera.cli.drawing.lettering import BOLD, break_lines, counted, elide, listing, width
from tessera.cli.drawing.strips import strip
from tessera.cli.drawing.totals import totals
from tessera.cli.drawing.views import DrawnFleet, DrawnNode, Queue, fleet, pod_name
from tessera.core.cluster.snapshot import Snapshot
from tessera.core.packing.plan import Plan
from tessera.core.workload.units import gib

__all__ = ["MOST_REASONS", "svg"]

MOST_REASONS = 40
"""Most groups of pending pods, and warnings, that are listed; the others are counted."""
_WIDTH = 1200
_MARGIN = 24
_PAD = 16


def svg(plan: Plan, snapshot: Snapshot, *, title: str) -> str:
    """Return a picture of a plan as one SVG document that fetches nothing; the same plan gives the same bytes.

    Every GPU is a strip to scale, up to `alike.EVERY_GPU` GPUs; in a larger fleet nodes and GPUs that look the same are
    drawn once, and above `compact.MOST_STRIPS` strips each node is one line without text. Every pod is named at least
    in a tooltip.
    """
    drawn = fleet(plan, snapshot)
    groups = kinds(drawn)
    small = sum(len(kind.runs) for kind in groups) > MOST_STRIPS
    blocks = [header(drawn, title, marks=not small)]
    if small:
        blocks.append(compact(groups))
    else:
        blocks += [_node_box(drawn, kind) for kind in groups]
    if drawn.pending:
        blocks.append(_pending(drawn))
    if drawn.warnings:
        blocks.append(_warnings(drawn))
    return _document(stack(blocks, 16), title, _summary(drawn))


def _summary(drawn: DrawnFleet) -> str:
    sums = totals(drawn)
    return (
        f"{sums.placed} pods placed, {sums.running} already running, {sums.pending} pending; "
        f"{sums.gpus_used} of {sums.gpus} GPUs in use; "
        f"{gib(sums.allocated_mib)} of {gib(sums.memory_mib)} GPU memory allocated. "
        "Each GPU is a strip to scale; colors are workloads."
    )


_PATTERNS = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<line x1="3" y1="0" x2="3" y2="6" class="hatch" stroke-width="1.2"/></pattern></defs>'
)


def _document(sheet: Block, heading: str, summary: str) -> str:
    height = sheet.height + 2 * _MARGIN
    body = (
        hover(heading).replace("<title>", '<title id="title">')
        + element("desc", summary, id="desc")
        + f"<style>{STYLE}</style>{_PATTERNS}"
        + rect((0, 0, _WIDTH, height), rx=12, class_="page")
        + group(sheet.body, _MARGIN, _MARGIN)
    )
    return (
        element(
            "svg",
            body,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {_WIDTH} {height:.0f}",
            width=_WIDTH,
            height=f"{height:.0f}",
            role="img",
            aria_labelledby="title desc",
        )
        + "\n"
    )


def _node_box(drawn: DrawnFleet, kind: DrawnKind) -> Block:
    node = kind.nodes[0]
    strips = [strip(drawn, run.gpus, node=node.name) for run in kind.runs]
    blocks = [_node_head(node), *strips]
    if node.others:
        blocks.append(_others(node))
    if len(kind.nodes) > 1:
        blocks.append(_more(kind))
    return _boxed(stack(blocks, 6))


def _boxed(inner: Block, class_: str = "card") -> Block:
    height = inner.height + 2 * _PAD - 4
    return Block(rect((0, 0, INNER, height), rx=10, class_=class_) + group(inner.body, _PAD, _PAD - 2), height)


def _node_head(node: DrawnNode) -> Block:
    counts = Counter(gpu.model for gpu in node.gpus)
    models = " + ".join(f"{count} \u00d7 {model}" for model, count in counts.items()) or "no GPU"
    room = INNER - 2 * _PAD - 350
    name = elide(node.name, room * 0.6 / BOLD, 14.5)
    models = elide(models, room - width(name, 14.5) * BOLD, 11.5)
    body = hover("\n".join((node.name, *node.marks)))
    body += phrase((name, 14.5, "h"), (models, 11.5, "mute"), x=0, y=14)
    body += text(elide(" \u00b7 ".join(node.marks), room, 10), 0, 29, 10, class_="mute")
    cores = f"cpu {_cores(node.cpu_used_milli)} of {_cores(node.cpu_milli)}"
    memory = f"memory {gib(node.memory_used_mib)} of {gib(node.memory_mib)}"
    right = INNER - 2 * _PAD - 320
    if node.cpu_milli < CPU_MILLI:
        body += _gauge((node.cpu_used_milli, node.cpu_milli), cores, right, 110)
    if node.memory_mib < MEMORY_MIB:
        body += _gauge((node.memory_used_mib, node.memory_mib), memory, right + 130, 190)
    return Block(group(body), 36 if node.marks else 22)


def _cores(milli: int) -> str:
    return f"{milli / 1000:.1f}".removesuffix(".0")


def _gauge(amounts: tuple[int, int], words: str, x: float, wide: float) -> str:
    part, whole = amounts
    if not whole:
        return ""
    share = wide * min(part, whole) / whole
    return (
        text(elide(words, wide + 14, 10), x, 9, 10, class_="mute")
        + rect((x, 14, wide, 3), rx=1.5, class_="track")
        + (rect((x, 14, share, 3), rx=1.5, class_="bar") if part else "")
    )


def _others(node: DrawnNode) -> Block:
    names = listing((pod_name(holder.pod) for holder in node.others), 12)
    words = f"and {counted(len(node.others), 'pod')} without a GPU: {names}"
    body = hover("\n".join(holder.pod for holder in node.others))
    return Block(group(body + text(elide(words, INNER - 2 * _PAD, 11), 0, 12, 11, class_="mute")), 16)


def _more(kind: DrawnKind) -> Block:
    others = kind.nodes[1:]
    count = len(others)
    words = f"{count} more node{'s' if count > 1 else ''} like this: {listing((node.name for node in others), 30)}"
    body = hover("\n".join(map(who, others)))
    body += element("line", x1=0, y1=4, x2=INNER - 2 * _PAD, y2=4, class_="rule")
    body += text(elide(words, INNER - 2 * _PAD, 12), 0, 22, 12, class_="b")
    return Block(group(body, class_="more"), 26)


def _pending(drawn: DrawnFleet) -> Block:
    count = sum(len(queue.pods) for queue in drawn.pending)
    blocks = [Block(text(f"Pending: {counted(count, 'pod')}", 0, 14, 14.5, class_="h"), 22)]
    blocks += [_queue(drawn, queue) for queue in drawn.pending[:MOST_REASONS]]
    rest = [pod for queue in drawn.pending[MOST_REASONS:] for pod in queue.pods]
    if rest:
        words = text(f"and {counted(len(rest), 'pod')} with other reasons", 20, 11, 12, class_="b")
        blocks.append(Block(group(hover("\n".join(rest)) + words, class_="more"), 14))
    return _boxed(stack(blocks, 10))


def _queue(drawn: DrawnFleet, queue: Queue) -> Block:
    workload = drawn.workloads[queue.workload]
    room = INNER - 2 * _PAD - 20
    single = workload.kind == "Pod"
    who_waits = workload.name if single else f"{counted(len(queue.pods), 'pod')} of {workload.kind} {workload.name}"
    who_waits = elide(who_waits.replace("of Pods", ""), room * 0.6, 12)
    names = "" if single else listing(map(pod_name, queue.pods), 12)
    names = elide(names, room - width(who_waits, 12) * BOLD - 10, 11)
    body = hover("\n".join(queue.pods)) + chip(queue.workload, 0, 1)
    body += phrase((who_waits, 12, "b"), (names, 11, "mute"), x=20, y=11)
    return _paragraph(body, queue.reason, 27)


def _paragraph(body: str, words: str, y: float) -> Block:
    for line in break_lines(words, INNER - 2 * _PAD - 20, 12):
        body += text(line, 20, y, 12)
        y += 16
    return Block(group(body), y - 12)


def _warnings(drawn: DrawnFleet) -> Block:
    head = Block(text("Warnings", 0, 14, 14.5, class_="h alarm"), 20)
    dot = element("circle", cx=6, cy=7, r=3, class_="warm")
    blocks = [head, *(_paragraph(dot, warning, 11) for warning in drawn.warnings[:MOST_REASONS])]
    rest = drawn.warnings[MOST_REASONS:]
    if rest:
        words = text(f"and {counted(len(rest), 'more warning')}", 20, 11, 12, class_="b")
        blocks.append(Block(group(hover("\n".join(rest)) + words, class_="more"), 14))
    return _boxed(stack(blocks, 6), "alert")
