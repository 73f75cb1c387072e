"""What may not be allocated beside what: by ids, by silicon, by memory."""

import itertools
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.gpunodes import facts, sevenths
from builders.shares import share
from tessera.core.deviceplugin.allocations.agentallocations import (
    AgentAllocation,
    AllocatedDevice,
    Clash,
    Exclusivity,
    SignedAssignment,
    clashes,
    completed,
    double_allocations,
    started_pod,
    uses_of_devices,
    uses_of_ids,
    uses_of_shares,
    without_other_forms,
)
from tessera.core.deviceplugin.allocations.kubeletallocations import RequestKey
from tessera.core.deviceplugin.offers.advertise import NodeOffer, PluginDevice, Resource
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Mode

GPU, OTHER, SLICE, UNITS = "GPU-0", "GPU-1", "nvidia.com/mig-1g.5gb", "tessera.dev/gpu-memory"
FIRST, SECOND, PAIR = Placement(0, 1, "1g.5gb"), Placement(1, 1, "1g.5gb"), Placement(0, 2, "2g.10gb")


def whole(gpu: str = GPU, placement: Placement | None = None) -> AllocatedDevice:
    return AllocatedDevice(device=DeviceId(gpu, placement))


def amount(memory_mib: int, gpu: str = GPU) -> AllocatedDevice:
    return AllocatedDevice(device=DeviceId(gpu), exclusivity=Exclusivity.MEMORY, memory_mib=memory_mib)


def client(gpu: str = GPU, *, mps: bool | None = None, clients: int = 0) -> AllocatedDevice:
    return AllocatedDevice(device=DeviceId(gpu), exclusivity=Exclusivity.REPLICA, mps=mps, clients=clients)


def entry(
    pod: str, *uses: AllocatedDevice, ids: str = "", container: str = "main", at: int = 0, initial: bool = False
) -> AgentAllocation:
    return AgentAllocation(
        resource=UNITS,
        ids=tuple(ids or pod),
        uses=uses,
        uid=pod,
        pod=f"default/{pod}",
        container=container,
        initial=initial,
        at_ns=at,
    )


# sentence: (record, the new one, what both would have; empty where it may be)
BESIDE: dict[str, tuple[list[AgentAllocation], AgentAllocation, str]] = {
    "the same GPU": ([entry("a", whole())], entry("b", whole()), "GPU GPU-0"),
    "two GPUs": ([entry("a", whole())], entry("b", whole(OTHER)), ""),
    "the same instance": (
        [entry("a", whole(placement=FIRST))],
        entry("b", whole(placement=FIRST)),
        "1g.5gb at 0 of GPU GPU-0",
    ),
    "instances beside each other": ([entry("a", whole(placement=FIRST))], entry("b", whole(placement=SECOND)), ""),
    "instances that overlap": (
        [entry("a", whole(placement=SECOND))],
        entry("b", whole(placement=PAIR)),
        "2g.10gb at 0 of GPU GPU-0",
    ),
    "a GPU and an instance of it": ([entry("a", whole())], entry("b", whole(placement=FIRST)), "1g.5gb at 0"),
    "a GPU and an amount of it": ([entry("a", whole())], entry("b", amount(5)), "GPU GPU-0"),
    "replicas of one GPU": ([entry("a", client())], entry("b", client()), ""),
    "a client of MPS and one that takes turns": (
        [entry("a", client(mps=True))],
        entry("b", client(mps=False)),
        "GPU GPU-0",
    ),
    "clients of MPS": ([entry("a", client(mps=True))], entry("b", client(mps=True)), ""),
    "a client of MPS, and one of whom an agent of before did not say": (
        [entry("a", client())],
        entry("b", client(mps=True)),
        "",
    ),
    "a replica and an amount": ([entry("a", client())], entry("b", amount(5)), "GPU GPU-0"),
    "amounts that fit": ([entry("a", amount(60))], entry("b", amount(40)), ""),
    "amounts beyond what there is": ([entry("a", amount(60))], entry("b", amount(41)), "more memory than the 100 MiB"),
    "an amount that is too large alone": ([], entry("b", amount(101)), "more memory than the 100 MiB"),
    "amounts of a GPU that is lost": ([entry("a", amount(60, OTHER))], entry("b", amount(99, OTHER)), ""),
    "the same ids": ([entry("a", whole(), ids="x")], entry("b", whole(OTHER), ids="x"), f"device x of {UNITS}"),
    "the same pod again": ([entry("a", whole())], entry("a", whole()), ""),
    "containers of one pod side by side": (
        [entry("a", amount(60), container="one")],
        entry("a", amount(41), ids="z", container="two"),
        "more memory than the 100 MiB",
    ),
    "an init container and who comes after it": (
        [entry("a", amount(60), ids="xy", container="init", initial=True)],
        entry("a", amount(60), ids="x"),
        "",
    ),
    "an init container beside a sidecar of before": (
        [entry("a", amount(60), container="proxy", at=1)],
        entry("a", amount(41), ids="z", container="init", at=2, initial=True),
        "more memory than the 100 MiB",
    ),
    "an init container and a sidecar that starts after it": (
        [entry("a", amount(60), container="init", at=1, initial=True)],
        entry("a", amount(60), ids="z", container="proxy", at=2),
        "",
    ),
    "a container that is answered anew": (
        [entry("a", amount(60), ids="x"), entry("a", amount(60), ids="y", at=1)],
        entry("b", amount(40), at=2),
        "",
    ),
    "what only Allocate was answered for": (
        [AgentAllocation(resource=UNITS, ids=("x",), uses=(whole(),))],
        entry("a", whole(), ids="x"),
        "",
    ),
    "what only Allocate was answered for, and other ids": (
        [AgentAllocation(resource=UNITS, ids=("y",), uses=(whole(),))],
        entry("a", whole(), ids="x"),
        "GPU GPU-0",
    ),
    "two answers to Allocate": (
        [AgentAllocation(resource=UNITS, ids=("x",))],
        AgentAllocation(resource=UNITS, ids=("x", "y")),
        "device x",
    ),
}


