"""The whole agent in this process: driver, Kubernetes API and kubelet in memory, real sockets between them."""

import asyncio
import contextlib
import re
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from builders.kubeobjects import amount, share
from harness.agentlogs import until_logged
from harness.agentmachine import CONFIG, STATE, Machine
from tessera.agent.run import Agent
from tessera.clients.kube import EVENTS, GPU_NODES, NODES, PODS, Kind, MemoryKube, Object, annotations_of, labels_of
from tessera.core.gpu.inventory import Inventory
from tessera.errors import Conflict, Unavailable
from tessera.wakeup import WakeUp

pytestmark = pytest.mark.anyio

POLICY = """
apiVersion: tessera.dev/v1alpha1
kind: NodePolicy
gpus:
- devices: [0]
  sharing: {mig: all-1g.5gb}
"""


AUTO = """
apiVersion: tessera.dev/v1alpha1
kind: NodePolicy
gpus:
- sharing: auto
"""
UNITS = "tessera.dev/gpu-memory"


async def test_whole_gpus_are_offered(machine: Machine) -> None:
    async with machine.agent():
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
        await machine.pod("p1", {"nvidia.com/gpu": 1})
        env = await machine.start("p1", "nvidia.com/gpu")
        assert env["NVIDIA_VISIBLE_DEVICES"] in {gpu.uuid for gpu in (await machine.driver.inventory()).gpus}


async def test_no_pod_starts_beside_a_process_of_a_pod_that_is_gone(machine: Machine) -> None:
    (machine.folder / "proc/100").mkdir()
    (machine.folder / "proc/100/cgroup").write_text("0::/kubepods/pod0f6e8f0a-1b2c-4d5e-8f90-a1b2c3d4e5f6/a\n")
    async with machine.agent():
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
        for gpu in (await machine.driver.inventory()).gpus:
            machine.driver.start_process(gpu.uuid, 100)
        await machine.pod("p1", {"nvidia.com/gpu": 1})
        with pytest.raises(Conflict, match="process 100 of pod 0f6e8f0a-1b2c-4d5e-8f90-a1b2c3d4e5f6, which has ended"):
            await machine.start("p1", "nvidia.com/gpu")


async def test_each_loop_and_watch_has_an_age(machine: Machine) -> None:
    loops = ("layout", "offer", "record", "plugins", "watch-nodes", "watch-pods", "watch-gpunodes", "watch-configmaps")
    text = ""
    async with machine.agent() as one:
        for _ in range(500):
            text = one.measures.render().decode()
            if all(f'tessera_loop_age_seconds{{loop="{loop}"}}' in text for loop in loops):
                return
            await asyncio.sleep(0.02)
    pytest.fail(text)


