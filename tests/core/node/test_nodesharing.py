"""Each GPU's sharing from files, labels and what the driver shows, and what is said about what cannot be."""

import msgspec
import pytest

from builders.nodefacts import gpu, node_of
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import AUTO, Mode, Sharing
from tessera.core.node.nodesharing import (
    GpuSettings,
    NodeSharing,
    SharingEntry,
    Strategy,
    combined,
    desired_layouts,
    effective,
    mps_client_limit,
    notes,
    withheld,
)

WHOLE = "nvidia.com/gpu"
MIG = "nvidia.com/mig-"
Offered = list[tuple[int, str, Mode, int]]


def offered(inventory: Inventory, said: NodeSharing) -> Offered:
    """Return GPU index, resource, mode and clients of each device."""
    return [
        (each.index, device.resource, device.mode, device.clients)
        for each in effective(inventory, said)
        for device in each.devices
    ]


def entry(resource: str, replicas: int, mode: Mode = Mode.TIME_SLICING, **more: object) -> SharingEntry:
    return SharingEntry(resource=resource, replicas=replicas, mode=mode, **more)  # type: ignore[arg-type]  # fields by name


def said(*entries: SharingEntry, strategy: Strategy | None = None) -> NodeSharing:
    return NodeSharing(entries=entries, strategy=strategy)


TWO = node_of(gpu(0), gpu(1))
BALANCED = node_of(gpu(0, "A100-40GB", "all-balanced"), gpu(1, "A100-40GB"))

