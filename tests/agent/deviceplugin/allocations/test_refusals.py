"""Who is refused, how long that lasts, and what it keeps from others."""

import asyncio

import msgspec
import pytest

from builders.gpunodes import facts, sevenths
from harness.pluginnode import CDI, GPU, MEMORY, NEED, SLICE, WHOLE, Node, mig, share
from tessera.api.kubernetes.devicecheckpoint import DEVICE_CHECKPOINT
from tessera.clients.kubelet import Container
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.allocations.agentallocations import AllocatedDevice
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import GpuFacts, Inventory
from tessera.core.gpu.sharing import AUTO, Mode, Offer, Sharing
from tessera.core.node.nodesharing import PluginOptions
from tessera.core.workload.need import Isolation
from tessera.errors import Conflict

pytestmark = pytest.mark.anyio


async def test_pods_without_assignment_are_refused_at_once_and_hold_nobody_up(node: Node) -> None:
    await node.offer((facts(0), MEMORY), how=CDI)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    for number in range(20):
        with pytest.raises(Conflict, match="schedulerName: tessera-scheduler"):
            await node.run(f"stray{number}", NEED, 1)
    assert loop.time() - began_s < 3.0, "less than one of them was waited for before"
    node.assign("p", 2, share(0, 2048))
    assert node.spec(await node.run("p", NEED, 2))


@pytest.mark.parametrize("known", [True, False])
async def test_nobody_is_unassigned_while_no_server_s_key_is_known(node: Node, *, known: bool) -> None:
    """As where the servers' keys were deleted and the agent starts anew: no pod can be judged."""
    node.trust.knows_servers = known
    await node.offer((facts(0), MEMORY), how=CDI)
    node.assign("honest", 2, share(0, 2048))
    node.ask("p", NEED, 2)
    await node.kubelet.admit("default", "p", Container(name="main", limits=((NEED, 2),)))
    with pytest.raises(Conflict, match="schedulerName: tessera-scheduler"):
        await node.kubelet.create("default", "p", "main")
    assert list(node.plugins.shares.unassigned.values()) == (["default/p"] if known else [])


async def test_a_container_of_another_size_than_it_was_assigned_is_evicted_in_the_end(node: Node) -> None:
    await node.offer((facts(0), MEMORY), how=CDI)
    node.assign("p", 2, share(0, 2048))
    await node.kubelet.admit("default", "p", Container(name="main", limits=((NEED, 2),)))
    node.assign("p", 3, share(0, 3072))
    for _ in range(2):
        with pytest.raises(Conflict, match="an assignment to 3 units"):
            await node.kubelet.create("default", "p", "main")
        node.passed_s += 61
    assert node.plugins.gate.refusals.blocked_pods() == {
        "uid-p": ("default/p", "it has an assignment to 3 units, and it requests 2")
    }


async def test_a_pod_without_assignment_is_found_before_its_container_is_created(node: Node) -> None:
    pair = facts(0, "T4"), MEMORY
    await node.offer(pair)
    for name in ("started", "created", "stray", "late"):
        node.assign(name, 3, share(0, 3072))
        await node.kubelet.admit("default", name, Container(name="main", limits=((NEED, 3),)))
    await node.kubelet.create("default", "started", "main")
    await node.kill()
    assigned = node.pods["default", "late"]
    assigned["metadata"]["resourceVersion"] = "99"
    for name in ("started", "created", "stray", "late"):
        node.ask(name, NEED, 3)
    node.pods["default", "late"] = assigned  # the watch does not show it yet
    node.pods["default", "created"]["status"] = {
        "containerStatuses": [{"name": "main", "containerID": "containerd://1"}]
    }
    node.plugins = node.started()
    await node.offer(pair)
    node.silent = True
    await node.plugins.shares.clean_up()
    assert node.plugins.shares.unassigned == {}, "nobody is blamed while the API server is silent"
    node.silent = False
    await node.plugins.shares.clean_up()
    assert node.plugins.shares.unassigned == {"uid-stray": "default/stray"}


def left(node: Node) -> list[tuple[DeviceId, str]]:
    return [(each.device, each.reason) for each in node.plugins.gate.refusals.devices_of_orphans]


