"""What a node offers, advertised to a kubelet and handed to its containers."""

import asyncio
import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from builders.gpufacts import at
from builders.gpunodes import facts, sevenths
from harness.pluginnode import CDI, GPU, MEMORY, MINORS, MPS, NEED, SLICE, SLICED, WHOLE, Node, mig, share
from harness.virtualtime import run
from tessera.clients.kubelet import Container, MemoryKubelet
from tessera.core.deviceplugin.containerresponse import ContainerMount
from tessera.core.deviceplugin.offers.advertise import OfferOptions
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import GpuFacts
from tessera.core.gpu.sharing import Mode
from tessera.core.node.nodesharing import PluginOptions
from tessera.errors import Conflict
from tessera.measures import Measures

pytestmark = pytest.mark.anyio


async def test_whole_gpus_by_environment(node: Node) -> None:
    pairs = (facts(0, "T4"), WHOLE), (facts(1, "T4"), WHOLE)
    await node.offer(*pairs)
    got = dict((await node.run("p", count=2)).env)
    assert got["NVIDIA_VISIBLE_DEVICES"] == got["TESSERA_GPU_UUIDS"] == f"{facts(0).uuid},{facts(1).uuid}"
    assert got["TESSERA_GPU_MODE"] == "whole,whole"


async def test_whole_gpus_by_index_and_device_nodes(node: Node) -> None:
    how = PluginOptions(id_strategy="index", pass_device_specs=True)
    await node.offer((facts(0, "T4"), WHOLE), (facts(1, "T4"), WHOLE), how=how)
    got = await node.run("p", count=2)
    assert dict(got.env)["NVIDIA_VISIBLE_DEVICES"] == "0,1"
    paths = [each.host_path for each in got.device_nodes]
    assert paths[:2] == ["/dev/nvidia0", "/dev/nvidia1"]
    assert "/dev/nvidiactl" in paths


async def test_mig_instances_with_their_device_nodes_by_cdi(node: Node) -> None:
    layout = sevenths()[:2]
    gpu = facts(0, layout=layout)
    node.minors.write_text(MINORS)
    (node.root / "nvidia.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ncontainerEdits: {env: [LIB=1]}\n")
    await node.offer((gpu, mig(layout)), how=CDI)
    got = await node.run("p", SLICE)
    number = [each.uuid for each in gpu.instances].index(got.cdi_devices[0].partition("=")[2])
    assert "NVIDIA_VISIBLE_DEVICES" not in dict(got.env)
    nodes = [each["path"] for each in node.spec(got)["deviceNodes"]]
    caps = [("nvidia-cap30", "nvidia-cap31"), ("nvidia-cap39", "nvidia-cap40")][number]
    assert [path for path in nodes if "caps" in path] == [f"/dev/nvidia-caps/{each}" for each in caps]
    assert nodes[0] == "/dev/nvidia0"
    written = json.loads((node.cdi / "tessera.dev-gpu.json").read_text())
    assert (written["cdiVersion"], written["containerEdits"]) == ("0.5.0", {"env": ["LIB=1"]})
    assert len(written["devices"]) == 3


async def test_a_share_has_what_the_driver_adds_from_the_first_offer_on(node: Node) -> None:
    """And what the driver adds now, after it was upgraded."""
    for name, lib in (("a", "LIB=1"), ("b", "LIB=2")):
        edits = f"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ncontainerEdits: {{env: [{lib}]}}\n"
        (node.root / "nvidia.yaml").write_text(edits)
        await node.offer((facts(0), MEMORY), how=CDI)
        node.assign(name, 2, share(0, 2048))
        (device,) = (await node.run(name, NEED, 2)).cdi_devices
        written = [json.loads(each.read_text()) for each in node.cdi.glob("*.json")]
        (spec,) = (each for each in written if device.rpartition("=")[2] in {one["name"] for one in each["devices"]})
        assert spec["containerEdits"] == {"env": [lib]}


