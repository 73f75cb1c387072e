"""Shares by assignment: which pod an Allocate call is for, and what its container gets."""

import asyncio
import contextlib
import json
import os
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from builders.gpunodes import facts
from builders.signed import AGENT, SERVER, STRANGER, keys, signed
from harness.pluginnode import CDI, MEMORY, NEED, Node, share
from tessera.api.kubernetes.devicecheckpoint import DEVICE_CHECKPOINT
from tessera.api.tessera.pods.assignments import write_shares
from tessera.api.tessera.pods.signatures import is_signed, key_id, signature_text
from tessera.clients.kubelet import Container
from tessera.core.cluster.snapshot import Share
from tessera.core.gpu.sharing import AUTO
from tessera.core.node.nodesharing import PluginOptions
from tessera.errors import Conflict, Unavailable

pytestmark = pytest.mark.anyio


async def test_each_pod_gets_its_own_share_by_cdi_in_whatever_order_they_come(node: Node) -> None:
    await node.offer((facts(0), MEMORY), (facts(1, "T4"), MEMORY), how=CDI)
    for number in range(6):
        node.assign(f"p{number}", 2, share(number % 2, 2048))
    for number in reversed(range(6)):
        got = await node.run(f"p{number}", NEED, 2)
        edits = node.spec(got)
        env = dict(pair.split("=", 1) for pair in edits["env"])
        assert env["TESSERA_GPU_UUIDS"] == facts(number % 2).uuid
        assert env["NVIDIA_VISIBLE_DEVICES"] == "void"
        assert env["ALIYUN_COM_GPU_MEM_IDX"] == str(number % 2)
        assert edits["deviceNodes"][0]["path"] == f"/dev/nvidia{number % 2}"
        assert node.assigned(f"p{number}")[0]["gpu"] == number % 2
    assert await node.kubelet.create("default", "p3", "main") == await node.kubelet.create("default", "p3", "main")


async def test_a_pod_that_the_watch_does_not_show_yet_keeps_what_it_was_answered(node: Node) -> None:
    """`Allocate` took it for another; as long as nobody knows it, its device must not look free."""
    await node.offer(*((facts(index, "T4"), MEMORY) for index in range(2)))
    node.assign("seen", 10, share(0, 10240))
    node.assign("new", 10, share(1, 10240))
    del node.watched["default", "new"]
    for name in ("new", "seen"):
        await node.kubelet.admit("default", name, Container(name="main", limits=((NEED, 10),)))
    given = {
        name: dict((await node.kubelet.create("default", name, "main")).env)["NVIDIA_VISIBLE_DEVICES"]
        for name in ("new", "seen")
    }
    assert given == {"new": facts(0, "T4").uuid, "seen": facts(1, "T4").uuid}


@pytest.mark.parametrize("has_get", [True, False])
async def test_the_kubelet_is_never_asked_to_list(node: Node, *, has_get: bool) -> None:
    """That makes it forget what it is allocating. One whose record cannot be read otherwise is refused its pod."""
    await node.offer((facts(0), MEMORY), how=CDI)
    node.assign("before", 2, share(0, 2048))
    await node.run("before", NEED, 2)
    node.kubelet.has_get = has_get
    (node.kubelet.plugins / DEVICE_CHECKPOINT).write_text("no checkpoint")
    node.assign("p", 2, share(0, 2048))
    with contextlib.nullcontext() if has_get else pytest.raises(Conflict, match=r"a kubelet from 1\.34"):
        await node.kubelet.admit("default", "p", Container(name="main", limits=((NEED, 2),)))
    with contextlib.suppress(Unavailable):
        await node.plugins.shares.clean_up()
    assert node.kubelet.listed == 0


async def test_ids_that_nobody_holds_are_not_made_ready(node: Node) -> None:
    await node.offer((facts(0), MEMORY), how=CDI)
    with pytest.raises(Unavailable, match="does not list these devices for any container"):
        await node.plugins.shares.pre_start(NEED, ("GPU-x-_-0",))


