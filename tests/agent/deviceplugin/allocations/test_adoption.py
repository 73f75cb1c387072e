"""Pods that run with devices, and that the kubelet's record and the agent's own lack."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders.gpunodes import facts, sevenths
from builders.signed import signed
from harness.pluginnode import CDI, GPU, MEMORY, NEED, SLICE, SLICED, WHOLE, Node, mig, share
from tessera.api.kubernetes.devicecheckpoint import DEVICE_CHECKPOINT
from tessera.clients.kubelet import Container
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import GpuFacts
from tessera.core.gpu.sharing import Sharing
from tessera.core.node.nodesharing import ListStrategy, PluginOptions
from tessera.errors import Conflict, TesseraError
from tessera.measures import Measures

pytestmark = pytest.mark.anyio

REMOVED = "requests units of GPU memory and runs, and the assignment that says of which GPU was removed or replaced"
UNKNOWN = "requests devices and runs, and neither the kubelet's record nor the agent's says what it has"
ALIYUN = "aliyun.com/gpu-mem"
LAYOUT = sevenths()[:3]
CUT = (facts(0, layout=LAYOUT), mig(LAYOUT))


def created(node: Node, name: str, **status: Any) -> None:
    """Let the API server have a container of a pod as created."""
    main = {"name": "main", "containerID": "containerd://1"}
    reported = {"phase": "Running", "containerStatuses": [main], **status}
    node.pods["default", name] = node.watched["default", name] = {**node.pods["default", name], "status": reported}


async def running(node: Node, name: str, resource: str, number: int, count: int = 1) -> Path:
    """Let a pod run; return its process."""
    await node.run(name, resource, count)
    created(node, name)
    return node.process_of(name, number)


async def restarted_without_record(
    node: Node, *pairs: tuple[GpuFacts, Sharing], damaged: bool = False, withheld: int = 0
) -> None:
    """Start an agent without the former one's record; so many devices are not offered by it."""
    await node.kill()
    path = node.root / "allocations.json"
    if damaged:
        path.write_bytes(b"\xff[")
    else:
        path.unlink(missing_ok=True)
    node.plugins, node.impaired = node.started(), withheld > 0
    await node.offer(*pairs, how=CDI, withheld=withheld)


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("checkpoint", [True, False])
async def test_nothing_is_allocated_while_a_pod_runs_that_neither_record_has(
    node: Node, *, checkpoint: bool, damaged: bool
) -> None:
    """Its MIG instance was given to the next pod by name."""
    await node.offer(CUT, how=CDI)
    process = await running(node, "p", SLICE, 200)
    node.kubelet.lose_record()
    if not checkpoint:
        (node.kubelet.plugins / DEVICE_CHECKPOINT).unlink()
    await restarted_without_record(node, CUT, damaged=damaged, withheld=2)
    assert UNKNOWN in node.plugins.problems[-1]
    for _ in range(2):
        for name in ("q", "r", "s"):
            with pytest.raises(TesseraError):
                await node.run(name, SLICE)
        assert node.kubelet.allocatable(SLICE) == 1, "a kubelet that restarts admits p again"
        await node.kill()
        node.plugins = node.started()  # the next agent knows it, too
        await node.offer(CUT, how=CDI, withheld=2)
        assert node.plugins.problems == (f"pod default/p: it {UNKNOWN}: delete it; no device is allocated before",)
    node.end("p")  # by force
    node.passed_s += 3  # a list has precedence over the watch for two seconds
    await node.offer(CUT, how=CDI, withheld=3)
    (why,) = node.plugins.problems
    assert why.startswith("pod uid-p: it was deleted, its processes run")
    (process / "cgroup").unlink()
    process.rmdir()
    await node.plugins.gate.record.clean_up(node.plugins._uses_of)
    await node.offer(CUT, how=CDI)
    assert node.plugins.problems == ()
    await node.run("t", SLICE)


async def test_a_pod_that_was_admitted_before_starts_meanwhile(node: Node) -> None:
    await node.offer(CUT, how=CDI)
    await running(node, "p", SLICE, 200)
    node.kubelet.lose_record()
    node.ask("q", SLICE)
    last = CUT[0].instances[-1].uuid
    await node.kubelet.allocate("default", "q", Container(name="main", limits=((SLICE, 1),)), (last,))
    await restarted_without_record(node, CUT, withheld=1)  # its status is late; a kubelet that restarts admits both
    assert UNKNOWN in node.plugins.problems[-1]
    assert node.kubelet.allocatable(SLICE, begin=last) == 1
    await node.kubelet.create("default", "q", "main")


