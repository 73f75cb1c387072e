"""Which pod an allocation belongs to, and assignments that say what the kubelet did."""

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.assignedrequests import RESOURCE, kubelet_allocation, request
from builders.gpunodes import facts
from builders.shares import share
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation, RequestKey
from tessera.core.deviceplugin.allocations.matching import (
    Answer,
    AssignedRequest,
    Correction,
    Reconciled,
    absent,
    mismatch,
    pick,
    reconcile,
    served,
    unserved,
)
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.sharing import Mode
from tessera.errors import Conflict


def test_the_text_of_a_specification_stays_as_it_is() -> None:
    """An agent compares its own with those that an earlier version has stored."""
    mig = msgspec.structs.replace(share(1, 4864, Mode.MIG), profile="1g.5gb", start=4, resource=RESOURCE)
    key = RequestKey("ns", "p", "main", RESOURCE)
    assert AssignedRequest(key=key, units=2, shares=(mig,)).specification == (
        '["tessera.dev/gpu-memory",2,"",[{"gpu":0,"mode":"mig","profile":"1g.5gb","start":0,"memory_mib":4864,'
        '"compute_percent":0,"isolation":"hardware","resource":"tessera.dev/gpu-memory","container":""}]]'
    )
    assert AssignedRequest(key=key, units=2, shares=(mig,), request_text="TEXT", bound="uid").specification == (
        '["tessera.dev/gpu-memory",2,"uid","TEXT"]'
    )


def answer(to: AssignedRequest, *ids: str) -> Answer:
    return Answer(ids=frozenset(ids), key=to.key, specification=to.specification, shares=to.shares)


def test_a_request_and_its_allocation_have_the_same_container_key() -> None:
    asked = msgspec.structs.replace(request("p", 2), uid="uid-p")
    allocated = msgspec.structs.replace(kubelet_allocation("p", "1", "2"), uid="uid-p")
    assert asked.container_key == allocated.container_key == ("uid-p", "main", RESOURCE)
    assert request("q", 2).container_key != asked.container_key


OLD, NEW, LARGE = request("old", 2, since=1), request("new", 2, since=2), request("large", 5, since=0)
ENDING = msgspec.structs.replace(request("ending", 2), ending=True)
OTHER = request("other", 2, resource="aliyun.com/gpu-mem")

# sentence: (requests, units, the answered ones, name of the pod that is chosen)
PICKS = {
    "the oldest of its size": ([NEW, LARGE, OLD], 2, [], "old"),
    "the next when that is answered": ([NEW, LARGE, OLD], 2, [OLD], "new"),
    "the only one of its size": ([NEW, LARGE, OLD], 5, [], "large"),
    "of one age the first by name": ([request("b", 1), request("a", 1)], 1, [], "a"),
    "none that is being deleted": ([ENDING, NEW], 2, [], "new"),
}


@pytest.mark.parametrize("case", PICKS)
def test_which_due_is_answered(case: str) -> None:
    requests, units, answered, want = PICKS[case]
    assert pick(requests, RESOURCE, units, frozenset(each.key for each in answered)).key.pod == want


# sentence: (requests, the pods with ids on record, those meant by answers, those whose GPU is gone, the chosen pod)
UNSERVED = {
    "the oldest": ([NEW, OLD], [], [], [], "old"),
    "the next, of which there is a GPU": ([NEW, OLD], [], [], [OLD], "new"),
    "one that was answered, whose pod was rejected, before one without a GPU": ([NEW, OLD], [], [NEW], [OLD], "new"),
    "one without a GPU where no other waits": ([NEW, OLD], ["new"], [NEW], [OLD], "old"),
    "one without a GPU that was answered": ([NEW, OLD], ["new"], [OLD], [OLD], "old"),
    "one that was answered where none else waits: its pod was rejected": ([NEW, OLD], ["old"], [NEW], [], "new"),
}


@pytest.mark.parametrize("case", UNSERVED)
def test_which_of_several_is_to_be_answered(case: str) -> None:
    requests, recorded, meant, gone, want = UNSERVED[case]
    allocated = [kubelet_allocation(pod, f"{pod}-1", f"{pod}-2") for pod in recorded]
    answers = [answer(each, "x", "y") for each in meant]
    found = unserved(requests, (RESOURCE, 2), allocated, answers, {each.key for each in gone})
    assert found.key.pod == want


