"""The devices of a running pod as recorded in annotations: Tessera's, and those of gpushare."""

from collections.abc import Iterator

import msgspec

from tessera.api.fields import Field, error_phrase
from tessera.api.gpushare.annotations import assigned_mib, is_assigned
from tessera.api.kubernetes.podspecs import ASSIGNMENT
from tessera.api.tessera.pods.signatures import InvalidAssignment, Keys, assignment_of, check_signature
from tessera.api.tessera.shares import (
    MOST_GPUS,
    MOST_MIB,
    AssignmentFields,
    RequestFields,
    ShareFields,
    UnversionedShareFields,
)
from tessera.core.cluster.snapshot import Share
from tessera.core.gpu.gpumodels import same_profile
from tessera.core.gpu.sharing import AMOUNT_MODES, Mode, mig_resource, names_device
from tessera.core.workload.need import DeviceRequest, Form, Isolation, Need
from tessera.core.workload.resources import SHARE_MEMORY
from tessera.errors import UNDECODABLE, InvalidInput

__all__ = ["check_requested", "dealt", "read_shares", "serves", "signed_request", "write_shares"]

_GIB = 1024

_DECODER = msgspec.json.Decoder(AssignmentFields | tuple[UnversionedShareFields, ...])


def write_shares(shares: tuple[Share, ...], requested: Need | None = None) -> str:
    """Return the text of the annotation `tessera.dev/assignment`: the shares in the order of the requests.

    Args:
        shares: of the pod.
        requested: its request, of which the devices and models are written; None if they were not signed.

    """
    fields = AssignmentFields(1, msgspec.convert(shares, tuple[ShareFields, ...], from_attributes=True))
    if requested is not None:
        requests = msgspec.convert(requested.requests, tuple[RequestFields, ...], from_attributes=True)
        fields = msgspec.structs.replace(fields, requests=requests, models=requested.models)
    return msgspec.json.encode(fields).decode()


def signed_request(pod: Field, keys: Keys | None) -> Need | None:
    """Return the requests and models that were signed with a pod's assignment; None for none.

    They take precedence over the pod's present annotations, which a tenant may have changed since.

    Args:
        pod: the object.
        keys: the keys that count on the pod's node; without them nothing is signed.

    """
    own = pod.get("metadata", "annotations", ASSIGNMENT)
    if keys is None or not own.present:
        return None
    try:
        check_signature(pod, keys)
        return _parsed(own)[1]
    except InvalidInput:
        return None


