"""Which devices and ids are allocated, by entries of the agent's record."""

import itertools
from collections.abc import Iterator

import msgspec
import pytest

from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice, Exclusivity
from tessera.core.deviceplugin.allocations.allocateddevices import (
    awaited_counts,
    clients_by_mps,
    container_allocations,
    devices_by_assignment,
    devices_by_name,
    devices_without_mps,
    is_free,
    knows_devices,
    unclaimed_ids,
)
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.offers.advertise import PluginDevice
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.sharing import Mode

GPU, NEED = "nvidia.com/gpu", "tessera.dev/gpu-memory"
ONE, TWO, THREE = map(DeviceId, ("GPU-1", "GPU-2", "GPU-3"))


def entry(resource: str, ids: str, *uses: AllocatedDevice, **changes: object) -> AgentAllocation:
    plain = AgentAllocation(resource=resource, ids=tuple(ids), uses=uses, uid="p", pod="ns/p", container="main")
    return msgspec.structs.replace(plain, **changes)


WHOLE = entry(GPU, "a", AllocatedDevice(device=ONE))
REPLICA = entry(
    GPU, "b", AllocatedDevice(device=TWO, exclusivity=Exclusivity.REPLICA, mps=True, clients=4), container="side"
)
SHARE = entry(NEED, "cd", AllocatedDevice(device=THREE, exclusivity=Exclusivity.MEMORY, mps=False, memory_mib=1024))
REPLACED = entry(GPU, "e", AllocatedDevice(device=THREE, absent=True, clients=2), container="late")
ANSWERED = entry(NEED, "f", AllocatedDevice(device=TWO), uid="", pod="", container="", presumed=True)
PROCESS = entry(GPU, "", AllocatedDevice(device=TWO), pod="")
REPLACED_SHARE = entry(NEED, "g", AllocatedDevice(device=ONE, absent=True), container="last")
RECORD = (WHOLE, REPLICA, SHARE, REPLACED, REPLACED_SHARE, ANSWERED)


def test_devices_are_allocated_by_name_or_by_assignment_unless_another_is_in_their_place() -> None:
    assert devices_by_name(RECORD) == {ONE, TWO}
    assert devices_by_assignment(RECORD) == {TWO, THREE}


def test_no_daemon_starts_on_what_is_known_to_be_used_without_one() -> None:
    assert devices_without_mps(RECORD) == {ONE, THREE}
    assert devices_without_mps([REPLACED, REPLICA, ANSWERED]) == frozenset()
    assert clients_by_mps(RECORD) == {TWO: 4}


def test_ids_are_unclaimed_while_no_pod_is_known() -> None:
    assert unclaimed_ids(RECORD, NEED) == {"f"}
    assert unclaimed_ids(RECORD, GPU) == frozenset()


def admission(kinds: str, amounts: tuple[int, ...]) -> Iterator[frozenset[str]]:
    """Yield the ids that a kubelet has given each container: (i)nit, (s)idecar or (m)ain, in their order.

    A container takes what ended init containers had before anything new.
    Source: Kubernetes `pkg/kubelet/cm/devicemanager/manager.go`, `Allocate`.
    """
    names, reusable = iter("abcdefghijkl"), list[str]()
    for kind, amount in zip(kinds, amounts, strict=True):
        taken = reusable[:amount] + list(itertools.islice(names, max(0, amount - len(reusable))))
        reusable = [*taken, *reusable[amount:]] if kind == "i" else reusable[amount:]
        yield frozenset(taken)


KINDS = ("m", "mm", "im", "sm", "iim", "ism", "sim", "imm", "sismm")
PODS = [(kinds, amounts) for kinds in KINDS for amounts in itertools.product(range(3), repeat=len(kinds))]


def test_a_pod_awaits_what_its_admission_still_takes_of_what_is_free() -> None:
    """After each call of `Allocate`, beside a pod that has its own, one that has none, and what nobody is known for."""
    others = [entry(GPU, "vw", uid="gone"), entry(GPU, "x", uid="", pod=""), entry(GPU, "y", uid="q")]
    for kinds, amounts in PODS:
        given = list(admission(kinds, amounts))
        taken = frozenset[str]().union(*given)
        for calls in range(len(given) + 1):
            own = frozenset[str]().union(*given[:calls])
            record = [entry(GPU, "".join(sorted(ids)), container=str(at)) for at, ids in enumerate(given[:calls])]
            requested = {"p": {GPU: len(taken)}, "q": {GPU: 1}, "r": {GPU: 2, NEED: 3}}
            found = awaited_counts(requested, [*others, *record])
            assert found == {GPU: len(taken - own) + 2, NEED: 3}, (kinds, amounts, calls)
    assert awaited_counts({"p": {GPU: 1}}, [entry(GPU, "ab")]) == {GPU: 0}


# sentence: an id and a GPU that are advertised by name; whether no pod has them
FREE: dict[str, tuple[str, DeviceId, bool]] = {
    "a pod has the id": ("a", DeviceId("GPU-4"), False),
    "a pod has the GPU by another id": ("x", ONE, False),
    "a pod has a share of it": ("x", THREE, False),
    "nobody has either": ("x", DeviceId("GPU-4"), True),
}


@pytest.mark.parametrize("case", FREE)
def test_a_device_is_free_that_no_pod_has_in_any_form(case: str) -> None:
    name, gpu, want = FREE[case]
    assert is_free(RECORD, PluginDevice(id=name, gpu_uuid=gpu.gpu, uuid=gpu.gpu, mode=Mode.WHOLE)) is want


def test_a_device_is_free_where_another_is_in_its_place() -> None:
    assert is_free((REPLACED,), PluginDevice(id="x", gpu_uuid=THREE.gpu, uuid=THREE.gpu, mode=Mode.WHOLE))


def test_the_devices_of_a_container_are_known_once_it_was_not_only_answered() -> None:
    own = KubeletAllocation(uid="p", namespace="ns", pod="p", container="main", resource=NEED, device_ids=("c", "d"))
    assert knows_devices(RECORD, own)
    assert not knows_devices(RECORD, msgspec.structs.replace(own, container="side"))
    for changes in ({"uses": ()}, {"presumed": True}):
        assert not knows_devices((msgspec.structs.replace(SHARE, **changes),), own)


def test_allocations_of_known_pods_have_the_form_of_the_kubelets_record() -> None:
    found = container_allocations((*RECORD, PROCESS))
    assert [(each.namespace, each.pod, each.container, each.device_ids) for each in found] == [
        ("ns", "p", "main", ("a",)),
        ("ns", "p", "side", ("b",)),
        ("ns", "p", "main", ("c", "d")),
        ("ns", "p", "late", ("e",)),
        ("ns", "p", "last", ("g",)),
    ]
