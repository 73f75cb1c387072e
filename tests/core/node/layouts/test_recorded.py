"""What was written down comes back with its placements, and nothing else is touched for it."""

import msgspec
import pytest

from builders.gpufacts import at, gpu_facts
from builders.nodefacts import node_of
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.inventory import GpuFacts
from tessera.core.gpu.mig import Layout, Placement
from tessera.core.node.layouts import Recorded, lost_targets, record, recorded_targets
from tessera.errors import InvalidInput

A100 = model("A100-40GB")
LAYOUT = at(A100, ("2g.10gb", 2), ("3g.20gb", 4))
OTHER = at(A100, ("1g.5gb", 3))


def row(layout: Layout | None, uuid: str = "GPU-0") -> Recorded:
    return Recorded(uuid=uuid, model="A100-40GB", mig=layout is not None, placements=layout or ())


def test_a_node_is_recorded_and_what_is_not_seen_keeps_its_record() -> None:
    inventory = node_of(
        gpu_facts(layout=LAYOUT, incomplete=OTHER),
        gpu_facts(index=1),
        gpu_facts("T4", index=2),
        gpu_facts(index=3, lost=True),
    )
    former = (row(OTHER, "GPU-3"), row(OTHER, "GPU-4"), row(OTHER))
    want = (row(LAYOUT), row(None, "GPU-1"), row(OTHER, "GPU-3"), row(OTHER, "GPU-4"))
    assert record(inventory, former) == want


@pytest.mark.parametrize(
    ("recorded", "gpu", "want"),
    [
        pytest.param(row(LAYOUT), gpu_facts(layout=OTHER), (True, LAYOUT), id="as recorded, whatever is there"),
        pytest.param(row(None), gpu_facts(layout=OTHER), (False, None), id="off"),
        pytest.param(
            row((Placement(0, 4, "3g.39gb"),)),
            gpu_facts("H100-80GB"),
            (True, at(model("H100-80GB"), ("3g.40gb", 0))),
            id="under the name that the driver has now",
        ),
    ],
)
def test_recorded_targets(recorded: Recorded, gpu: GpuFacts, want: tuple[bool, Layout | None]) -> None:
    (target,) = recorded_targets((recorded,), node_of(gpu))
    assert (target.mig, target.layout) == want


@pytest.mark.parametrize(
    ("recorded", "gpus", "want"),
    [
        pytest.param(
            row(LAYOUT), (gpu_facts(index=1),), "recorded GPU GPU-0: this node has no GPU of that UUID:", id="gone"
        ),
        pytest.param(row(LAYOUT), (), "UUID: check the driver with nvidia-smi: it shows no GPU", id="none"),
        pytest.param(
            row((*LAYOUT, *at(A100, ("4g.20gb", 0)))), (gpu_facts(),), "share memory slice 2", id="impossible"
        ),
        pytest.param(row(LAYOUT), (gpu_facts("A30"),), "a profile this model offers", id="a profile it lacks"),
    ],
)
def test_a_record_that_does_not_fit_the_node_is_refused(
    recorded: Recorded, gpus: tuple[GpuFacts, ...], want: str
) -> None:
    with pytest.raises(InvalidInput, match=want):
        recorded_targets((recorded,), node_of(*gpus))


@pytest.mark.parametrize(
    ("recorded", "gpu", "want", "note"),
    [
        pytest.param(row(LAYOUT), gpu_facts(layout=()), [LAYOUT], "", id="all instances are gone"),
        pytest.param(row(LAYOUT), gpu_facts(), [LAYOUT], "", id="and MIG is off, as after a reboot of a Hopper"),
        pytest.param(row(LAYOUT), gpu_facts(layout=LAYOUT[:1]), [LAYOUT], "", id="some are gone"),
        pytest.param(row(LAYOUT), gpu_facts(layout=LAYOUT), [LAYOUT], "", id="none is"),
        pytest.param(row(None), gpu_facts(layout=OTHER), [], "", id="nothing was there"),
        pytest.param(
            row(LAYOUT), gpu_facts(layout=OTHER), [], "has instances other than the recorded ones", id="cut anew"
        ),
        pytest.param(row(LAYOUT), gpu_facts(lost=True), [], "is missing; its record is kept", id="lost"),
        pytest.param(row(LAYOUT), gpu_facts("T4"), [], "is missing", id="without MIG"),
        pytest.param(row(LAYOUT, "GPU-9"), gpu_facts(), [], "is missing", id="another GPU"),
        pytest.param(row((Placement(0, 3, "1g.5gb"),)), gpu_facts(), [], "record not used: GPU 0", id="impossible"),
    ],
)
def test_lost_targets(recorded: Recorded, gpu: GpuFacts, want: list[Layout], note: str) -> None:
    targets, notes = lost_targets((recorded,), node_of(gpu))
    assert [each.layout for each in targets] == want
    assert note in "".join(notes)
    assert bool(notes) is bool(note)


def test_a_gpu_that_may_be_one_that_was_lost_is_left_out() -> None:
    unseen = msgspec.structs.replace(node_of(gpu_facts(index=1)), unseen=(0,))
    assert recorded_targets((row(LAYOUT),), unseen) == ()
