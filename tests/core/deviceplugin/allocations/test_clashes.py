"""What may not be allocated beside what: by ids, by silicon, by memory."""

import itertools
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.agententries import GPU, UNITS, amount, client, entry, whole
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice
from tessera.core.deviceplugin.allocations.clashes import Clash, clashes, double_allocations
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.mig import Placement

OTHER, SLICE = "GPU-1", "nvidia.com/mig-1g.5gb"
FIRST, SECOND, PAIR = Placement(0, 1, "1g.5gb"), Placement(1, 1, "1g.5gb"), Placement(0, 2, "2g.10gb")

# sentence: (record, the new one, what both would have; empty where it may be)
BESIDE: dict[str, tuple[list[AgentAllocation], AgentAllocation, str]] = {
    "the same GPU": ([entry("a", whole())], entry("b", whole()), "GPU GPU-0"),
    "two GPUs": ([entry("a", whole())], entry("b", whole(OTHER)), ""),
    "the same instance": (
        [entry("a", whole(placement=FIRST))],
        entry("b", whole(placement=FIRST)),
        "1g.5gb at 0 of GPU GPU-0",
    ),
    "instances beside each other": ([entry("a", whole(placement=FIRST))], entry("b", whole(placement=SECOND)), ""),
    "instances that overlap": (
        [entry("a", whole(placement=SECOND))],
        entry("b", whole(placement=PAIR)),
        "2g.10gb at 0 of GPU GPU-0",
    ),
    "a GPU and an instance of it": ([entry("a", whole())], entry("b", whole(placement=FIRST)), "1g.5gb at 0"),
    "a GPU and an amount of it": ([entry("a", whole())], entry("b", amount(5)), "GPU GPU-0"),
    "replicas of one GPU": ([entry("a", client())], entry("b", client()), ""),
    "a client of MPS and one that takes turns": (
        [entry("a", client(mps=True))],
        entry("b", client(mps=False)),
        "GPU GPU-0",
    ),
    "clients of MPS": ([entry("a", client(mps=True))], entry("b", client(mps=True)), ""),
    "a client of MPS, and one of whom an agent of before did not say": (
        [entry("a", client())],
        entry("b", client(mps=True)),
        "",
    ),
    "a replica and an amount": ([entry("a", client())], entry("b", amount(5)), "GPU GPU-0"),
    "amounts that fit": ([entry("a", amount(60))], entry("b", amount(40)), ""),
    "amounts beyond what there is": ([entry("a", amount(60))], entry("b", amount(41)), "more memory than the 100 MiB"),
    "an amount that is too large alone": ([], entry("b", amount(101)), "more memory than the 100 MiB"),
    "amounts of a GPU that is lost": ([entry("a", amount(60, OTHER))], entry("b", amount(99, OTHER)), ""),
    "the same ids": ([entry("a", whole(), ids="x")], entry("b", whole(OTHER), ids="x"), f"device x of {UNITS}"),
    "the same pod again": ([entry("a", whole())], entry("a", whole()), ""),
    "containers of one pod side by side": (
        [entry("a", amount(60), container="one")],
        entry("a", amount(41), ids="z", container="two"),
        "more memory than the 100 MiB",
    ),
    "an init container and who comes after it": (
        [entry("a", amount(60), ids="xy", container="init", initial=True)],
        entry("a", amount(60), ids="x"),
        "",
    ),
    "an init container beside a sidecar of before": (
        [entry("a", amount(60), container="proxy", at=1)],
        entry("a", amount(41), ids="z", container="init", at=2, initial=True),
        "more memory than the 100 MiB",
    ),
    "an init container and a sidecar that starts after it": (
        [entry("a", amount(60), container="init", at=1, initial=True)],
        entry("a", amount(60), ids="z", container="proxy", at=2),
        "",
    ),
    "a container that is answered anew": (
        [entry("a", amount(60), ids="x"), entry("a", amount(60), ids="y", at=1)],
        entry("b", amount(40), at=2),
        "",
    ),
    "what only Allocate was answered for": (
        [AgentAllocation(resource=UNITS, ids=("x",), uses=(whole(),))],
        entry("a", whole(), ids="x"),
        "",
    ),
    "what only Allocate was answered for, and other ids": (
        [AgentAllocation(resource=UNITS, ids=("y",), uses=(whole(),))],
        entry("a", whole(), ids="x"),
        "GPU GPU-0",
    ),
    "an answer to Allocate, and an init container that was allocated other ids": (
        [entry("a", amount(60), ids="x", container="init", initial=True)],
        AgentAllocation(resource=UNITS, ids=("y",), uses=(amount(41),)),
        "more memory",
    ),
    "an answer to Allocate, and an init container that was allocated these ids of the other kind of units": (
        [entry("a", amount(60), ids="x", container="init", initial=True)],
        AgentAllocation(resource="aliyun.com/gpu-mem", ids=("x",), uses=(amount(41),)),
        "more memory",
    ),
    "an init container that was recorded before a container whose place is unknown": (
        [
            msgspec.structs.replace(entry("a", amount(60), container="init", at=1, initial=True), order=0),
            entry("a", amount(60), at=2),
        ],
        entry("b", amount(40), at=3),
        "",
    ),
    "a replica of a GPU, and one of an instance of it": (
        [entry("a", client())],
        entry("b", msgspec.structs.replace(client(), device=DeviceId(GPU, FIRST))),
        "1g.5gb at 0 of GPU GPU-0",
    ),
    "memory of another GPU": ([entry("a", amount(60, OTHER), amount(40))], entry("b", amount(60)), ""),
    "memory of an instance that another has replaced": (
        [entry("a", msgspec.structs.replace(amount(60), absent=True), amount(40))],
        entry("b", amount(60)),
        "",
    ),
    "two answers to Allocate": (
        [AgentAllocation(resource=UNITS, ids=("x",))],
        AgentAllocation(resource=UNITS, ids=("x", "y")),
        "device x",
    ),
}


