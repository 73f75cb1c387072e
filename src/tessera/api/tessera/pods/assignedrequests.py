"""The assignments of a node's pods as shares, container by container."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec

from tessera.api.documents import Document
from tessera.api.fields import Field, identity
from tessera.api.gpushare.annotations import ASSIGNED, INDEX, assumed_ns
from tessera.api.kubernetes.podspecs import ASSIGNMENT, read_need
from tessera.api.kubernetes.podstates import created_ns, is_finished, is_terminating
from tessera.api.tessera.pods.assignments import dealt, read_shares, signed_request, write_shares
from tessera.api.tessera.pods.signatures import Keys, UnknownKey
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation, RequestKey
from tessera.core.deviceplugin.allocations.matching import AssignedRequest, Correction
from tessera.core.workload.need import ContainerNeed, DeviceRequest, Form, Need, effective_need, reused
from tessera.core.workload.resources import GPU_COMPUTE, GPU_COUNT, GPU_MEMORY, SHARE_MEMORY, SHARE_RESOURCES
from tessera.core.workload.units import count
from tessera.errors import InvalidInput

__all__ = ["AssignedRequests", "corrected", "read_assigned_requests", "unshown"]


class AssignedRequests(msgspec.Struct, frozen=True, kw_only=True):
    """The assignments of a node's pods, container by container."""

    requests: tuple[AssignedRequest, ...] = ()
    notes: tuple[str, ...] = ()
    """Pods with an unusable assignment, and why."""
    refused: tuple[str, ...] = ()
    """The same in few words."""
    unknown: tuple[str, ...] = ()
    """Ids of unknown keys that signed some of them."""


def read_assigned_requests(
    pods: Iterable[Mapping[str, Any]], *, share_unit_mib: int = 1024, keys: Keys | None = None
) -> AssignedRequests:
    """Return the assignments of Pod objects; finished ones are left out, invalid ones with a note.

    Args:
        pods: the objects.
        share_unit_mib: MiB in one `aliyun.com/gpu-mem`.
        keys: the keys that count on their node; without them assignments are not verified.

    """
    requests: list[AssignedRequest] = []
    notes: list[str] = []
    refused: list[str] = []
    unknown: list[str] = []
    for pod in pods:
        field = Field(Document(source="pods of this node", number=1, data=dict(pod), first_line=1), dict(pod))
        try:
            if not is_finished(field):
                requests.extend(_requests(field, share_unit_mib, keys))
        except InvalidInput as error:
            notes.append(f"the assignment of a pod is not used: {error}")
            refused.append(f"{error.subject}: {error.found}")
            unknown += [error.key] if isinstance(error, UnknownKey) else []
    return AssignedRequests(
        requests=tuple(requests), notes=tuple(notes), refused=tuple(refused), unknown=tuple(unknown)
    )


def _requests(pod: Field, share_unit_mib: int, keys: Keys | None) -> Iterator[AssignedRequest]:
    namespace, name = identity(pod)
    requested = signed_request(pod, keys)
    need = read_need(pod, share_unit_mib=share_unit_mib, requested=requested)
    shares = read_shares(pod, need, share_unit_mib=share_unit_mib, keys=keys)
    if shares is None:
        return
    running = pod.get("status", "phase").value == "Running"
    ending, since_ns = is_terminating(pod), _since_ns(pod, need)
    initial, uid = dict(_initial(pod, need)), str(pod.get("metadata", "uid").value or "")
    for part in _parts(pod, need, shares, initial):
        yield AssignedRequest(
            key=RequestKey(namespace, name, part.container, part.request.resource),
            uid=uid,
            units=dict(_units(pod, part.request.resource)).get(part.container, 0),
            shares=part.shares,
            at=part.at,
            since_ns=since_ns,
            created_ns=created_ns(pod),
            ending=ending,
            running=running,
            ends=pod.get("spec", "restartPolicy").value in {"Never", "OnFailure"},
            request_text=_requested(part.request, need, signed=requested is not None) if part.whole else "",
            memory_mib=part.request.memory_mib if part.request.form is Form.NEED else 0,
            models=need.models,
            bound=(uid or f"{namespace}/{name}") if part.common else "",
            initial=part.container in initial,
        )


