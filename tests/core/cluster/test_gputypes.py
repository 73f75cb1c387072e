"""GPU types: alike GPUs are one type, and a type says what can be done on them."""

import msgspec

from builders.fleets import A100, T4, gpu
from builders.gpufacts import at
from builders.shares import mig_share, share
from tessera.core.cluster.gputypes import ABSENT, MODE_BIT, GpuType, GpuTypes
from tessera.core.gpu.sharing import AUTO, Mode, Sharing

MIG = Sharing(modes=(Mode.MIG,), layout=at(A100, ("3g.20gb", 0), ("3g.20gb", 4)), allow_repartition=False)


def test_gpus_are_numbered_by_what_they_can_do() -> None:
    types = GpuTypes()
    smaller = msgspec.structs.replace(gpu(2, T4), memory_mib=T4.memory_mib - 1)
    got = types.all_of([[gpu(0, T4), gpu(1, A100)], [gpu(5, T4)], [smaller]], 2)
    assert got.tolist() == [[1, 1, 3], [2, 0, 0]]
    assert types.found[0] is ABSENT
    assert [each.model.name for each in types.found[1:]] == ["T4", "A100-40GB", "T4"]
    assert types.of(gpu(7, T4)) == 1


def test_unhealthy_gpus_are_a_type_of_their_own_whichever_gpu_it_is() -> None:
    def closed(index: int) -> int:
        return types.of(msgspec.structs.replace(gpu(index, T4, Sharing(modes=())), healthy=gpu(index, T4)))

    types = GpuTypes()
    assert types.of(gpu(0, T4, Sharing(modes=()))) != closed(0)
    assert closed(0) == closed(1)
    healthy = types.found[closed(0)].healthy
    assert healthy is not None
    assert healthy.serves == types.found[types.of(gpu(0, T4))].serves


def test_what_an_administrator_fixed_serves_nothing_new() -> None:
    free, fixed = GpuType.of(gpu(0, A100, AUTO)), GpuType.of(gpu(0, A100, MIG))
    assert (free.fixed, free.serves & MODE_BIT[Mode.MIG]) == (False, MODE_BIT[Mode.MIG])
    assert (fixed.fixed, fixed.serves) == (True, 0)


def test_a_share_is_part_of_the_device_at_its_place_or_of_none() -> None:
    fixed = GpuType.of(gpu(0, A100, MIG))
    assert fixed.device_of(mig_share(0, "3g.20gb", 4)) == 1
    assert fixed.device_of(mig_share(0, "1g.5gb", 4)) is None
    assert fixed.device_of(share(0, 1024)) is None
