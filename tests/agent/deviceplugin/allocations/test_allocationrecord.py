"""The agent's own record of allocations: kept over restarts, tidied, never exceeded."""

import contextlib
import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from builders.gpunodes import facts, sevenths
from harness.pluginnode import CDI, GPU, MEMORY, MPS, NEED, SLICE, SLICED, WHOLE, Node, mig, share
from tessera.api.kubernetes.devicecheckpoint import DEVICE_CHECKPOINT
from tessera.clients.kubelet import Container
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, without_other_forms
from tessera.core.deviceplugin.allocations.allocateddevices import clients_by_mps, devices_by_name, devices_without_mps
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.node.nodesharing import PluginOptions
from tessera.errors import Conflict, Unavailable

pytestmark = pytest.mark.anyio


async def test_the_record_holds_over_a_restart_of_the_agent(node: Node) -> None:
    pairs = (facts(0, "T4"), WHOLE)
    await node.offer(pairs)
    await node.run("p")
    await node.kill()
    node.plugins = node.started()
    node.kubelet.forgotten.add(facts(0).uuid)
    await node.offer(pairs)
    with pytest.raises(Conflict, match="of pod default/p"):
        await node.run("q")


async def test_what_pods_had_before_there_was_a_record_is_taken_in(node: Node) -> None:
    pairs = (facts(0, "T4"), WHOLE), (facts(1), MEMORY)
    await node.offer(*pairs, how=CDI)
    node.assign("share", 2, share(1, 2048))
    await node.run("p")
    await node.run("share", NEED, 2)
    await node.kill()
    (node.root / "allocations.json").unlink()
    node.plugins = node.started()
    await node.offer(*pairs, how=CDI)
    assert sorted(each.pod for each in node.plugins.gate.record.entries) == ["default/p", "default/share"]
    node.kubelet.forgotten.add(facts(0).uuid)
    with pytest.raises(Conflict, match="of pod default/p"):
        await node.run("q")


FORMER = sorted((Path(__file__).parents[3] / "data" / "agentstate" / "allocations").iterdir())
TURNS = facts(1).uuid


def of_an_earlier_agent(node: Node, path: Path) -> None:
    """Give a node the record of an earlier agent, and a pod that takes turns on a GPU, which the kubelet has, too."""
    text = path.read_text().replace("GPU-00000001", TURNS).replace("ns/", "default/")
    (node.root / "allocations.json").write_text(text)
    node.ask("turns")
    pod = node.pods["default", "turns"]
    main = {"name": "main", "containerID": "containerd://a"}
    pod |= {"status": {"phase": "Running", "containerStatuses": [main]}}
    node.process_of("turns")
    container = Container(name="main", limits=((GPU, 1),))
    node.kubelet.record("default", "turns", container, (f"{TURNS}::0",))
    node.plugins = node.started()


@pytest.mark.parametrize("path", FORMER, ids=lambda path: path.stem)
async def test_a_replica_that_an_earlier_agent_gave_is_nobody_elses(node: Node, path: Path) -> None:
    """Neither under its id, nor in another form, nor by a daemon under which it could start nothing more."""
    of_an_earlier_agent(node, path)
    await node.offer((facts(1), SLICED))
    record = node.plugins.gate.record
    assert DeviceId(TURNS) in devices_without_mps(record.allocated)
    kept, (reason,) = without_other_forms(node.offered((facts(1), MPS)), record.allocated)
    assert [device.id for each in kept.resources for device in each.devices] == [f"{TURNS}::0"]
    assert "container main of pod default/turns still uses it in another form than the present nvidia.com/gpu" in reason
    node.kubelet.forgotten.add(f"{TURNS}::0")
    for number in range(3):
        await node.run(f"q{number}")
    with pytest.raises(Conflict, match="of pod default/turns"):
        await node.run("r")


async def test_a_client_of_mps_of_an_earlier_agent_goes_on_as_one(node: Node) -> None:
    daemon = node.root / "mps" / TURNS / "daemon.json"
    daemon.parent.mkdir(parents=True)
    daemon.write_text("{}")
    of_an_earlier_agent(node, FORMER[0])
    await node.offer((facts(1), MPS))
    record = node.plugins.gate.record
    assert devices_without_mps(record.allocated) == frozenset()
    assert without_other_forms(node.offered((facts(1), MPS)), record.allocated)[1] == ()