@pytest.mark.parametrize("case", BESIDE)
def test_what_may_be_allocated_beside_what(case: str) -> None:
    record, new, want = BESIDE[case]
    found = [each.text for each in clashes(record, new, {DeviceId(GPU): 100}, ids=True)]
    assert [text[: len(want)] for text in found] == ([want] if want else [])


# sentence: what a pod has of 100 MiB, and how much is left
ANEW: dict[str, tuple[list[AgentAllocation], int]] = {
    "a container beside one that is answered anew on another GPU": (
        [
            entry("a", amount(30), ids="x", container="first"),
            entry("a", amount(30), ids="y", container="second"),
            entry("a", amount(30, OTHER), ids="z", container="first", at=1),
        ],
        40,
    ),
    "answers for several containers of one pod": (
        [
            entry("a", amount(10), ids="xy"),
            *(AgentAllocation(resource=UNITS, ids=(each,), uses=(amount(30),)) for each in "xy"),
        ],
        30,
    ),
}


@pytest.mark.parametrize("case", ANEW)
def test_a_new_answer_counts_in_place_of_the_former_one_of_its_container_alone(case: str) -> None:
    record, left = ANEW[case]
    capacity = {DeviceId(GPU): 100}
    assert not list(clashes(record, entry("b", amount(left)), capacity, ids=True))
    assert list(clashes(record, entry("b", amount(left + 1)), capacity, ids=True))


def test_ids_of_units_are_the_kubelet_s_to_count() -> None:
    assert not list(clashes([entry("a", ids="x")], entry("b", ids="x"), {}, ids=False))


def test_who_holds_is_named() -> None:
    assert entry("a").holder == "container main of pod default/a"
    assert AgentAllocation(resource=UNITS, ids=("x",)).holder == "a pod that was just admitted"
    assert entry("a").request_key == RequestKey("default", "a", "main", entry("a").resource)


def test_why_a_device_is_not_allocated_is_said_in_a_phrase() -> None:
    other = entry("a")
    assert Clash(other=other, text="device x").cause == "container main of pod default/a uses device x"
    full = Clash(other=other, text="more memory than the 9 MiB of x", full=True)
    assert full.cause == "together with container main of pod default/a it requests more memory than the 9 MiB of x"
    alone = msgspec.structs.replace(full, other=None)
    assert (alone.holder, alone.cause) == ("nobody else", "it requests more memory than the 9 MiB of x")


USES = st.one_of(
    st.builds(whole, st.sampled_from([GPU, OTHER]), st.sampled_from([None, FIRST, SECOND, PAIR])),
    st.builds(client, mps=st.sampled_from([None, False, True])),
    st.builds(amount, st.integers(1, 60)),
)


@given(USES, USES)
def test_whoever_excludes_is_excluded(one: AllocatedDevice, other: AllocatedDevice) -> None:
    assert one.excludes(other) == other.excludes(one)


