"""Which models nodes get, and when two of them are the same files."""

from typing import Any

from tessera.core.storage.models.nodemodels import (
    DesiredCache,
    DesiredModel,
    NodeModels,
    ObservedModel,
    followed_models,
    models_of_nodes,
    unknown_model,
)

ONE = "1" * 64


def cache(name: str, *nodes: str, **more: Any) -> DesiredCache:
    return DesiredCache(model(name, **more), frozenset(nodes))


def model(name: str, **more: Any) -> DesiredModel:
    return DesiredModel(name=name, source=f"s3://b/{name}", **more)


def test_priority_pins_and_intervals_fetch_nothing_anew() -> None:
    assert model("a", priority=3, pinned=True, interval_s=9, keep=1).identity == model("a").identity
    changes: tuple[dict[str, Any], ...] = (
        *({"endpoint": "https://e"}, {"region": "r"}, {"secret": "s"}, {"revision": "1" * 64}),
        *({"include": ("x",)}, {"exclude": ("x",)}, {"verification": "Required"}),
    )
    others = (model("b"), *(model("a", **each) for each in changes))
    assert model("a").identity not in {each.identity for each in others}


def test_a_model_that_was_fetched_before_there_was_a_rule_of_checksums_is_not_fetched_anew() -> None:
    assert model("a").identity == "03509b95afde24a8"


def test_nodes_have_the_models_that_select_them_in_the_order_of_priority_and_demand() -> None:
    caches = [cache("a", "n1", "n2"), cache("b", "n1", priority=1), cache("c", "n1"), cache("d", "n2")]
    nodes = [NodeModels(name="n1"), NodeModels(name="n2", desired=(model("d"), model("gone"), model("broken")))]
    found = models_of_nodes(caches, nodes, {"c": 3}, {"broken"})
    assert {name: [each.name for each in models] for name, models in found.items()} == {
        "n1": ["b", "c", "a"],
        "n2": ["broken", "a", "d"],
    }
    assert found["n1"][0] == model("b", priority=1)


def test_a_node_is_told_of_pending_pods_while_it_does_not_have_their_model() -> None:
    caches = [cache("a", "n1", "n2", "n3"), cache("b", "n1")]
    observed = {"n1": "", "n2": ONE}
    nodes = [
        NodeModels(name=name, observed=(ObservedModel(name="a", revision=each),)) for name, each in observed.items()
    ]
    found = models_of_nodes(caches, [*nodes, NodeModels(name="n3")], {"a": 2})
    pending = {(name, each.name): each.has_pending_pods for name, models in found.items() for each in models}
    assert pending == {("n1", "a"): True, ("n1", "b"): False, ("n2", "a"): False, ("n3", "a"): True}


def test_a_node_keeps_all_of_its_models_where_an_invalid_one_is_unknown_and_gets_the_valid_ones_anew() -> None:
    node = NodeModels(name="n1", desired=(model("a"),), unknown={"b": "odd"})
    caches = [cache("a", "n1", priority=1), cache("b", "n1"), cache("c", "n1")]
    assert [each.name for each in models_of_nodes(caches, [node], {})["n1"]] == ["a", "b", "c"]
    assert [each.name for each in models_of_nodes(caches, [node], {}, {"other"})["n1"]] == ["a", "b", "c"]
    assert models_of_nodes(caches[::2], [node, NodeModels(name="n2")], {}, {"b"}) == {"n2": ()}


def test_an_unknown_model_is_followed_as_before_or_reported_as_it_was() -> None:
    report = ObservedModel(name="b", state="Ready", revision=ONE, bytes=5, files=1, identity="i", checked_s=7.0)
    node = NodeModels(name="n1", desired=(model("a", keep=1),), unknown={"b": "odd", "a": "twice"}, observed=(report,))
    former = {"c": model("c"), "b": model("b"), "a": model("a")}
    assert [*followed_models(node, former).values()] == [model("a", keep=1), model("b")]
    assert [*followed_models(node, {})] == ["a"]
    found = unknown_model(node, "b")
    assert (found.state, found.reason, found.revision, found.identity, found.checked_s) == ("Failed", "odd", "", "i", 7)
    assert unknown_model(node, "a") == ObservedModel(name="a", state="Failed", reason="twice")
