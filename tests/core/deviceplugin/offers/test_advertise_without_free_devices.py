"""What is advertised while no device is free: a kubelet that restarts ends no running pod."""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

import msgspec
import pytest

from tessera.core.deviceplugin.offers.advertise import (
    MOST_DEVICES,
    STARTING,
    ObservedResources,
    PluginDevice,
    Resource,
    healthy_counts,
    refused_resources,
    without_free_devices,
)
from tessera.core.gpu.sharing import Mode

GPU, UNITS = "nvidia.com/gpu", "tessera.dev/gpu-memory"
BOTH = (True, False)


def resource(health: str, name: str = GPU) -> Resource:
    """Return a resource with a device for each letter: upper case is healthy, and the id is in lower case."""
    devices = (
        PluginDevice(id=each.lower(), healthy=each.isupper(), gpu_uuid="GPU-0", uuid=each, mode=Mode.WHOLE)
        for each in health
    )
    return Resource(name=name, devices=tuple(devices), by_assignment=name == UNITS)


def shown(found: Resource) -> str:
    return "".join(each.id.upper() if each.healthy else each.id for each in found.devices)


# sentence: (devices, those that are allocated by the record, how many pods request, devices then)
CLOSED: dict[str, tuple[str, str, int, str]] = {
    "nobody has anything": ("ABC", "", 0, "abc"),
    "what is allocated stays healthy": ("ABC", "b", 1, "aBc"),
    "also what a pod has left that has ended": ("ABC", "ab", 1, "ABc"),
    "a pod requests one of which nothing is known": ("ABC", "", 1, "Abc"),
    "one is known, and one is not": ("ABC", "b", 2, "ABc"),
    "pods request more than there is": ("AB", "a", 5, "AB"),
    "what is unhealthy stays so": ("aBc", "a", 2, "aBc"),
    "an unhealthy one counts for no pod": ("aBCD", "a", 2, "aBCd"),
    "one that is not advertised any more counts for no pod": ("ABC", "x", 2, "ABc"),
}


@pytest.mark.parametrize("case", CLOSED)
def test_which_devices_stay_healthy_while_none_is_free(case: str) -> None:
    before, allocated, admitted, want = CLOSED[case]
    found = without_free_devices(resource(before), frozenset(allocated), admitted)
    assert shown(found) == want
    assert healthy_counts([found, resource("A", UNITS)]) == {GPU: sum(map(str.isupper, want)), UNITS: 1}


def test_no_more_are_healthy_than_are_allocated_or_requested_and_never_fewer_than_pods_need() -> None:
    for before in ("".join(each) for size in range(5) for each in product(*zip("ABCD"[:size], "abcd", strict=False))):
        healthy = frozenset(filter(str.isupper, before))
        for known, admitted in product(product(BOTH, repeat=5), range(6)):
            allocated = frozenset(each for each, known_ in zip("ABCDX", known, strict=True) if known_)
            after = without_free_devices(resource(before), frozenset(map(str.lower, allocated)), admitted)
            stays = frozenset(filter(str.isupper, shown(after)))
            assert shown(after).lower() == before.lower(), "no device leaves the list"
            assert healthy & allocated <= stays <= healthy
            assert len(stays) == max(len(healthy & allocated), min(admitted, len(healthy)))


class Pod(NamedTuple):
    """A pod that the kubelet has admitted."""

    amount: int
    """Devices that it requests."""
    ids: frozenset[str]
    """Those that the kubelet's record has for it; empty where it lacks the pod."""


class Case(NamedTuple):
    """A node on which an agent cannot start to advertise."""

    offered: Resource | None
    pods: tuple[Pod, ...]
    on_node: bool
    """Whether the Node object has the resource."""
    known: bool
    """Whether the kubelet knows it."""
    former: int | None
    """How many devices were registered before; None where none was."""

    @property
    def admitted(self) -> int:
        return sum(each.amount for each in self.pods)

    def register(self) -> Resource | None:
        observed = ObservedResources(
            node=frozenset({GPU} if self.on_node else ()),
            gpus=frozenset({GPU} if self.on_node else ()),
            kubelet=frozenset({GPU} if self.known else ()),
            admitted={GPU: self.admitted} if self.pods else {},
            allocated={GPU: frozenset[str]().union(*(each.ids for each in self.pods))} if self.pods else {},
        )
        former = () if self.former is None else (resource("ABCD"[: self.former]),)
        found = refused_resources([self.offered] if self.offered else [], observed, former)
        return found[0] if found else None


