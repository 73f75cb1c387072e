"""The agent where resources have other names by the sharing file: lost records close the node for them too."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from harness.agentlogs import until_logged
from harness.agentmachine import STATE, Machine
from tessera.clients.kube import EVERYTHING, NODES, PODS, Kind, Selection, WatchEvent, annotations_of, labels_of
from tessera.clients.kubelet import Container
from tessera.core.gpu.inventory import Inventory
from tessera.errors import Conflict, Unavailable

pytestmark = pytest.mark.anyio

GPU, GOLD, FOREIGN = "nvidia.com/gpu", "example.com/gold", "nvidia.com/hostdev"
KEPT = "tessera.dev/renamed-resources"
RENAMED = f"""
version: v1
sharing:
  timeSlicing:
    resources:
    - name: {GPU}
      rename: {GOLD}
      replicas: 2
"""
PLAIN = "version: v1\n"


def share_as(machine: Machine, content: str) -> None:
    (machine.folder / "sharing/default").write_text(content)


async def counted(machine: Machine, *names: str) -> None:
    """Let the Node count devices, as its kubelet reports them."""
    allocatable = dict.fromkeys(names, "4")
    await machine.kube.patch(NODES, "n1", {"status": {"allocatable": allocatable}}, subresource="status")


async def keep(machine: Machine, names: str | None) -> None:
    await machine.kube.patch(NODES, "n1", {"metadata": {"annotations": {KEPT: names}}})


async def run(machine: Machine, name: str, resource: str = GOLD) -> None:
    """Let a pod of one device run, by its status and by a process."""
    await machine.pod(name, {resource: 1})
    status = {"phase": "Running", "containerStatuses": [{"name": "c", "containerID": f"containerd://{name}"}]}
    await machine.kube.patch(PODS, name, {"status": status}, namespace="default", subresource="status")
    pod = await machine.kube.get(PODS, name, namespace="default")
    process = machine.folder / "proc/200"
    process.mkdir(parents=True)
    (process / "cgroup").write_text(f"0::/kubepods/besteffort/pod{pod and pod['metadata']['uid']}/abc\n")


async def end(machine: Machine, name: str) -> None:
    await machine.kube.delete(PODS, name, namespace="default")
    machine.kubelet.remove("default", name)
    (machine.folder / "proc/200/cgroup").unlink()
    (machine.folder / "proc/200").rmdir()


@contextlib.asynccontextmanager
async def records_lost(machine: Machine) -> AsyncIterator[None]:
    """Both records are lost while a pod has one of four replicas under the other name."""
    share_as(machine, RENAMED)
    async with machine.agent():
        await machine.kubelet.until_allocatable(GOLD, 4)
    await run(machine, "old")
    await counted(machine, GOLD)
    await machine.kubelet.restart(without_record=True)
    (machine.folder / "state/allocations.json").unlink()
    yield


async def test_a_name_by_rename_is_kept_on_the_node_before_it_is_advertised_and_longer_than_the_file_has_it(
    machine: Machine,
) -> None:
    await keep(machine, "former/name")
    share_as(machine, RENAMED)
    async with machine.agent():
        await machine.kubelet.until_allocatable(GOLD, 4)
        assert annotations_of(await machine.node())[KEPT] == f"{GOLD},former/name"
        share_as(machine, RENAMED.replace(GOLD, "silver"))
        await machine.kubelet.until_allocatable("nvidia.com/silver", 4)
        assert annotations_of(await machine.node())[KEPT] == f"{GOLD},former/name,nvidia.com/silver"
        share_as(machine, PLAIN)
        await machine.kubelet.until_allocatable(GPU, 2)
        assert annotations_of(await machine.node())[KEPT] == f"{GOLD},former/name,nvidia.com/silver"
        await keep(machine, None)
        share_as(machine, RENAMED)
        await machine.until(lambda node: GOLD in annotations_of(node).get(KEPT, ""))


async def test_nothing_is_advertised_before_the_watch_shows_that_the_name_is_kept(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules for lost records read the name from the watched Node object."""
    watch, shows = machine.kube.watch, asyncio.Event()

    async def late(kind: Kind, since: str, selection: Selection = EVERYTHING) -> AsyncIterator[WatchEvent]:
        async for event in watch(kind, since, selection):
            if kind == NODES:
                await shows.wait()
            yield event

    monkeypatch.setattr(machine.kube, "watch", late)
    share_as(machine, RENAMED)
    with capture_logs() as logs:
        async with machine.agent():
            await until_logged(logs, "turn_failed", what="start", reason=UNOBSERVED, times=2)
            assert annotations_of(await machine.node())[KEPT] == GOLD
            assert machine.kubelet.allocatable(GOLD) == 0
            shows.set()
            await machine.kubelet.until_allocatable(GOLD, 4)


UNOBSERVED = (
    "the Node object: its annotation tessera.dev/renamed-resources is written, and not observed yet: "
    "the agent tries again"
)


