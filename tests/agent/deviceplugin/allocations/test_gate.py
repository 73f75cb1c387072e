"""The last gate: no device to two pods, whatever the kubelet has forgotten."""

import asyncio
import json
import os
import shutil
from collections.abc import Callable

import pytest

from builders.gpunodes import facts, sevenths
from harness.pluginnode import CDI, GPU, MEMORY, NEED, SLICE, WHOLE, Node, mig, share
from tessera.agent.deviceplugin.allocations import gate
from tessera.clients.gpu import MemoryDriver
from tessera.clients.kubelet import Container
from tessera.core.deviceplugin.allocations.allocateddevices import devices_by_name
from tessera.core.gpu.deviceids import DeviceId
from tessera.errors import Conflict, Unavailable, Unsupported

pytestmark = pytest.mark.anyio


async def test_a_container_that_restarts_is_as_old_as_before_and_the_next_is_younger(node: Node) -> None:
    """Of two with one device the younger gives way."""

    def ages() -> list[tuple[str, int]]:
        found = sorted((each.at_ns, each.pod) for each in node.plugins.gate.record.entries)
        assert len({at_ns for at_ns, _ in found}) == len(found)
        return [(pod, at_ns) for at_ns, pod in found]

    await node.offer((facts(0), WHOLE), (facts(1), WHOLE))
    for name in "pq":
        await node.run(name)
    before = ages()
    assert [pod for pod, _ in before] == ["default/p", "default/q"]
    await node.kubelet.create("default", "p", "main")
    assert ages() == before


async def test_a_device_that_the_kubelet_forgot_is_not_given_to_a_second_pod(node: Node) -> None:
    layout = sevenths()[:2]
    gpu = facts(0, layout=layout)
    await node.offer((gpu, mig(layout)))
    first = dict((await node.run("p", SLICE)).env)["NVIDIA_VISIBLE_DEVICES"]
    node.kubelet.forgotten.add(first)
    second = dict((await node.run("q", SLICE)).env)["NVIDIA_VISIBLE_DEVICES"]
    assert {first, second} == {each.uuid for each in gpu.instances}, "steered round the one that is in use"
    node.kubelet.forgotten.add(first)
    with pytest.raises(Conflict, match=f"container main of pod default/p uses device {first} of {SLICE}"):
        await node.run("r", SLICE)
    node.end("q")
    assert dict((await node.run("s", SLICE)).env)["NVIDIA_VISIBLE_DEVICES"] == second, "the refusal healed the kubelet"


async def test_what_is_admitted_again_while_processes_are_read_is_not_forgotten(node: Node) -> None:
    """By the time the kubelet's record has it the container may run, and its device is not to be another's."""
    layout = sevenths()[:2]
    await node.offer((facts(0, layout=layout), mig(layout)))
    await node.run("p", SLICE)
    record = node.plugins.gate.record
    (before,) = record.entries
    node.kubelet.lose_record()
    pipe = node.proc / "200/cgroup"
    pipe.parent.mkdir()
    os.mkfifo(pipe)
    reading = asyncio.create_task(node.plugins.gate.forget_former())
    with await asyncio.to_thread(pipe.open, "w"):  # as soon as it is read
        node.kubelet.record("default", "p", Container(name="main", limits=((SLICE, 1),)), before.ids)
    await reading
    assert record.entries == (before,)


async def test_units_that_the_kubelet_forgot_are_not_given_twice(node: Node) -> None:
    await node.offer((facts(0, "T4"), MEMORY), how=CDI)
    for name in ("p", "q", "r"):
        node.assign(name, 5, share(0, 5120))
    await node.run("p", NEED, 5)
    node.kubelet.forgotten |= node.plugins.gate.record.allocated_ids(NEED)
    await node.run("q", NEED, 5)
    ids = [set(each.device_ids) for each in await node.record.list()]
    assert len(ids[0] | ids[1]) == 10
    node.kubelet.forgotten |= node.plugins.gate.record.allocated_ids(NEED)
    await node.run("r", NEED, 5)