@pytest.mark.parametrize("blind", [False, True])
async def test_a_share_that_neither_record_has_is_what_its_pod_was_assigned(node: Node, *, blind: bool) -> None:
    pair = facts(0, "T4"), MEMORY
    await node.offer(pair, how=CDI)
    node.assign("p", 12, share(0, 12288))
    process = await running(node, "p", NEED, 200, 12)
    if blind:
        (process / "cgroup").unlink()
        process.rmdir()
        (node.proc / "self/ns/pid").unlink()
    node.kubelet.lose_record()
    await restarted_without_record(node, pair)
    assert node.plugins.problems == ()
    (entry,) = node.plugins.gate.record.entries
    assert [(use.device, use.memory_mib) for use in entry.uses] == [(DeviceId(facts(0, "T4").uuid), 12288)]
    node.assign("q", 12, share(0, 12288))
    with pytest.raises(Conflict, match="more memory than"):
        await node.run("q", NEED, 12)


def process(node: Node, name: str, container: str, *, command: str = "python") -> Path:
    """Let a process run in a pod's container of this id; return what to remove when it ends."""
    number = 500 + sum(1 for _ in node.proc.iterdir())
    folder = node.process_of(name, number)
    uid = node.pods["default", name]["metadata"]["uid"]
    (folder / "cgroup").write_text(f"0::/kubepods/besteffort/pod{uid}/{container:0>64}\n")
    (folder / "comm").write_text(f"{command}\n")
    (folder / "stat").write_text(f"{number} ({command}) S {' '.join(['0'] * 18)} {number} 0\n")
    return folder


def sandboxed(node: Node, name: str, container: str) -> Path:
    """Let a process run in a pod's container of this id, beside the sandbox's; return what to remove when it ends."""
    process(node, name, "a0", command="pause")
    return process(node, name, container)


def created_status(name: str, container: str) -> dict[str, str]:
    """Return the status of a container that was created with this id."""
    return {"name": name, "containerID": f"containerd://{container:0>64}"}


def ended(folder: Path) -> None:
    """Let a process end."""
    for each in folder.iterdir():
        each.unlink()
    folder.rmdir()


def initial(node: Node, *, blind: bool) -> None:
    """Ask for a pod whose init container `init` and `main` have a MIG instance by name."""
    node.node = {"status": {"nodeInfo": {"containerRuntimeVersion": "containerd://2.4.2"}}}
    node.ask("p", SLICE)
    spec = node.pods["default", "p"]["spec"]
    spec["initContainers"] = [{**spec["containers"][0], "name": "init"}]
    if blind:
        (node.proc / "self/ns/pid").unlink(missing_ok=True)


@pytest.mark.parametrize("blind", [False, True])
async def test_nothing_is_allocated_while_an_init_container_runs_that_neither_record_has(
    node: Node, *, blind: bool
) -> None:
    """Its MIG instance was given to the next pod by name."""
    node.hurry(termination_s=0.1)
    await node.offer(CUT, how=CDI)
    initial(node, blind=blind)
    await node.kubelet.admit("default", "p", Container(name="init", limits=((SLICE, 1),)))
    await node.kubelet.create("default", "p", "init")
    init = created_status("init", "a1")
    created(node, "p", containerStatuses=[{"name": "main"}], initContainerStatuses=[init])
    runs = None if blind else sandboxed(node, "p", "a1")
    node.kubelet.lose_record()
    await restarted_without_record(node, CUT, withheld=2)
    assert UNKNOWN in node.plugins.problems[-1]
    with pytest.raises(TesseraError):
        await node.run("q", SLICE)
    # It ends, and the next container has not begun: an image is pulled.
    if runs is None:
        created(node, "p", containerStatuses=[created_status("main", "a2")], initContainerStatuses=[init])
    else:
        ended(runs)
    await node.offer(CUT, how=CDI)
    assert node.plugins.problems == ()
    assert node.plugins.gate.record.entries == (), "what starts later is allocated anew"


