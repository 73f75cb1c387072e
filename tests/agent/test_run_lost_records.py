"""The agent where it cannot start to advertise, or both records are lost: no pod starts without its devices."""

import asyncio

import msgspec
import pytest
from structlog.testing import capture_logs

from harness.agentlogs import until_logged
from harness.agentmachine import STATE, Machine
from tessera.api.kubernetes.podspecs import ASSIGNMENT
from tessera.clients.kube import (
    CONFIG_MAPS,
    EVENTS,
    EVERYTHING,
    GPU_NODES,
    NODES,
    PODS,
    Kind,
    Listing,
    Object,
    Selection,
    labels_of,
)
from tessera.clients.kubelet import Container
from tessera.core.cluster.snapshot import Share
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.sharing import Mode
from tessera.errors import Conflict, Unavailable

pytestmark = pytest.mark.anyio

GPU, SLICE, NEED = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "tessera.dev/gpu-memory"


async def counted(machine: Machine, resource: str = GPU, count: int = 2) -> None:
    """Let the Node count devices, as a former agent advertised them."""
    await machine.kube.patch(NODES, "n1", {"status": {"allocatable": {resource: str(count)}}}, subresource="status")


async def running(machine: Machine, name: str, resource: str = GPU) -> None:
    """Let a pod of one device run that the kubelet's record and the agent's lack."""
    await machine.pod(name, {resource: 1})
    status = {"phase": "Running", "containerStatuses": [{"name": "c", "containerID": f"containerd://{name}"}]}
    await machine.kube.patch(PODS, name, {"status": status}, namespace="default", subresource="status")


async def with_init(machine: Machine, name: str, count: int) -> None:
    """Let a pod have an init container of so many GPUs."""
    init = {"name": "init", "image": "none", "resources": {"limits": {GPU: str(count)}}}
    await machine.kube.patch(PODS, name, {"spec": {"initContainers": [init]}}, namespace="default")


async def recorded(machine: Machine, name: str, container: str, *ids: str) -> None:
    """Let the kubelet's record have devices of a container."""
    pod = await machine.kube.get(PODS, name, namespace="default")
    uid = "" if pod is None else pod["metadata"]["uid"]
    machine.kubelet.record("default", name, Container(name=container, limits=((GPU, len(ids)),)), ids, uid=uid)


