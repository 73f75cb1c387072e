"""The ledger case by case: reasons, conflicts, reservations, scores, learning, and what it forgets."""

import msgspec
import pytest

from builders.cards import at
from builders.fleets import A30, A100, T4, amount, gpu, node, plain_share, slices
from tessera.core.cluster.snapshot import Node, NodeName, Share
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.packing.ledger import Clash, Holder, Ledger
from tessera.core.packing.ledger.obstacles import size
from tessera.core.workload.need import Ask, Form, Isolation, Need, PodKey

WHOLE = Need(asks=(Ask(resource="nvidia.com/gpu"),))
FIXED = Sharing(modes=(Mode.MIG,), layout=(Placement(0, 4, "3g.20gb"), Placement(4, 4, "3g.20gb")), recut=False)
SLICED = Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 2),))


def share(
    index: int = 0, mode: Mode = Mode.MEMORY_SHARE, memory_mib: int = 1_000, compute: int = 0, at: str = ""
) -> Share:
    """A share; `at` is `PROFILE@START`."""
    profile, _, start = at.partition("@")
    return Share(
        gpu=index,
        mode=mode,
        profile=profile or None,
        start=int(start) if start else None,
        memory_mib=memory_mib,
        compute_percent=compute,
        isolation=mode.isolation,
        resource="r",
    )


def pod(uid: str, *shares: Share, on: str = "n", need: Need | None = None, priority: int = 0) -> Holder:
    return Holder(uid, PodKey(f"default/{uid}"), NodeName(on), need or Need(), shares, priority)


def ledger_of(*nodes: Node, pods: tuple[Holder, ...] = (), policy: str = "tessera") -> Ledger:
    ledger = Ledger(policy)
    for each in nodes:
        ledger.put_node(each)
    for held in pods:
        ledger.put_pod(held)
    return ledger


def two_models(need: Need) -> Need:
    return msgspec.structs.replace(need, models=("A100-40GB", "A30-24GB"))