@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("lasting", [False, True])
async def test_an_init_container_that_the_kubelet_has_on_record_keeps_what_no_other_container_has(
    node: Node, *, lasting: bool, damaged: bool, blind: bool
) -> None:
    """Its MIG instance counted as nobody's, and could be given to another pod or destroyed."""
    node.hurry(termination_s=0.1)
    await node.offer(CUT, how=CDI)
    initial(node, blind=blind)
    if not lasting:
        node.pods["default", "p"]["spec"]["containers"] = [{"name": "main"}]
    await node.kubelet.admit("default", "p", Container(name="init", limits=((SLICE, 1),)))
    if lasting:
        await node.kubelet.admit("default", "p", Container(name="main", limits=((SLICE, 1),)))
    await node.kubelet.create("default", "p", "init")
    created(node, "p", containerStatuses=[{"name": "main"}], initContainerStatuses=[created_status("init", "a1")])
    if not blind:
        sandboxed(node, "p", "a1")
    allocated = await node.plugins.gate.view.devices_of_all_containers()
    before = {each.container: each.device_ids for each in allocated}
    await restarted_without_record(node, CUT, damaged=damaged)
    assert node.plugins.problems == ()
    found = {each.container: each for each in node.plugins.gate.record.entries}
    assert {name: each.ids for name, each in found.items()} == before
    assert all(len(each.uses) == 1 for each in found.values())
    node.ask("q", SLICE)
    with pytest.raises(TesseraError, match="default/p"):
        await node.kubelet.allocate("default", "q", Container(name="main", limits=((SLICE, 1),)), before["init"])


async def initial_share(node: Node, *, blind: bool) -> Path | None:
    """Let an init container run with 9 GiB of the GPU, of a pod that has no other container with a share."""
    node.assign("p", 9, share(0, 9 << 10))
    spec = node.pods["default", "p"]["spec"]
    spec["initContainers"], spec["containers"] = [{**spec["containers"][0], "name": "init"}], [{"name": "main"}]
    pod = signed(node.pods["default", "p"])
    node.pods["default", "p"] = node.watched["default", "p"] = pod
    await node.kubelet.admit("default", "p", Container(name="init", limits=((NEED, 9),)))
    await node.kubelet.create("default", "p", "init")
    began = {"containerStatuses": [{"name": "main"}], "initContainerStatuses": [created_status("init", "a1")]}
    created(node, "p", phase="Pending", **began)
    if blind:
        (node.proc / "self/ns/pid").unlink(missing_ok=True)
    return None if blind else process(node, "p", "a1")


def annotated(node: Node, name: str, annotations: dict[str, str]) -> dict[str, str]:
    """Replace a pod's annotations; return the former ones."""
    pod = node.pods["default", name]
    changed = {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}
    node.pods["default", name] = node.watched["default", name] = changed
    before: dict[str, str] = pod["metadata"]["annotations"]
    return before


async def started_without_record(node: Node, *pairs: tuple[GpuFacts, Sharing], how: PluginOptions = CDI) -> None:
    """Start an agent without the former one's record, on a node of which something may be unknown."""
    await node.kill()
    (node.root / "allocations.json").unlink()
    node.plugins, node.impaired = node.started(), True
    node.task = asyncio.create_task(node.plugins.run(Measures()))
    assert await node.plugins.offer(node.offered(*pairs), node.inventory, how)


SHARED = (facts(0, "T4"), MEMORY)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("restored", [False, True])
async def test_the_memory_of_an_init_container_whose_assignment_was_removed_is_not_given_again(
    node: Node, *, restored: bool, blind: bool, lost: bool
) -> None:
    """Its units name no device, if the kubelet has them, and no container beside it has a share.

    The node opens when it ends, and at once when its assignment counts again.
    """
    await node.offer(SHARED, how=CDI)
    runs = await initial_share(node, blind=blind)
    former = annotated(node, "p", {})
    if lost:
        node.kubelet.lose_record()
    await started_without_record(node, SHARED)
    await node.kubelet.until_allocatable(NEED, 9)
    assert (UNKNOWN if lost else REMOVED) in node.plugins.problems[-1]
    node.assign("q", 12, share(0, 12 << 10))
    with pytest.raises(TesseraError, match=r"available devices|none is free"):
        await node.kubelet.admit("default", "q", Container(name="main", limits=((NEED, 9),)))
    if restored:
        annotated(node, "p", former)
    else:
        created(node, "p", initContainerStatuses=[{"name": "init", "state": {"terminated": {"exitCode": 0}}}])
        if runs is not None:
            ended(runs)
    await node.offer(SHARED, how=CDI)
    assert node.plugins.problems == ()
    assert [each.uses[0].memory_mib for each in node.plugins.gate.record.entries] == [9 << 10] * restored