# sentence: (inventory, what files say, want)
OFFERS: dict[str, tuple[Inventory, NodeSharing, Offered]] = {
    "without files each GPU is one device": (
        TWO,
        said(),
        [(0, WHOLE, Mode.WHOLE, 1), (1, WHOLE, Mode.WHOLE, 1)],
    ),
    "without files instances are offered by profile": (
        BALANCED,
        said(),
        [
            (0, f"{MIG}1g.5gb", Mode.MIG, 1),
            (0, f"{MIG}1g.5gb", Mode.MIG, 1),
            (0, f"{MIG}2g.10gb", Mode.MIG, 1),
            (0, f"{MIG}3g.20gb", Mode.MIG, 1),
            (1, WHOLE, Mode.WHOLE, 1),
        ],
    ),
    "gpushare's label leaves amounts alone": (TWO, NodeSharing(memory_share=True), []),
    "an entry shares all GPUs": (
        TWO,
        said(entry(WHOLE, 4)),
        [(0, WHOLE, Mode.TIME_SLICING, 4), (1, WHOLE, Mode.TIME_SLICING, 4)],
    ),
    "the default name of shared devices": (
        node_of(gpu(0)),
        said(entry(WHOLE, 4, rename=f"{WHOLE}.shared")),
        [(0, f"{WHOLE}.shared", Mode.TIME_SLICING, 4)],
    ),
    "a name of their own": (
        node_of(gpu(0)),
        said(entry(WHOLE, 4, rename="nvidia.com/gpu-dev")),
        [(0, "nvidia.com/gpu-dev", Mode.TIME_SLICING, 4)],
    ),
    "a critical service keeps its own GPU": (
        TWO,
        said(entry(WHOLE, 4, devices=("1",))),
        [(0, WHOLE, Mode.WHOLE, 1), (1, WHOLE, Mode.TIME_SLICING, 4)],
    ),
    "a number of devices": (
        TWO,
        said(entry(WHOLE, 4, count=1)),
        [(0, WHOLE, Mode.TIME_SLICING, 4), (1, WHOLE, Mode.WHOLE, 1)],
    ),
    "replicas differ by GPU, and lists decide before all": (
        node_of(gpu(0), gpu(1), gpu(2)),
        said(entry(WHOLE, 3), entry(WHOLE, 2, devices=("GPU-1",)), entry(WHOLE, 8, count=1)),
        [(0, WHOLE, Mode.TIME_SLICING, 8), (1, WHOLE, Mode.TIME_SLICING, 2), (2, WHOLE, Mode.TIME_SLICING, 3)],
    ),
    "instances of one profile are shared": (
        node_of(gpu(0, "A100-40GB", "all-3g.20gb")),
        said(entry(f"{MIG}3g.20gb", 4)),
        [(0, f"{MIG}3g.20gb", Mode.MIG_TIME_SLICING, 4)] * 2,
    ),
    "a profile goes by the name another driver prints": (
        node_of(gpu(0, "H100-80GB", "all-3g.40gb")),
        said(entry(f"{MIG}3g.39gb", 4)),
        [(0, f"{MIG}3g.40gb", Mode.MIG_TIME_SLICING, 4)] * 2,
    ),
    "a profile the model does not have": (
        node_of(gpu(0, "A100-40GB", "all-3g.20gb")),
        said(entry(f"{MIG}9g.20gb", 4)),
        [(0, f"{MIG}3g.20gb", Mode.MIG, 1)] * 2,
    ),
    "single instances differ by index, by UUID and by the old form": (
        node_of(gpu(0, "A100-40GB", "all-2g.10gb")),
        said(
            entry(f"{MIG}2g.10gb", 2, devices=("0:0",)),
            entry(f"{MIG}2g.10gb", 3, Mode.MPS, devices=("MIG-0-1",), rename="nvidia.com/two"),
            entry(f"{MIG}2g.10gb", 4, devices=("MIG-GPU-0/3/0",)),
        ),
        [
            (0, f"{MIG}2g.10gb", Mode.MIG_TIME_SLICING, 2),
            (0, "nvidia.com/two", Mode.MIG_MPS, 3),
            (0, f"{MIG}2g.10gb", Mode.MIG_TIME_SLICING, 4),
        ],
    ),
    "strategy single offers instances as GPUs and shares them so": (
        node_of(gpu(0, "A100-40GB", "all-3g.20gb")),
        said(entry(WHOLE, 2, Mode.MPS), strategy="single"),
        [(0, WHOLE, Mode.MIG_MPS, 2)] * 2,
    ),
    "under strategy single other instances are not offered": (
        node_of(
            gpu(0, "A100-40GB", "all-1g.5gb"), gpu(1, "A100-40GB", "all-3g.20gb"), gpu(2, "A100-40GB", "all-enabled")
        ),
        said(strategy="single"),
        [(0, WHOLE, Mode.MIG, 1)] * 7,
    ),
    "under strategy single whole GPUs are not offered beside instances": (
        node_of(gpu(0), gpu(1, "A100-40GB", "all-1g.5gb")),
        said(strategy="single"),
        [(1, WHOLE, Mode.MIG, 1)] * 7,
    ),
    "strategy single without MIG is whole GPUs, and memory shares beside instances stay": (
        node_of(gpu(0), gpu(1, "A100-40GB", "all-3g.20gb")),
        NodeSharing(strategy="single", memory_share=True),
        [(1, WHOLE, Mode.MIG, 1)] * 2,
    ),
    "strategy none knows no instances": (
        BALANCED,
        said(entry(WHOLE, 2), strategy="none"),
        [(0, WHOLE, Mode.TIME_SLICING, 2), (1, WHOLE, Mode.TIME_SLICING, 2)],
    ),
    "MPS of a GPU whose MIG mode is on is not offered": (
        BALANCED,
        said(entry(WHOLE, 2, Mode.MPS), strategy="none"),
        [(1, WHOLE, Mode.MPS, 2)],
    ),
    "an instance without a compute instance is never offered": (
        node_of(gpu(0, "A100-40GB", "all-enabled", incomplete=(Placement(0, 4, "3g.20gb"),))),
        said(),
        [],
    ),
    "MPS on GPUs where it limits nothing is not offered": (
        node_of(gpu(0, "P100-16GB"), gpu(1)),
        said(entry(WHOLE, 4, Mode.MPS)),
        [(1, WHOLE, Mode.MPS, 4)],
    ),
    "no more clients than MPS admits": (
        node_of(gpu(0, "A100-40GB", "all-3g.20gb"), gpu(1)),
        said(entry(f"{MIG}3g.20gb", 49, Mode.MPS, devices=("0:0",)), entry(WHOLE, 100, Mode.MPS)),
        [(0, f"{MIG}3g.20gb", Mode.MIG_MPS, 48), (0, f"{MIG}3g.20gb", Mode.MIG, 1), (1, WHOLE, Mode.MPS, 48)],
    ),
    "time-slicing has no such limit": (
        node_of(gpu(0, "A100-40GB", "all-3g.20gb")),
        said(entry(f"{MIG}3g.20gb", 99, devices=("0:0",)), entry(f"{MIG}3g.20gb", 99, Mode.MPS)),
        [(0, f"{MIG}3g.20gb", Mode.MIG_TIME_SLICING, 99), (0, f"{MIG}3g.20gb", Mode.MIG_MPS, 48)],
    ),
}


