"""Shares whose container is handed an answer of before: the device list strategies, GPUs or ids have changed since."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from builders.gpunodes import facts, sevenths
from harness.pluginnode import CDI, GPU, MEMORY, NEED, WHOLE, Node, mig, share
from tessera.agent.deviceplugin.containers.changerequests import ChangeRequest
from tessera.clients.kubelet import Container
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.node.nodesharing import PluginOptions
from tessera.errors import Conflict

pytestmark = pytest.mark.anyio

ENV = PluginOptions(list_strategies=("envvar",))
VOLUME = PluginOptions(list_strategies=("volume-mounts",))
BOTH = PluginOptions(list_strategies=("envvar", "cdi-cri"))
GPUS = (facts(0, "T4"), MEMORY), (facts(1, "T4"), MEMORY)
FIVE, TWELVE = (Container(name="main", limits=((NEED, units),)) for units in (5, 12))


def uuids(node: Node, answer: ContainerResponse) -> str:
    """Return the GPUs that a container has as its runtime hands them over."""
    if not answer.cdi_devices:
        return dict(answer.env)["NVIDIA_VISIBLE_DEVICES"]
    env: list[str] = node.spec(answer)["env"]
    return dict(each.split("=", 1) for each in env)["TESSERA_GPU_UUIDS"]


class Held:
    """Lets the first change of a node's GPUs wait until `goes_on` is set."""

    def __init__(self, node: Node) -> None:
        self.waits, self.goes_on = asyncio.Event(), asyncio.Event()
        self._change: Callable[[ChangeRequest], Awaitable[Inventory]] = node.change
        node.change = self.change  # type: ignore[method-assign]

    async def change(self, request: ChangeRequest) -> Inventory:
        if not self.waits.is_set():
            self.waits.set()
            await self.goes_on.wait()
        return await self._change(request)


@pytest.mark.parametrize(("before", "after"), [(ENV, CDI), (CDI, ENV), (BOTH, CDI), (BOTH, ENV)])
async def test_an_answer_names_devices_in_one_way_though_the_strategies_change_meanwhile(
    node: Node, before: PluginOptions, after: PluginOptions
) -> None:
    """As on a node that boots: the driver's CDI specification appears while `Allocate` waits."""
    await node.offer(*GPUS, how=before)
    held = Held(node)
    node.assign("p", 5, share(1, 5120))
    admitting = asyncio.ensure_future(node.kubelet.admit("default", "p", FIVE))
    if before is not CDI:
        await held.waits.wait()
        await node.offer(*GPUS, how=after)
    held.goes_on.set()
    await admitting
    await node.offer(*GPUS, how=after)
    answer = await node.kubelet.create("default", "p", "main")
    assert bool(answer.cdi_devices) == (before is not ENV)
    assert uuids(node, answer) == facts(1).uuid
    assert {each.strategies for each in node.plugins.gate.record.entries} == {before.list_strategies}


@pytest.mark.parametrize("now", [ENV, CDI], ids=["envvar", "cdi"])
async def test_what_the_record_says_an_answer_named_holds_though_answers_were_lost_and_cdi_came(
    node: Node, now: PluginOptions
) -> None:
    """It was for another pod of the size: both together would have 24 GiB of a GPU of 15."""
    await node.offer(*GPUS, how=ENV)
    node.assign("p", 12, share(0, 12288))
    node.assign("q", 12, share(1, 12288))
    await node.kubelet.admit("default", "q", TWELVE)
    await node.kill()
    (node.root / "shares.json").unlink()
    node.plugins = node.started()
    await node.offer(*GPUS, how=now)
    with pytest.raises(Conflict, match=f"it uses GPU {facts(0).uuid}, and is assigned GPU {facts(1).uuid}"):
        await node.kubelet.create("default", "q", "main")


@pytest.mark.parametrize("restart", [False, True])
async def test_a_container_that_was_answered_by_cdi_starts_by_cdi(node: Node, *, restart: bool) -> None:
    """Its ids were a pod's that has ended, whose specification is still there, and names another GPU."""
    await node.offer(*GPUS, how=CDI)
    node.assign("old", 5, share(0, 5120))
    await node.run("old", NEED, 5)
    ids = node.kubelet._entries[-1].ids
    node.end("old")
    node.assign("q", 5, share(1, 5120))
    await node.kubelet.allocate("default", "q", FIVE, ids)
    if restart:
        await node.kill()
        node.plugins = node.started()
    await node.offer(*GPUS, how=ENV)
    assert uuids(node, await node.kubelet.create("default", "q", "main")) == facts(1).uuid


@pytest.mark.parametrize("kind", [NEED, GPU])
async def test_after_a_reboot_a_container_is_handed_what_it_was_answered_by_cdi(node: Node, kind: str) -> None:
    """Nothing of `/var/run` is left, and the node has another strategy by now."""
    pairs = (facts(0, "T4"), MEMORY if kind == NEED else WHOLE)
    (node.root / "nvidia.yaml").write_text(
        "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ncontainerEdits:\n"
        "  mounts: [{hostPath: /lib/libcuda.so.1, containerPath: /lib/libcuda.so.1}]\n"
    )
    await node.offer(pairs, how=CDI)
    if kind == NEED:
        node.assign("p", 5, share(0, 5120))
    await node.run("p", kind, 5 if kind == NEED else 1)
    await node.kill()
    shutil.rmtree(node.cdi)
    node.plugins = node.started()
    await node.offer(pairs, how=ENV)
    node.spec(await node.kubelet.create("default", "p", "main"))
    written = "".join(path.read_text() for path in node.cdi.glob("*.json"))
    assert "libcuda.so.1" in written, "the driver's libraries, too"


