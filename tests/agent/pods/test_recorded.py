"""What the kubelet gave pods that asked by name is written on them."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from builders.gpufacts import at
from builders.gpunodes import facts, shared
from builders.kubeobjects import containers, pod
from builders.signed import Trusting
from harness.agentmachine import Machine
from tessera.agent.pods.recorded import Recorder
from tessera.api.tessera.pods.assignments import write_shares
from tessera.api.tessera.shares import ShareFields
from tessera.clients.kube import PODS, Kind, MemoryKube, Object, Subresource, annotations_of
from tessera.core.cluster.namedshares import shares_by_id
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.errors import InvalidInput, Unavailable
from tessera.log import logger

pytestmark = pytest.mark.anyio

ASSIGNMENT = "tessera.dev/assignment"
SLICE = "nvidia.com/mig-3g.20gb"
HALVES = at("A100-40GB", ("3g.20gb", 0), ("3g.20gb", 4))
CUT = facts(0, layout=HALVES)
IDS = tuple(each.uuid for each in CUT.instances)
SHARED = shared(CUT, Sharing(modes=(Mode.MIG,), layout=HALVES, allow_repartition=False))
DEVICES = shares_by_id([SHARED], Inventory(gpus=(CUT,)))


def asking(name: str, limits: dict[str, int], annotation: str = "") -> Object:
    annotations = {ASSIGNMENT: annotation} if annotation else {}
    spec = {"containers": containers({"c": limits})}
    return pod(name, node="n1", phase="Pending", annotations=annotations, metadata={"namespace": "default"}, spec=spec)


def of(device: str) -> Share:
    return msgspec.structs.replace(DEVICES[device], resource=SLICE, container="c")


class Node:
    """Pods, a kubelet's record, and a recorder between them."""

    def __init__(self, kube: MemoryKube | None = None) -> None:
        self.kube = kube or MemoryKube()
        self.allocated: list[KubeletAllocation] = []
        self.requested = 0
        self.recorder = Recorder(
            self.kube,
            self,
            self,
            Trusting("n1"),
            logger(),
            now_ns=lambda: 7,
        )
        self.seen: tuple[Object, ...] = ()

    def pods(self) -> tuple[Object, ...]:
        return self.seen

    async def devices_of_lasting_containers(self) -> tuple[KubeletAllocation, ...]:
        await asyncio.sleep(0)
        self.requested += 1
        return tuple(self.allocated)

    async def shares_by_id(self) -> Mapping[str, Share]:
        await asyncio.sleep(0)
        return DEVICES

    async def add(self, each: Object, *ids: str) -> None:
        await self.kube.create(PODS, each)
        name = each["metadata"]["name"]
        if ids:
            self.allocated.append(
                KubeletAllocation(
                    namespace="default", pod=name, container="c", resource=SLICE, device_ids=tuple(sorted(ids))
                )
            )

    async def reconcile(self) -> None:
        """Let the watch come, then the recorder look."""
        self.seen = (await self.kube.list(PODS)).objects
        await self.recorder.record(1024)

    async def annotation(self, name: str) -> str | None:
        found = await self.kube.get(PODS, name, "default")
        assert found is not None
        return annotations_of(found).get(ASSIGNMENT)

    async def recorded(self, name: str) -> list[Share]:
        """Return the shares that the assignment of a pod has."""
        shares = json.loads(await self.annotation(name) or "{}")["shares"]
        return list(msgspec.convert(msgspec.convert(shares, list[ShareFields]), list[Share], from_attributes=True))


async def test_each_pod_is_annotated_with_its_devices_once() -> None:
    node = Node()
    await node.add(asking("none", {}))
    await node.add(asking("one", {SLICE: 1}), IDS[1])
    await node.add(asking("wrong", {SLICE: 1}, write_shares((of(IDS[1]),))), IDS[0])
    for _ in range(3):
        await node.reconcile()
    assert await node.annotation("none") is None
    assert await node.recorded("one") == [of(IDS[1])]
    assert await node.recorded("wrong") == [of(IDS[0])]
    assert node.requested == 2  # to write, and to see it written
    await node.reconcile()
    assert node.requested == 2


async def test_a_pod_that_the_kubelet_does_not_show_is_waited_for() -> None:
    node = Node()
    await node.add(asking("late", {SLICE: 1}))
    await node.reconcile()
    assert await node.annotation("late") is None
    node.allocated = [
        KubeletAllocation(namespace="default", pod="late", container="c", resource=SLICE, device_ids=IDS[:1])
    ]
    await node.reconcile()
    assert await node.recorded("late") == [of(IDS[0])]