async def test_a_start_that_does_not_succeed_has_an_age_until_it_does(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, inventory, refusals = asyncio.Event(), machine.driver.inventory, 0

    async def silent() -> Inventory:
        nonlocal refusals
        if not answers.is_set():
            refusals += 1
            raise Unavailable("driver", found="no answer")
        return await inventory()

    monkeypatch.setattr(machine.driver, "inventory", silent)
    agent = Agent(machine.settings, machine.driver, machine.kube, times=machine.times)
    running = asyncio.ensure_future(agent.run())

    def ages() -> set[str]:
        return {*re.findall(r'tessera_loop_age_seconds{loop="(\w+)"}', agent.measures.render().decode())}

    try:
        async with asyncio.timeout(30):
            while not {"start"} & ages():  # noqa: ASYNC110 (no event)
                await asyncio.sleep(0.02)
            before = refusals
            while refusals < before + 3:  # noqa: ASYNC110 (no event)
                await asyncio.sleep(0.02)
            assert ages() & {"start", "layout", "offer", "record"} == {"start"}
            answers.set()
            while not {"layout", "offer", "record"} <= ages():  # noqa: ASYNC110 (no event)
                await asyncio.sleep(0.02)
        assert "start" not in ages()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_the_label_cuts_the_gpus(machine: Machine) -> None:
    async with machine.agent() as agent:
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
        await machine.label(config="all-1g.5gb")
        node = await machine.until_state("success")
        await machine.kubelet.until_allocatable("nvidia.com/mig-1g.5gb", 14)
        assert machine.kubelet.allocatable("nvidia.com/gpu") == 0
        (condition,) = node["status"]["conditions"]
        assert (condition["status"], condition["reason"]) == ("True", "LayoutApplied")
        async with asyncio.timeout(20):
            while 'tessera_repartitions_total{outcome="done"} 2\n' not in agent.measures.render().decode():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        reasons = {each["reason"] for each in (await machine.kube.list(EVENTS)).objects}
        assert "LayoutApplied" in reasons
        uuids = set()
        for number in range(14):
            await machine.pod(f"p{number}", {"nvidia.com/mig-1g.5gb": 1})
            uuids.add((await machine.start(f"p{number}", "nvidia.com/mig-1g.5gb"))["NVIDIA_VISIBLE_DEVICES"])
        assert len(uuids) == 14


async def test_used_instances_stay_when_the_label_changes(machine: Machine) -> None:
    async with machine.agent():
        await machine.label(config="all-1g.5gb")
        await machine.until_state("success")
        await machine.kubelet.until_allocatable("nvidia.com/mig-1g.5gb", 14)
        held = set()
        for number in range(4):
            await machine.pod(f"p{number}", {"nvidia.com/mig-1g.5gb": 1})
            held.add((await machine.start(f"p{number}", "nvidia.com/mig-1g.5gb"))["NVIDIA_VISIBLE_DEVICES"])
        await machine.label(config="all-3g.20gb")
        await machine.until(
            lambda node: any(
                each["reason"] == "LayoutBlocked" for each in (node.get("status") or {}).get("conditions", ())
            )
        )
        present = {each.uuid for gpu in (await machine.driver.inventory()).gpus for each in gpu.instances}
        assert held <= present
        for number in range(4):
            machine.kubelet.remove("default", f"p{number}")
            await machine.kube.delete(PODS, f"p{number}", namespace="default")
        await machine.until_state("success")
        await machine.kubelet.until_allocatable("nvidia.com/mig-3g.20gb", 4)


async def test_a_label_that_means_nothing_changes_nothing(machine: Machine) -> None:
    async with machine.agent():
        await machine.label(config="all-9g.99gb")
        node = await machine.until_state("failed")
        assert "all-9g.99gb" in node["status"]["conditions"][0]["message"]
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)


async def test_a_gpu_that_was_lost_before_fails_the_label_until_it_is_back(machine: Machine) -> None:
    machine.driver.unseen = (7,)
    async with machine.agent():
        assert "GPU 7: lost before" in await machine.event("ConfigurationImpaired")
        await machine.label(config="all-1g.5gb")
        node = await machine.until_state("failed")
        assert "the driver has lost GPU 7" in node["status"]["conditions"][0]["message"]
        await machine.kubelet.until_allocatable("nvidia.com/mig-1g.5gb", 14)
        machine.driver.unseen = ()
        await machine.until_state("success")


# sentence: (mig-parted's file, what the node's condition says)
BAD_FILES: dict[str, tuple[bytes | None, str]] = {
    "no file": (None, "No such file"),
    "two documents": (b"version: v1\n---\nversion: v1\n", "it has 2 documents: write one document"),
    "no text": (b"\xff\xff", "mig.yaml"),
    "far too large": (b" " * ((1 << 20) + 1), "more than 1 MiB"),
}


@pytest.mark.parametrize("case", BAD_FILES)
async def test_a_mig_file_that_cannot_be_used_fails_the_label(machine: Machine, case: str) -> None:
    content, want = BAD_FILES[case]
    file = machine.folder / "mig.yaml"
    if content is not None:
        file.write_bytes(content)
    machine.mig_config = file
    async with machine.agent():
        assert want in await machine.event("ConfigurationImpaired"), "before any label asks for it"
        await machine.label(config="ours")
        node = await machine.until_state("failed")
        assert want in node["status"]["conditions"][0]["message"]
    assert [gpu.layout for gpu in (await machine.driver.inventory()).gpus] == [None, None]


