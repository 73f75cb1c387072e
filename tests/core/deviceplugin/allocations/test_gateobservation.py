"""Which recorded allocations are in use, by what is observed of their pods."""

import msgspec
import pytest

from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice, Exclusivity
from tessera.core.deviceplugin.allocations.gateobservation import GateObservation, GatePod, in_use
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.allocations.lastgate import start
from tessera.core.gpu.deviceids import DeviceId

NEED = "tessera.dev/gpu-memory"
CONTAINERS = ("before", "sidecar", "init", "main")


def share(gpu: str = "GPU-0") -> tuple[AllocatedDevice, ...]:
    return (AllocatedDevice(device=DeviceId(gpu), exclusivity=Exclusivity.MEMORY, memory_mib=4),)


def pod(*created: str) -> GatePod:
    lasting = frozenset({"sidecar", "main"})
    requests = frozenset((each, NEED) for each in CONTAINERS)
    return GatePod(name="ns/p", requests=requests, lasting=lasting, order=CONTAINERS, created=frozenset(created))


def answered(container: str, ids: str, gpu: str = "GPU-0", *, uid: str = "p", started: bool = False) -> AgentAllocation:
    return AgentAllocation(
        resource=NEED,
        ids=tuple(ids),
        uses=share(gpu),
        uid=uid,
        pod="ns/p" if uid else "",
        container=container if uid else "",
        initial=container in {"before", "init"},
        presumed=not started,
        started=started,
    )


INIT = answered("init", "ab")
# sentence: what is recorded, the first of it of interest; the containers that were created; whether that is in use
USES: dict[str, tuple[tuple[AgentAllocation, ...], tuple[str, ...], bool]] = {
    "no container was created": ((INIT,), (), True),
    "a sidecar was, which starts before it": ((INIT,), ("before", "sidecar"), True),
    "itself was": ((INIT,), ("before", "sidecar", "init"), True),
    "a container was that starts after it": ((INIT,), ("main",), False),
    "a sidecar was that starts after it": ((answered("before", "ab"),), ("sidecar",), False),
    "it was started with this": ((answered("init", "ab", started=True),), ("main",), True),
    "it is no init container": ((answered("main", "ab"),), ("main",), True),
    "it is a sidecar": ((answered("sidecar", "ab"),), ("main",), True),
    "its pod is unknown": ((answered("init", "ab", uid="q"),), ("main",), True),
    "`Allocate` was answered for some pod": ((answered("init", "ab", uid=""),), ("main",), True),
    "another has the same ids, and the same devices": ((INIT, answered("main", "ab")), ("main",), False),
    "another has the same ids, and other devices": ((INIT, answered("main", "ab", "GPU-1")), ("main",), True),
    "so may one of which the pod is not known": ((INIT, answered("main", "ab", "GPU-1", uid="")), ("main",), True),
    "another pod has the same ids, as once": ((INIT, answered("main", "ab", "GPU-1", uid="q")), ("main",), False),
    "another has other ids": ((INIT, answered("main", "bc", "GPU-1")), ("main",), False),
}


@pytest.mark.parametrize("case", USES)
def test_an_init_container_that_was_answered_after_its_end_uses_nothing(case: str) -> None:
    record, created, want = USES[case]
    first, *others = in_use(record, {"p": pod(*created)})
    assert first == (record[0] if want else msgspec.structs.replace(record[0], uses=()))
    assert others == list(record[1:])


def test_a_container_that_the_pod_does_not_have_any_more_has_not_ended() -> None:
    entry = msgspec.structs.replace(INIT, container="removed")
    assert in_use((entry,), {"p": pod("main")}) == (entry,)


def test_a_pod_has_ended_when_it_is_gone_or_ran_to_its_end_and_is_ending_also_while_it_is_deleted() -> None:
    pods = {"runs": GatePod(name="ns/p"), "deleted": GatePod(name="ns/p", ending=True)}
    seen = GateObservation(pods=pods | {"ran": GatePod(name="ns/p", ended=True, ending=True)})
    assert [each for each in ("runs", "deleted", "ran", "gone") if seen.ended(each)] == ["ran", "gone"]
    assert [each for each in ("runs", "deleted", "ran", "gone") if seen.ending(each)] == ["deleted", "ran", "gone"]


@pytest.mark.parametrize(
    ("uid", "resource", "ids", "want"),
    [("q", NEED, "bx", True), ("p", NEED, "bx", False), ("q", "nvidia.com/gpu", "bx", False), ("q", NEED, "xy", False)],
)
def test_ids_are_recorded_for_a_pod_that_is_not_observed(uid: str, resource: str, ids: str, want: bool) -> None:
    other = KubeletAllocation(uid=uid, container="main", resource=resource, device_ids=tuple(ids))
    seen = GateObservation(pods={"p": pod()}, recorded=(other,))
    assert seen.recorded_for_unobserved_pod(INIT) is want


def test_an_init_container_starts_again_where_nobody_else_has_the_memory() -> None:
    """Its pod's sandbox is created again, after another pod was given what nobody used."""
    pods = {"p": pod("main"), "q": GatePod(name="ns/q", lasting=frozenset({"main"}), order=("main",))}
    recorded = tuple(
        KubeletAllocation(uid=uid, container=container, resource=NEED, device_ids=tuple(ids))
        for uid, container, ids in (("p", "init", "ab"), ("q", "main", "cd"))
    )
    seen = GateObservation(pods=pods, recorded=recorded)
    other = msgspec.structs.replace(answered("main", "cd", uid="q"), pod="ns/q")
    capacity_mib = {DeviceId("GPU-0"): 7}
    admitted = start((INIT,), msgspec.structs.replace(other, presumed=False), seen, capacity_mib, ids=False)
    assert admitted.refused is None
    assert INIT in admitted.record, "its answer is not forgotten"
    again = start(admitted.record, msgspec.structs.replace(INIT, presumed=False), seen, capacity_mib, ids=False)
    assert again.refused is not None
    assert again.refused.other is not None
    assert again.refused.other.uid == "q"