async def test_the_driver_s_folder_where_neither_a_runtime_nor_a_specification_brings_it(node: Node) -> None:
    node.plugins = node.started(driver_folder="/opt/driver")
    await node.offer((facts(0, "T4"), WHOLE))
    got = await node.run("p")
    assert got.mounts == (ContainerMount(host_path="/opt/driver", container_path="/usr/local/nvidia", read_only=True),)
    assert got.device_nodes[0].host_path == "/dev/nvidia0"
    node.end("p")
    await node.offer((facts(0, "T4"), WHOLE), how=CDI)
    assert (await node.run("q")).mounts == ()
    spec = node.cdi / "tessera.dev-gpu.json"
    (mount,) = json.loads(spec.read_text())["containerEdits"]["mounts"]
    assert (mount["hostPath"], mount["containerPath"]) == ("/opt/driver", "/usr/local/nvidia")
    (node.root / "nvidia.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ncontainerEdits: {env: [LIB=1]}\n")
    await node.offer((facts(0, "T4"), WHOLE), how=CDI)
    assert json.loads(spec.read_text())["containerEdits"] == {"env": ["LIB=1"]}


async def test_mig_instances_by_index_as_the_driver_numbers_them(node: Node) -> None:
    layout = sevenths()[:2]
    gpu = facts(0, layout=layout)
    first, second = gpu.instances
    swapped = msgspec.structs.replace(
        gpu, instances=(msgspec.structs.replace(first, gpu_instance=9), msgspec.structs.replace(second, gpu_instance=3))
    )
    await node.offer((swapped, mig(layout)), how=PluginOptions(id_strategy="index"))
    got = dict((await node.run("p", SLICE)).env)
    want = {first.uuid: "0:1", second.uuid: "0:0"}
    assert got["NVIDIA_VISIBLE_DEVICES"] == want[got["TESSERA_GPU_UUIDS"]]


async def test_a_container_is_held_to_the_index_that_it_was_told(node: Node) -> None:
    """Numbers change where an instance before it goes; the kubelet keeps its answer for the container's life."""
    how, layout = PluginOptions(id_strategy="index"), sevenths()[:3]
    gpu = facts(0, layout=layout)
    await node.offer((gpu, mig(layout)), how=how)
    node.ask("p", SLICE)
    await node.kubelet.allocate("default", "p", Container(name="main", limits=((SLICE, 1),)), (gpu.instances[2].uuid,))
    assert dict((await node.kubelet.create("default", "p", "main")).env)["NVIDIA_VISIBLE_DEVICES"] == "0:2"
    fewer = msgspec.structs.replace(gpu, instances=gpu.instances[1:])
    await node.offer((fewer, mig(layout[1:])), how=how)
    said = "it was allocated the devices of index 0:2, which now have index 0:1: delete and recreate the pod"
    for _ in range(2):
        with pytest.raises(Conflict, match=said):
            await node.kubelet.create("default", "p", "main")
        node.passed_s += 61
    assert list(node.plugins.gate.refusals.blocked_pods()) == ["uid-p"]
    await node.offer((gpu, mig(layout)), how=how)
    assert dict((await node.kubelet.create("default", "p", "main")).env)["NVIDIA_VISIBLE_DEVICES"] == "0:2"


async def test_beside_cdi_a_container_is_named_no_index(node: Node) -> None:
    """CDI names the same device by UUID: that an instance before it goes changes nothing."""
    how = PluginOptions(id_strategy="index", list_strategies=("envvar", "volume-mounts", "cdi-cri"))
    layout = sevenths()[:3]
    gpu = facts(0, layout=layout)
    await node.offer((gpu, mig(layout)), how=how)
    for name in ("p", "q", "r"):
        given = await node.run(name, SLICE)
        uuid = dict(given.env)["TESSERA_GPU_UUIDS"]
        assert dict(given.env)["NVIDIA_VISIBLE_DEVICES"] == uuid
        assert given.cdi_devices == (f"tessera.dev/gpu={uuid}",)
    gone = next(each for each in node.plugins.gate.record.entries if each.ids == (gpu.instances[0].uuid,))
    node.end(gone.pod.rpartition("/")[2])
    fewer = msgspec.structs.replace(gpu, instances=gpu.instances[1:])
    await node.offer((fewer, mig(layout[1:])), how=how)
    for _, name in list(node.pods):
        await node.kubelet.create("default", name, "main")