async def test_a_label_that_is_removed_leaves_the_layout_and_no_word_of_it(machine: Machine) -> None:
    async with machine.agent():
        await machine.label(config="all-3g.20gb")
        await machine.until_state("success")
        await machine.label(config=None)
        node = await machine.until(lambda node: STATE not in labels_of(node) and not node["status"]["conditions"])
        assert CONFIG not in labels_of(node)
        assert [len(gpu.instances) for gpu in (await machine.driver.inventory()).gpus] == [2, 2]


async def test_a_node_policy_cuts_what_it_says(machine: Machine) -> None:
    (machine.folder / "policy.yaml").write_text(POLICY)
    async with machine.agent():
        await machine.kubelet.until_allocatable("nvidia.com/mig-1g.5gb", 7)
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 1)


async def test_memory_shares_go_where_the_assignment_says(machine: Machine) -> None:
    await machine.label(gpushare="true")
    async with machine.agent():
        await machine.kubelet.until_allocatable("tessera.dev/gpu-memory", 80)
        uuids = [gpu.uuid for gpu in (await machine.driver.inventory()).gpus]
        for number, gpu in enumerate((1, 0)):
            assigned = share(gpu, 4096, container="c")
            await machine.pod(f"p{number}", {"tessera.dev/gpu-memory": 4}, (assigned,))
        first = await machine.start("p0", "tessera.dev/gpu-memory", 4)
        second = await machine.start("p1", "tessera.dev/gpu-memory", 4)
        assert [first["NVIDIA_VISIBLE_DEVICES"], second["NVIDIA_VISIBLE_DEVICES"]] == [uuids[1], uuids[0]]


class Silent(MemoryKube):
    """Does not answer who changes one pod."""

    requested = 0

    async def patch(self, kind: Kind, name: str, *words: Any, **more: Any) -> Object:
        if (kind, name) == (PODS, "silent"):
            self.requested += 1
            raise Unavailable("pod default/silent", found="no answer", expected="one")
        return await super().patch(kind, name, *words, **more)


async def test_a_pod_is_given_its_assignment_back_while_another_cannot_be_written(machine: Machine) -> None:
    machine.kube = kube = Silent()
    await kube.create(NODES, {"metadata": {"name": "n1", "labels": {"gpushare": "true"}}})

    async def assignment() -> str:
        return annotations_of(await kube.get(PODS, "spoiled", "default") or {})["tessera.dev/assignment"]

    async with machine.agent():
        for name, resource in (("spoiled", "tessera.dev/gpu-memory"), ("silent", "aliyun.com/gpu-mem")):
            await machine.kubelet.until_allocatable(resource, 80)
            shares = (msgspec.structs.replace(amount(0, container="c"), resource=resource),)
            await machine.pod(name, {resource: 4}, shares)
            await machine.start(name, resource, 4)
        waits = {"metadata": {"annotations": {"ALIYUN_COM_GPU_MEM_ASSIGNED": "false"}}}
        await MemoryKube.patch(kube, PODS, "silent", waits, namespace="default")
        assigned, before = await assignment(), kube.requested
        for _ in range(2):  # the second comes when it is known for certain that the other is asked again and again
            change = {"metadata": {"annotations": {"tessera.dev/assignment": "[]"}}}
            await kube.patch(PODS, "spoiled", change, namespace="default")
            for _ in range(1000):
                if await assignment() == assigned and kube.requested > before:
                    break
                await asyncio.sleep(0.01)
            assert (await assignment(), kube.requested > before) == (assigned, True)
            before = kube.requested


async def test_a_pod_without_assignment_gets_no_share(machine: Machine) -> None:
    await machine.label(gpushare="true")
    async with machine.agent():
        await machine.kubelet.until_allocatable("tessera.dev/gpu-memory", 80)
        await machine.pod("p", {"tessera.dev/gpu-memory": 4})
        with pytest.raises(Conflict, match="assignment"):
            await machine.start("p", "tessera.dev/gpu-memory", 4)


