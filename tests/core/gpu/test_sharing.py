"""Devices that a configured GPU offers, and the grades of the modes."""

import itertools

import msgspec
import pytest

from builders.profiles import profile
from builders.requests import exact, gpushare, need
from tessera.core.gpu.gpumodels import GpuModel, model
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Mode, Sharing, devices, mig_resource, options
from tessera.core.workload.need import DeviceRequest, Isolation

A100 = GpuModel(
    name="A100-40GB",
    arch="Ampere",
    memory_mib=40_000,
    memory_slices=8,
    compute_slices=7,
    profiles=(
        profile("1g.5gb", 1, range(7), 4_864),
        profile("2g.10gb", 2, (0, 2, 4), 9_856, slices=2),
        profile("3g.20gb", 4, (0, 4), 19_968, slices=3),
    ),
)
BALANCED = (
    Placement(0, 1, "1g.5gb"),
    Placement(1, 1, "1g.5gb"),
    Placement(2, 2, "2g.10gb"),
    Placement(4, 4, "3g.20gb"),
)

# sentence: (sharing, [(resource, mode, clients, memory of a client, compute of a client)])
OFFERS = {
    "a managed GPU offers nothing until something is cut": (Sharing(), []),
    "a whole GPU is one device": (
        Sharing(modes=(Mode.WHOLE,)),
        [("nvidia.com/gpu", Mode.WHOLE, 1, 40_000, 100)],
    ),
    "time-slicing offers replicas with the equal share of the memory": (
        Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 3),)),
        [("nvidia.com/gpu", Mode.TIME_SLICING, 3, 13_333, 33)],
    ),
    "renamed replicas carry the suffix": (
        Sharing(modes=(Mode.MPS,), replicas=(("", 4),), renamed=True),
        [("nvidia.com/gpu.shared", Mode.MPS, 4, 10_000, 25)],
    ),
    "amounts of memory are no devices": (Sharing(modes=(Mode.MEMORY_SHARE,)), []),
    "MIG instances are named by profile": (
        Sharing(modes=(Mode.MIG,), layout=BALANCED[2:]),
        [("nvidia.com/mig-2g.10gb", Mode.MIG, 1, 9_856, 28), ("nvidia.com/mig-3g.20gb", Mode.MIG, 1, 19_968, 42)],
    ),
    "under strategy single every instance is a GPU": (
        Sharing(modes=(Mode.MIG,), layout=BALANCED[3:], strategy="single"),
        [("nvidia.com/gpu", Mode.MIG, 1, 19_968, 42)],
    ),
    "instances are shared per profile, and one client alone is plain MIG": (
        Sharing(
            modes=(Mode.MIG_TIME_SLICING,),
            layout=BALANCED,
            replicas=(("1g.5gb", 4), ("3g.20gb", 2)),
            renamed=True,
        ),
        [
            ("nvidia.com/mig-1g.5gb.shared", Mode.MIG_TIME_SLICING, 4, 1_216, 3),
            ("nvidia.com/mig-1g.5gb.shared", Mode.MIG_TIME_SLICING, 4, 1_216, 3),
            ("nvidia.com/mig-2g.10gb", Mode.MIG, 1, 9_856, 28),
            ("nvidia.com/mig-3g.20gb.shared", Mode.MIG_TIME_SLICING, 2, 9_984, 21),
        ],
    ),
    "single and renamed replicas are shared GPUs": (
        Sharing(
            modes=(Mode.MIG_MPS,), layout=BALANCED[3:], replicas=(("3g.20gb", 2),), renamed=True, strategy="single"
        ),
        [("nvidia.com/gpu.shared", Mode.MIG_MPS, 2, 9_984, 21)],
    ),
}


@pytest.mark.parametrize("sentence", OFFERS)
def test_offers(sentence: str) -> None:
    sharing, want = OFFERS[sentence]
    got = devices(A100, A100.memory_mib, sharing)
    assert [(d.resource, d.mode, d.clients, d.memory_mib, d.compute_percent) for d in got] == want
    assert all(d.memory_mib * d.clients <= A100.memory_mib for d in got)
    assert all(d.isolation is d.mode.isolation for d in got)


def test_resource_names() -> None:
    assert mig_resource("1g.10gb+me") == "nvidia.com/mig-1g.10gb.me"
    assert mig_resource("1g.5gb", shared=True) == "nvidia.com/mig-1g.5gb.shared"


def test_a_stronger_grade_serves_a_weaker_request_and_never_the_reverse() -> None:
    order = (Isolation.NONE, Isolation.DRIVER, Isolation.HARDWARE)
    for (i, have), (j, requested) in itertools.product(enumerate(order), repeat=2):
        assert have.covers(requested) is (i >= j)


