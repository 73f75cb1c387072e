"""Fleets too large for text: each node is one tile of small strips, with everything named in tooltips."""

from collections import Counter

from tessera.cli.drawing.alike import DrawnKind
from tessera.cli.drawing.elements import Block, group, phrase, rect, text, title
from tessera.cli.drawing.geometry import Cell, row
from tessera.cli.drawing.header import INNER
from tessera.cli.drawing.lettering import BOLD, counted, elide, listing, width
from tessera.cli.drawing.palette import tone
from tessera.cli.drawing.views import DrawnGpu, DrawnNode
from tessera.core.workload.units import gib

__all__ = ["MOST_STRIPS", "MOST_TILES", "compact", "who"]

MOST_STRIPS = 80
"""Up to this many strips are drawn with text."""
MOST_TILES = 600
"""Most tiles; further nodes are counted."""
_STRIP = 68.0
_HEIGHT = 14.0


def compact(kinds: tuple[DrawnKind, ...]) -> Block:
    """Return the nodes as tiles from left to right; equal nodes are one tile with their number."""
    body = []
    x = y = 0.0
    for kind in kinds[:MOST_TILES]:
        tile, wide = _tile(kind)
        if x and x + wide > INNER:
            x, y = 0.0, y + _HEIGHT + 30
        body.append(group(tile, x, y))
        x += wide + 10
    y += _HEIGHT + 24
    left = [node for kind in kinds[MOST_TILES:] for node in kind.nodes]
    if left:
        gpus = counted(sum(len(node.gpus) for node in left), "GPU")
        words = f"and {counted(len(left), 'more node')} with {gpus}, not drawn"
        body.append(group(title("\n".join(map(who, left))) + text(words, 0, y + 14, 12, class_="b"), class_="more"))
        y += 24
    return Block("".join(body), y)


def _tile(kind: DrawnKind) -> tuple[str, float]:
    node = kind.nodes[0]
    wide = max(2, len(node.gpus)) * (_STRIP + 2) + 10
    times = f" \u00d7 {len(kind.nodes)}" if len(kind.nodes) > 1 else ""
    body = title("\n".join(map(who, kind.nodes)))
    body += rect((0, 0, wide, _HEIGHT + 22), rx=5, class_="card")
    name = elide(f"{node.name}{times}", (wide - 12) / BOLD, 9.5)
    models = " + ".join(f"{count} \u00d7 {model}" for model, count in Counter(gpu.model for gpu in node.gpus).items())
    models = models if width(f"{name}  {models}", 9.5) * BOLD < wide - 20 else ""
    body += phrase((name, 9.5, "b"), (models, 9.5, "mute"), x=6, y=12)
    for number, gpu in enumerate(node.gpus):
        body += group(_strip(node, gpu), 6 + number * (_STRIP + 2), 17)
    return group(body, class_="tile"), wide


def _strip(node: DrawnNode, gpu: DrawnGpu) -> str:
    pods = "\n".join(holder.pod for device in gpu.devices for holder in device.pods)
    words = f"{node.name}, GPU {gpu.index}: {gpu.model}, {gib(gpu.allocated_mib)} of {gib(gpu.memory_mib)} allocated"
    cells = "".join(_cell(cell) for cell in row(gpu, _STRIP, flat=True).cells)
    return group(title(f"{words}\n{pods}") + rect((0, 0, _STRIP, _HEIGHT), class_="track") + cells, class_="gpu")


def _cell(cell: Cell) -> str:
    area = (cell.x, 0.0, cell.width, _HEIGHT)
    if cell.holder is None:
        return rect(area, class_="bed") if cell.kind == "open" else ""
    look = tone(cell.holder.workload)
    stripe = rect((cell.x, 0.0, cell.width, 3.0), fill=look.edge) if look.striped else ""
    return rect(area, fill=look.fill) + stripe


def who(node: DrawnNode) -> str:
    """Return the text of a node that is not drawn, with all its pods."""
    gpus = [
        f"GPU {gpu.index}: {listing((holder.pod for device in gpu.devices for holder in device.pods), 10**9)}"
        for gpu in node.gpus
        if gpu.used
    ]
    rest = [f"without a GPU: {listing((holder.pod for holder in node.others), 10**9)}"] if node.others else []
    return f"{node.name}: {'; '.join((*gpus, *rest)) or 'no pods'}"
