"""Who may be allocated a device, and start with it, by what is seen of the pods."""

from collections.abc import Iterable

import msgspec
import pytest

from tessera.core.deviceplugin.allocations.agentallocations import (
    AgentAllocation,
    AllocatedDevice,
    Exclusivity,
    uses_of_devices,
)
from tessera.core.deviceplugin.allocations.gateobservation import GateObservation, GatePod
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.allocations.lastgate import (
    admit,
    devices_of_orphans,
    former_entries,
    holders,
    later_holders,
    possible_users,
    release,
    start,
    weaker_device,
    weaker_use,
    without_presumed,
    without_unassigned,
)
from tessera.core.deviceplugin.offers.advertise import PluginDevice
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.sharing import Mode
from tessera.core.workload.need import Isolation

GPU, OTHER = "GPU-0", "GPU-1"
NAMED, UNITS = "nvidia.com/gpu", "tessera.dev/gpu-memory"


def whole(*gpus: str) -> tuple[AllocatedDevice, ...]:
    return tuple(AllocatedDevice(device=DeviceId(gpu)) for gpu in gpus)


def amount(memory_mib: int) -> tuple[AllocatedDevice, ...]:
    return (AllocatedDevice(device=DeviceId(GPU), exclusivity=Exclusivity.MEMORY, memory_mib=memory_mib),)


def entry(
    pod: str, ids: str, uses: tuple[AllocatedDevice, ...] = (), container: str = "main", resource: str = NAMED
) -> AgentAllocation:
    """Return an entry; without a pod the answer to `Allocate`."""
    answered = AgentAllocation(resource=resource, ids=tuple(ids), uses=uses or whole(GPU))
    return msgspec.structs.replace(answered, uid=pod, pod=f"ns/{pod}", container=container) if pod else answered


def shown(*containers: str, resource: str = NAMED, ended: bool = False, ending: bool = False) -> GatePod:
    """Return a pod whose containers ask for one resource; of these `init` ends before the others start."""
    requests = frozenset((each, resource) for each in containers or ("main",))
    lasting = frozenset(containers or ("main",)) - {"init"}
    return GatePod(
        name="ns/a", requests=requests, lasting=lasting, order=containers or ("main",), ended=ended, ending=ending
    )


def recorded(pod: str, ids: str, container: str = "main", resource: str = NAMED) -> KubeletAllocation:
    return KubeletAllocation(uid=pod, container=container, resource=resource, device_ids=tuple(ids))


def observation(
    pods: dict[str, GatePod] | None = None, *record: KubeletAllocation, running: str = "", blind: bool = False
) -> GateObservation:
    return GateObservation(pods=pods or {}, recorded=record, running=frozenset(running), blind=blind)


A = {"a": shown()}
ENDING = {"a": shown(ending=True)}
ENDED = {"a": shown(ended=True, ending=True)}
PREPARING = {"a": shown("init", "main")}

# sentence: what is seen of pod `a`, which has the device; whether Allocate is refused it, and whether a start is
HELD: dict[str, tuple[GateObservation, bool, bool]] = {
    "it runs": (observation(A, recorded("a", "x"), running="a"), True, True),
    "the kubelet has forgotten it while it runs": (observation(A, running="a"), True, True),
    "it was admitted, and has no process yet": (observation(A, recorded("a", "x")), True, True),
    "it is being deleted, and runs": (observation(ENDING, recorded("a", "x"), running="a"), False, True),
    "it was deleted by force, and a process is left": (observation({}, running="a"), False, True),
    "it has ended, and the kubelet's record is old": (observation(ENDED, recorded("a", "x")), False, False),
    "it has ended, and a process is left": (observation(ENDED, running="a"), False, True),
    "it is gone": (observation(), False, False),
    "the kubelet let go of it, and the API server is late": (observation(A), False, False),
    "the same, where no processes can be seen": (observation(A, blind=True), True, True),
    "it is gone, where no processes can be seen": (observation(blind=True), False, False),
    "its other container is being allocated for": (observation(PREPARING, recorded("a", "x", "init")), False, True),
    "its other container is being allocated for, and an earlier pod of the same ids is served": (
        observation({**PREPARING, "0": shown()}, recorded("a", "x", "init"), recorded("0", "x")),
        True,
        True,
    ),
    "the same with a later pod": (
        observation({**PREPARING, "z": shown()}, recorded("a", "x", "init"), recorded("z", "x")),
        True,
        True,
    ),
    "the same, and for that one only units are allocated so far": (
        observation(PREPARING, recorded("a", "x", "init"), recorded("a", "u", resource=UNITS)),
        False,
        True,
    ),
    "its other container, with units, is being allocated for": (
        observation(
            {"a": msgspec.structs.replace(shown(), requests=frozenset({("main", NAMED), ("b", UNITS)}))},
            recorded("a", "x"),
        ),
        True,
        True,
    ),
    "it runs, and PodResources, asked for want of a checkpoint, leaves its init container out": (
        observation(PREPARING, recorded("a", "x"), running="a"),
        True,
        True,
    ),
}


