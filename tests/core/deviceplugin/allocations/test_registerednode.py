"""Which resources of a node are of its GPUs, and which one a pod runs without."""

import itertools

import msgspec

from tessera.core.deviceplugin.allocations.gateobservation import GatePod
from tessera.core.deviceplugin.allocations.registerednode import RegisteredNode, was_left_out

GPU = "nvidia.com/gpu"
POD = GatePod(name="ns/p", started_s=20.0)


def test_a_resource_that_its_node_never_had_is_left_out_of_a_pod() -> None:
    """Every combination: one fact to the contrary is enough."""
    kinds = (
        (frozenset({"cpu"}), frozenset({"cpu", GPU}), frozenset[str]()),
        (False, True),
        (False, True),
        (9.0, 10.0, 11.0),
    )
    for resources, static, claim, started_s in itertools.product(*kinds):
        pod = msgspec.structs.replace(POD, static=static, has_resource_claim=claim, started_s=started_s)
        want = resources == {"cpu"} and not static and not claim and started_s == 11.0
        assert was_left_out(pod, GPU, RegisteredNode(resources=resources, created_s=10.0)) is want
    assert not was_left_out(POD, GPU, RegisteredNode(resources=frozenset({"cpu"}))), "the Node has no time"
    unknown = msgspec.structs.replace(POD, started_s=0.0)
    assert not was_left_out(unknown, GPU, RegisteredNode(resources=frozenset({"cpu"}), created_s=10.0))
