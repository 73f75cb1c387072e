"""Which pods are routed to `tessera-scheduler`, and the AdmissionReview (v1) for it.

The chart has the same rules in CEL, in `templates/admission`: for the API server itself (scheduler-name.yaml), and
so that a webhook gets no other pod (scheduler-name-webhook.yaml). tests/kube/test_admission.py compares the three.

Source: k8s.io/api admission/v1 `types.go`; kubernetes documentation, Dynamic Admission Control.
"""

import base64
from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.api.fields import error_phrase, refused_form
from tessera.api.tessera.v1alpha1.objects import NAMESPACE
from tessera.core.workload.resources import GPU_COMPUTE, GPU_COUNT, GPU_MEMORY, SCHEDULER_NAME, SHARE_MEMORY
from tessera.core.workload.tesseranames import GPU_MODEL, ISOLATION
from tessera.errors import UNDECODABLE, InvalidInput

__all__ = ["AMOUNTS", "OPT_OUT", "Review", "is_routed", "read_review", "write_review"]

AMOUNTS = (GPU_MEMORY, GPU_COMPUTE, GPU_COUNT, SHARE_MEMORY)
"""Resources that only `tessera-scheduler` can place: the default scheduler knows no devices."""
OPT_OUT = "tessera.dev/scheduling"
"""Label of a pod: `"false"` leaves one for devices by name to the default scheduler. Set by users; read by admission,
which routes pods to `tessera-scheduler`."""
_RESTRICTING = (GPU_MODEL, ISOLATION)
"""Annotations that restrict which devices serve an exact request."""
_DEVICES = "nvidia.com/"
_SYSTEM = ("kube-system", NAMESPACE)
_DEFAULT = ("", "default-scheduler")
_VERSION = "admission.k8s.io/v1"


class _Resources(msgspec.Struct, frozen=True):
    limits: dict[str, str | int | float] | None = None


class _Container(msgspec.Struct, frozen=True):
    resources: _Resources | None = None

    def requests_amount(self, *, restricted: bool) -> bool:
        """Return whether it requests an amount, even zero, of which `tessera-scheduler` reports what is wrong.

        Args:
            restricted: whether the pod restricts the devices of a name, so that the name alone does not do.

        """
        limits = (self.resources and self.resources.limits) or {}
        return not limits.keys().isdisjoint(AMOUNTS) or (
            restricted and any(name.startswith(_DEVICES) for name in limits)
        )


class _Metadata(msgspec.Struct, frozen=True):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    containers: tuple[_Container, ...] | None = None
    init_containers: tuple[_Container, ...] | None = None
    node_name: str | None = None
    scheduler_name: str | None = None


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Metadata | None = None
    spec: _Spec | None = None


class _Kind(msgspec.Struct, frozen=True):
    group: str = ""
    kind: str = ""


class _Request(msgspec.Struct, frozen=True):
    uid: str
    kind: _Kind = _Kind()
    operation: str = ""
    namespace: str = ""
    object: dict[str, Any] | None = None


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str
    request: _Request


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """The API server's request about one object."""

    uid: str
    """UID of the request; the answer must have it."""
    namespace: str
    pod: dict[str, Any] | None
    """The pod being created; None for everything else, which is ignored."""


def is_routed(pod: Mapping[str, Any], namespace: str) -> bool:
    """Return whether a new pod is routed: it requests what only that scheduler can place, and names neither.

    That is an amount, or an exact device whose isolation or GPU model matters, unless `OPT_OUT` leaves that alone.
    Neither: no scheduler and no node.

    Args:
        pod: the object.
        namespace: where it is created.

    Raises:
        InvalidInput: it is no Pod.

    """
    try:
        read = msgspec.convert(pod, _Pod)
    except msgspec.ValidationError as error:
        raise refused_form(error, pod, "admission request, object", "send a Pod") from error
    spec, labels = read.spec or _Spec(), (read.metadata and read.metadata.labels) or {}
    if namespace in _SYSTEM:
        return False
    if spec.node_name or (spec.scheduler_name or "") not in _DEFAULT:
        return False
    annotations = (read.metadata and read.metadata.annotations) or {}
    restricted = labels.get(OPT_OUT) != "false" and not annotations.keys().isdisjoint(_RESTRICTING)
    return any(
        each.requests_amount(restricted=restricted)
        for each in (*(spec.containers or ()), *(spec.init_containers or ()))
    )


def read_review(body: bytes) -> Review:
    """Return the request in an AdmissionReview.

    Raises:
        InvalidInput: it is not an AdmissionReview of version v1.

    """
    subject, expected = "admission request", f"an AdmissionReview of {_VERSION} with a request"
    try:
        review = msgspec.json.decode(body, type=_Review)
    except UNDECODABLE as error:
        raise InvalidInput(subject, found=f"it is not {expected} ({error_phrase(error, body)})") from error
    if review.api_version != _VERSION:
        raise InvalidInput(subject, found=review.api_version, expected=expected)
    requested = review.request
    created = requested.kind == _Kind(kind="Pod") and requested.operation == "CREATE"
    return Review(uid=requested.uid, namespace=requested.namespace, pod=requested.object if created else None)


def write_review(uid: str, *, routed: bool) -> bytes:
    """Return the answer: the pod is allowed, with `tessera-scheduler` as its scheduler if it is routed."""
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if routed:
        # The API server has set the default by now; JSON Patch's `add` replaces what is there.
        patch = msgspec.json.encode([{"op": "add", "path": "/spec/schedulerName", "value": SCHEDULER_NAME}])
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    return msgspec.json.encode({"apiVersion": _VERSION, "kind": "AdmissionReview", "response": response})
