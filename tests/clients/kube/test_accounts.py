"""Users in memory, and the answers to reviews of their tokens and rights."""

from typing import Any

from tessera.api.kubernetes.reviews import ReviewedUser
from tessera.clients.kube import PODS
from tessera.clients.kube.accounts import Accounts
from tessera.clients.kube.protocol import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS

ADA = ReviewedUser(username="ada", groups=("team",))


def status_of(accounts: Accounts, kind: Any, **spec: Any) -> dict[str, Any]:
    answer = accounts.answer(kind, {"spec": spec})
    assert answer is not None
    found: dict[str, Any] = answer["status"]
    return found


def test_a_token_is_known_until_it_is_dropped() -> None:
    accounts = Accounts()
    accounts.add("t", ADA)
    assert status_of(accounts, TOKEN_REVIEWS, token="t")["user"]["username"] == "ada"
    assert status_of(accounts, TOKEN_REVIEWS, token="other") == {}
    accounts.drop("t")
    accounts.drop("t")
    assert status_of(accounts, TOKEN_REVIEWS, token="t") == {}


def test_a_right_is_a_users_or_a_groups_in_a_namespace_or_in_all() -> None:
    def may(user: str, *groups: str, namespace: str = "", **path: str) -> bool:
        asked = (
            {"nonResourceAttributes": {"verb": "get", **path}}
            if path
            else {"resourceAttributes": {"verb": "list", "resource": "pods", "namespace": namespace}}
        )
        return bool(status_of(accounts, SUBJECT_ACCESS_REVIEWS, user=user, groups=groups, **asked)["allowed"])

    accounts = Accounts()
    accounts.allow("ada", "list", "pods", ["ns"])
    accounts.allow("team", "list", "pods")
    accounts.allow("ada", "get", "/metrics")
    assert may("ada", namespace="ns")
    assert not may("ada", namespace="other")
    assert may("eve", "team", namespace="other")
    assert may("ada", path="/metrics")
    assert not may("ada", path="/debug")
    assert may("root", "system:masters", namespace="any")


def test_what_is_no_review_has_no_answer() -> None:
    assert Accounts().answer(PODS, {}) is None
