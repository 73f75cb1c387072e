"""Whose memory and load it is."""

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.usage import GPU, LARGE, PARTITIONED, SMALL, WHOLE, allocation
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.readings import EngineActivity, GpuReading, InstanceReading, ProcessReading
from tessera.core.usage.attribution import ENDED, ContainerDevice, ContainerUsage, DeviceUsage, Owner, attribute_usage

A, B, C = (allocation(name) for name in "abc")


def owner(pod: str, container: str = "main") -> Owner:
    return Owner(uid=f"uid-{pod}", container=container)


def process(pid: int, memory_mib: int | None, percent: int | None = None, on: int | None = None) -> ProcessReading:
    return ProcessReading(pid=pid, memory_mib=memory_mib, sm_percent=percent, gpu_instance=on)


def device_of(
    reading: GpuReading, allocations: list[ContainerDevice], owners: Mapping[int, Owner | None] | None
) -> DeviceUsage:
    (device,) = attribute_usage(GPU, reading, allocations, owners).devices
    return device


def uses(device: DeviceUsage) -> dict[str, tuple[int | None, float | None]]:
    return {each.allocation.pod: (each.memory_mib, each.gpu_percent) for each in device.containers}


def test_three_pods_on_a_shared_gpu_have_what_their_processes_use() -> None:
    reading = GpuReading(
        memory_used_mib=1000,
        gpu_percent=90,
        processes=(process(1, 300, 50), process(2, 100, 20), process(3, 200, 20), process(9, 150, 5)),
    )
    owners = {1: owner("a"), 2: owner("a"), 3: owner("b"), 9: None}
    device = device_of(reading, [C, A, B], owners)
    assert uses(device) == {"a": (400, 70), "b": (200, 20), "c": (0, 0)}
    assert (device.used_mib, device.unattributed_mib, device.exclusive_allocation) == (1000, 400, None)


def test_a_container_that_has_a_device_to_itself_uses_all_of_it() -> None:
    own = allocation("a", exclusive=True)
    device = device_of(GpuReading(memory_used_mib=700, gpu_percent=30, processes=(process(1, 300),)), [own], None)
    assert uses(device) == {"a": (700, 30)}
    assert (device.unattributed_mib, device.exclusive_allocation) == (0, own)
    two = device_of(GpuReading(memory_used_mib=700, processes=()), [own, allocation("b", exclusive=True)], {})
    assert (two.exclusive_allocation, uses(two)) == (None, {"a": (0, 0), "b": (0, 0)})


def test_what_the_driver_does_not_report_of_one_process_is_not_known_of_its_container() -> None:
    reading = GpuReading(memory_used_mib=500, processes=(process(1, 300, 50), process(2, None), process(3, 9, 4)))
    device = device_of(reading, [A, B], {1: owner("a"), 2: owner("a"), 3: owner("b")})
    assert uses(device) == {"a": (None, None), "b": (9, 4)}
    assert device.unattributed_mib is None


def test_where_processes_cannot_be_seen_only_idle_devices_are_known() -> None:
    assert uses(device_of(GpuReading(processes=(process(1, 3),)), [A, B], None)) == {
        "a": (None, None),
        "b": (None, None),
    }
    assert uses(device_of(GpuReading(processes=()), [A, B], None)) == {"a": (0, 0), "b": (0, 0)}


@pytest.mark.parametrize("owners", [None, {}])
def test_where_it_is_unknown_which_processes_there_are_no_container_is_idle(
    owners: Mapping[int, Owner | None] | None,
) -> None:
    device = device_of(GpuReading(memory_used_mib=500, gpu_percent=90), [A, B], owners)
    assert uses(device) == {"a": (None, None), "b": (None, None)}
    assert device.unattributed_mib is None
    assert device_of(GpuReading(memory_used_mib=500), [], owners).unattributed_mib == 500, "nobody has a part of it"


def test_a_process_whose_instance_is_unknown_may_be_on_each() -> None:
    small, large = DeviceId("GPU-1", SMALL), DeviceId("GPU-1", LARGE)
    instances = (InstanceReading(placement=SMALL), InstanceReading(placement=LARGE))
    allocations = [allocation("a", small), allocation("b", large)]
    for processes in (None, (process(1, 40, on=7), process(2, 5))):
        found = attribute_usage(
            PARTITIONED, GpuReading(instances=instances, processes=processes), allocations, {1: owner("a")}
        )
        assert [uses(each) for each in found.devices] == [{"a": (None, None)}, {"b": (None, None)}]
    known = GpuReading(instances=instances[:1], processes=(process(1, 40, on=7),))
    found = attribute_usage(PARTITIONED, known, allocations, {1: owner("a")})
    assert [uses(each) for each in found.devices] == [{"a": (40, None)}, {"b": (None, None)}], "one was not measured"