@given(st.lists(USES, max_size=6))
def test_what_passes_one_after_the_other_is_no_conflict(uses: list[AllocatedDevice]) -> None:
    """And what does not is one, with the later pod as the one that gives way."""
    record: list[AgentAllocation] = []
    refused: list[AgentAllocation] = []
    for at, use in enumerate(uses):
        new = entry(f"{at}", use, at=at)
        clash = next(clashes(record, new, {DeviceId(GPU): 100}, ids=True), None)
        (refused if clash else record).append(new)
    assert double_allocations(record, {DeviceId(GPU): 100}) == ()
    for new in refused:
        ((later, clash),) = double_allocations([*record, new], {DeviceId(GPU): 100})[-1:]
        assert isinstance(clash, Clash)
        assert later.at_ns >= new.at_ns
    for a, b in itertools.combinations(record, 2):
        assert not a.uses[0].excludes(b.uses[0])


class Container(NamedTuple):
    """A container that asks for an amount of one GPU: `init` ends, `sidecar` starts then and stays, `main` is last."""

    kind: str
    memory_mib: int


PODS = st.tuples(
    st.lists(st.builds(Container, st.sampled_from(["init", "sidecar"]), st.integers(1, 40)), max_size=4),
    st.lists(st.builds(Container, st.just("main"), st.integers(1, 40)), min_size=1, max_size=3),
).map(lambda parts: [*parts[0], *parts[1]])


def lived_through(pod: list[Container]) -> int:
    """Let a pod start container by container; return the most memory that what ran at one time had."""
    running: list[Container] = []
    most = 0
    for each in pod:
        running.append(each)
        most = max(most, sum(other.memory_mib for other in running))
        if each.kind == "init":
            running.remove(each)
    return most


@given(PODS, st.lists(st.integers(1, 9), min_size=7, max_size=7), st.booleans(), st.integers(1, 200))
def test_a_pod_counts_for_what_its_containers_have_at_one_time(
    pod: list[Container], times: list[int], known: bool, beside: int
) -> None:
    """Whenever the containers were recorded, as after the record was lost; or in their order, where it is unknown."""
    record = [
        msgspec.structs.replace(
            entry("a", amount(each.memory_mib), ids=str(place), container=str(place), initial=each.kind == "init"),
            order=place if known else -1,
            at_ns=times[place] if known else place,
        )
        for place, each in enumerate(pod)
    ]
    fits = lived_through(pod) + beside <= 100
    found = list(clashes(record, entry("b", amount(beside), at=99), {DeviceId(GPU): 100}, ids=True))
    assert (not found) == fits
    *before, last = record
    alone = list(clashes(before, last, {DeviceId(GPU): lived_through(pod)}, ids=True))
    assert alone == [], "what a pod was assigned is never more than it has"


def test_answers_of_no_pod_are_no_conflict() -> None:
    assert (
        double_allocations([entry("a", whole()), AgentAllocation(resource=UNITS, ids=("x",), uses=(whole(),))], {})
        == ()
    )


def device(name: str, mode: Mode, placement: Placement | None = None, *, clients: int = 2) -> PluginDevice:
    return PluginDevice(
        id=name, gpu_uuid=GPU, uuid=name.partition("::")[0], mode=mode, placement=placement, clients=clients
    )


def test_devices_by_name_and_their_replicas() -> None:
    assert uses_of_devices([device("GPU-0", Mode.WHOLE)]) == (whole(),)
    assert uses_of_devices([device("MIG-1", Mode.MIG, FIRST)]) == (whole(placement=FIRST),)
    for mode in (Mode.TIME_SLICING, Mode.MPS):
        used = uses_of_devices([device("GPU-0::1", mode), device("GPU-0::2", mode)])
        assert used == (client(mps=mode is Mode.MPS, clients=2 * (mode is Mode.MPS)),)


def test_where_no_mps_daemon_may_start() -> None:
    assert [each.keeps_mps_out for each in (whole(), client(mps=False), client(), client(mps=True))] == [
        *(True, True, False, False)
    ]


GPUS = "nvidia.com/gpu"
CLIENTS = tuple(device(f"GPU-0::{i}", Mode.MPS) for i in range(2))
MORE = tuple(device(f"GPU-0::{i}", Mode.MPS, clients=4) for i in range(4))
WHOLE, SLICED = (device("GPU-0", Mode.WHOLE),), tuple(device(f"GPU-0::{i}", Mode.TIME_SLICING) for i in range(2))
CUT = (device("MIG-1", Mode.MIG, FIRST), device("MIG-2", Mode.MIG, SECOND))
UNIT = (device("GPU-0-_-0", Mode.MPS),)