async def test_the_index_that_a_container_was_told_is_known_after_a_reboot(node: Node) -> None:
    how, one = PluginOptions(id_strategy="index"), Container(name="main", limits=((GPU, 1),))
    first, second = facts(0, "T4"), facts(1, "T4")
    await node.offer((first, WHOLE), (second, WHOLE), how=how)
    node.ask("p")
    await node.kubelet.allocate("default", "p", one, (second.uuid,))
    await node.kubelet.create("default", "p", "main")
    await node.kill()
    node.plugins = node.started()
    swapped = (msgspec.structs.replace(second, index=0), WHOLE), (msgspec.structs.replace(first, index=1), WHOLE)
    await node.offer(*swapped, how=how)
    with pytest.raises(Conflict, match="the devices of index 1, which now have index 0"):
        await node.kubelet.create("default", "p", "main")
    await node.offer((first, WHOLE), how=how)
    with pytest.raises(Conflict, match="the devices of index 1, which now have index none"):
        await node.kubelet.create("default", "p", "main")


def created_again(gpu: GpuFacts) -> GpuFacts:
    """Return a GPU whose two instances were created again in the other order, so that their UUIDs are crossed."""
    first, second = gpu.instances
    ids = [{"uuid": each.uuid, "gpu_instance": each.gpu_instance} for each in (second, first)]
    pairs = zip(gpu.instances, ids, strict=True)
    return msgspec.structs.replace(gpu, instances=tuple(msgspec.structs.replace(one, **new) for one, new in pairs))


HOW = [CDI, PluginOptions(), PluginOptions(id_strategy="index")]


@pytest.mark.parametrize("how", HOW, ids=["cdi", "envvar", "index"])
@pytest.mark.parametrize("reboot", [True, False])
async def test_an_instance_by_name_is_the_pods_that_was_told_its_uuid_wherever_it_is_created_again(
    node: Node, how: PluginOptions, *, reboot: bool
) -> None:
    """As after a reboot, or when an administrator destroys and creates instances: the driver's UUIDs come back."""
    layout = sevenths()[:2]
    gpu = facts(0, layout=layout)
    await node.offer((gpu, mig(layout)), how=how)
    for name in "pr":
        await node.run(name, SLICE)
    if reboot:
        await node.kill()
        node.plugins = node.started()
    after = created_again(gpu)
    await node.offer((after, mig(layout)), how=how)
    record, there = node.plugins.gate.record, {each.uuid: each.placement for each in after.instances}
    places = {each.pod[-1]: there[each.ids[0]] for each in record.entries}
    assert {each.pod[-1]: use.device.placement for each in record.entries for use in each.uses} == places
    for name in "pr" if reboot else "r":  # both run again on what they were told; p goes on without a restart, too
        await node.kubelet.create("default", name, "main")
    node.end("r")
    await record.clean_up(node.plugins._uses_of)
    await node.offer((after, msgspec.structs.replace(mig(layout), allocator="scheduler")), how=how, withheld=0)
    needs = {name: share(0, 4864, mode=Mode.MIG, profile="1g.5gb", start=place.start) for name, place in places.items()}
    node.assign("need-r", 4, needs["r"])
    await node.run("need-r", NEED, 4)
    node.assign("need-p", 4, needs["p"])
    with pytest.raises(Conflict, match=r"container main of pod default/p uses 1g\.5gb at"):
        await node.run("need-p", NEED, 4)