async def test_what_a_pod_that_is_gone_left_is_closed_to_others_until_it_ends(node: Node) -> None:
    node.hurry(termination_s=0.0)
    await node.offer((facts(0, "T4"), WHOLE))
    await node.run("p")
    process = node.process_of("p")
    with pytest.raises(Conflict, match="of pod default/p"):
        await node.plugins.gate.admit(GPU, (facts(0).uuid,), (AllocatedDevice(device=DeviceId(facts(0).uuid)),))
    assert not left(node), "its pod is there"
    node.end("p")
    node.passed_s += 3  # a list has precedence over the watch for two seconds
    assert [device for device, _ in left(node)] == [DeviceId(facts(0).uuid)]
    (process / "cgroup").unlink()
    process.rmdir()
    node.plugins.gate.record.release()
    assert not left(node)


async def test_two_pods_on_one_device_are_found_and_neither_starts_again(node: Node) -> None:
    """As a kubelet leaves them behind that gave one device twice before there was a gate."""
    await node.offer((facts(0, "T4"), WHOLE))
    for name in ("p", "q"):
        node.ask(name)
        node.process_of(name, 100 + ord(name))
        held = Container(name="main", limits=((GPU, 1),))
        node.kubelet.record("default", name, held, (facts(0).uuid,))
    await node.plugins.gate.record.clean_up(node.plugins._uses_of)
    ((later, clash),) = node.plugins.gate.refusals.double_allocations()
    assert (later.pod, clash.other and clash.other.pod) == ("default/q", "default/p")
    with pytest.raises(Conflict, match="the kubelet allocated it to pods default/p and default/q"):
        await node.kubelet.create("default", "p", "main")


GOLD = "example.com/gold"
RENAMED = Sharing(
    modes=(Mode.TIME_SLICING,), offers=(Offer(mode=Mode.TIME_SLICING, clients=2, resource=GOLD),), replicas=(("", 2),)
)
SHARINGS = {GPU: WHOLE, NEED: MEMORY, GOLD: RENAMED}
LOST = "no devices found allocated in local cache for pod uid-p, container {}, resource {}"
WHY = "the kubelet has lost its record of the pod's devices, and cannot start a container with them again"


def say(node: Node, **states: dict[str, dict[str, str]]) -> None:
    """Let the API server have the states of p's containers."""
    statuses = [{"name": name, "state": state} for name, state in states.items()]
    status = {"phase": "Running", "containerStatuses": statuses}
    node.pods["default", "p"] = node.watched["default", "p"] = {**node.pods["default", "p"], "status": status}


def waiting(message: str, reason: str = "CreateContainerConfigError") -> dict[str, dict[str, str]]:
    return {"waiting": {"reason": reason, "message": message}}


@pytest.mark.parametrize(("kind", "count"), [(GPU, 1), (NEED, 2), (GOLD, 1)])
async def test_a_pod_whose_devices_the_kubelet_has_lost_is_evicted_after_a_minute(
    node: Node, kind: str, count: int
) -> None:
    """Its checkpoint was lost while the pod ran, and then a container ended: the kubelet never asks for it again."""
    node.node = {"metadata": {"annotations": {"tessera.dev/renamed-resources": GOLD}}}
    await node.offer((facts(0), SHARINGS[kind]), how=CDI)
    if kind == NEED:
        node.assign("p", count, share(0, 2048))
    await node.run("p", kind, count)
    node.kubelet.lose_record()
    blocked = node.plugins.gate.refusals.blocked_pods
    say(node, main=waiting(LOST.format("main", kind)))
    assert blocked() == {}
    node.passed_s += 31
    say(node, main=waiting("back-off 40s restarting failed container", "CrashLoopBackOff"))
    assert blocked() == {}
    node.passed_s += 30
    assert blocked() == {"uid-p": ("default/p", WHY)}
    say(node, main={"running": {}})
    assert blocked() == {}, "it started"
    say(node, main=waiting('secret "hub" not found'))
    assert blocked() == {}
    node.passed_s += 61
    assert blocked() == {}, "what others lack is not ours to end"


