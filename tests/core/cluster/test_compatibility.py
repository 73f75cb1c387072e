"""What can be on one GPU at once: every rule, and that the order of holders decides nothing."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.fleets import A100, T4, gpu
from builders.shares import mig_share, share
from tessera.core.cluster.compatibility import Rule, faults, free_clients, with_reserved
from tessera.core.cluster.gputypes import GpuType
from tessera.core.cluster.snapshot import Gpu, Share
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Mode, Sharing

FIXED = Sharing(
    modes=(Mode.MIG,), layout=(Placement(0, 4, "3g.20gb"), Placement(4, 4, "3g.20gb")), allow_repartition=False
)
REPLICATED = msgspec.structs.replace(FIXED, modes=(Mode.MIG, Mode.MIG_MPS), replicas=(("3g.20gb", 2),))
SLICED = Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 2),))


def instances(*places: str) -> tuple[Share, ...]:
    return tuple(share(at=at) for at in places)


MPS, WHOLE, REPLICA = (share(0, 1_000, mode) for mode in (Mode.MPS, Mode.WHOLE, Mode.TIME_SLICING))
# Keyed by a sentence: the GPU, the shares, one a pod, and what is wrong.
CASES: dict[str, tuple[Gpu, tuple[Share, ...], list[tuple[Rule, str]]]] = {
    "nothing": (gpu(0), (), []),
    "amounts in one mode": (gpu(0), (MPS, MPS), []),
    "instances side by side": (gpu(0), instances("3g.20gb@0", "3g.20gb@4"), []),
    "more memory than there is": (
        gpu(0, T4),
        (share(memory_mib=9_000), share(memory_mib=9_000)),
        [(Rule.MEMORY, "18000 MiB of 15360 MiB are allocated")],
    ),
    "more than the GPU alone has": (
        gpu(0, T4),
        (share(memory_mib=99_000),),
        [(Rule.SIZE, "99000 MiB is more than the GPU's 15360 MiB")],
    ),
    "more compute than there is": (
        gpu(0, T4),
        (share(percent=60), share(percent=60)),
        [(Rule.COMPUTE, "120 % of the compute is allocated")],
    ),
    "a negative amount": (
        gpu(0, T4),
        (share(memory_mib=-5),),
        [(Rule.AMOUNT, "-5 MiB, 0 % compute (memory-share) is not a valid share of a GPU")],
    ),
    "two modes": (
        gpu(0, T4),
        (share(), MPS),
        [(Rule.MODES, "shares of different modes on one GPU: memory-share, mps")],
    ),
    "the whole GPU and more": (
        gpu(0, T4),
        (WHOLE, share()),
        [(Rule.ALONE, "the whole GPU is allocated, and 1 more of its devices")],
    ),
    "a profile that the model has not": (
        gpu(0, T4),
        instances("9g.9gb@0"),
        [(Rule.PROFILE, "T4 has no profile 9g.9gb")],
    ),
    "a mode without such a device": (
        gpu(0, T4),
        (REPLICA,),
        [(Rule.DEVICE, "the GPU has no such device: 1000 MiB, 0 % compute (time-slicing)")],
    ),
    "a profile that is not the whole GPU": (
        gpu(0, T4),
        (share(mode=Mode.WHOLE, at="1g.5gb@0"),),
        [(Rule.WHOLE, "1g.5gb is not the whole GPU")],
    ),
    "overlapping instances": (
        gpu(0),
        instances("3g.20gb@0", "1g.5gb@1"),
        [(Rule.OVERLAP, "conflicting MIG instances: 3g.20gb at 0 and 1g.5gb at 1 share memory slice 1")],
    ),
    "one instance twice": (
        gpu(0),
        instances("1g.5gb@1", "1g.5gb@1"),
        [(Rule.CLIENTS, "2 pods use 1g.5gb (mig), which allows 1")],
    ),
    "a start that is none": (gpu(0), instances("3g.20gb@1"), [(Rule.START, "3g.20gb does not start at 1")]),
    "an instance beside a fixed layout": (
        gpu(0, A100, FIXED),
        instances("1g.5gb@0"),
        [(Rule.FIXED, "1g.5gb at 0 (mig) is not one of the devices that the GPU is shared as")],
    ),
    "a device of a fixed layout twice": (
        gpu(0, A100, FIXED),
        instances("3g.20gb@0", "3g.20gb@0", "3g.20gb@4"),
        [(Rule.CLIENTS, "2 pods use 3g.20gb (mig), which allows 1")],
    ),
    "more replicas than there are": (
        gpu(0, T4, SLICED),
        (REPLICA, REPLICA, REPLICA),
        [(Rule.CLIENTS, "3 pods use the GPU (time-slicing), which allows 2")],
    ),
    "replicas larger than what is shared now": (
        gpu(0, T4, SLICED),
        (share(0, 14_000, Mode.TIME_SLICING, percent=90), share(0, 2_000, Mode.TIME_SLICING, percent=20)),
        [
            (Rule.MEMORY, "16000 MiB of 15360 MiB are allocated"),
            (Rule.COMPUTE, "110 % of the compute is allocated"),
        ],
    ),
    "a replica larger than the GPU": (
        gpu(0, T4, SLICED),
        (share(0, 99_000, Mode.TIME_SLICING),),
        [(Rule.MEMORY, "99000 MiB of 15360 MiB are allocated")],
    ),
    "replicas of an instance larger than it": (
        gpu(0, A100, REPLICATED),
        (share(0, 12_000, Mode.MIG_MPS, "3g.20gb@0"), share(0, 12_000, Mode.MIG_MPS, "3g.20gb@0")),
        [(Rule.MEMORY, "24000 MiB of 19968 MiB are allocated")],
    ),
    "several rules at once": (
        gpu(0),
        (share(memory_mib=-5), share(memory_mib=30_000), share(memory_mib=30_000), *instances("1g.5gb@0")),
        [
            (Rule.AMOUNT, "-5 MiB, 0 % compute (memory-share) is not a valid share of a GPU"),
            (Rule.MODES, "shares of different modes on one GPU: memory-share, mig"),
            (Rule.MEMORY, "60000 MiB of 40960 MiB are allocated"),
        ],
    ),
}


@pytest.mark.parametrize(("of", "shares", "want"), CASES.values(), ids=CASES)
def test_what_cannot_be_together(of: Gpu, shares: tuple[Share, ...], want: list[tuple[Rule, str]]) -> None:
    for order in itertools.permutations([(f"p{number}", (each,)) for number, each in enumerate(shares)]):
        found = list(faults(GpuType.of(of), dict(order)))
        assert [(fault.rule, fault.text) for fault in found] == want
        assert all(set(fault.holders) <= {name for name, _ in order} for fault in found)


H100 = msgspec.structs.replace(gpu(0, model("H100-80GB")), memory_mib=80_427)  # of which the driver reserves 1,132 MiB
BIG_HALVES = tuple(share(0, 40_448, at=f"3g.40gb@{start}", percent=42) for start in (0, 4))
# Keyed by a sentence: the GPU, the shares by pod, and what is wrong with the records beside what cannot coexist.
RECORDED: dict[str, tuple[Gpu, dict[str, tuple[Share, ...]], list[str]]] = {
    "nothing": (gpu(0), {}, []),
    "two shares of one pod are its own two": (gpu(0), {"p": (share(), share())}, []),
    "instances that fill a GPU": (H100, {"p": BIG_HALVES[:1], "q": BIG_HALVES[1:]}, []),
    "instances with more compute than there is": (
        gpu(0, A100, FIXED),
        {"p": (share(0, 1, at="3g.20gb@0", percent=60),), "q": (share(0, 1, at="3g.20gb@4", percent=60),)},
        ["120 % of the compute is allocated; pods: p, q"],
    ),
    "a whole GPU that is larger than this one": (
        gpu(0, T4),
        {"p": (share(0, 99_000, Mode.WHOLE),)},
        ["99000 MiB of 15360 MiB are allocated; pods: p"],
    ),
    "amounts from before the GPU was time-sliced": (
        gpu(0, T4, SLICED),
        {"q": (share(memory_mib=9_000),), "p": (share(memory_mib=9_000),)},
        ["18000 MiB of 15360 MiB are allocated; pods: p, q"],
    ),
    "what is said of one share already": (gpu(0, T4), {"p": (share(memory_mib=99_000),)}, []),
    "what is said of all together already": (
        gpu(0, T4),
        {"p": (share(memory_mib=9_000, percent=60),), "q": (share(memory_mib=9_000, percent=60),)},
        [],
    ),
}


@pytest.mark.parametrize(("of", "held", "want"), RECORDED.values(), ids=RECORDED)
def test_records_together_must_not_exceed_the_gpu(of: Gpu, held: dict[str, tuple[Share, ...]], want: list[str]) -> None:
    coexist = list(faults(GpuType.of(of), held))
    found = list(faults(GpuType.of(of), held, recorded=True))
    assert found[: len(coexist)] == coexist
    assert [each.sentence for each in found[len(coexist) :]] == want


GPUS = (gpu(0), gpu(0, T4), gpu(0, A100, FIXED), gpu(0, A100, REPLICATED), gpu(0, T4, SLICED))
SHARES = (
    share(0, 40_960, Mode.WHOLE, percent=100),
    share(0, 4_096),
    share(0, 36_000),
    share(0, 4_096, Mode.MPS, percent=60),
    *(mig_share(0, profile, start) for profile, start in (("1g.5gb", 0), ("1g.5gb", 6), ("1g.5gb", 9), ("7g.40gb", 0))),
    *(Share.of_device(0, each, each.resource) for one in GPUS for each in one.devices),
)


@given(of=st.sampled_from(GPUS), shares=st.lists(st.sampled_from(SHARES), max_size=4))
def test_records_break_each_rule_of_the_whole_gpu_once_and_no_other_beside_what_cannot_coexist(
    of: Gpu, shares: list[Share]
) -> None:
    held = {f"p{number}": (each,) for number, each in enumerate(shares)}
    coexist = list(faults(GpuType.of(of), held))
    found = list(faults(GpuType.of(of), held, recorded=True))
    assert found[: len(coexist)] == coexist
    beside = [each.rule for each in found[len(coexist) :]]
    assert set(beside) <= {Rule.MEMORY, Rule.COMPUTE} - {each.rule for each in coexist}
    assert (Rule.COMPUTE in {each.rule for each in found}) >= (sum(each.compute_percent for each in shares) > 100)


def test_a_larger_client_of_a_device_leaves_fewer_parts() -> None:
    of = GpuType.of(gpu(0, T4, Sharing(modes=(Mode.MPS,), replicas=(("", 4),))))
    assert [free_clients(of, of.devices[0], 1, mib, percent) for mib, percent in ((3840, 25), (7680, 25), (0, 60))] == [
        3,
        2,
        1,
    ]


def test_what_is_reserved_takes_no_place_in_use() -> None:
    given = msgspec.structs.replace(gpu(0), reserved=instances("3g.20gb@4", "1g.5gb@0"))
    assert with_reserved(given, []) == [*instances("3g.20gb@4", "1g.5gb@0")]
    assert with_reserved(given, instances("2g.10gb@0")) == [*instances("2g.10gb@0", "3g.20gb@4")]
    assert with_reserved(given, [WHOLE]) == [WHOLE]
    assert with_reserved(gpu(0), instances("2g.10gb@0")) == [*instances("2g.10gb@0")]
