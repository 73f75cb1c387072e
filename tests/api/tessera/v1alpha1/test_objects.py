"""What the objects of Tessera's kinds have in common: their name, their form, the object of a node."""

from typing import Any

import msgspec
import pytest

from tessera.api.tessera.v1alpha1.objects import Metadata, coverage, object_of_node, read_object, subject_of
from tessera.errors import InvalidInput


class Thing(msgspec.Struct, frozen=True):
    metadata: Metadata


def test_an_object_is_read() -> None:
    metadata = {"name": "a", "generation": 3, "uid": "x"}
    assert read_object("Thing", {"metadata": metadata}, Thing) == Thing(metadata=Metadata("a", 3))


@pytest.mark.parametrize(
    "each", [{}, {"metadata": None}, {"metadata": "a"}, {"metadata": {}}, {"metadata": {"name": 1}}]
)
def test_an_object_of_another_form_is_refused_whatever_it_is(each: dict[str, Any]) -> None:
    with pytest.raises(
        InvalidInput, match=r"^Thing (None|1): .+: see `kubectl explain thing` for tessera.dev/v1alpha1$"
    ):
        read_object("Thing", each, Thing)


def test_an_error_calls_it_by_its_name() -> None:
    assert subject_of("Thing", {"metadata": {"name": "a"}}) == "Thing a"


def test_the_object_of_a_node_goes_when_the_node_goes() -> None:
    made = object_of_node("Thing", "n1", "uid-1")
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-1"}
    assert made["metadata"] == {"name": "n1", "ownerReferences": [owner]}
    assert (made["apiVersion"], made["kind"]) == ("tessera.dev/v1alpha1", "Thing")


@pytest.mark.parametrize(
    ("nodes", "ready", "want"),
    [
        (0, 0, ("False", "NoNodes", "it selects no node with an agent")),
        (3, 1, ("False", "Fetching", "2 of 3 nodes lack the model")),
        (3, 3, ("True", "Present", "all nodes have every part")),
    ],
)
def test_how_far_nodes_are(nodes: int, ready: int, want: tuple[str, str, str]) -> None:
    accepted, found = coverage(nodes, ready, ("Fetching", "the model", "every part"))
    assert (accepted.type, accepted.status, found.type) == ("Accepted", "True", "Ready")
    assert (found.status, found.reason, found.message) == want