OTHER_WORDS = {
    "of another plugin's device": LOST.format("side", "rdma/hca"),
    "of another container": LOST.format("main", GPU),
    "of a container that quotes it": 'exec: "no devices found allocated in local cache": executable file not found',
    "of another pod": LOST.format("side", GPU).replace("uid-p", "uid-q"),
}


@pytest.mark.parametrize("words", OTHER_WORDS)
async def test_words_that_are_not_of_a_devices_loss_evict_nobody(node: Node, words: str) -> None:
    await node.offer((facts(0), WHOLE), how=CDI)
    node.ask("p")
    limits = {"rdma/hca": "1"}
    node.pods["default", "p"]["spec"]["containers"].append({"name": "side", "resources": {"limits": limits}})
    await node.run("p")
    node.kubelet.lose_record()
    for _ in range(3):
        say(node, main={"running": {}}, side=waiting(OTHER_WORDS[words]))
        assert node.plugins.gate.refusals.blocked_pods() == {}
        node.passed_s += 61


@pytest.mark.parametrize("checkpoint", ["whole", "torn", "gone"])
async def test_by_a_watch_that_stands_still_nobody_has_lost_what_the_kubelets_checkpoint_may_have(
    node: Node, checkpoint: str
) -> None:
    """The kubelet has its record again, and the pod runs; or its checkpoint does not tell now."""
    await node.offer((facts(0), WHOLE), how=CDI)
    await node.run("p")
    path = node.kubelet.plugins / DEVICE_CHECKPOINT
    kept = path.read_bytes()
    node.kubelet.lose_record()
    say(node, main=waiting(LOST.format("main", GPU)))
    assert node.plugins.gate.refusals.blocked_pods() == {}
    node.passed_s += 61
    path.write_bytes(kept if checkpoint == "whole" else kept[:-40])
    if checkpoint == "gone":
        path.unlink()
    for _ in range(2):
        assert node.plugins.gate.refusals.blocked_pods() == {}
        node.passed_s += 61


async def test_a_refusal_that_is_not_repeated_evicts_nobody(node: Node) -> None:
    """The GPU was away for a second, in which a container was restarted; the kubelet tries again in five minutes."""
    gpu = facts(0, "T4")
    await node.offer((gpu, WHOLE), how=CDI)
    await node.run("p")
    await node.plugins.adopt(Inventory(gpus=()))
    with pytest.raises(Conflict, match="is not on this node any more"):
        await node.kubelet.create("default", "p", "main")
    await node.plugins.adopt(Inventory(gpus=(gpu,)))
    node.passed_s += 300
    assert node.plugins.gate.refusals.blocked_pods() == {}
    await node.kubelet.create("default", "p", "main")
    assert node.plugins.gate.refusals.blocked_pods() == {}


async def test_a_container_that_gets_one_of_its_two_resources_waits_no_longer_for_the_other(node: Node) -> None:
    """The kubelet asks for them in any order: that the one is there does not mean that the container starts."""
    layout = sevenths()[:1]
    whole, cut = facts(0, "T4"), facts(1, layout=layout)
    await node.offer((whole, WHOLE), (cut, mig(layout)), how=CDI)
    node.ask("p")
    node.pods["default", "p"]["spec"]["containers"][0]["resources"]["limits"][SLICE] = "1"
    await node.kubelet.admit("default", "p", Container(name="main", limits=((SLICE, 1), (GPU, 1))))
    await node.plugins.adopt(Inventory(gpus=(cut,)))
    for blocked in ([], [], [], ["uid-p"]):
        with pytest.raises(Conflict, match="is not on this node any more"):
            await node.kubelet.create("default", "p", "main")
        assert list(node.plugins.gate.refusals.blocked_pods()) == blocked
        node.passed_s += 21


TWO = facts(0, layout=sevenths()[:2])


def with_uuids(*uuids: str) -> GpuFacts:
    """Return a GPU with instances of these UUIDs, from the first memory slice on."""
    made = (msgspec.structs.replace(TWO.instances[place], uuid=uuid) for place, uuid in enumerate(uuids))
    return msgspec.structs.replace(TWO, instances=tuple(made))


def seventh(start: int) -> Share:
    return share(
        0, 4864, mode=Mode.MIG, profile="1g.5gb", start=start, isolation=Isolation.HARDWARE, compute_percent=14
    )


