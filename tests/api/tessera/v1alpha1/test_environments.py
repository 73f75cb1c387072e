"""Environments: what is in one, and what is none."""

from typing import Any

import pytest

from tessera.api.tessera.v1alpha1.environments import (
    Catalog,
    Environment,
    EnvironmentStatus,
    choose_environment,
    last_valid_environment,
    read_catalog,
    read_environment,
)
from tessera.errors import InvalidInput


def environment(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "pytorch"}, "spec": spec}


def test_all_of_it_and_the_least() -> None:
    whole = environment(image="a/b:1", description="for all", tools=["pytorch 2.9"], notebook=True)
    assert read_environment(whole) == Environment(
        name="pytorch", image="a/b:1", description="for all", tools=("pytorch 2.9",), notebook=True
    )
    assert read_environment(environment(image="a")) == Environment(
        name="pytorch", image="a", description="", tools=(), notebook=False
    )


def test_its_full_image_its_labels_and_where_it_is() -> None:
    each = environment(image="busybox") | {"status": {"nodes": 3, "ready": 2}}
    each["metadata"] |= {"labels": {"team": "ml"}}
    found = read_environment(each)
    assert (found.full_image, found.labels) == ("docker.io/library/busybox:latest", {"team": "ml"})
    assert found.status == EnvironmentStatus(nodes=3, ready=2)


def test_an_invalid_one_has_the_image_of_its_last_valid_spec_if_its_status_has_one() -> None:
    invalid = {"metadata": {"name": "e", "labels": {"team": "ml"}}, "spec": {"image": "A b", "gpus": 3}}
    found = last_valid_environment(invalid | {"status": {"nodes": 3, "image": "busybox"}})
    assert found is not None
    assert (found.name, found.labels) == ("e", {"team": "ml"})
    assert found.full_image == "docker.io/library/busybox:latest"
    assert found.status == EnvironmentStatus(nodes=3, image="busybox")
    for status in ({}, {"nodes": 3}, {"image": "A b"}, {"image": 3}, {"image": "busybox", "nodes": "all"}):
        assert last_valid_environment(invalid | {"status": status}) is None


def test_an_image_that_none_can_pull_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"Environment pytorch: spec\.image: image 'A b'"):
        read_environment(environment(image="A b"))


@pytest.mark.parametrize(
    "each",
    [
        {},
        {"metadata": {}, "spec": {"image": "a"}},
        environment(),
        environment(image=""),
        environment(image="a", imag="b"),
        environment(image="a", tools=["x" * 65]),
        environment(image="a", notebook="yes"),
    ],
)
def test_what_is_none(each: dict[str, Any]) -> None:
    with pytest.raises(
        InvalidInput,
        match=r"Environment (pytorch|None): .+: (see `kubectl explain environment` for .+|did you mean image\?)$",
    ):
        read_environment(each)


def test_a_catalog_is_in_order_of_names_and_one_that_cannot_be_read_hides_no_other() -> None:
    listed = [{"metadata": {"name": name}, "spec": {"image": "a"}} for name in ("b", "a")]
    found = read_catalog([*listed, {"metadata": {"name": "newer"}, "spec": {"image": "a", "gpus": 3}}])
    assert [each.name for each in found.known] == ["a", "b"]
    with pytest.raises(InvalidInput, match=r"Environment newer: .*gpus"):
        choose_environment(found, "newer", notebook=False)
    assert choose_environment(found, "b", notebook=False).name == "b"


JUPYTER = Environment(name="jupyter", image="a", description="", tools=(), notebook=True)
PLAIN = Environment(name="plain", image="b", description="", tools=(), notebook=False)
# Keyed by a sentence: those that there are, the name, whether for a notebook, what the error says.
REFUSED: dict[str, tuple[tuple[Environment, ...], str, bool, str]] = {
    "another name": ((JUPYTER, PLAIN), "x", False, "there is no such environment: choose one of jupyter, plain"),
    "another name for a notebook": ((JUPYTER, PLAIN), "x", True, "one of jupyter, or name"),
    "no JupyterLab": ((JUPYTER, PLAIN), "plain", True, "plain: it has no JupyterLab: choose one of jupyter"),
    "none at all": ((), "x", False, "--environment x: there is no such environment: apply an Environment"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_do_is_named(case: str) -> None:
    known, name, notebook, want = REFUSED[case]
    with pytest.raises(InvalidInput, match=want):
        choose_environment(Catalog(known=known), name, notebook=notebook)
