"""The last line of a defragmentation: how sure it is that there are no fewer moves."""

import pytest
from rich.console import Console, Group

from tessera.cli.defrag.tables import parts
from tessera.core.cluster.snapshot import NodeName
from tessera.core.packing.defrag import DefragProposal, Move, PodPlace, PodToPlace, Stuck
from tessera.core.workload.need import Need, PodKey

HERE = PodPlace(node=NodeName("a"), shares=())
MOVE = Move(pod=PodKey("ns/p"), uid="u", owner="ReplicaSet/ns/web", frees=HERE, fits=HERE)
STUCK = Stuck(pod=PodKey("ns/big"), reasons=("it is large",))
ASKED = [PodToPlace(pod=PodKey("ns/big"), need=Need())]

# Keyed by a sentence: what was proposed; desired is the last line.
CASES = {
    "fewest": (
        DefragProposal(moves=(MOVE,), at_least=1),
        "1 move, 0 pods placed, 0 pending; fewer moves are not enough",
    ),
    "some smaller sets were not tried": (
        DefragProposal(moves=(MOVE,) * 4, at_least=2, exhaustive=False),
        "4 moves, 0 pods placed, 0 pending; fewer than 2 are not enough, but not all sets of fewer than 4 were tried",
    ),
    "nothing smaller was tried": (
        DefragProposal(moves=(MOVE,) * 2, stuck=(STUCK,)),
        "2 moves, 0 pods placed, 1 pending; not all sets of fewer than 2 were tried",
    ),
    "there is too much to try": (
        DefragProposal(stuck=(STUCK,), exhaustive=False),
        "0 moves, 0 pods placed, 1 pending; the search stopped at its limit: moves that make room may exist",
    ),
}


@pytest.mark.parametrize(("proposal", "want"), CASES.values(), ids=CASES)
def test_the_last_line(proposal: DefragProposal, want: str, capsys: pytest.CaptureFixture[str]) -> None:
    Console(width=200).print(Group(*parts(ASKED, proposal)))
    assert capsys.readouterr().out.splitlines()[-1] == want