FULL = [pod(f"m{i}", share(i, memory_mib=11_000)) for i in range(2)]
REASONS = {
    "a node without GPU": (node("n"), (), amount(1), "hopeless", "the node has no GPU"),
    "another model": (
        node("n", gpu(0, T4)),
        (),
        two_models(amount(1)),
        "hopeless",
        "no GPU of model A100-40GB or A30-24GB",
    ),
    "more memory than any GPU has": (
        node("n", gpu(0, T4)),
        (),
        amount(80 * 1024),
        "hopeless",
        "no GPU here can give 80 GiB",
    ),
    "isolation and compute in the words of the need": (
        node("n", gpu(0, T4, Sharing(modes=(Mode.MEMORY_SHARE,)))),
        (),
        amount(1_024, Isolation.DRIVER, compute_percent=30),
        "hopeless",
        "no GPU here can give 1 GiB and 30 % compute with driver isolation",
    ),
    "fewer GPUs than asked for": (
        node("n", gpu(0, T4), gpu(1, T4)),
        (),
        amount(4_096, count=3),
        "hopeless",
        "needs 3 x 4 GiB, the node can give 2 at most",
    ),
    "instances that do not fit even if nothing runs": (
        node("n", gpu(0, A30)),
        (),
        slices("2g.12gb", 3),
        "hopeless",
        "needs 3 x nvidia.com/mig-2g.12gb, the node can give 2 at most",
    ),
    "devices that do not exist": (
        node("n", gpu(0, T4, SLICED)),
        (),
        Need(asks=(Ask(resource="nvidia.com/gpu", count=3),)),
        "hopeless",
        "needs 3 x nvidia.com/gpu, the node can give 2 at most",
    ),
    "memory is short": (
        node("n", gpu(0, T4), gpu(1, T4)),
        (pod("a", share(0, memory_mib=12_000)), pod("b", share(1, memory_mib=11_000))),
        plain_share(6 * 1024),
        "failed",
        "needs 6 GiB on one GPU, at most 4.2 GiB is left on any (GPU 1)",
    ),
    "compute is short": (
        node("n", gpu(0, T4)),
        (pod("a", share(0, memory_mib=1, compute=90)),),
        amount(1_024, compute_percent=30),
        "failed",
        "needs 30 % compute on one GPU, at most 10 % is left where the memory is enough (GPU 0)",
    ),
    "one of two GPUs has room": (
        node("n", gpu(0, T4), gpu(1, T4)),
        (pod("a", share(0, memory_mib=12_000)),),
        amount(8 * 1024, count=2),
        "failed",
        "needs 2 x 8 GiB, 1 free",
    ),
    "in use in another mode": (
        node("n", gpu(0, A30)),
        (pod("a", share(0, Mode.MIG, at="1g.6gb@0")),),
        plain_share(1_024),
        "failed",
        "needs 1 GiB, every GPU that could give it is in use, in use in another mode, or closed",
    ),
    "MIG units in pieces": (
        node("n", gpu(0, A30)),
        (pod("a", share(0, Mode.MIG, at="1g.6gb@0")), pod("b", share(0, Mode.MIG, at="1g.6gb@2"))),
        slices("2g.12gb"),
        "failed",
        "needs a place for 2g.12gb, at most 2 MIG units are free, in pieces (GPU 0)",
    ),
    "nothing can be cut": (
        node("n", gpu(0, A30)),
        (pod("a", share(0)),),
        slices("2g.12gb"),
        "failed",
        "needs nvidia.com/mig-2g.12gb, every GPU that could give it is in use, in use in another mode, or closed",
    ),
    "no GPU is free": (
        node("n", gpu(0, T4)),
        (pod("a", share(0)),),
        WHOLE,
        "failed",
        "needs nvidia.com/gpu, every GPU that could give it is in use, in use in another mode, or closed",
    ),
    "the kubelet allocates what would serve": (
        node("n", gpu(0, T4), gpu(1, T4, Sharing(modes=(Mode.WHOLE,)))),
        (),
        amount(12_000, Isolation.HARDWARE, count=2),
        "hopeless",
        "needs 2 x 11.8 GiB with hardware isolation, the node can give 1 at most",
    ),
    "the kubelet allocates all that would serve": (
        node("n", gpu(0, T4, Sharing(modes=(Mode.MEMORY_SHARE,))), gpu(1, T4, Sharing(modes=(Mode.WHOLE,)))),
        (),
        amount(12_000, Isolation.HARDWARE),
        "hopeless",
        (
            "its devices are allocated by name (nvidia.com/gpu): ask for one by name, or set allocator: scheduler in a "
            "GPUPolicy"
        ),
    ),
    "the scheduler allocates all that has the name": (
        node("n", gpu(0, T4, Sharing(modes=(Mode.WHOLE,), allocator="scheduler"))),
        (),
        WHOLE,
        "hopeless",
        (
            "its devices are allocated by the scheduler: ask for an amount of tessera.dev/gpu-memory instead of "
            "nvidia.com/gpu"
        ),
    ),
    "each alone, but not together": (
        node("n", gpu(0, A30)),
        (),
        Need(asks=(*WHOLE.asks, *slices("1g.6gb").asks)),
        "failed",
        "has a place for each device alone, but not for all together",
    ),
}


def test_a_reason_names_the_devices_of_the_first_gpu_whatever_was_seen_before() -> None:
    cut = at("A100-40GB", ("1g.5gb", 0))
    sliced, whole = Sharing(modes=(Mode.MIG,), layout=cut, recut=False), Sharing(modes=(Mode.WHOLE,))
    fresh, lived = Ledger(), Ledger()
    lived.put_node(node("m", gpu(0, A100, whole)))
    for each in (fresh, lived):
        each.put_node(node("n", gpu(0, A100, sliced), gpu(1, A100, whole)))
    (found,) = {each.filter(amount(2_000, Isolation.HARDWARE), ["n"]).hopeless["n"] for each in (fresh, lived)}
    assert found.startswith("its devices are allocated by name (nvidia.com/mig-1g.5gb)")


@pytest.mark.parametrize(("spec", "pods", "need", "where", "want"), REASONS.values(), ids=REASONS)
def test_reasons(spec: Node, pods: tuple[Holder, ...], need: Need, where: str, want: str) -> None:
    ledger = ledger_of(spec, pods=pods)
    got = ledger.filter(need, ["n"])
    assert got._asdict() == {"fitting": (), "failed": {}, "hopeless": {}} | {where: {"n": want}}
    assert ledger.choose(need, "n") == want
    assert not ledger.fits(need, "n")
    assert ledger.scores(need, ["n"]) == (0,)
    assert ledger.best(need, ["n"]) is None


