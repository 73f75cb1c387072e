"""What a pod needs: cpu, memory, GPUs in one of three request forms, and where it may run.

Equal needs are interchangeable: a `Need` carries no name, so two replicas of one Deployment share one `Need` value.
"""

import enum
from collections.abc import Container, Iterable, Sequence
from fractions import Fraction
from typing import Literal, NewType

import msgspec

__all__ = [
    "ContainerNeed",
    "DeviceRequest",
    "EffectiveNeed",
    "Form",
    "Isolation",
    "Need",
    "Pod",
    "PodKey",
    "Requirement",
    "SelectorTerm",
    "Toleration",
    "effective_need",
    "reused",
]

PodKey = NewType("PodKey", str)
"""A pod's identity, `namespace/name`."""


class Isolation(enum.StrEnum):
    """How far one pod is isolated from another on the same GPU; a stronger grade serves a weaker request."""

    HARDWARE = "hardware"
    """Own slices of memory and compute: a whole GPU or a MIG instance."""
    DRIVER = "driver"
    """Limits enforced by the driver (MPS, per-cgroup memory); a fatal fault is shared."""
    NONE = "none"
    """No limit is enforced: time-slicing and plain memory shares."""

    def covers(self, requested: "Isolation") -> bool:
        """Return whether a share of this grade may serve a pod that requested `requested`."""
        order = (Isolation.NONE, Isolation.DRIVER, Isolation.HARDWARE)
        return order.index(self) >= order.index(requested)


class Form(enum.StrEnum):
    """The three forms of a request for GPU capacity."""

    EXACT = "exact"
    """Devices of a resource name: `nvidia.com/gpu`, `nvidia.com/gpu.shared`, `nvidia.com/mig-1g.10gb`."""
    SHARE = "share"
    """An amount of memory on one shared GPU, as gpushare's `aliyun.com/gpu-mem`; never a MIG instance."""
    NEED = "need"
    """Memory, compute and isolation (`tessera.dev/gpu-memory`); any device with at least that serves."""


class DeviceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One container's request for `count` devices of one kind, shares and needs on as many GPUs."""

    resource: str
    """The resource name in the pod's spec; for `Form.EXACT` it decides which devices serve."""
    form: Form = Form.EXACT
    count: int = 1
    memory_mib: int = 0
    """Memory per device; 0 for exact requests."""
    compute_percent: int = 0
    """Compute per device, 1 to 100; 0 for no request of compute."""
    isolation: Isolation = Isolation.NONE
    """The weakest grade that may serve; none for exact requests, whose name decides, unless the pod names a grade."""
    container: str = ""


