"""What pods use and nobody names while an agent exchanges assignments is held, in any order of writes and of ends."""

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from builders.kubeobjects import share
from tessera.api.tessera.pods.clusterpods import LivePod
from tessera.core.cluster.snapshot import NodeName, Share
from tessera.core.gpu.sharing import Mode
from tessera.core.packing.ledger import Ledger, LedgerEntry, PurposeKey
from tessera.core.workload.need import DeviceRequest, Form, Need, PodKey
from tessera.server.pods.pendingexchanges import ExchangedShares

NODE = "a"


class Seen:
    """What one server sees of one node: pods with the places that they name, and what it holds beside them."""

    def __init__(self, places: list[int]) -> None:
        self.now_s = 0.0
        self.ledger = Ledger()
        self.exchanges = ExchangedShares(self.ledger, lambda: self.now_s)
        self.pods = {uid: live(uid, place) for uid, place in enumerate(places)}
        for each in self.pods.values():
            self._put(each)

    def _put(self, each: LivePod) -> None:
        self.ledger.put_pod(LedgerEntry(each.uid, each.key, NodeName(each.node), each.need, each.shares))

    def write(self, uid: int, place: int) -> None:
        before, self.pods[uid] = self.pods[uid], live(uid, place)
        self._put(self.pods[uid])
        self.exchanges.moved(before, self.pods[uid])

    def end(self, uid: int) -> None:
        gone = self.pods.pop(uid)
        self.ledger.drop_pod(gone.uid)
        self.exchanges.ended(gone)  # that it is finished
        self.exchanges.ended(gone)  # that it is gone

    def held(self) -> Counter[int]:
        found = [each for each in self.ledger.pods_on(NODE) if isinstance(each.id, PurposeKey)]
        return Counter(share.gpu for each in found for share in each.shares)

    def taken(self) -> Counter[int]:
        """Return how often each place is taken as this server sees it."""
        return self.held() + Counter(each.shares[0].gpu for each in self.pods.values())


def live(uid: int, place: int) -> LivePod:
    made: Share = share(place, 1024, Mode.MPS)
    return LivePod(uid=f"uid-{uid}", key=PodKey(f"ns/p{uid}"), node=NODE, shares=(made,))


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], dict[int, int]]:
    """Return places as assigned, as used, the order of writes, and after which of them which pods end."""
    named = draw(st.lists(st.integers(0, 3), min_size=2, max_size=6))
    used = draw(st.permutations(named))
    order = draw(st.permutations([uid for uid, place in enumerate(named) if used[uid] != place]))
    ends = draw(st.dictionaries(st.integers(0, len(named) - 1), st.integers(1, max(1, len(order))), max_size=2))
    return named, used, order, ends


@given(histories())
@example(([0, 0, 1, 0, 0, 1], [0, 0, 0, 1, 1, 0], [3, 5, 4, 2], {0: 2, 2: 2}))  # between two exchanges
def test_nothing_that_a_living_pod_uses_looks_free_from_the_first_write_on(
    history: tuple[list[int], list[int], list[int], dict[int, int]],
) -> None:
    named, used, order, ends = history
    seen = Seen(named)
    for step, uid in enumerate(order, 1):
        if uid in seen.pods:
            seen.write(uid, used[uid])
        for gone in [each for each, after in ends.items() if after == step and each in seen.pods]:
            seen.end(gone)
        assert Counter(used[uid] for uid in seen.pods) <= seen.taken(), step
    if not ends:
        assert seen.held() == Counter(), "a complete exchange leaves nothing behind"
    for uid in tuple(seen.pods):
        seen.end(uid)
    assert seen.held() == Counter(), "nobody is left who could use it"


NAMED, AMOUNT = (
    DeviceRequest(resource="nvidia.com/gpu"),
    DeviceRequest(resource="tessera.dev/gpu-memory", form=Form.NEED),
)


@pytest.mark.parametrize(("requested", "held"), [(NAMED, {}), (AMOUNT, {0: 1, 1: 1})], ids=["by name", "by amount"])
def test_who_can_still_be_rewritten_keeps_what_others_left(requested: DeviceRequest, held: dict[int, int]) -> None:
    seen = Seen([0, 1])
    other = live(9, 2)
    seen.ledger.put_pod(LedgerEntry(other.uid, other.key, NodeName(NODE), Need(requests=(requested,)), other.shares))
    seen.write(0, 1)
    for uid in (0, 1):
        seen.end(uid)
    assert seen.held() == Counter(held)


def test_an_exchange_that_is_never_completed_is_given_up() -> None:
    seen = Seen([0, 1])
    seen.write(0, 1)
    assert seen.held() == Counter({0: 1})
    seen.now_s = 121.0
    seen.exchanges.drop_expired()
    assert seen.held() == Counter()


def test_a_correction_that_is_taken_back_leaves_nothing_behind() -> None:
    seen = Seen([0, 1])
    seen.write(0, 1)
    assert seen.held() == Counter({0: 1})
    seen.now_s = 119.0
    seen.exchanges.drop_expired()
    seen.write(0, 0)
    assert seen.held() == Counter()


def test_what_is_read_anew_in_its_place_is_no_exchange() -> None:
    """Another unit of `aliyun.com/gpu-mem`: the same GPU, and another amount."""
    seen = Seen([0, 1])
    before = seen.pods[0]
    seen.exchanges.moved(before, LivePod(uid=before.uid, key=before.key, node=NODE, shares=(share(0, 2048, Mode.MPS),)))
    assert seen.held() == Counter()
