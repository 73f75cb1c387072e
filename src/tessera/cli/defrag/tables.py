"""The moves of a defragmentation for people."""

from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tessera.cli.drawing.lettering import clean
from tessera.cli.printing import titled
from tessera.core.explain.podexplanation import share_words
from tessera.core.packing.defrag import Asker, Place, Proposal
from tessera.core.packing.reasons import describe_need

__all__ = ["parts"]

_MOST_STUCK = 20


def parts(asked: Sequence[Asker], proposal: Proposal) -> Iterator[RenderableType]:
    """Yield the moves, what fits then, what does not fit and why, and how sure it is that there are no fewer."""
    needs = {each.pod: describe_need(each.need) for each in asked}
    if proposal.moves:
        rows = [
            (
                move.pod,
                move.frees.node,
                _devices(move.frees),
                move.fits.node,
                _devices(move.fits),
                " ".join(move.budgets) or "none",
            )
            for move in proposal.moves
        ]
        yield _table("Moves, one after the other", ("pod", "from", "frees", "fits on", "there", "budget"), rows)
        yield ""
    if proposal.placed:
        placed = [(each.pod, needs[each.pod], each.place.node, _devices(each.place)) for each in proposal.placed]
        title = "Then fit" if proposal.moves else "Fit without any move"
        yield _table(title, ("pod", "needs", "node", "gets"), placed)
        yield ""
    for stuck in proposal.stuck[:_MOST_STUCK]:
        yield Text.assemble((clean(stuck.pod), "bold yellow"), f" needs {clean(needs[stuck.pod])}; no moves help:")
        yield from (Padding(Text(f"- {clean(reason)}"), (0, 0, 0, 2)) for reason in stuck.reasons)
    if len(proposal.stuck) > _MOST_STUCK:
        yield f"and {len(proposal.stuck) - _MOST_STUCK} more pods; all with -o json"
    yield _verdict(proposal)


def _verdict(proposal: Proposal) -> Text:
    moves = len(proposal.moves)
    words = [f"{moves} {'move' if moves == 1 else 'moves'}, {len(proposal.placed)} placed, {len(proposal.stuck)} not"]
    if moves and proposal.fewest:
        words.append("fewer moves would not do")
    elif moves:
        untried = f"not every set of fewer than {moves} was tried"
        surely = f"fewer than {proposal.at_least} would not do, but " if proposal.at_least > 1 else ""
        words.append(surely + untried)
    if proposal.stuck and not proposal.exhaustive:
        words.append("moves that help may exist all the same: there is too much to try")
    return Text("; ".join(words))


def _devices(place: Place) -> str:
    return ", ".join(map(share_words, place.shares))


def _table(title: str, columns: Iterable[str], rows: Iterable[Sequence[str]]) -> RenderableType:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(clean(cell)) for cell in row))
    return titled(title, table)