@pytest.mark.parametrize(
    ("units", "want"), [(None, "the API server does not have pod uid-p"), (3, "an assignment to 3 units")]
)
async def test_an_assignment_that_went_or_changed(node: Node, units: int | None, want: str) -> None:
    node.hurry(late_s=0.1)
    await node.offer((facts(0), MEMORY), how=CDI)
    node.assign("p", 2, share(0, 2048))
    await node.kubelet.admit("default", "p", Container(name="main", limits=((NEED, 2),)))
    node.watched.clear()
    node.pods.clear()
    if units:
        node.assign("p", units, share(0, 3072))
    with pytest.raises(Conflict, match=want):
        await node.kubelet.create("default", "p", "main")


async def test_memory_that_cannot_be_written_is_said(node: Node) -> None:
    (node.root / f".shares.json.{os.getpid()}").mkdir()
    await node.offer((facts(0), MEMORY))
    node.assign("p", 2, share(0, 2048))
    with capture_logs() as logs:
        assert (await node.run("p", NEED, 2)).env
    assert "answers_not_kept" in [each["event"] for each in logs]


async def test_a_container_starts_with_what_it_was_told_though_answers_were_not_kept(node: Node) -> None:
    """There was no room for them, and the agent was killed: what it does not know is not given to another pod."""
    (node.root / f".shares.json.{os.getpid()}").mkdir()
    await node.offer(*((facts(index, "T4"), MEMORY) for index in range(2)))
    for number in range(2):
        node.assign(f"p{number}", 10, share(number, 10240))
    container = Container(name="main", limits=((NEED, 10),))
    await node.kubelet.admit("default", "p1", container)
    await node.kill()
    node.plugins = node.started()
    await node.offer(*((facts(index, "T4"), MEMORY) for index in range(2)))
    with pytest.raises(Conflict, match=rf"it uses GPU {facts(0).uuid}, and is assigned GPU {facts(1).uuid}"):
        await node.kubelet.create("default", "p1", "main")
    with pytest.raises(Conflict, match="of pod default/p1"):
        await node.kubelet.admit("default", "p0", container)


@pytest.mark.parametrize("content", [None, b"", b'{"version": 2}', b"\xff"])
async def test_a_container_whose_answer_is_lost_does_not_start_with_a_gpu_of_another_pods(
    node: Node, content: bytes | None
) -> None:
    """The state folder is lost or unreadable: the first pod was started with the other's GPU."""
    pairs = [(facts(index, "T4"), MEMORY) for index in range(2)]
    await node.offer(*pairs)
    for number in range(2):
        node.assign(f"p{number}", 10, share(number, 10240))
    await node.kubelet.admit("default", "p1", Container(name="main", limits=((NEED, 10),)))
    await node.kill()
    for name in ("shares.json", "allocations.json"):
        (node.root / name).unlink() if content is None else (node.root / name).write_bytes(content)
    node.plugins = node.started()
    await node.offer(*pairs)
    told = f"it uses GPU {facts(0).uuid}, and is assigned GPU {facts(1).uuid}"
    with pytest.raises(Conflict, match=f"pod default/p1, container main: {told}"):
        await node.kubelet.create("default", "p1", "main")
    assert [dict((await node.run("p0", NEED, 10)).env)["TESSERA_GPU_UUIDS"]] == [facts(0).uuid]


async def test_a_container_that_ran_starts_again_though_all_records_are_lost(node: Node) -> None:
    await node.offer((facts(0, "T4"), MEMORY))
    node.assign("p", 10, share(0, 10240))
    await node.run("p", NEED, 10)
    await node.kill()
    status = {"containerStatuses": [{"name": "main", "containerID": "containerd://1"}]}
    node.pods["default", "p"] = node.watched["default", "p"] = {**node.pods["default", "p"], "status": status}
    for name in ("shares.json", "allocations.json"):
        (node.root / name).unlink()
    node.plugins = node.started()
    await node.offer((facts(0, "T4"), MEMORY))
    assert dict((await node.kubelet.create("default", "p", "main")).env)["TESSERA_GPU_UUIDS"] == facts(0).uuid


