"""The ledger case by case: reasons, conflicts, reservations, scores, learning, and what it forgets."""

import msgspec
import pytest

from builders.fleets import A30, A100, T4, amount, gpu, node, slices
from builders.ledgerentries import entry
from builders.shares import share
from tessera.core.cluster.snapshot import Node, NodeName, Share
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.packing.ledger import ImpossibleShares, Ledger, LedgerEntry
from tessera.core.workload.need import DeviceRequest, Form, Isolation, Need

WHOLE = Need(requests=(DeviceRequest(resource="nvidia.com/gpu"),))
FIXED = Sharing(
    modes=(Mode.MIG,), layout=(Placement(0, 4, "3g.20gb"), Placement(4, 4, "3g.20gb")), allow_repartition=False
)
SLICED = Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 2),))


def ledger_of(*nodes: Node, pods: tuple[LedgerEntry, ...] = (), policy: str = "tessera") -> Ledger:
    ledger = Ledger(policy)
    for each in nodes:
        ledger.put_node(each)
    for each_pod in pods:
        ledger.put_pod(each_pod)
    return ledger


def test_a_node_that_is_not_known_is_no_failure_of_the_others() -> None:
    ledger = ledger_of(node("n", gpu(0, T4)))
    assert ledger.filter(amount(1), ["gone", "n"]) == (("n",), {"gone": "the node is not known here yet"}, {})
    assert ledger.choose(amount(1), "gone") == "the node is not known here yet"
    assert not ledger.fits(amount(1), "gone")
    assert ledger.scores(amount(1), ["gone"]) == (0,)
    assert ledger.best(amount(1), ["gone"]) is None
    assert ledger.best(amount(1), ["gone", "n"]) == "n"
    assert (ledger.knows("n"), ledger.knows("gone")) == (True, False)


def test_an_empty_ledger_answers() -> None:
    ledger = Ledger()
    assert ledger.filter(amount(1), ["n"]) == ((), {"n": "the node is not known here yet"}, {})
    assert ledger.scores(amount(1), ["n"]) == (0,)
    assert ledger.scores(amount(1), []) == ()
    assert ledger.best(amount(1), ["n"]) is None
    assert ledger.best(amount(1), []) is None
    assert list(ledger.impossible_shares) == []


CLASHES = {
    "more memory than there is": (
        (share(memory_mib=9_000), share(memory_mib=9_000)),
        "18000 MiB of 15360 MiB are allocated",
    ),
    "a negative amount": ((share(memory_mib=-5),), "-5 MiB, 0 % compute (memory-share) is not a valid share of a GPU"),
    "a GPU that is not there": ((share(5),), "node n has no GPU 5"),
}


@pytest.mark.parametrize(("shares", "want"), CLASHES.values(), ids=CLASHES)
def test_what_cannot_be_held_closes_the_gpu_while_it_lasts(shares: tuple[Share, ...], want: str) -> None:
    pods = tuple(entry(f"p{i}", each) for i, each in enumerate(shares))
    ledger = ledger_of(node("n", gpu(0, T4)), pods=pods)
    keys = tuple(each.key for each in pods)
    index = shares[0].gpu
    (found,) = ledger.impossible_shares
    assert found == ImpossibleShares(node=NodeName("n"), gpu=index, pods=keys, problem=want)
    assert ledger.fits(amount(1), "n") == (index == 5)
    ledger.drop_pod(pods[0].id)
    assert list(ledger.impossible_shares) == []
    ledger.drop_node("n")
    assert list(ledger.impossible_shares) == []


def test_replicas_are_held_up_to_their_number() -> None:
    pods = tuple(entry(f"p{i}", share(mode=Mode.TIME_SLICING)) for i in range(3))
    ledger = ledger_of(node("n", gpu(0, T4, SLICED)), pods=pods[:2])
    assert not ledger.fits(WHOLE, "n")
    assert list(ledger.impossible_shares) == []
    ledger.put_pod(pods[2])
    (found,) = ledger.impossible_shares
    assert found.problem == "3 pods use the GPU (time-slicing), which allows 2"


