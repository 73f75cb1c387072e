"""Which unreadable entries are recorded anew, and which not."""

import pytest

from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation
from tessera.core.deviceplugin.allocations.lostentries import LostEntry, still_lost

ENTRY = AgentAllocation(resource="r", ids=("a",), uid="u", pod="ns/p", container="c")
LEFT = AgentAllocation(resource="r", ids=(), uid="u", container="process 7")
OF_A_FILE = LostEntry("u")
# sentence: (what is left of an entry, the record, whether it is still lost)
CASES: dict[str, tuple[LostEntry, tuple[AgentAllocation, ...], bool]] = {
    "nothing was recorded": (LostEntry("u", "c", "r"), (), True),
    "that container was": (LostEntry("u", "c", "r"), (ENTRY,), False),
    "another container of the pod was": (LostEntry("u", "d", "r"), (ENTRY,), True),
    "another resource of the container was": (LostEntry("u", "c", "s"), (ENTRY,), True),
    "an illegible container may be any": (LostEntry("u", "", "r"), (ENTRY,), True),
    "of a file without a readable entry the pod is recorded anew": (OF_A_FILE, (ENTRY,), False),
    "another pod is not it": (LostEntry("v"), (ENTRY,), True),
    "what is known of its processes is not all": (OF_A_FILE, (LEFT,), True),
}


@pytest.mark.parametrize("case", CASES)
def test_an_entry_is_lost_until_all_of_it_is_recorded_anew(case: str) -> None:
    lost, record, still = CASES[case]
    assert still_lost([lost], record) == (frozenset({lost}) if still else frozenset())