@pytest.mark.parametrize("how", [CDI, PluginOptions(list_strategies=("envvar",))], ids=["cdi", "envvar"])
async def test_after_a_reboot_pods_get_their_shares_though_the_kubelet_lost_its_record(
    node: Node, how: PluginOptions
) -> None:
    """The API server has them as running. A pod of no assignment gets nothing, whatever its size."""
    pairs = (facts(0, "T4"), MEMORY), (facts(1, "T4"), MEMORY)
    await node.offer(*pairs, how=how)
    for number, name in enumerate("pq"):
        node.assign(name, 10, share(number, 10240))
        await node.run(name, NEED, 10)
        node.pods["default", name]["status"] = {"phase": "Running"}
    await node.kill()
    for name in "pq":
        node.kubelet.remove("default", name)
    node.kubelet._write_checkpoint()
    node.plugins = node.started()
    await node.offer(*pairs, how=how)
    for name in "qp" if how is CDI else "pq":  # by the environment the guess holds: the kubelet admits the oldest first
        await node.run(name, NEED, 10)
    assert {each.pod: each.uses[0].device.gpu for each in node.plugins.gate.record.entries} == {
        f"default/{name}": facts(node.assigned(name)[0]["gpu"]).uuid for name in "pq"
    }
    node.ask("stray", NEED, 10)
    with pytest.raises(Conflict, match="all 2 assigned pods already have their devices"):
        await node.kubelet.admit("default", "stray", Container(name="main", limits=((NEED, 10),)))


async def test_a_container_that_was_told_a_gpu_does_not_start_with_another_since_they_were_renumbered(
    node: Node,
) -> None:
    """A GPU fell out and the node was rebooted: what the kubelet has of a container names the GPU of before."""
    await node.offer(*((facts(index, "T4"), MEMORY) for index in range(3)))
    node.assign("p", 10, share(1, 10240))
    assert dict((await node.run("p", NEED, 10)).env)["TESSERA_GPU_UUIDS"] == facts(1).uuid
    await node.kill()
    await node.kubelet.restart()
    node.plugins = node.started()
    await node.offer(*((msgspec.structs.replace(facts(index + 1, "T4"), index=index), MEMORY) for index in range(2)))
    for _ in range(2):
        with pytest.raises(Conflict, match=rf"it uses GPU {facts(1).uuid}, and is assigned GPU {facts(2).uuid}"):
            await node.kubelet.create("default", "p", "main")
        node.passed_s += 61
    node.assign("next", 10, share(0, 10240))
    with pytest.raises(Conflict, match="of pod default/p"):
        await node.kubelet.admit("default", "next", Container(name="main", limits=((NEED, 10),)))
    assert [pod for pod, _ in node.plugins.gate.refusals.blocked_pods().values()] == ["default/p"], "it is evicted"


async def test_an_answer_for_a_pod_that_the_watch_is_a_minute_late_to_show_is_kept(node: Node) -> None:
    await node.offer((facts(0, "T4"), MEMORY))
    node.assign("p", 10, share(0, 10240))
    del node.watched["default", "p"]
    await node.kubelet.admit("default", "p", Container(name="main", limits=((NEED, 10),)))
    await node.plugins.shares.refresh()
    node.silent = True
    await node.plugins.gate.record.clean_up(node.plugins._uses_of)
    node.passed_s += 61
    await node.plugins.gate.record.clean_up(node.plugins._uses_of)
    assert [(each.uid, len(each.uses)) for each in node.plugins.gate.record.entries] == [("", 1)]
    node.silent = False
    await node.plugins.gate.record.clean_up(node.plugins._uses_of)
    assert [(each.uid, len(each.uses)) for each in node.plugins.gate.record.entries] == [("uid-p", 1)]


async def test_tidying_mends_what_the_agent_did_not_live_to_write(node: Node) -> None:
    await node.offer((facts(0), MEMORY), (facts(1, "T4"), MEMORY))
    for number in range(2):
        node.assign(f"p{number}", 2, share(number, 2048))
    await node.kubelet.admit("default", "p1", Container(name="main", limits=((NEED, 2),)))
    await node.plugins.shares.clean_up()
    assert [node.assigned(name)[0]["gpu"] for name in ("p0", "p1")] == [1, 0]