@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("how", ["envvar", "volume-mounts", "cdi-cri"])
async def test_the_memory_of_an_init_container_is_not_given_again_though_the_entry_of_its_start_is_unreadable(
    node: Node, *, how: ListStrategy, blind: bool
) -> None:
    """That is the entry of the container after it, and the pod's assignment was removed: its own counted for nothing.

    An answer that names its devices tells what it uses; by CDI the node is closed until it has ended.
    """
    options = PluginOptions(list_strategies=(how,))
    await node.offer(SHARED, how=options)
    node.assign("p", 9, share(0, 9 << 10))
    spec = node.pods["default", "p"]["spec"]
    spec["initContainers"] = [{**spec["containers"][0], "name": "init"}]
    node.pods["default", "p"] = node.watched["default", "p"] = signed(node.pods["default", "p"])
    await node.kubelet.admit("default", "p", Container(name="init", limits=((NEED, 9),)))
    (own,) = await node.plugins.gate.view.devices_of_all_containers()
    await node.kubelet.allocate("default", "p", Container(name="main", limits=((NEED, 9),)), own.device_ids)
    await node.kubelet.create("default", "p", "init")
    began = {"containerStatuses": [{"name": "main"}], "initContainerStatuses": [created_status("init", "a1")]}
    created(node, "p", phase="Pending", **began)
    if blind:
        (node.proc / "self/ns/pid").unlink()
    else:
        sandboxed(node, "p", "a1")
    annotated(node, "p", {})
    await node.kill()
    file = node.root / "allocations.json"
    entries = json.loads(file.read_bytes())
    (start,) = (each for each in entries if each["started"])
    file.write_text(json.dumps([each if each is not start else {**start, "uses": "?"} for each in entries]))
    node.plugins, node.impaired = node.started(), True
    node.task = asyncio.create_task(node.plugins.run(Measures()))
    assert await node.plugins.offer(node.offered(SHARED), node.inventory, options)
    await node.kubelet.until_allocatable(NEED, 9 if how == "cdi-cri" else 15)
    later = Container(name="main", limits=((ALIYUN, 12),))
    node.assign("q", 12, share(0, 12 << 10, resource=ALIYUN), resource=ALIYUN)
    with pytest.raises(TesseraError, match=r"more memory than|available devices|no healthy device"):
        await node.kubelet.admit("default", "q", later)
    for each in node.proc.glob("[0-9]*"):
        ended(each)
    node.end("p")
    node.passed_s += 3  # a list has precedence over the watch for two seconds
    await node.plugins.gate.record.clean_up(node.plugins._uses_of)
    await node.offer(SHARED, how=options)
    assert node.plugins.problems == ()
    await node.kubelet.admit("default", "q", later)
    await node.kubelet.create("default", "q", "main")


async def test_the_memory_of_an_init_container_is_recorded_though_its_assignment_is_removed_later(node: Node) -> None:
    """Only its assignment said what it has, and it was removed while nothing else was known."""
    await node.offer(SHARED, how=CDI)
    await initial_share(node, blind=False)
    await restarted_without_record(node, SHARED)
    annotated(node, "p", {})
    node.assign("q", 12, share(0, 12 << 10, resource=ALIYUN), resource=ALIYUN)
    await node.kubelet.admit("default", "q", Container(name="main", limits=((ALIYUN, 12),)))
    with pytest.raises(Conflict, match="more memory than"):
        await node.kubelet.create("default", "q", "main")


async def test_an_init_container_in_a_new_sandbox_keeps_its_device(node: Node) -> None:
    """The status has the containers of the former one: it seemed to have ended."""
    node.hurry(termination_s=0.1)
    await node.offer(CUT, how=CDI)
    initial(node, blind=False)
    await node.kubelet.admit("default", "p", Container(name="init", limits=((SLICE, 1),)))
    await node.kubelet.create("default", "p", "init")
    former = [created_status("main", "a2")]
    created(node, "p", containerStatuses=former, initContainerStatuses=[created_status("init", "a3")])
    sandboxed(node, "p", "a3")
    (own,) = await node.plugins.gate.view.devices_of_all_containers()
    await restarted_without_record(node, CUT)
    node.kubelet.lose_record()
    node.ask("q", SLICE)
    with pytest.raises(Conflict, match="default/p"):
        await node.kubelet.allocate("default", "q", Container(name="main", limits=((SLICE, 1),)), own.device_ids)


