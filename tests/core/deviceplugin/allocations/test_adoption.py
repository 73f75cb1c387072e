"""What is recorded of containers that the agent's record lacks."""

import msgspec
import pytest

from tessera.core.deviceplugin.allocations.adoption import (
    UsesOf,
    adopted,
    in_neither_record,
    lasting_or_running,
    unknown_shares,
    with_known_uses,
    with_lost_starts,
)
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice
from tessera.core.deviceplugin.allocations.gateobservation import GatePod
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.allocations.registerednode import RegisteredNode
from tessera.core.deviceplugin.allocations.unreadableentries import uses_unknown
from tessera.core.gpu.deviceids import DeviceId

GPU, UNITS = "nvidia.com/gpu", "tessera.dev/gpu-memory"
POD = GatePod(
    name="ns/p",
    requests=frozenset({("init", GPU), ("main", GPU), ("main", "rdma/hca"), ("side", UNITS)}),
    lasting=frozenset({"main", "side"}),
    order=("init", "main", "side"),
    created=frozenset({"init", "main", "side"}),
    created_ns=5,
    started_s=20.0,
)
USES = (AllocatedDevice(device=DeviceId("GPU-0")),)


def allocated(container: str, resource: str, *ids: str) -> KubeletAllocation:
    return KubeletAllocation(
        uid="p", namespace="ns", pod="p", container=container, resource=resource, device_ids=tuple(ids)
    )


INIT, MAIN, SIDE = allocated("init", GPU), allocated("main", GPU), allocated("side", UNITS)
GOLD_POD = msgspec.structs.replace(POD, requests=frozenset({("main", "example.com/gold")}))
ELSEWHERE = msgspec.structs.replace(MAIN, uid="q")
KNOWN = AgentAllocation(resource=GPU, ids=("x",), uid="p", pod="ns/p", container="main")
# sentence: the pod, the node; what the kubelet's record has and the agent's; which it lacked before; what both lack
LACKING: dict[
    str,
    tuple[
        GatePod,
        RegisteredNode,
        tuple[KubeletAllocation, ...],
        tuple[AgentAllocation, ...],
        bool,
        list[KubeletAllocation],
    ],
] = {
    "both records are lost": (POD, RegisteredNode(), (), (), True, [MAIN, SIDE]),
    "the kubelet's record cannot be read, or has nothing": (POD, RegisteredNode(), (), (), False, [MAIN, SIDE]),
    "it has others, and cannot be read": (POD, RegisteredNode(), (ELSEWHERE,), (), False, []),
    "it has others": (POD, RegisteredNode(), (ELSEWHERE,), (), True, [MAIN, SIDE]),
    "it has one of them": (POD, RegisteredNode(), (MAIN,), (), True, [SIDE]),
    "the agent's has one of them": (POD, RegisteredNode(), (), (KNOWN,), True, [SIDE]),
    "the pod has ended": (msgspec.structs.replace(POD, ended=True), RegisteredNode(), (), (), True, []),
    "one was not created": (
        msgspec.structs.replace(POD, created=frozenset({"init", "side"})),
        RegisteredNode(),
        (),
        (),
        True,
        [SIDE],
    ),
    "an init container runs": (
        msgspec.structs.replace(POD, created=frozenset({"init"})),
        RegisteredNode(),
        (),
        (),
        True,
        [INIT],
    ),
    "its status says nothing yet": (
        msgspec.structs.replace(POD, created=frozenset(), reported=False),
        RegisteredNode(),
        (),
        (),
        True,
        [INIT, MAIN, SIDE],
    ),
    "its status says that nothing was created": (
        msgspec.structs.replace(POD, created=frozenset()),
        RegisteredNode(),
        (),
        (),
        True,
        [],
    ),
    "one has a name by the sharing configuration": (
        GOLD_POD,
        RegisteredNode(renamed=frozenset({"example.com/gold"})),
        (),
        (),
        True,
        [allocated("main", "example.com/gold")],
    ),
    "one has a name that another plugin has": (GOLD_POD, RegisteredNode(), (), (), True, []),
    "the node never had one resource": (
        POD,
        RegisteredNode(resources=frozenset({"cpu", UNITS}), created_s=10.0),
        (),
        (),
        True,
        [SIDE],
    ),
}


@pytest.mark.parametrize("case", LACKING)
def test_what_both_records_lack_is_of_containers_that_may_run(case: str) -> None:
    pod, node, kubelet, record, lost, want = LACKING[case]
    assert list(in_neither_record(record, kubelet, {"p": pod}, lambda *_: lost, node, None)) == want


