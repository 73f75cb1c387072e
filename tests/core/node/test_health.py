"""Devices fall ill by errors, rest, stand probation, and are healthy again."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.gpufacts import at, gpu_facts
from builders.nodefacts import node_of
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.inventory import GpuEvent, Inventory
from tessera.core.node.health import (
    GRAVE_XIDS,
    Health,
    HealthChange,
    HealthPhase,
    HealthPolicy,
    Xids,
    observed,
    reported,
    xid_class,
)
from tessera.errors import InvalidInput

SMALL, LARGE = at(model("A100-40GB"), ("1g.5gb", 0), ("3g.20gb", 4))
NODE = node_of(gpu_facts(layout=(SMALL, LARGE)), gpu_facts("T4", index=1))
POLICY = HealthPolicy(rest_s=10, longest_rest_s=100, probation_s=5, forgive_s=1000)
BAD = 63


def error(gpu: int = 1, xid: int = BAD, instance: int | None = None) -> GpuEvent:
    return GpuEvent(gpu=f"GPU-{gpu}", xid=xid, gpu_instance=instance)


def after(event: GpuEvent, health: Health | None = None, now_s: float = 0.0, inventory: Inventory = NODE) -> Health:
    return reported(health or Health(), event, inventory, now_s, POLICY)[0]


def inventoried(health: Health, now_s: float, inventory: Inventory = NODE) -> tuple[Health, tuple[HealthChange, ...]]:
    return observed(health, inventory, now_s, POLICY)


def without(gpu: int, inventory: Inventory = NODE) -> Inventory:
    """Return the node with one GPU lost."""
    gpus = tuple(msgspec.structs.replace(each, lost=each.index == gpu) for each in inventory.gpus)
    return msgspec.structs.replace(inventory, gpus=gpus)


@pytest.mark.parametrize(
    ("case", "event", "want"),
    [
        ("an error of a GPU", error(1), {DeviceId("GPU-1")}),
        ("an error of a GPU with instances is the GPU's", error(0), {DeviceId("GPU-0")}),
        ("an error of one instance is its alone", error(0, instance=2), {DeviceId("GPU-0", LARGE)}),
        ("an instance that is gone is nobody", error(0, instance=9), set()),
        ("an application's own error", error(1, xid=31), set()),
        ("a GPU that is not here", error(7), set()),
        ("a GPU the driver cannot name", GpuEvent(gpu="", xid=BAD), {DeviceId("GPU-0"), DeviceId("GPU-1")}),
        ("a lost GPU", GpuEvent(gpu="GPU-0", lost=True), {DeviceId("GPU-0")}),
        ("another MIG configuration", GpuEvent(gpu="GPU-0"), set()),
    ],
)
def test_an_event_strikes_what_it_names(case: str, event: GpuEvent, want: set[DeviceId]) -> None:
    health, changes = reported(Health(), event, NODE, 0.0, POLICY)
    assert health.unhealthy == want, case
    assert {change.device for change in changes} == want, case
    assert all((change.before, change.after) == (HealthPhase.HEALTHY, HealthPhase.UNHEALTHY) for change in changes)


def test_a_device_rests_stands_probation_and_is_healthy_again() -> None:
    health = after(error())
    found = []
    for now_s in (9.9, 10.0, 14.9, 15.0, 1014.9, 1015.0):
        health, changes = inventoried(health, now_s)
        found.append((now_s, health.phase(DeviceId("GPU-1")), health.unhealthy, [change.after for change in changes]))
    unhealthy = frozenset({DeviceId("GPU-1")})
    assert found == [
        (9.9, HealthPhase.UNHEALTHY, unhealthy, []),
        (10.0, HealthPhase.PROBATION, unhealthy, [HealthPhase.PROBATION]),
        (14.9, HealthPhase.PROBATION, unhealthy, []),
        (15.0, HealthPhase.HEALTHY, frozenset(), [HealthPhase.HEALTHY]),
        (1014.9, HealthPhase.HEALTHY, frozenset(), []),
        (1015.0, HealthPhase.HEALTHY, frozenset(), []),
    ]
    assert health == Health()


def test_a_burst_of_errors_is_one_illness_that_lasts_longer() -> None:
    health, changes = reported(after(error()), error(xid=94), NODE, 8.0, POLICY)
    assert changes == ()
    (state,) = dict(health.states).values()
    assert (state.reason, state.since_s, state.until_s, state.relapses) == ("XID 94", 0.0, 18.0, 0)


def test_each_relapse_doubles_the_rest_up_to_a_limit() -> None:
    health, now_s, rests = Health(), 0.0, []
    for _ in range(6):
        health = after(error(), health, now_s)
        assert health.wake_s is not None
        rests.append(health.wake_s - now_s)
        now_s = health.wake_s
        health, _ = inventoried(health, now_s)
        now_s += POLICY.probation_s
        health, _ = inventoried(health, now_s)
        assert health.unhealthy == frozenset()
    assert rests == [10, 20, 40, 80, 100, 100]


def test_an_error_during_probation_is_a_relapse() -> None:
    health, _ = inventoried(after(error()), 10.0)
    health, changes = reported(health, error(), NODE, 12.0, POLICY)
    assert [(change.before, change.after) for change in changes] == [(HealthPhase.PROBATION, HealthPhase.UNHEALTHY)]
    assert health.wake_s == 32.0


def test_forgiven_errors_do_not_count() -> None:
    health, _ = inventoried(after(error()), 10.0)
    health, _ = inventoried(health, 15.0)
    health, _ = inventoried(health, 1015.0)
    assert after(error(), health, 1015.0).wake_s == 1025.0


@pytest.mark.parametrize("xid", sorted(GRAVE_XIDS))
def test_after_a_grave_error_the_rest_is_long(xid: int) -> None:
    health = after(error(xid=xid))
    assert health.wake_s == POLICY.longest_rest_s
    assert after(error(), health, 1.0).wake_s == 1.0 + POLICY.longest_rest_s


def test_a_lost_gpu_rests_from_when_it_is_reached_again() -> None:
    health, changes = inventoried(Health(), 0.0, without(1))
    assert [(change.device, change.reason) for change in changes] == [
        (DeviceId("GPU-1"), "the driver no longer reaches it")
    ]
    health, changes = inventoried(health, 50.0, without(1))
    assert changes == ()
    health, _ = inventoried(health, 51.0)
    assert health.phase(DeviceId("GPU-1")) is HealthPhase.UNHEALTHY
    health, _ = inventoried(health, 60.0)
    assert health.phase(DeviceId("GPU-1")) is HealthPhase.PROBATION
    health, _ = inventoried(health, 61.0, without(1))
    assert health.phase(DeviceId("GPU-1")) is HealthPhase.UNHEALTHY


def test_instances_of_a_lost_gpu_do_not_recover_meanwhile() -> None:
    health = after(error(0, instance=1))
    health, _ = inventoried(health, 50.0, without(0))
    assert health.phase(DeviceId("GPU-0", SMALL)) is HealthPhase.UNHEALTHY


def test_what_is_gone_is_forgotten() -> None:
    health = after(error(1), after(error(0, instance=1)))
    assert inventoried(health, 1.0, node_of(gpu_facts(layout=(LARGE,))))[0] == Health()


def test_nobody_waits_for_the_healthy() -> None:
    assert Health().wake_s is None
    assert after(error()).wake_s == 10.0


@pytest.mark.parametrize(
    ("disabled", "enabled", "counted", "ignored"),
    [
        ("", "", {48, 63, 79}, {13, 31, 43, 45, 68, 109}),
        ("63, 94", "", {48}, {13, 63, 94}),
        ("all", "", set(), {13, 48, 79}),
        ("XIDS", "79", {79}, {13, 48}),
        ("", "13", {13, 48}, {31}),
        ("48", "all", {13, 48}, set()),
    ],
)
def test_which_errors_count_is_said_as_for_nvidias_plugin(
    disabled: str, enabled: str, counted: set[int], ignored: set[int]
) -> None:
    xids = Xids.of(disabled, enabled)
    assert all(xids.count(each) for each in counted)
    assert not any(xids.count(each) for each in ignored)


@pytest.mark.parametrize("text", ["13,x", "-1", "1.5", "²", "9" * 40])
def test_what_is_no_xid_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="DP_DISABLE_HEALTHCHECKS"):
        Xids.of(text)


# Laws: whatever happens, in whatever order

KEYS = (DeviceId("GPU-0"), DeviceId("GPU-1"), DeviceId("GPU-0", SMALL), DeviceId("GPU-0", LARGE))
EVENTS = st.sampled_from(
    [error(0), error(1), error(1, xid=48), error(0, instance=1), error(0, instance=2), error(1, xid=13)]
)
STEPS = st.lists(
    st.tuples(st.integers(0, 30), st.one_of(EVENTS, st.sampled_from([NODE, without(0), without(1)]))), max_size=40
)


def run(steps: list[tuple[int, GpuEvent | Inventory]]) -> tuple[Health, float, dict[DeviceId, float]]:
    """Return the health after these steps, the time, and when each device had its last error."""
    health, now_s, last = Health(), 0.0, dict[DeviceId, float]()
    for pause_s, step in steps:
        now_s += pause_s
        if isinstance(step, GpuEvent):
            before = health
            health, changes = reported(health, step, NODE, now_s, POLICY)
            named = dict(zip((None, 1, 2), (DeviceId(step.gpu, each) for each in (None, SMALL, LARGE)), strict=True))
            key = named[step.gpu_instance]
            assert {change.device for change in changes} <= {key}
            assert {each: state for each, state in health.states if each != key} == {
                each: state for each, state in before.states if each != key
            }
            if step.xid != 13:
                last[key] = now_s
        else:
            health, _ = observed(health, step, now_s, POLICY)
            last |= {DeviceId(facts.uuid): now_s for facts in step.gpus if facts.lost}
        for each, when_s in last.items():
            if now_s < when_s + POLICY.rest_s:
                assert each in health.unhealthy, "an error keeps a device away for its rest"
        assert health.unhealthy <= set(last), "who had no error is healthy"
    return health, now_s, last


@given(STEPS)
def test_a_unhealthy_device_is_not_offered_and_a_well_one_is(steps: list[tuple[int, GpuEvent | Inventory]]) -> None:
    run(steps)


@given(STEPS)
def test_left_in_peace_every_device_gets_well(steps: list[tuple[int, GpuEvent | Inventory]]) -> None:
    health, now_s, _ = run(steps)
    quiet_s = now_s
    while health.wake_s is not None:
        now_s = max(now_s, health.wake_s)
        health, changes = inventoried(health, now_s)
        assert changes, "whoever looks when told to finds somebody better"
    assert now_s - quiet_s <= POLICY.longest_rest_s + POLICY.probation_s
    assert health.unhealthy == frozenset()


@given(STEPS)
def test_looking_twice_changes_nothing(steps: list[tuple[int, GpuEvent | Inventory]]) -> None:
    health, now_s, _ = run(steps)
    once, _ = inventoried(health, now_s)
    twice, changes = inventoried(once, now_s)
    assert (twice, changes) == (once, ())


def test_keys_are_sorted() -> None:
    health = Health()
    for event in (error(1), error(0, instance=2), error(0), error(0, instance=1)):
        health = after(event, health)
    assert [key for key, _ in health.states] == [KEYS[0], KEYS[2], KEYS[3], KEYS[1]]


def test_errors_are_of_the_application_the_hardware_or_neither() -> None:
    assert [xid_class(each) for each in (13, 79, 63)] == ["application", "hardware", "other"]
