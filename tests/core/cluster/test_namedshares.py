"""What the ids of devices that pods hold by name mean."""

import msgspec

from builders.gpufacts import at
from builders.gpunodes import facts, offered, shared
from tessera.core.cluster.namedshares import shares_by_id
from tessera.core.cluster.snapshot import Share
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.sharing import AUTO, Mode, Sharing

HALVES = at("A100-40GB", ("3g.20gb", 0), ("3g.20gb", 4))


def fields(share: Share) -> tuple[int, Mode, str | None, int | None, int, int]:
    return share.gpu, share.mode, share.profile, share.start, share.memory_mib, share.compute_percent


def test_a_managed_gpu_may_be_held_whole_or_in_instances() -> None:
    whole, cut = facts(0), facts(1, layout=HALVES)
    pairs = [shared(whole), shared(cut, Sharing(layout=HALVES))]
    found = shares_by_id([*pairs, shared(facts(2))], Inventory(gpus=(whole, cut)))
    assert {each: fields(share) for each, share in found.items()} == {
        whole.uuid: (0, Mode.WHOLE, None, None, whole.memory_mib, 100),
        cut.instances[0].uuid: (1, Mode.MIG, "3g.20gb", 0, 19968, 42),
        cut.instances[1].uuid: (1, Mode.MIG, "3g.20gb", 4, 19968, 42),
    }


def test_ids_are_those_that_are_offered() -> None:
    sliced = Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 4),))
    fixed = Sharing(modes=(Mode.MIG_TIME_SLICING,), layout=HALVES, allow_repartition=False, replicas=(("3g.20gb", 2),))
    gpus = [(facts(0, "T4"), sliced), (facts(1, layout=HALVES), fixed), (facts(2, "T4"), Sharing(modes=(Mode.WHOLE,)))]
    found = shares_by_id([shared(*pair) for pair in gpus], Inventory(gpus=tuple(gpu for gpu, _ in gpus)))
    devices = [device for resource in offered(*gpus).values() for device in resource.devices]
    assert found.keys() == {device.id for device in devices}
    assert all(found[each.id].mode is each.mode and found[each.id].memory_mib == each.memory_mib for each in devices)


def test_a_gpu_that_offers_nothing_has_no_ids() -> None:
    nothing = msgspec.structs.replace(AUTO, modes=(), allow_repartition=False)
    assert shares_by_id([shared(facts(0), nothing)], Inventory(gpus=(facts(0),))) == {}