async def test_more_replicas_by_mps_come_when_the_pods_with_larger_ones_have_ended(node: Node) -> None:
    """Four quarters beside two halves would be more memory than there is; and no process may lose half of its own."""
    gpu = facts(1, "T4")
    halves, quarters = (Sharing(modes=(Mode.MPS,), replicas=(("", number),)) for number in (2, 4))
    await node.offer((gpu, halves))
    for name in "ab":
        assert dict((await node.run(name)).env)["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=7680M"
    await node.kill()
    node.plugins = node.started()
    await node.offer((gpu, halves))
    record = node.plugins.gate.record
    assert clients_by_mps(record.allocated) == {DeviceId(gpu.uuid): 2}
    kept, (reason,) = without_other_forms(node.offered((gpu, quarters)), record.allocated)
    assert [device.id for each in kept.resources for device in each.devices] == [f"{gpu.uuid}::{i}" for i in range(2)]
    assert "of pod default/a still uses it in another form than the present nvidia.com/gpu" in reason
    await node.offer((gpu, quarters))  # as where a pod was admitted in the last moment
    with pytest.raises(Conflict, match="container main of pod default/a uses GPU"):
        await node.run("c")
    node.version += 1
    for name in "ab":
        node.end(name)
    assert dict((await node.run("d")).env)["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=3840M"


async def upgraded(node: Node, *names: str) -> None:
    """Let another agent start, whose record an agent wrote that did not know these fields."""
    await node.kill()
    path = node.root / "allocations.json"
    entries = json.loads(path.read_bytes())
    for each in (*entries, *(use for entry in entries for use in entry["uses"])):
        for name in names:
            each.pop(name, None)
    path.write_text(json.dumps(entries))
    node.plugins = node.started()


@pytest.mark.parametrize("count", [1, 2])
async def test_replicas_by_mps_of_an_earlier_agent_are_as_large_as_their_containers_were_told(
    node: Node, count: int
) -> None:
    gpu = facts(1, "T4")
    quarters = Sharing(modes=(Mode.MPS,), replicas=(("", 4),), single_request=False)
    eighths = msgspec.structs.replace(quarters, replicas=(("", 8),))
    await node.offer((gpu, quarters))
    await node.run("a", count=count)
    await upgraded(node, "clients", "mps", "answer_known")
    await node.offer((gpu, quarters))
    record = node.plugins.gate.record
    assert clients_by_mps(record.allocated) == {DeviceId(gpu.uuid): 4}
    _, (reason,) = without_other_forms(node.offered((gpu, eighths)), record.allocated)
    assert "of pod default/a still uses it in another form" in reason
    await node.offer((gpu, eighths))
    with pytest.raises(Conflict, match="container main of pod default/a uses GPU"):
        await node.run("c")


async def test_a_container_that_an_earlier_agent_told_an_index_is_held_to_it(node: Node) -> None:
    how, layout = PluginOptions(id_strategy="index"), sevenths()[:3]
    gpu = facts(0, layout=layout)
    await node.offer((gpu, mig(layout)), how=how)
    answers = {name: await node.run(name, SLICE) for name in "pqr"}
    told = {dict(each.env)["NVIDIA_VISIBLE_DEVICES"]: name for name, each in answers.items()}
    await upgraded(node, "indices", "answer_known")
    await node.offer((gpu, mig(layout)), how=how)
    node.end(told["0:0"])
    left = msgspec.structs.replace(gpu, instances=gpu.instances[1:])
    await node.offer((left, mig(layout[1:])), how=how)
    with pytest.raises(Conflict, match="it was allocated the devices of index 0:1, which now have index 0:0"):
        await node.kubelet.create("default", told["0:1"], "main")


async def test_a_container_that_an_earlier_agent_told_an_index_and_this_one_starts_is_held_to_it(node: Node) -> None:
    """Its image was pulled while the agent was upgraded: no pod was known of the answer then."""
    how, layout = PluginOptions(id_strategy="index"), sevenths()[:2]
    gpu = facts(0, layout=layout)
    await node.offer((gpu, mig(layout)), how=how)
    for name in "pq":
        node.ask(name, SLICE)
        await node.kubelet.admit("default", name, Container(name="main", limits=((SLICE, 1),)))
    await upgraded(node, "indices", "answer_known")
    await node.offer((gpu, mig(layout)), how=how)
    told = {}
    for name in "pq":
        answer = await node.kubelet.create("default", name, "main")
        told[dict(answer.env)["NVIDIA_VISIBLE_DEVICES"]] = name
        assert len(devices_by_name(node.plugins.gate.record.allocated)) == 2, "the other's device stays its own"
    node.end(told["0:0"])
    left = msgspec.structs.replace(gpu, instances=gpu.instances[1:])
    await node.offer((left, mig(layout[1:])), how=how)
    with pytest.raises(Conflict, match="it was allocated the devices of index 0:1, which now have index 0:0"):
        await node.kubelet.create("default", told["0:1"], "main")


@pytest.mark.parametrize("first", ["the driver shows no GPU", "a torn checkpoint", "another plugin's answer"])
async def test_what_an_earlier_agent_answered_is_found_by_a_later_pass(node: Node, first: str) -> None:
    gpu = facts(0, "T4")
    await node.offer((gpu, MPS))
    await node.run("p")
    await upgraded(node, "clients", "answer_known")
    checkpoint = node.kubelet.plugins / DEVICE_CHECKPOINT
    kept = checkpoint.read_bytes()
    odd = {"PodUID": "u", "ContainerName": "c", "ResourceName": "o/r", "DeviceIDs": {"-1": ["a"]}, "AllocResp": "?"}
    match first:
        case "the driver shows no GPU":
            await node.plugins.adopt(Inventory(gpus=()))
        case "a torn checkpoint":
            checkpoint.write_bytes(kept[: len(kept) // 2])
            await node.offer((gpu, MPS))
            with pytest.raises(Conflict, match="the kubelet's checkpoint does not tell it now: the kubelet retries"):
                await node.kubelet.create("default", "p", "main")
            checkpoint.write_bytes(kept)
        case _:
            file = json.loads(kept)
            file["Data"]["PodDeviceEntries"].insert(0, odd)
            checkpoint.write_text(json.dumps(file))
    await node.offer((gpu, MPS))
    await node.plugins.gate.record.clean_up(node.plugins._uses_of)
    assert clients_by_mps(node.plugins.gate.record.allocated) == {DeviceId(gpu.uuid): 4}
    assert node.plugins.gate.refusals.blocked_pods() == {}


async def test_a_share_that_an_earlier_agent_named_by_uuid_is_held_to_it(node: Node) -> None:
    layout = sevenths()[:2]
    gpu = facts(0, layout=layout)
    sharing = msgspec.structs.replace(mig(layout), allocator="scheduler")
    await node.offer((gpu, sharing))
    node.assign("p", 4, share(0, 4864, mode=Mode.MIG, profile="1g.5gb", start=layout[0].start))
    await node.run("p", NEED, 4)
    await upgraded(node, "uuids", "answer_known")
    one, two = gpu.instances
    crossed = (msgspec.structs.replace(one, uuid=two.uuid), msgspec.structs.replace(two, uuid=one.uuid))
    await node.offer((msgspec.structs.replace(gpu, instances=crossed), sharing))
    with pytest.raises(Conflict, match=r"it uses 1g\.5gb at 1 of GPU .*, and is assigned 1g\.5gb at 0"):
        await node.kubelet.create("default", "p", "main")


async def test_a_replica_is_the_same_under_another_name(node: Node) -> None:
    renamed = msgspec.structs.replace(SLICED, renamed=True)
    await node.offer((facts(1), SLICED))
    for name in "abc":
        await node.run(name)
    kept, _ = without_other_forms(node.offered((facts(1), renamed)), node.plugins.gate.record.allocated)
    assert [(each.name, len(each.devices)) for each in kept.resources] == [("nvidia.com/gpu.shared", 1)]
    await node.offer((facts(1), renamed))  # as where they were withheld too late
    await node.run("d", "nvidia.com/gpu.shared")
    with pytest.raises(Conflict, match="of pod default/"):
        await node.run("e", "nvidia.com/gpu.shared")


@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("ended", [False, True])
async def test_an_init_container_runs_again_where_the_record_was_lost(node: Node, *, ended: bool, blind: bool) -> None:
    """As after a reboot: the others of its pod are on record before it, and do not run beside it."""
    await node.offer((facts(0), MEMORY), how=CDI)
    node.assign("p", 25, share(0, 30720))
    pod = node.pods["default", "p"]
    pod["spec"]["initContainers"] = [{"name": "init", "resources": {"limits": {NEED: "30"}}}]
    init, main = Container(name="init", limits=((NEED, 30),)), Container(name="main", limits=((NEED, 25),))
    await node.kubelet.admit("default", "p", init)
    (answered,) = node.plugins.gate.record.entries
    await node.kubelet.allocate("default", "p", main, answered.ids[:25])
    await node.kubelet.create("default", "p", "init")
    await node.kubelet.create("default", "p", "main")
    await node.kill()
    (node.root / "allocations.json").unlink()
    if blind:
        (node.proc / "self/ns/pid").unlink()
    if ended:
        status = {"containerStatuses": [{"name": "main", "containerID": "containerd://2"}]}
        node.pods["default", "p"] = node.watched["default", "p"] = {**node.pods["default", "p"], "status": status}
    node.plugins = node.started()
    await node.offer((facts(0), MEMORY), how=CDI)
    found = [each.container for each in node.plugins.gate.record.entries]
    assert found == (["main"] if ended else ["init", "main"])
    await node.kubelet.create("default", "p", "init")
    await node.kubelet.create("default", "p", "main")
    assert node.plugins.gate.refusals.double_allocations() == ()


async def test_an_answer_that_no_container_used_is_forgotten(node: Node) -> None:
    await node.offer((facts(0, "T4"), WHOLE))
    node.ask("p")
    await node.kubelet.admit("default", "p", Container(name="main", limits=((GPU, 1),)))
    node.end("p")
    for passed_s in (0, 59):
        node.passed_s += passed_s
        await node.plugins.gate.record.clean_up(node.plugins._uses_of)
        assert devices_by_name(node.plugins.gate.record.allocated) == {DeviceId(facts(0).uuid)}
    node.passed_s += 2
    await node.plugins.gate.record.clean_up(node.plugins._uses_of)
    assert devices_by_name(node.plugins.gate.record.allocated) == frozenset()
    await node.run("q")


async def test_nothing_is_allocated_that_cannot_be_recorded(node: Node) -> None:
    await node.offer((facts(0, "T4"), WHOLE))
    (node.root / f".allocations.json.{os.getpid()}").mkdir()
    with pytest.raises(Conflict, match="give a --state-dir that the agent may write to"):
        await node.run("p")
    (node.root / f".allocations.json.{os.getpid()}").rmdir()
    await node.run("q")


async def test_a_record_that_is_broken_is_left_and_said(node: Node) -> None:
    (node.root / "allocations.json").write_bytes(b"\xff[")
    with capture_logs() as logs:
        node.plugins = node.started()
    assert logs[0]["event"] == "allocations_unreadable"
    assert [each.read_bytes() for each in node.root.glob("allocations.json.*.bad")] == [b"\xff["]
    await node.offer((facts(0, "T4"), WHOLE))
    await node.run("p")


async def test_what_a_container_was_started_with_stays_counted_whatever_is_written_on_its_pod(node: Node) -> None:
    """Its other container is refused to start again; the pod is found without an assignment, and still uses both."""
    await node.offer((facts(0), MEMORY), (facts(1), MEMORY))
    node.assign("tenant", 16, share(0, 16384), share(0, 16384))
    pod = node.pods["default", "tenant"]
    pod["spec"]["containers"].append({**pod["spec"]["containers"][0], "name": "side"})
    await node.kubelet.admit("default", "tenant", *(Container(name=n, limits=((NEED, 16),)) for n in ("main", "side")))
    for name in ("main", "side"):
        await node.kubelet.create("default", "tenant", name)
    node.process_of("tenant")
    await node.kill()
    notes = pod["metadata"]["annotations"] | {"tessera.dev/gpu-memory-unit": "MiB"}
    spoiled = {**pod, "metadata": {**pod["metadata"], "annotations": notes}, "status": {"phase": "Running"}}
    node.pods["default", "tenant"] = node.watched["default", "tenant"] = spoiled
    node.version += 1
    node.plugins = node.started()
    await node.offer((facts(0), MEMORY), (facts(1), MEMORY))
    with contextlib.suppress(Conflict):
        await node.kubelet.create("default", "tenant", "side")
    node.assign("honest", 20, share(0, 20480))
    with pytest.raises(Conflict, match="of pod default/tenant"):
        await node.run("honest", NEED, 20)


async def test_what_has_ended_is_let_go_of_though_the_record_cannot_be_written(node: Node) -> None:
    """Who looks at the node goes on: a GPU that is lost then must be withdrawn."""
    await node.offer((facts(0), WHOLE))
    await node.run("p")
    (node.root / f".allocations.json.{os.getpid()}").mkdir()
    node.end("p")
    with capture_logs() as logs:
        node.plugins.gate.record.release()
        node.plugins.gate.record.release()
    assert node.plugins.gate.record.entries == ()
    assert [each["event"] for each in logs] == ["allocations_not_kept"]


async def test_a_restarted_agent_whose_record_cannot_be_written_keeps_what_pods_have_and_offers_no_more(
    node: Node,
) -> None:
    await node.offer((facts(0), SLICED))
    await node.run("p")
    await node.kill()
    (node.root / "allocations.json").unlink()
    full = node.root / f".allocations.json.{os.getpid()}"
    full.mkdir()
    node.plugins = node.started()
    await node.plugins.offer(node.offered((facts(0), SLICED)), node.inventory, PluginOptions())
    await node.kubelet.until_allocatable(GPU, 1)
    assert [each.pod for each in node.plugins.gate.record.entries] == ["default/p"]
    assert "no device is allocated before" in node.plugins.problems[-1]
    full.rmdir()
    await node.offer((facts(0), SLICED))
    await node.run("q")


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let this process write no larger file, as where the disk has no more room; not while it waits for others."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_disk_with_room_for_the_present_record_alone_is_full(node: Node) -> None:
    """Else everything is offered again, and refused, pod after pod."""
    await node.offer((facts(0), SLICED))
    await node.run("p")
    record, path = node.plugins.gate.record, node.root / "allocations.json"
    (entry,), size = record.entries, path.stat().st_size
    other = msgspec.structs.replace(entry, uid="uid-q", pod="default/q", ids=("q",))
    with files_of_at_most(size + 20):
        with pytest.raises(Unavailable, match="no device is allocated before"):
            record.keep((entry, other))
        record.retry()
        assert "no device is allocated before" in record.unkept
    with files_of_at_most(size + (32 << 10)):
        record.keep((entry, other))
        record.retry()
        assert record.unkept, "what could be written shows no room"
    record.retry()
    assert not record.unkept
    assert sorted(each.name for each in node.root.iterdir() if "allocations" in each.name) == ["allocations.json"]


async def test_a_container_that_runs_is_restarted_on_a_full_disk_and_one_that_is_not_on_it_is_not(node: Node) -> None:
    await node.offer((facts(0), SLICED))
    for name in ("first", "last"):
        await node.run(name)
    await node.kubelet.admit("default", "new", Container(name="main", limits=((GPU, 1),)))
    before = (node.root / "allocations.json").read_bytes()
    (node.root / f".allocations.json.{os.getpid()}").mkdir()
    for name in ("first", "last", "first"):
        await node.kubelet.create("default", name, "main")
    node.ask("new")
    with pytest.raises(Conflict, match="no device is allocated before"):
        await node.kubelet.create("default", "new", "main")
    assert (node.root / "allocations.json").read_bytes() == before
    assert node.plugins.gate.record.unkept


async def test_a_restart_on_a_full_disk_needs_its_entry_in_the_file(node: Node) -> None:
    """What the agent knows in memory alone is lost with it."""
    await node.offer((facts(0), SLICED))
    for name in ("p", "q"):
        await node.run(name)
    record = node.plugins.gate.record
    first, second = record.entries
    known = msgspec.structs.replace(first, order=7)
    record.learn((known, second))
    (node.root / f".allocations.json.{os.getpid()}").mkdir()
    with pytest.raises(Unavailable, match="no device is allocated before"):
        record.keep((second, known))
    record.keep((second, first))
    assert record.entries == (second, first)


async def test_a_record_that_cannot_be_read_is_not_replaced_until_it_was_read(node: Node) -> None:
    pairs = (facts(0, "T4"), WHOLE)
    await node.offer(pairs)
    await node.run("p")
    await node.kill()
    file, aside = node.root / "allocations.json", node.root / "aside"
    file.rename(aside)
    file.mkdir()
    node.plugins = node.started()
    record = node.plugins.gate.record
    with pytest.raises(Unavailable, match="Is a directory: give a --state-dir that the agent may read"):
        record.read()
    file.rmdir()
    aside.rename(file)
    content = file.read_bytes()
    with pytest.raises(Unavailable, match="it is not read yet"):
        record.keep((AgentAllocation(resource=GPU, ids=("x",)),))
    assert file.read_bytes() == content
    record.read()
    assert record.is_read
    assert [each.pod for each in record.entries] == ["default/p"]
    await node.offer(pairs)
    node.kubelet.forgotten.add(facts(0).uuid)
    with pytest.raises(Conflict, match="of pod default/p"):
        await node.run("q")