def test_what_is_set_aside_is_held_again_afterwards() -> None:
    pods = tuple(entry(uid, share(memory_mib=7_000)) for uid in ("a", "b"))
    ledger = ledger_of(node("n", gpu(0, T4)), pods=pods)
    restore = ledger.set_aside(["a", "b"])
    assert ledger.pods_on("n") == ()
    assert ledger.fits(WHOLE, "n")
    restore()
    assert set(ledger.pods_on("n")) == set(pods)
    assert not ledger.fits(amount(2_000), "n")


GIVEN, THERE = share(memory_mib=8_000), entry("there", share(memory_mib=8_000))

# sentence: (what a node holds, what is reserved on it, shares, whether they can be held too)
HELD: dict[str, tuple[tuple[LedgerEntry, ...], tuple[Share, ...], tuple[Share, ...], bool]] = {
    "nothing else": ((), (), (GIVEN,), True),
    "enough is left": ((entry("there", share(memory_mib=7_000)),), (), (GIVEN,), True),
    "too little is left": ((THERE,), (), (GIVEN,), False),
    "what is there is doubted": ((msgspec.structs.replace(THERE, doubted=True),), (), (GIVEN,), True),
    "another way of sharing": ((THERE,), (), (share(mode=Mode.WHOLE, memory_mib=15_360),), False),
    "a GPU that is not there": ((), (), (share(5),), False),
    "one of two that is not there": ((), (), (GIVEN, share(5)), False),
    "the GPU is reserved": ((), (share(mode=Mode.WHOLE),), (GIVEN,), False),
    "another GPU is reserved": ((), (share(1, mode=Mode.WHOLE),), (GIVEN,), True),
    "a part is reserved": ((), (share(memory_mib=9_000),), (GIVEN,), False),
}


@pytest.mark.parametrize("case", HELD)
def test_whether_these_very_shares_can_be_held(case: str) -> None:
    pods, reserved, shares, want = HELD[case]
    ledger = Ledger()
    ledger.put_node(node("n", gpu(0, T4), gpu(1, T4)), reserved=reserved)
    for each in pods:
        ledger.put_pod(each)
    assert ledger.can_hold("n", shares) == want
    assert not ledger.can_hold("gone", shares)
    assert ledger.can_hold("n", shares, models=("L4", T4.name)) == want
    assert not ledger.can_hold("n", shares, models=("L4",)), "other hardware under that index"


def test_a_gpu_that_is_closed_is_open_again_when_its_node_comes_anew() -> None:
    ledger = ledger_of(node("n", gpu(0, T4)), pods=(entry("a", share(memory_mib=20_000)),))
    assert len(ledger.impossible_shares) == 1
    ledger.put_node(node("n", gpu(0, A100)))
    assert list(ledger.impossible_shares) == []
    assert ledger.fits(amount(20_000), "n")
    assert not ledger.fits(amount(21_000), "n")


def test_pods_on_a_node_that_is_not_there_are_kept_until_it_comes() -> None:
    ledger = ledger_of(pods=(entry("a", share(memory_mib=15_000)),))
    assert [held.id for held in ledger.pods_on("n")] == ["a"]
    ledger.put_node(node("n", gpu(0, T4)))
    assert not ledger.fits(amount(1_000), "n")
    ledger.drop_node("n")
    ledger.drop_node("n")
    ledger.put_node(node("n", gpu(0, T4)))
    assert not ledger.fits(amount(1_000), "n")
    ledger.drop_pod("a")
    ledger.drop_pod("a")
    assert ledger.fits(amount(1_000), "n")