# sentence: pod `a` runs with 12 GiB by units x and y. By the kubelet's record it has these; what `Allocate` names,
# whose assignment it answers with, its memory in GiB if it names the devices; whether it is refused, on 15 GiB
LOST_UNITS: dict[str, tuple[tuple[KubeletAllocation, ...], str, str, int, bool]] = {
    "they are lost, and its init container is admitted again with some": ((), "yz", "a", 12, False),
    "they are lost, and its init container is admitted again by CDI": ((), "yz", "a", 0, False),
    "they are lost, and another is admitted that fits beside it": ((), "xy", "b", 3, False),
    "they are lost, and another is admitted that does not fit": ((), "z", "b", 4, True),
    "the kubelet has them, and gives one to another": ((recorded("a", "xy", resource=UNITS),), "yz", "b", 3, True),
    "the kubelet has admitted it again, with others": ((recorded("a", "vw", resource=UNITS),), "yz", "b", 3, False),
    "the kubelet has those of its init container alone": ((recorded("a", "v", "init", UNITS),), "yz", "b", 3, False),
}


@pytest.mark.parametrize("case", LOST_UNITS)
def test_lost_units_of_a_container_that_runs_are_memory_alone(case: str) -> None:
    has, ids, pod, gib, refused = LOST_UNITS[case]
    pods = {"a": shown("init", "main", resource=UNITS), "b": shown(resource=UNITS)}
    held = entry("a", "xy", amount(12 << 10), resource=UNITS)
    answer = msgspec.structs.replace(entry("", ids, resource=UNITS), uses=amount(gib << 10) if gib else ())
    container, order = ("init", 0) if pod == "a" else ("main", -1)
    meant = AgentAllocation(
        resource=UNITS, ids=(), uid=pod, pod=f"ns/{pod}", container=container, initial=pod == "a", order=order
    )
    held = msgspec.structs.replace(held, order=1)
    verdict = admit((held,), answer, observation(pods, *has, running="a"), {DeviceId(GPU): 15 << 10}, meant)
    assert (verdict.refused is not None) is refused
    assert verdict.record == ((held,) if refused else (held, answer))
    if verdict.refused is None:  # and if it is the other's in fact, it does not start
        other = entry("b", ids, amount(12 << 10), resource=UNITS)
        seen = observation(pods, recorded("b", ids, resource=UNITS), running="a")
        assert start(verdict.record, other, seen, {DeviceId(GPU): 15 << 10}, ids=False).refused is not None


@pytest.mark.parametrize("case", HELD)
def test_who_has_a_device_is_in_the_way_as_long_as_it_may_use_it(case: str) -> None:
    evidence, allocate, starts = HELD[case]
    record = (entry("a", "x"),)
    verdict = admit(record, entry("", "x"), evidence, {})
    assert (verdict.refused is not None) is allocate
    assert record[0] in verdict.record, "it stays on record until it has ended"
    verdict = start(record, entry("b", "x"), evidence, {}, ids=True)
    assert (verdict.refused is not None) is starts
    assert verdict.wait is (starts and evidence.ending("a"))
    assert {each.uid for each in verdict.record} == ({"a"} if starts else {"b"})


def test_memory_that_nobody_has_so_much_of_is_refused() -> None:
    new = entry("", "x", amount(16), resource=UNITS)
    refused = admit((), new, observation(), {DeviceId(GPU): 15}).refused
    assert refused is not None
    assert (refused.other, refused.full) == (None, True)


def test_a_start_for_which_there_is_too_little_memory_waits_for_one_that_ends() -> None:
    record = tuple(entry(pod, pod, amount(5), resource=UNITS) for pod in "ab")
    pods = {"a": shown(resource=UNITS, ending=True), "b": shown(resource=UNITS)}
    seen = observation(pods, *(recorded(pod, pod, resource=UNITS) for pod in "ab"), running="ab")
    verdict = start(record, entry("c", "c", amount(6), resource=UNITS), seen, {DeviceId(GPU): 15}, ids=False)
    assert verdict.refused is not None
    assert verdict.wait


