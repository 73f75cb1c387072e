"""The steps of a change are printed in advance, with the processes that each would disturb."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.gpufacts import at, gpu_facts, names
from builders.nodefacts import node_of
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.gpumodels import CATALOG, model
from tessera.core.gpu.inventory import GpuFacts
from tessera.core.gpu.mig import Layout, all_layouts
from tessera.core.node.layouts import Action, DeviceUser, LayoutTarget, differences, exact, preview

A100 = model("A100-40GB")
HALVES = at(A100, ("3g.20gb", 0), ("3g.20gb", 4))
MIG_MODELS = [each.name for each in CATALOG if each.memory_slices]
TWO = LayoutTarget(gpu="GPU-0", index=0, mig=True, counts=(("3g.20gb", 2),))
OFF = LayoutTarget(gpu="GPU-0", index=0, mig=False)
POD = DeviceUser(device=DeviceId("GPU-0", at(A100, ("1g.5gb", 1))[0]), pod="ns/p")
WHOLE = DeviceUser(device=DeviceId("GPU-0"), pod="ns/w")


def line(action: Action) -> str:
    place = f" {names([action.placement])[0]}" if action.placement else ""
    return f"{action.what}{place}" + "".join(f" ! {user.name}" for user in action.disturbs)


@pytest.mark.parametrize(
    ("gpu", "target", "users", "want"),
    [
        pytest.param(gpu_facts(layout=HALVES), TWO, (), [], id="nothing to do"),
        pytest.param(
            gpu_facts(), TWO, (), ["switch MIG on", "create 3g.20gb at 0", "create 3g.20gb at 4"], id="MIG on, then cut"
        ),
        pytest.param(
            gpu_facts(),
            TWO,
            (WHOLE,),
            ["switch MIG on ! pod ns/w", "create 3g.20gb at 0", "create 3g.20gb at 4"],
            id="used",
        ),
        pytest.param(
            gpu_facts(layout=at(A100, ("1g.5gb", 0), ("1g.5gb", 1), ("3g.20gb", 4))),
            TWO,
            (POD,),
            ["destroy 1g.5gb at 0", "destroy 1g.5gb at 1 ! pod ns/p on 1g.5gb at 1", "create 3g.20gb at 0"],
            id="a used instance in the way",
        ),
        pytest.param(
            gpu_facts(layout=at(A100, ("1g.5gb", 1))),
            OFF,
            (POD,),
            ["destroy 1g.5gb at 1 ! pod ns/p on 1g.5gb at 1", "switch MIG off ! pod ns/p on 1g.5gb at 1"],
            id="off while used",
        ),
        pytest.param(
            gpu_facts(layout=HALVES[:1], incomplete=HALVES[1:]),
            TWO,
            (),
            ["destroy 3g.20gb at 4", "create 3g.20gb at 4"],
            id="what is incomplete goes first",
        ),
        pytest.param(
            gpu_facts(layout=HALVES, pending=False), TWO, (WHOLE,), ["switch MIG on"], id="a pending change undone"
        ),
        pytest.param(gpu_facts(pending=True), TWO, (), [], id="a reset is what is left"),
        pytest.param(gpu_facts(lost=True), TWO, (), [], id="lost"),
        pytest.param(
            gpu_facts(layout=at(A100, ("1g.5gb", 2))),
            TWO,
            (DeviceUser(device=DeviceId("GPU-0"), pid=5),),
            ["destroy 1g.5gb at 2 ! process 5", "create 3g.20gb at 0", "create 3g.20gb at 4"],
            id="a process on an unknown instance",
        ),
    ],
)
def test_preview(gpu: GpuFacts, target: LayoutTarget, users: tuple[DeviceUser, ...], want: list[str]) -> None:
    assert [line(each) for each in preview(gpu, target, users)] == want


@st.composite
def situations(draw: st.DrawFn) -> tuple[GpuFacts, LayoutTarget]:
    name = draw(st.sampled_from(MIG_MODELS))
    layouts = st.none() | st.sampled_from(all_layouts(model(name)))
    gpu = gpu_facts(name, layout=draw(layouts))
    return gpu, exact(gpu, draw(layouts))


@settings(max_examples=200)
@given(situations())
def test_the_steps_lead_to_the_target(situation: tuple[GpuFacts, LayoutTarget]) -> None:
    gpu, target = situation
    layout: Layout | None = gpu.layout
    for action in preview(gpu, target, ()):
        if action.placement is None:
            assert not layout
            layout = None if layout is not None else ()
        else:
            assert layout is not None
            layout = tuple(sorted({*layout} ^ {action.placement}))
    assert differences(node_of(gpu_facts(gpu.model.name, layout=layout)), (target,)) == ()
