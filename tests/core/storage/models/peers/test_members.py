"""Which nodes share a model, and how often a node lists them."""

from typing import Any

from tessera.core.storage.models.nodemodels import DesiredModel, NodeModels
from tessera.core.storage.models.peers.members import peers_of, refresh_interval_s


def model(name: str, **more: Any) -> DesiredModel:
    return DesiredModel(name=name, source=f"s3://b/{name}", **more)


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


def test_the_more_nodes_there_are_the_less_often_each_lists_them_all() -> None:
    assert [refresh_interval_s(1.0, nodes) for nodes in (0, 16, 100, 1000)] == [1.0, 1.0, 2.0, 200.0]
    assert refresh_interval_s(30.0, 100) == 30.0
