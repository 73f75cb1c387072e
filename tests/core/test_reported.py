"""What an agent reports of its node."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunodes import at, facts, shared
from tessera.core.gpunodestate import Sick, Used
from tessera.core.health import Health, Phase, State
from tessera.core.inventory import ComputeMode, Inventory
from tessera.core.reported import reported, settled

HALVES = at("A100-40GB", ("3g.20gb", 0), ("3g.20gb", 4))
CUT, WHOLE = facts(0, layout=HALVES), facts(1)
GPUS = (shared(CUT), shared(WHOLE))
SIZE_MIB = WHOLE.memory_mib


def ill(reason: str, phase: Phase = Phase.UNHEALTHY) -> State:
    return State(phase=phase, reason=reason, since_s=0, until_s=0)


def used(memory_mib: int, gpu: str = WHOLE.uuid) -> Used:
    return Used(gpu=gpu, memory_mib=memory_mib)


def test_the_state_of_a_node() -> None:
    inventory = Inventory(gpus=(CUT, WHOLE), driver="580.1")
    health = Health(
        states=(
            ((CUT.uuid, HALVES[1]), ill("XID 94")),
            ((CUT.uuid, HALVES[0]), ill("XID 13", Phase.HEALTHY)),
            ((CUT.uuid, at("A100-40GB", ("1g.5gb", 0))[0]), ill("XID 94")),
            (WHOLE.uuid, ill("XID 79", Phase.PROBATION)),
        )
    )
    found = reported("n1", reversed(GPUS), inventory, health, used=(used(5),), unit_mib=512)
    assert (found.name, found.gpus, found.used, found.unit_mib) == ("n1", GPUS, (used(5),), 512)
    assert (found.driver, found.reported, found.version) == ("580.1", True, "")
    assert found.sick == (
        Sick(gpu=CUT.uuid, placement=HALVES[1], reason="XID 94"),
        Sick(gpu=WHOLE.uuid, reason="XID 79"),
    )


def test_a_gpu_that_nobody_may_use_is_given_to_nobody() -> None:
    prohibited = msgspec.structs.replace(WHOLE, compute_mode=ComputeMode.PROHIBITED)
    found = reported("n1", (), Inventory(gpus=(prohibited,)), Health(), used=(), unit_mib=1024)
    assert found.sick == (Sick(gpu=WHOLE.uuid, reason="its compute mode is prohibited"),)


# sentence: (memory reported before, measured now, and reported now)
MOVES: dict[str, tuple[tuple[Used, ...], tuple[Used, ...], tuple[Used, ...]]] = {
    "the first measurement": ((), (used(7),), (used(7),)),
    "a small step": ((used(1000),), (used(1000 + SIZE_MIB // 20 - 1),), (used(1000),)),
    "a large step": ((used(1000),), (used(1000 + SIZE_MIB // 20),), (used(1000 + SIZE_MIB // 20),)),
    "a large step down": ((used(5000),), (used(5000 - SIZE_MIB // 20),), (used(5000 - SIZE_MIB // 20),)),
    "a device that is gone": ((used(1000),), (), ()),
    "a GPU that nobody knows": ((used(1, "GPU-x"),), (used(2, "GPU-x"),), (used(2, "GPU-x"),)),
}


@pytest.mark.parametrize("case", MOVES)
def test_small_moves_of_memory_are_not_reported(case: str) -> None:
    former, measured, want = MOVES[case]
    assert settled(former, measured, GPUS) == want


@given(st.lists(st.integers(0, SIZE_MIB), min_size=1, max_size=9))
def test_what_is_reported_is_never_far_off(measured: list[int]) -> None:
    told: tuple[Used, ...] = ()
    for memory_mib in measured:
        told = settled(told, (used(memory_mib),), GPUS)
        assert abs(told[0].memory_mib - memory_mib) * 20 < SIZE_MIB
        assert settled(told, (used(memory_mib),), GPUS) == told
