"""Which pods are routed, and the review in which the API server asks."""

import base64
import json
from typing import Any

import pytest

from builders.admissionpods import ROUTED
from tessera.api.scheduler.admission import AMOUNTS, OPT_OUT, Review, is_routed, read_review, write_review
from tessera.cli.manifests import chart_folder
from tessera.errors import InvalidInput

POD = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "main"}]}}


@pytest.mark.parametrize("case", ROUTED)
def test_which_pods_are_routed(case: str) -> None:
    pod, namespace, want = ROUTED[case]
    assert is_routed(pod, namespace) is want


@pytest.mark.parametrize("pod", [{}, {"spec": {}}, {"metadata": None, "spec": {"containers": None}}])
def test_a_pod_that_says_nothing_is_left_alone(pod: dict[str, Any]) -> None:
    assert not is_routed(pod, "default")


def test_an_object_that_is_no_pod_is_refused() -> None:
    with pytest.raises(InvalidInput, match="a Pod"):
        is_routed({"spec": {"containers": "none"}}, "default")


def review(**request: Any) -> bytes:
    """Return a review as the API server sends it, with changes to its request."""
    requested = {"uid": "u1", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE"}
    requested |= {"namespace": "default", "object": POD, "userInfo": {"username": "someone"}}
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {**requested, **request}}
    return json.dumps(body).encode()


def test_a_review_names_the_pod_that_is_created() -> None:
    assert read_review(review()) == Review(uid="u1", namespace="default", pod=POD)


NOT_ABOUT_A_NEW_POD: dict[str, dict[str, Any]] = {
    "a pod that is deleted": {"operation": "DELETE", "object": None},
    "another kind": {"kind": {"group": "apps", "kind": "Deployment"}},
    "a kind of the same name in another group": {"kind": {"group": "example.com", "kind": "Pod"}},
}


@pytest.mark.parametrize("case", NOT_ABOUT_A_NEW_POD)
def test_a_review_of_anything_else_is_about_no_pod(case: str) -> None:
    assert read_review(review(**NOT_ABOUT_A_NEW_POD[case])).pod is None


NO_REVIEW = {
    "no JSON": (b"{", "AdmissionReview of admission.k8s.io/v1"),
    "another version": (review().replace(b"admission.k8s.io/v1", b"admission.k8s.io/v1beta1"), "v1beta1"),
    "no request": (b'{"apiVersion": "admission.k8s.io/v1"}', "request"),
    "nested without end": (b'{"apiVersion":' + b"[" * 100_000, "AdmissionReview"),
}


@pytest.mark.parametrize("case", NO_REVIEW)
def test_what_is_no_review_is_refused(case: str) -> None:
    body, want = NO_REVIEW[case]
    with pytest.raises(InvalidInput, match=want):
        read_review(body)


def test_the_answer_lets_every_pod_come() -> None:
    answer = json.loads(write_review("u1", routed=False))
    assert answer["response"] == {"uid": "u1", "allowed": True}


def test_the_answer_for_a_routed_pod_has_a_patch() -> None:
    response = json.loads(write_review("u1", routed=True))["response"]
    patch = json.loads(base64.b64decode(response["patch"]))
    assert (response["allowed"], response["patchType"]) == (True, "JSONPatch")
    assert patch == [{"op": "add", "path": "/spec/schedulerName", "value": "tessera-scheduler"}]


@pytest.mark.parametrize("file", ["scheduler-name.yaml", "scheduler-name-webhook.yaml", "node-name.yaml"])
def test_the_manifests_name_the_same_resources(file: str) -> None:
    text = (chart_folder() / "templates" / "admission" / file).read_text()
    assert f"[{', '.join(map(repr, AMOUNTS))}]" in text
    assert OPT_OUT in text or file == "node-name.yaml"
