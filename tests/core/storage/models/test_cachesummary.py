"""The status of a ModelCache on its nodes."""

from typing import Any

from tessera.core.storage.models.cachesummary import summarize_cache
from tessera.core.storage.models.nodemodels import (
    MOST_OF_NODE,
    DesiredCache,
    DesiredModel,
    ModelProblem,
    ModelSummary,
    NodeModels,
    ObservedModel,
    models_of_nodes,
)

ONE, TWO = "1" * 64, "2" * 64


def cache(name: str, *nodes: str, **more: Any) -> DesiredCache:
    return DesiredCache(model(name, **more), frozenset(nodes))


def model(name: str, **more: Any) -> DesiredModel:
    return DesiredModel(name=name, source=f"s3://b/{name}", **more)


def test_a_node_gets_no_more_than_its_object_can_hold() -> None:
    caches = [cache(f"m{number:03}", "n1") for number in range(200)]
    (found,) = models_of_nodes(caches, [NodeModels(name="n1")], {"m199": 1}).values()
    assert (len(found), found[0].name) == (MOST_OF_NODE, "m199")
    node = NodeModels(name="n1", desired=found)
    assert summarize_cache(caches[199], [node], {}).problems == ()
    (problem,) = summarize_cache(caches[198], [node], {}).problems
    assert problem.reason == "it has 128 models before this one, the most: remove one, or raise its priority"


def test_a_summary_counts_nodes_and_names_the_first_problems() -> None:
    nodes = [
        NodeModels(
            name="n1",
            observed=(ObservedModel(name="a", state="Ready", revision=ONE, bytes=7, unverified_bytes=5, containers=2),),
        ),
        NodeModels(name="n2", observed=(ObservedModel(name="a", state="Fetching", revision=ONE, bytes=7),)),
        NodeModels(name="n3", observed=(ObservedModel(name="a", state="Failed", revision=TWO, reason="no rights"),)),
        NodeModels(name="n4", ready=False),
        NodeModels(name="n5", reason="no disk"),
        NodeModels(name="n6", observed=(ObservedModel(name="b", reason="not of this model"),)),
        NodeModels(name="other", reason="not selected"),
    ]
    names = [each.name for each in nodes[:-1]]
    assert summarize_cache(cache("a", *names), nodes, {"a": 4}) == ModelSummary(
        nodes=6,
        ready=3,
        fetching=1,
        revision=ONE,
        on_revision=2,
        bytes=7,
        unverified_bytes=5,
        containers=2,
        pending_pods=4,
        problems=(
            ModelProblem(node="n3", reason="no rights"),
            ModelProblem(node="n4", reason="the node is not ready"),
            ModelProblem(node="n5", reason="no disk"),
        ),
    )
    assert summarize_cache(cache("a", *names, revision=TWO), nodes, {}).ready == 1
    assert summarize_cache(cache("a"), nodes, {}) == ModelSummary()
    lost = [NodeModels(name=f"n{number}", ready=False) for number in range(20)]
    assert len(summarize_cache(cache("a", *(each.name for each in lost)), lost, {}).problems) == 16