async def test_the_agent_is_killed_between_allocation_and_creation(node: Node) -> None:
    pairs = (facts(0), MEMORY), (facts(1, "T4"), MEMORY)
    await node.offer(*pairs)
    for number in range(2):
        node.assign(f"p{number}", 2, share(number, 2048))
    await node.kubelet.admit("default", "p1", Container(name="main", limits=((NEED, 2),)))
    await node.kill()
    node.plugins = node.started()
    await node.offer(*pairs)
    got = dict((await node.kubelet.create("default", "p1", "main")).env)
    assert got["NVIDIA_VISIBLE_DEVICES"] == facts(0).uuid
    assert [node.assigned(name)[0]["gpu"] for name in ("p0", "p1")] == [1, 0]
    got = dict((await node.run("p0", NEED, 2)).env)
    assert got["NVIDIA_VISIBLE_DEVICES"] == facts(1, "T4").uuid


async def test_an_assignment_that_the_watch_does_not_show_yet_is_found(node: Node) -> None:
    await node.offer((facts(0), MEMORY), how=CDI)
    node.assign("p", 2, share(0, 2048))
    node.watched.clear()
    assert node.spec(await node.run("p", NEED, 2))


async def test_while_the_api_server_is_silent_the_watch_is_waited_for(node: Node) -> None:
    await node.offer((facts(0), MEMORY), how=CDI)
    node.silent = True
    node.looked.clear()
    running = asyncio.create_task(node.run("p", NEED, 2))
    await asyncio.wait_for(node.looked.wait(), 10)
    node.assign("p", 2, share(0, 2048))
    assert node.spec(await running)


async def test_what_no_container_needs_is_removed(node: Node) -> None:
    await node.offer((facts(0), AUTO), how=CDI)
    (node.cdi / "nvidia.json").write_text("{}")
    (node.cdi / "tessera.dev-share-stale.json").write_text("{}")
    node.assign("p", 2, share(0, 2048))
    await node.run("p", NEED, 2)
    node.assign("q", 2, share(0, 2048))
    await node.kubelet.admit("default", "q", Container(name="main", limits=((NEED, 2),)))
    desk = node.plugins.shares  # its task looks every half minute
    await desk.clean_up()
    assert {path.name for path in node.cdi.iterdir()} >= {"nvidia.json", "tessera.dev-gpu.json"}
    assert len(list(node.cdi.glob("tessera.dev-share-*"))) == 1
    node.end("p")
    node.end("q")
    await desk.clean_up()
    await desk.clean_up()
    node.passed_s += 61
    await desk.clean_up()
    assert list(node.cdi.glob("tessera.dev-share-*")) == []


async def test_nothing_is_removed_while_the_record_lacks_a_running_pod(node: Node) -> None:
    """As just after the kubelet has started."""
    await node.offer((facts(0), MEMORY), how=CDI)
    node.assign("p", 2, share(0, 2048))
    got = await node.run("p", NEED, 2)
    node.watched["default", "p"] = {**node.pods["default", "p"], "status": {"phase": "Running"}}
    node.kubelet.remove("default", "p")
    for _ in range(3):
        await node.plugins.shares.clean_up()  # its task looks every half minute
    assert node.spec(got)


async def test_a_running_pod_that_the_record_never_shows_is_waited_for_no_longer_than_a_minute(node: Node) -> None:
    """It named its node before the agent had registered its resource: the kubelet records nothing of it, ever."""
    await node.offer((facts(0), MEMORY), how=CDI)
    node.assign("honest", 2, share(0, 2048))
    for name in ("early", "stray"):
        node.ask(name, NEED, 2)
    node.watched["default", "early"] = node.pods["default", "early"] | {"status": {"phase": "Running"}}
    await node.kubelet.admit("default", "stray", Container(name="main", limits=((NEED, 2),)))
    (node.kubelet.plugins / DEVICE_CHECKPOINT).write_text("no checkpoint")
    await node.plugins.shares.clean_up()
    assert node.plugins.shares.unassigned == {}
    node.passed_s += 61
    await node.plugins.shares.clean_up()
    assert node.plugins.shares.unassigned == {"uid-stray": "default/stray"}