AUTO = Sharing()
MPS4 = Sharing(modes=(Mode.MPS,), replicas=(("", 4),))
SLICED = Sharing(modes=(Mode.MIG_TIME_SLICING,), layout=BALANCED, replicas=(("3g.20gb", 2),), allow_repartition=False)


def by_scheduler(sharing: Sharing) -> Sharing:
    return msgspec.structs.replace(sharing, allocator="scheduler")


# Keyed by a sentence; desired are mode, profile and whether the device exists.
WAYS = {
    "a GPU by name is a whole GPU": (exact(), AUTO, [(Mode.WHOLE, None, False)]),
    "a MIG device by name is cut": (exact(1, "nvidia.com/mig-2g.10gb"), AUTO, [(Mode.MIG, "2g.10gb", False)]),
    "a name nobody offers is served by nothing": (exact(1, "nvidia.com/mig-9g.9gb"), AUTO, []),
    "a GPU by name is a replica where the administrator set replicas": (
        exact(),
        MPS4,
        [(Mode.MPS, None, True)],
    ),
    "hardware isolation prefers the smallest instance to the whole GPU": (
        need(6 * 1024, isolation=Isolation.HARDWARE),
        AUTO,
        [(Mode.MIG, "2g.10gb", False), (Mode.WHOLE, None, False)],
    ),
    "compute decides the profile too": (
        need(1 * 1024, compute_percent=40, isolation=Isolation.HARDWARE),
        AUTO,
        [(Mode.MIG, "3g.20gb", False), (Mode.WHOLE, None, False)],
    ),
    "more than any instance needs the whole GPU": (
        need(30 * 1024, isolation=Isolation.HARDWARE),
        AUTO,
        [(Mode.WHOLE, None, False)],
    ),
    "more than the GPU is served by nothing": (need(50 * 1024, isolation=Isolation.NONE), AUTO, []),
    "driver isolation is an MPS share first": (
        need(30 * 1024, isolation=Isolation.DRIVER),
        AUTO,
        [(Mode.MPS, None, False), (Mode.WHOLE, None, False)],
    ),
    "no isolation is a plain share first": (
        need(30 * 1024, isolation=Isolation.NONE),
        AUTO,
        [(Mode.MEMORY_SHARE, None, False), (Mode.MPS, None, False), (Mode.WHOLE, None, False)],
    ),
    "a share is never an instance": (gpushare(4096), AUTO, [(Mode.MEMORY_SHARE, None, False), (Mode.MPS, None, False)]),
    "a share does not fit devices": (gpushare(4096), SLICED, []),
    "a fixed layout is the kubelet's, and serves no need": (need(4 * 1024, isolation=Isolation.NONE), SLICED, []),
    "a fixed layout of the kubelet's serves those who name its devices": (
        exact(1, "nvidia.com/mig-1g.5gb"),
        SLICED,
        [(Mode.MIG, "1g.5gb", True)],
    ),
    "a fixed layout of the scheduler's serves nobody who names its devices": (
        exact(1, "nvidia.com/mig-1g.5gb"),
        by_scheduler(SLICED),
        [],
    ),
    "a layout that may change serves both, and is created anew for both": (
        need(4 * 1024, isolation=Isolation.HARDWARE),
        Sharing(layout=BALANCED[:1]),
        [(Mode.MIG, "1g.5gb", True), (Mode.MIG, "1g.5gb", False), (Mode.WHOLE, None, False)],
    ),
    "a fixed layout of the scheduler's serves a need with its smallest sufficient device": (
        need(4 * 1024, isolation=Isolation.NONE),
        by_scheduler(SLICED),
        [(Mode.MIG, "1g.5gb", True), (Mode.MIG, "2g.10gb", True), (Mode.MIG_TIME_SLICING, "3g.20gb", True)],
    ),
    "time-sliced instances isolate nothing": (
        need(9 * 1024, isolation=Isolation.HARDWARE),
        by_scheduler(SLICED),
        [(Mode.MIG, "2g.10gb", True)],
    ),
    "replicas of a fixed number are not amounts": (need(20 * 1024, isolation=Isolation.DRIVER), by_scheduler(MPS4), []),
    "a replica of the scheduler's serves a need that it is enough for": (
        need(9 * 1024, isolation=Isolation.DRIVER),
        by_scheduler(MPS4),
        [(Mode.MPS, None, True)],
    ),
    "parts of several GPUs are not by MPS, of whose daemons a process is a client of one": (
        need(9 * 1024, count=2),
        AUTO,
        [(Mode.MIG, "2g.10gb", False), (Mode.WHOLE, None, False)],
    ),
    "parts of several GPUs without isolation": (
        need(9 * 1024, count=2, isolation=Isolation.NONE),
        AUTO,
        [(Mode.MEMORY_SHARE, None, False), (Mode.MIG, "2g.10gb", False), (Mode.WHOLE, None, False)],
    ),
    "replicas under MPS of several GPUs": (need(9 * 1024, count=2), by_scheduler(MPS4), []),
    "a whole-only GPU is the kubelet's": (
        need(4 * 1024, isolation=Isolation.HARDWARE),
        Sharing(modes=(Mode.WHOLE,)),
        [],
    ),
    "a whole-only GPU is one device": (
        need(4 * 1024, isolation=Isolation.NONE),
        by_scheduler(Sharing(modes=(Mode.WHOLE,))),
        [(Mode.WHOLE, None, True)],
    ),
    "where only MIG is allowed the full-size instance serves": (
        need(19 * 1024, isolation=Isolation.HARDWARE),
        Sharing(modes=(Mode.MIG,)),
        [(Mode.MIG, "3g.20gb", False)],
    ),
}