def test_where_processes_are_observed_containers_with_processes_count_whatever_the_status_says() -> None:
    """A status may be late."""
    for created in (frozenset[str](), frozenset({"init"}), POD.created):
        pod = msgspec.structs.replace(POD, created=created, reported=bool(created))
        for names, want in (((), []), (("init", "side"), [INIT, SIDE]), (("init", "main", "side"), [INIT, MAIN, SIDE])):
            running = frozenset(("p", name) for name in names)
            assert list(in_neither_record((), (), {"p": pod}, lambda *_: True, RegisteredNode(), running)) == want
    ended = msgspec.structs.replace(POD, ended=True)
    running = frozenset({("p", "main")})
    assert not in_neither_record((), (), {"p": ended}, lambda *_: True, RegisteredNode(), running)


@pytest.mark.parametrize("resource", [GPU, UNITS])
@pytest.mark.parametrize("created", [frozenset[str](), frozenset({"init"}), frozenset({"init", "main"})])
@pytest.mark.parametrize("container", ["init", "main", "side"])
@pytest.mark.parametrize("running", [None, frozenset[str](), frozenset({"init"})])
def test_an_init_container_counts_until_it_has_ended(
    container: str, created: frozenset[str], resource: str, running: frozenset[str] | None
) -> None:
    """In a new sandbox of its pod the status has the former `main`: its process tells."""
    pod = msgspec.structs.replace(POD, created=created)
    each = allocated(container, resource, "x")
    runs = running is not None and "init" in running
    counts = container != "init" or "main" not in created or runs
    found = None if running is None else frozenset(("p", name) for name in running)
    assert list(lasting_or_running([each, ELSEWHERE], (), {"p": pod}, found)) == [*([each] * counts), ELSEWHERE]


def test_an_init_container_with_the_ids_of_another_container_of_its_pod_has_that_ones_entry() -> None:
    init, pods = allocated("init", GPU, "x"), {"p": msgspec.structs.replace(POD, created=frozenset())}
    assert not [*lasting_or_running([init], [KNOWN], pods, None)]
    others = {"uid": "q"}, {"resource": UNITS}, {"ids": ("y",)}
    for other in (msgspec.structs.replace(KNOWN, **each) for each in others):
        assert [*lasting_or_running([init], [other], pods, None)] == [init]


def uses(found: tuple[AllocatedDevice, ...] | None) -> UsesOf:
    return lambda _: found


# sentence: what the kubelet has; what a container uses by that; whether it was created; whether it counts as started
ADOPTED: dict[str, tuple[KubeletAllocation, tuple[AllocatedDevice, ...], bool, bool | None]] = {
    "a device by name of a container that was created": (allocated("main", GPU, "x"), USES, True, True),
    "a device by name of one that was not": (allocated("main", GPU, "x"), USES, False, False),
    "a share, which its start is to check": (allocated("side", UNITS, "u"), USES, True, False),
    "a device by name that the driver does not list": (allocated("main", GPU, "x"), (), True, True),
    "the same, of a container that was not created": (allocated("main", GPU, "x"), (), False, False),
    "a share of a GPU that it does not list": (allocated("side", UNITS, "u"), (), True, None),
    "what both records had lost, without devices": (MAIN, (), True, True),
    "a share that both had lost": (SIDE, USES, True, True),
}


@pytest.mark.parametrize("case", ADOPTED)
def test_an_allocation_that_the_record_lacks_is_recorded_with_what_is_known(case: str) -> None:
    kubelet, found, created, started = ADOPTED[case]
    pods = {"p": POD if created else msgspec.structs.replace(POD, created=frozenset())}
    entries = list(adopted((), [kubelet], uses(found), pods, {}, 9))
    assert [each.started for each in entries] == ([] if started is None else [started])
    for each in entries:
        assert (each.container_key, each.ids) == (("p", kubelet.container, kubelet.resource), kubelet.device_ids)
        assert (each.uses, each.pod, each.at_ns) == (found, "ns/p", 5)
        assert [*adopted((each,), [kubelet], uses(found), pods, {}, 9)] == [], "it is on record then"


def test_an_answer_whose_pod_is_not_known_yet_is_recorded_already() -> None:
    answered = AgentAllocation(resource=GPU, ids=("x",))
    assert [*adopted((answered,), [allocated("main", GPU, "x")], uses(USES), {"p": POD}, {}, 9)] == []


def test_an_allocation_to_a_pod_whose_age_is_unknown_is_as_old_as_its_entry() -> None:
    pod = msgspec.structs.replace(POD, created_ns=0)
    (found,) = adopted((), [allocated("main", GPU, "x")], uses(USES), {"p": pod}, {}, 9)
    assert found.at_ns == 9


