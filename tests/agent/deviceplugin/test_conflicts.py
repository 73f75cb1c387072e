"""Two pods on one device, and pods that nobody will ever assign a device: reported where people look, and ended."""

import datetime as dt
from typing import Any

import msgspec
import pytest

from builders.deviceplugins import gate
from builders.kubeobjects import amount
from builders.nodeviews import RecordedPods
from harness.agentmachine import Machine
from tessera.agent.agenttimes import AgentTimes
from tessera.agent.deviceplugin.conflicts import Conflicts
from tessera.clients.kube import DISRUPTION_BUDGETS, EVENTS, PODS, Kind, MemoryKube, Object
from tessera.clients.kubelet import Container
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice, Exclusivity, latest
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.gpu.deviceids import DeviceId
from tessera.errors import Conflict, Unavailable
from tessera.log import logger

pytestmark = pytest.mark.anyio

GPU, NEED = "nvidia.com/gpu", "tessera.dev/gpu-memory"


class RefusingEvents(MemoryKube):
    """An API server that takes no Event for now, as for want of a right or of room, and all else."""

    refuses = False

    async def create(self, kind: Kind, body: Object) -> Object:
        if self.refuses and kind is EVENTS:
            raise Unavailable("events", found="HTTP 429", expected="an answer")
        return await super().create(kind, body)


class Node:
    """A node with pods that have what the kubelet recorded."""

    def __init__(self, *, termination_s: float = 5.0) -> None:
        self.kube = RefusingEvents()
        self.view = Pods()
        self.now_ns = 0
        self.clock_s = 0.0
        times = AgentTimes(clock_s=lambda: self.clock_s, now_ns=lambda: self.now_ns, termination_s=termination_s)
        self.gate = gate(self.view, times=times)
        self.now = dt.datetime(2026, 11, 26, tzinfo=dt.UTC)
        self.conflicts = Conflicts(self.kube, "n1", self.gate, logger(), now=lambda: self.now)

    async def pod(self, name: str, *ids: str) -> Object:
        body = {"metadata": {"name": name, "namespace": "ml"}, "spec": {"nodeName": "n1", "containers": []}}
        made = await self.kube.create(PODS, body)
        self.view.objects[name] = made
        if ids:
            await self.gives(name, *ids)
        return made

    async def gives(self, name: str, *ids: str) -> None:
        """Let the kubelet have recorded devices for a pod."""
        self.view.holds(name, GPU, ids)
        await self.gate.record.clean_up(
            lambda held: tuple(AllocatedDevice(device=DeviceId(each)) for each in held.device_ids)
        )

    async def names(self) -> list[str]:
        return sorted(each["metadata"]["name"] for each in (await self.kube.list(PODS)).objects)

    async def events(self) -> list[tuple[str, str, str]]:
        found = (await self.kube.list(EVENTS)).objects
        return sorted((each["involvedObject"]["name"], each["reason"], each["message"]) for each in found)


class Pods(RecordedPods):
    """Pods, and what they hold."""

    def __init__(self) -> None:
        super().__init__()
        self.has: list[KubeletAllocation] = []

    async def devices_of_all_containers(self) -> tuple[KubeletAllocation, ...]:
        return tuple(self.has)

    def holds(self, name: str, resource: str, ids: tuple[str, ...]) -> None:
        """Let a pod hold devices by the kubelet's record."""
        uid = self.objects[name]["metadata"]["uid"]
        self.has.append(
            KubeletAllocation(uid=uid, namespace="ml", pod=name, container="main", resource=resource, device_ids=ids)
        )


