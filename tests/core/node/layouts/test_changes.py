"""What a GPU needs to become its target, and who stands in the way of it."""

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.gpufacts import at, gpu_facts, names
from builders.nodefacts import node_of
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.gpumodels import CATALOG, model
from tessera.core.gpu.inventory import GpuFacts, GpuProcess
from tessera.core.gpu.mig import Layout, all_layouts, counts_of, is_legal
from tessera.core.node.layouts import (
    AwaitReset,
    Blocked,
    Change,
    ChangeInstances,
    DeviceUser,
    Difference,
    Impossible,
    Keep,
    LayoutTarget,
    SetMode,
    change,
    differences,
    exact,
    users_of,
    with_instance,
)
from tessera.core.node.repartition import Create, Destroy

A100 = model("A100-40GB")
MIG_MODELS = [each.name for each in CATALOG if each.memory_slices]
SEVEN = at(A100, *(("1g.5gb", start) for start in range(7)))
HALVES = at(A100, ("3g.20gb", 0), ("3g.20gb", 4))
OFF = LayoutTarget(gpu="GPU-0", index=0, mig=False)
ONES = LayoutTarget(gpu="GPU-0", index=0, mig=True, counts=(("1g.5gb", 7),))
TWO = LayoutTarget(gpu="GPU-0", index=0, mig=True, counts=(("3g.20gb", 2),))


def users(*places: str | None) -> tuple[DeviceUser, ...]:
    """Return a pod on each of these instances of the A100: `3g.20gb at 0`."""
    every = {f"{each.profile} at {each.start}": each for layout in all_layouts(A100) for each in layout}
    return tuple(DeviceUser(device=DeviceId("GPU-0", every[each] if each else None), pod="ns/p") for each in places)


def described(made: Change) -> str:
    """Return a change in one line."""
    match made:
        case ChangeInstances(plan=plan):
            return "; ".join(f"{type(each).__name__} {names([each.placement])[0]}" for each in plan.steps)
        case SetMode(on=on, clear=clear):
            return f"switch {'on' if on else 'off'}, clear {len(clear.steps) if clear else 0}"
        case Blocked(reason=reason, users=users, withdraw=withdraw):
            return f"blocked: {reason} | {len(users)} | {', '.join(names(withdraw))}"
        case Impossible(reason=reason):
            return f"impossible: {reason}"
        case AwaitReset(on=on):
            return f"await reset to {'on' if on else 'off'}"
    return "keep"


ALL = ", ".join(names(SEVEN))
PROCESS = (DeviceUser(device=DeviceId("GPU-0"), pid=77),)


