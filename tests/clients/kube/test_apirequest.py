"""Paths of requests and errors by status, for all names and codes; single answers are in `test_real`."""

import json
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.clients.connections import HttpResponse
from tessera.clients.kube import GPU_NODES, PODS, Kind, Selection
from tessera.clients.kube.apirequest import Absent, ApiRequest, check, conditions, subject_of
from tessera.errors import InvalidInput, TesseraError

NAMES = st.text(st.sampled_from("a./?&#%: é"), max_size=3)
ELSEWHERE = ("", ".", "..")


@given(kind=st.sampled_from((PODS, GPU_NODES)), name=NAMES, namespace=NAMES)
def test_a_name_is_one_step_of_the_path_or_never_leaves(kind: Kind, name: str, namespace: str) -> None:
    requested = ApiRequest("get", kind, name, namespace, "status")
    if name in ELSEWHERE or (kind.namespaced and namespace in ELSEWHERE):
        with pytest.raises(InvalidInput):
            requested.target({})
        return
    steps = ["api", "v1", "namespaces", namespace, "pods"] if kind is PODS else ["apis", kind.group, kind.version]
    steps += [name, "status"] if kind is PODS else ["gpunodes", name, "status"]
    url = urlsplit(requested.target({"a": "b&c"}))
    assert [unquote(each) for each in url.path.split("/")] == ["", *steps]
    assert (parse_qs(url.query), url.fragment) == ({"a": ["b&c"]}, "")


@given(code=st.integers(300, 599), message=st.text(max_size=900))
def test_each_refusal_names_its_subject_and_a_fix(code: int, message: str) -> None:
    content = json.dumps({"message": message, "details": {"name": "a"}}).encode()
    with pytest.raises(TesseraError) as refused:
        check(HttpResponse(status=code, content=content), ApiRequest("get Pod b/a", PODS, "a", "b"))
    assert refused.value.subject == "get Pod b/a"
    assert refused.value.hint
    assert len(refused.value.found) < 3_000
    assert isinstance(refused.value, Absent) == (code == 404)


def test_success_is_no_error() -> None:
    check(HttpResponse(status=200, content=b""), ApiRequest("get Pod b/a", PODS, "a", "b"))


def test_a_selection_is_two_parameters_at_most() -> None:
    selection = Selection(labels=(("a", "b"),), having=("c",), fields=(("d", "e"),), other_fields=(("f", "g"),))
    assert conditions(selection) == {"labelSelector": "a=b,c", "fieldSelector": "d=e,f!=g"}
    assert conditions(Selection(namespace="n")) == {}


def test_an_object_is_named_with_its_namespace() -> None:
    assert subject_of(PODS, "a", "b") == "Pod b/a"
    assert subject_of(PODS, "", "b") == "Pod in b"
    assert subject_of(GPU_NODES, "a", "") == "GPUNode a"
