"""A request to the API server, and the errors by which it is refused."""

from collections.abc import Mapping
from urllib.parse import quote, urlencode

import msgspec

from tessera.api.untyped import as_dict, as_dicts
from tessera.clients.connections import HttpResponse
from tessera.clients.kube.protocol import (
    Expired,
    Forbidden,
    Kind,
    Object,
    Selection,
    Unanswered,
    not_served,
)
from tessera.errors import Conflict, InvalidInput, TesseraError, Unavailable

__all__ = ["JUNK", "UNAUTHORIZED", "Absent", "ApiRequest", "check", "conditions", "message_of", "refused", "subject_of"]

JUNK = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Decoding errors of a response that is not JSON: from a proxy, or too deeply nested."""
_LONGEST_MESSAGE = 500
_TOO_OLD, _ABSENT, _CHANGED, _BROKEN = 410, 404, 409, 500
UNAUTHORIZED, _FORBIDDEN = 401, 403
_WITHHELD = {
    UNAUTHORIZED: "sign in with a token or certificate that has not expired, of an account and a pod that still exist",
    _FORBIDDEN: "use a role that grants it",
}
_NOT_ADMITTED = "correct what it names, or, of a quota, delete what is no longer needed"
_NO_RIGHT = " cannot "
"""In `User "x" cannot list resource ...`. Source: k8s.io/apiserver `responsewriters/errors.go` (`forbiddenMessage`)."""
_UNDECLARED = "field not declared in schema"
"""How the API server refuses to apply a field that the kind does not have; it calls that an internal error (500)."""
_BUDGET = "DisruptionBudget"
"""Reason of such a cause. Source: k8s.io/api `policy/v1` (`DisruptionBudgetCause`)."""
_FOR_GOOD = frozenset({400, 405, 406, 413, 415, 422})


class ApiRequest(msgspec.Struct, frozen=True):
    """A request for objects of a kind."""

    subject: str
    """What is asked, for errors."""
    kind: Kind
    name: str | None = None
    namespace: str = ""
    subresource: str = ""
    path: str = ""
    """The path of the pod behind `proxy`, one segment."""

    def target(self, parameters: Mapping[str, str]) -> str:
        """Return its path on the server, and the parameters.

        Raises:
            InvalidInput: a name would lead elsewhere.

        """
        kind = self.kind
        parts = ["apis", kind.group, kind.version] if kind.group else ["api", kind.version]
        parts += ["namespaces", self.namespace] if kind.namespaced and (self.namespace or self.name is not None) else []
        parts += [
            kind.plural,
            *([] if self.name is None else [self.name]),
            *([self.subresource] if self.subresource else []),
            *([self.path] if self.path else []),
        ]
        if any(part in {"", ".", ".."} for part in parts):
            raise InvalidInput(self.subject, found=f"name {self.name!r} or namespace {self.namespace!r} is not a name")
        path = "/" + "/".join(quote(part, safe=":") for part in parts)
        return f"{path}?{urlencode(parameters)}" if parameters else path


class Absent(Conflict):
    """The object does not exist (HTTP 404)."""


def conditions(selection: Selection) -> dict[str, str]:
    """Return a selection as parameters of a request."""
    labels = [*(f"{key}={value}" for key, value in selection.labels), *selection.having]
    fields = [f"{key}={value}" for key, value in selection.fields]
    fields += [f"{key}!={value}" for key, value in selection.other_fields]
    return {name: ",".join(each) for name, each in (("labelSelector", labels), ("fieldSelector", fields)) if each}


def subject_of(kind: Kind, name: str, namespace: str) -> str:
    """Return what errors call an object."""
    if namespace and not name:  # the API server generates one
        return f"{kind.name} in {namespace}"
    return f"{kind.name} {namespace}/{name}" if namespace else f"{kind.name} {name}"


def check(answer: HttpResponse, requested: ApiRequest) -> None:
    """Raise our error for a response without success.

    Raises:
        TesseraError: as `refused` says, or the kind is not served.

    """
    if answer.success:
        return
    try:
        status = msgspec.json.decode(answer.content, type=dict)
    except JUNK as error:
        # A path that leads nowhere is answered in plain text; an object that is not there with a Status.
        if answer.status == _ABSENT:
            raise not_served(requested.kind, requested.subject) from error
        status = {"message": answer.content.decode(errors="replace")}
    if answer.status == _ABSENT and requested.name is None and not as_dict(status.get("details")).get("name"):
        raise not_served(requested.kind, requested.subject)  # aggregating servers and proxies answer by a Status, too
    raise refused(answer.status, message_of(status), requested)


def message_of(status: Object) -> str:
    """Return the server's message, longer than `shown`: a validation error's fix is at the end of a sentence.

    Which PodDisruptionBudget forbids an eviction is not in it, but among the causes.
    Source: kubernetes `pkg/registry/core/pod/storage/eviction.go`.
    """
    causes = as_dicts(as_dict(status.get("details")).get("causes"))
    budgets = [str(each.get("message")) for each in causes if each.get("reason") == _BUDGET]
    text = " ".join((str(status.get("message") or status.get("reason") or "no message"), *budgets))
    return repr(text[:_LONGEST_MESSAGE])


def refused(code: int, found: str, requested: ApiRequest) -> TesseraError:
    """Return our error for a status of the server. Source: Kubernetes API conventions, HTTP status codes."""
    subject = requested.subject
    if code == _TOO_OLD:
        return Expired(subject, found=found, hint="list again")
    if code == _ABSENT:
        return Absent(subject, found=found, hint="observe it again")
    if code == _CHANGED:
        return Conflict(subject, found=found, hint="observe it again" if requested.name else "choose a new name")
    if code in _WITHHELD:
        # Quotas, admission and namespaces that end answer 403, too, and no role would help.
        admission = code == _FORBIDDEN and _NO_RIGHT not in found
        error = Forbidden if code == _FORBIDDEN and not admission else Unavailable
        return error(subject, found=found, hint=_NOT_ADMITTED if admission else _WITHHELD[code])
    if _UNDECLARED in found:
        definition = f"{requested.kind.plural}.{requested.kind.group}"
        fix = f"install the CustomResourceDefinition of this version, {definition}" if requested.kind.custom else ""
        return InvalidInput(subject, found=found, hint=fix or "remove or correct that field")
    kind = InvalidInput if code in _FOR_GOOD else Unanswered if code >= _BROKEN else Unavailable
    return kind(subject, found=f"HTTP {code}, {found}", hint="correct it" if code in _FOR_GOOD else "try again")
