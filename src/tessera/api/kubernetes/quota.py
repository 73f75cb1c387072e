"""GPU quotas: objects that count one unit for all forms of requests, and the quotas of a cluster.

`scripts/generate` writes the former to deploy/quota; see docs/quota.md.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from tessera.api.documents import Plain
from tessera.core.gpu.gpumodels import CATALOG, GpuModel, Profile
from tessera.core.gpu.sharing import GPU_RESOURCE, mig_resource
from tessera.core.usage.quotas import QuotaUse
from tessera.core.workload import units
from tessera.core.workload.resources import GPU_COMPUTE, GPU_COUNT, GPU_MEMORY, MODEL_RESOURCE, SHARE_MEMORY
from tessera.errors import InvalidInput, shown

__all__ = ["kueue_resources", "needs_only", "read_cluster_queue", "read_resource_quota"]

_MIB_IN_GIB: Final = 1024
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


def needs_only() -> dict[str, Plain]:
    """Return a ResourceQuota (v1) that leaves `tessera.dev/gpu-memory` as the only form of request.

    Source: kubernetes `pkg/quota/v1/evaluator/core/pods.go`: of extended resources requests alone are counted.
    """
    slices = (mig_resource(profile, shared=shared) for profile in _profiles() for shared in (False, True))
    names = (GPU_COUNT, SHARE_MEMORY, GPU_RESOURCE, f"{GPU_RESOURCE}.shared", *slices)
    hard: dict[str, Plain] = {f"requests.{name}": "0" for name in names}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpu-needs-only"}, "spec": {"hard": hard}}


def kueue_resources() -> dict[str, Plain]:
    """Return the section `resources` of Kueue's configuration that counts MIG devices and gpushare's memory as needs.

    Kueue admits nothing with a resource that its queue does not count, so it has to ignore models. A
    profile of several GPU models counts as the largest of its instances; memory is rounded up to GiB.

    Source: kubernetes-sigs/kueue `apis/config/v1beta2/configuration_types.go` (`ResourceTransformation`).
    """
    transformations: list[Plain] = [_replaced(SHARE_MEMORY, 1, 0)]
    for name, offers in _profiles().items():
        memory_mib = max(profile.memory_mib for _, profile in offers)
        percent = max(100 * profile.compute_slices // model.compute_slices for model, profile in offers)
        transformations.append(_replaced(mig_resource(name), -(-memory_mib // _MIB_IN_GIB), percent))
    return {"resources": {"excludeResourcePrefixes": [MODEL_RESOURCE], "transformations": transformations}}


def read_resource_quota(each: Mapping[str, Any]) -> Iterator[QuotaUse]:
    """Yield the GPU quota of a ResourceQuota (v1), and its usage.

    Raises:
        InvalidInput: it does not have the form.

    """
    found = _converted(each, _ResourceQuota, "ResourceQuota")
    name = f"{found.metadata.namespace}/{found.metadata.name}"
    for key, allowed in (found.status.hard or found.spec.hard).items():
        resource, taken = key.removeprefix(_REQUESTS), found.status.used.get(key, "0")
        if _is_of_gpus(resource) and not allowed == taken == "0":  # hundreds of names are forbidden so
            used = _number(taken, f"ResourceQuota {name}: status.used")
            guaranteed = _number(allowed, f"ResourceQuota {name}: hard")
            yield QuotaUse(kind="ResourceQuota", quota=name, resource=resource, guaranteed=guaranteed, used=used)


def read_cluster_queue(each: Mapping[str, Any]) -> Iterator[QuotaUse]:
    """Yield the guaranteed, used and borrowed GPU quota of Kueue's ClusterQueue.

    Source: kubernetes-sigs/kueue `apis/kueue/v1beta2/clusterqueue_types.go`.

    Raises:
        InvalidInput: it does not have the form.

    """
    found = _converted(each, _ClusterQueue, "ClusterQueue")
    place = f"ClusterQueue {found.metadata.name}"
    usage = {(flavor.name, amount.name): amount for flavor in found.status.usage for amount in flavor.resources}
    for flavor in (flavor for group in found.spec.groups for flavor in group.flavors):
        for amount in flavor.resources:
            if _is_of_gpus(amount.name):
                used = usage.get((flavor.name, amount.name), amount)
                yield QuotaUse(
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


def _converted(each: Mapping[str, Any], kind: type[Any], name: str) -> Any:
    try:
        return msgspec.convert(each, kind)
    except msgspec.ValidationError as error:
        raise InvalidInput(name, found=f"it is not the form of its API version ({shown(error)})") from error


def _replaced(name: str, memory_gib: int, compute_percent: int) -> dict[str, Plain]:
    outputs: dict[str, Plain] = {GPU_MEMORY: str(memory_gib)}
    if compute_percent:
        outputs[GPU_COMPUTE] = str(compute_percent)
    return {"input": name, "strategy": "Replace", "outputs": outputs}


def _profiles() -> dict[str, list[tuple[GpuModel, Profile]]]:
    """Return who offers each profile, by its name in order of names."""
    offers: dict[str, list[tuple[GpuModel, Profile]]] = {}
    for model in CATALOG:
        for profile in model.profiles:
            offers.setdefault(profile.name, []).append((model, profile))
    return dict(sorted(offers.items()))