class _Part(NamedTuple):
    """One container's part of its pod's shares."""

    container: str
    request: DeviceRequest
    """The need that they serve; of several the smallest."""
    at: int
    shares: tuple[Share, ...]
    common: bool
    """Whether another container of the pod uses some of them too."""
    whole: bool = True
    """Whether they are all that the request is served by, and nothing else."""


def _parts(pod: Field, need: Need, shares: tuple[Share, ...], initial: Mapping[str, DeviceRequest]) -> Iterator[_Part]:
    devices: list[tuple[DeviceRequest, int, Share]] = []
    for request, at, own in dealt(pod, need.requests, shares):
        if request.form is Form.SHARE:
            units = dict(_units(pod, request.resource))
            most = _most_units(pod, request.resource)
            for name, number in units.items():
                part = own if len(units) == 1 else _part(own, number, most)
                yield _Part(name, request, at, part, common=len(units) > 1)
        elif request.resource in SHARE_RESOURCES:
            devices += [(request, at + number, share) for number, share in enumerate(own)]
    yield from _of_needs(pod, devices, initial)


def _of_needs(
    pod: Field, devices: Sequence[tuple[DeviceRequest, int, Share]], initial: Mapping[str, DeviceRequest]
) -> Iterator[_Part]:
    """Yield the containers' devices for their needs: init containers get those of others that start later."""
    single = [msgspec.structs.replace(request, count=1) for request, _, _ in devices]
    places = {
        each.container: tuple(i for i, other in enumerate(single) if other.container == each.container)
        for each in single
    }
    places |= {
        name: reused(request, single, _running(pod, name)) for name, request in initial.items() if request.memory_mib
    }
    for name, own in places.items():
        requests = {devices[index][0] for index in own}
        if own:
            yield _Part(
                container=name,
                request=min(requests, key=lambda request: request.memory_mib),
                at=devices[own[0]][1],
                shares=tuple(devices[index][2] for index in own),
                common=any(set(own) & set(others) for other, others in places.items() if other != name),
                whole=len(requests) == 1
                and own == tuple(i for i, (request, _, _) in enumerate(devices) if request in requests),
            )


def _initial(pod: Field, need: Need) -> Iterator[tuple[str, DeviceRequest]]:
    """Yield the init containers that end before the others start, each with its need."""
    for container in pod.get("spec", "initContainers").elements():
        if container.get("restartPolicy").value != "Always":
            name, limits = container.get("name").text(), container.get("resources", "limits")
            memory, compute, gpus = (
                count(limits.get(key).value, limits.get(key).subject) if limits.get(key).present else default
                for key, default in ((GPU_MEMORY, 0), (GPU_COMPUTE, 0), (GPU_COUNT, 1))
            )
            yield (
                name,
                DeviceRequest(
                    resource=GPU_MEMORY,
                    form=Form.NEED,
                    count=gpus,
                    memory_mib=memory * need.unit_mib,
                    compute_percent=compute,
                    container=name,
                ),
            )


def _running(pod: Field, name: str) -> frozenset[str]:
    """Return the sidecars that are started before an init container."""
    before = takewhile(lambda each: each.get("name").text() != name, pod.get("spec", "initContainers").elements())
    return frozenset(each.get("name").text() for each in before if each.get("restartPolicy").value == "Always")


def _requested(request: DeviceRequest, need: Need, *, signed: bool) -> str:
    """Return a need as text: two pods with equal needs may exchange shares, even if one is a MIG instance.

    An unsigned need never equals one that was signed for another pod, whose share it would get.
    """
    if request.form is not Form.NEED:
        return ""
    parts = (msgspec.structs.replace(request, container=""), need.models)
    return msgspec.json.encode((*parts, "signed") if signed else parts).decode()