async def test_the_later_of_two_pods_is_evicted_and_its_event_says_why() -> None:
    node = Node()
    await node.pod("first", "GPU-1")
    await node.pod("second", "GPU-1")
    (text,) = await node.conflicts.end({}, evict=True)
    assert await node.conflicts.end({}, evict=True) == (text,), "said once, and as long as it is so"
    ((name, reason, message),) = await node.events()
    assert (name, reason, message) == ("second", "DeviceConflict", text)
    assert text.startswith("pod ml/second and pod ml/first both use device GPU-1 of nvidia.com/gpu: ")
    assert text.endswith("evicting ml/second, created later")
    assert await node.names() == ["first"]


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (
            (6, 6),
            "pod ml/p1 and pod ml/p0 together use more memory than the 10 MiB of GPU GPU-1: evicting ml/p1, created",
        ),
        ((20,), "pod ml/p0 alone uses more memory than the 10 MiB of GPU GPU-1: evicting ml/p0"),
    ],
)
async def test_memory_that_is_too_much_is_said_of_those_who_use_it(sizes: tuple[int, ...], said: str) -> None:
    """As of a GPU that was exchanged for a smaller one while no agent ran."""
    node = Node()
    capacity = {DeviceId("GPU-1"): 10}
    node.gate = gate(node.view, lambda: capacity)
    node.conflicts = Conflicts(node.kube, "n1", node.gate, logger(), now=lambda: node.now)
    for number, size in enumerate(sizes):
        made = await node.pod(f"p{number}")
        use = AllocatedDevice(device=DeviceId("GPU-1"), exclusivity=Exclusivity.MEMORY, memory_mib=size)
        entry = AgentAllocation(
            resource=NEED, ids=(f"{number}",), uses=(use,), uid=made["metadata"]["uid"], at_ns=number
        )
        entry = msgspec.structs.replace(entry, pod=f"ml/p{number}", container="main")
        node.gate.record.keep((*node.gate.record.entries, entry))
    (text,) = await node.conflicts.end({}, evict=True)
    assert text.startswith(said)


async def test_a_pod_that_its_budget_keeps_gets_the_reason() -> None:
    """Two pods have one device for as long as that lasts: who is asked to do something about it must learn of it."""
    node = Node()
    await node.pod("first", "GPU-1")
    await node.pod("second", "GPU-1")
    forbids = {"metadata": {"name": "b", "namespace": "ml"}, "spec": {}, "status": {"disruptionsAllowed": 0}}
    await node.kube.create(DISRUPTION_BUDGETS, forbids)
    conflict, refused = await node.conflicts.end({}, evict=True)
    assert await node.conflicts.end({}, evict=True) == (conflict, refused), "said once"
    assert conflict.endswith("evicting ml/second, created later")
    assert refused.startswith("pod ml/second is not evicted: ")
    assert [(name, reason) for name, reason, _ in await node.events()] == [
        ("second", "DeviceConflict"),
        ("second", "EvictionRefused"),
    ]
    assert refused in [message for _, _, message in await node.events()]
    assert await node.names() == ["first", "second"]


@pytest.mark.parametrize("evict", [True, False])
async def test_what_lasts_is_said_again_before_its_event_is_forgotten(*, evict: bool) -> None:
    """The API server keeps an event for an hour by default, and a conflict may last for days."""
    node = Node()
    await node.pod("first", "GPU-1")
    await node.pod("second", "GPU-1")
    forbids = {"metadata": {"name": "b", "namespace": "ml"}, "spec": {}, "status": {"disruptionsAllowed": 0}}
    await node.kube.create(DISRUPTION_BUDGETS, forbids)
    for _ in range(60):
        await node.conflicts.end({}, evict=evict)
        node.clock_s += 60
        node.now += dt.timedelta(seconds=60)
    reasons = ["DeviceConflict", "EvictionRefused"] if evict else ["DeviceConflict"]
    events = (await node.kube.list(EVENTS)).objects
    assert sorted((each["reason"], each["count"]) for each in events) == [(reason, 2) for reason in reasons]


async def test_where_nobody_is_evicted_it_is_said_all_the_same() -> None:
    node = Node()
    await node.pod("first", "GPU-1")
    await node.pod("second", "GPU-1")
    (text,) = await node.conflicts.end({}, evict=False)
    assert text.endswith("delete one of them")
    assert [each[:2] for each in await node.events()] == [("second", "DeviceConflict")]
    assert await node.names() == ["first", "second"]


async def test_a_pod_without_assignment_is_evicted_with_advice() -> None:
    node = Node()
    stray = await node.pod("stray")
    assert await node.conflicts.end({stray["metadata"]["uid"]: "ml/stray"}, evict=True) == ()
    ((name, reason, message),) = await node.events()
    assert (name, reason) == ("stray", "NotAssigned")
    assert message.startswith("not scheduled by tessera-scheduler, so no GPU is assigned")
    assert "schedulerName: tessera-scheduler" in message
    assert await node.names() == []


