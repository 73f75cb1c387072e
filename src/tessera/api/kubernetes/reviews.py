"""TokenReview and SubjectAccessReview objects: authentication and authorization by the API server.

Source: k8s.io/api authentication/v1 and authorization/v1.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.api.fields import error_phrase
from tessera.errors import Unavailable

__all__ = ["Attributes", "ReviewedUser", "access_review", "refusal", "reviewed_user", "token_review"]


class ReviewedUser(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token's user, as the API server knows them."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}


class Attributes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The subject of a SubjectAccessReview: a resource, or a path if there is no resource."""

    path: str = ""
    verb: str = "get"
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    name: str = ""
    namespace: str = ""
    """Empty for all of them."""


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: ReviewedUser | None = None


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False
    denied: bool = False
    reason: str = ""
    evaluation_error: str = msgspec.field(name="evaluationError", default="")


def token_review(token: str) -> dict[str, Any]:
    """Return the review of a token."""
    return {"spec": {"token": token}}


def reviewed_user(answer: Mapping[str, Any]) -> ReviewedUser | None:
    """Return the token's user; None for an unknown token.

    Raises:
        Unavailable: the answer is not a review.

    """
    status = _status(answer, _TokenStatus, "TokenReview")
    return status.user if status.authenticated and status.user and status.user.username else None


def access_review(user: ReviewedUser, requested: Attributes) -> dict[str, Any]:
    """Return the review of a user's access."""
    what = {"verb": requested.verb} | msgspec.to_builtins(requested)
    part = "nonResourceAttributes" if requested.path else "resourceAttributes"
    who = {"user": user.username, "uid": user.uid, "groups": user.groups, "extra": user.extra}
    return {"spec": {part: what} | {key: value for key, value in who.items() if value}}


def refusal(answer: Mapping[str, Any]) -> str | None:
    """Return why the user may not; None where they may.

    Raises:
        Unavailable: the answer is not a review.

    """
    status = _status(answer, _AccessStatus, "SubjectAccessReview")
    if status.allowed and not status.denied:
        return None
    return status.reason or status.evaluation_error or "no role grants it"


def _status(answer: Mapping[str, Any], kind: type[Any], name: str) -> Any:
    try:
        return msgspec.convert(answer.get("status"), kind)
    except msgspec.ValidationError as error:
        raise Unavailable(
            f"answer to a {name}", found=f"it is not its status ({error_phrase(error, answer.get('status'))})"
        ) from error