@pytest.mark.parametrize("sentence", WAYS)
def test_options(sentence: str) -> None:
    request, sharing, want = WAYS[sentence]
    got = options(request, A100, A100.memory_mib, sharing)
    assert [(o.mode, o.profile, o.exists) for o in got] == want
    for option in got:
        assert option.memory_mib >= request.memory_mib
        assert option.mode.isolation.covers(request.isolation)
        assert option.amount is (not option.exists and option.mode in {Mode.MPS, Mode.MEMORY_SHARE})


def test_an_exact_request_that_names_a_grade_gets_no_weaker_device() -> None:
    sharing = Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 14),))
    t4 = model("T4")
    found = {
        grade: len(options(DeviceRequest(resource="nvidia.com/gpu", isolation=grade), t4, t4.memory_mib, sharing))
        for grade in Isolation
    }
    assert found == {Isolation.HARDWARE: 0, Isolation.DRIVER: 0, Isolation.NONE: 1}


def test_a_profile_is_served_under_the_name_another_driver_prints() -> None:
    """An alias serves where no product has it as its own name; the name of another product is another resource."""
    h100, gh200 = model("H100-80GB"), model("H100-96GB")
    fixed = Sharing(modes=(Mode.MIG,), layout=(Placement(0, 4, "3g.40gb"),), allow_repartition=False)
    sliced = Sharing(
        modes=(Mode.MIG_TIME_SLICING,), layout=(Placement(0, 4, "3g.40gb"),), replicas=(("3g.40gb", 2),), renamed=True
    )
    cases = {
        ("nvidia.com/mig-3g.39gb", h100, AUTO): "3g.40gb",
        ("nvidia.com/mig-3g.39gb", h100, fixed): "3g.40gb",
        ("nvidia.com/mig-3g.39gb.shared", h100, sliced): "3g.40gb",
        ("nvidia.com/mig-3g.39gb", h100, sliced): None,
        ("nvidia.com/mig-1g.10gb.me", h100, AUTO): "1g.10gb+me",
        ("nvidia.com/mig-3g.47gb", gh200, AUTO): None,
        ("nvidia.com/mig-3g.20gb", h100, AUTO): None,
    }
    for (resource, gpu, sharing), want in cases.items():
        got = options(DeviceRequest(resource=resource), gpu, gpu.memory_mib, sharing)
        assert [way.profile for way in got] == ([want] if want else []), resource


# sentence: sharing, whether it is managed, whether the scheduler allocates there
WHOSE = {
    "several modes": (AUTO, True, True),
    "MIG alone, cut on demand": (Sharing(modes=(Mode.MIG,)), True, True),
    "MIG alone under strategy single, which creates nothing": (
        Sharing(modes=(Mode.MIG,), strategy="single"),
        False,
        True,
    ),
    "amounts": (Sharing(modes=(Mode.MEMORY_SHARE,)), False, True),
    "whole": (Sharing(modes=(Mode.WHOLE,)), False, False),
    "whole, by the scheduler": (by_scheduler(Sharing(modes=(Mode.WHOLE,))), False, True),
    "a fixed layout": (SLICED, False, False),
    "a fixed layout, by the scheduler": (by_scheduler(SLICED), False, True),
}


@pytest.mark.parametrize("sentence", WHOSE)
def test_whose_a_gpu_is(sentence: str) -> None:
    sharing, managed, scheduler_allocates = WHOSE[sentence]
    assert (sharing.managed, sharing.scheduler_allocates) == (managed, scheduler_allocates)
