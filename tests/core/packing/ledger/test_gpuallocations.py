"""What is allocated of one GPU: reservations and doubted assignments count as far as they fit beside verified ones."""

import pytest

from builders.fleets import T4, gpu
from builders.shares import share
from tessera.core.cluster.gputypes import GpuType
from tessera.core.cluster.snapshot import Share
from tessera.core.packing.ledger.gpuallocations import by_gpu, with_reservations
from tessera.core.packing.ledger.records import LedgerKey, Purpose, PurposeKey

HALF, MORE = share(memory_mib=7_680), share(memory_mib=9_000)
RESERVED = PurposeKey(Purpose.RESERVATION, "0")
CASES: dict[str, tuple[list[Share], dict[str, Share], set[object]]] = {
    "nothing beside": ([], {}, {"own"}),
    "a reservation that fits": ([HALF], {}, {"own", RESERVED}),
    "a reservation that does not fit": ([MORE], {}, {"own"}),
    "a doubted assignment that fits": ([], {"doubted": HALF}, {"own", "doubted"}),
    "a doubted assignment that does not fit": ([], {"doubted": MORE}, {"own"}),
    "a reservation before a doubted assignment": ([HALF], {"doubted": HALF}, {"own", RESERVED}),
    "one of two doubted assignments": ([], {"a": HALF, "b": HALF}, {"own", "a"}),
}


@pytest.mark.parametrize("case", CASES)
def test_what_fits_beside_verified_shares_counts(case: str) -> None:
    reserved, doubted, want = CASES[case]
    verified: dict[LedgerKey, tuple[Share, ...]] = {"own": (HALF,)}
    unverified: dict[LedgerKey, tuple[Share, ...]] = {each: (one,) for each, one in doubted.items()}
    found = with_reservations(GpuType.of(gpu(0, T4)), verified, reserved, unverified)
    assert set(found) == want
    assert found["own"] == (HALF,)
    assert verified == {"own": (HALF,)}, "the input stays as it is"


def test_shares_are_grouped_by_gpu_in_their_order() -> None:
    shares = [share(1, 10), share(0, 20), share(1, 30)]
    assert by_gpu(shares) == {1: [shares[0], shares[2]], 0: [shares[1]]}
    assert by_gpu([]) == {}
