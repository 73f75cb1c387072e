"""Which containers slow down a GPU."""

import itertools
import math
from collections import Counter

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from builders.usage import GPU, LARGE, PARTITIONED, SMALL, WHOLE, allocation
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.readings import EngineActivity, GpuReading, InstanceReading, ProcessReading
from tessera.core.usage.attribution import ENDED, ContainerDevice, GpuUsage, Owner, attribute_usage
from tessera.core.usage.contention import ContainerLoad, Contention, DeviceLoad, GpuLoad, contention_of, gpu_load

ALLOCATIONS = tuple(allocation(name) for name in "abc")
A, B, C = (each.name for each in ALLOCATIONS)


def found_on(gpu: GpuUsage) -> tuple[Contention, ...]:
    (found,) = contention_of([gpu_load(gpu)])
    return found


def slowed(cause: str, *devices: DeviceLoad) -> tuple[Contention, ...]:
    (found,) = contention_of([GpuLoad(causes=(cause,), devices=devices)])
    return found


def shared(
    gpu_percent: int,
    reasons: int = 0,
    *,
    allocations: tuple[ContainerDevice, ...] = ALLOCATIONS,
    **loads: int | None,
) -> GpuUsage:
    """Return a GPU that the pods of these loads share."""
    processes = tuple(
        ProcessReading(pid=pid, memory_mib=1, sm_percent=load) for pid, load in enumerate(loads.values(), 1)
    )
    owners = {pid: Owner(uid=f"uid-{name}", container="main") for pid, name in enumerate(loads, 1)}
    reading = GpuReading(gpu_percent=gpu_percent, clocks_event_reasons=reasons, processes=processes)
    return attribute_usage(GPU, reading, allocations, owners)


def test_a_gpu_that_is_neither_throttled_nor_saturated_has_no_contention() -> None:
    assert (found_on(shared(80, reasons=0x1, a=60, b=20))) == ()
    alone = attribute_usage(GPU, GpuReading(gpu_percent=100), [allocation("a", exclusive=True)], {})
    assert (found_on(alone)) == ()


def test_the_busiest_that_make_half_of_the_load_cause_throttling() -> None:
    assert (found_on(shared(80, reasons=0x4 | 0x20, a=60, b=20, c=10))) == (
        Contention(cause="power-cap", caused_by=(A,), affected=(B, C)),
        Contention(cause="thermal", caused_by=(A,), affected=(B, C)),
    )
    (even,) = found_on(shared(90, reasons=0x4, a=20, b=30, c=30))
    assert even.caused_by == (B, C)


def test_those_with_more_than_their_part_saturate_a_shared_device() -> None:
    (found,) = found_on(shared(99, a=70, b=20, c=9))
    assert found == Contention(cause="saturated", caused_by=(A,), affected=(B, C))


def test_a_fair_share_is_not_blamed() -> None:
    for loads, evenly in (
        ({"a": 34, "b": 33, "c": 33}, (A, B, C)),
        ({"a": 33, "b": 34, "c": 33}, (A, B, C)),
        ({"a": 50, "b": 50}, (A, B)),
        ({"a": 55, "b": 43}, (A, B)),
        ({"a": 41, "b": 41, "c": 14}, (A, B)),
    ):
        (found,) = found_on(shared(99, allocations=ALLOCATIONS[: len(loads)], **loads))
        assert (found.cause, found.caused_by, found.evenly) == ("saturated", (), evenly), loads
        assert len(found.affected) == len(loads)


def test_loads_that_overlap_are_compared_with_each_other() -> None:
    """As with MPS, where the kernels of each are measured while those of the others run too."""
    for loads, causing, evenly in (
        ((70, 70), "", "ab"),
        ((100, 100), "", "ab"),
        ((90, 90, 90), "", "abc"),
        ((100, 50), "a", ""),
        ((100, 100, 20), "ab", ""),
        ((90, None), "", ""),
        ((90, 90, None), "", ""),
        ((95, 0, None), "a", ""),
        ((25, 20, 20, 20, 15), "", "abcde"),
    ):
        containers = tuple(
            ContainerLoad(name=name, percent=percent) for name, percent in zip("abcde", loads, strict=False)
        )
        ((found,),) = contention_of([GpuLoad(devices=(DeviceLoad(percent=100, containers=containers),))])
        assert (found.caused_by, found.evenly) == (tuple(causing), tuple(evenly)), loads