async def test_the_event_says_why_an_assignment_does_not_count() -> None:
    node = Node()
    stray = await node.pod("stray")
    reasons = {"ml/stray": "a signature of key 'x'"}
    await node.conflicts.end({stray["metadata"]["uid"]: "ml/stray"}, evict=False, why=reasons.__getitem__)
    ((_, _, message),) = await node.events()
    assert message.startswith("its assignment does not count (a signature of key 'x'), so no GPU is assigned")


async def test_units_are_counted_and_never_in_conflict_by_their_ids() -> None:
    """The kubelet may have one id twice; what counts is the memory of each GPU."""
    node = Node()
    for name in ("first", "second"):
        await node.pod(name)
        node.view.holds(name, NEED, ("unit-1",))
    await node.gate.record.clean_up(
        lambda held: (AllocatedDevice(device=DeviceId(f"GPU of {held.pod}"), exclusivity=Exclusivity.MEMORY),)
    )
    assert len(node.gate.record.entries) == 2
    assert await node.conflicts.end({}, evict=True) == ()


async def test_the_later_of_two_pods_with_the_same_units_is_evicted_when_one_is_to_start() -> None:
    """The kubelet gave ids of a pod again that it had forgotten, and nobody can tell whose container it starts."""
    node = Node(termination_s=0.0)
    for name in ("honest", "again"):
        uid = (await node.pod(name))["metadata"]["uid"]
        node.view.recorded.append(KubeletAllocation(uid=uid, container="main", resource=NEED, device_ids=("unit-1",)))
    uid = node.view.recorded[0].uid
    first = AgentAllocation(resource=NEED, ids=("unit-1",), uid=uid, pod="ml/honest", container="main")
    await node.gate.start(
        first, (AllocatedDevice(device=DeviceId("GPU-1"), exclusivity=Exclusivity.MEMORY),), ids=False
    )
    assert await node.conflicts.end({}, evict=True) == (), "both may run"
    with pytest.raises(Conflict, match="delete ml/again"):
        await node.gate.holder(NEED, ["unit-1"])
    (text,) = await node.conflicts.end({}, evict=True)
    ((name, reason, message),) = await node.events()
    assert (name, reason, message) == ("again", "DeviceConflict", text)
    assert text == (
        "pod ml/again and pod ml/honest both use device unit-1 of tessera.dev/gpu-memory: "
        "evicting ml/again, created later"
    )
    assert await node.names() == ["honest"]
    del node.view.objects["again"]
    assert (await node.gate.holder(NEED, ["unit-1"])).pod == "ml/honest"
    assert await node.conflicts.end({}, evict=True) == ()


async def test_a_pod_in_the_record_was_there_before_an_older_one_that_is_found_beside_it() -> None:
    node = Node()
    node.now_ns = 10**9
    made = await node.pod("honest")
    first = AgentAllocation(
        resource=GPU, ids=("GPU-1",), uid=made["metadata"]["uid"], pod="ml/honest", container="main"
    )
    await node.gate.start(first, (AllocatedDevice(device=DeviceId("GPU-1")),), ids=True)
    node.now_ns = 2 * 10**9
    await node.pod("older", "GPU-1")
    (text,) = await node.conflicts.end({}, evict=True)
    assert "evicting ml/older" in text
    assert await node.names() == ["honest"]


async def test_who_waits_for_the_end_of_another_is_no_conflict() -> None:
    node = Node()
    first = await node.pod("first", "GPU-1")
    node.view.objects["first"] = {**first, "metadata": {**first["metadata"], "deletionTimestamp": "2026"}}
    await node.pod("second", "GPU-1")
    assert await node.conflicts.end({}, evict=True) == ()
    assert await node.names() == ["first", "second"]