def read_shares(
    pod: Field, need: Need | None, *, share_unit_mib: int = 1024, keys: Keys | None = None
) -> tuple[Share, ...] | None:
    """Return the shares recorded in a pod's annotations; None for none.

    Args:
        pod: the object.
        need: its request, if no request was signed; None if it is invalid.
        share_unit_mib: MiB in one `aliyun.com/gpu-mem`.
        keys: the keys that count on the pod's node; without them assignments are not verified.

    Raises:
        InvalidAssignment: an assignment that Tessera did not write, or that exceeds the pod's request.
        InvalidInput: an annotation that cannot be read.

    """
    if keys is None or keys.unsigned == "counts":
        own = pod.get("metadata", "annotations", ASSIGNMENT)
        return _parsed(own)[0] if own.present else _foreign(pod, need, share_unit_mib)
    annotations = pod.get("metadata", "annotations")
    foreign = is_assigned(annotations)
    if annotations.get(ASSIGNMENT).present or (foreign and keys.unsigned == "refused"):
        try:
            check_signature(pod, keys)
        except InvalidAssignment:
            if not foreign or keys.unsigned == "refused":
                raise
        else:
            shares, requested = _parsed(annotations.get(ASSIGNMENT))
            # If the request was not signed, the unit may have been larger when the pod was bound.
            check_requested(pod, requested or need, shares, spare=1 if requested else max(1, _GIB // share_unit_mib))
            return shares
    found = _foreign(pod, need, share_unit_mib)
    check_requested(pod, need, found or ())
    absent = sorted({share.gpu for share in found or ()} - keys.gpus) if keys.gpus is not None else []
    if absent:
        expected = f"one of the node's {len(keys.gpus or ())} GPUs"
        raise InvalidAssignment(assignment_of(pod), found=f"GPU {absent[0]}", expected=expected)
    return found


def _foreign(pod: Field, need: Need | None, share_unit_mib: int) -> tuple[Share, ...] | None:
    """Return what gpushare's annotations record."""
    annotations = pod.get("metadata", "annotations")
    requested_mib = sum(request.memory_mib for request in need.requests if request.form is Form.SHARE) if need else 0
    found = assigned_mib(annotations, requested_mib, share_unit_mib)
    if found is None:
        return None
    for gpu, memory_mib in found.items():
        if gpu >= MOST_GPUS or memory_mib > MOST_MIB:
            raise annotations.refuse(found=f"{memory_mib} MiB of GPU {gpu} are more than any node has")
    return tuple(
        Share(
            gpu=gpu,
            mode=Mode.MEMORY_SHARE,
            memory_mib=memory_mib,
            compute_percent=0,
            isolation=Isolation.NONE,
            resource=SHARE_MEMORY,
        )
        for gpu, memory_mib in found.items()
    )


def dealt(
    pod: Field, requests: tuple[DeviceRequest, ...], shares: tuple[Share, ...]
) -> Iterator[tuple[DeviceRequest, int, tuple[Share, ...]]]:
    """Yield each request with its shares and their position; a lone request for memory shares may have several GPUs.

    Resources other than GPUs have no shares, and devices requested by name none before the kubelet's record has them.

    Raises:
        InvalidAssignment: more or fewer shares than requested devices.

    """
    requests = tuple(
        request for request in requests if request.form is not Form.EXACT or names_device(request.resource)
    )
    amounts = tuple(request for request in requests if request.form is not Form.EXACT)
    requests = amounts if len(shares) == sum(request.count for request in amounts) else requests
    devices = sum(request.count for request in requests)
    lone = len(requests) == 1 and requests[0].form is Form.SHARE
    if devices != len(shares) and not (lone and shares):
        found = f"it has {len(shares)} shares, and {devices} devices are requested"
        raise InvalidAssignment(assignment_of(pod), found=found)
    at = 0
    for request in requests:
        count = len(shares) if lone else request.count
        yield request, at, shares[at : at + count]
        at += count


def check_requested(pod: Field, need: Need | None, shares: tuple[Share, ...], *, spare: int = 1) -> None:
    """Reject shares that exceed the pod's request: other devices, more of them, more memory.

    Serving may round a need up to a device: a MIG instance, a replica of fixed size, a whole GPU.

    Args:
        pod: the object.
        need: its request; None if it is invalid.
        shares: the recorded ones.
        spare: factor by which the memory of a memory share may exceed the request.

    Raises:
        InvalidAssignment: shares that are too many, too large, or of another kind.

    """
    if need is None or not shares:
        return
    for request, _, own in dealt(pod, need.requests, shares):
        strange = next((share for share in own if not _serves(share, request)), None)
        if strange is not None:
            found = f"{strange.resource}, mode {strange.mode}"
            accepted = f"{request.count} {request.resource}"
            raise InvalidAssignment(assignment_of(pod), found=found, expected="what is requested", hint=accepted)
        given_mib = sum(
            share.memory_mib
            for share in own
            if request.form is not Form.EXACT and _is_part(share) and share.resource == request.resource
        )
        most_mib = request.memory_mib * (spare if request.form is Form.SHARE else len(own))
        if given_mib > most_mib:
            found = f"{given_mib} MiB of {request.resource} are more than the {most_mib} MiB requested"
            raise InvalidAssignment(assignment_of(pod), found=found)


def serves(pod: Field, need: Need, shares: tuple[Share, ...]) -> bool:
    """Return whether shares satisfy a need and do not exceed it (`check_requested`)."""
    try:
        check_requested(pod, need, shares)
        parts = tuple(dealt(pod, need.requests, shares))
    except InvalidAssignment:
        return False
    return all(
        sum(share.memory_mib for share in own) >= request.memory_mib * request.count
        and all(share.compute_percent >= request.compute_percent for share in own)
        and all(share.isolation.covers(request.isolation) for share in own)
        for request, _, own in parts
        if request.form is not Form.EXACT
    )


def _serves(share: Share, request: DeviceRequest) -> bool:
    """Return whether a share is of a kind that can serve a request."""
    if request.form is Form.EXACT:
        return _same_device(share.resource, request.resource)
    return request.form is Form.NEED or (share.resource == request.resource and _is_part(share))


def _is_part(share: Share) -> bool:
    return share.profile is None and share.mode in AMOUNT_MODES


def _same_device(resource: str, requested: str) -> bool:
    """Return whether two resource names are of one kind of device, whatever driver prints the name of its profile."""
    if resource == requested or not all(each.startswith(mig_resource("")) for each in (resource, requested)):
        return resource == requested
    shared = resource.endswith(".shared")
    alike = same_profile(resource.removesuffix(".shared"), requested.removesuffix(".shared"))
    return alike and shared is requested.endswith(".shared")


def _parsed(field: Field) -> tuple[tuple[Share, ...], Need | None]:
    """Return the shares of an assignment, and the requests and models in it; None for none."""
    try:
        found = _DECODER.decode(field.text())
    except UNDECODABLE as error:
        cause = error_phrase(error, field.text().encode(errors="replace"))
        raise field.refuse(found=f"it is not a version and a list of shares in JSON ({cause})") from error
    requested = None
    if isinstance(found, AssignmentFields) and found.requests is not None:
        requested = Need(
            requests=msgspec.convert(found.requests, tuple[DeviceRequest, ...], from_attributes=True),
            models=found.models,
        )
    shares = found.shares if isinstance(found, AssignmentFields) else found
    return msgspec.convert(shares, tuple[Share, ...], from_attributes=True), requested