def test_a_chain_of_nearly_equal_loads_ends_a_fifth_below_the_last_that_counts_by_itself() -> None:
    """Neither somebody with less than an equal part is accused, nor somebody with a fifth of the culprit's load."""
    for loads, saturating, throttling in (
        ((30, 24.5, 20, 16.2, 13.1), "ab", "abc"),
        ((17, 14, 13, 11, 10, 9, 8, 6, 6, 5), "abcde", "abcdef"),
        ((39.8, 16, 13.6, 11.3, 9.6, 7.9, 1.1, 0.6), "abc", "abc"),
        ((35, 28, 22.4, 14.6), "ab", "abc"),
        ((22, 17.6, 14.1, 11.3, 9.1, 7.3, 5.9, 4.8, 3.9, 3.2), "abcd", "abcd"),
    ):
        containers = tuple(
            ContainerLoad(name=name, percent=each) for name, each in zip("abcdefghij", loads, strict=False)
        )
        throttled, saturated = slowed("power-cap", DeviceLoad(percent=99, containers=containers))
        assert (saturated.caused_by, throttled.caused_by) == (tuple(saturating), tuple(throttling)), loads


def test_programs_that_take_turns_are_named_together_though_the_driver_measures_them_apart() -> None:
    """As an H100 did: of programs of equal work, beside an idle one, 60 and 40 %, or 46 and 53."""
    for loads, causing in (((60, 40, 0), "ab"), ((53, 46, 0), "ab"), ((75, 25, 0), "a"), ((60, 34, 6), "a")):
        containers = tuple(ContainerLoad(name=name, percent=each) for name, each in zip("abc", loads, strict=True))
        ((found,),) = contention_of([GpuLoad(devices=(DeviceLoad(percent=100, containers=containers),))])
        assert found.caused_by == tuple(causing), loads


def test_an_unknown_load_may_be_any() -> None:
    for loads, causing in (
        ((100, 81, 66, 53), "ab"),
        ((100, None, 66, 53), "a"),
        ((100, 81, 10, 10), "ab"),
        ((100, 75, 75, 0, 60), "abc"),
        ((100, 80, 75, 0, None), "abc"),
        ((95, 0, None), "a"),
    ):
        containers = tuple(ContainerLoad(name=name, percent=each) for name, each in zip("abcde", loads, strict=False))
        ((found,),) = contention_of([GpuLoad(devices=(DeviceLoad(percent=100, containers=containers),))])
        assert found.caused_by == tuple(causing), loads


def test_two_that_use_most_of_what_four_share_saturate_it() -> None:
    loads = tuple(
        ContainerLoad(name=name, percent=percent) for name, percent in zip("abcd", (50, 50, 0, 0), strict=True)
    )
    ((found,),) = contention_of([GpuLoad(devices=(DeviceLoad(percent=100, containers=loads),))])
    assert (found.caused_by, found.evenly, found.affected) == (("a", "b"), (), ("c", "d"))


def test_where_loads_are_not_known_nobody_uses_it_equally() -> None:
    for loads in ({"a": 50, "b": None}, {"a": 35, "b": 35}, {"a": 62, "b": 14}):
        (found,) = found_on(shared(99, allocations=ALLOCATIONS[:2], **loads))
        assert (found.caused_by, found.evenly) == ((), ()), loads


def test_where_loads_are_not_known_nobody_is_named() -> None:
    (found,) = found_on(shared(99, a=None, b=None, c=None))
    assert found == Contention(cause="saturated", caused_by=(), affected=(A, B, C))


def test_instances_load_their_gpu_by_their_part_of_it() -> None:
    small, large = DeviceId("GPU-1", SMALL), DeviceId("GPU-1", LARGE)
    one, other = allocation("one", small, exclusive=True), allocation("other", large, exclusive=True)
    reading = GpuReading(
        clocks_event_reasons=0x4,
        instances=(
            InstanceReading(placement=SMALL, activity=EngineActivity(sm_percent=100)),
            InstanceReading(placement=LARGE, activity=EngineActivity(sm_percent=50)),
        ),
    )
    (found,) = found_on(attribute_usage(PARTITIONED, reading, [one, other], {}))
    assert (found.caused_by, found.affected) == ((other.name,), (one.name,))