def test_a_pod_put_again_replaces_what_it_held_wherever_that_was() -> None:
    ledger = ledger_of(node("n", gpu(0, T4)), node("m", gpu(0, T4)), pods=(entry("a", share(memory_mib=15_000)),))
    assert ledger.filter(amount(1_000), ["n", "m"]).fitting == ("m",)
    ledger.put_pod(entry("a", share(memory_mib=15_000), on="m"))
    assert ledger.filter(amount(1_000), ["n", "m"]).fitting == ("n",)
    ledger.put_pod(entry("a", on="m"))
    ledger.put_pod(entry("a", on="m"))
    ledger.put_pod(entry("b", on="m"))
    assert ledger.filter(amount(1_000), ["n", "m"]).fitting == ("n", "m")
    ledger.drop_pod("a")
    ledger.drop_pod("b")
    assert ledger.pods_on("m") == ()


def test_cpu_memory_and_pods_are_counted_but_not_judged() -> None:
    need = Need(cpu_milli=60_000, memory_mib=1 << 19)
    ledger = ledger_of(node("n", gpu(0, T4)), pods=(entry("a", need=need), entry("b", need=need)))
    assert ledger.free_resources("n") == (64_000 - 120_000, 0, 108)
    assert ledger.fits(msgspec.structs.replace(amount(1), cpu_milli=99_000), "n")
    ledger.put_node(node("n", gpu(0, T4), cpu_milli=200_000))
    assert ledger.free_resources("n") == (80_000, 0, 108)


def test_numbers_too_large_to_count_are_counted_as_very_large() -> None:
    huge = Need(
        cpu_milli=1 << 80, memory_mib=1 << 80, requests=(DeviceRequest(resource="nvidia.com/gpu", count=1 << 80),)
    )
    spec = msgspec.structs.replace(node("n", gpu(0, T4), gpu(0, A30)), cpu_milli=1 << 80)
    ledger = ledger_of(spec, pods=(entry("a", need=huge),))
    ledger.arrive("b", huge)
    assert ledger.free_resources("n")[0] == 0
    assert (
        ledger.filter(huge, ["n"])
        .hopeless["n"]
        .startswith("too few devices: 1208925819614629174706176 x nvidia.com/gpu requested")
    )
    assert ledger.fits(amount(20_000), "n"), "of two GPUs of one index one is counted"


def test_what_kube_scheduler_decides_does_not_make_another_kind_of_need() -> None:
    ledger = ledger_of(node("n", gpu(0, T4)))
    pinned = msgspec.structs.replace(amount(1_000), node_selector=(("zone", "x"),), node_name="elsewhere")
    assert ledger.filter(pinned, ["n"]).fitting == ("n",)


def test_scores_give_ten_to_one_node_and_spread_the_others() -> None:
    nodes = [node(name, gpu(0, T4)) for name in "cabd"]
    ledger = ledger_of(*nodes, policy="best-fit")
    ledger.put_pod(entry("x", share(memory_mib=4_000), on="a"))
    ledger.put_pod(entry("y", share(memory_mib=8_000), on="b"))
    ledger.put_pod(entry("z", share(memory_mib=15_000), on="d"))
    assert ledger.scores(amount(4_000), ["a", "b", "c", "d"]) == (6, 10, 3, 0)
    assert ledger.scores(amount(4_000), ["c"]) == (10,)
    ledger.drop_pod("x")
    ledger.drop_pod("y")
    assert ledger.scores(amount(4_000), ["a", "b", "c"]) == (9, 9, 10), "ties go to the node that was put first"


def test_of_equal_nodes_the_one_that_holds_most_of_the_images_is_chosen() -> None:
    ledger = ledger_of(*[node(name, gpu(0, T4)) for name in "cabd"], policy="best-fit")
    ledger.put_pod(entry("y", share(memory_mib=8_000), on="b"))
    names, need = ["a", "b", "c", "d"], amount(4_000)
    assert ledger.best(need, names, {"a": 9 << 30}) == "b", "images never outweigh GPUs"
    ledger.drop_pod("y")
    for held, want in ({}, "c"), ({"a": 5, "d": 7}, "d"), ({"a": 5, "d": 5}, "a"), ({"gone": 9}, "c"):
        assert ledger.best(need, names, held) == want
        assert names[ledger.scores(need, names, held).index(10)] == want


