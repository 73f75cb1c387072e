"""The model cache's decisions: who shall have what, what is due."""

from typing import Any

import msgspec
import pytest

from tessera.core.storage.models.cache import (
    MOST_OF_NODE,
    DesiredCache,
    DesiredModel,
    ModelProblem,
    ModelSummary,
    NodeModels,
    ObservedModel,
    environment_name,
    folder_name,
    is_due,
    models_of_nodes,
    peers_of,
    summary,
)

ONE, TWO = "1" * 64, "2" * 64


def cache(name: str, *nodes: str, **more: Any) -> DesiredCache:
    return DesiredCache(model(name, **more), frozenset(nodes))


def model(name: str, **more: Any) -> DesiredModel:
    return DesiredModel(name=name, source=f"s3://b/{name}", **more)


def test_nodes_have_the_models_that_select_them_in_the_order_of_priority_and_demand() -> None:
    caches = [cache("a", "n1", "n2"), cache("b", "n1", priority=1), cache("c", "n1"), cache("d", "n2")]
    nodes = [NodeModels(name="n1"), NodeModels(name="n2", desired=(model("d"), model("gone"), model("broken")))]
    found = models_of_nodes(caches, nodes, {"c": 3}, {"broken"})
    assert {name: [each.name for each in models] for name, models in found.items()} == {
        "n1": ["b", "c", "a"],
        "n2": ["broken", "a", "d"],
    }
    assert found["n1"][0] == model("b", priority=1)


def test_peers_are_the_nodes_that_shall_have_the_same_source_and_serve_it() -> None:
    nodes = [
        NodeModels(name="same", desired=(model("b"), model("a")), peer="10.0.0.1:9443"),
        NodeModels(name="another name", desired=(DesiredModel(name="c", source="s3://b/a"),), peer="10.0.0.2:9443"),
        NodeModels(name="another endpoint", desired=(model("a", endpoint="https://rgw"),), peer="10.0.0.3:9443"),
        NodeModels(name="another source", desired=(model("b"),), peer="10.0.0.4:9443"),
        NodeModels(name="serves nothing", desired=(model("a"),)),
        NodeModels(name="was assigned nothing", peer="10.0.0.5:9443"),
    ]
    assert peers_of(model("a"), nodes) == ("10.0.0.1:9443", "10.0.0.2:9443")


def test_a_node_gets_no_more_than_its_object_can_hold() -> None:
    caches = [cache(f"m{number:03}", "n1") for number in range(200)]
    (found,) = models_of_nodes(caches, [NodeModels(name="n1")], {"m199": 1}).values()
    assert (len(found), found[0].name) == (MOST_OF_NODE, "m199")
    node = NodeModels(name="n1", desired=found)
    assert summary(caches[199], [node], {}).problems == ()
    (problem,) = summary(caches[198], [node], {}).problems
    assert problem.reason == "it has 128 models before this one, the most: remove one, or raise its priority"


DUE: dict[str, tuple[DesiredModel, ObservedModel | None, bool]] = {
    "one that was never looked at": (model("a"), None, True),
    "one that is there": (model("a"), ObservedModel(name="a", revision=ONE, checked_s=1.0), False),
    "one that is to be looked at again": (
        model("a", interval_s=60),
        ObservedModel(name="a", revision=ONE, checked_s=940.0),
        True,
    ),
    "one that was looked at": (
        model("a", interval_s=60),
        ObservedModel(name="a", revision=ONE, checked_s=941.0),
        False,
    ),
    "one whose revision is said": (
        model("a", interval_s=60, revision=ONE),
        ObservedModel(name="a", revision=ONE, checked_s=1.0),
        False,
    ),
    "one that vanished from the disk": (model("a"), ObservedModel(name="a", checked_s=999.0), True),
    "one that failed a moment ago": (model("a"), ObservedModel(name="a", failures=1, failed_s=991.0), False),
    "one that failed": (model("a"), ObservedModel(name="a", failures=1, failed_s=990.0), True),
    "one that failed twice": (model("a"), ObservedModel(name="a", failures=2, failed_s=990.0), False),
}


@pytest.mark.parametrize("case", DUE)
def test_what_is_due_is_fetched(case: str) -> None:
    desired, found, want = DUE[case]
    if found is not None:
        found = msgspec.structs.replace(found, identity=desired.identity)
    assert is_due(desired, found, 1000.0) is want
    if not want:
        changed = model("a", include=("*.bin",), interval_s=desired.interval_s, revision=desired.revision)
        assert is_due(changed, found, 1000.0), "another source is looked at, at once"


def test_priority_pins_and_intervals_fetch_nothing_anew() -> None:
    assert model("a", priority=3, pinned=True, interval_s=9, keep=1).identity == model("a").identity
    others = (model("b"), model("a", secret="s"), model("a", revision=ONE), model("a", exclude=("x",)))
    assert model("a").identity not in {each.identity for each in others}


def test_a_summary_counts_nodes_and_names_the_first_problems() -> None:
    nodes = [
        NodeModels(name="n1", observed=(ObservedModel(name="a", state="Ready", revision=ONE, bytes=7, containers=2),)),
        NodeModels(name="n2", observed=(ObservedModel(name="a", state="Fetching", revision=ONE, bytes=7),)),
        NodeModels(name="n3", observed=(ObservedModel(name="a", state="Failed", revision=TWO, reason="no rights"),)),
        NodeModels(name="n4", ready=False),
        NodeModels(name="n5", reason="no disk"),
        NodeModels(name="n6", observed=(ObservedModel(name="b", reason="not of this model"),)),
        NodeModels(name="other", reason="not selected"),
    ]
    names = [each.name for each in nodes[:-1]]
    assert summary(cache("a", *names), nodes, {"a": 4}) == ModelSummary(
        nodes=6,
        ready=3,
        fetching=1,
        revision=ONE,
        on_revision=2,
        bytes=7,
        containers=2,
        pending_pods=4,
        problems=(
            ModelProblem(node="n3", reason="no rights"),
            ModelProblem(node="n4", reason="the node is not ready"),
            ModelProblem(node="n5", reason="no disk"),
        ),
    )
    assert summary(cache("a", *names, revision=TWO), nodes, {}).ready == 1
    assert summary(cache("a"), nodes, {}) == ModelSummary()
    lost = [NodeModels(name=f"n{number}", ready=False) for number in range(20)]
    assert len(summary(cache("a", *(each.name for each in lost)), lost, {}).problems) == 16


def test_a_container_learns_where_a_model_is() -> None:
    assert (environment_name("llama-3-8b"), folder_name("llama")) == ("TESSERA_MODEL_LLAMA_3_8B_PATH", "/models/llama")
