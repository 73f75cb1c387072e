"""What containers used since they were first seen."""

from builders.usage import GPU, PARTITIONED, SMALL, allocation
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.readings import EngineActivity, GpuReading, InstanceReading, ProcessReading
from tessera.core.usage.attribution import ENDED, GpuUsage, Owner, attribute_usage
from tessera.core.usage.containerhistory import Histories, UsageHistory, update_histories

A = allocation("a", exclusive=True)
KEY = (A.key, A.device)


def used(memory_mib: int | None, percent: int | None = None) -> GpuUsage:
    return attribute_usage(GPU, GpuReading(memory_used_mib=memory_mib, gpu_percent=percent), [A], {})


def test_the_most_memory_and_the_mean_load_are_kept_since_a_container_was_first_seen() -> None:
    found: Histories = {}
    for now_s, use in enumerate((used(100, 50), used(300, 10), used(None), used(200, 30))):
        found = update_histories(found, [use], float(now_s))
    want = UsageHistory(last_s=3.0, peak_mib=300, known_s=2.0, load_known_s=2.0, percent_sum=90, percent_count=3)
    assert found == {KEY: want}
    assert found[KEY].mean_percent == 30


def test_what_was_never_known_is_not_and_who_is_gone_is_forgotten() -> None:
    found = update_histories({}, [used(None)], 5.0)
    assert found == {KEY: UsageHistory(last_s=5.0)}
    assert found[KEY].mean_percent is None
    assert update_histories(found, [attribute_usage(GPU, GpuReading(), [], {})], 6.0) == {}


def test_only_time_in_which_usage_was_known_was_observed() -> None:
    found: Histories = {}
    for now_s, use in (
        (0.0, used(0, 0)),
        (15.0, used(None)),
        (30.0, used(100)),
        (45.0, used(None)),
        (60.0, used(7, 7)),
    ):
        found = update_histories(found, [use], now_s)
    assert (found[KEY].known_s, found[KEY].load_known_s) == (30.0, 15.0)
    found = update_histories(found, [used(7, 7)], 7200.0)
    assert (found[KEY].known_s, found[KEY].load_known_s) == (90.0, 75.0), "nothing was observed for two hours"


def test_while_processes_that_have_ended_use_a_shared_device_nobody_is_known_to_be_idle() -> None:
    """Any container may have started them; what runs is the least that each used."""
    shared = [allocation(name, allocated_mib=4096) for name in "ab"]
    key = (shared[0].key, shared[0].device)
    found: Histories = {}
    for now_s, ended_percent in enumerate((0, 4, 60, 60, 0)):
        running = ProcessReading(pid=1, memory_mib=100 * (now_s + 1) % 500, sm_percent=20)
        ended = ProcessReading(pid=2, memory_mib=0, sm_percent=ended_percent)
        owners = {1: Owner(uid="uid-a", container="main"), 2: ENDED}
        use = attribute_usage(GPU, GpuReading(memory_used_mib=900, processes=(running, ended)), shared, owners)
        found = update_histories(found, [use], float(now_s))
    assert (found[key].known_s, found[key].load_known_s, found[key].peak_mib) == (2.0, 2.0, 400)
    assert (found[key].mean_percent, found[key].percent_count) == (20, 3)


def test_an_instance_s_load_is_its_activity() -> None:
    own = allocation("a", DeviceId("GPU-1", SMALL), exclusive=True)
    reading = GpuReading(instances=(InstanceReading(placement=SMALL, activity=EngineActivity(sm_percent=40)),))
    (history,) = update_histories({}, [attribute_usage(PARTITIONED, reading, [own], {})], 0.0).values()
    assert history.mean_percent == 40
