"""Which requests a restarted kubelet may still make, and which it lost and never makes."""

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import pytest

from builders.assignedrequests import RESOURCE, kubelet_allocation, request
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation, RequestKey
from tessera.core.deviceplugin.allocations.matching import AssignedRequest, unserved
from tessera.core.deviceplugin.allocations.readmission import (
    admits_again,
    by_processes,
    continued,
    forgotten,
    passed_over,
)
from tessera.errors import Conflict

OLD, NEW = request("old", 2, since=1), request("new", 2, since=2)


class Life(NamedTuple):
    """A pod when a kubelet starts without its record."""

    containers: tuple[str, ...]
    phase: str
    runs: str = ""
    """Its container that runs."""
    created: bool = True


LIVES = {
    "waits": Life(("main",), "Pending", created=False),
    "runs": Life(("main",), "Running", "main"),
    "crashed": Life(("main",), "Running"),
    "waits to begin": Life(("init", "main"), "Pending", created=False),
    "init runs": Life(("init", "main"), "Pending", "init"),
    "init runs in a new sandbox": Life(("init", "main"), "Running", "init"),
    "runs after init": Life(("init", "main"), "Running", "main"),
    "crashed after init": Life(("init", "main"), "Running"),
    "another waits for its image": Life(("main", "side"), "Pending", "main"),
}


@pytest.mark.parametrize("oldest", LIVES)
def test_a_kubelet_without_its_record_is_answered_with_what_it_asks_for(oldest: str) -> None:
    """It admits the oldest pod first, and allocates nothing for containers that run; then it admits another pod."""
    for others in itertools.product(LIVES, repeat=2):
        admit_again(oldest, *others)


def admit_again(*names: str) -> None:
    lives = {**{f"p{3 - place}": LIVES[name] for place, name in enumerate(names)}, "p0": LIVES["waits to begin"]}
    requests = [each for place, (pod, life) in enumerate(lives.items()) for each in requests_of(pod, life, place)]
    created = {pod for pod, life in lives.items() if life.created}
    running = {(pod, life.runs) for pod, life in lives.items()}
    allocated = list[KubeletAllocation]()
    for due in requests:
        if (due.uid, due.key.container) in running:
            continue
        found = answered_request(requests, allocated, created, running)
        of_no_use = due.initial and (due.uid, "main") in running
        assert found.key == due.key or of_no_use, names
        allocated.append(allocation_of(due))
    requests += (new := requests_of("new", LIVES["waits to begin"], 9))
    for due in new:  # all others have ended
        assert answered_request(requests, allocated, created, set()).key == due.key, names
        allocated.append(allocation_of(due))


def requests_of(pod: str, life: Life, since: int) -> list[AssignedRequest]:
    made, running = request(pod, 2, since=since), life.phase == "Running"
    keys = {name: RequestKey(made.key.namespace, pod, name, made.key.resource) for name in life.containers}
    return [
        msgspec.structs.replace(made, key=key, uid=pod, running=running, initial=name == "init")
        for name, key in keys.items()
    ]


def allocation_of(due: AssignedRequest) -> KubeletAllocation:
    return msgspec.structs.replace(kubelet_allocation(due.key.pod, due.uid), container=due.key.container)


def answered_request(
    requests: Sequence[AssignedRequest],
    allocated: Sequence[KubeletAllocation],
    created: set[str],
    running: set[tuple[str, str]],
) -> AssignedRequest:
    """Return the request that an agent answers: those that run by their pod's phase count where no others wait."""
    lost = forgotten(requests, allocated, created)
    for again in (False, True):
        every, unlikely = by_processes(requests, lost, running, allocated, again=again)
        with contextlib.suppress(Conflict):
            return unserved(every, (RESOURCE, 2), allocated, (), unlikely)
    pytest.fail("no request is left")


# sentence: (how the older pod differs, what is on record, the pod whose container runs, the pod that is chosen)
LOST: dict[str, tuple[dict[str, Any], list[str], str, str]] = {
    "the older one, which crashed": ({}, [], "", "old"),
    "the newer one where the older runs": ({}, [], "old", "new"),
    "the newer one where the older may have ended": ({"ends": True}, [], "", "new"),
    "the newer one after the kubelet has come past the older": ({}, ["newest"], "", "new"),
    "the newer one after the kubelet has come past the older, which was bound last": (
        {"since_ns": 99},
        ["newest"],
        "",
        "new",
    ),
    "the newer one where no container of the older was lost": ({}, ["old"], "", "new"),
    "the older one, which may have ended, where the other has its own": ({"ends": True}, ["new"], "", "old"),
    "the newer one where the other runs": ({"ends": True}, ["newest"], "old", "new"),
}


@pytest.mark.parametrize("created", [True, False], ids=["a container was created", "its status says nothing"])
@pytest.mark.parametrize("case", LOST)
def test_who_is_answered_where_a_pod_runs_by_its_phase(case: str, *, created: bool) -> None:
    changes, recorded, runs, want = LOST[case]
    old = msgspec.structs.replace(OLD, uid="old", running=True, **changes)
    requests = [old, msgspec.structs.replace(NEW, uid="new"), request("newest", 3, since=9)]
    allocated = [kubelet_allocation(pod, f"{pod}-1") for pod in recorded]
    found = answered_request(requests, allocated, {"old"} if created else set(), {(runs, "main")})
    assert found.key.pod == want


def test_nothing_is_forgotten_of_a_pod_all_of_which_the_kubelet_has() -> None:
    old = msgspec.structs.replace(OLD, uid="old")
    assert forgotten([old], [kubelet_allocation("old", "x")], {"old"}) == ()
    assert forgotten([old], [], {"old"}) == (old,)