class Toleration(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's toleration; empty `key` with `Exists` tolerates everything, empty `effect` matches every effect.

    Source: k8s.io/api core/v1 Toleration.
    """

    key: str = ""
    operator: Literal["Equal", "Exists", "Lt", "Gt"] = "Equal"
    value: str = ""
    effect: str = ""


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    """One expression of a node selector term. Source: k8s.io/api core/v1 NodeSelectorRequirement."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: tuple[str, ...] = ()


class SelectorTerm(msgspec.Struct, frozen=True, kw_only=True):
    """A node selector term: all expressions and fields must match; a term with neither matches no node."""

    expressions: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()
    """Expressions over node fields; Kubernetes supports only `metadata.name`."""


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides where a pod may run. Hashable; equal needs are interchangeable."""

    cpu_milli: int = 0
    memory_mib: int = 0
    requests: tuple[DeviceRequest, ...] = ()
    """GPU requests of all containers, after Kubernetes' rule for init and sidecar containers; all on one node."""
    models: tuple[str, ...] = ()
    """GPU models (catalog names) that may serve; empty means any."""
    cached_models: tuple[str, ...] = ()
    """ModelCaches whose model the node must offer, sorted."""
    node_selector: tuple[tuple[str, str], ...] = ()
    """Labels the node must carry, sorted by key."""
    affinity: tuple[SelectorTerm, ...] | None = None
    """Required node affinity: at least one term must match; None means no constraint."""
    tolerations: tuple[Toleration, ...] = ()
    node_name: str = ""
    """`spec.nodeName` where the pod is pinned; empty otherwise."""
    unit_mib: int = 1024
    """MiB in one unit of `tessera.dev/gpu-memory` as the pod counts: kube-scheduler and the kubelet compare units."""

    @property
    def by_name(self) -> bool:
        """Whether it requests devices by name alone, which kube-scheduler counts and the kubelet chooses."""
        return bool(self.requests) and all(request.form is Form.EXACT for request in self.requests)


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod: an identity and a need."""

    key: PodKey
    need: Need
    priority: int = 0
    owner: str = ""
    """Its workload, `Kind/namespace/name`; empty for a bare pod."""


class ContainerNeed(msgspec.Struct, frozen=True, kw_only=True):
    """One container's request, in exact amounts so that nothing is rounded before it is added up."""

    cpu: Fraction = Fraction(0)
    """Cores."""
    memory: Fraction = Fraction(0)
    """Bytes."""
    requests: tuple[DeviceRequest, ...] = ()
    sidecar: bool = False
    """For init containers: restarted always, so that it runs beside everything after it."""


class EffectiveNeed(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod needs to run from its first init container to its end."""

    cpu: Fraction
    """Cores."""
    memory: Fraction
    """Bytes."""
    requests: tuple[DeviceRequest, ...]


def effective_need(containers: Sequence[ContainerNeed], init: Sequence[ContainerNeed] = ()) -> EffectiveNeed:
    """Return a pod's peak request, by Kubernetes' rule for init containers and sidecars.

    Init containers run one after another, each beside the sidecars started before it; then all containers run beside
    all sidecars. Amounts and counts are the largest sum over these steps. Devices are reused between steps as the
    kubelet reuses them: an init container gets devices of containers that have not started yet, and only what it
    needs beyond them is requested in its own name. A need reused by an init container grows to the larger of the two;
    it is one container's, and all its devices grow, so that a container's number of GPUs stays the same. All
    memory shares of one step lie on one GPU, as gpushare places them, so they become one request.

    The order of requests: containers, then sidecars, then what init containers need beyond them.

    Source: kubernetes/component-helpers `resource/helpers.go` (`AggregateContainerRequests`);
    AliyunContainerService/gpushare-scheduler-extender `pkg/utils/pod.go` (sum over containers).
    """
    steps = [*_init_steps(init), [*containers, *(c for c in init if c.sidecar)]]
    return EffectiveNeed(
        cpu=max(sum((c.cpu for c in step), Fraction(0)) for step in steps),
        memory=max(sum((c.memory for c in step), Fraction(0)) for step in steps),
        requests=(*_devices(steps), *_share(steps), *_needs(steps)),
    )


def _init_steps(init: Sequence[ContainerNeed]) -> Iterable[list[ContainerNeed]]:
    """Yield the containers that run at each init step, the one that starts last."""
    sidecars: list[ContainerNeed] = []
    for container in init:
        yield [*sidecars, container]
        if container.sidecar:
            sidecars.append(container)


def _requests(step: Iterable[ContainerNeed], form: Form) -> list[DeviceRequest]:
    return [request for container in step for request in container.requests if request.form is form]


def _devices(steps: list[list[ContainerNeed]]) -> list[DeviceRequest]:
    """Return the exact requests: those of the last step, and what an init step needs beyond their number."""
    requests = _requests(steps[-1], Form.EXACT)
    last: dict[str, int] = {}
    for request in requests:
        last[request.resource] = last.get(request.resource, 0) + request.count
    more: dict[str, DeviceRequest] = {}
    for step in steps[:-1]:
        desired: dict[str, int] = {}
        for request in _requests(step, Form.EXACT):
            desired[request.resource] = desired.get(request.resource, 0) + request.count
            beyond = desired[request.resource] - last.get(request.resource, 0)
            if beyond > (more[request.resource].count if request.resource in more else 0):
                more[request.resource] = msgspec.structs.replace(request, count=beyond)
    return requests + list(more.values())


def _share(steps: list[list[ContainerNeed]]) -> list[DeviceRequest]:
    """Return the one request that covers the memory shares of every step; it names a container where only one asks."""
    sums = [
        (requests, sum(request.memory_mib for request in requests))
        for step in steps
        if (requests := _requests(step, Form.SHARE))
    ]
    if not sums:
        return []
    requests, memory_mib = max(reversed(sums), key=lambda step: step[1])
    names = {request.container for step, _ in sums for request in step}
    return [
        msgspec.structs.replace(requests[0], memory_mib=memory_mib, container=names.pop() if len(names) == 1 else "")
    ]


def _needs(steps: list[list[ContainerNeed]]) -> list[DeviceRequest]:
    """Return the needs of the last step, grown where an init step reuses their devices, and what none of them has."""
    needs = _requests(steps[-1], Form.NEED)
    for step in steps[:-1]:
        running, starting = step[:-1], step[-1]
        taken = {request.container for request in _requests(running, Form.NEED)}
        for request in _requests([] if starting.sidecar else [starting], Form.NEED):
            lenders = [i for i, each in enumerate(needs) if each.container not in taken and each.count >= request.count]
            if lenders:
                *_, index = min((*_growth(needs[i], request), i) for i in lenders)
                needs[index] = _grown(needs[index], request)
            else:
                needs.append(request)
    return needs


def reused(request: DeviceRequest, devices: Sequence[DeviceRequest], running: Container[str]) -> tuple[int, ...]:
    """Return the devices of a pod's needs that an init container gets: its own, or a container's not started yet.

    Args:
        request: of the init container.
        devices: a request of one device each, in the order of `effective_need`.
        running: the sidecars that run beside it, whose devices are their own.

    Returns:
        Positions, sorted, as many as it requests: of the container with the smallest that are enough, else the largest;
        none where no container has as many.

    """
    places: dict[str, list[int]] = {}
    for index, each in enumerate(devices):
        places.setdefault(each.container, []).append(index)
    if request.container in places:
        return tuple(places[request.container][: request.count])

    def fit(lent: list[int]) -> tuple[bool, int, int]:
        each = devices[lent[0]]
        enough = _growth(each, request) == (0, 0)
        return not enough, each.memory_mib if enough else -each.memory_mib, each.compute_percent

    lenders = [lent for container, lent in places.items() if container not in running and len(lent) >= request.count]
    return tuple(min(lenders, key=fit, default=())[: request.count])


def _growth(need: DeviceRequest, request: DeviceRequest) -> tuple[int, int]:
    grown = _grown(need, request)
    return (
        need.count * (grown.memory_mib - need.memory_mib),
        need.count * (grown.compute_percent - need.compute_percent),
    )


def _grown(need: DeviceRequest, request: DeviceRequest) -> DeviceRequest:
    """Return a need large enough for both; the isolation is the pod's, so it is the same."""
    return msgspec.structs.replace(
        need,
        memory_mib=max(need.memory_mib, request.memory_mib),
        compute_percent=max(need.compute_percent, request.compute_percent),
    )