def had(resource: str, *devices: PluginDevice) -> AgentAllocation:
    ids = tuple(each.id for each in devices)
    return AgentAllocation(
        resource=resource, ids=ids, uses=uses_of_devices(devices), uid="a", pod="default/a", container="c"
    )


# what is offered: (the resource, its devices, what a pod has, the ids that are left)
FORMS: dict[str, tuple[str, tuple[PluginDevice, ...], AgentAllocation, list[str]]] = {
    "replicas of a GPU that a pod has whole": (GPUS, SLICED, had(GPUS, *WHOLE), []),
    "a GPU of which a pod has a replica": (GPUS, WHOLE, had(GPUS, SLICED[1]), []),
    "an instance that a pod has under another name": (GPUS, CUT, had(SLICE, CUT[0]), ["MIG-2"]),
    "what a pod has": (GPUS, WHOLE, had(GPUS, *WHOLE), ["GPU-0"]),
    "an instance beside that of a pod": (SLICE, CUT, had(SLICE, CUT[0]), ["MIG-1", "MIG-2"]),
    "replicas beside that of a pod": (GPUS, SLICED, had(GPUS, SLICED[1]), ["GPU-0::0", "GPU-0::1"]),
    "replicas by MPS of a GPU where a pod takes turns": (GPUS, CLIENTS, had(GPUS, SLICED[1]), ["GPU-0::1"]),
    "turns on a GPU where a pod is a client of MPS": (GPUS, SLICED, had(GPUS, CLIENTS[0]), ["GPU-0::0"]),
    "more replicas by MPS, each with less memory": (GPUS, MORE, had(GPUS, CLIENTS[0]), ["GPU-0::0"]),
    "fewer replicas by MPS": (GPUS, CLIENTS, had(GPUS, MORE[3]), []),
    "a replica that a pod has under another name": (
        "nvidia.com/gpu.shared",
        SLICED,
        had(GPUS, SLICED[1]),
        ["GPU-0::0"],
    ),
    "a replica by MPS that a pod has under another name": (
        "nvidia.com/gpu.shared",
        MORE,
        had(GPUS, MORE[1]),
        [
            *("GPU-0::0", "GPU-0::2", "GPU-0::3"),
        ],
    ),
    "units, which are numbers": (UNITS, UNIT, had(GPUS, *WHOLE), ["GPU-0-_-0"]),
    "what assignments say, which is no form of a name": (GPUS, WHOLE, entry("p", amount(5)), ["GPU-0"]),
}


@pytest.mark.parametrize("case", FORMS)
def test_what_a_pod_has_in_one_form_is_not_offered_in_another(case: str) -> None:
    name, devices, allocation, want = FORMS[case]
    offered = NodeOffer(resources=(Resource(name=name, devices=devices, by_assignment=name == UNITS),))
    got, reasons = without_other_forms(offered, [allocation])
    assert [each.id for resource in got.resources for each in resource.devices] == want
    assert len(reasons) == (len(want) < len(devices)), "one for a device, however many replicas it has"


@pytest.mark.parametrize(
    ("new", "former", "clash"),
    [
        (had("nvidia.com/gpu.shared", SLICED[0]), had(GPUS, SLICED[0]), True),
        (had("nvidia.com/gpu.shared", SLICED[0]), had(GPUS, SLICED[1]), False),
        (had(GPUS, MORE[1]), had(GPUS, CLIENTS[0]), True),
        (had(GPUS, MORE[1]), had(GPUS, MORE[0]), False),
        # Before the number was recorded.
        (had(GPUS, MORE[1]), msgspec.structs.replace(had(GPUS, MORE[0]), uses=(client(mps=True),)), False),
        # Both resources of memory have the same ids.
        (had("aliyun.com/gpu-mem", *UNIT), had(UNITS, *UNIT), False),
    ],
)
def test_a_replica_is_one_under_each_name_and_of_one_size(
    new: AgentAllocation, former: AgentAllocation, clash: bool
) -> None:
    other = msgspec.structs.replace(new, uid="b", pod="default/b")
    found = list(clashes([former], other, {}, ids=True))
    assert [each.other for each in found] == [former] * clash


def test_who_has_a_device_in_another_form_is_said() -> None:
    offered = NodeOffer(resources=(Resource(name=GPUS, devices=SLICED),))
    assert without_other_forms(offered, [had(GPUS, *WHOLE)])[1] == (
        "GPU GPU-0: container c of pod default/a still uses it in another form than the present nvidia.com/gpu",
    )


