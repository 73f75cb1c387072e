"""Who owns which field of an object; the suite of all clients shows that the API server agrees."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tessera.clients.kube.ownership import UNNAMED, applied, contested, fields_of, updated

ONE, TWO = ("one", ""), ("two", "")


def test_an_object_is_its_values_without_what_is_the_servers() -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Thing",
        "metadata": {"name": "a", "uid": "u", "labels": {"x": "1"}},
        "spec": {"inner": {"a": 1, "empty": {}}, "list": [1, 2]},
    }
    want = {("metadata", "labels", "x"), ("spec", "inner", "a"), ("spec", "inner", "empty"), ("spec", "list")}
    assert fields_of(body) == want


def test_what_nobody_applies_any_more_goes_and_what_another_owns_stays() -> None:
    live, owners = applied({}, {"spec": {"a": 1, "b": 2}}, {}, ONE)
    live, owners = applied(live, {"spec": {"b": 2, "c": 3}}, owners, TWO)
    live, owners = applied(live, {}, owners, ONE)
    assert live == {"spec": {"b": 2, "c": 3}}
    assert owners == {TWO: {("spec", "b"), ("spec", "c")}}


def test_another_value_for_a_field_of_another_is_contested_and_the_same_value_is_shared() -> None:
    live, owners = applied({}, {"spec": {"a": 1, "deep": {"x": 1}}}, {}, ONE)
    assert contested(live, {"spec": {"a": 1}}, owners, TWO) == frozenset()
    assert contested(live, {"spec": {"a": 2}}, owners, TWO) == {(ONE, ("spec", "a"))}
    live, owners = applied(live, {"spec": {"a": 2}}, owners, TWO)
    assert live["spec"] == {"a": 2, "deep": {"x": 1}}
    assert owners == {ONE: {("spec", "deep", "x")}, TWO: {("spec", "a")}}


def test_a_value_that_gives_way_to_an_object_is_taken() -> None:
    live, owners = applied({}, {"spec": "text"}, {}, ONE)
    assert contested(live, {"spec": {"a": 1}}, owners, TWO) == {(ONE, ("spec",))}


def test_what_somebody_unnamed_writes_is_theirs_alone() -> None:
    before, owners = applied({}, {"spec": {"a": 1, "b": 2}}, {}, ONE)
    got = updated(before, {"spec": {"a": 1, "b": 3}, "extra": True}, owners)
    assert got == {ONE: {("spec", "a")}, UNNAMED: {("spec", "b"), ("extra",)}}


TREES: st.SearchStrategy[Any] = st.recursive(
    st.integers(0, 2), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=6
)
BODIES = st.dictionaries(st.sampled_from("abc"), TREES, max_size=3)


@given(BODIES, BODIES)
def test_applying_twice_is_applying_once_and_who_applies_nothing_leaves_nothing(first: Any, second: Any) -> None:
    live, owners = applied({}, first, {}, ONE)
    once = applied(live, second, owners, ONE)
    assert applied(once[0], second, once[1], ONE) == once
    assert not fields_of(second) - fields_of(once[0])
    gone, left = applied(once[0], {}, once[1], ONE)
    assert (fields_of(gone), left) == (frozenset(), {})