@pytest.mark.parametrize(
    ("memory_mib", "up", "want"),
    [(1_000, False, "1000 MiB"), (1_024, False, "1 GiB"), (1_500, False, "1.4 GiB"), (1_500, True, "1.5 GiB")],
)
def test_memory_in_words(memory_mib: int, up: bool, want: str) -> None:
    assert size(memory_mib, up=up) == want


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
    assert list(ledger.conflicts) == []


CLASHES = {
    "more memory than there is": (
        (share(memory_mib=9_000), share(memory_mib=9_000)),
        "18000 MiB are held of 15360 MiB",
    ),
    "more than the GPU alone has": (
        (share(memory_mib=99_000),),
        "99000 MiB is more than the GPU's 15360 MiB",
    ),
    "more compute than there is": ((share(compute=60), share(compute=60)), "120 % of the compute are held"),
    "a negative amount": ((share(memory_mib=-5),), "-5 MiB, 0 % compute (memory-share) is no amount of a GPU"),
    "two modes": ((share(), share(mode=Mode.MPS)), "shares of different modes on one GPU: memory-share, mps"),
    "the whole GPU and more": ((share(mode=Mode.WHOLE), share()), "the whole GPU is held beside 1 more"),
    "a profile that the model has not": ((share(mode=Mode.MIG, at="9g.9gb@0"),), "T4 has no profile 9g.9gb"),
    "a mode without such a device": (
        (share(mode=Mode.TIME_SLICING),),
        "the GPU has no such device: 1000 MiB, 0 % compute (time-slicing)",
    ),
    "a profile that is not the whole GPU": (
        (share(mode=Mode.WHOLE, at="1g.5gb@0"),),
        "1g.5gb is not the whole GPU",
    ),
    "a GPU that is not there": ((share(5),), "node n has no GPU 5"),
}


@pytest.mark.parametrize(("shares", "want"), CLASHES.values(), ids=CLASHES)
def test_what_cannot_be_held_closes_the_gpu_while_it_lasts(shares: tuple[Share, ...], want: str) -> None:
    pods = tuple(pod(f"p{i}", each) for i, each in enumerate(shares))
    ledger = ledger_of(node("n", gpu(0, T4)), pods=pods)
    keys = tuple(each.key for each in pods)
    index = shares[0].gpu
    assert list(ledger.conflicts) == [Clash(node=NodeName("n"), gpu=index, pods=keys, problem=want)]
    assert ledger.fits(amount(1), "n") == (index == 5)
    ledger.drop_pod(pods[0].uid)
    assert list(ledger.conflicts) == []
    ledger.drop_node("n")
    assert list(ledger.conflicts) == []


MIG_CLASHES = {
    "overlapping instances": (Sharing(), ("3g.20gb@0", "1g.5gb@1"), "3g.20gb at 0 overlaps what others hold"),
    "one instance twice": (Sharing(), ("1g.5gb@1", "1g.5gb@1"), "2 pods hold 1g.5gb (mig) for 1 at most"),
    "a start that is none": (Sharing(), ("3g.20gb@1",), "3g.20gb does not start at 1"),
    "an instance beside a fixed layout": (
        FIXED,
        ("1g.5gb@0",),
        "1g.5gb at 0 (mig) is none of the devices the GPU is shared as",
    ),
    "a device of a fixed layout twice": (
        FIXED,
        ("3g.20gb@0", "3g.20gb@0", "3g.20gb@4"),
        "2 pods hold 3g.20gb (mig) for 1 at most",
    ),
}


@pytest.mark.parametrize(("sharing", "places", "want"), MIG_CLASHES.values(), ids=MIG_CLASHES)
def test_instances_that_cannot_be_held(sharing: Sharing, places: tuple[str, ...], want: str) -> None:
    pods = tuple(pod(f"p{i}", share(mode=Mode.MIG, at=at)) for i, at in enumerate(places))
    ledger = ledger_of(node("n", gpu(0, A100, sharing)), pods=pods)
    assert [clash.problem for clash in list(ledger.conflicts)] == [want]
    assert not ledger.fits(amount(1), "n")


