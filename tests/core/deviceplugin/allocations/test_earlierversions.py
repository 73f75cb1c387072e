"""What entries of earlier agents lack, and how it is found."""

import msgspec
import pytest

from tessera.core.cluster.mpstargets import mps_key
from tessera.core.deviceplugin.allocations.agentallocations import (
    AgentAllocation,
    AllocatedDevice,
    AssignedDevices,
    Exclusivity,
)
from tessera.core.deviceplugin.allocations.earlierversions import (
    assigned_uses,
    is_vague,
    supplemented,
    with_answers,
    with_strategies,
)
from tessera.core.deviceplugin.allocations.gateobservation import GatePod
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.mig import Placement

NAMED, UNITS = "nvidia.com/gpu", "tessera.dev/gpu-memory"
PLACE = Placement(0, 1, "1g.5gb")
TURNS = AllocatedDevice(device=DeviceId("GPU-0"), exclusivity=Exclusivity.REPLICA)
WHOLE = AllocatedDevice(device=DeviceId("GPU-1"))
PART = AllocatedDevice(device=DeviceId("GPU-0"), exclusivity=Exclusivity.MEMORY, memory_mib=5)
POD = GatePod(name="ns/a", lasting=frozenset({"proxy", "main"}), order=("proxy", "init", "main"))


def entry(*uses: AllocatedDevice, container: str = "main", resource: str = NAMED) -> AgentAllocation:
    return AgentAllocation(resource=resource, ids=("x",), uses=uses, uid="a", pod="ns/a", container=container)


def by_mps(use: AllocatedDevice, *, mps: bool | None) -> AllocatedDevice:
    return msgspec.structs.replace(use, mps=mps)


# sentence: (uses, resource, assigned uses, whether the pod runs, daemons, the uses that are known then)
SHARED: dict[
    str, tuple[tuple[AllocatedDevice, ...], str, tuple[AllocatedDevice, ...], bool, set[str], list[bool | None]]
] = {
    "a replica on a GPU without a daemon": ((TURNS,), NAMED, (), True, set(), [False]),
    "a replica on a GPU with one": ((TURNS,), NAMED, (), True, {mps_key("GPU-0")}, [True]),
    "a replica of an instance with one": (
        (msgspec.structs.replace(TURNS, device=DeviceId(TURNS.device.gpu, PLACE)),),
        NAMED,
        (),
        True,
        {mps_key("GPU-0", PLACE)},
        [True],
    ),
    "a replica of a pod that does not run": ((TURNS,), NAMED, (), False, set(), [None]),
    "replicas of two GPUs, of which one is known": (
        (by_mps(TURNS, mps=False), msgspec.structs.replace(TURNS, device=DeviceId("GPU-2"))),
        NAMED,
        (),
        True,
        {mps_key("GPU-0"), mps_key("GPU-2")},
        [False, True],
    ),
    "a whole GPU beside a replica": ((WHOLE, TURNS), NAMED, (), True, set(), [None, False]),
    "an amount, by its assignment": ((PART,), UNITS, (by_mps(PART, mps=True),), False, set(), [True]),
    "an amount of a pod with another assignment": (
        (PART,),
        UNITS,
        (msgspec.structs.replace(PART, memory_mib=6, mps=True),),
        True,
        {mps_key("GPU-0")},
        [None],
    ),
    "an amount without an assignment": ((PART,), UNITS, (), True, set(), [None]),
}


@pytest.mark.parametrize("case", SHARED)
def test_by_what_a_shared_device_is_served(case: str) -> None:
    uses, resource, assigned, runs, daemons, want = SHARED[case]
    known: AssignedDevices = {("a", "main", resource): assigned} if assigned else {}
    (found,) = supplemented([entry(*uses, resource=resource)], {"a": POD}, known, {"a"} if runs else (), daemons)
    assert [use.mps for use in found.uses] == want
    assert [by_mps(use, mps=None) for use in found.uses] == [by_mps(use, mps=None) for use in uses]
    again = supplemented([found], {"a": POD}, known, {"a"}, {mps_key("GPU-0")} - daemons)
    assert [found] == list(again) or is_vague(found), "what is known stays"


def test_where_a_container_stands_in_its_pod() -> None:
    record = [entry(WHOLE, container=each) for each in ("main", "init", "proxy", "debugger")]
    found = supplemented(record, {"a": POD}, {}, (), ())
    assert [(each.order, each.initial) for each in found] == [(2, False), (1, True), (0, False), (-1, False)]


def test_of_a_pod_that_is_gone_nothing_is_known() -> None:
    record = (entry(TURNS), entry(PART, resource=UNITS))
    assert supplemented(record, {}, {}, (), ()) == record


def test_whose_sharing_is_unknown() -> None:
    assert [is_vague(entry(each)) for each in (WHOLE, TURNS, PART, by_mps(TURNS, mps=False))] == [
        False,
        True,
        True,
        False,
    ]


def test_what_amounts_use_is_looked_up_for_containers_whose_sharing_is_unknown_alone() -> None:
    def allocated(container: str, resource: str, uid: str = "a") -> KubeletAllocation:
        return KubeletAllocation(uid=uid, container=container, resource=resource, device_ids=("x",))

    record = [
        entry(PART, resource=UNITS),
        entry(by_mps(PART, mps=False), container="known", resource=UNITS),
        entry(TURNS, container="named"),
    ]
    kubelets = [
        allocated("main", UNITS),
        allocated("known", UNITS),
        allocated("named", NAMED),
        allocated("main", UNITS, uid="b"),
    ]
    looked_up = []

    def uses_of(each: KubeletAllocation) -> tuple[AllocatedDevice, ...]:
        looked_up.append(each)
        return (PART,)

    assert assigned_uses(record, kubelets, uses_of) == {("a", "main", UNITS): (PART,)}
    assert looked_up == kubelets[:1]


