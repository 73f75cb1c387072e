"""What is reported of shares that cannot be held at once: all that closes a GPU for new pods, and more."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from builders.kubeobjects import gpu, mig_share, place, share
from tessera.core.cluster.compatibility import faults
from tessera.core.cluster.gputypes import GpuType
from tessera.core.cluster.occupancy import Holding
from tessera.core.cluster.snapshot import Gpu, Share
from tessera.core.explain.holdingfaults import holding_faults
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.workload.need import PodKey

A100 = "A100-40GB"
HALVES = (place(A100, "3g.20gb", 0), place(A100, "3g.20gb", 4))
GPUS = (
    gpu(0),
    gpu(0, layout=HALVES),
    gpu(0, sharing=Sharing(modes=(Mode.MIG,), layout=HALVES, allow_repartition=False)),
    gpu(
        0,
        sharing=Sharing(
            modes=(Mode.MIG, Mode.MIG_MPS), layout=HALVES, allow_repartition=False, replicas=(("3g.20gb", 2),)
        ),
    ),
    gpu(0, sharing=Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 4),))),
    gpu(0, sharing=Sharing(modes=(Mode.MPS,), replicas=(("", 4),))),
    gpu(0, sharing=Sharing(modes=(Mode.MEMORY_SHARE,))),
    gpu(0, sharing=Sharing(modes=(Mode.WHOLE,))),
)
SHARES = (
    share(0, 40960, Mode.WHOLE, percent=100),
    share(0, 4096),
    share(0, 36000),
    share(0, 4096, Mode.MPS, percent=60),
    *(mig_share(0, profile, start) for profile, start in (("1g.5gb", 0), ("1g.5gb", 6), ("1g.5gb", 9), ("7g.40gb", 0))),
    *(Share.of_device(0, each, each.resource) for one in GPUS for each in one.devices),
)


def holdings(*shares: Share) -> list[Holding]:
    return [Holding(PodKey(f"ns/p{number}"), each) for number, each in enumerate(shares)]


@given(of=st.sampled_from(GPUS), shares=st.lists(st.sampled_from(SHARES), max_size=4))
def test_whatever_closes_a_gpu_for_new_pods_is_reported(of: Gpu, shares: list[Share]) -> None:
    found = list(faults(GpuType.of(of), {f"p{number}": (each,) for number, each in enumerate(shares)}))
    got = holding_faults(of, holdings(*shares))
    assert all(any(each.startswith(fault.text) for each in got) for fault in found)


def test_a_share_from_before_the_gpu_was_shared_otherwise() -> None:
    (got,) = holding_faults(GPUS[4], holdings(share(0, 4096)))
    assert got == (
        "4096 MiB, 0 % compute (memory-share) is not one of the devices that the GPU is shared as; pods: ns/p0"
    )


def test_two_shares_of_one_pod_are_its_own_two() -> None:
    twice = [Holding(PodKey("ns/p"), each) for each in (SHARES[1], SHARES[1])]
    assert holding_faults(GPUS[0], twice) == ()


def test_instances_that_fill_a_gpu_are_no_fault() -> None:
    """Two 3g.40gb of an H100 have 80,896 MiB; without MIG 80,427 of it are usable where the driver reserves 1,132."""
    usable = msgspec.structs.replace(gpu(0, "H100-80GB"), memory_mib=80427)
    halves = [
        msgspec.structs.replace(mig_share(0, "3g.20gb", start), profile="3g.40gb", memory_mib=40448) for start in (0, 4)
    ]
    assert holding_faults(usable, holdings(*halves)) == ()
    assert holding_faults(usable, holdings(*halves, halves[0])) != ()
