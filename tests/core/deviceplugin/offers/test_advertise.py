"""What a node offers the kubelet, and what it holds back."""

import msgspec
import pytest

from builders.gpufacts import at
from builders.gpunodes import facts, identity, offered, shared
from builders.offers import CUT, FIRST, SECOND, SEVEN, node_offer
from tessera.core.deviceplugin.offers.advertise import (
    NodeOffer,
    OfferOptions,
    by_name,
    offer,
    restricted,
    with_former,
)
from tessera.core.deviceplugin.offers.advertise import OfferOptions as Options
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.gpumodels import CATALOG, model
from tessera.core.gpu.inventory import ComputeMode, GpuFacts, Inventory
from tessera.core.gpu.mig import Layout, Placement, maximal_counts
from tessera.core.gpu.sharing import AUTO, Mode, Sharing
from tessera.core.workload.resources import SHARE_RESOURCES

BALANCED = at("A100-40GB", ("1g.5gb", 0), ("1g.5gb", 1), ("2g.10gb", 2), ("3g.20gb", 4))
WHOLE = Sharing(modes=(Mode.WHOLE,))
SLICED = Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 4),))
MEMORY = Sharing(modes=(Mode.MEMORY_SHARE,))
A100_MIB, T4_MIB = model("A100-40GB").memory_mib, model("T4").memory_mib


def partitioned(layout: Layout, **changes: object) -> Sharing:
    return msgspec.structs.replace(Sharing(modes=(Mode.MIG,), layout=layout, allow_repartition=False), **changes)


def replicated(strategy: str) -> Sharing:
    replicas = (("1g.5gb", 4), ("2g.10gb", 3), ("3g.20gb", 4))
    return partitioned(BALANCED, modes=(Mode.MIG_TIME_SLICING,), replicas=replicas, strategy=strategy)