def _part(shares: tuple[Share, ...], units: int, most: int) -> tuple[Share, ...]:
    """Return one container's part of memory shares that a pod's containers have together.

    The part is of what was assigned: the node may count in another unit by now, or than the server does.

    Args:
        shares: the pod's.
        units: the container's.
        most: that the shares are for.

    """
    if len(shares) > 1:
        return shares
    return (msgspec.structs.replace(shares[0], memory_mib=shares[0].memory_mib * units // max(most, 1)),)


def _most_units(pod: Field, resource: str) -> int:
    """Return the most units that a pod's containers have at once."""
    numbers = dict(_units(pod, resource))

    def asked(container: Field) -> ContainerNeed:
        number = numbers.get(container.get("name").text(), 0)
        request = DeviceRequest(resource=resource, form=Form.SHARE, memory_mib=number)
        return ContainerNeed(requests=(request,), sidecar=container.get("restartPolicy").value == "Always")

    containers, init = (map(asked, pod.get("spec", kind).elements()) for kind in ("containers", "initContainers"))
    (request,) = effective_need(tuple(containers), tuple(init)).requests
    return request.memory_mib


def _units(pod: Field, resource: str) -> Iterator[tuple[str, int]]:
    for kind in ("containers", "initContainers"):
        for container in pod.get("spec", kind).elements():
            limit = container.get("resources", "limits").get(resource)
            if limit.present:
                yield container.get("name").text(), count(limit.value, limit.subject)


def _since_ns(pod: Field, need: Need) -> int:
    """Return when a pod was bound, if its binding has the time, as of gpushare's pods; else when it was created."""
    bound = any(request.form is Form.SHARE for request in need.requests)
    assumed = assumed_ns(pod.get("metadata", "annotations")) if bound else None
    return created_ns(pod) if assumed is None else assumed


def unshown(
    pods: Iterable[Mapping[str, Any]], record: Iterable[KubeletAllocation], names: Container[str]
) -> tuple[str, ...]:
    """Return the running pods with devices that are missing from the kubelet's record, sorted.

    A restarted kubelet answers before it has read its pods. While there are any, a device missing from its record
    may not be free.

    Args:
        pods: the Pod objects of a node.
        record: the kubelet's record.
        names: the resources of GPUs that count. A kubelet runs a pod with `spec.nodeName` without resources that are
            unknown, and records nothing of them: source kubernetes `pkg/kubelet/lifecycle/predicate.go`.

    """
    shown = {(each.namespace, each.pod) for each in record}
    missing = []
    for pod in pods:
        metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
        name = (metadata.get("namespace") or "", metadata.get("name") or "")
        running = (pod.get("status") or {}).get("phase") == "Running" and not is_terminating(pod)
        if running and name not in shown and any(_has_devices(each, names) for each in spec.get("containers") or ()):
            missing.append("/".join(name))
    return tuple(sorted(missing))


def _has_devices(container: Mapping[str, Any], names: Container[str]) -> bool:
    limits = (container.get("resources") or {}).get("limits") or {}
    return any(_counted(limits[name]) for name in limits if name in names)


def _counted(amount: object) -> int:
    """Return how many devices a kubelet counts.

    None of an amount beyond 64 bits, such as 1e30: it runs the pod without any. Source: apimachinery
    `pkg/api/resource/quantity.go`, `Value`. Where it wraps such a number around and allocates, the record has the pod.
    """
    try:
        return count(amount, "")
    except InvalidInput:
        return 0


def corrected(
    pod: Mapping[str, Any], correction: Correction, *, share_unit_mib: int = 1024, keys: Keys | None = None
) -> dict[str, str]:
    """Return the annotations that make a pod's assignment match its container's devices.

    Args:
        pod: the object.
        correction: the devices.
        share_unit_mib: MiB in one `aliyun.com/gpu-mem`.
        keys: the keys that count: only a signed assignment is signed again.

    Raises:
        InvalidInput: the pod's assignment changed since the correction was made.

    """
    field = Field(Document(source="pods of this node", number=1, data=dict(pod), first_line=1), dict(pod))
    requested = signed_request(field, keys)
    need = read_need(field, share_unit_mib=share_unit_mib, requested=requested)
    shares = read_shares(field, need, share_unit_mib=share_unit_mib, keys=keys) or ()
    request, end = correction.request, correction.request.at + len(correction.shares)
    annotations = {ASSIGNMENT: write_shares((*shares[: request.at], *correction.shares, *shares[end:]), requested)}
    if request.key.resource == SHARE_MEMORY and field.get("metadata", "annotations").get(INDEX).present:
        annotations |= {INDEX: str(correction.shares[0].gpu), ASSIGNED: "true"}
    return annotations