@pytest.mark.parametrize(
    ("gpu", "target", "users", "want"),
    [
        pytest.param(gpu_facts(), OFF, (), "keep", id="off already"),
        pytest.param(gpu_facts(layout=SEVEN), ONES, users("1g.5gb at 0"), "keep", id="as asked, used or not"),
        pytest.param(
            gpu_facts(layout=HALVES[:1]), TWO, users("3g.20gb at 0"), "Create 3g.20gb at 4", id="only what is missing"
        ),
        pytest.param(gpu_facts(), ONES, (), "switch on, clear 0", id="on"),
        pytest.param(gpu_facts(layout=()), OFF, (), "switch off, clear 0", id="off, nothing to clear"),
        pytest.param(gpu_facts(layout=SEVEN), OFF, (), "switch off, clear 7", id="off, instances must go"),
        pytest.param(
            gpu_facts(),
            ONES,
            PROCESS,
            "blocked: GPU 0: switching MIG on requires an idle GPU; it is in use by process 77 | 1 | ",
            id="a foreign process",
        ),
        pytest.param(
            gpu_facts(layout=SEVEN),
            OFF,
            users("1g.5gb at 2"),
            "blocked: GPU 0: switching MIG off requires an idle GPU; it is in use by pod ns/p on 1g.5gb at 2 "
            f"| 1 | {ALL}",
            id="off while an instance is used",
        ),
        pytest.param(gpu_facts(pending=True), ONES, PROCESS, "await reset to on", id="switched, not reset"),
        pytest.param(
            gpu_facts(layout=SEVEN, pending=False), ONES, (), "switch on, clear 0", id="a pending change undone"
        ),
        pytest.param(gpu_facts(pending=True), OFF, (), "switch off, clear 0", id="a pending change to on undone"),
        pytest.param(
            gpu_facts(layout=SEVEN),
            TWO,
            users("1g.5gb at 2", "1g.5gb at 5"),
            "blocked: GPU 0: 1g.5gb at 2 is in use and occupies memory slice 2, needed for 3g.20gb at 0; "
            "1g.5gb at 5 is in use and occupies memory slice 5, needed for 3g.20gb at 4; used by "
            f"pod ns/p on 1g.5gb at 2, pod ns/p on 1g.5gb at 5 | 2 | {ALL}",
            id="used instances in the way",
        ),
        pytest.param(
            gpu_facts(layout=HALVES[:1]),
            ONES,
            PROCESS,
            "blocked: GPU 0: the instances that process 77 uses are unknown | 1 | ",
            id="a process on an unknown instance, and instances must go",
        ),
        pytest.param(
            gpu_facts(layout=()), TWO, PROCESS, "Create 3g.20gb at 0; Create 3g.20gb at 4", id="it is in nobody's way"
        ),
        pytest.param(
            gpu_facts(layout=HALVES[:1], incomplete=HALVES[1:]),
            TWO,
            users("3g.20gb at 0"),
            "Destroy 3g.20gb at 4",
            id="what is incomplete goes first",
        ),
        pytest.param(
            gpu_facts(layout=SEVEN, lost=True),
            TWO,
            (),
            "impossible: the driver has lost GPU 0; reset it or reboot the node",
            id="lost",
        ),
        pytest.param(gpu_facts("T4"), ONES, (), "impossible: GPU 0 (T4) has no MIG", id="no MIG"),
        pytest.param(gpu_facts("T4"), OFF, (), "keep", id="no MIG is off"),
        pytest.param(
            gpu_facts(layout=(SEVEN[0], SEVEN[0])),
            TWO,
            (),
            "impossible: GPU 0: the driver reports an impossible layout: "
            "1g.5gb at 0 and 1g.5gb at 0 share memory slice 0",
            id="a driver that shows what cannot be",
        ),
        pytest.param(
            gpu_facts(layout=()),
            LayoutTarget(gpu="GPU-0", index=0, mig=True, counts=(("7g.40gb", 2),)),
            (),
            "impossible: GPU 0: no layout of A100-40GB has 2 x 7g.40gb",
            id="never fits",
        ),
        pytest.param(
            gpu_facts(layout=SEVEN[:1]),
            exact(gpu_facts(), SEVEN[1:2]),
            (),
            "Destroy 1g.5gb at 0; Create 1g.5gb at 1",
            id="the same counts at other places, where places are fixed",
        ),
        pytest.param(gpu_facts(layout=SEVEN[:1]), exact(gpu_facts(), SEVEN[:1]), (), "keep", id="at its places"),
        pytest.param(
            gpu_facts(layout=SEVEN),
            TWO,
            (DeviceUser(device=DeviceId("GPU-1"), pid=1),),
            described(change(gpu_facts(layout=SEVEN), TWO, ())),
            id="others",
        ),
    ],
)
def test_change(gpu: GpuFacts, target: LayoutTarget, users: tuple[DeviceUser, ...], want: str) -> None:
    assert described(change(gpu, target, users)) == want


@pytest.mark.parametrize(
    ("gpu", "target", "mode_only", "want"),
    [
        pytest.param(gpu_facts(layout=SEVEN), ONES, False, None, id="as asked"),
        pytest.param(gpu_facts(layout=SEVEN), TWO, True, None, id="only the mode is asked"),
        pytest.param(gpu_facts(layout=HALVES), ONES, False, ("3g.20gb at 0, 3g.20gb at 4", "7 x 1g.5gb"), id="others"),
        pytest.param(gpu_facts(layout=()), ONES, False, ("no instance", "7 x 1g.5gb"), id="none"),
        pytest.param(
            gpu_facts(layout=HALVES[:1]),
            exact(gpu_facts(), HALVES[1:]),
            False,
            ("3g.20gb at 0", "3g.20gb at 4"),
            id="places",
        ),
        pytest.param(
            gpu_facts(layout=(), incomplete=HALVES[:1]),
            exact(gpu_facts(), ()),
            False,
            ("no instance, incomplete: 3g.20gb at 0", "no instance"),
            id="incomplete",
        ),
        pytest.param(gpu_facts(), ONES, True, ("MIG off", "MIG on"), id="off"),
        pytest.param(gpu_facts(pending=True), ONES, True, ("MIG off, MIG on after a reset", "MIG on"), id="pending"),
        pytest.param(
            gpu_facts(pending=True), OFF, True, ("MIG off, MIG on after a reset", "MIG off"), id="will not stay"
        ),
        pytest.param(gpu_facts(lost=True), OFF, False, ("the GPU is lost", "one that the driver reaches"), id="lost"),
        pytest.param(gpu_facts("T4"), ONES, False, ("no MIG", "MIG on"), id="no MIG"),
        pytest.param(gpu_facts("T4"), OFF, False, None, id="no MIG is off"),
        pytest.param(gpu_facts(index=1), OFF, False, ("no such GPU", "it"), id="gone"),
    ],
)
def test_differences(gpu: GpuFacts, target: LayoutTarget, mode_only: bool, want: tuple[str, str] | None) -> None:
    got = differences(node_of(gpu), (msgspec.structs.replace(target, mode_only=mode_only),))
    assert [(each.found, each.expected) for each in got] == ([want] if want else [])


