"""What follows from the facts a driver shows."""

import msgspec
import pytest

from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.inventory import GpuFacts, Instance, Inventory, MigMode
from tessera.core.gpu.mig import Placement

A100 = GpuFacts(
    index=0, uuid="GPU-0", minor=0, product="A", model=model("A100-40GB"), memory_total_mib=40960, memory_mib=40442
)
SMALL, LARGE = Placement(0, 1, "1g.5gb"), Placement(4, 4, "3g.20gb")


@pytest.mark.parametrize(
    ("case", "current", "pending", "want"),
    [
        ("off and stays off", False, False, False),
        ("on, off after a reset", True, False, True),
        ("off, on after a reset", False, True, True),
    ],
)
def test_a_changed_mig_mode_needs_a_reset(case: str, current: bool, pending: bool, want: bool) -> None:
    assert MigMode(current=current, pending=pending).needs_reset is want, case


def test_the_layout_is_what_takes_room_on_the_gpu() -> None:
    on = MigMode(current=True, pending=True)
    instance = Instance(placement=LARGE, uuid="MIG-1", gpu_instance=1, compute_instance=0, memory_mib=19968)
    assert A100.layout is None
    assert msgspec.structs.replace(A100, mig=MigMode(current=False, pending=False)).layout is None
    assert msgspec.structs.replace(A100, mig=on).layout == ()
    cut = msgspec.structs.replace(A100, mig=on, instances=(instance,), incomplete=(SMALL,))
    assert cut.layout == (SMALL, LARGE)


def test_remarks_are_the_notes_and_the_gpus_that_were_never_seen() -> None:
    assert Inventory(gpus=(A100,)).remarks == ()
    assert Inventory(gpus=(A100,), notes=("one", "two"), unseen=(1, 3)).remarks == (
        "one",
        "two",
        "GPU 1: lost before Tessera started, or of the UUID of another, so it is not listed",
        "GPU 3: lost before Tessera started, or of the UUID of another, so it is not listed",
    )
