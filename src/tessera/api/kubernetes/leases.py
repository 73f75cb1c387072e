"""The Lease object of Kubernetes (`coordination.k8s.io/v1`) for leader election."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.api.fields import error_phrase
from tessera.api.kubernetes.times import read_time
from tessera.core.cluster.protocols.leadership import Lease
from tessera.errors import InvalidInput

__all__ = ["read_lease", "renewed_s", "write_lease"]


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _Object(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    spec: _Spec | None = None


def read_lease(obj: Mapping[str, Any] | None) -> Lease:
    """Return the lease in a Lease object; one without a holder if there is no object.

    Raises:
        InvalidInput: it is not a Lease.

    """
    if obj is None:
        return Lease()
    try:
        read = msgspec.convert(obj, _Object)
    except msgspec.ValidationError as error:
        raise InvalidInput(
            "Lease", found=f"it is not a Lease of coordination.k8s.io/v1 ({error_phrase(error, obj)})"
        ) from error
    spec = read.spec or _Spec()
    return Lease(
        holder=spec.holder_identity or "",
        lease_s=max(0, spec.lease_duration_seconds or 0),
        transitions=spec.lease_transitions or 0,
        version=read.metadata.resource_version,
    )


def renewed_s(obj: Mapping[str, Any]) -> float | None:
    """Return when a Lease was last renewed, in seconds since 1970; None if it has no holder, or does not say."""
    spec = obj.get("spec") or {}
    try:
        return read_time(str(spec.get("renewTime"))) if spec.get("holderIdentity") else None
    except ValueError:
        return None


def write_lease(lease: Lease, now: dt.datetime, *, acquired: bool) -> dict[str, Any]:
    """Return the merge patch that writes a lease, on the version that it replaces.

    Args:
        lease: what to write.
        now: the time shown to people. No decision uses it, but it must differ at each renewal: a patch that changes
            nothing renews nothing.
        acquired: whether a leadership begins.

    """
    moment = now.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec: dict[str, Any] = {
        "holderIdentity": lease.holder,
        "leaseDurationSeconds": lease.lease_s,
        "leaseTransitions": lease.transitions,
        "renewTime": moment,
    }
    written: dict[str, Any] = {"spec": spec | ({"acquireTime": moment} if acquired else {})}
    return written | ({"metadata": {"resourceVersion": lease.version}} if lease.version else {})