# sentence: what is seen once `Allocate` was answered for a device, and whether it is refused to the next
ANSWERED: dict[str, tuple[GateObservation, bool]] = {
    "a pod has it": (observation(A, recorded("a", "x")), True),
    "nobody has it": (observation(A), False),
    "a pod has it that has ended": (observation(ENDED, recorded("a", "x")), False),
    "a pod has it that is not shown": (observation({}, recorded("a", "x")), False),
}


@pytest.mark.parametrize("case", ANSWERED)
def test_an_answer_to_allocate_counts_when_a_pod_has_it(case: str) -> None:
    evidence, refused = ANSWERED[case]
    verdict = admit((entry("", "x"),), entry("", "x"), evidence, {})
    assert (verdict.refused is not None) is refused
    verdict = start((entry("", "x"),), entry("b", "y"), evidence, {}, ids=True)
    assert (verdict.refused is not None) is refused
    assert [each.uid for each in verdict.record] == (["a"] if refused else ["b"]), "it is known whose it is"


def test_an_answer_stays_recorded_while_others_are_given() -> None:
    """The kubelet calls `Allocate` for several pods before it shows one: none of their devices is free meanwhile."""
    first, second = entry("", "x", whole(GPU)), entry("", "y", whole(OTHER))
    admitted = admit((first,), second, observation(), {}).record
    assert set(admitted) == {first, second}
    third = entry("", "z", whole(GPU))
    assert set(admit(admitted, third, observation(), {}).record) == {second, third}, "the first device came back"


@pytest.mark.parametrize(("first", "then"), [("x", "xy"), ("xy", "x"), ("x", "x")])
def test_an_init_container_and_the_next_are_allocated_and_start_in_turn(first: str, then: str) -> None:
    gpus = {"x": whole(GPU), "xy": whole(GPU, OTHER)}
    record = admit((), entry("", first, gpus[first]), observation(), {}).record
    during = observation(PREPARING, recorded("a", first, "init"))
    verdict = admit(record, entry("", then, gpus[then]), during, {})
    assert verdict.refused is None
    after = observation(PREPARING, recorded("a", first, "init"), recorded("a", then))
    record = verdict.record
    for container, ids in (("init", first), ("main", then)):
        verdict = start(record, entry("a", ids, gpus[ids], container), after, {}, ids=True)
        assert verdict.refused is None
        record = verdict.record
    assert {each.uid for each in record} == {"a"}
    other = observation({**PREPARING, "b": shown()}, *after.recorded, recorded("b", "x"), running="a")
    assert start(record, entry("b", "x"), other, {}, ids=True).refused is not None


def units(
    pod: str, ids: str, memory_mib: int, container: str = "main", *, initial: bool = False, at: int = 0
) -> AgentAllocation:
    made = entry(pod, ids, amount(memory_mib), container, UNITS)
    return msgspec.structs.replace(made, initial=initial, at_ns=at)


def most_beside(record: Iterable[AgentAllocation], evidence: GateObservation) -> int:
    """Return the most memory that another pod may start with on a GPU of 15 GiB, in GiB."""
    capacity = {DeviceId(GPU): 15}
    fits = (
        start(tuple(record), units("z", "z", mib), evidence, capacity, ids=False).refused is None for mib in range(16)
    )
    return sum(fits) - 1


LIVES = observation({"a": shown("init", "main", resource=UNITS)}, recorded("a", "wxyz", resource=UNITS), running="a")

# sentence: what a pod's containers were allocated, and what is left of 15 GiB
LEFT: dict[str, tuple[list[AgentAllocation], int]] = {
    "one container": ([units("a", "x", 8)], 7),
    "an init container that had as much before": ([units("a", "x", 8, "init", initial=True), units("a", "xy", 8)], 7),
    "an init container that had more": ([units("a", "xy", 10, "init", initial=True), units("a", "x", 4)], 5),
    "two containers": ([units("a", "x", 8), units("a", "y", 4, "second")], 3),
    "two and an init container": (
        [units("a", "x", 4), units("a", "y", 4, "second"), units("a", "x", 9, "init", initial=True)],
        6,
    ),
    "what an init container has runs as another's, which is answered anew": (
        [units("a", "x", 8), units("a", "y", 6)],
        7,
    ),
    "the new answer is larger": ([units("a", "x", 6), units("a", "y", 8)], 7),
    "a container beside one that is answered anew": (
        [units("a", "x", 5, "first", at=1), units("a", "y", 5), units("a", "z", 4, "first", at=3)],
        5,
    ),
    "an init container, and the next is being allocated for": (
        [units("a", "x", 8, "init", initial=True), units("", "xy", 8)],
        7,
    ),
}