async def test_a_pod_that_cannot_start_for_a_minute_is_evicted_and_told_who_is_in_its_way() -> None:
    node = Node()
    await node.pod("first", "GPU-1")
    late = await node.pod("late")
    holder = AgentAllocation(resource=GPU, ids=("GPU-1",), uid=late["metadata"]["uid"], pod="ml/late", container="main")
    node.view.processes.add(node.view.objects["first"]["metadata"]["uid"])
    for seconds, names in ((0, ["first", "late"]), (59, ["first", "late"]), (61, ["first"])):
        node.clock_s = seconds
        with pytest.raises(Conflict, match="of pod ml/first"):
            await node.gate.start(holder, (AllocatedDevice(device=DeviceId("GPU-1")),), ids=True)
        await node.conflicts.end({}, evict=True)
        assert await node.names() == names
    ((name, reason, message),) = await node.events()
    assert (name, reason) == ("late", "DeviceInUse")
    assert "container main of pod ml/first uses device GPU-1 of nvidia.com/gpu; evicting this pod" in message


@pytest.mark.parametrize("jump_s", [3600, -3600])
async def test_a_clock_that_jumps_neither_evicts_nor_spares_who_waits(jump_s: int) -> None:
    node = Node()
    node.now_ns = 10**13
    await node.pod("first", "GPU-1")
    late = await node.pod("late")
    holder = AgentAllocation(resource=GPU, ids=("GPU-1",), uid=late["metadata"]["uid"], pod="ml/late", container="main")
    node.view.processes.add(node.view.objects["first"]["metadata"]["uid"])
    for seconds, names in ((0, ["first", "late"]), (59, ["first", "late"]), (61, ["first"])):
        node.clock_s = seconds
        with pytest.raises(Conflict, match="of pod ml/first"):
            await node.gate.start(holder, (AllocatedDevice(device=DeviceId("GPU-1")),), ids=True)
        node.now_ns += jump_s * 10**9
        await node.conflicts.end({}, evict=True)
        assert await node.names() == names


async def test_what_is_allocated_later_is_on_record_as_later_though_the_clock_was_set_back_since() -> None:
    node = Node()
    for number, seconds in enumerate((7200, 3600, 3600, 0)):
        node.now_ns = seconds * 10**9
        await node.gate.admit(GPU, (f"GPU-{number}",), (AllocatedDevice(device=DeviceId(f"GPU-{number}")),))
    times = [each.at_ns for each in node.gate.record.entries]
    assert times == sorted(set(times))


async def test_who_came_first_stays_though_the_clock_was_set_back_since() -> None:
    node = Node()
    node.now_ns = 7200 * 10**9
    made = await node.pod("honest")
    first = AgentAllocation(
        resource=GPU, ids=("GPU-1",), uid=made["metadata"]["uid"], pod="ml/honest", container="main"
    )
    await node.gate.start(first, (AllocatedDevice(device=DeviceId("GPU-1")),), ids=True)
    node.now_ns = 3600 * 10**9
    await node.pod("other")
    node.view.objects["other"]["metadata"]["creationTimestamp"] = "1970-01-01T00:59:59Z"
    await node.gives("other", "GPU-1")
    (text,) = await node.conflicts.end({}, evict=True)
    assert "evicting ml/other, created later" in text
    assert await node.names() == ["honest"]


async def test_who_waits_for_a_pod_that_is_being_deleted_is_let_be_and_who_waits_for_what_it_left_is_not() -> None:
    node = Node()
    first = await node.pod("first", "GPU-1")
    late = await node.pod("late")
    holder = AgentAllocation(resource=GPU, ids=("GPU-1",), uid=late["metadata"]["uid"], pod="ml/late", container="main")
    node.view.processes.add(first["metadata"]["uid"])
    with pytest.raises(Conflict, match="of pod ml/first"):
        await node.gate.start(holder, (AllocatedDevice(device=DeviceId("GPU-1")),), ids=True)
    node.view.objects["first"] = {**first, "metadata": {**first["metadata"], "deletionTimestamp": "2026"}}
    node.clock_s = 61
    await node.conflicts.end({}, evict=True)
    assert await node.names() == ["first", "late"]
    await node.kube.delete(PODS, "first", namespace="ml")
    del node.view.objects["first"]
    for seconds, names in ((62, ["late"]), (121, ["late"]), (123, [])):
        node.clock_s = seconds
        with pytest.raises(Conflict, match="of pod ml/first"):
            await node.gate.start(holder, (AllocatedDevice(device=DeviceId("GPU-1")),), ids=True)
        await node.conflicts.end({}, evict=True)
        assert await node.names() == names, "a process that it left behind may never end"