def test_a_saturated_instance_is_found_by_its_activity() -> None:
    device = DeviceId("GPU-1", SMALL)
    pair = [allocation("a", device), allocation("b", device)]
    reading = GpuReading(instances=(InstanceReading(placement=SMALL, activity=EngineActivity(sm_percent=97)),))
    (found,) = found_on(attribute_usage(PARTITIONED, reading, pair, {}))
    assert (found.cause, found.affected) == ("saturated", tuple(each.name for each in pair))
    plain = msgspec.structs.replace(PARTITIONED, model=msgspec.structs.replace(GPU.model, profiles=()))
    reading = msgspec.structs.replace(reading, clocks_event_reasons=0x4)
    throttled, _ = found_on(attribute_usage(plain, reading, pair, {}))
    assert (throttled.caused_by, throttled.affected) == ((), tuple(each.name for each in pair))
    assert WHOLE not in {each.device for each in pair}


def test_nobody_is_blamed_for_the_load_of_another_that_is_not_known() -> None:
    (found,) = found_on(shared(94, reasons=0x4, a=None, b=9))
    assert (found.caused_by, found.affected) == ((), (A, B, C)), "nine tenths may be a's"
    (found,) = found_on(shared(94, reasons=0x4, a=None, b=60))
    assert found.caused_by == (B,), "nobody else can have as much"
    (found,) = found_on(shared(80, reasons=0x4, b=9))
    assert found.caused_by == (), "the rest is of processes in no pod"


def test_a_container_whose_helper_is_idle_causes_what_its_other_process_does() -> None:
    processes = (
        ProcessReading(pid=1, sm_percent=90),
        ProcessReading(pid=2, sm_percent=0),
        ProcessReading(pid=3, sm_percent=9),
    )
    owners = {pid: Owner(uid=f"uid-{name}", container="main") for pid, name in ((1, "a"), (2, "a"), (3, "b"))}
    reading = GpuReading(gpu_percent=99, clocks_event_reasons=0x4, processes=processes)
    throttled, saturated = found_on(attribute_usage(GPU, reading, ALLOCATIONS[:2], owners))
    assert throttled == Contention(cause="power-cap", caused_by=(A,), affected=(B,))
    assert (saturated.cause, saturated.caused_by) == ("saturated", (A,))


def test_a_shared_gpu_is_saturated_in_time_or_in_its_multiprocessors() -> None:
    for percent, activity in (
        (100, EngineActivity(sm_percent=60)),
        (100, EngineActivity(tensor_percent=5)),
        (90, EngineActivity(sm_percent=96)),
    ):
        reading = GpuReading(gpu_percent=percent, activity=activity)
        (found,) = found_on(attribute_usage(GPU, reading, ALLOCATIONS[:2], None))
        assert found.cause == "saturated"


def test_the_cause_is_not_known_on_a_gpu_with_an_instance_of_which_nothing_is_known() -> None:
    pair = (ContainerLoad(name="a", percent=90), ContainerLoad(name="c", percent=1))
    known = DeviceLoad(percent=91, part=3 / 7, containers=pair)
    unknown = DeviceLoad(part=1 / 7, containers=(ContainerLoad(name="b"),))
    (found,) = slowed("power-cap", known, unknown)
    assert found == Contention(cause="power-cap", affected=("a", "c", "b"))
    (found,) = slowed("power-cap", known, msgspec.structs.replace(unknown, containers=()))
    assert found.caused_by == (), "a process of no pod may be on it"
    (found,) = slowed("power-cap", known, DeviceLoad(percent=100, part=None))
    assert found.caused_by == (), "one is on it, and how much of the GPU that is is unknown"
    (found,) = slowed("power-cap", known, DeviceLoad(percent=0, part=None))
    assert found.caused_by == ("a",), "nobody is on it"
    (found,) = slowed("power-cap", msgspec.structs.replace(known, percent=None))
    assert found.caused_by == (), "beside both there may be another"
    measured = msgspec.structs.replace(unknown, percent=100.0)
    (found,) = slowed("power-cap", known, measured)
    assert found.caused_by == ("a",), "whoever is on it has a seventh at the most"


