"""Managed GPUs: which of their devices are idle, are being withdrawn or are missing, and which agree."""

import pytest

from builders.fleets import A100, gpu
from builders.gpufacts import at
from builders.shares import mig_share, share, whole
from tessera.core.cluster.snapshot import NodeName, Share
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.packing.partitioning.managedgpus import ManagedGpu, desired_of, reserved, shown

FIRST, SECOND, HALF = at(A100, ("1g.5gb", 0), ("1g.5gb", 1), ("3g.20gb", 4))


def devices(*places: object) -> frozenset[DeviceId]:
    return frozenset(DeviceId("GPU-0", place) for place in places)  # type: ignore[arg-type]  # None for the whole GPU


def managed(present: frozenset[DeviceId], **more: object) -> ManagedGpu:
    return ManagedGpu(node=NodeName("n"), gpu=gpu(0), present=present, **more)  # type: ignore[arg-type]  # by name


def test_devices_are_idle_or_leaving_or_lacking() -> None:
    one = managed(devices(FIRST, HALF), offered=devices(FIRST, SECOND), allocated=devices(HALF))
    assert one.idle == devices(FIRST)
    assert one.leaving == devices(SECOND)
    assert one.lacking == devices(FIRST, HALF), "MIG is off, so only the whole GPU exists"
    assert managed(devices(None)).lacking == frozenset()


AGREES: dict[str, tuple[tuple[object, ...], tuple[Share, ...], bool]] = {
    "instances side by side": ((FIRST, HALF), (), True),
    "an instance beside one of a pod": ((FIRST,), (mig_share(0, "3g.20gb", 4),), True),
    "an instance on one of a pod": ((HALF,), (mig_share(0, "3g.20gb", 4),), False),
    "the whole GPU alone": ((None,), (), True),
    "the whole GPU beside an instance": ((None, FIRST), (), False),
    "the whole GPU beside an amount": ((None,), (share(memory_mib=1024),), False),
    "an instance beside an amount": ((FIRST,), (share(memory_mib=1024),), False),
    "an amount alone": ((), (share(memory_mib=1024),), True),
    "nothing": ((), (), True),
}


@pytest.mark.parametrize("case", AGREES)
def test_what_a_gpu_can_have_beside_shares_of_pods(case: str) -> None:
    places, shares, want = AGREES[case]
    assert managed(frozenset()).agrees(devices(*places), shares) is want


def test_a_desired_device_that_overlaps_one_in_use_is_disputed_and_not_reserved() -> None:
    one = managed(devices(FIRST, HALF), other=(mig_share(0, "3g.20gb", 4),))
    assert one.disputed
    assert [each.profile for each in reserved(one)] == ["1g.5gb"]
    assert not managed(devices(FIRST, HALF)).disputed
    assert managed(devices(None), other=(whole(0, A100.memory_mib),)).disputed


def test_devices_of_a_gpu_together_and_in_words() -> None:
    found = desired_of("GPU-0", devices(HALF, FIRST))
    assert (found.whole, found.instances) == (False, (FIRST, HALF))
    assert desired_of("GPU-0", devices(None)).whole
    assert shown(devices(HALF, FIRST)) == "1g.5gb at 0, 3g.20gb at 4"
    assert shown(devices(None)) == "the whole GPU"