def admitted_pods(sizes: tuple[int, ...], *, known: bool, shared: bool) -> Iterator[tuple[Pod, ...]]:
    """Yield pods of these sizes, in the order in which a kubelet admits them again, whichever its record lacks.

    Args:
        sizes: how many devices each requests.
        known: whether the kubelet knows the resource; if not, its record is lost.
        shared: whether it allocated one device to two pods, as after a race of its own.

    """
    for lacks in product(*(BOTH if known else (True,) for _ in sizes)):
        yield tuple(
            Pod(size, frozenset() if lost else frozenset(f"{0 if shared else number}{one}" for one in range(size)))
            for number, (size, lost) in enumerate(zip(sizes, lacks, strict=True))
        )


def ended(pods: Iterable[Pod], healthy: int) -> list[Pod]:
    """Return the pods that a kubelet with so many healthy devices ends when it starts again (`OutOf...`).

    For a pod that its record has it counts at least what its record has in all. Source: kubernetes v1.36
    `pkg/kubelet/cm/devicemanager/manager.go`, `UpdatePluginResources` and `sanitizeNodeAllocatable`.
    """
    recorded = len(frozenset[str]().union(*(each.ids for each in pods)))
    found, used = list[Pod](), 0
    for each in pods:
        if used + each.amount > (max(healthy, recorded) if each.ids else healthy):
            found.append(each)
        else:
            used += each.amount
    return found


def all_cases() -> Iterator[Case]:
    offers = (None, *(resource("".join(each)) for size in range(5) for each in ("ABCD"[:size], "aBCDE"[:size])))
    sizes = [each for count in range(4) for each in product((1, 2), repeat=count)]
    for offered, each, on_node, known, shared in product(offers, sizes, BOTH, BOTH, BOTH):
        for pods, former in product(admitted_pods(each, known=known, shared=shared), (None, 0, 1, 3)):
            yield Case(offered, pods, on_node, known, former)


def test_before_the_agent_can_advertise_no_pod_starts_without_a_device_and_no_running_pod_is_ended() -> None:
    count = 0
    for case in all_cases():
        count += 1
        found, healthy = case.register(), healthy_counts([case.offered])[GPU] if case.offered else 0
        if found is None:
            lacks = any(not each.ids for each in case.pods)
            assert case.former is None, "what was registered stays registered: without it the kubelet has none healthy"
            assert case.known or not (case.on_node and case.offered), "a pod starts without the device"
            if case.known and case.on_node and case.offered:
                assert not lacks, case
                assert ended(case.pods, 0) == [], case
            continue
        assert found.refused == STARTING
        assert all(each.healthy for each in found.devices)
        if not (case.on_node and case.offered):
            assert case.former is not None, "nothing new is registered for what is not advertised"
        if case.offered:
            assert len(found.devices) == min(case.admitted, healthy), (
                "none is free, and never more than would be advertised"
            )
        else:
            assert len(found.devices) == case.admitted
        if not case.offered or case.admitted <= healthy:
            assert ended(case.pods, len(found.devices)) == [], case
        recorded = frozenset[str]().union(*(each.ids for each in case.pods))
        assert case.former is not None or not case.known or len(recorded) < case.admitted, "nothing without need"
    assert count > 10_000


# sentence: (what the Node has, what the kubelet knows, pods request, ids by its record, registered before; then)
REGISTERED: dict[str, tuple[str, str, int, str, int | None, int | None]] = {
    "the kubelet does not know it, and nobody has any": (GPU, "", 0, "", None, 0),
    "the kubelet does not know it, and pods have some": (GPU, "", 2, "", None, 2),
    "pods were started without it that request any number": (GPU, "", 1_000_000, "", None, 3),
    "the kubelet refuses pods by itself": (GPU, GPU, 0, "", None, None),
    "its record has all pods": (GPU, GPU, 2, "ab", None, None),
    "its record lacks a pod": (GPU, GPU, 2, "a", None, 2),
    "the Node never had it": ("", "", 2, "", None, None),
    "it was registered before, and the kubelet knows it by now": (GPU, GPU, 2, "ab", 1, 2),
    "it was registered before, and its pod has ended": (GPU, GPU, 0, "", 2, 0),
}


