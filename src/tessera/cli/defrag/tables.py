"""The moves of a defragmentation for people."""

from collections.abc import Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tessera.cli.drawing.lettering import clean, counted
from tessera.cli.printing import headed_table, titled
from tessera.core.explain.podexplanation import share_words
from tessera.core.packing.defrag import DefragProposal, PodPlace, PodToPlace
from tessera.core.packing.reasons import describe_need

__all__ = ["parts"]

_MOST_STUCK = 20


def parts(asked: Sequence[PodToPlace], proposal: DefragProposal) -> Iterator[RenderableType]:
    """Yield the moves, the pods that fit then, the others and why, and whether fewer moves could be enough."""
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
        yield _table("Moves, in this order", ("pod", "from", "frees", "to", "gets", "budget"), rows)
        yield ""
    if proposal.placed:
        placed = [(each.pod, needs[each.pod], each.place.node, _devices(each.place)) for each in proposal.placed]
        title = "Pods that fit then" if proposal.moves else "Pods that fit without a move"
        yield _table(title, ("pod", "needs", "node", "gets"), placed)
        yield ""
    for stuck in proposal.stuck[:_MOST_STUCK]:
        yield Text.assemble((clean(stuck.pod), "bold yellow"), f" needs {clean(needs[stuck.pod])}; no moves help:")
        reasons = Table.grid(padding=(0, 1, 0, 0))
        for reason in stuck.reasons:
            reasons.add_row(" -", Text(clean(reason)))
        yield reasons
    if len(proposal.stuck) > _MOST_STUCK:
        yield f"and {counted(len(proposal.stuck) - _MOST_STUCK, 'more pod')}; -o json has all"
    yield _verdict(proposal)


def _verdict(proposal: DefragProposal) -> Text:
    moves = len(proposal.moves)
    words = [f"{counted(moves, 'move')}, {counted(len(proposal.placed), 'pod')} placed, {len(proposal.stuck)} pending"]
    if moves and proposal.fewest:
        words.append("fewer moves are not enough")
    elif moves:
        untried = f"not all sets of fewer than {moves} were tried"
        surely = f"fewer than {proposal.at_least} are not enough, but " if proposal.at_least > 1 else ""
        words.append(surely + untried)
    if proposal.stuck and not proposal.exhaustive:
        words.append("the search stopped at its limit: moves that make room may exist")
    return Text("; ".join(words))


def _devices(place: PodPlace) -> str:
    return ", ".join(map(share_words, place.shares))


def _table(title: str, columns: Iterable[str], rows: Iterable[Sequence[str]]) -> RenderableType:
    table = headed_table(*columns)
    for row in rows:
        table.add_row(*(Text(clean(cell)) for cell in row))
    return titled(title, table)
