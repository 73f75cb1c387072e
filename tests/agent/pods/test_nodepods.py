"""What pods hold by the kubelet's record, and when that is not to be believed."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from builders.gpunodes import facts
from builders.nodepods import node_pods
from builders.shares import share
from harness.servers import Clock
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation, RequestKey
from tessera.core.deviceplugin.allocations.matching import AssignedRequest
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import Inventory
from tessera.core.node.layouts import users_of
from tessera.errors import Unavailable

pytestmark = pytest.mark.anyio

RUNNING = {
    "metadata": {"namespace": "default", "name": "p"},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    "status": {"phase": "Running"},
}
RECORD = KubeletAllocation(
    namespace="default", pod="p", container="main", resource="nvidia.com/gpu", device_ids=("GPU-1",)
)
KNOWN = ("nvidia.com/gpu",)


def record(*answers: tuple[KubeletAllocation, ...]) -> Callable[[], Awaitable[tuple[KubeletAllocation, ...]]]:
    """Return a record that says one thing after the other."""
    said = iter(answers)

    async def read() -> tuple[KubeletAllocation, ...]:
        return next(said)

    return read


async def test_a_record_that_lacks_a_running_pod_is_not_believed_for_a_minute() -> None:
    clock = Clock()
    objects: list[dict[str, Any]] = [RUNNING]
    pods = node_pods(lambda: objects, record((RECORD,), (), (), (RECORD,), (), ()), resources=KNOWN, clock_s=clock)
    nothing = Inventory(gpus=())
    assert [(each.pod, each.devices) for each in await pods.pod_devices(nothing)] == [("default/p", ("GPU-1",))]
    for _ in range(2):
        with pytest.raises(Unavailable, match="it lacks pods that run with devices: default/p"):
            await pods.pod_devices(nothing)
    assert await pods.pod_devices(nothing)
    with pytest.raises(Unavailable):
        await pods.pod_devices(nothing)
    clock.now_s += 61
    assert await pods.pod_devices(nothing) == ()


async def test_what_allocate_answered_is_held_though_no_pod_is_known_for_it_yet() -> None:
    """Its container has the UUID: an instance that is destroyed and made again has another."""
    made = facts(0)
    answered = AgentAllocation(
        resource="tessera.dev/gpu-memory", ids=("u",), at_ns=1, uses=(AllocatedDevice(device=DeviceId(made.uuid)),)
    )
    pods = node_pods(lambda: (), record(()), resources=KNOWN, entries=[answered])
    inventory = Inventory(gpus=(made,))
    held = [(each.pod, each.devices) for each in await pods.pod_devices(inventory)]
    assert held == [("", (made.uuid,))]
    assert [user.name for user in users_of(inventory, held, {})] == ["a pod that is about to start"]


async def test_a_device_by_name_is_held_though_the_driver_did_not_list_it_before() -> None:
    """Units name no device: those of an entry without devices were answered with another pod's share."""
    made, gone = facts(0), facts(1)
    named = AgentAllocation(
        resource="nvidia.com/gpu", ids=(gone.uuid, made.uuid), uid="p", pod="default/p", container="init"
    )
    other = (AllocatedDevice(device=DeviceId("GPU-other")),)
    units = AgentAllocation(
        resource="tessera.dev/gpu-memory", ids=("u",), uid="q", pod="default/q", container="main", uuids=(made.uuid,)
    )
    entries = [
        named,
        msgspec.structs.replace(named, pod="default/partly", uses=other),
        units,
    ]
    pods = node_pods(lambda: (), record(()), resources=KNOWN, entries=entries)
    held = {each.pod: each.devices for each in await pods.pod_devices(Inventory(gpus=(made,))) if each.devices}
    assert {pod for pod, devices in held.items() if made.uuid in devices} == {"default/p", "default/partly"}


async def test_a_record_may_lack_pods_that_do_not_run() -> None:
    pods = node_pods(lambda: [{**RUNNING, "status": {"phase": "Pending"}}], record(()), resources=KNOWN)
    assert await pods.pod_devices(Inventory(gpus=())) == ()


async def test_a_pod_that_asks_what_the_kubelet_does_not_know_is_in_nobodys_way() -> None:
    """The kubelet runs a pod that named its node without resources it does not know, and records nothing."""
    limits = {"limits": {"nvidia.com/mig-9g.999gb": "1"}}
    phantom = {**RUNNING, "spec": {"containers": [{"name": "main", "resources": limits}]}}
    pods = node_pods(lambda: [phantom], record(()), resources=KNOWN)
    assert await pods.pod_devices(Inventory(gpus=())) == ()


async def test_each_pod_that_the_record_lacks_is_waited_for_a_minute_of_its_own() -> None:
    clock = Clock()
    begin_s = clock.now_s
    named = {name: {**RUNNING, "metadata": {"namespace": "default", "name": name}} for name in ("p", "q")}
    objects = [named["p"]]
    pods = node_pods(lambda: objects, record(*[()] * 9), resources=KNOWN, clock_s=clock)
    for seconds, there, lacks in ((0, "p", "p"), (50, "pq", "p"), (61, "pq", "q"), (111, "pq", ""), (112, "q", "")):
        clock.now_s, objects = begin_s + seconds, [named[name] for name in there]
        if lacks:
            with pytest.raises(Unavailable, match=f"default/{lacks}"):
                await pods.pod_devices(Inventory(gpus=()))
        else:
            assert await pods.pod_devices(Inventory(gpus=())) == ()


def test_a_pod_uses_what_its_containers_have_at_once() -> None:
    """An init container beside the sidecars before it, then the others beside all sidecars."""
    order = ("before", "init", "after", "main")
    init = [{"name": name, "restartPolicy": "Always"} for name in ("before", "after")]
    init.insert(1, {"name": "init"})
    metadata = {"namespace": "default", "name": "p", "uid": "u"}
    pod = {"metadata": metadata, "spec": {"initContainers": init, "containers": [{"name": "main"}]}}
    shares = {name: share(0, 2**number) for number, name in enumerate(order)}
    requests = [
        AssignedRequest(
            key=RequestKey("default", "p", name, "aliyun.com/gpu-mem"),
            units=1,
            shares=(each,),
            initial=name == "init",
        )
        for name, each in shares.items()
    ]
    (own,) = node_pods(lambda: [pod], requests=requests).by_pod
    assert [[each.memory_mib for each in step] for step in own.steps] == [[1, 4, 8], [2, 1]]
    assert (own.uid, own.qos) == ("u", "BestEffort")