@pytest.mark.parametrize(("inventory", "files", "want"), OFFERS.values(), ids=OFFERS)
def test_what_is_offered(inventory: Inventory, files: NodeSharing, want: Offered) -> None:
    assert offered(inventory, files) == want


NOTES: dict[str, tuple[Inventory, NodeSharing, list[str]]] = {
    "nothing to say": (TWO, said(), []),
    "what the file says in vain": (TWO, NodeSharing(ignored=("x",)), ["x"]),
    "an unknown device": (
        TWO,
        said(entry(WHOLE, 2, devices=("7",))),
        ["sharing of nvidia.com/gpu: no such device here is called 7"],
    ),
    "a device of two entries": (
        TWO,
        said(entry(WHOLE, 2, devices=("0",)), entry(WHOLE, 3, devices=("GPU-0", "1"))),
        ["sharing of nvidia.com/gpu: another entry already shares device GPU-0"],
    ),
    "fewer devices than are to be shared": (
        TWO,
        said(entry(WHOLE, 2, count=3)),
        ["sharing of nvidia.com/gpu: 3 devices are to be shared, and the node has 2"],
    ),
    "MIG under strategy none": (
        BALANCED,
        said(strategy="none"),
        ["GPU 0 (GPU-0) is offered whole although MIG is on: the MIG strategy is none"],
    ),
    "MPS and MIG under strategy none": (
        BALANCED,
        said(entry(WHOLE, 2, Mode.MPS), strategy="none"),
        ["GPU 0 (GPU-0) offers nothing: MIG is on, so MPS needs strategy single or mixed"],
    ),
    "strategy single": (
        node_of(gpu(0), gpu(1, "A100-40GB", "all-1g.5gb")),
        said(strategy="single"),
        ["GPU 0 (GPU-0) offers nothing: strategy single requires 1g.5gb only, and the node has whole GPUs"],
    ),
    "old GPUs": (
        node_of(gpu(0, "P100-16GB")),
        said(entry(WHOLE, 4, Mode.MPS)),
        ["GPU 0 (GPU-0) offers no MPS: on Pascal it limits neither memory nor compute"],
    ),
    "too many clients": (
        node_of(gpu(0), cuda=(13, 1)),
        said(entry(WHOLE, 61, Mode.MPS)),
        ["GPU 0 (GPU-0) has 60 clients a device: MPS admits no more"],
    ),
}


@pytest.mark.parametrize(("inventory", "files", "want"), NOTES.values(), ids=NOTES)
def test_what_is_said(inventory: Inventory, files: NodeSharing, want: list[str]) -> None:
    assert list(notes(inventory, files)) == want


def policy(index: int, sharing: Sharing | None) -> GpuSettings:
    return GpuSettings(uuid=f"GPU-{index}", sharing=sharing)