def test_what_runs_is_answered_last() -> None:
    """Where the pod of each that waits runs by its phase, one whose container has ended is admitted again."""
    old, new = (msgspec.structs.replace(each, uid=each.key.pod, running=True, ends=True) for each in (OLD, NEW))
    assert answered_request([old, new], [], set(), {("old", "main")}) == msgspec.structs.replace(new, running=False)
    assert answered_request([old], [], set(), {("old", "main")}) == msgspec.structs.replace(old, running=False)


def test_an_init_container_whose_pod_runs_is_answered_last() -> None:
    """It has ended, and what it is answered is of no use."""
    old = requests_of("old", LIVES["runs after init"], 0)
    requests = [*old, *requests_of("new", LIVES["waits"], 1)]
    assert answered_request(requests, [], {"old"}, {("old", "main")}).key.pod == "new"


def test_an_init_container_is_not_awaited_after_a_container_that_starts_later() -> None:
    """It ran when the kubelet admitted its pod again, and has ended since; the other pod was created as early."""
    old, new = requests_of("a", LIVES["init runs"], 0), requests_of("b", LIVES["waits"], 0)
    assert answered_request([*old, *new], [allocation_of(old[1])], {"a"}, set()) == new[0]


@pytest.mark.parametrize("oldest", LIVES)
def test_a_kubelet_without_its_record_comes_by_creation_whenever_pods_were_bound(oldest: str) -> None:
    """A pod may have waited for a node. The order is that of binding again once nothing is lost."""
    for others in itertools.product(LIVES, repeat=2):
        for bound in itertools.permutations(range(3)):
            lives = {f"p{place}": LIVES[name] for place, name in enumerate((oldest, *others))}
            admit_bound(lives, bound)


def admit_bound(lives: dict[str, Life], bound: tuple[int, ...]) -> None:
    requests = [
        msgspec.structs.replace(each, since_ns=10 + bound[place])
        for place, (pod, life) in enumerate(lives.items())
        for each in requests_of(pod, life, place)
    ]
    created = {pod for pod, life in lives.items() if life.created}
    running = {(pod, life.runs) for pod, life in lives.items()}
    allocated = list[KubeletAllocation]()
    for due in requests:
        if (due.uid, due.key.container) not in running:
            if not forgotten(requests, allocated, created):
                return
            found = answered_request(requests, allocated, created, running)
            of_no_use = due.initial and (due.uid, "main") in running
            assert found.key == due.key or of_no_use, (lives, bound, due.key)
            allocated.append(allocation_of(due))


def test_pods_that_wait_are_answered_in_the_order_of_binding_where_the_kubelet_lost_nothing() -> None:
    waited = msgspec.structs.replace(OLD, since_ns=9)
    assert answered_request([waited, NEW], [], set(), set()).key == NEW.key
    assert answered_request([waited, NEW], [kubelet_allocation("new", "1", "2")], set(), set()).key == waited.key


@pytest.mark.parametrize(
    ("started_ns", "want"),
    [(None, False), (40 * 10**9 - 1, False), (40 * 10**9 + 1, True), (100 * 10**9, True), (100 * 10**9 + 1, False)],
    ids=["unknown", "a minute ago", "less than a minute ago", "now", "later by the clock"],
)
def test_a_kubelet_admits_pods_again_in_its_first_minute(started_ns: int | None, *, want: bool) -> None:
    assert admits_again(started_ns, 100 * 10**9) is want


@pytest.mark.parametrize("phase", [True, False], ids=["its pod runs", "its pod is pending"])
def test_a_kubelet_that_has_admitted_its_pods_asks_for_none_of_them(*, phase: bool) -> None:
    """An older pod of equal size is lost: it is answered where nobody else waits, as where the kubelet began late."""
    old = msgspec.structs.replace(OLD, uid="old", running=phase)
    requests, unlikely = passed_over([old, NEW], [old], again=False)
    assert unserved(requests, (RESOURCE, 2), [], (), unlikely) == NEW
    every = [kubelet_allocation("new", "1", "2")]
    with pytest.raises(Conflict):
        unserved(requests, (RESOURCE, 2), every, (), unlikely)
    requests, unlikely = passed_over([old, NEW], [old], again=True)
    assert unserved(requests, (RESOURCE, 2), [], (), unlikely) == NEW
    assert unserved(requests, (RESOURCE, 2), every, (), unlikely).key == OLD.key


def test_what_runs_by_its_phase_is_served_where_nothing_was_lost() -> None:
    old = msgspec.structs.replace(OLD, running=True)
    assert passed_over([old, NEW], [], again=False) == ((old, NEW), frozenset())
    assert passed_over([old], [], again=True) == ((OLD,), frozenset())


def test_who_gets_ids_of_an_init_container_is_its_pod_s_next_one() -> None:
    first, second, third = requests_of("p", Life(("init", "main", "side"), "Pending"), 5)
    other = request("q", 2, since=1)
    requests = [other, first, second, third]
    mine, units = allocation_of(first), (RESOURCE, frozenset({"p", "x"}))
    assert continued(requests, units, [mine]) == (second, third)
    assert continued(requests, units, [mine, allocation_of(second)]) == (third,)
    assert continued(requests, units, [mine, *map(allocation_of, (second, third))]) == ()
    assert continued(requests, (RESOURCE, frozenset({"x"})), [mine]) == ()
    assert continued(requests, ("another", frozenset({"p"})), [mine]) == ()
    assert continued(requests, units, [allocation_of(second)]) == (), "it lasts as long as its pod"
    running = [msgspec.structs.replace(each, running=True) for each in requests]
    assert continued(running, units, [mine]) == ()