async def test_memory_that_is_broken_is_left_and_said(node: Node) -> None:
    (node.root / "shares.json").write_text("{")
    with capture_logs() as logs:
        node.plugins = node.started()
    assert logs[0]["event"] == "answers_forgotten"
    await node.offer((facts(0), MEMORY))
    node.assign("p", 2, share(0, 2048))
    assert (await node.run("p", NEED, 2)).env


async def test_neither_of_the_kubelet_s_records_can_be_read(node: Node) -> None:
    await node.offer((facts(0), MEMORY), how=CDI)
    node.assign("p", 2, share(0, 2048))
    await node.kubelet.admit("default", "p", Container(name="main", limits=((NEED, 2),)))
    (node.kubelet.plugins / "kubelet_internal_checkpoint").write_bytes(b"\xff{")

    async def broken(*_: str) -> tuple[()]:
        raise Unavailable("socket", found="no answer", expected="the record")

    node.record.get = broken  # type: ignore[assignment,method-assign]  # a kubelet that hangs
    with pytest.raises(Conflict, match="no answer"):
        await node.kubelet.create("default", "p", "main")


async def test_shares_of_init_containers_are_those_of_their_pod(node: Node) -> None:
    await node.offer((facts(0, "T4"), MEMORY), how=CDI)
    node.assign("p", 8, share(0, 8192))
    containers = node.pods["default", "p"]["spec"]
    containers["initContainers"] = [{"name": "init", "resources": {"limits": {NEED: "0"}}}]
    await node.run("p", NEED, 8)
    node.assign("q", 7, share(0, 7168))
    assert node.spec(await node.run("q", NEED, 7))


@pytest.mark.parametrize(("first", "then"), [(2, 2), (1, 2), (2, 1)])
async def test_an_init_container_has_its_pod_s_share_before_the_others(node: Node, first: int, then: int) -> None:
    await node.offer((facts(0), MEMORY), how=CDI)
    node.assign("p", then, share(0, 1024 * max(first, then)))
    init = {"name": "init", "resources": {"limits": {NEED: str(first)}}}
    node.pods["default", "p"]["spec"]["initContainers"] = [init]
    node.pods["default", "p"] = signed(node.pods["default", "p"])
    node.watched["default", "p"] = node.pods["default", "p"]
    ids = tuple(f"{facts(0).uuid}-_-{number}" for number in range(max(first, then)))
    for name, count in (("init", first), ("main", then)):
        await node.kubelet.allocate("default", "p", Container(name=name, limits=((NEED, count),)), ids[:count])
    for name in ("init", "main"):
        edits = node.spec(await node.kubelet.create("default", "p", name))
        assert f"TESSERA_GPU_UUIDS={facts(0).uuid}" in edits["env"]


async def test_with_envvar_too_an_unassigned_pod_keeps_nothing_from_those_that_were_assigned(node: Node) -> None:
    """`Allocate` took it for the honest one, and answered with what that was assigned."""
    await node.offer((facts(0, "T4"), MEMORY), (facts(1, "T4"), MEMORY))
    node.ask("stray", NEED, 10)
    node.assign("p", 10, share(0, 10240))
    await node.kubelet.admit("default", "stray", Container(name="main", limits=((NEED, 10),)))
    with pytest.raises(Conflict, match="not scheduled by tessera-scheduler"):
        await node.kubelet.create("default", "stray", "main")
    assert dict((await node.run("p", NEED, 10)).env)["TESSERA_GPU_UUIDS"] == facts(0, "T4").uuid