GPUS = ((facts(0, "T4"), WHOLE), (facts(1, "T4"), WHOLE))


@pytest.mark.parametrize("init", [False, True])
@pytest.mark.parametrize("listed", [0, 1])
@pytest.mark.parametrize("again", [False, True])
async def test_a_gpu_that_the_driver_does_not_list_at_first_is_not_given_again(
    node: Node, *, again: bool, listed: int, init: bool
) -> None:
    """Its id is recorded, whatever the driver lists; others are allocated meanwhile, also if it never returns."""
    node.hurry(termination_s=0.1)
    await node.offer(*GPUS, how=CDI)
    node.node = {"status": {"nodeInfo": {"containerRuntimeVersion": "containerd://2.4.2"}}}
    node.ask("p")
    if init:
        spec = node.pods["default", "p"]["spec"]
        spec["initContainers"], spec["containers"] = [{**spec["containers"][0], "name": "init"}], [{"name": "main"}]
    name = "init" if init else "main"
    own = GPUS[1][0].uuid
    await node.kubelet.allocate("default", "p", Container(name=name, limits=((GPU, 1),)), (own,))
    await node.kubelet.create("default", "p", name)
    began = {"containerStatuses": [{"name": "main"}]} | {_STATUSES[init]: [created_status(name, "a1")]}
    created(node, "p", **began)
    sandboxed(node, "p", "a1")
    await restarted_without_record(node, *GPUS[:listed])
    assert node.plugins.problems == ()
    if listed:
        await node.run("q")
    if again:
        await node.kill()
        node.plugins = node.started()
    await node.offer(*GPUS, how=CDI)
    (entry,) = (each for each in node.plugins.gate.record.entries if each.pod == "default/p")
    assert [use.device for use in entry.uses] == [DeviceId(own)]
    node.kubelet.lose_record()
    node.ask("r")
    with pytest.raises(Conflict, match="default/p"):
        await node.kubelet.allocate("default", "r", Container(name="main", limits=((GPU, 1),)), (own,))


_STATUSES = ("containerStatuses", "initContainerStatuses")


@pytest.mark.parametrize("lost", [False, True])
async def test_a_share_of_a_gpu_that_is_not_listed_closes_the_node_until_it_is(node: Node, *, lost: bool) -> None:
    """The driver numbers GPUs anew if one is lost: the share may be on one that is listed by another number."""
    other = (facts(1, "T4"), MEMORY)
    await node.offer(SHARED, other, how=CDI)
    node.assign("p", 9, share(1, 9 << 10))
    await running(node, "p", NEED, 200, 9)
    if lost:
        node.kubelet.lose_record()
    await started_without_record(node, SHARED)
    assert (UNKNOWN if lost else REMOVED) in node.plugins.problems[-1]
    await node.kill()
    node.plugins, node.impaired = node.started(), True
    node.task = asyncio.create_task(node.plugins.run(Measures()))
    assert await node.plugins.offer(node.offered(SHARED), node.inventory, CDI)
    assert (UNKNOWN if lost else REMOVED) in node.plugins.problems[-1]
    await node.offer(SHARED, other, how=CDI)
    assert node.plugins.problems == ()
    (entry,) = node.plugins.gate.record.entries
    assert [(use.device, use.memory_mib) for use in entry.uses] == [(DeviceId(facts(1, "T4").uuid), 9 << 10)]


@pytest.mark.parametrize("how", ["cdi-cri", "envvar", "volume-mounts"])
async def test_a_share_whose_gpu_has_another_number_now_keeps_its_memory(node: Node, how: ListStrategy) -> None:
    """GPU 0 is lost, and the driver numbers GPU 1 as 0."""
    options, other = PluginOptions(list_strategies=(how,)), facts(1, "T4")
    await node.offer(SHARED, (other, MEMORY), how=options)
    node.assign("p", 9, share(1, 9 << 10))
    await running(node, "p", NEED, 200, 9)
    await started_without_record(node, (msgspec.structs.replace(other, index=0), MEMORY), how=options)
    assert REMOVED in node.plugins.problems[-1]