@st.composite
def loaded(draw: st.DrawFn) -> tuple[DeviceLoad, ...]:
    """Return devices whose containers, if any, have a known load, together no more than their device."""
    names = iter("abcdefghijkl")
    devices = []
    for part in draw(st.sampled_from([(1.0,), (1 / 7, 3 / 7), (3 / 7, 3 / 7, 1 / 7)])):
        bounds = [0, *sorted(draw(st.lists(st.integers(0, 100), max_size=4)))]
        steps = itertools.pairwise(bounds)
        containers = tuple(ContainerLoad(name=next(names), percent=upper - lower) for lower, upper in steps)
        devices.append(DeviceLoad(percent=draw(st.integers(bounds[-1], 100)), part=part, containers=containers))
    return tuple(devices)


def causing_in(devices: tuple[DeviceLoad, ...]) -> dict[str, tuple[str, ...]]:
    """Return who causes throttling and saturation: the devices are of one GPU, and of GPUs that have one each."""
    counts: Counter[str] = Counter()
    causing = {}
    for each in found_of(devices):
        counts[each.cause] += 1
        causing[f"{each.cause} {counts[each.cause]}"] = each.caused_by
    return causing


def found_of(devices: tuple[DeviceLoad, ...], cause: str = "power-cap") -> tuple[Contention, ...]:
    apart = (GpuLoad(causes=("thermal",), devices=(each,)) for each in devices)
    return (*slowed(cause, *devices), *itertools.chain(*contention_of(tuple(apart))))


@given(st.lists(st.integers(0, 100), min_size=2, max_size=6), st.integers(95, 100))
def test_those_well_above_an_equal_part_saturate_a_device_or_it_is_shared_evenly(
    loads: list[int], percent: int
) -> None:
    equal = max(100, sum(loads)) / len(loads)
    containers = tuple(ContainerLoad(name=str(number), percent=load) for number, load in enumerate(loads))
    (found,) = contention_of([GpuLoad(devices=(DeviceLoad(percent=percent, containers=containers),))])[0]
    by_name = {each.name: each.percent or 0 for each in containers}
    assert all(by_name[name] >= equal for name in found.caused_by), "nobody with less than an equal part"
    last = min((load for load in loads if load > 1.25 * equal), default=math.inf)
    assert set(found.caused_by) == {name for name, load in by_name.items() if load >= max(last / (5 / 3), equal)}
    assert all(equal / 2 <= by_name[name] <= 2 * equal for name in found.evenly)
    assert not (found.caused_by and found.evenly)
    assert len(found.evenly) != 1
    if not found.caused_by and sum(loads) >= percent:
        assert found.evenly, "all of the load is theirs, and none of them has much more than the others"


@given(st.lists(st.integers(0, 100), min_size=2, max_size=6), st.data())
def test_a_load_that_is_not_known_makes_nobody_saturate_a_device(loads: list[int], data: st.DataObject) -> None:
    hidden = data.draw(st.sets(st.sampled_from(range(len(loads)))))

    def causing(*unknown: int) -> set[str]:
        containers = tuple(
            ContainerLoad(name=str(number), percent=None if number in unknown else load)
            for number, load in enumerate(loads)
        )
        ((found,),) = contention_of([GpuLoad(devices=(DeviceLoad(percent=100, containers=containers),))])
        return set(found.caused_by)

    assert causing(*hidden) <= causing()


@given(loaded(), st.data())
def test_a_load_that_is_not_known_makes_nobody_a_cause(devices: tuple[DeviceLoad, ...], data: st.DataObject) -> None:
    names = [each.name for device in devices for each in device.containers]
    hidden = data.draw(st.sets(st.sampled_from(names))) if names else set[str]()
    less = tuple(
        msgspec.structs.replace(
            device,
            containers=tuple(
                msgspec.structs.replace(each, percent=None) if each.name in hidden else each
                for each in device.containers
            ),
        )
        for device in devices
    )
    before, after = causing_in(devices), causing_in(less)
    assert after.keys() == before.keys() if len(names) > 1 else after.keys() <= before.keys()
    for each in found_of(less):
        assert hidden.isdisjoint(each.evenly)
    for cause, named in after.items():
        assert set(named) <= set(before[cause])
        assert hidden.isdisjoint(named)


