"""Which MIG instances shares are on."""

import re

import pytest

from builders.nodefacts import gpu
from builders.shares import share
from tessera.core.cluster.instances import placement_of
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.inventory import MigMode
from tessera.core.gpu.mig import Placement, placements
from tessera.errors import InvalidInput

NEED = "tessera.dev/gpu-memory"
T4, CUT, EMPTY = (
    gpu(0),
    gpu(1, "A100-40GB", "all-3g.20gb"),
    gpu(2, "A100-40GB", mig=MigMode(current=True, pending=True)),
)
MADE = Placement(4, 4, "3g.20gb")


PLACES = {
    "the whole GPU": (CUT, share(1), None),
    "an instance that is there": (CUT, share(1, at="3g.20gb@4"), MADE),
    "one that could be made": (EMPTY, share(2, at="2g.10gb@2"), Placement(2, 2, "2g.10gb")),
    "one that could be made once another is gone": (CUT, share(1, at="1g.5gb@5"), Placement(5, 1, "1g.5gb")),
}


@pytest.mark.parametrize("case", PLACES)
def test_shares_have_a_place(case: str) -> None:
    facts, requested, want = PLACES[case]
    assert placement_of(requested, facts) == want


def test_an_instance_that_the_driver_shows_is_possible_whatever_the_model_says() -> None:
    odd = Placement(2, 3, "3g.19gb")
    facts = gpu(0, "T4", mig=MigMode(current=True, pending=True), incomplete=(odd,))
    assert placement_of(share(0, at="3g.19gb@2"), facts) == odd


PROFILES = ", ".join(dict.fromkeys(each.profile for each in placements(model("A100-40GB"))))
NOWHERE = {
    "a profile of no GPU": (
        CUT,
        share(1, at="9g.1gb@0"),
        f"profile '9g.1gb' at 0 is not a MIG instance that A100-40GB can have: {re.escape(PROFILES)}$",
    ),
    "a start that the profile does not have": (
        CUT,
        share(1, at="3g.20gb@2"),
        "profile '3g.20gb' at 2 is not a MIG instance that A100-40GB can have: 3g.20gb at 0, 4$",
    ),
    "a profile without a start": (CUT, share(1, at="3g.20gb"), "profile '3g.20gb' at no start"),
    "a start without a profile": (CUT, share(1, at="@4"), "no profile at 4"),
    "an instance of a GPU without MIG": (
        T4,
        share(0, at="3g.20gb@0"),
        "use shares of the whole GPU: it has no MIG instances",
    ),
    "text that is no profile": (CUT, share(1, at="\x1b[2J" + "x" * 999 + "@0"), r"profile '\\x1b\[2Jx{60}\.\.\.' at 0"),
}


@pytest.mark.parametrize("case", NOWHERE)
def test_shares_of_what_a_gpu_cannot_have_are_refused(case: str) -> None:
    facts, requested, want = NOWHERE[case]
    with pytest.raises(InvalidInput, match=rf"share of GPU {facts.index} \({facts.uuid}\): .*{want}"):
        placement_of(requested, facts)