async def test_a_pod_that_comes_before_the_agent_advertises_is_refused_not_started_without_its_gpu(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the API server keeps it from that the kubelet has as many GPUs as pods use, and none is free."""
    answers, get = asyncio.Event(), machine.kube.get

    async def silent(kind: Kind, name: str, namespace: str = "") -> Object | None:
        if kind == NODES and not answers.is_set():
            raise Unavailable("API server", found="no answer")
        return await get(kind, name, namespace)

    await counted(machine)
    await running(machine, "old")
    monkeypatch.setattr(machine.kube, "get", silent)
    async with machine.agent():
        await machine.kubelet.until_allocatable(GPU, 1)
        await machine.pod("new", {GPU: 1})
        with pytest.raises(Conflict, match="the agent is starting, and does not know yet which of them are free"):
            await machine.start("new", GPU)
        (node,) = (await machine.kube.list(NODES)).objects
        assert node["status"]["allocatable"] == {GPU: "1"}, "the scheduler sends no pod"
        machine.kubelet.record("default", "old", Container(name="c", limits=((GPU, 1),)), ("GPU-1",))
        with pytest.raises(Conflict, match="the agent is starting"):
            await machine.kubelet.create("default", "old", "c")
        machine.kubelet.remove("default", "old")
        answers.set()
        await machine.kubelet.until_allocatable(GPU, 2)
        assert await machine.start("new", GPU)


async def refused(machine: Machine, match: str = "the agent is starting") -> None:
    """A pod of one GPU is refused, and the scheduler sends no other."""
    await machine.pod("new", {GPU: 1})
    with pytest.raises(Conflict, match=match):
        await machine.start("new", GPU)


async def test_a_configuration_that_was_never_valid_lets_no_pod_start_without_its_gpu(machine: Machine) -> None:
    """Nothing was applied before, or what was is lost: it is not known what is advertised."""
    policy = machine.folder / "policy.yaml"
    policy.write_text("modes: [nonsense]\n")
    await counted(machine)
    await running(machine, "old")
    with capture_logs() as logs:
        async with machine.agent():
            await until_logged(logs, "impaired", what="configuration")
            assert machine.kubelet.allocatable(GPU) == 1
            await refused(machine, "no configuration was ever valid: node policy, document 1")
            (node,) = (await machine.kube.list(NODES)).objects
            assert node["status"]["allocatable"] == {GPU: "1"}
            policy.unlink()
            await machine.kubelet.until_allocatable(GPU, 2)


async def test_a_configuration_that_was_never_valid_ends_no_pod_on_record_and_lets_it_start_again(
    machine: Machine,
) -> None:
    """As where the folder with what was in force is lost, and later the kubelet's record."""
    await counted(machine)
    async with machine.agent():
        await machine.kubelet.until_allocatable(GPU, 2)
        await machine.pod("old", {GPU: 1})
        used = (await machine.start("old", GPU))["NVIDIA_VISIBLE_DEVICES"]
    status = {"phase": "Running", "containerStatuses": [{"name": "c", "containerID": "containerd://old"}]}
    await machine.kube.patch(PODS, "old", {"status": status}, namespace="default", subresource="status")
    policy = machine.folder / "policy.yaml"
    policy.write_text("modes: [nonsense]\n")
    await counted(machine)
    async with machine.agent():
        await machine.kubelet.until_allocatable(GPU, 1)
        await machine.until(lambda node: node["status"]["allocatable"] == {GPU: "1"})
        assert dict((await machine.kubelet.create("default", "old", "c")).env)["NVIDIA_VISIBLE_DEVICES"] == used
        await machine.kubelet.restart(without_record=True)
        await machine.kubelet.until_allocatable(GPU, 1)
        await refused(machine, "no configuration was ever valid: node policy, document 1")
        policy.unlink()
        await machine.kubelet.until_allocatable(GPU, 2)


async def test_what_a_gpunode_adds_is_registered_while_it_cannot_be_read(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node's files alone declare other resources than its policy."""
    await counted(machine, NEED, 80)
    await running(machine, "old", NEED)
    deny(machine, monkeypatch, GPU_NODES)
    async with machine.agent():
        await machine.kubelet.until_allocatable(NEED, 1)


@pytest.mark.parametrize("gpus", ["listed", "lost"])
async def test_a_record_that_cannot_be_read_lets_no_pod_start_until_it_can_and_is_kept(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, gpus: str
) -> None:
    async with machine.agent():
        await machine.kubelet.until_allocatable(GPU, 2)
        await machine.pod("old", {GPU: 1})
        used = (await machine.start("old", GPU))["NVIDIA_VISIBLE_DEVICES"]
    status = {"phase": "Running", "containerStatuses": [{"name": "c", "containerID": "containerd://old"}]}
    await machine.kube.patch(PODS, "old", {"status": status}, namespace="default", subresource="status")
    await counted(machine)
    await machine.kubelet.restart(without_record=True)
    own = await machine.kube.get(PODS, "old", namespace="default") or {}
    process = machine.folder / "proc/200"
    process.mkdir(parents=True)
    (process / "cgroup").write_text(f"0::/kubepods/besteffort/pod{own['metadata']['uid']}/old\n")
    record = machine.folder / "state/allocations.json"
    content = record.read_bytes()
    record.unlink()
    record.mkdir()
    with monkeypatch.context() as patch, capture_logs() as logs:
        if gpus == "lost":
            lose_gpus(machine, patch)
        async with machine.agent() as agent:
            await machine.kubelet.until_allocatable(GPU, 1)
            why = f"record of allocations {record}: Is a directory: give a --state-dir that the agent may read"
            await until_logged(logs, "turn_failed", what="start", reason=f"{why}; no device is offered before")
            assert why in agent.waiting_for()
            await refused(machine)
            record.rmdir()
            record.write_bytes(content)
            patch.undo()
            await machine.kubelet.until_allocatable(GPU, 2)
            assert not agent.waiting_for()
            assert (await machine.start("new", GPU))["NVIDIA_VISIBLE_DEVICES"] != used


def deny(machine: Machine, patch: pytest.MonkeyPatch, kind: Kind) -> None:
    """Let the API server list no objects of a kind."""
    every = machine.kube.list

    async def some(asked: Kind, selection: Selection = EVERYTHING) -> Listing:
        if asked == kind:
            raise Unavailable("API server", found="HTTP 403")
        return await every(asked, selection)

    patch.setattr(machine.kube, "list", some)


@pytest.mark.parametrize("kind", [GPU_NODES, CONFIG_MAPS], ids=["gpunodes", "the keys"])
async def test_an_agent_that_may_not_read_what_it_needs_lets_no_pod_start_without_its_gpu(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    """As after an upgrade without its roles."""
    await counted(machine)
    await running(machine, "old")
    with monkeypatch.context() as patch:
        deny(machine, patch, kind)
        async with machine.agent():
            await machine.kubelet.until_allocatable(GPU, 1)
            await refused(machine)
            patch.undo()
            await machine.kubelet.until_allocatable(GPU, 2)


@pytest.mark.parametrize("how", ["fails", "hangs"])
async def test_a_driver_that_does_not_answer_lets_no_pod_start_without_its_gpu(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It is not loaded yet after a reboot, or hangs."""

    async def silent() -> Inventory:
        if how == "hangs":
            await asyncio.Event().wait()
        raise Unavailable("GPU driver", found="NVML: Driver Not Loaded (9)", hint="load the kernel module")

    await counted(machine)
    await running(machine, "old")
    with monkeypatch.context() as patch:
        patch.setattr(machine.driver, "inventory", silent)
        async with machine.agent() as agent:
            await machine.kubelet.until_allocatable(GPU, 1)
            await refused(machine)
            if how == "fails":
                assert agent.waiting_for().endswith("GPU driver: NVML: Driver Not Loaded (9): load the kernel module")
                patch.undo()
                await machine.kubelet.until_allocatable(GPU, 2)
                assert not agent.waiting_for()


def lose_gpus(machine: Machine, patch: pytest.MonkeyPatch) -> None:
    """Let the driver answer, and list no GPU."""
    every = machine.driver.inventory

    async def none() -> Inventory:
        return msgspec.structs.replace(await every(), gpus=())

    patch.setattr(machine.driver, "inventory", none)


async def test_a_driver_that_lists_no_gpu_while_the_agent_cannot_start_lets_no_pod_start_without_its_gpu(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await counted(machine)
    await running(machine, "old")
    lose_gpus(machine, monkeypatch)
    deny(machine, monkeypatch, CONFIG_MAPS)
    async with machine.agent():
        await machine.kubelet.until_allocatable(GPU, 1)
        await refused(machine, "the driver lists no GPU")


async def test_a_driver_that_lists_no_gpu_lets_no_pod_start_without_its_gpu_and_ends_none_until_it_lists_them_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a reboot: the node has lost its GPUs, and the kubelet its record."""
    await counted(machine)
    await running(machine, "old")
    with monkeypatch.context() as patch:
        lose_gpus(machine, patch)
        with capture_logs() as logs:
            async with machine.agent():
                await until_logged(logs, "gpunode_reported")
                assert await machine.event("ResourceNotAdvertised") == f"{GPU} is not offered: the driver lists no GPU"
                await refused(machine, "the driver lists no GPU")
                (node,) = (await machine.kube.list(NODES)).objects
                assert node["status"]["allocatable"] == {GPU: "1"}, "the scheduler sends no pod"
                await machine.kubelet.restart(without_record=True)
                await machine.kubelet.until_allocatable(GPU, 1)
                patch.undo()
                await machine.kubelet.until_allocatable(GPU, 2)
                assert await machine.start("new", GPU)


async def test_a_node_whose_gpus_are_lost_refuses_a_pod_although_the_record_has_another(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet that restarts ends no pod that runs, and a container whose GPU is gone does not start again."""
    await counted(machine)
    async with machine.agent() as agent:
        await machine.kubelet.until_allocatable(GPU, 2)
        await machine.pod("old", {GPU: 1})
        await machine.start("old", GPU)
        ((gone,),) = [each.ids for each in agent._gate.record.entries]
    uid = ((await machine.kube.get(PODS, "old", namespace="default")) or {})["metadata"]["uid"]
    status = {"phase": "Running", "containerStatuses": [{"name": "c", "containerID": "containerd://old"}]}
    await machine.kube.patch(PODS, "old", {"status": status}, namespace="default", subresource="status")
    await machine.kubelet.restart(without_record=True)
    lose_gpus(machine, monkeypatch)
    async with machine.agent():
        assert await machine.event("ResourceNotAdvertised") == f"{GPU} is not offered: the driver lists no GPU"
        await refused(machine, "the driver lists no GPU")
        assert machine.kubelet.allocatable(GPU) == 1
        machine.kubelet.record("default", "old", Container(name="c", limits=((GPU, 1),)), (gone,), uid=uid)
        with pytest.raises(Conflict, match="is not on this node any more"):
            await machine.kubelet.create("default", "old", "c")


async def test_a_kubelet_that_loses_its_record_after_the_gpus_are_lost_has_the_plugin_by_then(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the resource, from the last agent, while the next one starts."""
    async with machine.agent():
        await machine.kubelet.until_allocatable(GPU, 2)
    await counted(machine)
    lose_gpus(machine, monkeypatch)
    machine.kubelet.registrations.clear()
    with capture_logs() as logs:
        async with machine.agent():
            await until_logged(logs, "gpunode_reported")
            assert machine.kubelet.registrations == [GPU]


async def test_a_node_that_never_had_gpus_is_left_alone(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    await counted(machine, "cpu", 8)
    lose_gpus(machine, monkeypatch)
    with capture_logs() as logs:
        async with machine.agent() as agent:
            await until_logged(logs, "gpunode_reported")
            assert not agent.waiting_for()
            assert machine.kubelet.registrations == []
    assert "ResourceNotAdvertised" not in str((await machine.kube.list(EVENTS)).objects)


@pytest.mark.parametrize("tries", [0, 1])
async def test_a_kubelet_that_starts_while_a_try_to_start_hangs_has_its_plugins(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    hangs, calls, get = asyncio.Event(), 0, machine.kube.get

    async def silent(kind: Kind, name: str, namespace: str = "") -> Object | None:
        nonlocal calls
        if kind == PODS:
            return await get(kind, name, namespace)
        calls += 1
        if calls > tries:
            hangs.set()
            await asyncio.Event().wait()
        raise Unavailable("API server", found=f"no answer for {kind} {name} {namespace}")

    await counted(machine)
    await running(machine, "old")
    monkeypatch.setattr(machine.kube, "get", silent)
    async with machine.agent():
        await machine.kubelet.until_allocatable(GPU, 1)
        await asyncio.wait_for(hangs.wait(), 20)
        await machine.kubelet.restart(without_record=True)
        await machine.kubelet.until_allocatable(GPU, 1)
        await refused(machine)


def mute(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep each agent from starting to advertise."""

    async def silent(kind: Kind, name: str, namespace: str = "") -> Object | None:
        raise Unavailable("API server", found=f"no answer for {kind} {name} {namespace}")

    monkeypatch.setattr(machine.kube, "get", silent)


async def test_a_status_that_was_late_counts_when_it_comes_until_the_pod_ends(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await counted(machine)
    await machine.pod("old", {GPU: 1})
    mute(machine, monkeypatch)
    with capture_logs() as logs:
        async with machine.agent():
            await until_logged(logs, "resource_advertised")
            status = {"phase": "Running", "containerStatuses": [{"name": "c", "containerID": "containerd://1"}]}
            await machine.kube.patch(PODS, "old", {"status": status}, namespace="default", subresource="status")
            await machine.kubelet.until_allocatable(GPU, 1)
            await machine.kube.delete(PODS, "old", namespace="default")
            await machine.kubelet.until_allocatable(GPU, 0)


async def test_the_next_agent_registers_what_the_first_one_registered(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet knows the resource by then, and a restart with none of it healthy would end the pod.

    An agent that ends before it could advertise takes its plugins with it: the kubelet has none healthy after it.
    """
    await counted(machine)
    await running(machine, "old")
    mute(machine, monkeypatch)
    for _ in range(2):
        async with machine.agent():
            await machine.kubelet.until_allocatable(GPU, 1)
        await machine.kubelet.until_allocatable(GPU, 0)


async def test_a_resource_of_which_the_node_counts_none_is_registered_too(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet whose folder of plugins is empty sets the Node's counts to 0 when it starts."""
    await counted(machine, count=0)
    await running(machine, "old")
    mute(machine, monkeypatch)
    async with machine.agent():
        await machine.kubelet.until_allocatable(GPU, 1)
        await machine.pod("new", {GPU: 1})
        with pytest.raises(Conflict, match="the agent is starting"):
            await machine.kubelet.admit("default", "new", Container(name="c", limits=((GPU, 1),)))


async def test_what_the_kubelet_refuses_by_itself_is_not_registered_before_the_agent_advertises(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(kind: Kind, name: str, namespace: str = "") -> Object | None:
        raise Unavailable("API server", found=f"no answer for {kind} {name} {namespace}")

    async with machine.agent():
        await machine.kubelet.until_allocatable(GPU, 2)
    await counted(machine)
    await running(machine, "old")
    await with_init(machine, "old", 2)
    await recorded(machine, "old", "init", "GPU-1", "GPU-2")
    await recorded(machine, "old", "c", "GPU-1")
    await running(machine, "other")
    await recorded(machine, "other", "c", "GPU-3")
    monkeypatch.setattr(machine.kube, "get", silent)
    machine.kubelet.registrations.clear()
    with capture_logs() as logs:
        async with machine.agent():
            await until_logged(logs, "turn_failed", what="start")
            logs.clear()
            await until_logged(logs, "turn_failed", what="start")
            assert machine.kubelet.registrations == []
            with pytest.raises(Conflict, match="no healthy device"):
                await machine.kubelet.admit("default", "new", Container(name="c", limits=((GPU, 1),)))


async def test_pods_that_the_kubelets_record_lacks_have_devices_before_the_agent_advertises(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also beside a pod whose status is late, and whose device the kubelet's record has twice."""
    async with machine.agent():
        await machine.kubelet.until_allocatable(GPU, 2)
    await counted(machine)
    await machine.pod("late", {GPU: 1})
    await with_init(machine, "late", 1)
    for container in ("init", "c"):
        await recorded(machine, "late", container, "GPU-1")
    await running(machine, "lost")
    mute(machine, monkeypatch)
    async with machine.agent():
        await machine.kubelet.until_allocatable(GPU, 2)


async def test_pods_that_both_records_lack_delay_no_start(machine: Machine) -> None:
    """One was let in by a kubelet without its record before the agent registered: it has nothing."""
    async with machine.agent():
        await machine.label(config="all-1g.5gb")
        await machine.until_state("success")
        await machine.kubelet.until_allocatable(SLICE, 14)
    await machine.kubelet.restart(without_record=True)
    (machine.folder / "state/allocations.json").unlink()
    await counted(machine, SLICE, 14)
    for name in ("old", "stray"):
        await running(machine, name, SLICE)
    assert await machine.start("stray", SLICE) == {}
    with capture_logs() as logs:
        async with machine.agent():
            async with asyncio.timeout(30):  # a minute for each of them is too long
                await machine.kubelet.until_allocatable(SLICE, 14)
    assert any("it lacks pods that run with devices" in str(each.get("reason")) for each in logs), "it did not wait"


async def test_no_instance_is_destroyed_while_no_record_says_what_a_running_pod_has(machine: Machine) -> None:
    """The layout's label has changed meanwhile: 14 of 14 were destroyed, that of the pod among them."""
    async with machine.agent():
        await machine.label(config="all-1g.5gb")
        await machine.until_state("success")
        await machine.kubelet.until_allocatable(SLICE, 14)
    before = {each.uuid for gpu in (await machine.driver.inventory()).gpus for each in gpu.instances}
    await machine.kubelet.restart(without_record=True)
    (machine.folder / "state/allocations.json").unlink()
    await counted(machine, SLICE, 14)
    await running(machine, "old", SLICE)
    pod = await machine.kube.get(PODS, "old", namespace="default")
    process = machine.folder / "proc/200"
    process.mkdir(parents=True)
    (process / "cgroup").write_text(f"0::/kubepods/besteffort/pod{pod and pod['metadata']['uid']}/abc\n")
    await machine.label(config="all-2g.10gb")
    async with machine.agent():
        why = "GPU 0: the instances that pod default/old uses are unknown"
        assert why in await machine.event("LayoutBlocked")
        assert labels_of(await machine.node())[STATE] == "pending"
        await machine.until_observed()
        now = {each.uuid for gpu in (await machine.driver.inventory()).gpus for each in gpu.instances}
        assert now == before
        await machine.kube.delete(PODS, "old", namespace="default")
        (process / "cgroup").unlink()
        process.rmdir()
        await machine.until_state("success")


def memory_share(gib: int) -> tuple[Share, ...]:
    mode = Mode.MEMORY_SHARE
    return (
        Share(
            gpu=0,
            mode=mode,
            memory_mib=gib << 10,
            compute_percent=0,
            isolation=mode.isolation,
            resource=NEED,
            container="c",
        ),
    )


@pytest.mark.parametrize("record", ["lost", "cut off"])
@pytest.mark.parametrize("how", ["removed", "not signed", "replaced"])
async def test_the_memory_of_a_share_whose_assignment_and_record_are_lost_is_not_given_again(
    machine: Machine, how: str, record: str
) -> None:
    """A pod with 30 of 40 GiB runs: its units stay in the kubelet's record, but name no device."""
    await machine.label(gpushare="true")
    async with machine.agent():
        await machine.kubelet.until_allocatable(NEED, 80)
        await machine.pod("p", {NEED: 30}, memory_share(30))
        await machine.start("p", NEED, 30)
    own = await machine.kube.get(PODS, "p", namespace="default") or {}
    status = {"phase": "Running", "containerStatuses": [{"name": "c", "containerID": "containerd://abc"}]}
    await machine.kube.patch(PODS, "p", {"status": status}, namespace="default", subresource="status")
    process = machine.folder / "proc/200"
    process.mkdir(parents=True)
    (process / "cgroup").write_text(f"0::/kubepods/besteffort/pod{own['metadata']['uid']}/abc\n")
    before = own["metadata"]["annotations"]
    after: dict[str, str | None] = dict.fromkeys(before)
    if how == "not signed":
        after |= {ASSIGNMENT: before[ASSIGNMENT]}
    elif how == "replaced":
        after = before | {ASSIGNMENT: before[ASSIGNMENT].replace("30720", "10240")}
        assert after != before
    await machine.kube.patch(PODS, "p", {"metadata": {"annotations": after}}, namespace="default")
    kept = machine.folder / "state/allocations.json"
    content = kept.read_bytes()
    kept.unlink()
    if record == "cut off":
        kept.write_bytes(content[:40])
    async with machine.agent() as agent:
        await machine.kubelet.until_allocatable(NEED, 30)
        text = "pod default/p: it requests units of GPU memory and runs, and the assignment that says of which GPU was"
        assert text in agent.waiting_for()
        await machine.pod("q", {NEED: 20}, memory_share(20))
        with pytest.raises(Conflict, match="0 available devices"):
            await machine.start("q", NEED, 20)
        await machine.kube.delete(PODS, "p", namespace="default")
        machine.kubelet.remove("default", "p")
        (process / "cgroup").unlink()
        process.rmdir()
        await machine.kubelet.until_allocatable(NEED, 80)
        assert await machine.start("q", NEED, 20)