@pytest.mark.parametrize("case", LEFT)
def test_a_pod_uses_the_most_that_its_containers_use_at_once(case: str) -> None:
    record, left = LEFT[case]
    assert most_beside(record, LIVES) == left


def test_memory_of_pods_that_have_ended_is_free_whoever_came_last() -> None:
    record = (units("gone", "x", 10, at=1), units("a", "y", 4, at=2))
    assert most_beside(record, LIVES) == 11


def test_a_pod_that_asks_more_than_there_is_is_in_its_own_way() -> None:
    verdict = start((), units("a", "x", 16), LIVES, {DeviceId(GPU): 15}, ids=False)
    assert verdict.refused is not None
    assert (verdict.refused.other, verdict.wait) == (None, False)


def test_who_holds_ids_lasts_and_lives() -> None:
    pods = {"a": shown("init", "main"), "b": shown(ended=True)}
    record = (
        recorded("a", "x", "init"),
        recorded("a", "x"),
        recorded("b", "x"),
        recorded("c", "x"),
        recorded("a", "y"),
    )
    found = holders(NAMED, ("x",), observation(pods, *record))
    assert [(each.container, each.initial, each.order) for each in found] == [("main", False, 1), ("init", True, 0)]


# sentence: pods with the same ids, the record as pods and times, when pods were made, and who must go
CONTESTED: dict[str, tuple[str, dict[str, int], dict[str, int], list[str]]] = {
    "nobody has them": ("", {}, {}, []),
    "one pod alone, with two containers": ("aa", {}, {}, []),
    "none is recorded, and the younger goes": ("ab", {}, {"a": 2, "b": 1}, ["a"]),
    "both are as old": ("ba", {}, {"a": 1, "b": 1}, ["b"]),
    "the recorded one stays, however young": ("ab", {"a": 9}, {"a": 2, "b": 1}, ["b"]),
    "of two recorded ones the first stays": ("ab", {"a": 9, "b": 8}, {"a": 1, "b": 2}, ["a"]),
    "of three pods one stays": ("abc", {"c": 5}, {"a": 2, "b": 1}, ["b", "a"]),
}


@pytest.mark.parametrize("case", CONTESTED)
def test_of_pods_with_the_same_ids_the_later_ones_go(case: str) -> None:
    pods, record, created, want = CONTESTED[case]
    found = [entry(pod, "x", container=f"c{i}") for i, pod in enumerate(pods)]
    known = [msgspec.structs.replace(each, at_ns=record[each.uid]) for each in found if each.uid in record]
    got = later_holders(found, known, created)
    assert [later.uid for later, _ in got] == want
    assert all(clash.text == f"device x of {NAMED}" for _, clash in got)
    assert {clash.other and clash.other.uid for _, clash in got} <= set(pods) - set(want)


# sentence: what is seen of pod `a`, and whether its entry is let go of
LET_GO = {
    "it lives": (observation(A), False),
    "it has ended": (observation(ENDED), True),
    "it has ended, and a process is left": (observation(ENDED, running="a"), False),
    "it is gone": (observation(), True),
    "it is not shown, and no processes can be seen": (observation(blind=True), False),
    "it has ended, and no processes can be seen": (observation(ENDED, blind=True), True),
}


@pytest.mark.parametrize("case", LET_GO)
def test_what_a_pod_had_is_let_go_of_when_it_cannot_use_it_any_more(case: str) -> None:
    evidence, gone = LET_GO[case]
    answered = entry("", "y")
    assert release((entry("a", "x"), answered), evidence) == ((answered,) if gone else (entry("a", "x"), answered))


def test_who_sees_no_processes_lets_go_of_what_the_api_server_has_not_got_any_more() -> None:
    assert release((entry("a", "x"),), observation(blind=True), all_listed=True) == ()
    assert release((entry("a", "x"),), observation(A, blind=True), all_listed=True) == (entry("a", "x"),)


