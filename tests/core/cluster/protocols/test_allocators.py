"""One allocator for a device at a time: what is whose, and that a plan_offer never gives anything twice."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.gpufacts import at
from builders.gpunodes import facts, shared
from builders.offers import CUT, FIRST, SECOND, SEVEN
from builders.shares import share
from tessera.core.cluster.gpunodestate import Claim, DesiredDevices
from tessera.core.cluster.protocols.allocators import (
    DeviceState,
    Handshake,
    OfferPlan,
    claimed_keys,
    devices_by_gpu,
    devices_one_by_one,
    plan_offer,
    released_devices,
    state_of,
    still_needed,
)
from tessera.core.gpu.deviceids import DeviceId, overlap
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.mig import Placement, placements
from tessera.core.workload.need import PodKey

A100 = model("A100-40GB")
(HALF,) = at("A100-40GB", ("3g.20gb", 0))
(OTHER,) = at("A100-40GB", ("3g.20gb", 4))


def test_what_claims_name() -> None:
    """Also an instance that is not made yet, one that only the driver knows, and what cannot be."""
    strange = Placement(6, 1, "1g.9gb+x")
    seen = (facts(0), facts(1))
    gpus = (shared(seen[0]), shared(seen[1], msgspec.structs.replace(CUT, layout=(strange,))))
    shares = (share(0, at="3g.20gb@4"), share(1, at="1g.9gb+x@6"), share(1, at="7g.nothing@0"), share(7))
    claims = (
        Claim(uid="u", pod=PodKey("a/b"), shares=shares),
        Claim(uid="v", pod=PodKey("a/c"), shares=(share(0),)),
    )
    assert claimed_keys(claims, gpus) == {
        DeviceId(FIRST, OTHER),
        DeviceId(SECOND, strange),
        DeviceId(SECOND),
        DeviceId(FIRST),
    }


def test_devices_by_gpu_and_one_by_one() -> None:
    """The same devices are the same fields, in whatever order they come."""
    keys: list[DeviceId] = [DeviceId(SECOND, HALF), DeviceId(FIRST), DeviceId(SECOND, OTHER)]
    want = tuple(
        sorted(
            (DesiredDevices(gpu=FIRST, whole=True), DesiredDevices(gpu=SECOND, instances=(HALF, OTHER))),
            key=lambda each: each.gpu,
        )
    )
    assert devices_by_gpu(keys) == devices_by_gpu(reversed(keys)) == want
    assert devices_one_by_one(want) == frozenset(keys)
    assert (devices_by_gpu(()), devices_one_by_one(())) == ((), frozenset())


PLACES = placements(A100)
DEVICES = st.builds(DeviceId, st.sampled_from((FIRST, SECOND)), st.none() | st.sampled_from(PLACES))
SETS = st.frozensets(DEVICES, max_size=8)


@given(SETS)
def test_devices_written_are_read_again(keys: frozenset[DeviceId]) -> None:
    assert devices_one_by_one(devices_by_gpu(keys)) == keys


# sentence: desired, committed, held, taken, and what follows
A, B = frozenset({DeviceId(FIRST)}), frozenset({DeviceId(SECOND)})
IN_A: frozenset[DeviceId] = frozenset({DeviceId(FIRST, HALF)})
NONE: frozenset[DeviceId] = frozenset()
STEPS: dict[str, Any] = {
    "what is new is written before it is advertised": (A, NONE, NONE, NONE, OfferPlan(add=A)),
    "what is written is advertised": (A, A, NONE, NONE, OfferPlan(advertise=A)),
    "what a server claims is not the kubelet's": (A, NONE, NONE, A, OfferPlan()),
    "what a server claimed between two looks is not advertised": (A, A, NONE, A, OfferPlan()),
    "what a pod holds by name is advertised whoever claims it": (A, A, A, A, OfferPlan(advertise=A)),
    "what shall not be is withdrawn": (NONE, A, NONE, NONE, OfferPlan(withdrawing=A)),
    "what a pod holds stays": (NONE, A, A, NONE, OfferPlan()),
    "what is desired again comes back without a write": (A, A, NONE, NONE, OfferPlan(advertise=A)),
    "what lies across one that goes waits for it": (IN_A, A, NONE, NONE, OfferPlan(withdrawing=A)),
    "what lies across one that a pod holds waits for the pod": (IN_A, A, A, NONE, OfferPlan()),
    "what lies across one that goes is not advertised even if it is written": (
        IN_A,
        A | IN_A,
        NONE,
        NONE,
        OfferPlan(withdrawing=A),
    ),
    "one goes and another comes": (B, A, NONE, NONE, OfferPlan(add=B, withdrawing=A)),
}


@pytest.mark.parametrize("sentence", STEPS)
def test_steps(sentence: str) -> None:
    *given_, want = STEPS[sentence]
    assert plan_offer(*given_) == want


# sentence: desired, committed, held, what the kubelet lists, and what is taken out
RELEASED: dict[str, Any] = {
    "what the kubelet lists no more": (NONE, A, NONE, NONE, A),
    "not what the kubelet lists": (NONE, A, NONE, A, NONE),
    "not what a pod holds": (NONE, A, A, NONE, NONE),
    "not what is desired": (A, A, NONE, NONE, NONE),
    "one, while another comes": (B, A, NONE, NONE, A),
}


@pytest.mark.parametrize("sentence", RELEASED)
def test_what_the_kubelet_has_let_go_of_is_taken_out(sentence: str) -> None:
    *given_, want = RELEASED[sentence]
    assert released_devices(*given_) == want


@given(SETS, SETS, SETS, SETS, SETS)
def test_laws(
    desired: frozenset[DeviceId],
    committed: frozenset[DeviceId],
    held: frozenset[DeviceId],
    taken: frozenset[DeviceId],
    listed: frozenset[DeviceId],
) -> None:
    """Whatever is so: advertised is what is written, and let go is what nobody has or shall get."""
    made = plan_offer(desired, committed, held, taken)
    released = released_devices(desired, committed, held, listed)
    assert made.advertise <= committed & desired
    assert released <= made.withdrawing <= committed
    assert not released & (made.advertise | desired | held | listed)
    assert not made.add & (committed | taken)
    assert not any(overlap(new, old) for new in made.add for old in committed - desired)
    assert not made.advertise & taken - held
    after = (committed - released) | made.add
    assert made.advertise <= after
    assert held & committed <= after
    again = plan_offer(desired, after, held, taken)
    assert released or not again.add, "what waited for others to go comes after them"
    assert not released_devices(desired, after, held, listed)


# sentence: (devices that are to go, free ones that stay, devices that bound pods await, how many stay all the same)
BOUND: dict[str, tuple[int, int, int, int]] = {
    "nobody is on the way": (3, 0, 0, 0),
    "one is, and nothing else is free": (3, 0, 1, 1),
    "one is, and another device is free": (3, 1, 1, 0),
    "more are than there is": (2, 0, 5, 2),
}


@pytest.mark.parametrize("sentence", BOUND)
def test_devices_stay_for_pods_that_are_bound_already(sentence: str) -> None:
    going, free, awaited, want = BOUND[sentence]
    leaving: dict[DeviceId, str] = {DeviceId(FIRST, place): "r" for place in SEVEN[:going]}
    kept = still_needed(leaving, {"r": free}, {"r": awaited, "other": 9})
    assert len(kept) == want
    assert kept <= leaving.keys()


# sentence: sets of which the device is one, and how far it has come
STATES = {
    "nobody has it": ((), "pooled"),
    "a server has claimed it": (("reserved",), "claimed"),
    "it is desired, and not written down yet": (("desired",), "pooled"),
    "it is the kubelet's": (("desired", "offered"), "offered"),
    "a pod has it by name": (("desired", "offered", "allocatable", "allocated"), "allocated"),
    "a pod has it by name, of the time before": (("allocated",), "allocated"),
    "it is desired no more, and the kubelet does not know": (("offered", "allocatable"), "withdrawing"),
    "the kubelet has let go of it": (("offered",), "releasing"),
}


@pytest.mark.parametrize("case", STATES)
def test_how_far_a_device_has_come(case: str) -> None:
    sets, want = STATES[case]
    device = DeviceId(FIRST)
    seen = Handshake(**{name: frozenset({device}) for name in sets})
    assert state_of(device, seen) is DeviceState(want)
