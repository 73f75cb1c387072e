"""Event sets: what is registered arrives, with the instance's ids, in whatever process waits."""

import threading
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from harness.nvmlcalls import cut_whole
from tessera.errors import InvalidInput
from tessera.sim.nvmlsim import Machine

XIDS = pynvml.nvmlEventTypeXidCriticalError


def watch(types: int, *gpus: Any) -> Any:
    events = pynvml.nvmlEventSetCreate()
    for gpu in gpus:
        pynvml.nvmlDeviceRegisterEvents(gpu, types, events)
    return events


def nothing_more(events: Any) -> bool:
    try:
        pynvml.nvmlEventSetWait_v2(events, 0)
    except pynvml.NVMLError_Timeout:
        return True
    return False


def test_an_xid_names_gpu_and_instance(machine: Machine, a100: Any, t4: Any) -> None:
    events = watch(XIDS, a100, t4)
    machine.inject_xid(0, 94, gpu_instance=7, compute_instance=0)
    machine.inject_xid(1, 48)
    got = [pynvml.nvmlEventSetWait_v2(events, 1000) for _ in range(2)]
    assert [pynvml.nvmlDeviceGetIndex(each.device) for each in got] == [0, 1]
    assert [(each.eventType, each.eventData) for each in got] == [(XIDS, 94), (XIDS, 48)]
    assert [(each.gpuInstanceId, each.computeInstanceId) for each in got] == [(7, 0), (0xFFFFFFFF, 0xFFFFFFFF)]
    assert nothing_more(events)
    pynvml.nvmlEventSetFree(events)


def test_every_set_sees_every_event_from_its_making_on(machine: Machine, t4: Any) -> None:
    machine.inject_xid(1, 1)
    first = watch(XIDS, t4)
    machine.inject_xid(1, 2)
    second = watch(XIDS, t4)
    machine.inject_xid(1, 3)
    assert [pynvml.nvmlEventSetWait(first, 0).eventData for _ in range(2)] == [2, 3]
    assert pynvml.nvmlEventSetWait(second, 0).eventData == 3
    for events in (first, second):
        assert nothing_more(events)
        pynvml.nvmlEventSetFree(events)


def test_only_what_is_registered_arrives(machine: Machine, a100: Any, t4: Any) -> None:
    events = watch(XIDS, t4)
    machine.inject_xid(0, 48)
    cut_whole(a100, 19, 0, 1)
    assert nothing_more(events)
    pynvml.nvmlEventSetFree(events)


def test_a_change_of_instances_is_an_event(a100: Any) -> None:
    events = watch(pynvml.nvmlEventMigConfigChange, a100)
    instance, compute = cut_whole(a100, 19, 0, 1)
    pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)
    assert {pynvml.nvmlEventSetWait(events, 0).eventType for _ in range(4)} == {pynvml.nvmlEventMigConfigChange}
    assert nothing_more(events)
    pynvml.nvmlEventSetFree(events)


def test_the_first_version_of_waiting_tells_no_instance(machine: Machine, a100: Any) -> None:
    events = watch(XIDS, a100)
    machine.inject_xid(0, 94, gpu_instance=7, compute_instance=0)
    data = pynvml.c_nvmlEventData_t()
    assert pynvml._nvmlGetFunctionPointer("nvmlEventSetWait")(events, pynvml.byref(data), 0) == pynvml.NVML_SUCCESS
    assert (data.eventData, data.gpuInstanceId) == (94, 0xFFFFFFFF)
    pynvml.nvmlEventSetFree(events)


def test_who_waits_is_woken(machine: Machine, t4: Any) -> None:
    events = watch(XIDS, t4)
    seen: list[int] = []
    waiting = threading.Thread(target=lambda: seen.append(pynvml.nvmlEventSetWait_v2(events, 30_000).eventData))
    waiting.start()
    machine.inject_xid(1, 63)
    waiting.join(timeout=20)
    assert seen == [63]
    pynvml.nvmlEventSetFree(events)


def test_a_lost_gpu_is_reported_after_its_last_event(machine: Machine, t4: Any) -> None:
    events = watch(XIDS, t4)
    machine.lose(1)
    assert pynvml.nvmlEventSetWait_v2(events, 0).eventData == 79
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlEventSetWait_v2(events, 1000)
    pynvml.nvmlEventSetFree(events)


def test_of_too_many_events_the_newest_are_kept(machine: Machine, t4: Any) -> None:
    events = watch(XIDS, t4)
    for number in range(1, 1100):
        machine.inject_xid(1, number)
    assert pynvml.nvmlEventSetWait_v2(events, 0).eventData == 1100 - 1024
    pynvml.nvmlEventSetFree(events)


def test_what_is_not_there_cannot_be_waited_for(machine: Machine, t4: Any) -> None:
    supported = pynvml.nvmlDeviceGetSupportedEventTypes(t4)
    assert supported & XIDS
    assert supported & pynvml.nvmlEventMigConfigChange
    events = watch(supported, t4)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceRegisterEvents(t4, 1 << 40, events)
    pynvml.nvmlEventSetFree(events)
    calls: list[Callable[[], object]] = [
        lambda: pynvml.nvmlEventSetFree(events),
        lambda: pynvml.nvmlEventSetWait_v2(events, 0),
        lambda: pynvml.nvmlDeviceRegisterEvents(t4, XIDS, events),
    ]
    for call in calls:
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            call()
    with pytest.raises(InvalidInput):
        machine.inject_xid(2, 48)


def test_sets_are_not_without_number(t4: Any) -> None:
    sets = [watch(XIDS, t4) for _ in range(64)]
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        pynvml.nvmlEventSetCreate()
    for events in sets:
        pynvml.nvmlEventSetFree(events)
