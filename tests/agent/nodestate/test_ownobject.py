"""The object that an agent makes of its node."""

import pytest

from tessera.agent.nodestate.ownobject import create_own
from tessera.clients.kube import GPU_NODES, NODES, MemoryKube, Object
from tessera.errors import Unavailable

pytestmark = pytest.mark.anyio


def new(name: str, uid: str) -> Object:
    return {"metadata": {"name": name, "ownerReferences": [{"kind": "Node", "name": name, "uid": uid}]}}


async def test_it_is_owned_by_the_node_and_made_once() -> None:
    kube = MemoryKube()
    node = await kube.create(NODES, {"metadata": {"name": "n1"}})
    made = await create_own(kube, GPU_NODES, "n1", new)
    assert made["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]
    with pytest.raises(Unavailable, match=r"n1: another process created it: the agent tries again"):
        await create_own(kube, GPU_NODES, "n1", new)


async def test_a_node_that_is_not_known_is_named() -> None:
    with pytest.raises(Unavailable, match="Node n1: there is no Node of this name: set NODE_NAME"):
        await create_own(MemoryKube(), GPU_NODES, "n1", new)