def test_users_are_pods_and_the_processes_that_no_pod_explains() -> None:
    inventory = node_of(gpu_facts(layout=HALVES), gpu_facts(index=1))
    held = (
        ("ns/replica", ("MIG-0-0::3",)),
        ("ns/twice", ("MIG-0-0::1", "MIG-0-0::2")),
        ("ns/units", ("GPU-1-_-0", "GPU-1-_-1")),
        ("ns/gone", ("MIG-of-yesterday", "something else")),
    )
    processes = {
        "GPU-0": (
            GpuProcess(pid=1, gpu_instance=1),
            GpuProcess(pid=2, gpu_instance=2),
            GpuProcess(pid=3, gpu_instance=9),
        ),
        "GPU-1": (GpuProcess(pid=4),),
        "GPU-9": (GpuProcess(pid=5),),
    }
    want = (
        DeviceUser(device=DeviceId("GPU-0"), pid=3),
        DeviceUser(device=DeviceId("GPU-0", HALVES[0]), pod="ns/replica"),
        DeviceUser(device=DeviceId("GPU-0", HALVES[0]), pod="ns/twice"),
        DeviceUser(device=DeviceId("GPU-0", HALVES[1]), pid=2),
        DeviceUser(device=DeviceId("GPU-1"), pod="ns/units"),
    )
    assert users_of(inventory, held, processes) == want
    assert users_of(inventory, (), {}) == ()
    assert users_of(node_of(gpu_facts()), (), {"GPU-0": (GpuProcess(pid=4),)}) == (
        DeviceUser(device=DeviceId("GPU-0"), pid=4),
    )


@st.composite
def situations(draw: st.DrawFn) -> tuple[GpuFacts, LayoutTarget, Layout]:
    name = draw(st.sampled_from(MIG_MODELS))
    gpu = model(name)
    layouts = st.sampled_from(all_layouts(gpu))
    present, desired = draw(st.none() | layouts), draw(st.none() | layouts)
    facts = gpu_facts(name, layout=present, pending=draw(st.none() | st.booleans()))
    used = tuple(itertools.compress(present or (), draw(st.lists(st.booleans(), min_size=8, max_size=8))))
    target = exact(facts, desired)
    if draw(st.booleans()) and desired is not None:
        target = LayoutTarget(gpu=facts.uuid, index=0, mig=True, counts=counts_of(gpu, desired))
    return facts, msgspec.structs.replace(target, mode_only=draw(st.booleans())), used


@settings(max_examples=300)
@given(situations())
def test_a_change_touches_no_used_instance_and_leads_to_the_target(
    situation: tuple[GpuFacts, LayoutTarget, Layout],
) -> None:
    facts, target, used = situation
    users = tuple(DeviceUser(device=DeviceId(facts.uuid, each), pod="ns/p") for each in used)
    made = change(facts, target, users)
    same = not differences(node_of(facts), (target,))
    assert isinstance(made, Keep) is same
    match made:
        case ChangeInstances(plan=plan):
            assert not used or {step.placement for step in plan.steps if isinstance(step, Destroy)}.isdisjoint(used)
            assert any(isinstance(step, Create | Destroy) for step in plan.steps)
            after = gpu_facts(facts.model.name, layout=plan.target)
            assert isinstance(change(after, target, users), Keep)
        case SetMode(clear=clear):
            assert not used or clear is None
        case Blocked(users=holding, withdraw=withdraw):
            assert holding
            assert set(withdraw) <= set(facts.layout or ())
            blocking = {user.device.placement for user in holding}
            assert blocking <= set(withdraw)
            gone = tuple(user for user in users if user.device.placement not in blocking)
            then = change(facts, target, gone)
            if isinstance(then, ChangeInstances):
                doomed = {step.placement for step in then.plan.steps if isinstance(step, Destroy)}
                assert doomed == set(withdraw)
        case Impossible():
            pytest.fail("every target fits this GPU")


@settings(max_examples=200)
@given(situations(), st.data())
def test_one_more_instance_costs_no_used_one_and_no_more_than_it_must(
    situation: tuple[GpuFacts, LayoutTarget, Layout], data: st.DataObject
) -> None:
    facts, _, used = situation
    place = data.draw(st.sampled_from(sorted({each for layout in all_layouts(facts.model) for each in layout})))
    users = tuple(DeviceUser(device=DeviceId(facts.uuid, each), pod="ns/p") for each in used)
    target = with_instance(facts, place, users)
    if target is None:
        assert facts.layout is None or not is_legal(facts.model, tuple({*used, place}))
        return
    assert target.layout is not None
    assert {*used, place} <= set(target.layout)
    for each in set(facts.layout or ()).difference(target.layout):
        assert not is_legal(facts.model, (*target.layout, each))


def test_a_gpu_that_was_never_shown_differs() -> None:
    want = Difference(gpu="", index=3, found="the GPU is lost", expected="one that the driver reaches")
    assert differences(node_of(gpu_facts(layout=SEVEN)), (ONES,), (3,)) == (want,)