async def test_gpushare_memory_is_marked_as_allocated_once() -> None:
    node = Node()
    waiting = asking("p", {"aliyun.com/gpu-mem": 2})
    waiting["metadata"]["annotations"] = {"ALIYUN_COM_GPU_MEM_ASSIGNED": "false", "a": "b"}
    await node.add(waiting)
    await node.reconcile()
    assert annotations_of((await node.kube.list(PODS)).objects[0])["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "false"
    units = KubeletAllocation(
        namespace="default", pod="p", container="c", resource="aliyun.com/gpu-mem", device_ids=("u1", "u2")
    )
    node.allocated = [units]
    await node.reconcile()
    found = (await node.kube.list(PODS)).objects[0]
    want = {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true", "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "7", "a": "b"}
    assert annotations_of(found) == want
    requested = node.requested
    await node.reconcile()
    assert node.requested == requested


async def test_a_pod_with_memory_and_a_device_by_name_is_annotated_with_the_memory_first() -> None:
    node = Node()
    both = asking("p", {"aliyun.com/gpu-mem": 2})
    both["metadata"]["annotations"] = {"ALIYUN_COM_GPU_MEM_ASSIGNED": "false"}
    both["spec"]["containers"].append({"name": "d", "image": "none", "resources": {"limits": {SLICE: "1"}}})
    await node.add(both)
    node.allocated = [
        KubeletAllocation(
            namespace="default", pod="p", container="c", resource="aliyun.com/gpu-mem", device_ids=("u1", "u2")
        ),
        KubeletAllocation(namespace="default", pod="p", container="d", resource=SLICE, device_ids=IDS[:1]),
    ]
    await node.reconcile()
    assert annotations_of((await node.kube.list(PODS)).objects[0])["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true"
    assert await node.annotation("p") is None  # its memory may be exchanged until it runs


async def test_a_pod_that_changed_meanwhile_is_looked_at_again() -> None:
    node = Node()
    await node.add(asking("p", {SLICE: 1}), IDS[0])
    node.seen = (await node.kube.list(PODS)).objects
    await node.kube.patch(PODS, "p", {"metadata": {"labels": {"a": "b"}}}, namespace="default")
    await node.recorder.record(1024)
    assert await node.annotation("p") is None
    await node.reconcile()
    assert await node.recorded("p") == [of(IDS[0])]


@pytest.mark.parametrize("limits", [{SLICE: -1}, {SLICE: 1, "tessera.dev/gpu-memory": 4}])
async def test_pods_that_cannot_be_read_disturb_nobody(limits: dict[str, int]) -> None:
    node = Node()
    await node.add(asking("bad", limits), IDS[1])
    await node.add(asking("good", {SLICE: 1}), IDS[0])
    await node.reconcile()
    assert await node.annotation("bad") is None
    assert await node.recorded("good") == [of(IDS[0])]


async def test_an_assignment_that_cannot_be_read_is_left_with_a_word() -> None:
    node = Node()
    mixed = asking("mixed", {SLICE: 1}, "{")
    mixed["status"] = {"phase": "Running"}
    need: dict[str, Any] = {"limits": {"tessera.dev/gpu-memory": "4"}}
    mixed["spec"]["containers"].append({"name": "d", "image": "none", "resources": need})
    await node.add(mixed, IDS[0])
    with capture_logs() as logs:
        for _ in range(2):
            await node.reconcile()
    assert [each["event"] for each in logs] == ["assignment_not_recorded"]
    assert await node.annotation("mixed") == "{"


async def test_an_api_that_is_silent_is_tried_again() -> None:
    node = Node()
    await node.add(asking("p", {SLICE: 1}), IDS[0])
    node.seen = (await node.kube.list(PODS)).objects
    node.kube.stop()
    with pytest.raises(Unavailable):
        await node.recorder.record(1024)
    node.kube.start()
    await node.reconcile()
    assert await node.recorded("p") == [of(IDS[0])]


async def test_an_agent_tells_what_its_pods_have(machine: Machine) -> None:
    async with machine.agent():
        await machine.label(config="all-3g.20gb")
        await machine.kubelet.until_allocatable(SLICE, 4)
        await machine.pod("p", {SLICE: 2})
        held = (await machine.start("p", SLICE, 2))["NVIDIA_VISIBLE_DEVICES"].split(",")
        text = ""
        for _ in range(500):
            found = await machine.kube.get(PODS, "p", "default")
            text = annotations_of(found or {}).get(ASSIGNMENT, "")
            if text:
                break
            await asyncio.sleep(0.02)
        places = {
            (gpu.index, each.placement.start): each.uuid
            for gpu in (await machine.driver.inventory()).gpus
            for each in gpu.instances
        }
        told = [places[share["gpu"], share["start"]] for share in msgspec.json.decode(text)["shares"]]
        assert sorted(told) == sorted(held)


class Refusing(MemoryKube):
    """An API that never takes changes of some pods, as where their annotations are as long as they may be."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self._names = names

    async def patch(
        self, kind: Kind, name: str, body: Object, *, namespace: str = "", subresource: Subresource = ""
    ) -> Object:
        if name in self._names:
            raise InvalidInput(f"pod {name}", found="HTTP 422, Too long", expected="success")
        return await super().patch(kind, name, body, namespace=namespace, subresource=subresource)


async def test_a_pod_that_cannot_be_written_keeps_no_other_from_it() -> None:
    node = Node(Refusing("a"))
    for name, each in zip("ab", IDS, strict=False):
        await node.add(asking(name, {SLICE: 1}), each)
    with capture_logs() as logs:
        for _ in range(3):
            await node.reconcile()
    assert await node.recorded("b") == [of(IDS[1])]
    assert [each["pod"] for each in logs if each["log_level"] == "warning"] == ["default/a"], (
        "said once, as it is for good"
    )
