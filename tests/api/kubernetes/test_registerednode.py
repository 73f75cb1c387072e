"""Which resources of GPUs a Node object has."""

import pytest

from tessera.api.kubernetes.registerednode import registered_node
from tessera.core.deviceplugin.allocations.registerednode import RegisteredNode

# sentence: a Node's status; the resources that it has
NODES: dict[str, tuple[object, set[str]]] = {
    "there is none": (None, set()),
    "its kubelet has not reported yet": ({"capacity": {}, "allocatable": None}, set()),
    "it has one that is withdrawn": (
        {"capacity": {"cpu": "8"}, "allocatable": {"cpu": "7", "a/b": "0"}},
        {"cpu", "a/b"},
    ),
}


@pytest.mark.parametrize("case", NODES)
def test_a_node_has_the_resources_that_it_names(case: str) -> None:
    status, want = NODES[case]
    node = {"metadata": {"creationTimestamp": "2026-01-31T12:00:00Z"}, "status": status}
    assert registered_node(node) == RegisteredNode(resources=frozenset(want), created_s=1_769_860_800)
    assert registered_node({"status": status}) == RegisteredNode(resources=frozenset(want))
    assert registered_node({}) == RegisteredNode()


@pytest.mark.parametrize(
    ("text", "want"), [("", set()), (None, set()), ("a/b", {"a/b"}), ("a/b,c/d", {"a/b", "c/d"}), ("a/b,", {"a/b"})]
)
def test_a_node_has_the_names_by_which_its_gpus_were_advertised(text: str | None, want: set[str]) -> None:
    allocatable = {"nvidia.com/gpu": "1", "tessera.dev/gpu-memory": "0", "a/b": "1", "nvidia.com/hostdev": "1"}
    annotations = {"tessera.dev/renamed-resources": text}
    node = registered_node({"metadata": {"annotations": annotations}, "status": {"allocatable": allocatable}})
    assert node.renamed == want
    assert node.gpu_resources == {"nvidia.com/gpu", "tessera.dev/gpu-memory"} | want & {"a/b"}