# sentence: (requests, units, answered, what the error says)
REFUSALS = {
    "no pod has an assignment": ([], 2, [], "no pod of this node has an assignment"),
    "only to another resource": ([OTHER], 2, [], "no pod of this node has an assignment"),
    "only to other sizes": (
        [OLD, LARGE],
        3,
        [],
        "assigned pods request other amounts: pod default/old, container main (2 units)",
    ),
    "all are served": ([OLD], 2, [OLD], "all 1 assigned pods already have their devices"),
    "only a pod that is being deleted": ([ENDING], 2, [], "all 1 assigned pods already have their devices"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_refused_and_why(case: str) -> None:
    requests, units, answered, want = REFUSALS[case]
    with pytest.raises(Conflict) as error:
        pick(requests, RESOURCE, units, frozenset(each.key for each in answered))
    assert want in str(error.value)
    assert f"{units} units of {RESOURCE}" in str(error.value)


def test_an_answer_serves_whom_it_was_meant_for_until_somebody_holds_it() -> None:
    requests = [OLD, NEW, LARGE]
    assert served(requests, [], [answer(OLD, "1", "2")]) == {OLD.key}
    assert served(requests, [kubelet_allocation("new", "1", "2")], [answer(OLD, "1", "2")]) == {NEW.key}
    assert served(requests, [kubelet_allocation("stranger", "9")], []) == frozenset()


def test_a_running_pod_is_served_though_the_record_does_not_show_it() -> None:
    running = msgspec.structs.replace(OLD, running=True)
    assert served([running, NEW], [], []) == {OLD.key}


def test_equal_dues_differ_in_gpu_and_place_alone() -> None:
    first = request("a", 2, share(0, mode=Mode.MIG, at="@0"))
    assert first.specification == request("b", 2, share(3, mode=Mode.MIG, at="@4")).specification
    for other in (
        request("b", 3, share(0, mode=Mode.MIG, at="@0")),
        request("b", 2, share(0, mode=Mode.MIG_MPS, at="@0")),
        request("b", 2, share(0, mode=Mode.MIG)),
        request("b", 2, share(0, mode=Mode.MIG, at="@0"), bound="b"),
        request("b", 2, share(0, mode=Mode.MIG, at="@0"), share(1)),
        request("b", 2, share(0, mode=Mode.MIG, at="@0"), resource="aliyun.com/gpu-mem"),
    ):
        assert first.specification != other.specification


def test_two_that_were_mistaken_are_exchanged() -> None:
    one, two = request("one", 1, share(0), since=1), request("two", 1, share(1), since=2)
    got = reconcile([one, two], [kubelet_allocation("two", "1")], [answer(one, "1")])
    assert got == Reconciled(
        corrections=(Correction(request=one, shares=(share(1),)), Correction(request=two, shares=(share(0),)))
    )


def test_who_holds_its_own_keeps_it() -> None:
    one, two = request("one", 1, share(0)), request("two", 1, share(1))
    assert reconcile(
        [one, two],
        [kubelet_allocation("one", "1"), kubelet_allocation("two", "2")],
        [answer(one, "1"), answer(two, "2")],
    ) == (Reconciled())
    assert reconcile([one, two], [kubelet_allocation("one", "1"), kubelet_allocation("x", "2")], []) == Reconciled()


def test_a_holder_without_answer_is_never_moved() -> None:
    one, two, three = (request(name, 1, share(gpu)) for gpu, name in enumerate(["one", "two", "three"]))
    got = reconcile(
        [one, two, three], [kubelet_allocation("one", "1"), kubelet_allocation("two", "2")], [answer(three, "2")]
    )
    assert {each.request.key.pod: each.shares[0].gpu for each in got.corrections} == {"two": 2, "three": 1}


def test_what_cannot_be_exchanged() -> None:
    small, large = request("small", 1, share(0)), request("large", 1, share(1, 4096))
    got = reconcile([small, large], [kubelet_allocation("small", "1")], [answer(large, "1")])
    assert got.corrections == ()
    assert [(key.pod, "differ in size or kind" in reason) for key, reason in got.refused] == [("small", True)]
    assert got.mistaken == {small.key}
    gone = request("gone", 1, share(7))
    got = reconcile([small], [kubelet_allocation("small", "1")], [answer(gone, "1")])
    assert [(key.pod, "no other pod is assigned those now" in reason) for key, reason in got.refused] == [
        ("small", True)
    ]
    assert got.mistaken == frozenset(), "another exchange may help"


@given(st.data())
def test_laws_of_matching(data: st.DataObject) -> None:
    """The kubelet admits pods in any order; whatever is guessed, the ledger says in the end what it did."""
    kinds = data.draw(st.lists(st.sampled_from([(1, 1024), (2, 2048), (2, 512)]), min_size=1, max_size=8))
    requests = [
        request(f"p{number}", units, share(data.draw(st.integers(0, 2)), memory_mib), since=number)
        for number, (units, memory_mib) in enumerate(kinds)
    ]
    admitted = data.draw(st.permutations(requests))[: data.draw(st.integers(0, len(requests)))]
    record: list[KubeletAllocation] = []
    answers: list[Answer] = []
    for number, pod in enumerate(admitted):
        meant = pick(requests, RESOURCE, pod.units, served(requests, record, answers))
        assert meant.units == pod.units
        assert meant.key not in {each.key for each in record}, "nobody is served twice"
        ids = [f"{number}-{unit}" for unit in range(pod.units)]
        answers.append(answer(meant, *ids))
        record.append(kubelet_allocation(pod.key.pod, *ids))
        got = reconcile(requests, record, answers)
        refused = {key for key, _ in got.refused}
        assert all(frozenset(each.device_ids) in {a.ids for a in answers} for each in record)
        changed = {each.request.key: each.shares for each in got.corrections}
        after = [msgspec.structs.replace(each, shares=changed.get(each.key, each.shares)) for each in requests]
        for before, now in zip(requests, after, strict=True):
            assert before.specification == now.specification, "only equal specifications are exchanged"
        assert Counter(each.shares for each in requests) == Counter(each.shares for each in after), (
            "nothing is allocated twice"
        )
        given = {frozenset(each.device_ids): each.key for each in record}
        for each in answers:
            own = next(now for now in after if now.key == given[each.ids])
            if own.key not in refused:
                assert own.shares == each.shares, "the ledger is what the kubelet did"
            else:
                assert own.specification != each.specification or len(set(kinds)) > 1
        requests = after
        if refused:
            return
        assert reconcile(requests, record, answers) == Reconciled(), "the second time nothing is left to do"


@given(st.lists(st.integers(0, 3), min_size=2, max_size=7), st.randoms(use_true_random=False))
def test_among_equal_dues_nothing_is_ever_refused(gpus: list[int], rng: random.Random) -> None:
    requests = [request(f"p{number}", 1, share(gpu), since=number) for number, gpu in enumerate(gpus)]
    order = list(range(len(requests)))
    rng.shuffle(order)
    record: list[KubeletAllocation] = []
    answers: list[Answer] = []
    for number in order:
        meant = pick(requests, RESOURCE, 1, served(requests, record, answers))
        answers.append(answer(meant, str(number)))
        record.append(kubelet_allocation(f"p{number}", str(number)))
        got = reconcile(requests, record, answers)
        assert got.refused == ()
        changed = {each.request.key: each.shares for each in got.corrections}
        requests = [msgspec.structs.replace(each, shares=changed.get(each.key, each.shares)) for each in requests]
    given_by_pod = {f"p{number}": each.shares for number, each in zip(order, answers, strict=True)}
    assert {each.key.pod: each.shares for each in requests} == given_by_pod


def test_which_assigned_gpu_is_not_there() -> None:
    there = Inventory(gpus=(facts(0), msgspec.structs.replace(facts(1), lost=True)))
    gone = "it is assigned GPU 2, which is not on this node any more"
    lost = "it is assigned GPU 1, a GPU that the driver has lost"
    for gpus, want in (((0,), ""), ((0, 1), lost), ((2, 1), gone), ((), "")):
        each = msgspec.structs.replace(OLD, shares=tuple(share(gpu, 1024) for gpu in gpus))
        assert absent(each, there) == want


MIG = msgspec.structs.replace(share(0, 9000, Mode.MIG), profile="2g.10gb", start=0)
# Keyed by a sentence: the models that the pod accepts, its MiB, its shares, and why a GPU does not match.
MISMATCHES: dict[str, tuple[tuple[str, ...], int, tuple[Share, ...], str]] = {
    "any model, enough memory": ((), 15360, (share(0, 15360),), ""),
    "one of its models": (("L4", "T4"), 1, (share(0, 1),), ""),
    "another model": (("L4", "A10"), 1, (share(0, 1),), "it is assigned GPU 0, which is T4 and not L4 or A10"),
    "less memory": ((), 15361, (share(0, 1),), "it is assigned GPU 0, which has 15360 MiB and not 15361"),
    "an instance, whose memory is its profile's": ((), 20000, (MIG,), ""),
    "a GPU that is lost or gone, which is said elsewhere": (("L4",), 1, (share(1, 1), share(2, 1)), ""),
    "the second GPU": (("L4",), 1, (share(1, 1), share(0, 1)), "it is assigned GPU 0, which is T4 and not L4"),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_why_an_assigned_gpu_is_not_what_the_pod_requested(case: str) -> None:
    models, memory_mib, shares, want = MISMATCHES[case]
    there = Inventory(gpus=(facts(0, "T4"), msgspec.structs.replace(facts(1, "T4"), lost=True)))
    asked = msgspec.structs.replace(OLD, models=models, memory_mib=memory_mib, shares=shares)
    assert mismatch(asked, there) == want