@pytest.mark.parametrize("late", [False, True], ids=["shown", "not shown yet"])
async def test_a_pod_that_is_deleted_by_force_keeps_its_device_until_its_last_process_ends(
    node: Node, late: bool
) -> None:
    await node.offer((facts(0, "T4"), WHOLE))
    await node.run("p")
    process = node.process_of("p")
    shown = node.watched["default", "p"]
    node.version += 5
    node.end("p")
    if late:  # the kubelet knows it before the agent's watch does, and the next pod is not to fail for that
        node.watched["default", "p"] = shown
    await node.kubelet.admit("default", "q", Container(name="main", limits=((GPU, 1),)))
    node.ask("q")
    creating = asyncio.ensure_future(node.kubelet.create("default", "q", "main"))
    await asyncio.wait([creating], timeout=0.3)
    assert not creating.done()
    (process / "cgroup").unlink()
    process.rmdir()
    assert dict((await creating).env)["NVIDIA_VISIBLE_DEVICES"] == facts(0).uuid


def left(node: Node) -> list[tuple[DeviceId, str]]:
    return [(each.device, each.reason) for each in node.plugins.gate.refusals.devices_of_orphans]


REMEDY = ": end them, or restart the node; no device is allocated before"
SPOILED: dict[str, Callable[[bytes], bytes]] = {
    "of a version to come": lambda content: content.replace(b'"version":1', b'"version":2'),
    "torn": lambda content: content[:-9],
}


@pytest.mark.parametrize("restarts", [1, 2])
@pytest.mark.parametrize("case", SPOILED)
async def test_where_the_record_is_spoiled_nobody_starts_beside_a_pod_that_was_deleted_by_force(
    node: Node, case: str, restarts: int
) -> None:
    """While no agent ran it was deleted; only its processes tell that it has a device, and nothing tells which.

    A further agent starts from the record that the first one wrote, and from the damaged file that it kept. Nothing
    more is offered meanwhile: each pod that is sent here would wait. One that was sent before is evicted.
    """
    node.impaired = True
    gpus = tuple((facts(number), WHOLE) for number in range(3))
    await node.offer(*gpus)
    await node.run("ended")
    await node.run("kept")
    node.ask("next")
    await node.kubelet.admit("default", "next", Container(name="main", limits=((GPU, 1),)))
    processes = {name: node.process_of(name, number) for number, name in enumerate(("ended", "kept"), 100)}
    await node.kill()
    file = node.root / "allocations.json"
    file.write_bytes(SPOILED[case](file.read_bytes()))
    node.end("ended")
    for number in range(restarts):
        if number:
            await node.kill()
        node.plugins = node.started()
        await node.offer(*gpus, withheld=1)
        await node.plugins._clean_up_record_and_shares()  # takes in what the living one has
    why = "pod uid-ended was deleted, its processes run, and the record of what it uses was unreadable"
    (problem,) = node.plugins.problems
    assert problem == why.replace("ended was", "ended: it was") + REMEDY
    for blocked in ({}, {"uid-next": ("default/next", why)}):
        with pytest.raises(Conflict, match=why):
            await node.kubelet.create("default", "next", "main")
        assert node.plugins.gate.refusals.blocked_pods() == blocked
        node.passed_s += 61
    shutil.rmtree(processes["ended"])
    await node.kubelet.create("default", "next", "main")
    assert node.plugins.gate.refusals.blocked_pods() == {}
    assert not node.plugins.problems
    await node.offer(*gpus)
    await node.run("free")
    node.end("kept")
    with pytest.raises(Conflict, match="container main of pod default/kept uses device"):
        await node.run("last")