async def test_a_pod_of_the_same_name_is_not_evicted_for_the_former() -> None:
    node = Node()
    await node.pod("first", "GPU-1")
    later = await node.pod("second", "GPU-1")
    await node.kube.delete(PODS, "second", namespace="ml")
    await node.kube.create(PODS, {"metadata": {"namespace": "ml", "name": "second", "uid": "another"}})
    assert node.view.find(later["metadata"]["uid"]) is not None, "the watch is late"
    await node.conflicts.end({}, evict=True)
    assert await node.names() == ["first", "second"]


async def test_a_pod_of_which_another_container_starts_again_and_again_is_evicted_for_the_one_that_cannot() -> None:
    node = Node()
    first = await node.pod("first", "GPU-1")
    late = await node.pod("late")
    main = AgentAllocation(resource=GPU, ids=("GPU-1",), uid=late["metadata"]["uid"], pod="ml/late", container="main")
    side = AgentAllocation(resource=GPU, ids=("GPU-2",), uid=late["metadata"]["uid"], pod="ml/late", container="side")
    node.view.processes.add(first["metadata"]["uid"])
    for seconds in (0, 30, 61):
        node.clock_s = seconds
        with pytest.raises(Conflict, match="of pod ml/first"):
            await node.gate.start(main, (AllocatedDevice(device=DeviceId("GPU-1")),), ids=True)
        await node.gate.start(side, (AllocatedDevice(device=DeviceId("GPU-2")),), ids=True)
    await node.conflicts.end({}, evict=True)
    assert await node.names() == ["first"]


async def test_a_pod_that_started_after_all_is_let_be() -> None:
    node = Node()
    late = await node.pod("late")
    holder = AgentAllocation(resource=GPU, ids=("GPU-1",), uid=late["metadata"]["uid"], pod="ml/late", container="main")
    node.gate.refusals.refuse(holder, "it was started with the devices of another pod")
    await node.gate.start(holder, (AllocatedDevice(device=DeviceId("GPU-1")),), ids=True)
    node.clock_s = 61
    node.gate.refusals.forget(holder)
    node.gate.refusals.refuse(holder, "it was started with the devices of another pod")
    node.clock_s = 1000
    await node.conflicts.end({}, evict=True)
    assert (await node.names(), await node.events()) == (["late"], [])


@pytest.mark.parametrize("change", [{"status": {"phase": "Failed"}}, {"metadata": {"deletionTimestamp": "2026"}}])
async def test_who_is_on_the_way_out_is_left_alone(change: dict[str, Any]) -> None:
    node = Node()
    stray = await node.pod("stray")
    node.view.objects["stray"] = {**stray, **change, "metadata": {**stray["metadata"], **change.get("metadata", {})}}
    await node.conflicts.end({stray["metadata"]["uid"]: "ml/stray", "gone": "ml/gone"}, evict=True)
    assert await node.events() == []
    assert await node.names() == ["stray"]


async def test_an_event_that_cannot_be_written_keeps_nobody_from_being_evicted_and_is_written_later() -> None:
    node = Node()
    stray = await node.pod("stray")
    node.kube.refuses = True
    unassigned = {stray["metadata"]["uid"]: "ml/stray"}
    await node.conflicts.end(unassigned, evict=True)
    assert (await node.names(), await node.events()) == ([], [])
    del node.view.objects["stray"]
    await node.conflicts.end({}, evict=True)
    node.kube.refuses = False
    for _ in range(2):
        await node.conflicts.end({}, evict=True)
    ((name, reason, _),) = await node.events()
    assert (name, reason) == ("stray", "NotAssigned")


async def test_an_event_that_never_can_be_written_is_given_up_when_its_pod_is_long_gone() -> None:
    node = Node()
    stray = await node.pod("stray")
    node.kube.refuses = True
    await node.conflicts.end({stray["metadata"]["uid"]: "ml/stray"}, evict=True)
    del node.view.objects["stray"]
    node.now += dt.timedelta(minutes=11)
    await node.conflicts.end({}, evict=True)
    node.kube.refuses = False
    await node.conflicts.end({}, evict=True)
    assert await node.events() == []