@pytest.mark.parametrize("known", BOTH)
@pytest.mark.parametrize("ids", ["", "ab"])
def test_while_devices_are_lost_all_resources_of_the_node_are_registered_also_those_that_the_kubelet_knows(
    known: bool, ids: str
) -> None:
    """A kubelet may lose its checkpoint while the agent runs, and must have the plugin before it starts a pod."""
    observed = ObservedResources(
        node=frozenset({GPU}),
        gpus=frozenset({GPU}),
        kubelet=frozenset({GPU} if known else ()),
        admitted={GPU: 2},
        allocated={GPU: frozenset(ids)},
    )
    (found,) = refused_resources([], observed, every=True, lost="they are lost")
    assert (found.name, len(found.devices), found.refused, found.starting) == (GPU, 2, "they are lost", False)


@pytest.mark.parametrize("name", [GPU, UNITS])
@pytest.mark.parametrize("case", REGISTERED)
def test_what_an_agent_registers_that_cannot_advertise_yet(case: str, name: str) -> None:
    node, kubelet, admitted, ids, former, want = REGISTERED[case]
    known = ObservedResources(
        node=frozenset({name} if node else ()),
        gpus=frozenset({name} if node else ()),
        kubelet=frozenset({name} if kubelet else ()),
        admitted={name: admitted},
        allocated={name: frozenset(ids)},
    )
    before = () if former is None else (resource("ABC"[:former], name),)
    found = refused_resources([resource("aBCD", name)], known, before)
    assert [len(each.devices) for each in found] == ([] if want is None else [want])
    for each in found:
        assert (each.name, each.by_assignment, each.refused) == (name, name == UNITS, STARTING)
        assert len({device.id for device in each.devices}) == want


def test_what_is_not_advertised_any_more_stays_registered_with_as_many_as_pods_request_now() -> None:
    """With fewer healthy ones a kubelet that restarts would end its pods."""
    names = frozenset({GPU, UNITS})
    known = ObservedResources(node=names, gpus=names, kubelet=frozenset(), admitted={GPU: 1}, allocated={})
    former = refused_resources([resource("ABC"), resource("A", UNITS)], known)
    assert healthy_counts(former) == {GPU: 1, UNITS: 0}
    assert refused_resources([resource("A", UNITS)], known, former) == former
    for admitted, want in ((3, 3), (0, 0), (10**9, MOST_DEVICES)):
        now = msgspec.structs.replace(known, admitted={GPU: admitted})
        found = refused_resources([resource("A", UNITS)], now, former)
        assert healthy_counts(found) == {GPU: want, UNITS: 0}
        assert all(each.refused == STARTING for each in found)


def test_where_it_is_not_known_what_would_be_advertised_each_resource_of_gpus_of_the_node_is_registered() -> None:
    gpus = frozenset({GPU, UNITS, "nvidia.com/mig-1g.5gb"})
    known = ObservedResources(
        node=gpus | {"cpu", "rdma/hca", "renamed/gpu"},
        gpus=gpus,
        kubelet=frozenset({UNITS}),
        admitted={GPU: 3, "renamed/gpu": 2, "cpu": 7},
        allocated={},
    )
    found = refused_resources(
        [resource("A"), resource("A", "renamed/gpu"), resource("A", "not/there")], known, every=True
    )
    assert healthy_counts(found) == {GPU: 3, "nvidia.com/mig-1g.5gb": 0, "renamed/gpu": 2}
    units = frozenset({UNITS, "aliyun.com/gpu-mem"})
    unknown = msgspec.structs.replace(known, node=units, gpus=units, kubelet=frozenset())
    assert healthy_counts(refused_resources((), unknown, every=True)) == {UNITS: 0, "aliyun.com/gpu-mem": 0}
    assert {each.refused for each in refused_resources((), known, every=True, lost="no GPU")} == {"no GPU"}
    many = msgspec.structs.replace(known, admitted={GPU: 10**9})
    assert healthy_counts(refused_resources((), many, every=True))[GPU] == MOST_DEVICES