def test_reserved_devices_are_for_nobody_else() -> None:
    desired = share(at="2g.12gb@0")
    ledger = Ledger()
    ledger.put_node(node("n", gpu(0, A30)), reserved=(desired,))
    assert ledger.fits(slices("2g.12gb"), "n")
    assert not ledger.fits(slices("2g.12gb", 2), "n")
    ledger.put_pod(entry("a", desired))
    assert ledger.fits(slices("2g.12gb"), "n"), "the pod holds what was reserved"
    assert list(ledger.impossible_shares) == []
    ledger.put_node(node("n", gpu(0, A30)))
    ledger.drop_pod("a")
    assert ledger.fits(slices("2g.12gb", 2), "n")


def test_a_whole_gpu_that_is_reserved_gives_nothing_new_while_pods_are_on_it() -> None:
    ledger = ledger_of(node("n", gpu(0, A30)), pods=(entry("a", share()),))
    assert ledger.fits(amount(1_000), "n")
    ledger.put_node(node("n", gpu(0, A30)), reserved=(share(mode=Mode.WHOLE),))
    assert not ledger.fits(amount(1_000), "n")
    ledger.drop_pod("a")
    assert not ledger.fits(amount(1_000), "n")
    assert list(ledger.impossible_shares) == []
    ledger.put_node(node("n", gpu(0, A30)), reserved=(share(7, mode=Mode.WHOLE),))
    assert ledger.fits(amount(1_000), "n"), "what is reserved of a GPU that is not there is nothing"


def doubted(uid: str, *shares: Share) -> LedgerEntry:
    return msgspec.structs.replace(entry(uid, *shares), doubted=True)


@pytest.mark.parametrize("first", [True, False], ids=["held first", "doubted first"])
def test_what_is_doubted_is_kept_free_where_it_can_be_and_is_never_a_conflict(first: bool) -> None:
    ledger = ledger_of(node("n", gpu(0, T4)))
    pods = [
        entry("a", share(memory_mib=9_000)),
        doubted("b", share(memory_mib=6_000)),
        doubted("c", share(memory_mib=9)),
    ]
    for pod in pods if first else reversed(pods):
        ledger.put_pod(pod)
    assert not ledger.fits(amount(2_000), "n"), "what is doubted may be true"
    more = entry("d", share(memory_mib=2_000))
    ledger.put_pod(more)
    assert ledger.fits(amount(4_000), "n"), "both cannot be"
    assert not ledger.fits(amount(4_360), "n"), "what can be, may be true"
    ledger.drop_pod("d")
    assert not ledger.fits(amount(2_000), "n")
    for name in ("b", "c"):
        ledger.drop_pod(name)
    assert ledger.fits(amount(6_360), "n")
    assert list(ledger.impossible_shares) == []


@pytest.mark.parametrize("wrong", [share(5), share(memory_mib=-5), share(mode=Mode.WHOLE), share(memory_mib=90_000)])
def test_what_is_doubted_and_cannot_be_closes_nothing(wrong: Share) -> None:
    ledger = ledger_of(node("n", gpu(0, T4)), pods=(entry("a", share()), doubted("b", wrong)))
    assert ledger.fits(amount(14_000), "n")
    assert list(ledger.impossible_shares) == []
    ledger.put_pod(entry("b", wrong))
    assert len(ledger.impossible_shares) == 1, "it is known now"


def test_what_is_doubted_takes_nothing_that_is_reserved() -> None:
    ledger = Ledger()
    ledger.put_node(node("n", gpu(0, A30)), reserved=(share(at="2g.12gb@0"),))
    ledger.put_pod(doubted("a", share(memory_mib=4)))
    assert not ledger.fits(amount(20_000), "n")
    assert ledger.fits(slices("2g.12gb"), "n")


