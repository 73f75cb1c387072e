"""What a container uses by what the kubelet or its assignment names, and what an entry of the record says."""

import msgspec
import pytest

from builders.agententries import GPU, UNITS, amount, client, entry, whole
from builders.gpunodes import facts, sevenths
from builders.shares import share
from tessera.core.deviceplugin.allocations.agentallocations import (
    AgentAllocation,
    AllocatedDevice,
    Exclusivity,
    SignedAssignment,
    started_pod,
    uses_of_devices,
    uses_of_ids,
    uses_of_shares,
    with_assignments,
    without_other_forms,
)
from tessera.core.deviceplugin.allocations.clashes import clashes
from tessera.core.deviceplugin.allocations.kubeletallocations import RequestKey
from tessera.core.deviceplugin.offers.advertise import NodeOffer, PluginDevice, Resource
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Mode

SLICE = "nvidia.com/mig-1g.5gb"
FIRST, SECOND, PAIR = Placement(0, 1, "1g.5gb"), Placement(1, 1, "1g.5gb"), Placement(0, 2, "2g.10gb")


def test_who_holds_is_named() -> None:
    assert entry("a").holder == "container main of pod default/a"
    assert AgentAllocation(resource=UNITS, ids=("x",)).holder == "a pod that was just admitted"
    assert entry("a").request_key == RequestKey("default", "a", "main", entry("a").resource)


def device(name: str, mode: Mode, placement: Placement | None = None, *, clients: int = 2) -> PluginDevice:
    return PluginDevice(
        id=name, gpu_uuid=GPU, uuid=name.partition("::")[0], mode=mode, placement=placement, clients=clients
    )


def test_devices_by_name_and_their_replicas() -> None:
    assert uses_of_devices([device("GPU-0", Mode.WHOLE)]) == (whole(),)
    assert uses_of_devices([device("MIG-1", Mode.MIG, FIRST)]) == (whole(placement=FIRST),)
    assert uses_of_devices([device("GPU-0", Mode.MPS, clients=1)]) == (msgspec.structs.replace(amount(0), mps=True),)
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


def test_an_instance_that_another_has_replaced_excludes_nobody() -> None:
    gone = msgspec.structs.replace(whole(), absent=True)
    assert not gone.excludes(whole())
    assert not whole().excludes(gone)
    assert whole().excludes(whole())


def test_a_device_is_had_in_another_form_by_who_has_several() -> None:
    both = msgspec.structs.replace(had(GPUS, *WHOLE), uses=(whole(), whole("GPU-1")))
    offered = NodeOffer(resources=(Resource(name=GPUS, devices=SLICED),))
    assert without_other_forms(offered, [both])[0].resources == ()


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
    (found,) = with_assignments([each], ASSIGNED, {**NOW, ("q", "main", UNITS): (amount(5),)}, lambda _: False)
    assert found == (msgspec.structs.replace(each, assignment="text", key="k", signature="s") if want else each)


def test_what_a_revoked_key_signed_is_forgotten() -> None:
    """The record outlives what is known of revoked keys."""
    record = [started("p", "text"), started("q", "other"), msgspec.structs.replace(started("r", "text"), key="good")]
    found = with_assignments(record, {}, {}, "k".__eq__)
    assert [(each.assignment, each.key) for each in found] == [("", "k"), ("", "k"), ("text", "good")]


def test_what_a_revoked_key_signed_is_not_taken_from_the_pod_again() -> None:
    """Also where the pod says the same by another key, and where it was forgotten that the first was revoked."""
    void = with_assignments([started("p", "text")], {}, {}, "k".__eq__)
    anew = {"p": SignedAssignment(assignment="text", key="agent")}
    assert with_assignments(void, anew, NOW, "k".__eq__) == void
    assert with_assignments(void, anew, NOW, lambda _: False) == void
    found = started_pod(void, "p")
    assert found is not None
    assert found.signed == SignedAssignment(key="k")
