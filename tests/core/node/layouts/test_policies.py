"""What node policies want of GPUs, and when it is tried."""

import pytest

from builders.nodefacts import gpu, node_of
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.node.layouts import LayoutLimits, PolicyAttempt, attempted, exact, policy_targets, worth_trying
from tessera.core.node.nodesharing import GpuSettings, NodeSharing
from tessera.errors import InvalidInput

CUT, PLAIN = gpu(0, "A100-40GB", "all-3g.20gb"), gpu(1, "A100-40GB")
NODE = node_of(CUT, PLAIN)
HALF = (Placement(4, 4, "3g.20gb"),)
LIMITS = LayoutLimits(retry_s=30)
TARGETS = (exact(PLAIN, HALF),)
OTHERS = (exact(PLAIN, ()),)


def fixed(uuid: str, layout: tuple[Placement, ...] | None) -> GpuSettings:
    modes = (Mode.WHOLE,) if layout is None else (Mode.MIG,)
    return GpuSettings(uuid=uuid, sharing=Sharing(modes=modes, layout=layout, allow_repartition=False))


def test_targets_are_what_differs() -> None:
    there = fixed("GPU-0", CUT.layout)
    assert policy_targets(NODE, NodeSharing(policies=(there, fixed("GPU-1", HALF), fixed("GPU-9", HALF)))) == TARGETS
    assert policy_targets(NODE, NodeSharing(policies=(fixed("GPU-0", None), there))) == (exact(CUT, None),)
    assert policy_targets(NODE, NodeSharing()) == ()


def test_a_layout_that_a_gpu_cannot_have_is_refused() -> None:
    with pytest.raises(InvalidInput, match="which this GPU cannot have"):
        policy_targets(NODE, NodeSharing(policies=(fixed("GPU-1", (Placement(1, 4, "3g.20gb"),)),)))


FAILED = attempted(TARGETS, NODE, ("GPU 1: in use",), LIMITS, began_s=100)
DONE = attempted(TARGETS, NODE, (), LIMITS, began_s=100)
# sentence: (last attempt, targets, node, now in seconds, whether it is tried)
TRIES = {
    "the first time": (None, TARGETS, NODE, 100, True),
    "nothing to do": (None, (), NODE, 100, False),
    "nothing to do any more": (FAILED, (), NODE, 1000, False),
    "failed just now": (FAILED, TARGETS, NODE, 129, False),
    "failed a while ago": (FAILED, TARGETS, NODE, 130, True),
    "failed just now, and other targets": (FAILED, OTHERS, NODE, 101, True),
    "failed just now, and the GPUs changed since": (FAILED, TARGETS, node_of(gpu(0, "A100-40GB"), PLAIN), 101, True),
    "done, and undone by somebody": (DONE, TARGETS, NODE, 101, True),
}


@pytest.mark.parametrize("case", TRIES)
def test_what_failed_waits_unless_something_changed(case: str) -> None:
    last, targets, inventory, now_s, want = TRIES[case]
    assert worth_trying(targets, inventory, last, now_s=now_s) is want


def test_an_attempt_tells_what_was_tried() -> None:
    assert PolicyAttempt(targets=TARGETS, gpus=NODE.gpus, again_s=130) == FAILED