def test_of_a_pod_s_containers_the_last_that_starts_knows_what_all_are_assigned() -> None:
    def by(text: str, pod: str, container: str) -> AgentAllocation:
        own = entry(pod, container, amount(1), container=container, resource=UNITS)
        return msgspec.structs.replace(own, assignment=text, key=f"of {text}" if text else "")

    other, named = by("theirs", "q", "a"), entry("p", "x", whole(OTHER))
    record = (by("one", "p", "a"), other, named)
    pods = {name: shown("a", "b", resource=UNITS) for name in "pq"}
    verdict = start(record, by("two", "p", "b"), observation(pods), {}, ids=False)
    texts = {(each.uid, each.container): (each.assignment, each.key) for each in verdict.record}
    both = ("two", "of two")
    assert texts == {("p", "a"): both, ("p", "b"): both, ("q", "a"): ("theirs", "of theirs"), ("p", "main"): ("", "")}
    verdict = start(record, by("", "p", "b"), observation(pods), {}, ids=False)
    assert {each.assignment for each in verdict.record if each.container == "a"} == {"one", "theirs"}


# Keyed by a sentence: an entry, and whether it is counted beside what pods of the same units are not assigned.
UNASSIGNED: dict[str, tuple[AgentAllocation, bool]] = {
    "the answer to `Allocate`, of no pod yet": (entry("", "x"), False),
    "what a pod without an assignment would use": (entry("a", "x"), False),
    "the same, of a pod that is assigned something": (entry("b", "x"), True),
    "what is presumed of that": (msgspec.structs.replace(entry("b", "x"), presumed=True), False),
    "what a container was started with": (msgspec.structs.replace(entry("a", "x"), started=True), True),
    "other units": (entry("a", "y"), True),
    "another resource": (entry("a", "x", resource=UNITS), True),
}


@pytest.mark.parametrize("case", UNASSIGNED)
def test_what_pods_without_an_assignment_would_use_does_not_count(case: str) -> None:
    given, want = UNASSIGNED[case]
    found = without_unassigned((given,), NAMED, ("x",), {"ns/a"})
    assert found == (given if want else msgspec.structs.replace(given, uses=()),)


def test_devices_of_one_pod_that_only_its_processes_use_are_closed_and_parts_are_not() -> None:
    shared = (AllocatedDevice(device=DeviceId("GPU-2"), exclusivity=Exclusivity.REPLICA), *amount(1))
    record = (entry("a", "x", whole(OTHER, GPU)), entry("b", "y", whole("GPU-3")), entry("a", "z", shared))
    found = devices_of_orphans(record, {"a"})
    assert [each.device for each in found] == [DeviceId(GPU), DeviceId(OTHER)]
    assert {each.reason for each in found} == {f"pod {record[0].pod} is deleted, and its processes still use it"}
    assert devices_of_orphans(record, ()) == ()


@pytest.mark.parametrize("requested", Isolation)
@pytest.mark.parametrize("mode", Mode)
def test_a_device_is_weaker_where_its_mode_enforces_less(mode: Mode, requested: Isolation) -> None:
    device = PluginDevice(id="a", gpu_uuid="GPU-0", uuid="GPU-0", mode=mode)
    found = weaker_device(requested, [device])
    assert found is (None if mode.isolation.covers(requested) else device)


def test_of_several_devices_one_that_is_weaker_is_enough() -> None:
    whole, sliced = (
        PluginDevice(id=mode, gpu_uuid="GPU-0", uuid="GPU-0", mode=mode) for mode in (Mode.WHOLE, Mode.TIME_SLICING)
    )
    assert weaker_device(Isolation.HARDWARE, [whole, sliced]) is sliced
    assert weaker_device(Isolation.HARDWARE, []) is None


@pytest.mark.parametrize("offered", [True, False])
@pytest.mark.parametrize("requested", Isolation)
@pytest.mark.parametrize("mode", Mode)
def test_a_recorded_use_isolates_as_the_mode_that_it_was_allocated_as(
    mode: Mode, requested: Isolation, *, offered: bool
) -> None:
    name = "a" if mode in {Mode.WHOLE, Mode.MIG} else "a::0"
    uses = uses_of_devices([PluginDevice(id=name, gpu_uuid="GPU-0", uuid="GPU-0", mode=mode)])
    found = weaker_use(requested, uses, offered=offered)
    assert found is (None if mode.isolation.covers(requested) else uses[0])


