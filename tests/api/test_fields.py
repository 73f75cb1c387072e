"""An error about an object in words that name its field alone."""

import json

import pytest

from tessera.api import documents
from tessera.api.fields import Field, in_words, objects
from tessera.api.tessera.cluster.clusters import as_fields
from tessera.errors import InvalidInput

POD = {"kind": "Pod", "metadata": {"name": "p", "namespace": "ns"}, "spec": {"priority": "x"}}

# Keyed by where the object is from: the object, the same in each.
FROM: dict[str, Field] = {
    "an API server": as_fields([POD])[0],
    "a file": next(objects(documents.one("pods.json", f"\n\n{json.dumps(POD, indent=1)}"))),
    "a list in a file": next(
        objects(documents.one("pods.json", json.dumps({"kind": "List", "items": [POD]}, indent=1)))
    ),
}


@pytest.mark.parametrize("source", FROM)
def test_the_words_are_the_same_wherever_the_object_is_from(source: str) -> None:
    field = FROM[source]
    with pytest.raises(InvalidInput) as raised:
        field.get("spec", "priority").integer()
    assert in_words(raised.value, field) == "spec.priority: 'x' is not an integer from 0 to 2147483647"
    assert in_words(field.refuse("a Pod", "another", found="this"), field) == "this is not a Pod: another"
    elsewhere = InvalidInput("assignment of pod ns/p", found="no signature", expected="one")
    assert in_words(elsewhere, field) == "assignment of pod ns/p: no signature is not one"