async def test_a_share_of_two_gpus_is_known_when_both_are_listed(node: Node) -> None:
    other = (facts(1, "T4"), MEMORY)
    await node.offer(SHARED, other, how=CDI)
    node.assign("p", 9, share(0, 9 << 10), share(1, 9 << 10))
    (main,) = node.pods["default", "p"]["spec"]["containers"]
    main["resources"]["limits"]["tessera.dev/gpu-count"] = "2"
    node.pods["default", "p"] = node.watched["default", "p"] = signed(node.pods["default", "p"])
    await running(node, "p", NEED, 200, 9)
    await started_without_record(node, SHARED)
    assert [each.uses for each in node.plugins.gate.record.entries] == [()]
    await node.offer(SHARED, other, how=CDI)
    (entry,) = node.plugins.gate.record.entries
    assert [use.device.gpu for use in entry.uses] == [facts(0, "T4").uuid, facts(1, "T4").uuid]


async def test_whether_a_replica_is_by_mps_is_recorded_when_its_gpu_is_listed_again(node: Node) -> None:
    """Before anything else of the GPU is advertised."""
    pair = (facts(0, "T4"), SLICED)
    await node.offer(pair, how=CDI)
    await running(node, "p", GPU, 200)
    await restarted_without_record(node)
    await node.offer(pair, how=CDI)
    (entry,) = node.plugins.gate.record.entries
    assert [(use.device.gpu, use.mps) for use in entry.uses] == [(facts(0, "T4").uuid, False)]


async def test_the_assignment_of_a_later_pod_of_the_same_name_says_nothing_of_the_former(node: Node) -> None:
    await node.offer(SHARED, how=CDI)
    node.assign("p", 9, share(0, 9 << 10))
    await running(node, "p", NEED, 200, 9)
    annotated(node, "p", {})
    await started_without_record(node, SHARED)
    node.assign("p", 4, share(0, 4 << 10))
    pod = node.pods["default", "p"]
    later = signed({**pod, "metadata": {**pod["metadata"], "uid": "uid-later"}})
    node.pods["default", "p"] = node.watched["default", "p"] = later
    node.passed_s += 3
    assert await node.plugins.offer(node.offered(SHARED), node.inventory, CDI)
    assert [each.uses for each in node.plugins.gate.record.entries if each.uid == "uid-p"] == [()]
    assert "pod uid-p" in node.plugins.problems[-1]


@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("began", [False, True])
async def test_a_status_that_is_late_keeps_the_node_closed_until_it_says_more(
    node: Node, *, began: bool, blind: bool
) -> None:
    """The MIG instance of a container that ran already was given to the next pod by name."""
    node.hurry(termination_s=0.1)
    await node.offer(CUT, how=CDI)
    node.node = {"status": {"nodeInfo": {"containerRuntimeVersion": "containerd://2.4.2"}}}
    node.ask("p", SLICE)
    if blind:
        (node.proc / "self/ns/pid").unlink(missing_ok=True)
    runs = None if blind else sandboxed(node, "p", "a1")
    await restarted_without_record(node, CUT, withheld=2)  # a kubelet that restarts admits it
    assert UNKNOWN in node.plugins.problems[-1]
    with pytest.raises(TesseraError):
        await node.run("q", SLICE)
    created(node, "p", containerStatuses=[created_status("main", "a1") if began else {"name": "main"}])
    if runs is not None and not began:
        ended(runs)
    await node.offer(CUT, how=CDI, withheld=2 * began)
    assert bool(node.plugins.problems) is began
    if not began:
        await node.run("p", SLICE)  # as any other
        assert node.plugins.problems == ()


OTHERS = ("it has no process", "it has ended", "no container of it was created", "it asks for no device", "it is known")


