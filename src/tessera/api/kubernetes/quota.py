"""The GPU quotas of a cluster: ResourceQuotas and Kueue's ClusterQueues, with their usage; see docs/quota.md."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from tessera.api.fields import error_phrase
from tessera.core.gpu.sharing import GPU_RESOURCE, mig_resource
from tessera.core.usage.quotas import QuotaUsage
from tessera.core.workload import units
from tessera.core.workload.resources import GPU_COMPUTE, GPU_COUNT, GPU_MEMORY, SHARE_MEMORY
from tessera.errors import InvalidInput

__all__ = ["read_cluster_queue", "read_resource_quota"]

_REQUESTS: Final = "requests."
_NAMES: Final = frozenset({GPU_MEMORY, GPU_COMPUTE, GPU_COUNT, SHARE_MEMORY, GPU_RESOURCE, f"{GPU_RESOURCE}.shared"})


class _Meta(msgspec.Struct, frozen=True):
    name: str
    namespace: str = ""


class _HardUsed(msgspec.Struct, frozen=True):
    hard: dict[str, Any] = {}
    used: dict[str, Any] = {}


class _ResourceQuota(msgspec.Struct, frozen=True):
    metadata: _Meta
    spec: _HardUsed = _HardUsed()
    status: _HardUsed = _HardUsed()


class _Amount(msgspec.Struct, frozen=True):
    """The guaranteed or used amount of one resource."""

    name: str
    nominal: Any = msgspec.field(name="nominalQuota", default=0)
    total: Any = 0
    borrowed: Any = 0


class _Flavor(msgspec.Struct, frozen=True):
    name: str
    resources: tuple[_Amount, ...] = ()


class _Group(msgspec.Struct, frozen=True):
    flavors: tuple[_Flavor, ...] = ()


class _QueueSpec(msgspec.Struct, frozen=True):
    groups: tuple[_Group, ...] = msgspec.field(name="resourceGroups", default=())
    cohort: str = msgspec.field(name="cohortName", default="")


class _QueueStatus(msgspec.Struct, frozen=True):
    usage: tuple[_Flavor, ...] = msgspec.field(name="flavorsUsage", default=())


class _ClusterQueue(msgspec.Struct, frozen=True):
    metadata: _Meta
    spec: _QueueSpec = _QueueSpec()
    status: _QueueStatus = _QueueStatus()


def read_resource_quota(quota: Mapping[str, Any]) -> Iterator[QuotaUsage]:
    """Yield the GPU quota of a ResourceQuota (v1), and its usage.

    Raises:
        InvalidInput: it does not have the form.

    """
    found = _converted(quota, _ResourceQuota, "ResourceQuota")
    name = f"{found.metadata.namespace}/{found.metadata.name}"
    for key, allowed in (found.status.hard or found.spec.hard).items():
        resource, taken = key.removeprefix(_REQUESTS), found.status.used.get(key, "0")
        if _is_of_gpus(resource) and not allowed == taken == "0":  # hundreds of names are forbidden so
            used = _number(taken, f"ResourceQuota {name}: status.used")
            guaranteed = _number(allowed, f"ResourceQuota {name}: hard")
            yield QuotaUsage(kind="ResourceQuota", quota=name, resource=resource, guaranteed=guaranteed, used=used)


def read_cluster_queue(queue: Mapping[str, Any]) -> Iterator[QuotaUsage]:
    """Yield the guaranteed, used and borrowed GPU quota of Kueue's ClusterQueue.

    Source: kubernetes-sigs/kueue `apis/kueue/v1beta2/clusterqueue_types.go`.

    Raises:
        InvalidInput: it does not have the form.

    """
    found = _converted(queue, _ClusterQueue, "ClusterQueue")
    place = f"ClusterQueue {found.metadata.name}"
    usage = {(flavor.name, amount.name): amount for flavor in found.status.usage for amount in flavor.resources}
    for flavor in (flavor for group in found.spec.groups for flavor in group.flavors):
        for amount in flavor.resources:
            if _is_of_gpus(amount.name):
                used = usage.get((flavor.name, amount.name), amount)
                yield QuotaUsage(
                    kind="ClusterQueue",
                    quota=found.metadata.name,
                    cohort=found.spec.cohort,
                    flavor=flavor.name,
                    resource=amount.name,
                    guaranteed=_number(amount.nominal, f"{place}: nominalQuota of {amount.name}"),
                    used=_number(used.total, f"{place}: total of {amount.name}"),
                    borrowed=_number(used.borrowed, f"{place}: borrowed of {amount.name}"),
                )


def _is_of_gpus(resource: str) -> bool:
    return resource in _NAMES or resource.startswith(mig_resource(""))


def _number(value: object, place: str) -> float:
    return float(units.quantity(value, place))


def _converted(obj: Mapping[str, Any], kind: type[Any], name: str) -> Any:
    try:
        return msgspec.convert(obj, kind)
    except msgspec.ValidationError as error:
        raise InvalidInput(name, found=f"it is not the form of its API version ({error_phrase(error, obj)})") from error
