"""Processes of ended pods on devices that others are about to get."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.gpunodes import facts, sevenths
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice, Exclusivity
from tessera.core.deviceplugin.allocations.gateobservation import GateObservation, GatePod
from tessera.core.deviceplugin.allocations.lastgate import devices_of_orphans, release, start
from tessera.core.deviceplugin.allocations.leftovers import DeviceProcess, leftovers, on_devices
from tessera.core.gpu.deviceids import DeviceId, overlap
from tessera.core.gpu.inventory import GpuProcess, Inventory

UIDS = ("new", "living", "ended", "gone")
GPUS = ("GPU-0", "GPU-1")
DEVICES = [DeviceId(gpu, place) for gpu in GPUS for place in (None, *sevenths()[:3])]
NEW = AgentAllocation(resource="nvidia.com/gpu", ids=("a",), uid="new", pod="ns/new", container="main")
POD = GatePod(name="ns/new")
OBSERVED = GateObservation(
    pods={"new": POD, "living": POD, "ended": GatePod(name="ns/ended", ended=True, ending=True)},
    running=frozenset(UIDS),
)

devices = st.sampled_from(DEVICES)
processes = st.lists(
    st.builds(
        DeviceProcess,
        pid=st.integers(1, 9),
        uid=st.sampled_from(UIDS),
        device=devices,
        memory_mib=st.sampled_from((0, 300, 900)),
    )
)
uses = st.builds(
    lambda device, exclusivity: AllocatedDevice(
        device=DeviceId(device.gpu, device.placement),
        exclusivity=exclusivity,
        memory_mib=300 if exclusivity is Exclusivity.MEMORY else 0,
        mps=None if exclusivity is Exclusivity.EXCLUSIVE else False,
    ),
    devices,
    st.sampled_from(Exclusivity),
)
entries = st.builds(
    lambda uid, use: AgentAllocation(resource="nvidia.com/gpu", ids=("b",), uid=uid, pod=f"ns/{uid}", uses=(use,)),
    st.sampled_from(("living", "gone")),
    uses,
)


@given(st.lists(entries, max_size=2), st.lists(uses, min_size=1, max_size=2), processes)
def test_no_container_starts_beside_a_process_of_an_ended_pod_on_a_device_of_its_own(
    before: list[AgentAllocation], own: list[AllocatedDevice], listed: list[DeviceProcess]
) -> None:
    """And such a process alone is a reason: with none the decision is as by the record."""
    new = msgspec.structs.replace(NEW, uses=tuple(own))
    record = tuple(before)
    found = leftovers(record, new, listed, {"new", "living"})
    capacity = dict.fromkeys(DEVICES, 1000)
    decision = start((*record, *found), new, OBSERVED, capacity, ids=True)
    alone = [use for use in own if use.exclusivity is Exclusivity.EXCLUSIVE]
    strangers = [each for each in listed if each.uid in {"ended", "gone"}]
    if any(overlap(use.device, each.device) for use in alone for each in strangers):
        assert decision.refused is not None
    if not any(overlap(use.device, each.device) for use in own for each in strangers):
        assert not found
    assert {each.uid for each in found} <= {"ended", "gone"}
    assert not leftovers((*record, *found), new, listed, {"new", "living"}), "each is recorded once"
    assert {each.uses[0] for each in found if each.uses[0].exclusivity is not Exclusivity.MEMORY} <= set(alone)


def test_it_says_which_process_and_pod() -> None:
    new = msgspec.structs.replace(NEW, uses=(AllocatedDevice(device=DeviceId("GPU-0")),))
    listed = [DeviceProcess(pid=pid, uid="gone", device=DeviceId("GPU-0")) for pid in (12, 7)]
    (found,) = leftovers((), new, listed, ())
    decision = start((found,), new, OBSERVED, {}, ids=True)
    assert decision.wait
    assert decision.refused is not None
    assert decision.refused.cause == "process 7 of pod gone, which has ended, uses GPU GPU-0"
    (orphaned,) = devices_of_orphans((found,), {"gone"})
    assert orphaned.reason == "pod gone is deleted, and its processes still use it"
    ended = msgspec.structs.replace(OBSERVED, running=frozenset())
    assert start((found,), new, ended, {}, ids=True).record == (msgspec.structs.replace(new, started=True),)
    assert release((found,), OBSERVED) == (found,)
    assert release((found,), ended) == ()
    assert release((found,), msgspec.structs.replace(OBSERVED, pods={"gone": POD})) == (), "it lives after all"


@pytest.mark.parametrize(("parts", "refused"), [((700,), False), ((701,), True), ((1, 699), False), ((1, 700), True)])
def test_of_a_shared_device_the_memory_of_all_processes_of_a_pod_counts(parts: tuple[int, ...], refused: bool) -> None:
    use = AllocatedDevice(device=DeviceId("GPU-0"), exclusivity=Exclusivity.MEMORY, memory_mib=300, mps=True)
    new = msgspec.structs.replace(NEW, uses=(use,))
    listed = [
        DeviceProcess(pid=pid, uid="gone", device=DeviceId("GPU-0"), memory_mib=memory_mib)
        for pid, memory_mib in enumerate(parts, 7)
    ]
    found = leftovers((), new, listed, ())
    assert [each.container for each in found] == ["process 7"]
    decision = start(found, new, OBSERVED, {use.device: 1000}, ids=False)
    assert (decision.refused is not None) is refused


def test_a_process_counts_for_nothing_that_is_of_the_pod_itself_or_of_an_entry_with_its_device() -> None:
    """An entry may have several devices."""
    uses = tuple(AllocatedDevice(device=DeviceId(each)) for each in ("GPU-0", "GPU-1"))
    new = msgspec.structs.replace(NEW, uses=uses[:1])
    listed = [DeviceProcess(pid=7, uid=uid, device=DeviceId("GPU-0")) for uid in (new.uid, "gone")]
    recorded = msgspec.structs.replace(NEW, uid="gone", uses=uses)
    assert leftovers((recorded,), new, listed, ()) == ()
    assert [each.uid for each in leftovers((), new, listed, ())] == ["gone"]


def test_a_process_counts_beside_what_is_recorded_of_its_pod_on_another_device_and_of_another_pod_on_this() -> None:
    new = msgspec.structs.replace(NEW, uses=(AllocatedDevice(device=DeviceId("GPU-0")),))
    elsewhere = msgspec.structs.replace(NEW, uid="gone", uses=(AllocatedDevice(device=DeviceId("GPU-1")),))
    other = msgspec.structs.replace(new, uid="ended")
    listed = [DeviceProcess(pid=7, uid="gone", device=DeviceId("GPU-0"))]
    for record in ((elsewhere,), (other,)):
        assert [each.uid for each in leftovers(record, new, listed, ())] == ["gone"]


def test_of_a_shared_device_a_process_without_memory_counts_for_nothing() -> None:
    use = AllocatedDevice(device=DeviceId("GPU-0"), exclusivity=Exclusivity.MEMORY, memory_mib=300, mps=True)
    new = msgspec.structs.replace(NEW, uses=(use,))
    assert leftovers((), new, [DeviceProcess(pid=7, uid="gone", device=DeviceId("GPU-0"))], ()) == ()


def test_processes_are_found_on_their_instance_and_by_their_pod() -> None:
    gpu = facts(0, layout=sevenths()[:2])
    number = gpu.instances[1].gpu_instance
    listed = (
        GpuProcess(pid=1, memory_mib=5),
        GpuProcess(pid=2, gpu_instance=number),
        GpuProcess(pid=3, gpu_instance=99),
        GpuProcess(pid=4, mps_client=True),
    )
    found = on_devices(gpu.uuid, listed, {1: "a", 2: "b", 3: "c"}, Inventory(gpus=(facts(1), gpu)))
    assert [(each.pid, each.uid, each.device, each.memory_mib) for each in found] == [
        (1, "a", DeviceId(gpu.uuid), 5),
        (2, "b", DeviceId(gpu.uuid, sevenths()[1]), 0),
        (3, "c", DeviceId(gpu.uuid), 0),
    ]
