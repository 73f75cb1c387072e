"""An error about an object in words that name its field alone."""

import datetime as dt
import enum
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from tessera.api import documents
from tessera.api.fields import Field, error_phrase, in_words, objects, refused_form
from tessera.api.kubernetes.devicecheckpoint import read_checkpoint
from tessera.api.scheduler.admission import is_routed
from tessera.api.tessera.cluster.clusters import as_fields
from tessera.api.tessera.node.agentfiles import read_answers
from tessera.api.tessera.v1alpha1.gpunodes import read_gpu_node
from tessera.api.tessera.v1alpha1.gpupolicies import read_gpu_policy
from tessera.api.tessera.v1alpha1.imagewarmups import read_node_images
from tessera.api.tessera.v1alpha1.modelcaches import read_node_models
from tessera.api.tessera.v1alpha1.modelservers import read_model_server
from tessera.core.workload.tesseranames import API_VERSION
from tessera.errors import UNDECODABLE, InvalidInput

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


class Kind(enum.StrEnum):
    """A choice of words."""

    A = "a"


class Form(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """One field of each kind, and of each bound."""

    the_count: Annotated[int, Meta(ge=1, le=3)] = 1
    part: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    step: Annotated[int, Meta(multiple_of=5)] = 5
    text: Annotated[str, Meta(max_length=3)] = ""
    name: Annotated[str, Meta(pattern="^a$")] = "a"
    pair: tuple[int, int] = (1, 1)
    some: Annotated[dict[str, Annotated[int, Meta(le=9)]], Meta(max_length=1)] = {}
    keyed: dict[Annotated[str, Meta(max_length=1)], int] = {}
    kind: Kind = Kind.A
    number: Literal[1, 2] = 1
    at: dt.datetime | None = None
    either: int | str | None = None
    inner: list["Form"] = []


class Named(msgspec.Struct):
    """What has a name."""

    name: str


# What is read, by what is said of it.
SAID: dict[str, Any] = {
    "theCount: 0 is not at least 1": {"theCount": 0},
    "theCount: 10000000 is not at most 3": {"theCount": 10_000_000},
    "theCount: 'x' is not an integer": {"theCount": "x"},
    "theCount: null is not an integer": {"theCount": None},
    "theCount: true is not an integer": {"theCount": True},
    "theCount: 1.5 is not an integer": {"theCount": 1.5},
    "part: 0 is not above 0": {"part": 0},
    "part: 1.5 is not below 1": {"part": 1.5},
    "step: 3 is not a multiple of 5": {"step": 3},
    "text: a list is not a text": {"text": []},
    "text: it has 4 characters, and at most 3 are accepted": {"text": "abcd"},
    "name: 'b' is not a text that matches ^a$": {"name": "b"},
    "pair: it has 1 elements, and just 2 are accepted": {"pair": [1]},
    "pair[1]: 'x' is not an integer": {"pair": [1, "x"]},
    "some: it has 2 members, and at most 1 are accepted": {"some": {"a": 1, "b": 1}},
    "some[...]: a text is not an integer": {"some": {"a": "x"}},
    "some[...]: null is not an integer": {"some": {"a": None}},
    "some[...]: what is there is not at most 9": {"some": {"a": 10}},
    "a key of keyed: at most 1 characters are accepted": {"keyed": {"ab": 1}},
    "kind: 'b' is not a value that is accepted there": {"kind": "b"},
    "number: 3 is not a value that is accepted there": {"number": 3},
    "at: 'yesterday' is not a valid RFC3339 encoded datetime": {"at": "yesterday"},
    "at: 4 is not a time": {"at": 4},
    "either: a mapping is not an integer or a text": {"either": {}},
    "inner[0].inner[1].theCount: 0 is not at least 1": {"inner": [{"inner": [{}, {"theCount": 0}]}]},
    "inner[0].count: it is an unknown field": {"inner": [{"count": 1}]},
    "3 is not a mapping": 3,
}


@pytest.mark.parametrize("want", SAID)
def test_what_has_not_the_form_is_said_in_our_words(want: str) -> None:
    """Read as an object, and from JSON."""
    value = SAID[want]
    content = msgspec.json.encode(value)
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, Form)
    with pytest.raises(msgspec.ValidationError) as decoded:
        msgspec.json.decode(content, type=Form)
    for error, given in ((caught.value, value), (decoded.value, content)):
        assert str(refused_form(error, given, "file x", "see the docs")) == f"file x: {want}: see the docs"
        assert error_phrase(error, given) == want