async def test_a_call_for_a_pod_that_is_gone_writes_nothing(node: Node) -> None:
    """Kubelets before 1.35 do not cancel it: the pod's ids are another's by the time its devices are ready."""
    await node.offer(*GPUS, how=CDI)
    held = Held(node)
    node.assign("p", 5, share(0, 5120))
    node.process_of("p")
    await node.kubelet.admit("default", "p", FIVE)
    starting = asyncio.ensure_future(node.kubelet.create("default", "p", "main"))
    await held.waits.wait()
    ids = node.kubelet._entries[-1].ids
    node.version += 5
    node.end("p")
    node.assign("q", 5, share(1, 5120))
    await node.kubelet.allocate("default", "q", FIVE, ids)
    answer = await node.kubelet.create("default", "q", "main")
    held.goes_on.set()
    with pytest.raises(Conflict, match="pod default/p, container main: the kubelet gave its devices"):
        await starting
    assert uuids(node, answer) == facts(1).uuid


@pytest.mark.parametrize("how", [CDI, ENV], ids=["at the start", "at the allocation"])
async def test_gpus_that_are_renumbered_between_record_and_answer_are_not_handed_over(
    node: Node, how: PluginOptions
) -> None:
    await node.offer(*GPUS, how=how)
    held = Held(node)
    node.assign("p", 5, share(0, 5120))
    running = asyncio.ensure_future(node.run("p", NEED, 5))
    await held.waits.wait()
    first, second = node.inventory.gpus
    changed = msgspec.structs.replace(second, index=0), msgspec.structs.replace(first, index=1)
    await node.offer(*((each, MEMORY) for each in changed), how=how)
    held.goes_on.set()
    with pytest.raises(Conflict, match="its GPUs were renumbered while they were prepared"):
        await running


@pytest.mark.parametrize("how", [ENV, BOTH, CDI], ids=["envvar", "both", "cdi"])
@pytest.mark.parametrize("there", [True, False], ids=["instances are there", "instances are created"])
async def test_a_share_of_an_instance_that_was_created_again(node: Node, how: PluginOptions, *, there: bool) -> None:
    """By CDI a container gets what is at its placement; else what has the UUID that it was told: another's, here."""
    layout = sevenths()[:2]
    gpu = facts(0, layout=layout if there else ())
    sharing = msgspec.structs.replace(mig(layout), allocator="scheduler") if there else Sharing(layout=())
    await node.offer((gpu, sharing), how=how)
    for name, place in zip("pq", layout, strict=True):
        node.assign(name, 4, share(0, 4864, mode=Mode.MIG, profile=place.profile, start=place.start))
        await node.run(name, NEED, 4)
    await node.kill()
    node.plugins = node.started()
    first, second = node.inventory.gpus[0].instances
    crossed = [msgspec.structs.replace(one, uuid=other.uuid) for one, other in ((first, second), (second, first))]
    after = msgspec.structs.replace(node.inventory.gpus[0], instances=tuple(crossed))
    await node.offer((after, sharing), how=how)
    for name, now in (*zip("pq", crossed, strict=True), *zip("pq", crossed, strict=True)):
        if how is CDI:
            assert uuids(node, await node.kubelet.create("default", name, "main")) == now.uuid
            continue
        with pytest.raises(Conflict, match=r"it uses 1g.5gb at \d of GPU .*, and is assigned 1g.5gb at \d of GPU"):
            await node.kubelet.create("default", name, "main")
        node.passed_s += 61
    blocked = [] if how is CDI else ["uid-p", "uid-q"]
    assert sorted(node.plugins.gate.refusals.blocked_pods()) == blocked, "those are evicted"


@pytest.mark.parametrize("how", [ENV, VOLUME, CDI], ids=["envvar", "volume-mounts", "cdi"])
async def test_a_share_of_an_instance_that_has_another_uuid_now(node: Node, how: PluginOptions) -> None:
    """As after a reboot: a container that was allocated a UUID would not find it, ever."""
    layout = sevenths()[:1]
    gpu = facts(0, layout=layout)
    sharing = msgspec.structs.replace(mig(layout), allocator="scheduler")
    await node.offer((gpu, sharing), how=how)
    node.assign("p", 4, share(0, 4864, mode=Mode.MIG, profile="1g.5gb", start=layout[0].start))
    await node.run("p", NEED, 4)
    await node.kill()
    node.plugins = node.started()
    (instance,) = gpu.instances
    after = msgspec.structs.replace(gpu, instances=(msgspec.structs.replace(instance, uuid="MIG-new"),))
    await node.offer((after, sharing), how=how)
    if how is CDI:
        assert uuids(node, await node.kubelet.create("default", "p", "main")) == "MIG-new"
        return
    for _ in range(2):
        with pytest.raises(Conflict, match=f"its MIG instance {instance.uuid} does not exist any more"):
            await node.kubelet.create("default", "p", "main")
        node.passed_s += 61
    assert list(node.plugins.gate.refusals.blocked_pods()) == ["uid-p"]