@pytest.mark.parametrize("uid", ["p", "gone"])
def test_who_is_on_record_came_first_however_old_the_other_is(uid: str) -> None:
    held = AgentAllocation(resource=GPU, ids=("y",), uses=USES, uid="q", pod="ns/q", container="main", at_ns=7)
    kubelet = msgspec.structs.replace(allocated("main", GPU, "x"), uid=uid)
    (found,) = adopted((held,), [kubelet], uses(USES), {"p": POD}, {}, 9)
    assert found.at_ns == 9


UNITS_OF_SIDE = allocated("side", UNITS, "u")
# sentence: what the kubelet's record has; what it uses by its assignment; the pod; if it is on record; if it counts
UNKNOWN: dict[str, tuple[KubeletAllocation, tuple[AllocatedDevice, ...] | None, GatePod, bool, bool]] = {
    "it runs, and its assignment does not count": (UNITS_OF_SIDE, None, POD, False, True),
    "its assignment counts, for a GPU that is not listed": (UNITS_OF_SIDE, (), POD, False, True),
    "its assignment counts": (UNITS_OF_SIDE, USES, POD, False, False),
    "the agent's record has it": (UNITS_OF_SIDE, None, POD, True, False),
    "it is an init container that runs": (
        allocated("init", UNITS, "u"),
        None,
        msgspec.structs.replace(POD, created=frozenset({"init"})),
        False,
        True,
    ),
    "it is an init container that has ended": (allocated("init", UNITS, "u"), None, POD, False, False),
    "it has a device by name": (allocated("main", GPU, "x"), None, POD, False, False),
    "the kubelet's record has no units": (SIDE, None, POD, False, False),
    "it was not created": (UNITS_OF_SIDE, None, msgspec.structs.replace(POD, created=frozenset()), False, False),
    "its pod has ended": (UNITS_OF_SIDE, None, msgspec.structs.replace(POD, ended=True), False, False),
    "its pod is gone": (msgspec.structs.replace(UNITS_OF_SIDE, uid="gone"), None, POD, False, False),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_units_of_a_running_container_are_of_an_unknown_device_until_it_is_known(case: str) -> None:
    """Its assignment counts again, or the driver lists the GPU."""
    kubelet, found, pod, known, want = UNKNOWN[case]
    record = tuple(adopted((), [kubelet], uses(USES), {"p": pod}, {}, 9)) if known else ()
    entries = unknown_shares(record, [kubelet], uses(found), {"p": pod}, 9, None)
    assert [(each.container_key, each.ids, each.at_ns) for each in entries] == (
        [(("p", kubelet.container, UNITS), ("u",), 5)] if want else []
    )
    assert all(map(uses_unknown, entries))
    for nothing in (None, ()):
        assert with_known_uses((*entries, KNOWN), uses(nothing)) == (*entries, KNOWN)
    for each in with_known_uses(entries, uses(USES)):
        assert (each.uses, each.ids, each.started) == (USES, ("u",), False), "its next start is to check it"


def test_an_init_container_with_the_units_of_another_container_on_record_is_known() -> None:
    pod = msgspec.structs.replace(POD, created=frozenset({"init"}))
    record = tuple(adopted((), [UNITS_OF_SIDE], uses(USES), {"p": pod}, {}, 9))
    init = allocated("init", UNITS, "u")
    assert unknown_shares(record, [init], uses(None), {"p": pod}, 9, None) == ()
    for other in ({"uid": "q"}, {"resource": "aliyun.com/gpu-mem"}, {"ids": ("v",)}):
        changed = tuple(msgspec.structs.replace(each, **other) for each in record)
        assert unknown_shares(changed, [init], uses(None), {"p": pod}, 9, None)


def test_what_is_on_record_of_an_init_container_that_has_ended_says_nothing_of_who_runs_with_its_units() -> None:
    ended = AgentAllocation(resource=UNITS, ids=("u",), uid="p", pod="ns/p", container="init", initial=True)
    (entry,) = unknown_shares((ended,), [UNITS_OF_SIDE], uses(None), {"p": POD}, 9, None)
    assert entry.container == "side"


ANSWERED = AgentAllocation(
    resource=UNITS, ids=("u",), uses=USES, uid="p", pod="ns/p", container="init", initial=True, presumed=True
)
STARTED = msgspec.structs.replace(ANSWERED, container="side", initial=False, presumed=False, started=True)
RUNNING_INIT = msgspec.structs.replace(POD, created=frozenset({"init"}))
# sentence: what is on record; the pod; the containers with processes; whether it counts as started
LOST_STARTS: dict[str, tuple[tuple[AgentAllocation, ...], GatePod, frozenset[tuple[str, str]] | None, bool]] = {
    "it has a process": ((ANSWERED,), POD, frozenset({("p", "init")}), True),
    "another container has one": ((ANSWERED,), RUNNING_INIT, frozenset({("p", "side")}), False),
    "it runs by its pod's status": ((ANSWERED,), RUNNING_INIT, None, True),
    "it has ended by its pod's status": ((ANSWERED,), POD, None, False),
    "its start is on record": ((STARTED, ANSWERED), RUNNING_INIT, None, False),
    "a start of another pod is": ((msgspec.structs.replace(STARTED, uid="q"), ANSWERED), RUNNING_INIT, None, True),
    "a start with other ids is": ((msgspec.structs.replace(STARTED, ids=("v",)), ANSWERED), RUNNING_INIT, None, True),
    "a start with units of the other resource is": (
        (msgspec.structs.replace(STARTED, resource="aliyun.com/gpu-mem"), ANSWERED),
        RUNNING_INIT,
        None,
        True,
    ),
    "another container was answered, and did not start": (
        (msgspec.structs.replace(STARTED, started=False), ANSWERED),
        RUNNING_INIT,
        None,
        True,
    ),
    "it was answered with another pod's share": (
        (msgspec.structs.replace(ANSWERED, uses=(), presumed=False),),
        RUNNING_INIT,
        None,
        False,
    ),
    "it is no init container": (
        (msgspec.structs.replace(ANSWERED, container="side", initial=False),),
        POD,
        frozenset({("p", "side")}),
        False,
    ),
    "its pod is gone": ((msgspec.structs.replace(ANSWERED, uid="gone"),), RUNNING_INIT, None, False),
}


@pytest.mark.parametrize("case", LOST_STARTS)
def test_an_init_container_that_runs_was_started_though_the_entry_that_said_so_is_lost(case: str) -> None:
    *others, own = LOST_STARTS[case][0]
    _, pod, running, want = LOST_STARTS[case]
    found = with_lost_starts((*others, own), {"p": pod}, running)
    new = msgspec.structs.replace(own, presumed=False, started=True)
    assert found == (*others, new if want else own)


def test_an_init_container_that_was_answered_by_cdi_and_whose_start_is_lost_has_an_unknown_device() -> None:
    (entry,) = with_lost_starts((msgspec.structs.replace(ANSWERED, uses=()),), {"p": RUNNING_INIT}, None)
    assert uses_unknown(entry)


def test_where_processes_are_observed_units_count_of_containers_with_processes() -> None:
    pod = msgspec.structs.replace(POD, created=frozenset())
    for running, want in ((frozenset({("p", "side")}), True), (frozenset({("p", "main")}), False)):
        assert bool(unknown_shares((), [UNITS_OF_SIDE], uses(None), {"p": pod}, 9, running)) is want


def test_what_neither_record_had_of_a_share_is_known_by_its_assignment() -> None:
    (unknown,) = adopted((), [SIDE], uses(None), {"p": POD}, {}, 9)
    assert uses_unknown(unknown)
    (found,) = with_known_uses([unknown], uses(USES))
    assert (found.uses, found.ids, found.started) == (USES, (), True)


def test_a_device_by_name_that_the_driver_lists_again_is_added_to_those_that_are_known() -> None:
    other = AllocatedDevice(device=DeviceId("GPU-1"), mps=False)
    entry = msgspec.structs.replace(KNOWN, ids=("GPU-0::1", "GPU-0::2", "GPU-1"), uses=(other,), started=True)
    both = (*USES, AllocatedDevice(device=DeviceId("GPU-1")))
    assert with_known_uses([entry], uses(both)) == (msgspec.structs.replace(entry, uses=(*USES, other)),)
    for found in ((), both[1:], USES):
        assert with_known_uses([entry], uses(found)) == (entry,), "nothing else is known"
    known = msgspec.structs.replace(entry, uses=(*USES, other))
    more = (*both, AllocatedDevice(device=DeviceId("GPU-2")))
    assert with_known_uses([known], uses(more)) == (known,), "it is complete"
    assert with_known_uses([msgspec.structs.replace(KNOWN, pod="")], uses(USES))[0].uses == ()


def test_what_was_answered_with_another_pods_share_stays_without_devices() -> None:
    void = msgspec.structs.replace(KNOWN, resource=UNITS, ids=("u",))
    assert with_known_uses([void], uses(USES)) == (void,)