def test_replicas_are_held_up_to_their_number() -> None:
    pods = tuple(pod(f"p{i}", share(mode=Mode.TIME_SLICING)) for i in range(3))
    ledger = ledger_of(node("n", gpu(0, T4, SLICED)), pods=pods[:2])
    assert not ledger.fits(WHOLE, "n")
    assert list(ledger.conflicts) == []
    ledger.put_pod(pods[2])
    assert [clash.problem for clash in list(ledger.conflicts)] == ["3 pods hold the GPU (time-slicing) for 2 at most"]


def test_a_gpu_that_is_closed_is_open_again_when_its_node_comes_anew() -> None:
    ledger = ledger_of(node("n", gpu(0, T4)), pods=(pod("a", share(memory_mib=20_000)),))
    assert len(ledger.conflicts) == 1
    ledger.put_node(node("n", gpu(0, A100)))
    assert list(ledger.conflicts) == []
    assert ledger.fits(amount(20_000), "n")
    assert not ledger.fits(amount(21_000), "n")


def test_pods_on_a_node_that_is_not_there_are_kept_until_it_comes() -> None:
    ledger = ledger_of(pods=(pod("a", share(memory_mib=15_000)),))
    assert [held.uid for held in ledger.pods_on("n")] == ["a"]
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
    ledger = ledger_of(node("n", gpu(0, T4)), node("m", gpu(0, T4)), pods=(pod("a", share(memory_mib=15_000)),))
    assert ledger.filter(amount(1_000), ["n", "m"]).fitting == ("m",)
    ledger.put_pod(pod("a", share(memory_mib=15_000), on="m"))
    assert ledger.filter(amount(1_000), ["n", "m"]).fitting == ("n",)
    ledger.put_pod(pod("a", on="m"))
    ledger.put_pod(pod("a", on="m"))
    ledger.put_pod(pod("b", on="m"))
    assert ledger.filter(amount(1_000), ["n", "m"]).fitting == ("n", "m")
    ledger.drop_pod("a")
    ledger.drop_pod("b")
    assert ledger.pods_on("m") == ()


def test_cpu_memory_and_pods_are_counted_but_not_judged() -> None:
    need = Need(cpu_milli=60_000, memory_mib=1 << 19)
    ledger = ledger_of(node("n", gpu(0, T4)), pods=(pod("a", need=need), pod("b", need=need)))
    assert ledger.left("n") == (64_000 - 120_000, 0, 108)
    assert ledger.fits(msgspec.structs.replace(amount(1), cpu_milli=99_000), "n")
    ledger.put_node(node("n", gpu(0, T4), cpu_milli=200_000))
    assert ledger.left("n") == (80_000, 0, 108)


def test_numbers_too_large_to_count_are_counted_as_very_large() -> None:
    huge = Need(cpu_milli=1 << 80, memory_mib=1 << 80, asks=(Ask(resource="nvidia.com/gpu", count=1 << 80),))
    spec = msgspec.structs.replace(node("n", gpu(0, T4), gpu(0, A30)), cpu_milli=1 << 80)
    ledger = ledger_of(spec, pods=(pod("a", need=huge),))
    ledger.arrive("b", huge)
    assert ledger.left("n")[0] == 0
    assert ledger.filter(huge, ["n"]).hopeless["n"].startswith("needs 1208925819614629174706176 x nvidia.com/gpu")
    assert ledger.fits(amount(20_000), "n"), "of two GPUs of one index one is counted"


def test_what_kube_scheduler_decides_does_not_make_another_kind_of_need() -> None:
    ledger = ledger_of(node("n", gpu(0, T4)))
    pinned = msgspec.structs.replace(amount(1_000), node_selector=(("zone", "x"),), node_name="elsewhere")
    assert ledger.filter(pinned, ["n"]).fitting == ("n",)


