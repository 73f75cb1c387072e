"""A configuration's name becomes a target for each GPU, as mig-parted would have it."""

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.gpufacts import at, gpu_facts
from builders.nodefacts import node_of
from tessera.core.gpu.gpumodels import CATALOG, model
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.mig import Counts, Layout, all_layouts, counts_of, named_layouts, place
from tessera.core.node.layouts import Group, as_groups, configuration_names, differences, exact, resolve, unseen_gpus
from tessera.errors import InvalidInput

A100, H100 = model("A100-40GB"), model("H100-80GB")
ONES = (("1g.5gb", 7),)
HALVES = at(A100, ("3g.20gb", 0), ("3g.20gb", 4))
MIG_MODELS = [each.name for each in CATALOG if each.memory_slices]
MIXED = node_of(gpu_facts(), gpu_facts("H100-80GB", index=1), gpu_facts("T4", index=2))


def layouts(name: str) -> st.SearchStrategy[Layout]:
    gpu = model(name)
    return st.sampled_from(all_layouts(gpu)) if gpu.memory_slices else st.just(())


def counts(name: str, configurations: Mapping[str, tuple[Group, ...]], inventory: Inventory) -> dict[int, object]:
    """Return by index what each GPU gets: its instances, or off."""
    return {each.index: each.counts if each.mig else "off" for each in resolve(name, configurations, inventory)}


@pytest.mark.parametrize(
    ("groups", "want"),
    [
        pytest.param((Group(enabled=True, instances=ONES, devices=(0,)),), {0: ONES}, id="the others stay as they are"),
        pytest.param((Group(enabled=False),), {0: "off", 1: "off"}, id="off for all"),
        pytest.param((Group(enabled=True),), {0: (), 1: ()}, id="on without instances"),
        pytest.param((Group(enabled=False, devices=(2,)),), {}, id="off where there is no MIG"),
        pytest.param((Group(enabled=True, devices=(7,)),), {}, id="an index that this node lacks"),
        pytest.param(
            (Group(enabled=False), Group(enabled=True, instances=ONES, devices=(0,))),
            {0: ONES, 1: "off"},
            id="the last group wins",
        ),
        pytest.param(
            (
                Group(enabled=True, instances=ONES, filters=("0x20b010DE",)),
                Group(enabled=False, filters=("0x233010DE",)),
            ),
            {0: ONES, 1: "off"},
            id="by PCI device id, in any case",
        ),
        pytest.param(
            (Group(enabled=True, instances=(("3g.39gb", 2),), devices=(1,)),), {1: (("3g.40gb", 2),)}, id="alias"
        ),
        pytest.param(
            (Group(enabled=True, instances=(("3g.20gb", 1), ("1g.5gb", 2), ("2g.10gb", 0)), devices=(0,)),),
            {0: (("1g.5gb", 2), ("3g.20gb", 1))},
            id="in the order of the model's profiles, none of them zero",
        ),
    ],
)
def test_groups_of_a_file(groups: tuple[Group, ...], want: dict[int, object]) -> None:
    assert counts("mine", {"mine": groups}, MIXED) == want


def test_the_device_id_that_the_driver_reports_counts_and_not_the_catalogs() -> None:
    group = Group(enabled=False, filters=("0x20B010DE",))
    assert counts("mine", {"mine": (group,)}, node_of(gpu_facts(pci_device_id="0x20B110DE"))) == {}
    assert counts("mine", {"mine": (group,)}, node_of(gpu_facts(pci_device_id="0x20B010DE"))) == {0: "off"}


UNSEEN = msgspec.structs.replace(node_of(gpu_facts(index=1)), unseen=(0, 2))
ON, OFF = Group(enabled=True, devices=(0, 1)), Group(enabled=False)


@pytest.mark.parametrize(
    ("name", "groups", "want"),
    [
        pytest.param("all-1g.5gb", (), (0, 2), id="a name that every model has is about all"),
        pytest.param("mine", (ON,), (0,), id="those of a list"),
        pytest.param("mine", (ON, OFF), (0, 2), id="all, also to have MIG off, for it may be on"),
        pytest.param("mine", (Group(enabled=True, filters=("0x1",)),), (0, 2), id="a filter may mean it"),
        pytest.param("mine", (Group(enabled=True, devices=(1,)),), (), id="none that is meant"),
    ],
)
def test_gpus_that_were_never_shown_are_meant_all_the_same(
    name: str, groups: tuple[Group, ...], want: tuple[int, ...]
) -> None:
    assert unseen_gpus(name, {"mine": groups}, UNSEEN) == want


def test_where_every_gpu_was_lost_before_no_name_is_wrong() -> None:
    nothing = msgspec.structs.replace(node_of(), unseen=(0,))
    assert resolve("all-1g.5gb", {}, nothing) == ()
    with pytest.raises(InvalidInput):
        resolve("halves", {}, nothing)