@given(loaded(), st.data())
def test_a_device_of_unknown_load_makes_nobody_a_cause_and_not_known_to_be_none(
    devices: tuple[DeviceLoad, ...], data: st.DataObject
) -> None:
    hidden = data.draw(st.sets(st.sampled_from(range(len(devices))), min_size=1))
    less = tuple(
        msgspec.structs.replace(each, percent=None) if number in hidden else each for number, each in enumerate(devices)
    )
    for before, after in zip(throttled_by(devices), throttled_by(less), strict=True):
        assert set(after.caused_by) <= set(before.caused_by)
        assert before.nobody or not after.nobody


def throttled_by(devices: tuple[DeviceLoad, ...]) -> tuple[Contention, ...]:
    """Return what is said of a hot GPU with these devices, and of hot GPUs that have one each."""
    return tuple(each for each in found_of(devices, "thermal") if each.cause == "thermal")


@given(loaded())
def test_whoever_is_accused_slows_down_another_or_a_gpu_that_is_too_hot(devices: tuple[DeviceLoad, ...]) -> None:
    names = {each.name for device in devices for each in device.containers}
    for found in slowed("power-cap", *devices):
        if found.cause == "power-cap":
            assert found.affected or len(found.caused_by) > 1 or not names
        assert not (found.nobody and found.caused_by)


@given(loaded())
def test_those_who_cause_throttling_are_needed_for_half_of_the_load_or_nearly_as_busy_as_the_last_that_is(
    devices: tuple[DeviceLoad, ...],
) -> None:
    loads = {each.name: (each.percent or 0) * (device.part or 0) for device in devices for each in device.containers}
    assume(len(loads) > 1)  # one alone is not accused
    rests = [
        ((device.percent or 0) - sum(each.percent or 0 for each in device.containers)) * (device.part or 0)
        for device in devices
    ]
    total = sum((device.percent or 0) * (device.part or 0) for device in devices)
    # Without each of these the others that may be as busy have less than half.
    above = {
        load: sum(each for each in loads.values() if each > load) + sum(rest for rest in rests if rest >= load)
        for load in loads.values()
    }
    half = total / 2 * (1 - 1e-9)  # sums are rounded
    last = min((load for load in loads.values() if load > 0 and above[load] < half), default=math.inf)
    throttled = slowed("power-cap", *devices)[0]
    assert set(throttled.caused_by) == {name for name, load in loads.items() if 1.25 * load >= last}
    assert {*throttled.caused_by, *throttled.affected} == loads.keys()
    named = [loads[each] for each in throttled.caused_by]
    assert named == sorted(named, reverse=True)
    if total == sum(loads.values()):
        assert sum(named) >= total / 2


def test_half_of_the_load_is_half_though_the_parts_of_instances_are_rounded() -> None:
    for loads, causing in (((45, 50, 80), ("a",)), ((55, 70, 80), ("a",)), ((44, 50, 80), ("a", "b", "c"))):
        instances = zip(("a", "b", "c"), loads, (4 / 7, 2 / 7, 1 / 7), strict=True)
        devices = (
            DeviceLoad(percent=percent, part=part, containers=(ContainerLoad(name=name, percent=percent),))
            for name, percent, part in instances
        )
        (found,) = slowed("power-cap", *devices)
        assert found.caused_by == causing, loads


@given(
    st.lists(st.sampled_from([5, 20, 40, 70, 100]), min_size=2, max_size=6),
    st.lists(st.floats(0.95, 1.05), min_size=6, max_size=6),
)
def test_containers_of_equal_loads_stay_together_however_their_measures_jitter(
    loads: list[int], jitter: list[float]
) -> None:
    """Where no other load is at the border of nearly equal."""
    containers = tuple(
        ContainerLoad(name=str(number), percent=load * by)
        for number, (load, by) in enumerate(zip(loads, jitter, strict=False))
    )
    device = DeviceLoad(percent=100, containers=containers)
    at_cap, saturated = slowed("power-cap", device)
    equal = max(100, sum(each.percent or 0 for each in containers)) / len(loads)
    away = all(not 0.9 * equal < load < 1.4 * equal for load in loads)  # from the load that counts
    for found in (at_cap, *([saturated] if away else [])):
        for one, other in itertools.combinations(range(len(loads)), 2):
            if loads[one] == loads[other]:
                assert (str(one) in found.caused_by) == (str(other) in found.caused_by), found.cause