@pytest.mark.parametrize("restarts", [1, 2])
async def test_a_pod_of_which_one_entry_was_spoiled_is_not_known_by_another(node: Node, restarts: int) -> None:
    """Its two containers have a GPU each; it was deleted by force while no agent ran."""
    node.impaired = True
    gpus = tuple((facts(number), WHOLE) for number in range(3))
    await node.offer(*gpus)
    node.ask("p")
    spec = node.pods["default", "p"]["spec"]
    spec["containers"].append({**spec["containers"][0], "name": "second"})
    await node.kubelet.admit("default", "p", *(Container(name=n, limits=((GPU, 1),)) for n in ("main", "second")))
    for name in ("main", "second"):
        await node.kubelet.create("default", "p", name)
    process = node.process_of("p")
    node.ask("q")
    await node.kubelet.admit("default", "q", Container(name="main", limits=((GPU, 1),)))
    await node.kill()
    file = node.root / "allocations.json"
    entries = json.loads(file.read_bytes())
    next(each for each in entries if each["container"] == "second")["uses"] = "?"
    file.write_text(json.dumps(entries))
    node.end("p")
    for number in range(restarts):
        if number:
            await node.kill()
        node.plugins = node.started()
        await node.offer(*gpus, withheld=1)
    with pytest.raises(Conflict, match="pod uid-p was deleted, its processes run, and the record of what it uses"):
        await node.kubelet.create("default", "q", "main")
    shutil.rmtree(process)
    await node.kubelet.create("default", "q", "main")


async def test_a_pod_that_lived_when_its_entry_was_found_spoiled_is_known_from_then_on(node: Node) -> None:
    node.impaired = True
    node.hurry(termination_s=0.0)
    gpus = tuple((facts(number), WHOLE) for number in range(2))
    await node.offer(*gpus)
    had = dict((await node.run("p")).env)["NVIDIA_VISIBLE_DEVICES"]
    node.process_of("p")
    await node.kill()
    file = node.root / "allocations.json"
    file.write_bytes(file.read_bytes().replace(b'"version":1', b'"version":2'))
    node.plugins = node.started()
    await node.offer(*gpus)
    await node.kill()
    node.end("p")  # by force, while no agent runs
    node.plugins = node.started()
    await node.offer(*gpus)
    assert dict((await node.run("q")).env)["NVIDIA_VISIBLE_DEVICES"] != had
    with pytest.raises(Conflict, match="container main of pod default/p uses device"):
        await node.run("r")


async def test_a_late_watch_hides_no_process_of_a_pod_that_was_deleted(node: Node) -> None:
    """The watch still shows it; only a list says that it is gone."""
    node.hurry(termination_s=0.0)
    node.driver = MemoryDriver((facts(0),))
    await node.offer((facts(0), WHOLE))
    node.ask("old")
    node.process_of("old")
    node.driver.start_process(facts(0).uuid, 100)
    del node.pods["default", "old"]
    with pytest.raises(Conflict, match="process 100 of pod uid-old, which has ended, uses GPU"):
        await node.run("p")


@pytest.mark.parametrize("content", [None, b""], ids=["missing", "emptied"])
async def test_without_the_record_the_driver_tells_what_a_pod_has_that_was_deleted_by_force(
    node: Node, content: bytes | None
) -> None:
    node.hurry(termination_s=0.2)
    node.impaired = True
    gpus = (facts(0), WHOLE), (facts(1), WHOLE)
    node.driver = MemoryDriver((facts(0), facts(1)))
    await node.offer(*gpus)
    had = dict((await node.run("p")).env)["NVIDIA_VISIBLE_DEVICES"]
    process = node.process_of("p")
    node.driver.start_process(had, 100)
    await node.kill()
    (node.root / "allocations.json").unlink()
    if content is not None:
        (node.root / "allocations.json").write_bytes(content)
    node.end("p")
    node.plugins = node.started()
    await node.offer(*gpus)
    told = f"process 100 of pod uid-p, which has ended, uses GPU {had}"
    for name in ("q", "r"):
        node.ask(name)
    await node.kubelet.allocate("default", "q", Container(name="main", limits=((GPU, 1),)), (had,))
    with pytest.raises(Conflict, match=told):
        await node.kubelet.create("default", "q", "main")
    assert left(node) == [(DeviceId(had), "pod uid-p is deleted, and its processes still use it")]
    await node.run("r")
    await node.kill()
    node.plugins = node.started()  # it is on record by now
    node.driver = MemoryDriver(())
    await node.offer(*gpus)
    with pytest.raises(Conflict, match=told):
        await node.kubelet.create("default", "q", "main")
    shutil.rmtree(process)
    assert dict((await node.kubelet.create("default", "q", "main")).env)["NVIDIA_VISIBLE_DEVICES"] == had
    assert not left(node)