def test_names_by_rename_are_those_that_nvidia_does_not_have() -> None:
    names = ("", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb.shared", "nvidia.com/dev", "example.com/gold")
    files = said(*(entry(WHOLE, 2, rename=name) for name in names))
    assert files.renamed == {"nvidia.com/dev", "example.com/gold"}


def test_policies_mix_modes_and_leave_the_other_gpus_to_the_other_files() -> None:
    inventory = node_of(gpu(0), gpu(1), gpu(2), gpu(3, "A100-40GB", "all-3g.20gb"), gpu(4, "A100-40GB"))
    layout = inventory.gpus[3].layout
    policies = (
        policy(0, Sharing(modes=(Mode.MPS,), replicas=(("", 3),))),
        policy(1, Sharing(modes=(Mode.MEMORY_SHARE,))),
        policy(2, None),
        policy(
            3,
            Sharing(modes=(Mode.MIG, Mode.MIG_MPS), layout=layout, allow_repartition=False, replicas=(("3g.20gb", 2),)),
        ),
        policy(4, AUTO),
    )
    files = NodeSharing(entries=(entry(WHOLE, 4),), policies=policies)
    assert offered(inventory, files) == [
        (0, WHOLE, Mode.MPS, 3),
        (2, WHOLE, Mode.TIME_SLICING, 4),
        (3, f"{MIG}3g.20gb", Mode.MIG_MPS, 2),
        (3, f"{MIG}3g.20gb", Mode.MIG_MPS, 2),
    ]
    assert effective(inventory, files)[4].sharing.creates_devices


SEVENTHS = node_of(*(gpu(index, "A100-40GB", "all-1g.5gb") for index in range(2)))
FIXED = Sharing(modes=(Mode.MIG,), layout=SEVENTHS.gpus[0].layout, allow_repartition=False)

# sentence: (strategy of the node, sharing of the policy, strategy of the policy's entry, resource of the instances)
STRATEGIES: dict[str, tuple[Strategy | None, Sharing, Strategy | None, str]] = {
    "nothing is said": (None, FIXED, None, f"{MIG}1g.5gb"),
    "mixed": ("mixed", FIXED, None, f"{MIG}1g.5gb"),
    "single, of a layout that a policy fixes": ("single", FIXED, None, WHOLE),
    "single, of managed GPUs": ("single", AUTO, None, WHOLE),
    "single of the node and mixed of the GPU": ("single", FIXED, "mixed", f"{MIG}1g.5gb"),
    "mixed of the node and single of the GPU": ("mixed", FIXED, "single", WHOLE),
    "none does not take away what a policy fixes": ("none", FIXED, None, f"{MIG}1g.5gb"),
    "single as the sharing itself has it": (None, msgspec.structs.replace(FIXED, strategy="single"), None, WHOLE),
}


@pytest.mark.parametrize(("strategy", "sharing", "own", "want"), STRATEGIES.values(), ids=STRATEGIES)
def test_what_instances_are_called_with_a_policy_in_force(
    strategy: Strategy | None, sharing: Sharing, own: Strategy | None, want: str
) -> None:
    policies = tuple(GpuSettings(uuid=f"GPU-{index}", sharing=sharing, strategy=own) for index in range(2))
    files = NodeSharing(policies=policies, strategy=strategy)
    assert [device[1] for device in offered(SEVENTHS, files)] == [want] * 14
    assert list(notes(SEVENTHS, files)) == []


def test_memory_of_managed_gpus_stays_beside_instances_under_strategy_single() -> None:
    """Two GPUs in slices outnumber one that is whole: it offers no device, and its memory all the same."""
    inventory = node_of(*SEVENTHS.gpus, gpu(2, "A100-40GB"), gpu(3, "A100-40GB"))
    policies = (*(policy(index, AUTO) for index in range(3)), policy(3, Sharing(modes=(Mode.WHOLE,))))
    files = NodeSharing(policies=policies, strategy="single")
    got = effective(inventory, files)
    assert [len(each.devices) for each in got] == [7, 7, 0, 0]
    assert [each.sharing.modes for each in got[2:]] == [(Mode.MPS, Mode.MEMORY_SHARE), ()]


@pytest.mark.parametrize(
    ("sentence", "there", "desired", "want"),
    [
        ("MIG is still off", None, Sharing(layout=(Placement(0, 4, "3g.20gb"),), allow_repartition=False), True),
        ("MIG is still on", "all-enabled", Sharing(modes=(Mode.WHOLE,)), True),
        ("MIG on is what the policy wants", "all-enabled", Sharing(layout=(), allow_repartition=False), False),
        ("auto takes what is there", "all-enabled", AUTO, False),
        ("whole takes what is there", None, Sharing(modes=(Mode.WHOLE,)), False),
    ],
)
def test_a_policy_that_is_not_met_offers_nothing(
    sentence: str, there: str | None, desired: Sharing, *, want: bool
) -> None:
    inventory = node_of(gpu(0, "A100-40GB", there))
    files = NodeSharing(policies=(policy(0, desired),), strategy="single")
    assert (effective(inventory, files)[0].sharing.modes == ()) is want, sentence
    assert bool(notes(inventory, files)) is want
    if want:
        state = "off" if there is None else "on"
        assert notes(inventory, files)[0].endswith(f"offers nothing until its policy is met: MIG is {state}")


def test_layouts_that_policies_want() -> None:
    cut = node_of(gpu(0, "A100-40GB", "all-3g.20gb"), gpu(1, "A100-40GB", "all-1g.5gb"), gpu(2, "A100-40GB"), gpu(3))
    layout = cut.gpus[0].layout
    desired = Sharing(layout=layout, allow_repartition=False)
    policies = (
        policy(0, desired),
        policy(1, desired),
        policy(2, AUTO),
        policy(3, Sharing(modes=(Mode.WHOLE,))),
        policy(9, desired),
        policy(0, None),
    )
    assert desired_layouts(cut, NodeSharing(policies=policies)) == (("GPU-1", layout),)
    off = NodeSharing(policies=(policy(0, Sharing(modes=(Mode.MPS,), replicas=(("", 2),))),))
    assert desired_layouts(cut, off) == (("GPU-0", None),)


@pytest.mark.parametrize(
    ("name", "capability", "cuda", "want"),
    [
        ("V100-16GB", (7, 0), (13, 0), 48),
        ("V100-16GB", (6, 1), (13, 0), 16),
        ("T4", (0, 0), (13, 1), 60),
        ("P100-16GB", (0, 0), (13, 1), 16),
    ],
)
def test_how_many_clients_mps_admits(name: str, capability: tuple[int, int], cuda: tuple[int, int], want: int) -> None:
    assert mps_client_limit(gpu(0, name, compute_capability=capability), cuda) == want


def test_what_files_and_labels_say_together() -> None:
    config = msgspec.structs.replace(said(entry(WHOLE, 4), strategy="none"), ignored=("a",))
    own = NodeSharing(policies=(policy(0, AUTO),), unit_mib=1, ignored=("b",))
    got = combined(config, own, memory_share=True)
    assert got == NodeSharing(
        strategy="none",
        entries=config.entries,
        policies=own.policies,
        memory_share=True,
        unit_mib=1,
        ignored=("a", "b"),
    )
    assert combined(config, msgspec.structs.replace(own, strategy="single")).strategy == "single"


def test_what_is_withheld_while_a_layout_changes() -> None:
    gpus = effective(node_of(gpu(0, "A100-40GB", "all-3g.20gb"), gpu(1), gpu(2)), said(entry(WHOLE, 4)))
    first = gpus[0].sharing.layout
    assert first is not None
    got = withheld(gpus, {"GPU-0": first[1:], "GPU-1": ()})
    assert [len(each.devices) for each in gpus] == [2, 1, 1]
    assert [len(each.devices) for each in got] == [1, 0, 1]
    assert got[0].devices[0].placement == first[1]
    assert withheld(gpus, {"GPU-0": first}) == gpus


def test_a_managed_gpu_keeps_its_units_while_its_layout_changes() -> None:
    auto = NodeSharing(policies=(GpuSettings(uuid="GPU-0", sharing=AUTO),))
    (got,) = withheld(effective(node_of(gpu(0, "A100-40GB")), auto), {"GPU-0": ()})
    assert Mode.WHOLE not in got.sharing.modes
    assert (got.devices, got.sharing.managed) == ((), True)
    isolated = Sharing(modes=(Mode.WHOLE, Mode.MIG))
    hardware = NodeSharing(policies=(GpuSettings(uuid="GPU-0", sharing=isolated),))
    (got,) = withheld(effective(node_of(gpu(0, "A100-40GB")), hardware), {"GPU-0": ()})
    assert (got.devices, got.sharing.managed) == ((), True)
