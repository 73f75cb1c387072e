"""The agent's annotations about the kubelet's allocations: devices by name, and that gpushare memory was allocated."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tessera.api.documents import Document
from tessera.api.fields import Field, identity
from tessera.api.gpushare.annotations import ASSIGNED, ASSUMED
from tessera.api.kubernetes.podspecs import read_need
from tessera.api.kubernetes.podstates import is_finished
from tessera.api.tessera.pods.assignments import check_requested, read_shares, signed_request, write_shares
from tessera.api.tessera.pods.signatures import InvalidAssignment, Keys
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation, RequestKey
from tessera.core.gpu.sharing import names_device
from tessera.core.workload.need import DeviceRequest, Form, Need
from tessera.core.workload.resources import SHARE_MEMORY

__all__ = ["allocated", "awaits_memory", "honored", "recorded_assignment", "requests_by_name"]


def requests_by_name(pod: Mapping[str, Any]) -> bool:
    """Return whether an unfinished pod requests GPUs or MIG instances by name; not if it is invalid.

    Raises:
        InvalidInput: the pod is invalid.

    """
    field = _field(pod)
    return not is_finished(field) and any(map(_by_name, read_need(field).requests))


def recorded_assignment(
    pod: Mapping[str, Any],
    record: Iterable[KubeletAllocation],
    devices: Mapping[str, Share],
    *,
    share_unit_mib: int = 1024,
    keys: Keys | None = None,
) -> str | None:
    """Return the text that a pod's assignment must have; None if that is unknown, or not known yet.

    Shares assigned by a scheduler stay, after the devices by name, in the order of the requests. Such a pod is
    reported once it runs: until then its shares may be exchanged. Devices of init containers, beyond those of the
    others, are not in the record, so that nothing is reported of pods that have any.

    Args:
        pod: the Pod object.
        record: the kubelet's record.
        devices: the share of each device id, `core.cluster.namedshares.shares_by_id`.
        share_unit_mib: MiB in one `aliyun.com/gpu-mem`.
        keys: the keys that count on the node.

    Raises:
        InvalidInput: the pod or its assignment cannot be read.

    """
    field = _field(pod)
    requested = signed_request(field, keys)
    need = read_need(field, share_unit_mib=share_unit_mib, requested=requested)
    named = _named(field, need, record, devices)
    if not named:
        return None
    amounts = sum(request.count for request in need.requests if request.form is not Form.EXACT)
    if not amounts:
        return write_shares(named, need)
    if field.get("status", "phase").value != "Running":
        return None
    assigned = read_shares(field, need, share_unit_mib=share_unit_mib, keys=keys) or ()
    if len(assigned) not in {amounts, amounts + len(named)}:
        return None
    return write_shares((*named, *assigned[-amounts:]), requested)


def honored(
    pod: Mapping[str, Any], record: Iterable[KubeletAllocation], keys: Keys, *, share_unit_mib: int = 1024
) -> str | None:
    """Return the unsigned assignment of a running pod; None where there is nothing to sign.

    It belongs to a pod that was started by an agent that did not sign yet. The
    kubelet's record shows its devices; more than its request is never signed.

    Args:
        pod: the object.
        record: the kubelet's record.
        keys: the keys that count on the node.
        share_unit_mib: MiB in one `aliyun.com/gpu-mem`.

    Raises:
        InvalidInput: the pod or its assignment cannot be read; or it is of more than the pod asks.

    """
    field = _field(pod)
    if field.get("status", "phase").value != "Running":
        return None
    need = read_need(field, share_unit_mib=share_unit_mib)
    amounts = {request.resource for request in need.requests if request.form is not Form.EXACT}
    own = identity(field)
    if not amounts or not amounts <= {each.resource for each in record if (each.namespace, each.pod) == own}:
        return None
    try:
        read_shares(field, need, share_unit_mib=share_unit_mib, keys=keys)
    except InvalidAssignment:
        counts = msgspec.structs.replace(keys, unsigned="counts")
        shares = read_shares(field, need, share_unit_mib=share_unit_mib, keys=counts) or ()
        check_requested(field, need, shares)
        return write_shares(shares)  # without requests: it is unknown who wrote the present ones
    return None


def awaits_memory(pod: Mapping[str, Any]) -> bool:
    """Return whether an unfinished pod has gpushare memory that is assigned by a scheduler and not allocated yet.

    Raises:
        InvalidInput: the pod cannot be read.

    """
    field = _field(pod)
    return not is_finished(field) and field.get("metadata", "annotations").get(ASSIGNED).value == "false"


def allocated(pod: Mapping[str, Any], record: Iterable[KubeletAllocation], *, now_ns: int) -> dict[str, str]:
    """Return the annotations of a pod whose gpushare memory was allocated, with the time; none before.

    Source: AliyunContainerService/gpushare-device-plugin `pkg/gpu/nvidia/allocate.go`, which writes them in `Allocate`.

    Args:
        pod: one that `awaits_memory`.
        record: the kubelet's record.
        now_ns: the time, in nanoseconds since 1970.

    Raises:
        InvalidInput: the pod cannot be read.

    """
    field = _field(pod)
    namespace, name = identity(field)
    own = {
        each.container
        for each in record
        if (each.namespace, each.pod, each.resource) == (namespace, name, SHARE_MEMORY)
    }
    asking = {
        container.get("name").text()
        for container in field.get("spec", "containers").elements()
        if container.get("resources", "limits").get(SHARE_MEMORY).present
    }
    given = field.get("status", "phase").value == "Running" or (asking and asking <= own)
    return {ASSIGNED: "true", ASSUMED: str(now_ns)} if given else {}


def _named(
    field: Field, need: Need, record: Iterable[KubeletAllocation], devices: Mapping[str, Share]
) -> tuple[Share, ...]:
    """Return the devices of each request by name, in order; none if one of them is unknown."""
    namespace, name = identity(field)
    ids = {each.key: each.device_ids for each in record}
    shares: list[Share] = []
    for request in filter(_by_name, need.requests):
        own = ids.get(RequestKey(namespace, name, request.container, request.resource), ())
        known = [devices[each] for each in own if each in devices]
        if len(known) != request.count or len(own) != request.count:
            return ()
        shares += (
            msgspec.structs.replace(each, resource=request.resource, container=request.container) for each in known
        )
    return tuple(shares)


def _by_name(request: DeviceRequest) -> bool:
    return request.form is Form.EXACT and names_device(request.resource)


def _field(pod: Mapping[str, Any]) -> Field:
    return Field(Document(source="pods of this node", number=1, data=dict(pod), first_line=1), dict(pod))