def test_an_arrival_counts_once_and_only_arrived_pods_leave() -> None:
    ledger = ledger_of(node("n", gpu(0, A100)))
    for i in range(30):
        ledger.arrive(f"{i % 25}", slices("1g.5gb"))
    twin = ledger_of(node("n", gpu(0, A100)))
    for i in range(25):
        twin.arrive(f"{i}", slices("1g.5gb"))
    twin.drop_pod("unheard of")
    need = slices("2g.10gb")
    assert ledger.choose(need, "n") == twin.choose(need, "n")


def test_the_shares_follow_the_requests_over_containers_gpus_and_models() -> None:
    requests = (
        DeviceRequest(resource="tessera.dev/gpu-memory", form=Form.NEED, memory_mib=20_000, count=2, container="a"),
        DeviceRequest(
            resource="tessera.dev/gpu-memory",
            form=Form.NEED,
            memory_mib=5_000,
            isolation=Isolation.HARDWARE,
            container="b",
        ),
    )
    ledger = ledger_of(node("n", gpu(0, A30), gpu(1, A100), gpu(2, T4)))
    got = ledger.choose(Need(requests=requests), "n")
    assert not isinstance(got, str)
    assert [(each.container, each.memory_mib >= 5_000) for each in got] == [("a", True), ("a", True), ("b", True)]
    assert {each.gpu for each in got[:2]} == {0, 1}
    assert got[2].isolation is Isolation.HARDWARE
    ledger.put_pod(entry("p", *got))
    assert list(ledger.impossible_shares) == []


def test_needs_without_end_are_forgotten_and_answers_stay() -> None:
    ledger = ledger_of(node("n", gpu(0, A30)), node("m", gpu(0, T4)))
    usual = slices("1g.6gb")
    for i in range(3):
        ledger.arrive(f"{i}", usual)
    want = ledger.filter(usual, ["n", "m"]), ledger.scores(usual, ["n", "m"]), ledger.choose(usual, "n")
    for i in range(2_100):
        assert ledger.fits(amount(1 + i), "n")
    for i in range(300):
        assert not ledger.filter(amount(30_000 + i), ["n", "m"]).fitting
    got = ledger.filter(usual, ["n", "m"]), ledger.scores(usual, ["n", "m"]), ledger.choose(usual, "n")
    assert got == want


def test_what_pods_write_beside_their_needs_is_not_remembered_without_end() -> None:
    ledger = ledger_of(node("n", gpu(0, A30)), policy="fgd")
    for i in range(8_300):
        assert ledger.fits(msgspec.structs.replace(amount(1_000), node_selector=(("zone", f"{i}"),)), "n")
    for i in range(300):
        assert ledger.fits(amount(1_000 + i), "n")
    got = ledger.choose(amount(1_000), "n")
    assert not isinstance(got, str)
    assert [each.memory_mib for each in got] == [1_000]


def test_arrivals_without_end_are_forgotten() -> None:
    ledger = ledger_of(node("n", gpu(0, T4)))
    for i in range(66_000):
        ledger.arrive(f"{i}", WHOLE)
    ledger.drop_pod("0")
    assert ledger.fits(WHOLE, "n")


def test_a_node_put_as_it_was_changes_nothing() -> None:
    spec = node("n", gpu(0, T4))
    ledger = ledger_of(spec, pods=(entry("a", share(memory_mib=15_000)),))
    ledger.put_node(spec)
    ledger.put_node(msgspec.structs.replace(spec, labels=(("zone", "a"),)))
    ledger.put_node(msgspec.structs.replace(spec, max_pods=10))
    assert ledger.free_resources("n")[2] == 9
    assert not ledger.fits(amount(1_000), "n")


def test_states_of_nodes_without_end_are_forgotten() -> None:
    """Needs for several devices are tried state by state."""
    both = Need(requests=(*amount(1_000).requests, *amount(2_000).requests))
    ledger = Ledger("first-fit")
    names = [f"n{i}" for i in range(4_100)]
    for i, name in enumerate(names):
        ledger.put_node(node(name, gpu(0, T4), gpu(1, T4)))
        ledger.put_pod(entry(name, share(memory_mib=1 + i), on=name))
    assert ledger.filter(both, names).fitting == tuple(names)