async def test_a_pod_whose_image_never_comes_keeps_nothing_that_it_was_mistaken_for(node: Node) -> None:
    """It named its node. What `Allocate` answered it was meant for an honest pod, whose turn comes after a minute."""
    await node.offer((facts(0, "T4"), MEMORY), (facts(1, "T4"), MEMORY))
    node.assign("p", 10, share(0, 10240))
    node.ask("stray", NEED, 10)
    await node.kubelet.admit("default", "stray", Container(name="main", limits=((NEED, 10),)))
    await node.plugins.gate.record.clean_up(node.plugins._uses_of)
    node.passed_s += 61
    await node.plugins.gate.record.clean_up(node.plugins._uses_of)
    assert [(each.pod, len(each.uses)) for each in node.plugins.gate.record.entries] == [("default/stray", 1)]
    node.end("p")
    node.assign("q", 10, share(0, 10240))
    assert dict((await node.run("q", NEED, 10)).env)["NVIDIA_VISIBLE_DEVICES"] == facts(0, "T4").uuid


# What was started before all public keys were lost


async def restart(node: Node, how: PluginOptions | None) -> None:
    """Let an agent start that knows no key but its own."""
    await node.kill()
    node.trust.keys = keys(AGENT)
    node.plugins = node.started()
    await node.offer((facts(0), MEMORY), (facts(1), MEMORY), how=how)


def forge(node: Node, name: str, *shares: Share) -> None:
    """Let a pod's tenant write another assignment on it, beside the signature that is there."""
    changed = node.pods["default", name]
    text = {**changed["metadata"]["annotations"], "tessera.dev/assignment": write_shares(shares)}
    changed = {**changed, "metadata": {**changed["metadata"], "annotations": text}}
    node.pods["default", name] = node.watched["default", name] = changed


HOWS = {"cdi-cri": CDI, "envvar": None}


@pytest.mark.parametrize("how", HOWS)
async def test_a_container_starts_again_though_all_public_keys_are_lost(node: Node, how: str) -> None:
    await node.offer((facts(0), MEMORY), (facts(1), MEMORY), how=HOWS[how])
    for name, gpu in (("p", 0), ("late", 1)):
        node.assign(name, 2 + gpu, share(gpu, 1024 * (2 + gpu), compute_percent=10))
        await node.kubelet.admit("default", name, Container(name="main", limits=((NEED, 2 + gpu),)))
    await node.kubelet.create("default", "p", "main")
    await restart(node, HOWS[how])
    forge(node, "p", share(0, 2048, compute_percent=100))
    got = await node.kubelet.create("default", "p", "main")
    if how == "cdi-cri":
        assert f"TESSERA_GPU_UUIDS={facts(0).uuid}" in node.spec(got)["env"]
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100" not in node.spec(got)["env"]
    with pytest.raises(Conflict, match=f"does not count: a signature of key '{key_id(SERVER.public)}'"):
        await node.kubelet.create("default", "late", "main")
    assert node.plugins.shares.unassigned == {"uid-late": "default/late"}
    await node.plugins.shares.repair()
    assert [each["computePercent"] for each in node.assigned("p")] == [10]
    assert is_signed(node.pods["default", "p"], keys(AGENT))
    assert not is_signed(node.pods["default", "late"], keys(AGENT))


@pytest.mark.parametrize("readable", [True, False], ids=["its checkpoint", "PodResources"])
async def test_a_running_pod_that_the_kubelet_lost_holds_nothing_up_where_the_record_is(
    node: Node, *, readable: bool
) -> None:
    """A checkpoint that lacks it never has it; what a kubelet that starts answers may have it soon."""
    await node.offer((facts(0), MEMORY), (facts(1), MEMORY), how=CDI)
    node.assign("p", 2, share(0, 2048))
    await node.run("p", NEED, 2)
    running = {**node.pods["default", "p"], "status": {"phase": "Running"}}
    node.pods["default", "p"] = node.watched["default", "p"] = running
    node.kubelet.lose_record()
    node.assign("q", 3, share(1, 3072))
    node.ask("stray", NEED, 3)
    await node.kubelet.admit("default", "stray", Container(name="main", limits=((NEED, 3),)))
    if not readable:
        (node.kubelet.plugins / DEVICE_CHECKPOINT).write_text("no checkpoint")
    for waited, removed in ((0, readable), (61, not readable)):
        node.passed_s += waited
        with capture_logs() as logs:
            await node.plugins.shares.clean_up()
        assert ("shares_removed" in [each["event"] for each in logs]) is removed
        assert ("uid-stray" in node.plugins.shares.unassigned) is (readable or waited > 0)


