"""Who drives a GPU that is slowed down."""

import msgspec

from builders.usage import GPU, LARGE, PARTITIONED, SMALL, WHOLE, tenant
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.readings import EngineActivity, GpuReading, InstanceReading, ProcessReading
from tessera.core.usage.attribution import GpuUse, Owner, attributed
from tessera.core.usage.neighbours import Noise, noises

A, B, C = (tenant(name) for name in "abc")


def shared(gpu_percent: int, reasons: int = 0, **loads: int | None) -> GpuUse:
    """Return a GPU that the pods of these loads share."""
    processes = tuple(
        ProcessReading(pid=pid, memory_mib=1, sm_percent=load) for pid, load in enumerate(loads.values(), 1)
    )
    owners = {pid: Owner(uid=f"uid-{name}", container="main") for pid, name in enumerate(loads, 1)}
    reading = GpuReading(gpu_percent=gpu_percent, clocks_event_reasons=reasons, processes=processes)
    return attributed(GPU, reading, [A, B, C], owners)


def test_a_gpu_that_is_neither_throttled_nor_saturated_has_no_noise() -> None:
    assert tuple(noises(shared(80, reasons=0x1, a=60, b=20))) == ()
    alone = attributed(GPU, GpuReading(gpu_percent=100), [tenant("a", exclusive=True)], {})
    assert tuple(noises(alone)) == ()


def test_the_busiest_that_make_half_of_the_load_drive_a_throttled_gpu() -> None:
    assert tuple(noises(shared(80, reasons=0x4 | 0x20, a=60, b=20, c=10))) == (
        Noise(gpu=0, cause="power-cap", drivers=(A,), affected=(B, C)),
        Noise(gpu=0, cause="thermal", drivers=(A,), affected=(B, C)),
    )
    (even,) = noises(shared(90, reasons=0x4, a=20, b=30, c=30))
    assert even.drivers == (B, C)


def test_those_with_more_than_their_part_saturate_a_shared_device() -> None:
    (found,) = noises(shared(99, a=70, b=20, c=9))
    assert found == Noise(gpu=0, cause="saturated", drivers=(A,), affected=(B, C))


def test_where_loads_are_not_known_nobody_is_named() -> None:
    (found,) = noises(shared(99, a=None, b=None, c=None))
    assert found == Noise(gpu=0, cause="saturated", drivers=(), affected=(A, B, C))


def test_instances_drive_their_gpu_by_their_part_of_it() -> None:
    small, large = DeviceId("GPU-1", SMALL), DeviceId("GPU-1", LARGE)
    one, other = tenant("one", small, exclusive=True), tenant("other", large, exclusive=True)
    reading = GpuReading(
        clocks_event_reasons=0x40,
        instances=(
            InstanceReading(placement=SMALL, activity=EngineActivity(sm_percent=100)),
            InstanceReading(placement=LARGE, activity=EngineActivity(sm_percent=50)),
        ),
    )
    (found,) = noises(attributed(PARTITIONED, reading, [one, other], {}))
    assert (found.drivers, found.affected) == ((other,), (one,))


def test_a_saturated_instance_is_found_by_its_activity() -> None:
    device = DeviceId("GPU-1", SMALL)
    pair = [tenant("a", device), tenant("b", device)]
    reading = GpuReading(instances=(InstanceReading(placement=SMALL, activity=EngineActivity(sm_percent=97)),))
    (found,) = noises(attributed(PARTITIONED, reading, pair, {}))
    assert (found.cause, found.affected) == ("saturated", tuple(pair))
    plain = msgspec.structs.replace(PARTITIONED, model=msgspec.structs.replace(GPU.model, memory_slices=0))
    reading = msgspec.structs.replace(reading, clocks_event_reasons=0x4)
    throttled, _ = noises(attributed(plain, reading, pair, {}))
    assert (throttled.drivers, throttled.affected) == ((), tuple(pair))
    assert WHOLE not in {each.device for each in pair}
