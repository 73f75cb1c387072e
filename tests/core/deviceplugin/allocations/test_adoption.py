"""What is recorded of containers that the agent's record lacks, and which of them run without what they request."""

import itertools
from collections.abc import Callable

import msgspec
import pytest

from tessera.core.deviceplugin.allocations.adoption import (
    RegisteredNode,
    adopted,
    initial_by_name,
    unassigned,
    unrecorded,
    was_left_out,
    without_known,
)
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice
from tessera.core.deviceplugin.allocations.gateobservation import GatePod
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
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
        [INIT, MAIN],
    ),
    "its status says that nothing was created": (
        msgspec.structs.replace(POD, created=frozenset()),
        RegisteredNode(),
        (),
        (),
        True,
        [],
    ),
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
    assert list(unrecorded(record, kubelet, {"p": pod}, lambda *_: lost, node, blind=True)) == want


def test_where_processes_are_observed_each_container_by_name_counts_whatever_its_status_says() -> None:
    """The caller leaves out those without a process: a status may be late."""
    for created in (frozenset[str](), frozenset({"init"}), POD.created):
        pod = msgspec.structs.replace(POD, created=created, reported=bool(created))
        found = unrecorded((), (), {"p": pod}, lambda *_: True, RegisteredNode(), blind=False)
        assert list(found) == [INIT, MAIN, *([SIDE] if "side" in created else [])], "a share is the server's"
    assert not unrecorded(
        (), (), {"p": msgspec.structs.replace(POD, ended=True)}, lambda *_: True, RegisteredNode(), blind=False
    )


@pytest.mark.parametrize("resource", [GPU, UNITS])
@pytest.mark.parametrize("created", [frozenset[str](), frozenset({"init"}), frozenset({"init", "main"})])
@pytest.mark.parametrize("container", ["init", "main", "side"])
def test_an_init_container_by_name_counts_until_it_has_ended(
    container: str, created: frozenset[str], resource: str
) -> None:
    pod = msgspec.structs.replace(POD, created=created)
    each = allocated(container, resource, "x")
    counts = container == "init" and "main" not in created and resource == GPU
    assert list(initial_by_name((each, ELSEWHERE), {"p": pod})) == [each] * counts


def uses(found: tuple[AllocatedDevice, ...]) -> Callable[[KubeletAllocation], tuple[AllocatedDevice, ...]]:
    return lambda _: found


# sentence: what the kubelet has; what a container uses by that; whether it was created; whether it counts as started
ADOPTED: dict[str, tuple[KubeletAllocation, tuple[AllocatedDevice, ...], bool, bool | None]] = {
    "a device by name of a container that was created": (allocated("main", GPU, "x"), USES, True, True),
    "a device by name of one that was not": (allocated("main", GPU, "x"), USES, False, False),
    "a share, which its start is to check": (allocated("side", UNITS, "u"), USES, True, False),
    "a device that is not known yet": (allocated("main", GPU, "x"), (), True, None),
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


def test_a_resource_that_its_node_never_had_is_left_out_of_a_pod() -> None:
    """Every combination: one fact to the contrary is enough."""
    kinds = (
        (frozenset({"cpu"}), frozenset({"cpu", GPU}), frozenset[str]()),
        (False, True),
        (False, True),
        (9.0, 10.0, 11.0),
    )
    for resources, static, claim, started_s in itertools.product(*kinds):
        pod = msgspec.structs.replace(POD, static=static, has_resource_claim=claim, started_s=started_s)
        want = resources == {"cpu"} and not static and not claim and started_s == 11.0
        assert was_left_out(pod, GPU, RegisteredNode(resources=resources, created_s=10.0)) is want
    assert not was_left_out(POD, GPU, RegisteredNode(resources=frozenset({"cpu"}))), "the Node has no time"
    unknown = msgspec.structs.replace(POD, started_s=0.0)
    assert not was_left_out(unknown, GPU, RegisteredNode(resources=frozenset({"cpu"}), created_s=10.0))


UNITS_OF_SIDE = allocated("side", UNITS, "u")
# sentence: what the kubelet's record has; what it uses by its assignment; the pod; if it is on record; if it counts
UNASSIGNED: dict[str, tuple[KubeletAllocation, tuple[AllocatedDevice, ...], GatePod, bool, bool]] = {
    "it runs, and its assignment does not count": (UNITS_OF_SIDE, (), POD, False, True),
    "its assignment counts": (UNITS_OF_SIDE, USES, POD, False, False),
    "the agent's record has it": (UNITS_OF_SIDE, (), POD, True, False),
    "it has a device by name": (allocated("main", GPU, "x"), (), POD, False, False),
    "the kubelet's record has no units": (SIDE, (), POD, False, False),
    "it was not created": (UNITS_OF_SIDE, (), msgspec.structs.replace(POD, created=frozenset()), False, False),
    "its pod has ended": (UNITS_OF_SIDE, (), msgspec.structs.replace(POD, ended=True), False, False),
    "its pod is gone": (msgspec.structs.replace(UNITS_OF_SIDE, uid="gone"), (), POD, False, False),
}


@pytest.mark.parametrize("case", UNASSIGNED)
def test_units_of_a_running_container_without_an_assignment_are_of_an_unknown_device(case: str) -> None:
    """Until its assignment counts again; then it is adopted."""
    kubelet, found, pod, known, want = UNASSIGNED[case]
    record = tuple(adopted((), [kubelet], uses(USES), {"p": pod}, {}, 9)) if known else ()
    entries = unassigned(record, [kubelet], uses(found), {"p": pod}, 9, blind=True)
    assert [(each.container_key, each.ids, each.at_ns) for each in entries] == (
        [(("p", "side", UNITS), ("u",), 5)] if want else []
    )
    assert all(map(uses_unknown, entries))
    assert without_known(entries, [kubelet], uses(())) == entries
    assert without_known((*entries, KNOWN), [kubelet], uses(USES)) == (KNOWN,)
    assert without_known(entries, [SIDE], uses(USES)) == entries, "the kubelet's record has no units of it"


def test_what_is_known_of_units_and_what_is_unknown_of_a_device_by_name_stays_on_record() -> None:
    known = tuple(adopted((), [UNITS_OF_SIDE], uses(USES), {"p": POD}, {}, 9))
    unnamed = msgspec.structs.replace(KNOWN, ids=())
    assert uses_unknown(unnamed)
    record = (*known, unnamed)
    assert without_known(record, [UNITS_OF_SIDE, allocated("main", GPU, "x")], uses(USES)) == record


def test_where_processes_are_observed_the_caller_leaves_out_those_without_any() -> None:
    pod = msgspec.structs.replace(POD, created=frozenset())
    assert unassigned((), [UNITS_OF_SIDE], uses(()), {"p": pod}, 9, blind=False)