def test_how_former_agents_answered_is_kept_as_devices_are_handed_over_when_that_is_first_looked_at() -> None:
    new = msgspec.structs.replace(entry(WHOLE), strategies=("envvar",))
    answer = AgentAllocation(resource=NAMED, ids=("y",), uses=(WHOLE,))
    found = with_strategies((entry(TURNS), new, answer), ("cdi-cri",))
    assert [each.strategies for each in found] == [("cdi-cri",), ("envvar",), ()]
    assert with_strategies(found, ("envvar",)) == found
    assert with_strategies((entry(TURNS),), ()) == (entry(TURNS),)


def told(visible: str = "", memory_mib: int = 0) -> ContainerResponse:
    limit = (("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", f"0={memory_mib}M"),) if memory_mib else ()
    return ContainerResponse(env=(("NVIDIA_VISIBLE_DEVICES", visible), *limit))


@pytest.mark.parametrize("clients", range(1, 49))
@pytest.mark.parametrize("capacity_mib", [4864, 15360, 40326, 81559])
@pytest.mark.parametrize("replicas", [1, 2])
def test_into_how_many_replicas_by_mps_a_device_is_divided(clients: int, capacity_mib: int, replicas: int) -> None:
    """For every number that MPS serves, by the limit that the container was told."""
    device = DeviceId("GPU-0")
    ids = tuple(f"GPU-0::{each}" for each in range(replicas))
    each = AgentAllocation(resource=NAMED, ids=ids, uses=(TURNS,), uid="a", pod="ns/a", container="main")
    answer = told("GPU-0", replicas * (capacity_mib // clients))
    (found,) = with_answers([each], {("a", "main", NAMED): answer}, {device: capacity_mib})
    assert found.uses == (msgspec.structs.replace(TURNS, mps=True, clients=clients),)
    assert found.answer_known


SHARED_SLICE = msgspec.structs.replace(PART, device=DeviceId("GPU-0", PLACE))

# what an answer says: the entry, the answer, the fields that change
ANSWERED: dict[str, tuple[AgentAllocation, ContainerResponse, dict[str, object]]] = {
    "indices": (entry(WHOLE), told("0,1:0"), {"indices": ("0", "1:0")}),
    "an index beside a UUID, which no agent wrote": (entry(WHOLE), told("0,GPU-1"), {}),
    "indices that are known": (msgspec.structs.replace(entry(WHOLE), indices=("3",)), told("0"), {}),
    "UUIDs by name, which the ids have": (entry(WHOLE), told("GPU-1"), {}),
    "nothing, by CDI": (entry(WHOLE), ContainerResponse(), {}),
    "UUIDs of a share": (entry(SHARED_SLICE, resource=UNITS), told("MIG-1"), {"uuids": ("MIG-1",)}),
    "words that are no UUIDs of a share": (entry(PART, resource=UNITS), told("all"), {}),
    "UUIDs of a share that are known": (
        msgspec.structs.replace(entry(SHARED_SLICE, resource=UNITS), uuids=("MIG-2",)),
        told("MIG-1"),
        {},
    ),
    "the UUID of a share of a GPU": (entry(PART, resource=UNITS), told("GPU-0"), {"uuids": ("GPU-0",)}),
    "a limit that is none": (entry(TURNS), told("GPU-0", 0), {}),
    "a limit of more digits than any GPU has MiB": (entry(TURNS), told("GPU-0", int("9" * 12)), {}),
    "a limit of a device that the driver does not show now": (
        entry(msgspec.structs.replace(TURNS, device=DeviceId("GPU-2"))),
        told("GPU-2", 5),
        {
            "uses": (msgspec.structs.replace(TURNS, device=DeviceId("GPU-2"), mps=True),),
            "answer_known": False,
        },
    ),
    "a limit of two devices of which the driver shows one": (
        entry(TURNS, msgspec.structs.replace(TURNS, device=DeviceId("GPU-2"))),
        told("GPU-0,GPU-2", 50),
        {
            "uses": (
                msgspec.structs.replace(TURNS, mps=True, clients=2),
                msgspec.structs.replace(TURNS, device=DeviceId("GPU-2"), mps=True),
            ),
            "answer_known": False,
        },
    ),
    "a limit of a whole GPU": (entry(WHOLE), told("GPU-1", 5), {}),
    "a limit of a replica by time-slicing": (entry(by_mps(TURNS, mps=False)), told("GPU-0", 5), {}),
}


@pytest.mark.parametrize("case", ANSWERED)
def test_what_an_answer_says(case: str) -> None:
    each, answer, changed = ANSWERED[case]
    found = with_answers(
        [each], {("a", "main", each.resource): answer}, {DeviceId("GPU-0"): 100, DeviceId("GPU-1"): 100}
    )
    assert found == (msgspec.structs.replace(each, **{"answer_known": True} | changed),)
    assert with_answers([each], {}, {}) == (each,)
    known = msgspec.structs.replace(each, answer_known=True)
    assert with_answers([known], {("a", "main", each.resource): answer}, {}) == (known,)