@pytest.mark.parametrize("agent", ["runs on", "starts again"])
@pytest.mark.parametrize("how", HOWS)
async def test_a_container_starts_again_though_its_assignment_was_removed(node: Node, how: str, agent: str) -> None:
    """Admission is switched off, so its pod's tenant may do that. Its memory stays its own."""
    await node.offer((facts(0), MEMORY), (facts(1), MEMORY), how=HOWS[how])
    node.assign("p", 2, share(0, 2048))
    await node.run("p", NEED, 2)
    bare = {**node.pods["default", "p"]["metadata"], "annotations": {}}
    node.pods["default", "p"] = node.watched["default", "p"] = {**node.pods["default", "p"], "metadata": bare}
    if agent == "starts again":
        await restart(node, HOWS[how])
    await node.plugins.shares.clean_up()
    assert [each.shares for each in node.plugins.shares.assigned_requests()] == [(share(0, 2048),)]
    await node.kubelet.create("default", "p", "main")
    assert (node.plugins.shares.unassigned, node.plugins.gate.refusals.blocked_pods()) == ({}, {})
    await node.plugins.shares.repair()
    assert is_signed(node.pods["default", "p"], keys(AGENT, SERVER)), "so that servers count it"


@pytest.mark.parametrize("how", HOWS)
async def test_a_container_does_not_start_again_whose_key_was_revoked_while_it_ran(node: Node, how: str) -> None:
    """What it uses stays counted, so that nobody else gets it."""
    await node.offer((facts(0), MEMORY), (facts(1), MEMORY), how=HOWS[how])
    node.assign("p", 2, share(0, 2048))
    await node.run("p", NEED, 2)
    running = {**node.pods["default", "p"], "status": {"phase": "Running"}}
    node.pods["default", "p"] = node.watched["default", "p"] = running
    assert len(node.plugins.shares.assigned_requests()) == 1
    node.trust.keys, node.trust.revoked_keys = keys(AGENT), {key_id(SERVER.public)}
    with pytest.raises(Conflict, match="does not count"):
        await node.kubelet.create("default", "p", "main")
    assert [each.shares for each in node.plugins.shares.assigned_requests()] == [(share(0, 2048),)]
    await node.plugins.shares.repair()
    assert not is_signed(node.pods["default", "p"], keys(AGENT))
    await node.plugins.shares.clean_up()
    node.trust.revoked_keys = set()
    await restart(node, HOWS[how])  # one that has forgotten what was revoked
    with pytest.raises(Conflict, match="does not count"):
        await node.kubelet.create("default", "p", "main")


@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize("how", HOWS)
async def test_what_the_agent_wrote_again_does_not_outlive_the_key_that_signed_it_first(
    node: Node, how: str, *, published: bool
) -> None:
    """A stolen key signed it; its pod's tenant had the agent write it by naming a key that nobody knows."""
    await node.offer((facts(0), MEMORY), (facts(1), MEMORY), how=HOWS[how])
    node.assign("p", 2, share(0, 2048))
    await node.run("p", NEED, 2)
    tampered = node.pods["default", "p"]["metadata"]["annotations"]
    tampered["tessera.dev/assignment-signature"] = signature_text(STRANGER.public, b"x" * 64)
    await restart(node, HOWS[how])
    node.trust.keys = keys(SERVER, AGENT) if published else keys(AGENT)
    await node.plugins.shares.repair()
    assert is_signed(node.pods["default", "p"], keys(SERVER if published else AGENT))
    node.trust.keys, node.trust.revoked_keys = keys(AGENT), {key_id(SERVER.public)}
    for _ in range(3):
        await node.plugins.shares.clean_up()
    with pytest.raises(Conflict, match="does not count"):
        await node.kubelet.create("default", "p", "main")
    node.trust.revoked_keys = set()
    await restart(node, HOWS[how])  # one that has forgotten what was revoked
    await node.plugins.shares.clean_up()
    with pytest.raises(Conflict, match="does not count"):
        await node.kubelet.create("default", "p", "main")


