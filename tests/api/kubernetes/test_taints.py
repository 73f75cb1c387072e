"""Taints as Node objects have them, and the one that a node that is not ready may still lack."""

import pytest

from tessera.api.fields import Field
from tessera.api.kubernetes.taints import not_ready_taints, read_taints
from tessera.api.tessera.pods.clusterpods import object_field
from tessera.core.cluster.snapshot import Taint

NOT_READY = Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")


def node(ready: str, *taints: dict[str, str]) -> Field:
    conditions = [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}]
    return object_field("Node", {"spec": {"taints": list(taints)}, "status": {"conditions": conditions}})


def test_taints_are_read() -> None:
    written = node("True", {"key": "x", "value": "y", "effect": "NoExecute"}, {"key": "z", "effect": "NoSchedule"})
    assert read_taints(written.get("spec", "taints").elements()) == [
        Taint(key="x", value="y", effect="NoExecute"),
        Taint(key="z", value="", effect="NoSchedule"),
    ]


@pytest.mark.parametrize(
    ("ready", "taints", "want"),
    [
        ("True", (), ()),
        ("False", (), (NOT_READY,)),
        ("Unknown", (), (Taint(key="node.kubernetes.io/unreachable", effect="NoSchedule"),)),
        ("False", ({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},), ()),
    ],
)
def test_a_node_that_is_not_ready_has_its_taint(
    ready: str, taints: tuple[dict[str, str], ...], want: tuple[Taint, ...]
) -> None:
    assert not_ready_taints(node(ready, *taints)) == want