async def test_an_instance_of_another_profile_under_its_uuid_is_not_started(node: Node) -> None:
    layout = at("A100-40GB", ("1g.5gb", 0), ("3g.20gb", 4))
    gpu = facts(0, layout=layout)
    await node.offer((gpu, mig(layout)), how=CDI)
    await node.run("p", "nvidia.com/mig-3g.20gb")
    after = created_again(gpu)
    await node.offer((after, mig(layout)), how=CDI)
    with pytest.raises(Conflict, match=r"its MIG instance MIG-.* is now 1g\.5gb at 0 of GPU .*, of another profile"):
        await node.kubelet.create("default", "p", "main")


async def test_the_order_in_which_indices_were_told_does_not_matter(node: Node) -> None:
    """The record was lost: the kubelet's has the ids, and its answer the indices in the order of its call."""
    how = PluginOptions(id_strategy="index")
    pairs = [(facts(index, "T4"), WHOLE) for index in range(2)]
    await node.offer(*pairs, how=how)
    node.ask("p", GPU, 2)
    ids = sorted((gpu.uuid for gpu, _ in pairs), reverse=True)
    await node.kubelet.allocate("default", "p", Container(name="main", limits=((GPU, 2),)), tuple(ids))
    await node.kill()
    (node.root / "allocations.json").unlink()
    node.plugins = node.started()
    await node.offer(*pairs, how=how)
    (entry,) = node.plugins.gate.record.entries
    assert sorted(entry.indices) == ["0", "1"]
    await node.kubelet.create("default", "p", "main")


async def test_whose_uuid_is_gone_gives_way_to_the_pod_whose_uuid_the_instance_in_its_place_has(node: Node) -> None:
    layout = sevenths()[:2]
    gpu = facts(0, layout=layout)
    await node.offer((gpu, mig(layout)), how=CDI)
    for name in "pr":
        await node.run(name, SLICE)
    named = {each.pod: each.ids[0] for each in node.plugins.gate.record.entries}
    (moved,) = [each for each in gpu.instances if each.uuid == named["default/p"]]
    (stays,) = [each for each in gpu.instances if each.uuid == named["default/r"]]
    # p's is destroyed, r's gets its UUID: r's own is gone
    changed = msgspec.structs.replace(gpu, instances=(msgspec.structs.replace(stays, uuid=moved.uuid),))
    await node.offer((changed, mig([stays.placement])), how=CDI)
    assert node.plugins.gate.refusals.double_allocations() == ()
    await node.kubelet.create("default", "p", "main")
    for _ in range(2):
        with pytest.raises(Conflict, match=f"its MIG instance {stays.uuid} does not exist any more"):
            await node.kubelet.create("default", "r", "main")
        node.passed_s += 61
    assert list(node.plugins.gate.refusals.blocked_pods()) == ["uid-r"]
    # created again, beside the other
    both = msgspec.structs.replace(gpu, instances=(*changed.instances, msgspec.structs.replace(moved, uuid=stays.uuid)))
    await node.offer((both, mig(layout)), how=CDI)
    await node.kubelet.create("default", "r", "main")
    assert node.plugins.gate.refusals.blocked_pods() == {}
    places = {each.pod: each.uses[0].device.placement for each in node.plugins.gate.record.entries}
    assert places == {"default/p": stays.placement, "default/r": moved.placement}


async def test_replicas_under_mps_get_their_limits(node: Node) -> None:
    options = PluginOptions(allocation_policy="packed")
    await node.offer((facts(0, "T4"), MPS), how=options)
    got = await node.run("p")
    env = dict(got.env)
    memory_mib = facts(0, "T4").memory_mib // 4
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={memory_mib}M"
    assert any(mount.host_path.startswith(str(node.root / "mps")) for mount in got.mounts)
    with pytest.raises(Conflict, match="replicas of a shared GPU give a container no more"):
        await node.run("q", count=2)