async def test_a_node_without_such_names_has_no_annotation(machine: Machine) -> None:
    share_as(machine, RENAMED.replace(GOLD, "nvidia.com/gpu.shared"))
    async with machine.agent():
        await machine.kubelet.until_allocatable("nvidia.com/gpu.shared", 4)
        assert KEPT not in annotations_of(await machine.node())


@pytest.mark.parametrize("kept", [True, False])
async def test_a_pod_that_both_records_lack_closes_the_node_under_every_name_until_it_has_ended(
    machine: Machine, *, kept: bool
) -> None:
    """Also where the agent before was of a version that kept no names: the file has them."""
    async with records_lost(machine):
        if not kept:
            await keep(machine, None)
        async with machine.agent() as agent:
            assert "pod default/old: it requests devices and runs" in await machine.event("ResourceNotAdvertised")
            assert "pod default/old" in agent.waiting_for()
            assert machine.kubelet.allocatable(GOLD) == 1
            await machine.pod("new", {GOLD: 1})
            with pytest.raises(Conflict, match="pod default/old"):
                await machine.start("new", GOLD)
            await end(machine, "old")
            await machine.kubelet.until_allocatable(GOLD, 4)


async def test_no_instance_is_created_under_a_pod_that_has_the_gpu_by_a_name_which_the_file_had_before(
    machine: Machine,
) -> None:
    async with records_lost(machine):
        share_as(machine, PLAIN)
        await counted(machine, GOLD, GPU)
        await machine.label(config="all-1g.5gb")
        async with machine.agent():
            assert "it is in use by pod default/old" in await machine.event("LayoutBlocked")
            await machine.until_observed()
            assert labels_of(await machine.node())[STATE] == "pending"
            assert not [each for gpu in (await machine.driver.inventory()).gpus for each in gpu.instances]
            await end(machine, "old")
            await machine.until_state("success")


async def test_before_an_agent_advertises_pods_are_refused_under_every_name_of_its_node(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that another plugin advertises are left to it."""

    async def silent() -> Inventory:
        raise Unavailable("driver", found="no answer")

    async with records_lost(machine):
        await counted(machine, GOLD, FOREIGN)
        monkeypatch.setattr(machine.driver, "inventory", silent)
        async with machine.agent():
            await machine.kubelet.until_allocatable(GOLD, 1)
            await machine.pod("new", {GOLD: 1})
            with pytest.raises(Conflict, match="the agent is starting"):
                await machine.start("new", GOLD)
            assert machine.kubelet.registrations == [GOLD]


async def test_a_file_that_was_never_valid_lets_no_pod_start_under_a_former_name(machine: Machine) -> None:
    async with records_lost(machine):
        share_as(machine, "version: v0\n")
        async with machine.agent():
            await machine.kubelet.until_allocatable(GOLD, 1)
            await machine.pod("new", {GOLD: 1})
            with pytest.raises(Conflict, match="the agent is starting"):
                await machine.start("new", GOLD)


async def test_a_pod_whose_device_another_plugin_allocated_closes_nothing(machine: Machine) -> None:
    share_as(machine, RENAMED)
    await counted(machine, FOREIGN)
    await run(machine, "old", FOREIGN)
    async with machine.agent() as agent:
        await machine.kubelet.until_allocatable(GOLD, 4)
        assert not agent.waiting_for()


async def test_a_layout_waits_for_running_pods_that_podresources_lacks_under_every_name(machine: Machine) -> None:
    """The kubelet's checkpoint cannot be read; a kubelet that has just started has not read its pods."""
    async with records_lost(machine):
        (machine.kubelet.plugins / "kubelet_internal_checkpoint").write_text("{")
        await machine.label(config="all-1g.5gb")
        with capture_logs() as logs:
            async with machine.agent():
                await until_logged(logs, "turn_failed", what="start", reason=LACKS)
        assert not [each for gpu in (await machine.driver.inventory()).gpus for each in gpu.instances]


LACKS = (
    "the record of devices: it lacks pods that run with devices: default/old: "
    "the agent tries again: a kubelet that has just started has not read all pods yet"
)


async def test_a_pod_is_read_from_podresources_under_every_name(machine: Machine) -> None:
    share_as(machine, RENAMED)
    async with machine.agent() as agent:
        await machine.kubelet.until_allocatable(GOLD, 4)
        await run(machine, "old")
        uid = ((await machine.kube.get(PODS, "old", namespace="default")) or {})["metadata"]["uid"]
        await machine.kubelet.admit("default", "old", Container(name="c", limits=((GOLD, 1),)), uid=uid)
        view = agent._gate.view
        want = await view.allocated()
        (machine.kubelet.plugins / "kubelet_internal_checkpoint").write_text("{")
        (found,) = await view.allocated()
        assert [(each.uid, each.resource, each.device_ids) for each in want] == [(uid, GOLD, found.device_ids)]
        assert (found.uid, found.resource) == (uid, GOLD)