async def test_an_agent_that_starts_again_finds_its_way_back(machine: Machine) -> None:
    async with machine.agent():
        await machine.label(config="all-balanced")
        await machine.until_state("success")
        await machine.kubelet.until_allocatable("nvidia.com/mig-2g.10gb", 2)
        await machine.pod("p", {"nvidia.com/mig-2g.10gb": 1})
        held = (await machine.start("p", "nvidia.com/mig-2g.10gb"))["NVIDIA_VISIBLE_DEVICES"]
    before = (await machine.driver.inventory()).gpus
    async with machine.agent():
        await machine.kubelet.until_allocatable("nvidia.com/mig-2g.10gb", 2)
        assert (await machine.driver.inventory()).gpus == before
        assert held in {each.uuid for gpu in before for each in gpu.instances}


async def test_the_layout_survives_a_reboot(machine: Machine) -> None:
    async with machine.agent():
        await machine.label(config="all-balanced")
        await machine.until_state("success")
    await machine.kubelet.stop()
    before = [gpu.layout for gpu in (await machine.driver.inventory()).gpus]
    for gpu in (await machine.driver.inventory()).gpus:
        machine.driver.reset(gpu.uuid)
    await machine.kubelet.start()
    async with machine.agent():
        await machine.kubelet.until_allocatable("nvidia.com/mig-2g.10gb", 2)
        assert [gpu.layout for gpu in (await machine.driver.inventory()).gpus] == before
        assert "nvidia.com/gpu" not in machine.kubelet.registrations


async def test_a_node_whose_gpus_switch_mig_with_a_reset_alone_is_rebooted_once(machine: Machine) -> None:
    """The command marks that it was called; what a reboot does to a node is done by the test."""
    mark = machine.folder / "reboots"
    machine.reboot = ("/bin/sh", "-c", f"echo now >>{mark}")
    first, second = (await machine.driver.inventory()).gpus
    for gpu in (first, second):
        machine.driver.hold_mode_changes(gpu.uuid)
    async with machine.agent():
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
        await machine.pod("p", {"nvidia.com/gpu": 1})
        held = (await machine.start("p", "nvidia.com/gpu"))["NVIDIA_VISIBLE_DEVICES"]
        await machine.label(config="all-balanced")
        await machine.until_state("pending")
        (free,) = {first.uuid, second.uuid} - {held}
        await machine.until_mig(free, pending=True)
        assert not mark.exists()
        machine.kubelet.remove("default", "p")
        await machine.kube.delete(PODS, "p", namespace="default")
        await machine.until_state("rebooting")
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 0)
        await machine.until(lambda _: mark.exists())
    await machine.kubelet.stop()
    machine.driver.reboot()
    await machine.kubelet.start()
    async with machine.agent():
        await machine.until_state("success")
        await machine.kubelet.until_allocatable("nvidia.com/mig-2g.10gb", 2)
    assert mark.read_text() == "now\n"
    assert not (machine.folder / "state" / "rebooted").exists()


async def test_a_reboot_that_changes_nothing_is_not_asked_for_again_by_the_next_agents(machine: Machine) -> None:
    mark = machine.folder / "reboots"
    machine.reboot = ("/bin/sh", "-c", f"echo now >>{mark}; exit 7")
    for gpu in (await machine.driver.inventory()).gpus:
        machine.driver.hold_mode_changes(gpu.uuid)
    await machine.label(config="all-balanced")
    for _ in range(3):
        async with machine.agent():
            node = await machine.until_state("failed")
            assert "drain the node and reboot it" in node["status"]["conditions"][0]["message"]
            await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
            await machine.until_observed()
    assert mark.read_text() == "now\n"


async def test_nothing_is_offered_before_api_server_and_driver_answer(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent() -> Inventory:
        raise Unavailable("driver", found="no answer", expected="an answer")

    machine.kube.stop()
    with capture_logs() as logs:
        async with machine.agent():
            await until_logged(logs, "turn_failed", times=6, what="follow")
            assert machine.kubelet.registrations == [], "the driver answers, and the API server does not"
            with monkeypatch.context() as patch:
                patch.setattr(machine.driver, "inventory", silent)
                machine.kube.start()
                await until_logged(logs, "turn_failed", times=3, what="start")
                assert machine.kubelet.registrations == [], "the API server answers, and the driver does not"
            await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
    reasons = {each["reason"] for each in logs if each.get("what") == "start"}
    assert reasons == {"driver: no answer is not an answer"}


async def test_what_is_offered_is_offered_to_a_kubelet_that_starts_anew(machine: Machine) -> None:
    async with machine.agent():
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
        await machine.kubelet.restart()
        await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)