def test_nobody_heats_an_idle_gpu_on_an_idle_node_and_unknown_is_not_nobody() -> None:
    for gpu in (GpuLoad(causes=("thermal",)), alone("a", 0, "thermal")):
        ((found,),) = contention_of([gpu])
        assert (found.caused_by, found.scope, found.nobody) == ((), "node", True)
    ((unknown,),) = contention_of([alone("a", None, "thermal")])
    assert (unknown.caused_by, unknown.nobody) == ((), False)
    foreign = DeviceLoad(percent=90, containers=(ContainerLoad(name="a", percent=0),))
    ((outside,),) = contention_of([GpuLoad(causes=("thermal",), devices=(foreign,))])
    assert (outside.caused_by, outside.nobody) == ((), False), "a process outside the pods is not nobody"
    for unmeasured in (DeviceLoad(part=3 / 7), DeviceLoad(containers=(ContainerLoad(name="a", percent=0),))):
        for gpu in (GpuLoad(causes=("thermal", "power-cap"), devices=(unmeasured,)), alone("b", 20, "thermal")):
            ((here, *_), _) = contention_of([gpu, GpuLoad(devices=(unmeasured,))])
            assert (here.caused_by, here.nobody) == ((), False), "who knows what runs there"
    (here,) = slowed("power-brake", DeviceLoad(percent=0), alone("a", 60).devices[0])
    assert here.caused_by == ("a",)
    (here,) = slowed("power-brake", DeviceLoad(), alone("a", 60).devices[0])
    assert here.caused_by == ()
    ((hot,), *_) = contention_of([alone("b", 0, "thermal"), alone("a", 60), GpuLoad(devices=(DeviceLoad(),))])
    assert (hot.caused_by, hot.nobody) == ((), False)
    idle = tuple(ContainerLoad(name=name, percent=0) for name in "ab")
    (at_cap,) = slowed("power-cap", DeviceLoad(percent=0, containers=idle))
    assert at_cap.nobody
    (at_cap,) = slowed("power-cap", DeviceLoad(containers=idle))
    assert not at_cap.nobody, "a process of no pod may be busy"
    strange = DeviceLoad(percent=90, part=None, containers=(ContainerLoad(name="a", percent=90),))
    ((hot,), _) = contention_of([GpuLoad(causes=("thermal",)), GpuLoad(devices=(strange,))])
    assert not hot.nobody, "how much of its GPU a new MIG profile is may be unknown"


@pytest.mark.parametrize("percent", [None, 0, 3, 50, 100])
def test_a_pod_alone_on_a_gpu_at_its_power_limit_is_not_accused(percent: float | None) -> None:
    assert contention_of([alone("a", percent, "power-cap"), alone("b", 100)]) == ((), ())
    assert contention_of([GpuLoad(causes=("power-cap",))]) == ((),)


def test_a_process_outside_the_pods_that_takes_the_power_of_a_pod_is_said() -> None:
    foreign = DeviceLoad(percent=90, containers=(ContainerLoad(name="a", percent=9),))
    assert slowed("power-cap", foreign) == (Contention(cause="power-cap", affected=("a",)),)


def test_of_nearly_equal_loads_all_cause_throttling_or_none() -> None:
    def named(percent: float, *loads: float) -> str:
        containers = tuple(ContainerLoad(name=name, percent=load) for name, load in zip("abcdef", loads, strict=False))
        (found,) = slowed("power-cap", DeviceLoad(percent=percent, containers=containers))[:1]
        return "".join(found.caused_by)

    assert named(90, 45, 45) == "ab"
    assert named(99, 33, 33, 33) == "abc"
    assert named(100, 60, 20, 20) == "a"
    assert named(90, 30, 30) == "ab", "30 % are of somebody else, of whom there may be several"
    assert named(100, 50, 0) == "", "somebody else has as much"
    assert named(98, 50, 48) == named(98, 48, 50)[::-1] == "ab"
    assert named(100, 33, 36, 31) == "bac"
    assert named(96, 40, 22, 10) == "a", "24 % of somebody else may be busier than b"
    assert named(92, 40, 22, 10) == "ab", "20 % of somebody else are not"
    assert named(65.4, 27.1, 11, 8.8, 7.2, 6.2, 5.1) == "abc", "none with a fifth of the load of a"
    assert named(94, 36, 30) == "ab", "28 % of somebody else do not tell them apart"