def test_no_container_has_more_memory_than_its_device_and_a_process_counts_once() -> None:
    most = GPU.memory_total_mib
    owners = {1: owner("a"), 2: owner("a"), 3: owner("b")}
    processes = (process(1, most // 2, 5), process(2, most, 6), process(3, 7, 8), process(3, 7, 8))
    device = device_of(GpuReading(memory_used_mib=most, processes=processes), [A, B], owners)
    assert uses(device) == {"a": (None, 11), "b": (7, 8)}
    reading = GpuReading(instances=(InstanceReading(placement=SMALL),), processes=(process(1, 4866, on=7),))
    first, _ = attribute_usage(PARTITIONED, reading, [allocation("a", DeviceId("GPU-1", SMALL))], owners).devices
    assert uses(first) == {"a": (None, None)}


def on_small(*memory_mib: int) -> DeviceUsage:
    """Return an instance of 4,864 MiB with the containers `a` and `b`, of one process each."""
    reading = GpuReading(
        instances=(InstanceReading(placement=SMALL, memory_used_mib=4864),),
        processes=tuple(process(pid, each, on=7) for pid, each in enumerate(memory_mib, 1)),
    )
    allocations = [allocation(each, DeviceId("GPU-1", SMALL)) for each in "ab"]
    return attribute_usage(PARTITIONED, reading, allocations, {1: owner("a"), 2: owner("b")}).devices[0]


def test_containers_together_have_no_more_memory_than_their_device() -> None:
    impossible = on_small(4000, 4000)
    assert (uses(impossible), impossible.unattributed_mib) == ({"a": (None, None), "b": (None, None)}, None)
    rounded = on_small(2433, 2432)
    assert (uses(rounded), rounded.unattributed_mib) == ({"a": (2433, None), "b": (2432, None)}, 0)


def test_the_rounding_of_processes_is_no_impossible_memory() -> None:
    small = [allocation("a", DeviceId("GPU-1", SMALL))]
    for second, want in ((2432, 4864), (2433, 4864), (2434, None)):
        processes = (process(1, 2433, on=7), process(2, second, on=7))
        reading = GpuReading(instances=(InstanceReading(placement=SMALL),), processes=processes)
        first, _ = attribute_usage(PARTITIONED, reading, small, {1: owner("a"), 2: owner("a")}).devices
        assert [each.memory_mib for each in first.containers] == [want]


def test_a_process_whose_container_is_unknown_may_be_of_each_of_the_device() -> None:
    reading = GpuReading(memory_used_mib=500, processes=(process(1, 300, 50), process(2, 100, 5)))
    device = device_of(reading, [A, B], {1: owner("a")})
    assert (uses(device), device.unattributed_mib) == ({"a": (None, None), "b": (None, None)}, None)
    assert device_of(reading, [], {1: None}).unattributed_mib == 500, "nobody has a part of it"
    small, large = DeviceId("GPU-1", SMALL), DeviceId("GPU-1", LARGE)
    processes = (process(1, 40, on=7), process(2, 5, on=2))
    reading = GpuReading(
        instances=(InstanceReading(placement=SMALL), InstanceReading(placement=LARGE)), processes=processes
    )
    on_both = attribute_usage(PARTITIONED, reading, [allocation("a", small), allocation("b", large)], {1: owner("a")})
    assert [uses(each) for each in on_both.devices] == [{"a": (40, None)}, {"b": (None, None)}], "not of another"


def test_a_process_of_which_only_the_pod_is_known_is_its_one_container_s() -> None:
    other = allocation("b", container="side")
    reading = GpuReading(memory_used_mib=10, processes=(process(1, 3, 1), process(2, 4, 1)))
    device = device_of(reading, [A, B, other], {1: owner("a", ""), 2: owner("b", "")})
    found = [(each.allocation.pod, each.allocation.container, each.memory_mib) for each in device.containers]
    assert found == [("a", "main", 3), ("b", "main", None), ("b", "side", None)]


def test_instances_have_their_own_processes_and_those_that_do_not_exist_nobody() -> None:
    small, large = DeviceId("GPU-1", SMALL), DeviceId("GPU-1", LARGE)
    allocations = [
        allocation("a", small),
        allocation("b", small),
        allocation("c", large, exclusive=True),
        allocation("d", WHOLE),
    ]
    reading = GpuReading(
        instances=(
            InstanceReading(placement=LARGE, memory_used_mib=900, activity=EngineActivity(sm_percent=40)),
            InstanceReading(placement=SMALL, memory_used_mib=60),
        ),
        processes=(process(1, 40, on=7), process(2, 20, on=7), process(3, 800, on=2)),
    )
    found = attribute_usage(PARTITIONED, reading, allocations, {1: owner("a"), 2: owner("b"), 3: owner("c")})
    first, second = found.devices
    assert (first.device, uses(first)) == (small, {"a": (40, None), "b": (20, None)})
    assert (second.device, uses(second), second.activity) == (
        large,
        {"c": (900, None)},
        EngineActivity(sm_percent=40),
    )
    gone = attribute_usage(PARTITIONED, GpuReading(), allocations, {}).devices
    assert [(each.used_mib, each.activity) for each in gone] == [(None, None), (None, None)]


def test_a_container_that_has_a_device_twice_is_counted_once_with_all_that_it_was_granted() -> None:
    twice = [A, msgspec.structs.replace(A, allocated_mib=512), A]
    (found,) = device_of(GpuReading(processes=()), twice, {}).containers
    assert found == ContainerUsage(
        allocation=msgspec.structs.replace(A, allocated_mib=1536), memory_mib=0, gpu_percent=0
    )
    unknown = device_of(GpuReading(), [A, msgspec.structs.replace(A, allocated_mib=None)], {})
    assert unknown.containers[0].allocation.allocated_mib is None


PROCESSES = st.lists(
    st.builds(
        ProcessReading,
        pid=st.integers(1, 9),
        memory_mib=st.one_of(st.none(), st.integers(0, 2000)),
        sm_percent=st.one_of(st.none(), st.integers(0, 100)),
    ),
    unique_by=lambda each: each.pid,
    max_size=9,
)
OWNERS = st.dictionaries(st.integers(1, 9), st.sampled_from([*(owner(each) for each in "abcx"), None, ENDED]))


@given(PROCESSES, OWNERS, st.one_of(st.none(), st.integers(0, 40000)))
def test_containers_never_use_more_than_all_processes_do_and_all_memory_is_somebody_s(
    processes: list[ProcessReading], owners: Mapping[int, Owner | None], used_mib: int | None
) -> None:
    device = device_of(GpuReading(memory_used_mib=used_mib, processes=tuple(processes)), [A, B, C], owners)
    known = [each.memory_mib for each in device.containers if each.memory_mib is not None]
    assert sum(known) <= sum(each.memory_mib or 0 for each in processes)
    if device.unattributed_mib is not None:
        assert used_mib is not None
        assert sum(known) + device.unattributed_mib == max(used_mib, sum(known))
    assert all(0 <= (each.gpu_percent or 0) <= 100 for each in device.containers)


@given(PROCESSES, OWNERS, st.one_of(st.none(), st.integers(0, 40000)))
def test_a_process_that_has_ended_hides_nobody_s_use(
    processes: list[ProcessReading], owners: Mapping[int, Owner | None], used_mib: int | None
) -> None:
    """As if it had not been listed; but what it computed is reported."""
    ended = [each for each in processes if owners.get(each.pid) == ENDED]
    running = tuple(each for each in processes if each not in ended)
    found = device_of(GpuReading(memory_used_mib=used_mib, processes=tuple(processes)), [A, B, C], owners)
    without = device_of(GpuReading(memory_used_mib=used_mib, processes=running), [A, B, C], owners)
    assert msgspec.structs.replace(found, ended_percent=without.ended_percent) == without
    if all(each.pid in owners for each in processes) and all(each.sm_percent is not None for each in ended):
        assert found.ended_percent == min(sum(each.sm_percent or 0 for each in ended), 100)


def test_on_a_shared_instance_where_no_process_runs_its_activity_is_of_those_that_have_ended() -> None:
    """Under MIG the driver samples no processes."""
    where = DeviceId(PARTITIONED.uuid, SMALL)
    gpu_instance = PARTITIONED.instances[0].gpu_instance
    shared = [allocation(name, where, allocated_mib=2432) for name in "ab"]

    def ended_percent(*processes: ProcessReading, percent: float | None) -> float | None:
        activity = None if percent is None else EngineActivity(sm_percent=percent)
        instance = InstanceReading(placement=SMALL, memory_used_mib=700, activity=activity)
        owners = {1: owner("a"), 2: ENDED}
        use = attribute_usage(PARTITIONED, GpuReading(instances=(instance,), processes=processes), shared, owners)
        return next(each.ended_percent for each in use.devices if each.device == where)

    running, ended = process(1, 300, on=gpu_instance), process(2, 0, on=gpu_instance)
    assert ended_percent(percent=80) == ended_percent(ended, percent=80) == 80
    assert ended_percent(running, percent=80) is None, "it may be of the one that runs"
    assert ended_percent(percent=None) is None


def test_active_multiprocessors_count_where_they_are_measured_else_utilization() -> None:
    own = [allocation("a", exclusive=True)]
    for activity, want in ((None, 90), (EngineActivity(tensor_percent=5), 90), (EngineActivity(sm_percent=40), 40)):
        device = device_of(GpuReading(gpu_percent=90, activity=activity), own, {})
        assert (device.busy_percent, device.containers[0].busy_percent) == (want, want)
    processes = (process(1, 10, 70),)
    shared = device_of(
        GpuReading(gpu_percent=90, activity=EngineActivity(sm_percent=40), processes=processes), [A, B], {1: owner("a")}
    )
    assert (shared.busy_percent, [each.busy_percent for each in shared.containers]) == (40, [70, 0])
