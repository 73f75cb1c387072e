"""Pods that request units and have no assignment that counts."""

import pytest

from builders.gpunodes import facts
from harness.pluginnode import CDI, MEMORY, NEED, Node, share
from tessera.clients.kubelet import Container
from tessera.errors import Conflict

pytestmark = pytest.mark.anyio


async def test_a_pod_that_named_its_node_takes_nothing_from_those_that_were_assigned(node: Node) -> None:
    """It comes beside honest ones of its size, so that Allocate cannot tell; no container of it is ever started."""
    await node.offer((facts(0), MEMORY), how=CDI)
    node.ask("stray", NEED, 2)
    node.assign("p", 2, share(0, 2048))
    await node.kubelet.admit("default", "stray", Container(name="main", limits=((NEED, 2),)))
    with pytest.raises(Conflict, match="not scheduled by tessera-scheduler"):
        await node.kubelet.create("default", "stray", "main")
    assert node.plugins.shares.unassigned == {"uid-stray": "default/stray"}
    assert node.spec(await node.run("p", NEED, 2))
    node.end("stray")
    await node.plugins.gate.view.refresh()
    await node.plugins.shares.clean_up()
    assert node.plugins.shares.unassigned == {}


async def test_a_pod_whose_assignment_counts_in_the_end_is_not_unassigned_any_more(node: Node) -> None:
    """As when the server's new key was published late, and a PodDisruptionBudget forbade the eviction meanwhile."""
    await node.offer((facts(0), MEMORY), how=CDI)
    node.ask("p", NEED, 2)
    node.assign("q", 2, share(0, 2048))
    await node.kubelet.admit("default", "p", Container(name="main", limits=((NEED, 2),)))
    with pytest.raises(Conflict, match="not scheduled by tessera-scheduler"):
        await node.kubelet.create("default", "p", "main")
    assert node.plugins.shares.unassigned == {"uid-p": "default/p"}
    node.assign("p", 2, share(0, 2048))
    assert node.plugins.shares.unassigned == {}
    assert node.spec(await node.kubelet.create("default", "p", "main"))
    assert node.plugins.shares.unassigned == {}
