"""Shares of pods that were admitted while it is not known what another pod uses, as the agent's record is lost."""

import asyncio
import shutil
from typing import Any

import pytest

from builders.gpunodes import facts
from builders.signed import signed
from harness.livingpods import passes, run
from harness.pluginnode import CDI, GPU, MEMORY, NEED, WHOLE, Node, share
from tessera.clients.kubelet import Container
from tessera.core.gpu.inventory import GpuFacts
from tessera.core.gpu.sharing import Sharing
from tessera.core.node.nodesharing import ListStrategy, PluginOptions
from tessera.errors import Conflict, TesseraError
from tessera.measures import Measures

pytestmark = pytest.mark.anyio

PAIRS = ((facts(0, "T4"), MEMORY), (facts(1, "T4"), MEMORY))
UNKNOWN = "pod default/x requests units of GPU memory and runs, and the assignment that says of which GPU was"


async def begin(node: Node, how: PluginOptions = CDI) -> None:
    """Let pod x run, and q be admitted for the same memory, as where a tenant removed the assignment of x."""
    await node.offer(*PAIRS, how=how)
    await started(node, "x", 0)


async def started(node: Node, name: str, gpu: int) -> None:
    node.assign(name, 9, share(gpu, 9 << 10))
    await node.run(name, NEED, 9)
    run(node, name, pause=True, ends=False)


async def admit(node: Node, name: str, gpu: int = 0) -> None:
    node.assign(name, 9, share(gpu, 9 << 10))
    await node.kubelet.admit("default", name, Container(name="main", limits=((NEED, 9),)))


async def lose(node: Node, how: PluginOptions = CDI) -> None:
    """Remove the assignment of x, and start an agent without the former one's record."""
    change(node, "x", annotations={})
    await node.kill()
    (node.root / "allocations.json").unlink()
    await begin_again(node, *PAIRS, how=how)
    assert "default/x" in node.plugins.gate.record.closed


async def begin_again(node: Node, *pairs: tuple[GpuFacts, Sharing], how: PluginOptions = CDI) -> None:
    """Start an agent on a node that closes: as many units stay healthy as its pods request."""
    node.plugins, node.impaired = node.started(), True
    node.task = asyncio.create_task(node.plugins.run(Measures()))
    await node.plugins.offer(node.offered(*pairs), node.inventory, how)
    await node.kubelet.until_allocatable(NEED, sum(9 for _ in node.pods))


def change(node: Node, name: str, **metadata: Any) -> None:
    pod = node.pods["default", name]
    changed = {**pod, "metadata": {**pod["metadata"], **metadata}}
    node.pods["default", name] = node.watched["default", name] = changed


async def refused_for_long(node: Node, name: str) -> None:
    """Let the kubelet try to start a container for more than a minute."""
    for _ in range(3):
        with pytest.raises(TesseraError, match=UNKNOWN):
            await node.kubelet.create("default", name, "main")
        node.passed_s += 31


@pytest.mark.parametrize("waits", ["refused before", "pulls its image"])
async def test_a_pod_that_was_admitted_before_gets_no_memory_that_may_be_in_use(node: Node, waits: str) -> None:
    await begin(node)
    await admit(node, "q")
    if waits == "refused before":
        with pytest.raises(Conflict, match="default/x"):
            await node.kubelet.create("default", "q", "main")
    await lose(node)
    await refused_for_long(node, "q")
    assert node.plugins.gate.refusals.blocked_pods()["uid-q"][1].startswith(UNKNOWN)
    for process in node.proc.glob("[0-9]*"):
        (process / "cgroup").write_text("0::/\n")
    node.end("x")
    node.passed_s += 3
    await node.kubelet.create("default", "q", "main")
    assert node.plugins.gate.refusals.blocked_pods() == {}


@pytest.mark.parametrize("how", ["envvar", "volume-mounts", "cdi-cri"])
async def test_a_kubelet_that_loses_its_record_while_the_node_is_closed_starts_nobody_else(
    node: Node, how: ListStrategy
) -> None:
    """Ids on record are admitted again though the node is closed, and units name no memory."""
    options = PluginOptions(list_strategies=(how,))
    await begin(node, options)
    await started(node, "p", 1)
    await lose(node, options)
    node.kubelet.lose_record()
    await admit(node, "q")
    with pytest.raises(TesseraError, match=UNKNOWN):
        await node.kubelet.create("default", "q", "main")


async def test_a_container_that_started_before_starts_again(node: Node) -> None:
    await begin(node)
    await started(node, "p", 1)
    await lose(node)
    await node.kubelet.create("default", "p", "main")
    await passes(node)
    await node.kubelet.create("default", "p", "main")


async def exchanged(node: Node, how: PluginOptions) -> dict[str, Any]:
    """Run p and q with each other's assignments; return what p was assigned before."""
    await node.offer(*PAIRS, how=how)
    for gpu, name in enumerate("pq"):
        node.assign(name, 9, share(gpu, 9 << 10))
        node.pods["default", name]["metadata"]["creationTimestamp"] = f"2026-01-31T12:00:0{gpu}Z"
        node.pods["default", name] = node.watched["default", name] = signed(node.pods["default", name])
    former: dict[str, Any] = node.pods["default", "p"]["metadata"]["annotations"]
    for name in "qp":  # `Allocate` answers with the assignment of the older one first
        await node.kubelet.admit("default", name, Container(name="main", limits=((NEED, 9),)))
    for name in "qp":
        await node.kubelet.create("default", name, "main")
        run(node, name, pause=True, ends=False)
    assert [node.assigned(name)[0]["gpu"] for name in "pq"] == [1, 0]
    return former