async def test_a_second_reason_for_the_same_pod_is_said_too() -> None:
    node = Node()
    await node.pod("first", "GPU-1")
    second = await node.pod("second")
    unassigned = {second["metadata"]["uid"]: "ml/second"}
    await node.conflicts.end(unassigned, evict=False)
    await node.gives("second", "GPU-1")
    await node.conflicts.end(unassigned, evict=False)
    assert [each[:2] for each in await node.events()] == [("second", "DeviceConflict"), ("second", "NotAssigned")]


@pytest.mark.parametrize("reason", ["DeviceConflict", "NotAssigned"])
async def test_who_a_disruption_budget_keeps_is_said_to_be_kept_by_it(reason: str) -> None:
    node = Node()
    await node.pod("first", "GPU-1")
    second = await node.pod("second", *["GPU-1"] * (reason == "DeviceConflict"))
    budget = {"metadata": {"name": "pdb", "namespace": "ml"}, "spec": {"selector": {}}}
    await node.kube.create(DISRUPTION_BUDGETS, budget | {"status": {"disruptionsAllowed": 0}})
    unassigned = {second["metadata"]["uid"]: "ml/second"}
    found = await node.conflicts.end(unassigned, evict=True)
    assert await node.conflicts.end(unassigned, evict=True) == found
    assert found[-1].startswith("pod ml/second is not evicted: ")
    assert "pdb" in found[-1]
    assert [each[1] for each in await node.events()] == sorted([reason, "EvictionRefused"]), "each said once"
    assert await node.names() == ["first", "second"]
    assert len(await node.conflicts.end(unassigned, evict=False)) == len(found) - 1, "nobody is asked"


async def test_an_agent_evicts_a_pod_that_nothing_was_assigned_to(machine: Machine) -> None:
    await machine.label(gpushare="true")
    async with machine.agent():
        await machine.kubelet.until_allocatable(NEED, 80)
        await machine.pod("honest", {NEED: 4}, (amount(0, container="c"),))
        await machine.pod("stray", {NEED: 4})
        with pytest.raises(Conflict, match="not scheduled by tessera-scheduler"):
            await machine.start("stray", NEED, 4)
        await machine.until_object(PODS, "stray", lambda pod: not pod)
        assert "schedulerName: tessera-scheduler" in await machine.event("NotAssigned")
        await machine.start("honest", NEED, 4)


async def test_an_agent_ends_a_conflict_that_a_kubelet_left_behind(machine: Machine) -> None:
    """The kubelet gave one GPU to two pods before there was an agent."""
    (gpu, _) = (await machine.driver.inventory()).gpus
    for name in ("a", "b"):
        await machine.pod(name, {GPU: 1})
        pod = await machine.kube.get(PODS, name, namespace="default")
        assert pod is not None
        held = Container(name="c", limits=((GPU, 1),))
        machine.kubelet.record("default", name, held, (gpu.uuid,), uid=pod["metadata"]["uid"])
    async with machine.agent():
        await machine.until_object(PODS, "b", lambda pod: not pod)
        assert gpu.uuid in await machine.event("DeviceConflict")
    assert await machine.kube.get(PODS, "a", namespace="default") is not None


async def test_what_a_container_was_started_with_is_not_what_it_has_by_other_ids() -> None:
    """As where the kubelet lost its checkpoint and allocates anew for a pod that lives."""
    node = Node()
    made = await node.pod("p")
    first = AgentAllocation(resource=GPU, ids=("GPU-1",), uid=made["metadata"]["uid"], pod="ml/p", container="main")
    await node.gate.start(first, (AllocatedDevice(device=DeviceId("GPU-1")),), ids=True)
    own = latest(node.gate.record.entries, first)
    assert own is not None
    assert own.uses == (AllocatedDevice(device=DeviceId("GPU-1")),)
    assert latest(node.gate.record.entries, msgspec.structs.replace(first, ids=("GPU-2",))) is None