@pytest.mark.parametrize("case", BESIDE)
def test_what_may_be_allocated_beside_what(case: str) -> None:
    record, new, want = BESIDE[case]
    found = [each.text for each in clashes(record, new, {DeviceId(GPU): 100}, ids=True)]
    assert [text[: len(want)] for text in found] == ([want] if want else [])


def test_of_those_that_have_too_much_memory_together_the_latest_is_named_first() -> None:
    record = [entry(each, amount(40), at=at) for each, at in (("a", 2), ("b", 3), ("c", 1))]
    found = list(clashes(record, entry("d", amount(40), at=4), {DeviceId(GPU): 100}, ids=True))
    assert [each.other.uid for each in found if each.other is not None] == ["b", "a", "c"]
    assert all(each.full for each in found)


# sentence: what a pod has of 100 MiB, and how much is left
ANEW: dict[str, tuple[list[AgentAllocation], int]] = {
    "a container beside one that is answered anew on another GPU": (
        [
            entry("a", amount(30), ids="x", container="first"),
            entry("a", amount(30), ids="y", container="second"),
            entry("a", amount(30, OTHER), ids="z", container="first", at=1),
        ],
        40,
    ),
    "answers for several containers of one pod": (
        [
            entry("a", amount(10), ids="xy"),
            *(AgentAllocation(resource=UNITS, ids=(each,), uses=(amount(30),)) for each in "xy"),
        ],
        30,
    ),
}


@pytest.mark.parametrize("case", ANEW)
def test_a_new_answer_counts_in_place_of_the_former_one_of_its_container_alone(case: str) -> None:
    record, left = ANEW[case]
    capacity = {DeviceId(GPU): 100}
    assert not list(clashes(record, entry("b", amount(left)), capacity, ids=True))
    assert list(clashes(record, entry("b", amount(left + 1)), capacity, ids=True))


def test_ids_of_units_are_the_kubelet_s_to_count() -> None:
    assert not list(clashes([entry("a", ids="x")], entry("b", ids="x"), {}, ids=False))