@pytest.mark.parametrize("published", [False, True])
async def test_a_pass_with_an_older_inventory_moves_nobody(node: Node, *, published: bool) -> None:
    """It began before two containers got the instances that they run on, one with the UUID of one that is gone."""
    now, before = with_uuids("MIG-b", "MIG-a"), Inventory(gpus=(with_uuids("MIG-a"),), asked_ns=1)
    await node.offer((now, AUTO))
    await node.plugins.adopt(Inventory(gpus=(now,), asked_ns=2))
    for start, name in ((1, "q"), (0, "p")):
        node.assign(name, 4, seventh(start))
        await node.run(name, NEED, 4)
    record = node.plugins.gate.record.entries
    if published:
        await node.plugins.offer(node.offered((before.gpus[0], AUTO)), before, PluginOptions())
    else:
        await node.plugins.adopt(before)
    assert node.plugins.gate.record.entries == record
    assert node.plugins.gate.refusals.double_allocations() == ()


async def test_a_conflict_by_instances_that_moved_is_one_after_half_a_minute_without_a_break(node: Node) -> None:
    """By CDI, too: one that was created again has the UUID of another, whose own the driver may be about to create."""
    before, after = with_uuids("MIG-a"), with_uuids("MIG-b", "MIG-a")
    other = facts(1, "T4")
    await node.offer((before, mig(sevenths()[:1])), (other, MEMORY), how=CDI)
    await node.run("p", SLICE)
    node.assign("q", 4, seventh(1))
    await node.run("q", NEED, 4)

    def conflicts() -> list[str]:
        return [later.pod for later, _ in node.plugins.gate.refusals.double_allocations()]

    for _ in range(2):
        await node.plugins.adopt(Inventory(gpus=(after, other)))
        for _ in range(3):
            assert conflicts() == []
            node.passed_s += 9
        await node.plugins.adopt(Inventory(gpus=(before, other)))
        assert conflicts() == []
    await node.plugins.adopt(Inventory(gpus=(after, other)))
    assert conflicts() == []
    node.passed_s += 30
    assert conflicts() == ["default/p"]


async def test_a_conflict_stands_though_the_two_take_turns_at_being_the_later(node: Node) -> None:
    """A driver shows the instances of both at one place, of the one and of the other in turn."""
    layout = sevenths()[:2]
    await node.offer((TWO, mig(layout)))
    for name in "pq":
        await node.run(name, SLICE)
    record, one = node.plugins.gate.record, AllocatedDevice(device=DeviceId(TWO.uuid, layout[0]))
    record.moved = frozenset(each.container_key for each in record.entries)
    found = list[int]()
    for _ in range(5):
        now_ns, entries = record.next_ns(), reversed(record.entries)
        record.learn(tuple(msgspec.structs.replace(e, at_ns=now_ns + n, uses=(one,)) for n, e in enumerate(entries)))
        found.append(len(node.plugins.gate.refusals.double_allocations()))
        node.passed_s += 9
    assert found == [0, 0, 0, 0, 1]


async def test_a_pod_whose_instance_was_created_in_anothers_place_keeps_the_other_from_nothing(node: Node) -> None:
    """After a reboot the instance of `s`, which came first to its place, has the UUID that `p` was told."""
    before, after = with_uuids("MIG-a", "MIG-b"), with_uuids("MIG-b", "MIG-a")
    await node.offer((before, mig(sevenths()[:2])), how=CDI)
    await node.run("p", SLICE)
    (held,) = (use.device.placement.start for use in node.plugins.gate.record.entries[0].uses if use.device.placement)
    other = next(each.start for each in sevenths()[:2] if each.start != held)
    await node.offer((before, AUTO), how=CDI)
    node.assign("s", 4, seventh(other))
    await node.run("s", NEED, 4)
    await node.plugins.adopt(Inventory(gpus=(after,)))
    with pytest.raises(Conflict, match="of pod default/s uses"):
        await node.kubelet.create("default", "p", "main")
    await node.kubelet.create("default", "s", "main")
    assert node.plugins.gate.refusals.double_allocations() == ()
    node.passed_s += 31
    assert [later.pod for later, _ in node.plugins.gate.refusals.double_allocations()] == ["default/p"]