@pytest.mark.parametrize("whose", ["own", "living", "zombie", "of no pod", "ended meanwhile", "unseen"])
async def test_processes_that_take_no_device_from_anybody_keep_none_busy(node: Node, whose: str) -> None:
    node.driver = MemoryDriver((facts(0),))
    await node.offer((facts(0), WHOLE))
    for name in ("p", "monitor", "old"):
        node.ask(name)
    process = node.process_of({"own": "p", "living": "monitor"}.get(whose, "old"))
    node.end("old")
    node.driver.start_process(facts(0).uuid, 100)
    if whose == "zombie":
        (process / "stat").write_text("100 (a b) c) Z 1 1 1 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 7\n")
    elif whose == "of no pod":
        (process / "cgroup").write_text("0::/system.slice/nvidia-persistenced.service\n")
    elif whose == "ended meanwhile":
        shutil.rmtree(process)
    elif whose == "unseen":
        node.driver = MemoryDriver(())
    await node.run("p")


async def test_a_pod_that_lives_after_all_keeps_nothing_busy(node: Node) -> None:
    """As a static pod with a monitor in it, whose mirror was deleted."""
    node.hurry(termination_s=0.0)
    node.driver = MemoryDriver((facts(0),))
    await node.offer((facts(0), WHOLE))
    node.ask("monitor")
    node.process_of("monitor")
    node.driver.start_process(facts(0).uuid, 100)
    shown = node.pods["default", "monitor"]
    node.end("monitor")
    with pytest.raises(Conflict, match="process 100 of pod uid-monitor, which has ended"):
        await node.run("p")
    shown["metadata"]["resourceVersion"] = str(node.version + 1)
    node.pods["default", "monitor"] = node.watched["default", "monitor"] = shown
    await node.plugins._clean_up_record_and_shares()
    await node.kubelet.create("default", "p", "main")


async def test_a_driver_that_lists_no_processes_stops_nobody_and_a_silent_one_is_asked_again(node: Node) -> None:
    node.driver = MemoryDriver((facts(0),))
    await node.offer((facts(0), WHOLE))
    node.driver.fail("processes", Unavailable("GPU 0", found="silence", expected="an answer"))
    with pytest.raises(Conflict, match="GPU 0: silence"):
        await node.run("p")
    node.driver.fail("processes", Unsupported("GPU 0", found="no list of processes", expected="one"))
    await node.kubelet.create("default", "p", "main")
    node.driver.fail("processes", Unavailable("GPU 0", found="silence", expected="an answer"))
    await node.kubelet.create("default", "p", "main")  # it was started before: nothing is asked


async def test_a_pod_s_first_thread_may_end_before_its_others(node: Node) -> None:
    node.hurry(termination_s=0.0)
    node.driver = MemoryDriver((facts(0),))
    await node.offer((facts(0), WHOLE))
    node.ask("old")
    (node.process_of("old") / "stat").write_text("100 (x) Z 1 1 1 0 -1 4 0 0 0 0 0 0 0 0 20 0 3 0 7\n")
    node.end("old")
    node.driver.start_process(facts(0).uuid, 100)
    with pytest.raises(Conflict, match="process 100 of pod uid-old, which has ended, uses GPU"):
        await node.run("p")


async def test_while_nobody_tells_whether_a_process_s_pod_has_ended_its_device_waits(node: Node) -> None:
    node.driver = MemoryDriver((facts(0),))
    await node.offer((facts(0), WHOLE))
    node.ask("old")
    node.process_of("old")
    node.driver.start_process(facts(0).uuid, 100)
    shown = node.watched.pop(("default", "old"))
    node.ask("p")
    await node.kubelet.admit("default", "p", Container(name="main", limits=((GPU, 1),)))
    node.silent = True
    with pytest.raises(Conflict, match="the API server does not say whether their pods have ended"):
        await node.kubelet.create("default", "p", "main")
    node.silent = False
    assert shown["metadata"]["uid"] == "uid-old"
    await node.kubelet.create("default", "p", "main")  # it lives: the watch is late