# sentence: (GPUs with their sharing, devices by resource)
OFFERS: dict[str, tuple[list[tuple[GpuFacts, Sharing]], dict[str, int]]] = {
    "whole GPUs": ([(facts(0, "T4"), WHOLE), (facts(1, "T4"), WHOLE)], {"nvidia.com/gpu": 2}),
    "replicas keep the name": ([(facts(0, "T4"), SLICED)], {"nvidia.com/gpu": 4}),
    "replicas are renamed": (
        [(facts(0, "T4"), msgspec.structs.replace(SLICED, renamed=True))],
        {"nvidia.com/gpu.shared": 4},
    ),
    "each GPU has its own number of replicas": (
        [(facts(0), SLICED), (facts(1), msgspec.structs.replace(SLICED, replicas=(("", 7),)))],
        {"nvidia.com/gpu": 11},
    ),
    "strategy single offers instances as GPUs": (
        [
            (facts(0, layout=SEVEN), partitioned(SEVEN, strategy="single")),
            (facts(1, layout=SEVEN), partitioned(SEVEN, strategy="single")),
        ],
        {"nvidia.com/gpu": 14},
    ),
    "strategy mixed offers instances by profile": (
        [(facts(0, layout=BALANCED), partitioned(BALANCED))],
        {"nvidia.com/mig-1g.5gb": 2, "nvidia.com/mig-2g.10gb": 1, "nvidia.com/mig-3g.20gb": 1},
    ),
    "replicas of instances": (
        [(facts(0, layout=BALANCED), replicated("mixed"))],
        {"nvidia.com/mig-1g.5gb": 8, "nvidia.com/mig-2g.10gb": 3, "nvidia.com/mig-3g.20gb": 4},
    ),
    "memory in units of each GPU's own": (
        [(facts(0), MEMORY), (facts(1, "T4"), MEMORY)],
        dict.fromkeys(SHARE_RESOURCES, A100_MIB // 1024 + T4_MIB // 1024),
    ),
    "a managed GPU offers all its memory": (
        [(facts(0), AUTO)],
        dict.fromkeys(SHARE_RESOURCES, A100_MIB // 1024),
    ),
    "a managed GPU has units of all its memory, whatever it is cut into": (
        [(facts(0, layout=SEVEN[:1]), Sharing(layout=SEVEN[:1]))],
        {"nvidia.com/mig-1g.5gb": 1} | dict.fromkeys(SHARE_RESOURCES, A100_MIB // 1024),
    ),
    "modes differ from GPU to GPU": (
        [(facts(0), WHOLE), (facts(1, layout=SEVEN), partitioned(SEVEN)), (facts(2, "T4"), MEMORY)],
        {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.5gb": 7} | dict.fromkeys(SHARE_RESOURCES, T4_MIB // 1024),
    ),
    "MIG on demand alone has units for needs": (
        [(facts(0), Sharing(modes=(Mode.MIG,)))],
        {"tessera.dev/gpu-memory": A100_MIB // 1024},
    ),
    "a fixed layout of the scheduler's has units for needs, and no names": (
        [(facts(0, layout=SEVEN), partitioned(SEVEN, allocator="scheduler"))],
        {"tessera.dev/gpu-memory": A100_MIB // 1024},
    ),
    "whole GPUs, of which the scheduler allocates one": (
        [(facts(0, "T4"), WHOLE), (facts(1, "T4"), msgspec.structs.replace(WHOLE, allocator="scheduler"))],
        {"nvidia.com/gpu": 1, "tessera.dev/gpu-memory": T4_MIB // 1024},
    ),
    "a GPU smaller than a unit has none": ([(msgspec.structs.replace(facts(0, "T4"), memory_mib=1000), MEMORY)], {}),
    "whole under strategy none though it is cut": (
        [(facts(0, layout=SEVEN), msgspec.structs.replace(WHOLE, strategy="none"))],
        {"nvidia.com/gpu": 1},
    ),
    "no GPUs, no resources": ([], {}),
}


@pytest.mark.parametrize("case", OFFERS)
def test_what_is_offered(case: str) -> None:
    pairs, want = OFFERS[case]
    found = offered(*pairs)
    assert {name: len(resource.devices) for name, resource in found.items()} == want
    assert {name for name, resource in found.items() if resource.by_assignment} == set(found) & set(SHARE_RESOURCES)
    for resource in found.values():
        ids = [device.id for device in resource.devices]
        assert len(set(ids)) == len(ids)
        assert all(len(each) <= 63 for each in ids)


def test_how_ids_are_written() -> None:
    gpu = facts(0, layout=SEVEN[:1], numa=1)
    mig = gpu.instances[0].uuid
    plain = offered((gpu, partitioned(SEVEN[:1])))["nvidia.com/mig-1g.5gb"].devices[0]
    assert (plain.id, plain.uuid, plain.gpu_uuid, plain.placement, plain.numa) == (mig, mig, gpu.uuid, SEVEN[0], 1)
    twice = partitioned(SEVEN[:1], modes=(Mode.MIG_MPS,), replicas=(("1g.5gb", 2),))
    replicas = offered((gpu, twice))["nvidia.com/mig-1g.5gb"].devices
    assert [(each.id, each.uuid, each.mode) for each in replicas] == [
        (f"{mig}::0", mig, Mode.MIG_MPS),
        (f"{mig}::1", mig, Mode.MIG_MPS),
    ]
    unit = offered((facts(0), MEMORY))["aliyun.com/gpu-mem"].devices[3]
    assert (unit.id, unit.placement, unit.mode) == (f"{gpu.uuid}-_-3", None, Mode.MEMORY_SHARE)


# sentence: (what is unhealthy, how many of the seven instances and of the T4's two replicas are)
UNHEALTHY: dict[str, tuple[frozenset[DeviceId], int, int]] = {
    "nothing": (frozenset(), 0, 0),
    "a GPU with all its instances": (frozenset({DeviceId(facts(0).uuid)}), 7, 0),
    "a GPU with all its replicas": (frozenset({DeviceId(facts(1).uuid)}), 0, 2),
    "one instance": (frozenset({DeviceId(facts(0).uuid, SEVEN[2])}), 1, 0),
    "an instance of a GPU that is not here": (frozenset({DeviceId("GPU-x", SEVEN[2])}), 0, 0),
}


@pytest.mark.parametrize("case", UNHEALTHY)
def test_health(case: str) -> None:
    unhealthy, *want = UNHEALTHY[case]
    twice = msgspec.structs.replace(SLICED, replicas=(("", 2),))
    pairs = (facts(0, layout=SEVEN), partitioned(SEVEN)), (facts(1, "T4"), twice)
    found = offered(*pairs, options=OfferOptions(unhealthy=unhealthy))
    names = ("nvidia.com/mig-1g.5gb", "nvidia.com/gpu")
    assert [sum(not device.healthy for device in found[name].devices) for name in names] == want


def test_a_lost_gpu_stays_on_the_list_as_unhealthy() -> None:
    lost = msgspec.structs.replace(facts(0), lost=True)
    assert not any(device.healthy for device in offered((lost, WHOLE))["nvidia.com/gpu"].devices)
    assert not any(device.healthy for device in offered((lost, MEMORY))["aliyun.com/gpu-mem"].devices)


def test_units_of_a_unhealthy_gpu_are_unhealthy() -> None:
    options = OfferOptions(unhealthy=frozenset({DeviceId(facts(0).uuid)}), unit_mib=512)
    units = offered((facts(0), MEMORY), (facts(1, "T4"), MEMORY), options=options)["aliyun.com/gpu-mem"].devices
    assert {device.healthy for device in units if device.gpu_uuid == facts(0).uuid} == {False}
    assert sum(device.healthy for device in units) == T4_MIB // 512


MPS_TOO = Sharing(modes=(Mode.MEMORY_SHARE, Mode.MPS))
PROHIBITED = msgspec.structs.replace(facts(0), compute_mode=ComputeMode.PROHIBITED)
HALF = at("A100-40GB", ("3g.20gb", 0))

# sentence: (GPUs with their sharing, options, resources that are offered, what the reason says)
WITHHELD: dict[str, tuple[list[tuple[GpuFacts, Sharing]], OfferOptions, set[str], str]] = {
    "a prohibited GPU": ([(PROHIBITED, WHOLE)], OfferOptions(), set(), "nvidia-smi -c"),
    "a whole GPU on which MIG is on without instances": (
        [(facts(0, layout=()), WHOLE)],
        OfferOptions(),
        set(),
        "MIG is on without instances",
    ),
    "instances where MIG is off": ([(facts(0), partitioned(SEVEN))], OfferOptions(), set(), "MIG is off"),
    "an instance that does not exist yet": (
        [(facts(0, layout=HALF), partitioned(at("A100-40GB", ("3g.20gb", 0), ("3g.20gb", 4))))],
        OfferOptions(),
        {"nvidia.com/mig-3g.20gb"},
        "3g.20gb at 4: the driver reports no such instance",
    ),
    "unlike instances under strategy single": (
        [(facts(0, layout=BALANCED), partitioned(BALANCED, strategy="single"))],
        OfferOptions(),
        set(),
        "1g.5gb and 2g.10gb and 3g.20gb under one name",
    ),
    "whole GPUs beside instances under strategy single": (
        [(facts(0, layout=SEVEN), partitioned(SEVEN, strategy="single")), (facts(1), WHOLE)],
        OfferOptions(),
        set(),
        "1g.5gb and whole GPUs under one name",
    ),
    "replicas of a mode that the node cannot enforce": (
        [(facts(0), Sharing(modes=(Mode.MPS,), replicas=(("", 4),))), (facts(1), WHOLE)],
        OfferOptions(enforced=frozenset(Mode) - {Mode.MPS}),
        {"nvidia.com/gpu"},
        "cannot enforce mps now",
    ),
    "more units than a kubelet takes": (
        [(facts(0), MEMORY), (facts(1), WHOLE)],
        OfferOptions(unit_mib=1),
        {"nvidia.com/gpu"},
        "gpu-mem: 40960 units of 1 MiB exceed the kubelet's limit of 40000 a node; set unit: GiB",
    ),
    "more replicas than a kubelet takes": (
        [(facts(index), Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 4096),))) for index in range(10)],
        OfferOptions(),
        set(),
        "40960 devices exceed the kubelet's limit of 40000 a node; choose fewer replicas",
    ),
    "an id that is too long": (
        [(msgspec.structs.replace(facts(0), uuid="GPU-" + "0" * 60), WHOLE)],
        OfferOptions(),
        set(),
        "more than 63 characters",
    ),
}


@pytest.mark.parametrize("case", WITHHELD)
def test_what_is_withheld_and_why(case: str) -> None:
    pairs, options, want, reason = WITHHELD[case]
    inventory = Inventory(gpus=tuple(gpu for gpu, _ in pairs))
    found = offer([shared(gpu, sharing) for gpu, sharing in pairs], inventory, options)
    assert {resource.name for resource in found.resources} == want
    assert any(reason in each for each in found.withheld), found.withheld
    assert {name for name, _ in found.impossible}.isdisjoint(want)
    assert {f"resource {name}: {problem}" for name, problem in found.impossible} <= set(found.withheld)


def test_a_gpu_that_the_driver_does_not_show_is_withheld() -> None:
    found = offer([shared(facts(0), WHOLE)], Inventory(gpus=(facts(1),)), OfferOptions())
    assert found.resources == ()
    assert "GPU 0" in found.withheld[0]


def test_units_take_the_weakest_mode_that_can_be_enforced() -> None:
    options = OfferOptions(enforced=frozenset({Mode.MPS}))
    units = offered((facts(0), MPS_TOO), options=options)["tessera.dev/gpu-memory"].devices
    assert {unit.mode for unit in units} == {Mode.MPS}
    assert offered((facts(0), MPS_TOO), options=OfferOptions(enforced=frozenset())) == {}


def test_an_instance_that_a_pod_holds_by_assignment_is_not_offered_again() -> None:
    sharing = Sharing(layout=SEVEN[:2])
    gpu = facts(0, layout=SEVEN[:2])
    options = OfferOptions(assigned_instances=frozenset({DeviceId(gpu.uuid, SEVEN[0])}))
    found = offer([shared(gpu, sharing)], Inventory(gpus=(gpu,)), options)
    sizes = {resource.name: len(resource.devices) for resource in found.resources}
    assert sizes == {"nvidia.com/mig-1g.5gb": 1} | dict.fromkeys(SHARE_RESOURCES, A100_MIB // 1024)
    assert found.withheld == ()


def test_whether_one_request_must_be_for_one() -> None:
    mps = Sharing(modes=(Mode.MPS,), replicas=(("", 4),))
    assert offered((facts(0), mps))["nvidia.com/gpu"].single_request
    assert not offered((facts(0), SLICED))["nvidia.com/gpu"].single_request


UUID = facts(0).uuid
NO_WHOLE = Sharing(modes=(Mode.MPS, Mode.MEMORY_SHARE))

# sentence: (GPU with its sharing, what is chosen of it, devices by resource beside the units)
CHOSEN: dict[str, tuple[tuple[GpuFacts, Sharing], dict[str, frozenset[Placement | None]], dict[str, int]]] = {
    "nothing is chosen": ((facts(0, layout=SEVEN), Sharing(layout=SEVEN)), {UUID: frozenset()}, {}),
    "two of seven instances": (
        (facts(0, layout=SEVEN), Sharing(layout=SEVEN)),
        {UUID: frozenset(SEVEN[:2])},
        {"nvidia.com/mig-1g.5gb": 2},
    ),
    "an instance that is not there": (
        (facts(0, layout=SEVEN[:1]), Sharing(layout=SEVEN[:1])),
        {UUID: frozenset(SEVEN[1:2])},
        {},
    ),
    "the whole GPU": ((facts(0), AUTO), {UUID: frozenset({None})}, {"nvidia.com/gpu": 1}),
    "the whole GPU while MIG is on": ((facts(0, layout=()), Sharing(layout=())), {UUID: frozenset({None})}, {}),
    "the whole GPU while it is withheld": ((facts(0), NO_WHOLE), {UUID: frozenset({None})}, {}),
    "nothing is said of this GPU": (
        (facts(0, layout=SEVEN), Sharing(layout=SEVEN)),
        {"GPU-x": frozenset()},
        {"nvidia.com/mig-1g.5gb": 7},
    ),
}


@pytest.mark.parametrize("case", CHOSEN)
def test_of_managed_gpus_only_what_is_chosen_is_offered(case: str) -> None:
    pair, chosen, want = CHOSEN[case]
    by_gpu = {uuid: frozenset(DeviceId(uuid, each) for each in places) for uuid, places in chosen.items()}
    found = offered(pair, options=OfferOptions(chosen=by_gpu))
    sizes = {name: len(resource.devices) for name, resource in found.items()}
    assert sizes == want | dict.fromkeys(SHARE_RESOURCES, A100_MIB // 1024)


def test_units_are_enough_for_every_pod_that_the_ledger_admits() -> None:
    """A MIG instance given for an amount counts as the units that were asked, never more than it has memory."""
    for known in CATALOG:
        units = known.memory_mib // 1024
        memory_mib = {profile.name: profile.memory_mib for profile in known.profiles}
        for counts in maximal_counts(known) if known.profiles else ():
            assert sum(number * (memory_mib[name] // 1024) for name, number in counts) <= units, (known.name, counts)


def test_what_is_offered_by_name() -> None:
    assert by_name(node_offer()) == {DeviceId(FIRST), *(DeviceId(SECOND, place) for place in SEVEN)}


def test_an_offer_without_some_devices() -> None:
    before = node_offer()
    kept = restricted(before, frozenset({DeviceId(SECOND, SEVEN[3]), DeviceId(identity("GPU", 9))}))
    assert {each.name: len(each.devices) for each in kept.resources} == {
        "aliyun.com/gpu-mem": 40,
        "nvidia.com/mig-1g.5gb": 1,
        "tessera.dev/gpu-memory": 40,
    }
    assert by_name(kept) == {DeviceId(SECOND, SEVEN[3])}
    assert restricted(before, by_name(before)) == before


def test_what_stays_is_offered_as_before() -> None:
    cut = facts(0, layout=SEVEN)
    inventory = Inventory(gpus=(cut, facts(1)))
    gpus = shared(cut, CUT), shared(facts(1), Sharing(modes=(Mode.WHOLE,)))
    before = offer(gpus, inventory, Options())
    keys = frozenset[DeviceId]({DeviceId(FIRST, SEVEN[0]), DeviceId(SECOND)})
    assert by_name(with_former(NodeOffer(resources=()), before, keys)) == keys
    less = restricted(before, frozenset({DeviceId(FIRST, SEVEN[1])}))
    assert by_name(with_former(less, before, keys)) == keys | {DeviceId(FIRST, SEVEN[1])}
    assert with_former(before, before, keys) == before
    assert with_former(before, NodeOffer(resources=()), keys) == before