@pytest.mark.parametrize("case", OTHERS)
async def test_who_has_no_device_or_does_not_run_closes_nothing(node: Node, case: str) -> None:
    await node.offer((facts(0, "T4"), WHOLE), (facts(1, "T4"), WHOLE), how=CDI)
    node.ask("p", "example.com/other" if case == "it asks for no device" else GPU)
    node.node = {"status": {"nodeInfo": {"containerRuntimeVersion": "containerd://2.4.2"}}}
    if case == "no container of it was created":
        process(node, "p", "a0", command="pause")
    elif case != "it has no process":
        node.process_of("p")
    if case != "no container of it was created":
        created(node, "p", **({"phase": "Succeeded"} if case == "it has ended" else {}))
    uuid = facts(0, "T4").uuid
    if case == "it is known":
        node.kubelet.record("default", "p", Container(name="main", limits=((GPU, 1),)), (uuid,))
    await restarted_without_record(node, (facts(0, "T4"), WHOLE), (facts(1, "T4"), WHOLE))
    assert node.plugins.problems == ()
    assert [each.ids for each in node.plugins.gate.record.entries] == [(uuid,)] * (case == "it is known")


async def test_an_init_container_that_has_ended_is_missed_by_nobody(node: Node) -> None:
    await node.offer((facts(0, "T4"), WHOLE), how=CDI)
    node.ask("p")
    spec = node.pods["default", "p"]["spec"]
    spec["initContainers"] = [{**spec["containers"][0], "name": "init"}]
    spec["containers"] = [{"name": "main"}]
    states = {"containerStatuses": [created_status("main", "a2")]}
    created(node, "p", initContainerStatuses=[created_status("init", "a1")], **states)
    process(node, "p", "a2")
    await restarted_without_record(node, (facts(0, "T4"), WHOLE))
    assert node.plugins.problems == ()


async def test_a_pod_without_a_device_on_a_node_that_never_gave_one_closes_nothing(node: Node) -> None:
    """A kubelet runs a pod with a node's name without the resources that it does not know yet."""
    await node.offer((facts(0, "T4"), WHOLE), how=CDI)
    assert (node.root / "allocations.json").read_bytes() == b"[]"
    node.ask("p", SLICE)
    created(node, "p")
    node.process_of("p")
    await node.kill()
    node.plugins = node.started()
    await node.offer((facts(0, "T4"), WHOLE), how=CDI)
    assert node.plugins.problems == ()
    await node.run("q")


FIRST = [(facts(0, "T4"), WHOLE), (facts(1, "T4"), MEMORY)]
CREATED_AT, STARTED_AT = "2026-01-31T12:00:00Z", "2026-01-31T12:00:30Z"


def registered(*resources: str, created_at: str = CREATED_AT) -> dict[str, Any]:
    """Return a Node on which plugins have registered resources."""
    counts = {"cpu": "8", **dict.fromkeys(resources, "0")}
    return {"metadata": {"creationTimestamp": created_at}, "status": {"capacity": counts, "allocatable": counts}}


@pytest.mark.parametrize("resource", [GPU, NEED, SLICE, "nvidia.com/gpu.shared", "aliyun.com/gpu-mem"])
@pytest.mark.parametrize("others", [False, True])
async def test_a_pod_that_was_on_a_node_before_its_resources_closes_nothing(
    node: Node, resource: str, *, others: bool
) -> None:
    """Any user could keep each new node from being used, by a pod that names it."""
    node.node = registered("example.com/other")
    node.ask("p", resource)
    created(node, "p", startTime=STARTED_AT)
    node.process_of("p")
    if others:
        node.ask("q")
        node.kubelet.record("default", "q", Container(name="main", limits=((GPU, 1),)), (facts(0, "T4").uuid,))
    await restarted_without_record(node, *FIRST)
    assert node.plugins.problems == ()
    assert {each.pod for each in node.plugins.gate.record.entries} == ({"default/q"} if others else set())
    node.assign("r", 12, share(1, 12288))
    await node.run("r", NEED, 12)


ONCE = {
    "its resource was there": registered(SLICE),
    "its Node was created anew": registered(created_at="2026-02-01T12:00:00Z"),
    "there is no Node": {},
}


@pytest.mark.parametrize("case", ONCE)
async def test_a_pod_that_may_have_a_device_closes_a_node_without_any_record(node: Node, case: str) -> None:
    """Also where the GPUNode was deleted, which says nothing about it."""
    node.node = registered()
    await node.offer(CUT, how=CDI)
    await running(node, "p", SLICE, 200)
    created(node, "p", startTime=STARTED_AT)
    node.kubelet.lose_record()
    node.node = ONCE[case]
    await restarted_without_record(node, CUT, withheld=2)
    assert UNKNOWN in node.plugins.problems[-1]
    for name in ("q", "r", "s"):
        with pytest.raises(TesseraError):
            await node.run(name, SLICE)