def test_a_gpu_that_was_never_shown_is_in_no_group() -> None:
    assert as_groups(UNSEEN) == (Group(devices=(1,), enabled=False),)


# sentence: (filter, subsystem ids of a GPU 0x20B010DE, whether it is meant)
FILTERS: dict[str, tuple[str, tuple[int, ...], bool]] = {
    "device and vendor, whatever the subsystem": ("0x20B010DE", (0x145F10DE,), True),
    "the same in decimal": (str(0x20B010DE), (0,), True),
    "the same in octal, as Go reads a leading zero": (f"0{0x20B010DE:o}", (0,), True),
    "the same in octal, in binary, with separators": (f"0o{0x20B010DE:o}", (0,), True),
    "binary": (f"0B{0x20B010DE:b}", (0,), True),
    "separators": ("0x_20b0_10de", (0,), True),
    "leading zeros": ("0x0020B010DE", (0,), True),
    "another device": ("0x20B110DE", (0,), False),
    "the subsystem": ("0x20B010DE:0x145F10DE", (0x145F10DE,), True),
    "the subsystem in decimal": (f"{0x20B010DE}:{0x145F10DE}", (0x145F10DE,), True),
    "another subsystem": ("0x20B010DE:0x146010DE", (0x145F10DE,), False),
    "the subsystem of another device": ("0x20B110DE:0x145F10DE", (0x145F10DE,), False),
    "no subsystem where the system shows one": ("0x20B010DE:0x00000000", (0x145F10DE,), False),
    "no subsystem where the system shows none": ("0x20B010DE:0x00000000", (0x145F10DE, 0), True),
    "the driver's subsystem where the system shows none": ("0x20B010DE:0x145F10DE", (0x145F10DE, 0), True),
    "three numbers": ("0x20B010DE:0:0", (0,), False),
    "half a subsystem": ("0x20B010DE:", (0,), False),
    "a word": ("A100", (0,), False),
    "nothing": ("", (0,), False),
    "a sign": ("+0x20B010DE", (0,), False),
    "a space": (" 0x20B010DE", (0,), False),
    "more than 32 bits": ("0x120B010DE", (0,), False),
    "no octal digit": ("089", (0,), False),
}


@pytest.mark.parametrize("case", FILTERS)
def test_filters_are_compared_as_numbers(case: str) -> None:
    text, subsystems, want = FILTERS[case]
    facts = msgspec.structs.replace(gpu_facts(pci_device_id="0x20B010DE"), pci_subsystem_ids=subsystems)
    group = Group(enabled=False, filters=("0x1", text))
    assert bool(resolve("mine", {"mine": (group,)}, node_of(facts))) == want


@pytest.mark.parametrize(
    ("name", "inventory", "want"),
    [
        ("all-disabled", MIXED, {0: "off", 1: "off"}),
        ("all-disabled", node_of(gpu_facts("T4")), {}),
        ("all-enabled", MIXED, {0: (), 1: ()}),
        ("all-1g.5gb", node_of(gpu_facts(), gpu_facts("T4", index=1)), {0: ONES}),
        ("all-1g.10gb", MIXED, {0: (("1g.10gb", 4),), 1: (("1g.10gb", 7),)}),
        ("all-balanced", node_of(gpu_facts()), {0: (("1g.5gb", 2), ("2g.10gb", 1), ("3g.20gb", 1))}),
        ("all-3g.39gb", node_of(gpu_facts("H100-80GB")), {0: (("3g.40gb", 2),)}),
        ("all-1g.5gb.me", node_of(gpu_facts()), {0: (("1g.5gb+me", 1),)}),
        ("all-1g.5gb+me", node_of(gpu_facts()), {0: (("1g.5gb+me", 1),)}),
    ],
)
def test_names_that_need_no_file(name: str, inventory: Inventory, want: dict[int, object]) -> None:
    assert counts(name, {}, inventory) == want


def test_a_file_may_say_something_else_under_a_name_that_mig_parted_has() -> None:
    mine = {"all-1g.5gb": (Group(enabled=True, instances=(("1g.5gb", 3),)),)}
    assert counts("all-1g.5gb", mine, node_of(gpu_facts())) == {0: (("1g.5gb", 3),)}