async def test_replicas_are_spread(node: Node) -> None:
    await node.offer((facts(0, "T4"), SLICED), (facts(1, "T4"), SLICED))
    got = dict((await node.run("p", count=2)).env)
    assert len(got["NVIDIA_VISIBLE_DEVICES"].split(",")) == 2


@pytest.mark.usefixtures("soon")
async def test_health_and_devices_that_come_and_go(node: Node) -> None:
    pairs = (facts(0, "T4"), WHOLE), (facts(1, "T4"), WHOLE)
    await node.offer(*pairs)
    await node.offer(*pairs, options=OfferOptions(unhealthy=frozenset({DeviceId(facts(0).uuid)})))
    assert (node.kubelet.capacity(GPU), node.kubelet.allocatable(GPU)) == (2, 1)
    await node.offer(*pairs)
    await node.offer(pairs[0])
    assert (node.kubelet.capacity(GPU), node.kubelet.allocatable(GPU)) == (2, 1), "the kubelet may have chosen it"
    await node.kubelet.until_capacity(GPU, 1)


@pytest.mark.usefixtures("soon")
async def test_a_resource_that_disappears_leaves_no_devices_and_may_come_back(node: Node) -> None:
    layout = sevenths()
    await node.offer((facts(0, layout=layout), mig(layout)))
    await node.offer((facts(0), WHOLE))
    await node.kubelet.until_allocatable(SLICE, 0)
    assert (node.kubelet.capacity(SLICE), node.kubelet.allocatable(GPU)) == (7, 1)
    await node.kubelet.until_capacity(SLICE, 0)
    await node.offer((facts(0), WHOLE))  # not before the other has ended
    assert [path.name for path in node.kubelet.plugins.glob("tessera-*")] == ["tessera-nvidia.com_gpu.sock"]
    await node.offer((facts(0, layout=layout), mig(layout)))
    await node.kubelet.until_allocatable(GPU, 0)


