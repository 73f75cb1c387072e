"""What pods hold."""

import msgspec
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from builders.nodefacts import gpu, node_of
from builders.shares import share
from tessera.core.cluster.instances import placement_of
from tessera.core.cluster.mpstargets import mps_key
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation, RequestKey
from tessera.core.deviceplugin.allocations.matching import AssignedRequest
from tessera.core.deviceplugin.allocations.poddevices import (
    PodDevices,
    assigned_devices,
    assigned_instances,
    devices_allocated_by_name,
    pod_devices,
    used_keys,
)
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import GpuFacts, MigMode
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Mode
from tessera.errors import InvalidInput

NEED = "tessera.dev/gpu-memory"
T4, CUT, EMPTY = (
    gpu(0),
    gpu(1, "A100-40GB", "all-3g.20gb"),
    gpu(2, "A100-40GB", mig=MigMode(current=True, pending=True)),
)
NODE = node_of(T4, CUT, EMPTY)
MADE = Placement(4, 4, "3g.20gb")


def request(pod: str, *shares: Share) -> AssignedRequest:
    return AssignedRequest(key=RequestKey("default", pod, "main", NEED), units=1, shares=shares)


def allocation(pod: str, resource: str, *ids: str) -> KubeletAllocation:
    return KubeletAllocation(namespace="default", pod=pod, container="main", resource=resource, device_ids=ids)


@for_all(
    st.sampled_from([T4, CUT, EMPTY]),
    st.none() | st.sampled_from([each.name for each in CUT.model.profiles]) | st.text(max_size=5),
    st.none() | st.integers(-1, 9),
)
def test_a_place_is_as_asked_or_refused(facts: GpuFacts, profile: str | None, start: int | None) -> None:
    mode = Mode.MIG if profile else Mode.MEMORY_SHARE
    requested = msgspec.structs.replace(share(facts.index), mode=mode, profile=profile, start=start)
    try:
        place = placement_of(requested, facts)
    except InvalidInput:
        place = None
        assert assigned_instances([request("p", requested)], NODE) <= {
            (facts.uuid, each.placement) for each in facts.instances if each.placement.start == start
        }
    else:
        assert (place is None) == (profile is None and start is None)
    if place is not None:
        assert (place.profile, place.start) == (profile, start)
        assert (facts.uuid, place) in assigned_instances([request("p", requested)], NODE)


GIVEN = {
    "nothing": ([], set()),
    "memory of a whole GPU": ([request("p", share(0))], set()),
    "an instance that is there": ([request("p", share(1, at="3g.20gb@4"))], {DeviceId("GPU-1", MADE)}),
    "an instance that is not made yet": (
        [request("p", share(2, at="1g.5gb@6"))],
        {DeviceId("GPU-2", Placement(6, 1, "1g.5gb"))},
    ),
    "an instance that goes by another name here": ([request("p", share(1, at="3g.19gb@4"))], {DeviceId("GPU-1", MADE)}),
    "an instance that cannot be, beside one that can": (
        [request("p", share(1, at="9g.1gb@7")), request("q", share(1, at="3g.20gb@4"))],
        {DeviceId("GPU-1", MADE)},
    ),
    "a GPU that is not there": ([request("p", share(7, at="3g.20gb@4"))], set()),
}


@pytest.mark.parametrize("case", GIVEN)
def test_what_pods_were_given_by_assignment(case: str) -> None:
    requests, want = GIVEN[case]
    assert assigned_instances(requests, NODE) == want


def test_assignments_name_instances_and_gpus() -> None:
    requests = [
        request("p", share(0), share(2, at="1g.5gb@6")),
        request("q", share(1, at="3g.20gb@4")),
        request("r", share(9)),
    ]
    want = {DeviceId("GPU-0"), DeviceId("GPU-2", Placement(6, 1, "1g.5gb")), ("GPU-1", MADE)}
    assert assigned_devices(requests, NODE) == want


def test_devices_that_pods_asked_for_by_name() -> None:
    record = [
        allocation("a", "nvidia.com/gpu", "GPU-0::3", "GPU-gone"),
        allocation("b", "nvidia.com/mig-3g.20gb", "MIG-1-1"),
        allocation("c", NEED, "GPU-2-_-0"),
    ]
    assert devices_allocated_by_name(record, NODE) == {DeviceId("GPU-0"), DeviceId("GPU-1", MADE)}


def test_pods_hold_what_the_record_says_or_their_assignment() -> None:
    record = [
        allocation("a", "nvidia.com/gpu", "GPU-0", "GPU-0"),
        allocation("b", NEED, "GPU-0-_-0", "GPU-0-_-1"),
        allocation("b", "nvidia.com/mig-3g.20gb", "MIG-1-0"),
        allocation("c", NEED, "GPU-0-_-2"),
        allocation("d", NEED, "GPU-0-_-3"),
    ]
    record += [allocation("e", NEED, "GPU-0-_-4"), allocation("f", NEED, "GPU-0-_-5")]
    requests = [
        request("b", share(1, at="3g.20gb@4")),
        request("c", share(1, at="1g.5gb@6")),
        request("nobody", share(2)),
    ]
    requests += [request("e", share(0)), request("f", share(1))]
    assert pod_devices(record, requests, NODE) == (
        PodDevices(pod="default/a", devices=("GPU-0",)),
        PodDevices(pod="default/b", devices=("MIG-1-1", "MIG-1-0")),
        PodDevices(pod="default/c", devices=()),
        PodDevices(pod="default/d", devices=("GPU-0-_-3",)),
        PodDevices(pod="default/e", devices=("GPU-0",)),
        PodDevices(pod="default/f", devices=()),
    )


def test_an_instance_in_the_place_of_another_is_not_held() -> None:
    """It is in the way of what the pod was assigned, and may be destroyed for it."""
    record = [allocation("a", NEED, "GPU-0-_-0")]
    assert pod_devices(record, [request("a", share(1, at="1g.5gb@4"))], NODE) == (
        PodDevices(pod="default/a", devices=()),
    )


def test_units_without_an_assignment_are_a_guess_at_best() -> None:
    record = [allocation("a", NEED, "GPU-0-_-0"), allocation("a", "nvidia.com/gpu", "GPU-1")]
    assert pod_devices(record, [], NODE) == (PodDevices(pod="default/a", devices=("GPU-0-_-0", "GPU-1")),)
    assert pod_devices(record, [], NODE, by_ids=False) == (PodDevices(pod="default/a", devices=("GPU-1",)),)


def test_devices_are_used_by_whoever_holds_them_or_a_part_of_them() -> None:
    pods = [
        PodDevices(pod="a", devices=("GPU-0-_-3", "GPU-gone")),
        PodDevices(pod="b", devices=("MIG-1-1::2",)),
    ]
    assert used_keys(pods, NODE) == {mps_key("GPU-0"), mps_key("GPU-1", MADE)}
    assert used_keys((), NODE) == frozenset()
