"""Whose signatures count on a node: known keys, doubted ones, and strangers after the API was asked."""

from builders.signed import AGENT
from tessera.api.tessera.pods.signatures import key_id, keys_text
from tessera.core.cluster.gpunodestate import GpuNodeState
from tessera.core.cluster.snapshot import NodeName
from tessera.server.knownkeys import KnownKeys

KEY = key_id(AGENT.public)


def node(*keys: str) -> GpuNodeState:
    return GpuNodeState(name=NodeName("a"), assignment_keys=keys)


def test_a_doubted_key_that_the_node_has_not_published_is_a_strangers_once_the_api_was_asked() -> None:
    keys = KnownKeys()
    assert keys.update("a", node(), ())
    keys.doubt("a", KEY)
    assert list(keys.doubts) == [("a", KEY)]
    assert keys.reject_unknown([("a", KEY)]) == ["a"]
    assert not keys.doubts
    known = keys.on("a")
    assert known is not None
    assert known.refuses(KEY)


def test_a_doubted_key_that_the_node_has_published_meanwhile_counts() -> None:
    keys = KnownKeys()
    keys.update("a", node(), ())
    keys.doubt("a", KEY)
    assert keys.update("a", node(*keys_text([AGENT.public])), ())
    assert keys.reject_unknown([("a", KEY)]) == []
    assert not keys.update("a", node(*keys_text([AGENT.public])), ()), "nothing changed"
    keys.drop("a")
    assert keys.on("a") is None