async def test_processes_that_do_not_end_keep_the_device(node: Node) -> None:
    node.hurry(termination_s=0.2)
    await node.offer((facts(0, "T4"), WHOLE))
    await node.run("p")
    node.process_of("p")
    node.end("p")
    assert not left(node), "nobody came for it yet"
    with pytest.raises(Conflict, match="of pod default/p"):
        await node.run("q")
    ((device, reason),) = left(node)
    assert (device, "pod default/p is deleted" in reason) == (DeviceId(facts(0).uuid), True)


async def test_a_container_that_starts_again_passes(node: Node) -> None:
    await node.offer((facts(0, "T4"), WHOLE))
    first = await node.run("p")
    node.process_of("p")
    assert await node.kubelet.create("default", "p", "main") == first


async def test_a_container_is_given_what_its_pod_s_init_container_had(node: Node) -> None:
    await node.offer((facts(0, "T4"), WHOLE))
    node.ask("p")
    containers = node.pods["default", "p"]["spec"]
    containers["initContainers"] = [{**containers["containers"][0], "name": "init"}]
    for name in ("init", "main"):
        await node.kubelet.allocate("default", "p", Container(name=name, limits=((GPU, 1),)), (facts(0).uuid,))
    for name in ("init", "main"):
        assert dict((await node.kubelet.create("default", "p", name)).env)["NVIDIA_VISIBLE_DEVICES"] == facts(0).uuid
    node.ask("q")
    with pytest.raises(Conflict, match="of pod default/p"):
        await node.kubelet.allocate("default", "q", Container(name="main", limits=((GPU, 1),)), (facts(0).uuid,))


@pytest.mark.usefixtures("soon")
async def test_a_container_starts_again_though_its_device_is_offered_no_more(node: Node) -> None:
    """As after a policy that has fewer replicas, other names, or another mode."""
    both = facts(0, "T4"), facts(1, "T4")
    await node.offer(*((each, WHOLE) for each in both))
    first = await node.run("p")
    own = dict(first.env)["NVIDIA_VISIBLE_DEVICES"]
    await node.offer(*((each, MEMORY if each.uuid == own else WHOLE) for each in both))
    assert await node.kubelet.create("default", "p", "main") == first
    await node.offer(*((each, MEMORY) for each in both))
    await node.kubelet.until_capacity(GPU, 0)
    assert await node.kubelet.create("default", "p", "main") == first


async def test_a_static_pod_is_known_by_the_uid_that_the_kubelet_gives_it(node: Node) -> None:
    await node.offer((facts(0, "T4"), WHOLE))
    node.ask("static")
    metadata = node.pods["default", "static"]["metadata"]
    metadata["annotations"] = {"kubernetes.io/config.mirror": "hash-of-the-file"}
    await node.kubelet.admit("default", "static", Container(name="main", limits=((GPU, 1),)), uid="hash-of-the-file")
    assert dict((await node.kubelet.create("default", "static", "main")).env)["NVIDIA_VISIBLE_DEVICES"] == facts(0).uuid
    assert [each.pod for each in node.plugins.gate.record.entries] == ["default/static"]


async def test_a_static_pod_that_the_api_server_does_not_have_is_refused_with_that_reason(node: Node) -> None:
    node.hurry(termination_s=0.0)
    await node.offer((facts(0, "T4"), WHOLE))
    await node.kubelet.admit("default", "static", Container(name="main", limits=((GPU, 1),)), uid="hash-of-the-file")
    with pytest.raises(Conflict, match="the API server does not have pod hash-of-the-file, for which the kubelet's"):
        await node.kubelet.create("default", "static", "main")


async def test_what_lies_across_a_device_in_use_is_not_preferred(node: Node) -> None:
    """A GPU that a pod has as a whole, and that was cut behind its back: the kubelet knows no instance to be taken."""
    await node.offer((facts(0), WHOLE), (facts(1), WHOLE))
    got = dict((await node.run("p")).env)["NVIDIA_VISIBLE_DEVICES"]
    layout = sevenths()[:1]
    await node.offer((facts(0, layout=layout), mig(layout)), (facts(1, layout=layout), mig(layout)))
    response = dict((await node.run("q", SLICE)).env)["NVIDIA_VISIBLE_DEVICES"]
    (other,) = (facts(i, layout=layout) for i in (0, 1) if facts(i).uuid != got)
    assert response == other.instances[0].uuid