def alone(name: str, percent: float | None, *causes: str) -> GpuLoad:
    """Return a GPU that one container has."""
    device = DeviceLoad(percent=percent, containers=(ContainerLoad(name=name, percent=percent),))
    return GpuLoad(causes=causes, devices=(device,))


def test_a_hot_gpu_that_does_little_is_heated_by_the_busy_gpus_of_its_node() -> None:
    heated, _, _ = contention_of([alone("a", 20, "thermal", "power-cap"), alone("b", 95), alone("c", 45)])
    thermal = Contention(cause="thermal", caused_by=("b",), affected=("a",), scope="node")
    assert heated == (thermal,), "a power limit is the GPU's own"
    own, _ = contention_of([alone("a", 50, "power-brake"), alone("b", 95)])
    assert own == (Contention(cause="power-brake", caused_by=("a",)),)


def test_the_cause_is_not_known_on_a_hot_node_that_does_little_or_of_which_something_is_not_known() -> None:
    heated, *_ = contention_of([alone("a", 20, "thermal"), alone("b", 45)])
    assert heated == (Contention(cause="thermal", affected=("a",), scope="node", nobody=True),)
    heated, *_ = contention_of([alone("a", 20, "thermal"), alone("b", 95), alone("c", None)])
    assert heated == (Contention(cause="thermal", affected=("a",), scope="node"),), "c may be busy"
    unknown, _ = contention_of([alone("a", None, "thermal"), alone("b", 95)])
    assert unknown == (Contention(cause="thermal", affected=("a",)),)
    assert contention_of([GpuLoad(causes=("thermal",)), alone("b", 95)])[0][0].caused_by == ("b",), "nobody is on it"


def test_exited_processes_of_the_gpus_that_cause_it_are_said_and_not_those_of_the_gpu_that_they_heat() -> None:
    exited = msgspec.structs.replace(alone("a", 20).devices[0], ended=True)
    heated, _ = contention_of([GpuLoad(causes=("thermal",), devices=(exited,)), alone("b", 95)])
    assert [each.ended for each in heated] == [False]
    busy = msgspec.structs.replace(alone("b", 95).devices[0], ended=True)
    heated, _ = contention_of([alone("a", 20, "thermal"), GpuLoad(devices=(busy,))])
    assert [each.ended for each in heated] == [True]


@pytest.mark.parametrize(("percent", "want"), [(4, False), (5, True)])
def test_exited_processes_that_did_little_are_not_said(percent: int, want: bool) -> None:
    processes = (ProcessReading(pid=1, sm_percent=90), ProcessReading(pid=2, sm_percent=percent))
    reading = GpuReading(gpu_percent=99, processes=processes)
    owners = {1: Owner(uid="uid-a", container="main"), 2: ENDED}
    load = gpu_load(attribute_usage(GPU, reading, ALLOCATIONS, owners))
    assert [each.ended for each in load.devices] == [want]


@pytest.mark.parametrize(("used_mib", "want"), [(64, 0.0), (65, None), (None, None)])
def test_a_device_without_the_memory_of_a_process_does_nothing(used_mib: int | None, want: float | None) -> None:
    reading = GpuReading(instances=(InstanceReading(placement=SMALL, memory_used_mib=used_mib),))
    for containers in ([], [allocation("a", DeviceId("GPU-1", SMALL), exclusive=True)]):
        (device, *_) = gpu_load(attribute_usage(PARTITIONED, reading, containers, {})).devices
        assert device.percent == want
    busy = msgspec.structs.replace(reading.instances[0], activity=EngineActivity(sm_percent=40))
    (device, *_) = gpu_load(attribute_usage(PARTITIONED, GpuReading(instances=(busy,)), [], {})).devices
    assert device.percent == 40, "what is measured counts"


def test_one_verdict_is_given_of_a_contention() -> None:
    for contention, want in (
        (Contention(cause="saturated", evenly=("a", "b")), "even"),
        (Contention(cause="saturated", evenly=("a", "b"), caused_by=("a",)), "even"),
        (Contention(cause="thermal", caused_by=("a",), nobody=True), "caused"),
        (Contention(cause="thermal", caused_by=("a",)), "caused"),
        (Contention(cause="thermal", nobody=True), "nobody"),
        (Contention(cause="thermal"), "unknown"),
    ):
        assert contention.verdict == want