def test_scores_give_ten_to_one_node_and_spread_the_others() -> None:
    nodes = [node(name, gpu(0, T4)) for name in "cabd"]
    ledger = ledger_of(*nodes, policy="best-fit")
    ledger.put_pod(pod("x", share(memory_mib=4_000), on="a"))
    ledger.put_pod(pod("y", share(memory_mib=8_000), on="b"))
    ledger.put_pod(pod("z", share(memory_mib=15_000), on="d"))
    assert ledger.scores(amount(4_000), ["a", "b", "c", "d"]) == (6, 10, 3, 0)
    assert ledger.scores(amount(4_000), ["c"]) == (10,)
    ledger.drop_pod("x")
    ledger.drop_pod("y")
    assert ledger.scores(amount(4_000), ["a", "b", "c"]) == (9, 9, 10), "ties go to the node that was put first"


def test_reserved_devices_are_for_nobody_else() -> None:
    wanted = share(mode=Mode.MIG, at="2g.12gb@0")
    ledger = Ledger()
    ledger.put_node(node("n", gpu(0, A30)), reserved=(wanted,))
    assert ledger.fits(slices("2g.12gb"), "n")
    assert not ledger.fits(slices("2g.12gb", 2), "n")
    ledger.put_pod(pod("a", wanted))
    assert ledger.fits(slices("2g.12gb"), "n"), "the pod holds what was reserved"
    assert list(ledger.conflicts) == []
    ledger.put_node(node("n", gpu(0, A30)))
    ledger.drop_pod("a")
    assert ledger.fits(slices("2g.12gb", 2), "n")


def test_a_whole_gpu_that_is_reserved_gives_nothing_new_while_pods_are_on_it() -> None:
    ledger = ledger_of(node("n", gpu(0, A30)), pods=(pod("a", share()),))
    assert ledger.fits(amount(1_000), "n")
    ledger.put_node(node("n", gpu(0, A30)), reserved=(share(mode=Mode.WHOLE),))
    assert not ledger.fits(amount(1_000), "n")
    ledger.drop_pod("a")
    assert not ledger.fits(amount(1_000), "n")
    assert list(ledger.conflicts) == []
    ledger.put_node(node("n", gpu(0, A30)), reserved=(share(7, mode=Mode.WHOLE),))
    assert ledger.fits(amount(1_000), "n"), "what is reserved of a GPU that is not there is nothing"


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


def test_the_shares_follow_the_asks_over_containers_gpus_and_models() -> None:
    asks = (
        Ask(resource="tessera.dev/gpu-memory", form=Form.NEED, memory_mib=20_000, count=2, container="a"),
        Ask(
            resource="tessera.dev/gpu-memory",
            form=Form.NEED,
            memory_mib=5_000,
            isolation=Isolation.HARDWARE,
            container="b",
        ),
    )
    ledger = ledger_of(node("n", gpu(0, A30), gpu(1, A100), gpu(2, T4)))
    got = ledger.choose(Need(asks=asks), "n")
    assert not isinstance(got, str)
    assert [(each.container, each.memory_mib >= 5_000) for each in got] == [("a", True), ("a", True), ("b", True)]
    assert {each.gpu for each in got[:2]} == {0, 1}
    assert got[2].isolation is Isolation.HARDWARE
    ledger.put_pod(pod("p", *got))
    assert list(ledger.conflicts) == []


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
    ledger = ledger_of(spec, pods=(pod("a", share(memory_mib=15_000)),))
    ledger.put_node(spec)
    ledger.put_node(msgspec.structs.replace(spec, labels=(("zone", "a"),)))
    ledger.put_node(msgspec.structs.replace(spec, max_pods=10))
    assert ledger.left("n")[2] == 9
    assert not ledger.fits(amount(1_000), "n")


def test_states_of_nodes_without_end_are_forgotten() -> None:
    """Needs for several devices are tried state by state."""
    both = Need(asks=(*amount(1_000).asks, *amount(2_000).asks))
    ledger = Ledger("first-fit")
    names = [f"n{i}" for i in range(4_100)]
    for i, name in enumerate(names):
        ledger.put_node(node(name, gpu(0, T4), gpu(1, T4)))
        ledger.put_pod(pod(name, share(memory_mib=1 + i), on=name))
    assert ledger.filter(both, names).fitting == tuple(names)