@pytest.mark.parametrize("exclusivity", [Exclusivity.REPLICA, Exclusivity.MEMORY])
def test_an_unknown_use_is_the_weakest_unless_its_devices_are_offered(exclusivity: Exclusivity) -> None:
    use = AllocatedDevice(device=DeviceId(GPU), exclusivity=exclusivity)
    assert use.isolation is None
    for requested in (Isolation.HARDWARE, Isolation.DRIVER):
        assert weaker_use(requested, [use], offered=False) is use
        assert weaker_use(requested, [use], offered=True) is None
    assert weaker_use(Isolation.NONE, [use], offered=False) is None
    assert weaker_use(Isolation.HARDWARE, [], offered=False) is None


# sentence: (whether `a` moved, when `a` was put where the new one is, what is seen of it, whether it is in the way)
MOVED: dict[str, tuple[bool, int, GateObservation, bool]] = {
    "it moved into the way, and does not run": (True, 9, observation(A, recorded("a", "x")), False),
    "it moved into the way, and has a process": (True, 9, observation(A, recorded("a", "x"), running="a"), True),
    "it moved into the way, and no processes can be seen": (True, 9, observation(A, blind=True), True),
    "it moved before the other came": (True, 1, observation(A, recorded("a", "x")), True),
    "it is later, and did not move": (False, 9, observation(A, recorded("a", "x")), True),
}


@pytest.mark.parametrize("case", MOVED)
def test_a_container_that_moved_into_the_way_of_an_earlier_one_gives_way_unless_it_runs(case: str) -> None:
    moved, at_ns, seen, blocks = MOVED[case]
    other = msgspec.structs.replace(entry("a", "x"), at_ns=at_ns)
    new = msgspec.structs.replace(entry("b", "y"), at_ns=5)
    keys = {other.container_key} if moved else set()
    verdict = start((other,), new, seen, {}, ids=True, moved=keys)
    assert (verdict.refused is not None) is blocks
    assert other in verdict.record


def test_what_a_container_had_is_former_when_the_kubelet_has_allocated_it_other_ids() -> None:
    record = (entry("a", "01"), entry("b", "2"), entry("c", "3"), entry("", "4"), entry("a", "5", container="side"))
    ids = {("a", "main", NAMED): ("4",), ("b", "main", NAMED): ("2",), ("a", "side", UNITS): ("6",)}
    assert former_entries(record, ids) == {record[0]}


def test_what_a_container_had_is_former_when_the_kubelets_record_lacks_it_whether_it_started_or_not() -> None:
    waiting = entry("b", "2")
    started = msgspec.structs.replace(entry("a", "1"), started=True)
    kept = msgspec.structs.replace(entry("c", "3"), started=True)
    lost = {("a", "main", NAMED), ("b", "main", NAMED)}
    assert former_entries((waiting, started, kept), {}, lost) == {waiting, started}


def test_an_answer_that_was_for_another_pod_uses_nothing_unless_its_container_runs() -> None:
    ids, use = ("GPU-0-_-0",), AllocatedDevice(device=DeviceId("GPU-0"))
    guess = AgentAllocation(resource="tessera.dev/gpu-memory", ids=ids, uses=(use,), presumed=True)
    others = (
        msgspec.structs.replace(guess, ids=("GPU-0-_-1",)),
        msgspec.structs.replace(guess, resource="aliyun.com/gpu-mem"),
        msgspec.structs.replace(guess, presumed=False, uid="a"),
        msgspec.structs.replace(guess, started=True, uid="b"),
    )
    void, *kept = without_presumed((guess, *others), guess.resource, ids)
    assert void == msgspec.structs.replace(guess, uses=(), presumed=False)
    assert tuple(kept) == others


# sentence: a container of pod `a`, one that is about to start; which containers use what is recorded, if they run
USERS: dict[str, tuple[str, str, str, set[str]]] = {
    "what a lasting one has, its init container may use": ("a", "main", "", {"main", "init"}),
    "what an init container has, it alone uses": ("a", "init", "", {"init"}),
    "one that is about to start does not run": ("a", "main", "main", set()),
    "another that is about to start says nothing": ("a", "main", "init", {"main", "init"}),
    "of a pod that is gone the container is known": ("gone", "main", "", {"main"}),
}


@pytest.mark.parametrize("case", USERS)
def test_who_may_use_what_is_recorded(case: str) -> None:
    pod, container, starting, want = USERS[case]
    held = entry(pod, "x", container=container)
    found = possible_users([held], PREPARING, entry("a", "y", container=starting) if starting else None)
    assert found == {held: {(pod, name) for name in want}}