async def test_the_pod_that_was_made_later_gives_way(node: Node) -> None:
    await node.offer((facts(0, "T4"), WHOLE))
    for name, made in (("a", "2026-01-31T12:00:09Z"), ("z", "2026-01-31T12:00:00Z")):
        node.ask(name)
        node.pods["default", name]["metadata"]["creationTimestamp"] = made
        node.kubelet.record("default", name, Container(name="main", limits=((GPU, 1),)), (facts(0).uuid,))
    await node.plugins.gate.record.clean_up(node.plugins._uses_of)
    ((later, _),) = node.plugins.gate.refusals.double_allocations()
    assert later.pod == "default/a"


async def test_a_pod_that_ended_while_the_watch_is_late_delays_no_start(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server's list says so at once; a wait would be longer than this test may take."""
    monkeypatch.setattr(gate, "_RETRY_S", 600.0)
    await node.offer((facts(0, "T4"), WHOLE))
    for name in ("ended", "new"):
        node.ask(name)
        node.kubelet.record("default", name, Container(name="main", limits=((GPU, 1),)), (facts(0).uuid,))
    del node.pods["default", "ended"]
    node.version += 1
    async with asyncio.timeout(60):
        holder = await node.plugins.gate.holder(GPU, (facts(0).uuid,))
    assert holder.pod == "default/new"


async def test_where_the_checkpoint_cannot_be_read_the_kubelet_is_asked_about_each_pod(node: Node) -> None:
    await node.offer((facts(0, "T4"), WHOLE))
    node.ask("p")
    await node.kubelet.admit("default", "p", Container(name="main", limits=((GPU, 1),)))
    (node.kubelet.plugins / "kubelet_internal_checkpoint").write_bytes(b"\xff{")
    assert dict((await node.kubelet.create("default", "p", "main")).env)["NVIDIA_VISIBLE_DEVICES"] == facts(0).uuid
    assert [each.pod for each in node.plugins.gate.record.entries] == ["default/p"]


async def test_where_no_processes_can_be_seen_a_pod_has_its_device_until_the_api_server_shows_its_end(
    node: Node,
) -> None:
    """The kubelet forgets a pod that runs, and its record is written anew (docs/kubelet-races.md)."""
    (node.proc / "self/ns/pid").unlink()
    await node.offer((facts(0, "T4"), WHOLE))
    await node.run("p")
    node.kubelet.remove("default", "p")
    node.ask("q")
    with pytest.raises(Conflict, match="of pod default/p"):
        await node.kubelet.admit("default", "q", Container(name="main", limits=((GPU, 1),)))
    assert devices_by_name(node.plugins.gate.record.allocated) == {DeviceId(facts(0, "T4").uuid)}
    del node.watched["default", "p"]
    node.plugins.gate.record.release()
    assert devices_by_name(node.plugins.gate.record.allocated) == {DeviceId(facts(0, "T4").uuid)}, (
        "the watch may be late"
    )
    del node.pods["default", "p"]
    node.version += 1
    await node.plugins.gate.record.clean_up(node.plugins._uses_of)
    assert devices_by_name(node.plugins.gate.record.allocated) == frozenset()
    await node.kubelet.admit("default", "q", Container(name="main", limits=((GPU, 1),)))


async def test_a_pod_that_runs_uses_its_memory_though_its_assignment_went_while_no_agent_ran(node: Node) -> None:
    """Its tenant deletes the annotations; an agent that starts then has its own record alone to go by."""
    await node.offer((facts(0, "T4"), MEMORY), (facts(1, "T4"), MEMORY))
    node.assign("p", 8, share(0, 8192))
    await node.run("p", NEED, 8)
    node.process_of("p")
    node.pods["default", "p"]["metadata"]["annotations"].clear()
    await node.kill()
    node.plugins = node.started()
    await node.offer((facts(0, "T4"), MEMORY), (facts(1, "T4"), MEMORY))
    node.assign("q", 10, share(0, 10240))
    with pytest.raises(Conflict, match="more memory than"):
        await node.kubelet.admit("default", "q", Container(name="main", limits=((NEED, 10),)))