@pytest.mark.parametrize("how", HOWS)
async def test_a_container_does_not_start_again_whose_assignment_a_revoked_key_signed(node: Node, how: str) -> None:
    await node.offer((facts(0), MEMORY), (facts(1), MEMORY), how=HOWS[how])
    node.assign("p", 2, share(0, 2048))
    await node.run("p", NEED, 2)
    node.trust.revoked_keys = {key_id(SERVER.public)}
    await restart(node, HOWS[how])
    tampered = node.pods["default", "p"]["metadata"]["annotations"]
    tampered["tessera.dev/assignment-signature"] = signature_text(STRANGER.public, b"x" * 64)
    with pytest.raises(Conflict, match="does not count"):
        await node.kubelet.create("default", "p", "main")
    await node.plugins.shares.repair()
    assert not is_signed(node.pods["default", "p"], keys(AGENT))


RECORDED: dict[str, dict[str, Any]] = {
    "other ids": {"ids": ["x", "y"]},
    "other devices": {"uses": [{"gpu": "GPU-x", "sharer": "memory", "memory_mib": 2048}]},
    "nothing started": {"started": False},
    "another container": {"container": "side"},
    "another pod": {"uid": "another"},
}


@pytest.mark.parametrize("case", RECORDED)
async def test_nothing_starts_by_a_record_of_anything_else(node: Node, case: str) -> None:
    await node.offer((facts(0), MEMORY), (facts(1), MEMORY), how=CDI)
    node.assign("p", 2, share(0, 2048))
    await node.run("p", NEED, 2)
    path = node.root / "allocations.json"
    (entry,) = json.loads(path.read_text())
    await node.kill()
    path.write_text(json.dumps([entry | RECORDED[case]]))
    await restart(node, CDI)
    with pytest.raises(Conflict, match="does not count"):
        await node.kubelet.create("default", "p", "main")
    await node.plugins.shares.repair()
    assert not is_signed(node.pods["default", "p"], keys(AGENT))


async def test_what_an_agent_of_before_started_is_known_once_the_record_was_tidied(node: Node) -> None:
    await node.offer((facts(0), MEMORY), how=CDI)
    for name in ("p", "other"):
        node.assign(name, 2, share(0, 2048))
        await node.run(name, NEED, 2)
    await node.kill()
    path = node.root / "allocations.json"
    kept = json.loads(path.read_text())
    for each in kept:
        del each["assignment"], each["key"], each["signature"]
    path.write_text(json.dumps(kept))
    node.plugins = node.started()
    await node.offer((facts(0), MEMORY), (facts(1), MEMORY), how=CDI)
    node.assign("other", 2, share(1, 2048))  # another than it was started with, who knows why
    await node.plugins.shares.clean_up()
    on_record = {each.pod: (each.assignment, each.key) for each in node.plugins.gate.record.entries}
    text = node.pods["default", "p"]["metadata"]["annotations"]["tessera.dev/assignment"]
    assert on_record == {"default/p": (text, key_id(SERVER.public)), "default/other": ("", "")}


@pytest.mark.parametrize("lost", [False, True])
async def test_a_pod_whose_gpu_is_gone_takes_no_other_with_it(node: Node, *, lost: bool) -> None:
    """It waited for longer, so that `Allocate` would take each call to be for it, until the watch shows its failure."""
    gone = (msgspec.structs.replace(facts(1, "T4"), lost=True), MEMORY)
    await node.offer((facts(0, "T4"), MEMORY), *[gone] * lost)
    for name, gpu in (("a", 1), ("b", 0), ("c", 0)):
        node.assign(name, 5, share(gpu, 5120))
    for name in "ab":
        assert dict((await node.run(name, NEED, 5)).env)["NVIDIA_VISIBLE_DEVICES"] == facts(0, "T4").uuid
    with pytest.raises(Conflict, match=r"GPU 1: .*, and the pod's assignment names it"):
        await node.run("c", NEED, 5)