async def restored(node: Node, how: PluginOptions, annotations: dict[str, Any], *, units: int) -> None:
    """Restore what p was assigned before, and start an agent without the former one's record, which offers units."""
    await node.kill()
    (node.root / "allocations.json").unlink()
    change(node, "p", annotations=annotations)
    node.plugins, node.impaired = node.started(), True
    node.task = asyncio.create_task(node.plugins.run(Measures()))
    await node.plugins.offer(node.offered(*PAIRS), node.inventory, how)
    await node.kubelet.until_allocatable(NEED, units)


@pytest.mark.parametrize("how", ["envvar", "volume-mounts"])
async def test_an_assignment_from_before_an_exchange_gives_nobody_what_its_pod_uses(
    node: Node, how: ListStrategy
) -> None:
    """It is signed for its pod; the kubelet's record says which GPU the pod has."""
    options = PluginOptions(list_strategies=(how,))
    former = await exchanged(node, options)
    await restored(node, options, former, units=18)
    assert "default/p" in node.plugins.gate.record.closed
    assert node.plugins.gate.refusals.double_allocations() == ()
    node.assign("r", 5, share(1, 5 << 10))
    with pytest.raises(TesseraError):
        await node.run("r", NEED, 5)
    with pytest.raises(Conflict, match=r"it uses GPU .*, and is assigned"):
        await node.kubelet.create("default", "p", "main")
    await node.kubelet.create("default", "q", "main")


@pytest.mark.parametrize("how", ["envvar", "volume-mounts"])
async def test_a_container_that_crashed_does_not_start_by_an_assignment_from_before_an_exchange(
    node: Node, how: ListStrategy
) -> None:
    options = PluginOptions(list_strategies=(how,))
    former = await exchanged(node, options)
    for process in node.proc.glob("[0-9]*"):
        shutil.rmtree(process)
    await restored(node, options, former, units=30)
    assert node.plugins.gate.record.closed == ""
    with pytest.raises(Conflict, match=r"it uses GPU .*, and is assigned"):
        await node.kubelet.create("default", "p", "main")
    await node.kubelet.create("default", "q", "main")


async def test_a_pod_whose_own_use_is_unknown_starts_its_share(node: Node) -> None:
    """The kubelet lost what its other container has by name: that is no memory of another pod."""
    pairs = ((facts(0, "T4"), WHOLE), (facts(1, "T4"), MEMORY))
    await node.offer(*pairs, how=CDI)
    node.assign("x", 9, share(1, 9 << 10, container="side"))
    spec = node.pods["default", "x"]["spec"]
    spec["containers"] = [
        {"name": name, "resources": {"limits": {resource: str(count)}}}
        for name, resource, count in (("main", GPU, 1), ("side", NEED, 9))
    ]
    node.pods["default", "x"] = node.watched["default", "x"] = signed(node.pods["default", "x"])
    await node.kubelet.admit("default", "x", Container(name="main", limits=((GPU, 1),)))
    await node.kubelet.create("default", "x", "main")
    run(node, "x", pause=True, ends=False)
    node.kubelet.lose_record()
    await node.kubelet.admit("default", "x", Container(name="side", limits=((NEED, 9),)))
    await node.kill()
    (node.root / "allocations.json").unlink()
    await begin_again(node, *pairs)
    assert "default/x" in node.plugins.gate.record.closed
    await node.kubelet.create("default", "x", "side")


async def with_created(node: Node, kind: str) -> None:
    """Let pod q be admitted, and the first of its two containers be created: one that lasts, or an init container."""
    await admit(node, "q", 1)
    pod = node.pods["default", "q"]
    first = [*pod["spec"].get(kind, ()), {"name": "side"}]
    pod = signed({**pod, "spec": {**pod["spec"], kind: first}})
    side = {"name": "side", "containerID": "containerd://2"}
    waiting = {"name": "main"}
    pod["status"] = (
        {"phase": "Running", "containerStatuses": [waiting, side]}
        if kind == "containers"
        else {"phase": "Pending", "containerStatuses": [waiting], "initContainerStatuses": [side]}
    )
    node.pods["default", "q"] = node.watched["default", "q"] = pod


@pytest.mark.parametrize(("kind", "evicted"), [("containers", False), ("initContainers", True)])
async def test_a_pod_that_runs_is_not_evicted_for_a_container_that_has_not_started(
    node: Node, kind: str, *, evicted: bool
) -> None:
    """One of which an init container alone was created does not run yet."""
    await begin(node)
    await with_created(node, kind)
    await lose(node)
    await refused_for_long(node, "q")
    assert ("uid-q" in node.plugins.gate.refusals.blocked_pods()) == evicted


async def test_a_pod_that_runs_is_evicted_where_what_a_deleted_pod_uses_is_not_known(node: Node) -> None:
    """Nobody can delete that pod once more, and its processes may never end."""
    await begin(node)
    await with_created(node, "containers")
    await node.kill()
    record = node.root / "allocations.json"
    record.write_bytes(record.read_bytes()[:-9])
    node.end("x")
    await begin_again(node, *PAIRS)
    for _ in range(3):
        with pytest.raises(TesseraError, match="was deleted, its processes run"):
            await node.kubelet.create("default", "q", "main")
        node.passed_s += 31
    assert "uid-q" in node.plugins.gate.refusals.blocked_pods()