def test_ids_are_read_back_by_what_the_driver_shows() -> None:
    cut = facts(0, layout=sevenths()[:1])
    inventory = Inventory(gpus=(cut, facts(1, "T4")))
    ids = (cut.instances[0].uuid, f"{facts(1).uuid}::3", "GPU-gone")
    assert uses_of_ids(ids, inventory) == (whole(cut.uuid, sevenths()[0]), client(facts(1).uuid))


def test_shares_name_devices_that_are_there_or_will_be() -> None:
    inventory = Inventory(gpus=(facts(0), facts(1, "T4")))
    instance = share(0, 9856, at="2g.10gb@0", percent=28)
    part = share(1, 7, Mode.MPS)
    lost = share(5, 7, Mode.MPS)
    assert uses_of_shares((instance, part, lost), inventory) == (
        AllocatedDevice(device=DeviceId(facts(0).uuid, PAIR), memory_mib=9856),
        AllocatedDevice(device=DeviceId(facts(1).uuid), exclusivity=Exclusivity.MEMORY, memory_mib=7, mps=True),
    )


# By which assignment containers were started


def started(pod: str, text: str = "", container: str = "main", *uses: AllocatedDevice) -> AgentAllocation:
    own = msgspec.structs.replace(entry(pod, *(uses or (amount(5),)), container=container), started=True)
    return msgspec.structs.replace(own, assignment=text, key="k" if text else "")


def test_a_pod_was_started_with_what_its_last_container_was() -> None:
    record = [started("p", "one", "a"), started("q", "other"), started("p", "two", "b"), entry("p", container="c")]
    found = started_pod(record, "p")
    assert found is not None
    assert found.signed == SignedAssignment(assignment="two", key="k")
    assert found.containers == {("a", UNITS), ("b", UNITS)}


NEVER = {
    "one that is not on record": (started("q", "text"), "p"),
    "one that nothing is known of but that it was started": (started("p"), "p"),
    "one that was not started": (msgspec.structs.replace(started("p", "text"), started=False), "p"),
    "an answer whose pod is not known": (msgspec.structs.replace(started("p", "text"), uid=""), ""),
}


@pytest.mark.parametrize("case", NEVER)
def test_nothing_is_known_of(case: str) -> None:
    each, uid = NEVER[case]
    assert started_pod([each], uid) is None


ASSIGNED, NOW = {"p": SignedAssignment(assignment="text", key="k", signature="s")}, {("p", "main", UNITS): (amount(5),)}

# sentence: (an entry, whether it is completed)
COMPLETED = {
    "what is assigned now is what it was started with": (started("p"), True),
    "it is known already": (started("p", "former"), False),
    "it was not started": (entry("p", amount(5)), False),
    "it was started with something else": (started("p", "", "main", amount(6)), False),
    "it uses nothing that is known": (msgspec.structs.replace(started("p"), uses=()), False),
    "nothing is assigned to the pod": (started("q"), False),
    "nothing is assigned to the container": (started("p", container="side"), False),
}


@pytest.mark.parametrize("case", COMPLETED)
def test_what_an_agent_of_before_left_out_is_taken_in_where(case: str) -> None:
    each, want = COMPLETED[case]
    (found,) = completed([each], ASSIGNED, {**NOW, ("q", "main", UNITS): (amount(5),)}, lambda _: False)
    assert found == (msgspec.structs.replace(each, assignment="text", key="k", signature="s") if want else each)


def test_what_a_revoked_key_signed_is_forgotten() -> None:
    """The record outlives what is known of revoked keys."""
    record = [started("p", "text"), started("q", "other"), msgspec.structs.replace(started("r", "text"), key="good")]
    found = completed(record, {}, {}, "k".__eq__)
    assert [(each.assignment, each.key) for each in found] == [("", "k"), ("", "k"), ("text", "good")]


def test_what_a_revoked_key_signed_is_not_taken_from_the_pod_again() -> None:
    """Also where the pod says the same by another key, and where it was forgotten that the first was revoked."""
    void = completed([started("p", "text")], {}, {}, "k".__eq__)
    anew = {"p": SignedAssignment(assignment="text", key="agent")}
    assert completed(void, anew, NOW, "k".__eq__) == void
    assert completed(void, anew, NOW, lambda _: False) == void
    found = started_pod(void, "p")
    assert found is not None
    assert found.signed == SignedAssignment(key="k")
