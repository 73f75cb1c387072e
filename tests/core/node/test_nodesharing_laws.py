"""Laws of effective sharing, over made-up nodes and configurations."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from builders.nodefacts import gpu, node_of
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.sharing import Mode
from tessera.core.node.nodesharing import NodeSharing, SharingEntry, Strategy, effective

WHOLE = "nvidia.com/gpu"
MIG = "nvidia.com/mig-"


@st.composite
def nodes(draw: st.DrawFn) -> tuple[Inventory, NodeSharing]:
    layouts = ("all-1g.5gb", "all-balanced", "all-3g.20gb", "all-enabled", None)
    gpus = [
        gpu(index, name, draw(st.sampled_from(layouts)) if name == "A100-40GB" else None)
        for index, name in enumerate(draw(st.lists(st.sampled_from(["A100-40GB", "T4"]), min_size=1, max_size=4)))
    ]
    names = st.sampled_from([WHOLE, f"{MIG}1g.5gb", f"{MIG}3g.20gb"])
    devices = st.lists(st.sampled_from(["0", "1", "0:0", "0:1", "1:0", "GPU-2"]), unique=True, max_size=3).map(tuple)
    entries = draw(
        st.lists(
            st.builds(
                SharingEntry,
                resource=names,
                mode=st.sampled_from([Mode.TIME_SLICING, Mode.MPS]),
                replicas=st.integers(2, 60),
                rename=st.sampled_from(["", "nvidia.com/other", f"{WHOLE}.shared"]),
                count=st.integers(0, 2),
                devices=devices,
            ),
            max_size=4,
        )
    )
    strategies: tuple[Strategy | None, ...] = (None, "none", "single", "mixed")
    strategy = draw(st.sampled_from(strategies))
    return node_of(*gpus), NodeSharing(entries=tuple(entries), strategy=strategy, memory_share=draw(st.booleans()))


@given(nodes())
def test_every_device_is_offered_at_most_once_and_never_more_than_it_has(case: tuple[Inventory, NodeSharing]) -> None:
    inventory, files = case
    for facts, each in zip(inventory.gpus, effective(inventory, files), strict=True):
        assert (each.uuid, each.index, each.memory_mib) == (facts.uuid, facts.index, facts.memory_mib)
        places = [device.placement for device in each.devices]
        assert len(set(places)) == len(places)
        there = {instance.placement for instance in facts.instances}
        assert set(places) <= (there if facts.layout is not None and files.strategy != "none" else {None})
        sizes = {profile.name: profile.memory_mib for profile in facts.model.profiles}
        for device in each.devices:
            held = sizes[device.placement.profile] if device.placement else facts.memory_mib
            assert device.clients * device.memory_mib <= held
            assert device.clients <= 48 or device.mode in {Mode.TIME_SLICING, Mode.MIG_TIME_SLICING}


@given(nodes())
def test_under_strategy_mixed_every_instance_is_offered(case: tuple[Inventory, NodeSharing]) -> None:
    inventory, files = case
    mixed = msgspec.structs.replace(files, strategy="mixed")
    for facts, each in zip(inventory.gpus, effective(inventory, mixed), strict=True):
        if facts.layout is not None:
            assert [device.placement for device in each.devices] == [one.placement for one in facts.instances]


@given(nodes())
def test_under_strategy_single_one_kind_is_offered(case: tuple[Inventory, NodeSharing]) -> None:
    inventory, files = case
    single = msgspec.structs.replace(files, strategy="single")
    kinds = {
        device.placement.profile if device.placement else None
        for each in effective(inventory, single)
        for device in each.devices
    }
    assert len(kinds) <= 1
