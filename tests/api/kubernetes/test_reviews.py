"""Reviews: whose a token is and what they may do; what the API server answers is read with care."""

from typing import Any

import pytest

from tessera.api.kubernetes.reviews import Attributes, ReviewedUser, access_review, refusal, reviewed_user, token_review
from tessera.errors import Unavailable

ANN = {"username": "ann", "uid": "7", "groups": ["dev"], "extra": {"scopes": ["a"]}}


def test_a_token_that_is_known() -> None:
    answer = token_review("t") | {"status": {"authenticated": True, "user": ANN, "audiences": ["x"]}}
    assert answer["spec"] == {"token": "t"}
    assert reviewed_user(answer) == ReviewedUser(username="ann", uid="7", groups=("dev",), extra={"scopes": ("a",)})


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"authenticated": False, "user": ANN},
        {"authenticated": True},
        {"user": {}, "error": "[invalid bearer token, unknown]"},
        {"authenticated": True, "user": {"username": ""}},
    ],
)
def test_a_token_that_is_not(status: dict[str, Any]) -> None:
    assert reviewed_user({"status": status}) is None


def test_a_question_has_all_that_decides() -> None:
    ann = ReviewedUser(username="ann", uid="7", groups=("dev",), extra={"scopes": ("a",)})
    metric = Attributes(verb="list", group="external.metrics.k8s.io", version="v1beta1", resource="m", namespace="ns")
    assert access_review(ann, metric)["spec"] == {
        "resourceAttributes": {
            "verb": "list",
            "group": "external.metrics.k8s.io",
            "version": "v1beta1",
            "resource": "m",
            "namespace": "ns",
        },
        "user": "ann",
        "uid": "7",
        "groups": ("dev",),
        "extra": {"scopes": ("a",)},
    }
    assert access_review(ReviewedUser(username="bob"), Attributes(resource="nodes"))["spec"] == {
        "resourceAttributes": {"verb": "get", "resource": "nodes"},
        "user": "bob",
    }


def test_a_path_is_no_resource() -> None:
    assert access_review(ReviewedUser(username="bob"), Attributes(path="/apis"))["spec"] == {
        "nonResourceAttributes": {"verb": "get", "path": "/apis"},
        "user": "bob",
    }


REFUSALS: dict[str, tuple[dict[str, Any], str | None]] = {
    "allowed": ({"allowed": True}, None),
    "no opinion": ({"allowed": False}, "no role grants it"),
    "nothing said": ({}, "no role grants it"),
    "a reason": ({"allowed": False, "reason": "not on Sundays"}, "not on Sundays"),
    "denied all the same": ({"allowed": True, "denied": True, "reason": "r"}, "r"),
    "an error": ({"allowed": False, "evaluationError": "webhook down"}, "webhook down"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_somebody_may(case: str) -> None:
    status, want = REFUSALS[case]
    assert refusal({"status": status}) == want


@pytest.mark.parametrize("answer", [{}, {"status": None}, {"status": {"allowed": "yes", "authenticated": "yes"}}])
def test_an_answer_that_is_none(answer: dict[str, Any]) -> None:
    with pytest.raises(Unavailable, match="TokenReview"):
        reviewed_user(answer)
    with pytest.raises(Unavailable, match="SubjectAccessReview"):
        refusal(answer)