async def test_a_loop_outlives_a_call_that_was_cancelled_under_it(machine: Machine) -> None:
    agent = Agent(machine.settings, machine.driver, machine.kube)
    calls = 0

    async def act() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise asyncio.CancelledError

    wakeup = WakeUp()
    wakeup.set()
    loop = asyncio.ensure_future(agent._forever("test", wakeup, act))
    for _ in range(200):
        await asyncio.sleep(0.01)
        if calls > 1:
            break
    assert calls > 1
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop


async def test_a_second_agent_of_the_node_waits_for_the_end_of_the_first(machine: Machine) -> None:
    with capture_logs() as logs:
        async with machine.agent():
            await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
            async with machine.agent():
                await until_logged(logs, "another_agent_runs")
                assert [each["event"] for each in logs].count("agent_started") == 1
        before = len(logs)
        async with machine.agent():
            for _ in range(500):
                if any(each["event"] == "agent_started" for each in logs[before:]):
                    break
                await asyncio.sleep(0.02)
    assert any(each["event"] == "agent_started" for each in logs[before:]), "the lock ends with its agent"


async def test_a_second_agent_with_a_folder_of_its_own_waits_as_well(machine: Machine) -> None:
    """Two agents of one kubelet take its plugins from each other, and write the GPUNode hundreds of times a second."""
    paths = msgspec.structs.replace(machine.settings.paths, state=machine.folder / "other")
    second = Agent(msgspec.structs.replace(machine.settings, paths=paths), machine.driver, machine.kube)
    with capture_logs() as logs:
        async with machine.agent():
            await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
            running = asyncio.ensure_future(second.run())
            await until_logged(logs, "another_agent_runs")
            assert [each["event"] for each in logs].count("agent_started") == 1
            (reason,) = [each["reason"] for each in logs if each["event"] == "another_agent_runs"]
            assert reason.endswith("an agent with another --state-dir")
            logs.clear()
        await until_logged(logs, "agent_started")
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_an_agent_that_cannot_be_locked_says_so(machine: Machine) -> None:
    (machine.folder / "state/locks/agent.lock").mkdir(parents=True)
    with capture_logs() as logs:
        async with machine.agent():
            await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
    (reason,) = [each["reason"] for each in logs if each["event"] == "agent_not_locked"]
    assert "agent.lock: Is a directory" in reason


# sentence: how each GPU is shared; GPUs by name that are offered then
SHARINGS: dict[str, tuple[object, int]] = {
    "time-slicing": ({"time-slicing": 4}, 8),
    "the scheduler allocates": ({"whole": True, "allocator": "scheduler"}, 0),
}


@pytest.mark.parametrize(("sharing", "count"), SHARINGS.values(), ids=SHARINGS)
async def test_who_deletes_the_gpunode_does_not_take_its_policy_away(
    machine: Machine, sharing: object, count: int
) -> None:
    """Until a controller writes to the object that the agent makes anew, what was asked before holds."""
    document = {"apiVersion": "tessera.dev/v1alpha1", "kind": "NodePolicy", "gpus": [{"sharing": sharing}]}
    with capture_logs() as logs:
        async with machine.agent():
            await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
            await machine.kube.patch(GPU_NODES, "n1", {"spec": {"policy": {"name": "p", "document": document}}})
            await machine.kubelet.until_allocatable("nvidia.com/gpu", count)
            logs.clear()
            await machine.kube.delete(GPU_NODES, "n1")
            await until_logged(logs, "gpunode_created")
            for _ in range(20):
                assert machine.kubelet.allocatable("nvidia.com/gpu") == count
                await asyncio.sleep(0.01)
            await machine.kube.patch(GPU_NODES, "n1", {"spec": {"desired": []}})
            await machine.kubelet.until_allocatable("nvidia.com/gpu", 2)
