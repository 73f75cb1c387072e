"""Tables shared by both forms of `tessera explain`: ways to serve a request, and nodes grouped by their answer."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.markup import escape

from tessera.cli.drawing.lettering import counted
from tessera.cli.printing import headed_table, titled
from tessera.core.explain.explain import RequestOption
from tessera.core.gpu.sharing import Mode, Option

__all__ = ["listed", "node_table", "ways_tables"]

_MOST_NODES = 20
_WORD = 20
"""The longest word that is not broken, in a terminal of 80 characters."""
_AMOUNTS = frozenset({"MiB", "compute%"})
_MADE = {Mode.WHOLE: "a free GPU", Mode.MIG: "to be created"}


def ways_tables(ways: Sequence[RequestOption]) -> Iterator[RenderableType]:
    """Yield a table for each request, the preferred way first."""
    columns = "GPUs mode profile MiB compute% isolation device"
    for request, alike in groupby(ways, key=lambda way: way.request):
        yield _table(f"Ways to serve {request}, preferred first", columns, [_cells(way) for way in alike])
        yield ""


def node_table(title: str, columns: str, answers: Iterable[tuple[str, tuple[str, ...]]]) -> Iterator[RenderableType]:
    """Yield a table of nodes, equal answers on one line, and how many more there are."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for node, answer in answers:
        alike.setdefault(answer, []).append(node)
    rows = [(listed(names), *answer) for answer, names in alike.items()]
    yield _table(title, columns, rows[:_MOST_NODES])
    if len(rows) > _MOST_NODES:
        more = sum(len(names) for names in list(alike.values())[_MOST_NODES:])
        yield f"and {counted(more, 'more node')}; -o json has all"


def listed(names: Sequence[str]) -> str:
    """Return the first of several names, and how many more there are."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _cells(way: RequestOption) -> tuple[str, ...]:
    """Return the cells of one way to serve a request."""
    option = way.option
    amounts = str(option.memory_mib), f"{option.compute_percent}" if option.compute_percent else "-"
    isolation = option.mode.isolation.value
    return f"{way.gpus} x {way.model}", option.mode.value, option.profile or "", *amounts, isolation, _device(option)


def _device(option: Option) -> str:
    """Return where the device comes from."""
    if option.exists:
        return "exists"
    return "an amount" if option.amount else _MADE[option.mode]


def _table(title: str, columns: str, rows: Sequence[Sequence[str]]) -> RenderableType:
    headings = columns.split()
    table = headed_table(*headings)
    for number, (heading, column) in enumerate(zip(headings, table.columns, strict=True)):
        words = (word for row in rows for word in row[number].split())
        column.min_width = min(_WORD, max(map(len, (heading, *words))))
        column.justify = "right" if heading in _AMOUNTS else "left"
    for row in rows:
        table.add_row(*map(escape, row))
    return titled(title, table)