class Chosen(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Choices at each kind of place."""

    unit: Literal["GiB", "MiB"] = "GiB"
    number: Literal[1, 2] = 1
    day: Literal["Monday", "Tuesday", "Sunday"] | None = None
    kind: Kind = Kind.A
    by_name: dict[str, Kind] = {}
    several: tuple[Literal["one", "two"], ...] = ()
    pair: tuple[Kind, int] = (Kind.A, 1)
    inner: list["Chosen"] = []


# What is read, by what is said of it where its type is known.
CHOICES: dict[str, Any] = {
    "unit: 'GB' is not GiB or MiB: did you mean GiB?": {"unit": "GB"},
    "unit: 'x' is not GiB or MiB: see the docs": {"unit": "x"},
    "number: 3 is not 1 or 2: see the docs": {"number": 3},
    "day: 'Sunday!' is not Monday, Sunday or Tuesday: did you mean Sunday?": {"day": "Sunday!"},
    "kind: 'b' is not a: see the docs": {"kind": "b"},
    "byName[...]: 'b' is not a: see the docs": {"byName": {"x": "b"}},
    "several[1]: 'three' is not one or two: see the docs": {"several": ["one", "three"]},
    "pair[0]: 'b' is not a value that is accepted there: see the docs": {"pair": ["b", 1]},
    "inner[0].inner[0].unit: 'Gib' is not GiB or MiB: did you mean GiB?": {"inner": [{"inner": [{"unit": "Gib"}]}]},
    "inner[0].byname: it is an unknown field: did you mean byName?": {"inner": [{"byname": {}}]},
    "xyz: it is an unknown field: see the docs": {"xyz": 1},
}


@pytest.mark.parametrize("want", CHOICES)
def test_accepted_values_and_similar_fields_are_named(want: str) -> None:
    value = CHOICES[want]
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, Chosen)
    assert str(refused_form(caught.value, value, "file x", "see the docs", form=Chosen)) == f"file x: {want}"


JSON: dict[bytes, str] = {
    b"": "it is not complete JSON",
    b'{"name": "a': "it is not complete JSON",
    b"{a}": "it is not JSON",
    b"\xff": "it is not JSON",
    b"{}": "name: it is missing",
    b'{"name": 1} and more': "name: an integer is not a text",
    b'{"name": "\xff"}': "it is not UTF-8",
    b'{"name": ' + b"9" * 5000 + b"}": "name: it is unreadable ('Number out of range')",
}


@pytest.mark.parametrize("content", JSON)
def test_bytes_that_are_no_json_are_called_that(content: bytes) -> None:
    with pytest.raises(UNDECODABLE) as caught:
        msgspec.json.decode(content, type=Named)
    assert error_phrase(caught.value, content) == JSON[content]


def test_what_ends_reading_otherwise_is_said_too() -> None:
    nested = b'{"name":' + b"[" * 100_000
    with pytest.raises(UNDECODABLE) as caught:
        msgspec.json.decode(nested)
    assert error_phrase(caught.value, nested) == "it is nested too deeply"
    with pytest.raises(UNDECODABLE) as caught:
        msgspec.convert({"kind": "\ud800"}, Form)
    assert error_phrase(caught.value, {}) == "it has half of a character, a surrogate"
    assert error_phrase(ValueError("no number"), {}) == "'no number'"
    assert (
        str(refused_form(ValueError("no number"), {}, "x", "give one")) == "x: it is unreadable ('no number'): give one"
    )


def named(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": "ModelServer", "metadata": {"name": "a"}, **fields}


ENTRY = b'{"Data":{"PodDeviceEntries":[{"PodUID":1}]}}'
# What reads, with what it cannot read, by what it says.
READERS: dict[str, Callable[[], object]] = {
    "GPUNode a: spec: 3 is not a mapping: see `kubectl explain gpunode`": lambda: read_gpu_node(named(spec=3)),
    f"GPUPolicy a: spec.priority: 'x' is not an integer: see `kubectl explain gpupolicy` for {API_VERSION}": lambda: (
        read_gpu_policy(named(spec={"priority": "x"}))
    ),
    f"NodeModels a: spec: 3 is not a mapping: see `kubectl explain nodemodels` for {API_VERSION}": lambda: (
        read_node_models(named(spec=3))
    ),
    f"NodeImages a: spec: 3 is not a mapping: see `kubectl explain nodeimages` for {API_VERSION}": lambda: (
        read_node_images(named(spec=3))
    ),
    f"ModelServer a: spec: it is missing: see `kubectl explain modelserver.spec` for {API_VERSION}": lambda: (
        read_model_server(named())
    ),
    "admission request, object: spec: 3 is not a mapping: send a Pod": lambda: is_routed({"spec": 3}, "ns"),
    (
        "kubelet_internal_checkpoint: Data.PodDeviceEntries[0].PodUID: 1 is not a text: only checkpoints that kubelets "
        "1.20 and later write are read"
    ): lambda: read_checkpoint("kubelet_internal_checkpoint", ENTRY),
    "shares.json: a list is not a mapping: only answers that an agent of this version keeps are read": lambda: (
        read_answers(b"[]", "shares.json")
    ),
}


@pytest.mark.parametrize("want", READERS)
def test_each_reader_says_it_in_these_words(want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        READERS[want]()
    assert str(caught.value) == want
