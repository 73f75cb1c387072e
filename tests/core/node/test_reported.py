"""What an agent reports of its node."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.gpufacts import at
from builders.gpunodes import facts, shared
from tessera.core.cluster.gpunodestate import GpuNodeState, Impairment, UnhealthyDevice, Used
from tessera.core.cluster.snapshot import Gpu, NodeName
from tessera.core.deviceplugin.offers.advertise import NodeOffer
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.inventory import ComputeMode, Inventory
from tessera.core.gpu.sharing import AUTO, Mode, Offer, Sharing
from tessera.core.node.health import Health, HealthPhase, HealthState
from tessera.core.node.reported import NodeSummary, reported, summary, unenforced, use_to_report, withheld_resources

HALVES = at("A100-40GB", ("3g.20gb", 0), ("3g.20gb", 4))
CUT, WHOLE = facts(0, layout=HALVES), facts(1)
GPUS = (shared(CUT), shared(WHOLE))
SIZE_MIB = WHOLE.memory_mib


def ill(reason: str, phase: HealthPhase = HealthPhase.UNHEALTHY) -> HealthState:
    return HealthState(phase=phase, reason=reason, since_s=0, until_s=0)


def used(memory_mib: int, gpu: str = WHOLE.uuid) -> Used:
    return Used(gpu=gpu, memory_mib=memory_mib)


def test_resources_that_are_not_offered_are_named() -> None:
    offered = NodeOffer(resources=(), withheld=("a", "b"), impossible=(("tessera.dev/gpu-memory", "too many; set b"),))
    assert withheld_resources(offered.impossible) == (
        Impairment(
            kind="Withheld",
            subject="tessera.dev/gpu-memory",
            message="tessera.dev/gpu-memory is not offered: too many; set b",
        ),
    )


def test_what_is_declared_of_a_gpu_and_not_in_force_is_named() -> None:
    message = "MPS of GPU-0: pods still use the GPU in another mode"
    assert unenforced((message,)) == (Impairment(kind="Withheld", subject="MPS of GPU-0", message=message),)


def test_the_state_of_a_node() -> None:
    inventory = Inventory(gpus=(CUT, WHOLE), driver="580.1")
    health = Health(
        states=(
            (DeviceId(CUT.uuid, HALVES[1]), ill("XID 94")),
            (DeviceId(CUT.uuid, HALVES[0]), ill("XID 13", HealthPhase.HEALTHY)),
            (DeviceId(CUT.uuid, at("A100-40GB", ("1g.5gb", 0))[0]), ill("XID 94")),
            (DeviceId(WHOLE.uuid), ill("XID 79", HealthPhase.PROBATION)),
        )
    )
    found = reported("n1", reversed(GPUS), inventory, health, used=(used(5),), unit_mib=512)
    assert (found.name, found.gpus, found.used, found.unit_mib) == ("n1", GPUS, (used(5),), 512)
    assert (found.driver, found.reported, found.version) == ("580.1", True, "")
    assert found.unhealthy == (
        UnhealthyDevice(device=DeviceId(CUT.uuid, HALVES[1]), reason="XID 94"),
        UnhealthyDevice(device=DeviceId(WHOLE.uuid), reason="XID 79"),
    )


def test_a_gpu_that_nobody_may_use_is_given_to_nobody() -> None:
    prohibited = msgspec.structs.replace(WHOLE, compute_mode=ComputeMode.PROHIBITED)
    found = reported("n1", (), Inventory(gpus=(prohibited,)), Health(), used=(), unit_mib=1024)
    assert found.unhealthy == (UnhealthyDevice(device=DeviceId(WHOLE.uuid), reason="its compute mode is prohibited"),)


# sentence: (memory reported before, measured now, and reported now)
MOVES: dict[str, tuple[tuple[Used, ...], tuple[Used, ...], tuple[Used, ...]]] = {
    "the first measurement": ((), (used(7),), (used(7),)),
    "a small step": ((used(1000),), (used(1000 + SIZE_MIB // 20 - 1),), (used(1000),)),
    "a large step": ((used(1000),), (used(1000 + SIZE_MIB // 20),), (used(1000 + SIZE_MIB // 20),)),
    "a large step down": ((used(5000),), (used(5000 - SIZE_MIB // 20),), (used(5000 - SIZE_MIB // 20),)),
    "less than half": ((used(300),), (used(149),), (used(149),)),
    "half": ((used(300),), (used(150),), (used(300),)),
    "a device that is gone": ((used(1000),), (), ()),
    "a GPU that nobody knows": ((used(1, "GPU-x"),), (used(2, "GPU-x"),), (used(2, "GPU-x"),)),
}


@pytest.mark.parametrize("case", MOVES)
def test_small_moves_of_memory_are_not_reported(case: str) -> None:
    former, measured, want = MOVES[case]
    assert use_to_report(former, measured, GPUS) == want


@given(st.lists(st.integers(0, SIZE_MIB), min_size=1, max_size=9))
def test_what_is_reported_is_never_far_off(measured: list[int]) -> None:
    told: tuple[Used, ...] = ()
    for memory_mib in measured:
        told = use_to_report(told, (used(memory_mib),), GPUS)
        assert abs(told[0].memory_mib - memory_mib) * 20 < SIZE_MIB
        assert use_to_report(told, (used(memory_mib),), GPUS) == told


def has(*sharings: Sharing, models: tuple[str, ...] = (), unhealthy: tuple[UnhealthyDevice, ...] = ()) -> GpuNodeState:
    names = models or ("A100-40GB",) * len(sharings)
    gpus = tuple(
        Gpu(index=index, uuid=f"GPU-{index}", model=model(name), memory_mib=model(name).memory_mib, sharing=sharing)
        for index, (name, sharing) in enumerate(zip(names, sharings, strict=True))
    )
    return GpuNodeState(name=NodeName("n1"), gpus=gpus, unhealthy=unhealthy)


LEFT = msgspec.structs.replace(AUTO, layout=())
FIXED = Sharing(modes=(Mode.MIG,), layout=HALVES, allow_repartition=False)
SLICED = Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 4),))
MIXED = msgspec.structs.replace(
    FIXED, modes=(Mode.MIG, Mode.MIG_MPS), offers=(Offer(placement=HALVES[0], mode=Mode.MIG_MPS, clients=3),)
)
TOLD: dict[str, tuple[GpuNodeState, NodeSummary]] = {
    "no GPU": (has(), NodeSummary(ready="0/0", models="", sharing="", instances="")),
    "all managed": (has(AUTO, LEFT), NodeSummary(ready="2/2", models="A100-40GB", sharing="auto", instances="")),
    "each otherwise": (
        has(SLICED, FIXED, FIXED, Sharing(modes=()), models=("T4", "A100-40GB", "A100-40GB", "T4")),
        NodeSummary(
            ready="4/4",
            models="2 A100-40GB, 2 T4",
            sharing="2 mig, 1 nothing, 1 time-slicing x4",
            instances="4 3g.20gb",
        ),
    ),
    "instances of one GPU that differ": (
        has(MIXED),
        NodeSummary(ready="1/1", models="A100-40GB", sharing="mig-mps x3 + mig", instances="2 3g.20gb"),
    ),
    "amounts, and what is unhealthy": (
        has(
            Sharing(modes=(Mode.MEMORY_SHARE,)),
            Sharing(modes=(Mode.WHOLE, Mode.MPS), allow_repartition=False),
            unhealthy=(
                UnhealthyDevice(device=DeviceId("GPU-1", HALVES[0])),
                UnhealthyDevice(device=DeviceId("GPU-1")),
                UnhealthyDevice(device=DeviceId("GPU-7")),
            ),
        ),
        NodeSummary(ready="1/2", models="A100-40GB", sharing="1 memory-share, 1 whole + mps", instances=""),
    ),
}


@pytest.mark.parametrize(("state", "want"), TOLD.values(), ids=TOLD)
def test_a_node_in_a_few_words(state: GpuNodeState, want: NodeSummary) -> None:
    assert summary(state) == want


def test_a_summary_of_very_many_is_cut() -> None:
    odd = [
        msgspec.structs.replace(each, model=msgspec.structs.replace(each.model, name=f"unheard-of-{each.index}"))
        for each in has(*(AUTO,) * 40).gpus
    ]
    told = summary(GpuNodeState(name=NodeName("n1"), gpus=tuple(odd))).models
    assert len(told) == 128
    assert told.endswith("...")