@pytest.mark.parametrize(
    ("name", "groups", "inventory", "want"),
    [
        pytest.param(
            "halves",
            (),
            node_of(gpu_facts()),
            "MIG configuration: 'halves' is not the name of a configuration that this node can have: "
            "mine, all-disabled, all-enabled, all-1g.5gb, all-1g.5gb.me, all-1g.10gb, all-2g.10gb, all-3g.20gb, "
            "all-4g.20gb, all-7g.40gb, all-balanced",
            id="unknown name",
        ),
        pytest.param(
            "all-9g.5gb",
            (),
            node_of(gpu_facts("T4")),
            "'all-9g.5gb' is not the name of a configuration that this node can have: mine, all-disabled",
            id="a node without MIG",
        ),
        pytest.param(
            "all-2g.10gb",
            (),
            MIXED,
            "configuration all-2g.10gb, GPU 1 (H100-80GB): the GPU's model does not have it: write a file "
            "with the layout of each GPU, or choose one that all MIG GPUs of this node support: mine, all-disabled, "
            "all-enabled, all-1g.10gb, all-balanced",
            id="a name of one model alone",
        ),
        pytest.param(
            "mine",
            (Group(enabled=True, instances=(("1g.5gb", 8),)),),
            node_of(gpu_facts()),
            "configuration mine, GPU 0 (A100-40GB): 8 x 1g.5gb do not fit on one A100-40GB "
            "together: choose from `tessera profiles A100-40GB`",
            id="too many",
        ),
        pytest.param(
            "mine",
            (Group(enabled=True, instances=(("1g.10gb", 7),)),),
            node_of(gpu_facts("A30")),
            "configuration mine, GPU 0 (A30-24GB): '1g.10gb' is not a profile this model offers: ",
            id="a profile the GPU lacks",
        ),
        pytest.param(
            "mine",
            (Group(enabled=True, devices=(2,)),),
            MIXED,
            "configuration mine, GPU 2 (T4): it has mig-enabled: true, and the GPU has no MIG: write devices: all,",
            id="MIG on a GPU without, by its index",
        ),
    ],
)
def test_refused(name: str, groups: tuple[Group, ...], inventory: Inventory, want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        resolve(name, {"mine": groups}, inventory)
    assert want in str(caught.value)


def test_a_node_lists_what_it_could_have() -> None:
    mine = {"wide": (Group(enabled=True, instances=(("7g.40gb", 2),)),), "off": (Group(enabled=False),)}
    assert configuration_names(mine, MIXED) == ("off", "all-disabled", "all-enabled", "all-1g.10gb", "all-balanced")


@given(st.lists(st.sampled_from(MIG_MODELS), min_size=1, max_size=3))
def test_every_listed_name_means_instances_that_fit(models: list[str]) -> None:
    inventory = node_of(*(gpu_facts(name, index=index) for index, name in enumerate(models)))
    for name in configuration_names({}, inventory):
        for target, gpu in zip(resolve(name, {}, inventory), inventory.gpus, strict=True):
            assert target.gpu == gpu.uuid
            assert target.mig is (name != "all-disabled")
            assert target.counts == named_layouts(gpu.model).get(name, target.counts)
            assert place(gpu.model, dict(target.counts)) is not None


@given(
    st.sampled_from(MIG_MODELS).flatmap(
        lambda name: st.tuples(st.just(name), st.sampled_from(all_layouts(model(name))))
    )
)
def test_counts_written_as_a_group_come_back(drawn: tuple[str, Layout]) -> None:
    name, layout = drawn
    gpu = gpu_facts(name)
    held: Counts = counts_of(gpu.model, layout)
    (target,) = resolve("mine", {"mine": (Group(enabled=True, instances=held),)}, node_of(gpu))
    assert target.counts == held
    assert exact(gpu, tuple(reversed(layout))).layout == tuple(sorted(layout))
    assert exact(gpu, layout).counts == held


@given(
    st.lists(st.sampled_from([*MIG_MODELS, "T4"]), max_size=3).flatmap(
        lambda models: st.tuples(*(st.tuples(st.just(name), st.none() | layouts(name)) for name in models))
    )
)
def test_what_is_exported_is_what_is_there(drawn: tuple[tuple[str, Layout | None], ...]) -> None:
    inventory = node_of(*(gpu_facts(name, index=index, layout=layout) for index, (name, layout) in enumerate(drawn)))
    groups = as_groups(inventory)
    targets = resolve("mine", {"mine": groups}, inventory)
    assert differences(inventory, targets) == ()
    assert len(targets) == sum(gpu.mig is not None for gpu in inventory.gpus)


def test_gpus_that_are_alike_are_one_group_and_lost_ones_are_in_none() -> None:
    same = node_of(gpu_facts(layout=HALVES), gpu_facts(index=1, layout=HALVES))
    assert as_groups(same) == (Group(enabled=True, instances=(("3g.20gb", 2),)),)
    lost = node_of(gpu_facts(layout=HALVES), gpu_facts(index=1), gpu_facts(index=2, lost=True))
    assert as_groups(lost) == (
        Group(devices=(0,), enabled=True, instances=(("3g.20gb", 2),)),
        Group(devices=(1,), enabled=False),
    )


def test_exact_targets() -> None:
    assert not exact(gpu_facts(), None).mig
    with pytest.raises(InvalidInput, match=r"GPU 0 \(A100-40GB\): .* share memory slice 4"):
        exact(gpu_facts(), at(A100, ("3g.20gb", 4), ("1g.5gb", 4)))