def test_why_a_device_is_not_allocated_is_said_in_a_phrase() -> None:
    other = entry("a")
    assert Clash(other=other, text="device x").cause == "container main of pod default/a uses device x"
    full = Clash(other=other, text="more memory than the 9 MiB of x", full=True)
    assert full.cause == "together with container main of pod default/a it requests more memory than the 9 MiB of x"
    alone = msgspec.structs.replace(full, other=None)
    assert (alone.holder, alone.cause) == ("nobody else", "it requests more memory than the 9 MiB of x")


USES = st.one_of(
    st.builds(whole, st.sampled_from([GPU, OTHER]), st.sampled_from([None, FIRST, SECOND, PAIR])),
    st.builds(client, mps=st.sampled_from([None, False, True])),
    st.builds(amount, st.integers(1, 60)),
)


@given(USES, USES)
def test_whoever_excludes_is_excluded(one: AllocatedDevice, other: AllocatedDevice) -> None:
    assert one.excludes(other) == other.excludes(one)


@given(st.lists(USES, max_size=6))
def test_what_passes_one_after_the_other_is_no_conflict(uses: list[AllocatedDevice]) -> None:
    """And what does not is one, with the later pod as the one that gives way."""
    record: list[AgentAllocation] = []
    refused: list[AgentAllocation] = []
    for at, use in enumerate(uses):
        new = entry(f"{at}", use, at=at)
        clash = next(clashes(record, new, {DeviceId(GPU): 100}, ids=True), None)
        (refused if clash else record).append(new)
    assert double_allocations(record, {DeviceId(GPU): 100}) == ()
    for new in refused:
        ((later, clash),) = double_allocations([*record, new], {DeviceId(GPU): 100})[-1:]
        assert isinstance(clash, Clash)
        assert later.at_ns >= new.at_ns
    for a, b in itertools.combinations(record, 2):
        assert not a.uses[0].excludes(b.uses[0])


class Container(NamedTuple):
    """A container that asks for an amount of one GPU: `init` ends, `sidecar` starts then and stays, `main` is last."""

    kind: str
    memory_mib: int


PODS = st.tuples(
    st.lists(st.builds(Container, st.sampled_from(["init", "sidecar"]), st.integers(1, 40)), max_size=4),
    st.lists(st.builds(Container, st.just("main"), st.integers(1, 40)), min_size=1, max_size=3),
).map(lambda parts: [*parts[0], *parts[1]])


def lived_through(pod: list[Container]) -> int:
    """Let a pod start container by container; return the most memory that what ran at one time had."""
    running: list[Container] = []
    most = 0
    for each in pod:
        running.append(each)
        most = max(most, sum(other.memory_mib for other in running))
        if each.kind == "init":
            running.remove(each)
    return most


@given(PODS, st.lists(st.integers(1, 9), min_size=7, max_size=7), st.booleans(), st.integers(1, 200))
def test_a_pod_counts_for_what_its_containers_have_at_one_time(
    pod: list[Container], times: list[int], known: bool, beside: int
) -> None:
    """Whenever the containers were recorded, as after the record was lost; or in their order, where it is unknown."""
    record = [
        msgspec.structs.replace(
            entry("a", amount(each.memory_mib), ids=str(place), container=str(place), initial=each.kind == "init"),
            order=place if known else -1,
            at_ns=times[place] if known else place,
        )
        for place, each in enumerate(pod)
    ]
    fits = lived_through(pod) + beside <= 100
    found = list(clashes(record, entry("b", amount(beside), at=99), {DeviceId(GPU): 100}, ids=True))
    assert (not found) == fits
    *before, last = record
    alone = list(clashes(before, last, {DeviceId(GPU): lived_through(pod)}, ids=True))
    assert alone == [], "what a pod was assigned is never more than it has"


def test_answers_of_no_pod_are_no_conflict() -> None:
    assert (
        double_allocations([entry("a", whole()), AgentAllocation(resource=UNITS, ids=("x",), uses=(whole(),))], {})
        == ()
    )