async def test_the_kubelet_restarts(node: Node) -> None:
    pairs = (facts(0, "T4"), WHOLE), (facts(1), MEMORY)
    await node.offer(*pairs)
    await node.run("p")
    await node.kubelet.restart()
    await node.kubelet.until_allocatable(GPU, 1)
    await node.kubelet.until_allocatable(NEED, facts(1).memory_mib // 1024)
    assert sorted(node.kubelet.registrations) == ["aliyun.com/gpu-mem", GPU, NEED]
    assert len(await node.record.list()) == 1


async def test_the_agent_is_killed_and_starts_again(node: Node) -> None:
    await node.offer((facts(0, "T4"), SLICED))
    await node.run("p")
    await node.kill()
    await node.kubelet.until_allocatable(GPU, 0)
    node.plugins = node.started()
    await node.offer((facts(0, "T4"), SLICED))
    assert len(await node.record.list()) == 1
    await node.run("q")


async def test_a_plugin_that_the_kubelet_forgot_registers_again(node: Node) -> None:
    """The kubelet disconnects whoever is registered when an earlier stream ends."""
    await node.offer((facts(0, "T4"), WHOLE))
    plugin = node.plugins._servers._servers[GPU].plugin  # what the kubelet did cannot be seen outside
    await node.kubelet._endpoints[GPU].close()  # as the kubelet does
    await node.kubelet.until_allocatable(GPU, 0)
    await node.kubelet.until_allocatable(GPU, 1, deadline_s=20)
    assert plugin.streams == 1


async def test_the_kubelet_is_not_there_yet(socket_folder: Path) -> None:
    kubelet = MemoryKubelet(socket_folder)
    kubelet.plugins.mkdir()
    node = Node(kubelet, socket_folder)
    with capture_logs() as logs:
        await node.plugins.offer(node.offered((facts(0, "T4"), WHOLE)), node.inventory, PluginOptions())
        task = asyncio.create_task(node.plugins.run(Measures()))
        assert "kubelet.sock" in node.plugins.problems[0]
        async with kubelet:
            await kubelet.until_allocatable(GPU, 1)
            # The kubelet lists the devices before the registration is answered; this comes after the answer.
            await node.plugins.offer(node.offered((facts(0, "T4"), WHOLE)), node.inventory, PluginOptions())
            assert node.plugins.problems == ()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert [each["event"] for each in logs] == ["resource_not_advertised", "resource_advertised"]


async def test_a_folder_in_which_no_socket_can_be(socket_folder: Path) -> None:
    node = Node(MemoryKubelet(socket_folder), socket_folder)
    await node.plugins.offer(node.offered((facts(0, "T4"), WHOLE)), node.inventory, PluginOptions())
    assert "No such file or directory" in node.plugins.problems[0]


async def test_what_cannot_be_read_or_written_leaves_what_was(node: Node) -> None:
    layout = sevenths()[:1]
    pairs = (facts(0, layout=layout), mig(layout))
    node.minors.write_text(MINORS)
    await node.offer(pairs, how=CDI)
    before = (node.cdi / "tessera.dev-gpu.json").read_text()
    node.minors.write_text("nonsense")
    (node.root / "nvidia.yaml").write_text("[")
    node.impaired = True
    with capture_logs() as logs:
        await node.offer(pairs, how=CDI)
        await node.offer(pairs, how=CDI)
        node.minors.write_bytes(b"\xff\xfe")
        (node.root / "nvidia.yaml").write_bytes(b"\xff")
        await node.offer(pairs, how=CDI)
    assert (node.cdi / "tessera.dev-gpu.json").read_text() == before
    assert [each["event"] for each in logs] == ["device_handover_impaired"] * 4
    assert "cannot be written: " in node.plugins.problems[0]
    got = await node.run("p", SLICE)
    assert "/dev/nvidia-caps/nvidia-cap30" in [each["path"] for each in node.spec(got)["deviceNodes"]]


async def test_a_cdi_folder_that_is_none_is_a_problem_until_it_is_one(node: Node) -> None:
    node.cdi.write_text("a file")
    node.impaired = True
    await node.offer((facts(0), WHOLE), how=CDI)
    assert node.plugins.problems[0].startswith("the CDI specification of the node's GPUs cannot be written")
    node.cdi.unlink()
    await node.offer((facts(0), WHOLE), how=CDI)
    assert node.plugins.problems == ()


async def test_a_kubelet_outlives_a_resource_that_is_withdrawn_while_it_waits_for_an_answer(node: Node) -> None:
    """It reads the devices that it chose when it has the answer; one that is not listed then ends it."""
    await node.offer((facts(0), MEMORY))
    node.looked.clear()
    node.silent = True  # so that the pod's assignment is waited for
    asking = asyncio.create_task(node.kubelet.admit("default", "p", Container(name="main", limits=((NEED, 2),))))
    await node.looked.wait()
    await node.offer((facts(0), WHOLE))
    await node.kubelet.until_allocatable(NEED, 0)
    node.assign("p", 2, share(0, 2048))
    await asking
    assert len(await node.record.list()) == 1


class BrokenNode(Node):
    """A node of which an agent cannot see the pods, for a defect of its own."""

    def seen(self) -> Iterable[dict[str, Any]]:
        raise KeyError("1g.5gb")


def test_a_defect_in_a_turn_is_logged_each_time_with_its_traceback(socket_folder: Path) -> None:
    async def live_for(seconds: float) -> None:
        node = BrokenNode(MemoryKubelet(socket_folder), socket_folder)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await node.plugins.run(Measures())

    with capture_logs() as logs:
        run(live_for(100))  # it looks every half minute
    found = [each for each in logs if each["event"] == "device_handover_impaired"]
    assert len(found) == 3
    assert all(isinstance(each["exc_info"], KeyError) and each["log_level"] == "error" for each in found)
