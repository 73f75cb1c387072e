"""A container's resources as a core need: cpu, memory, and GPUs in the three request forms of docs/requests.md."""

from decimal import Decimal
from fractions import Fraction

import msgspec

from tessera.api.fields import Field
from tessera.core.gpu.gpumodels import is_profile
from tessera.core.gpu.sharing import mig_resource, names_device
from tessera.core.workload import units
from tessera.core.workload.foreignnames import names_foreign
from tessera.core.workload.need import ContainerNeed, DeviceRequest, Form, Isolation
from tessera.core.workload.objectnames import is_qualified
from tessera.core.workload.resources import GPU_COMPUTE, GPU_COUNT, GPU_MEMORY, SHARE_COUNT, SHARE_MEMORY
from tessera.errors import shown

__all__ = [
    "RequestRules",
    "container_need",
    "is_zero",
    "names_gpu",
    "quantities",
    "refuse_share_counts",
    "refuse_zeros",
]

_TESSERA = (GPU_MEMORY, GPU_COMPUTE, GPU_COUNT)
_MAX_DEVICES = 4096
"""Most devices of one name that one container may request; no node offers more."""
_MAX_GPUS = 64
"""Most GPUs that one container may request by amount; no server has more."""
_MAX_GPU_MEMORY_MIB = 16 << 20
"""16 TiB, beyond any GPU: the amount was written in bytes."""
_WHOLE_PERCENT = 100
_PLAIN = ("cpu", "memory", "ephemeral-storage", "storage")


class RequestRules(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a pod's and a cluster's GPU requests."""

    isolation: Isolation | None = None
    """The annotation `tessera.dev/isolation`; None where the pod has none."""
    unit_mib: int = 1024
    """MiB in one `tessera.dev/gpu-memory`."""
    share_unit_mib: int = 1024
    """MiB in one `aliyun.com/gpu-mem`; 1 where gpushare's device plugin runs with `--memory-unit MiB`."""


def is_zero(quantity: object) -> bool:
    """Return whether a quantity of the API server is zero: `nvidia.com/gpu: 0` requests nothing."""
    # Not `in (0, "0")`: comparing a signaling NaN is an error.
    return quantity.is_zero() if isinstance(quantity, Decimal) else quantity in (0, "0")


def container_need(container: Field, rules: RequestRules, *, sidecar: bool = False) -> ContainerNeed:
    """Return one container's requests; a limit stands in for a missing request.

    Raises:
        InvalidInput: an invalid quantity, a request above its limit, forms that exclude each other.

    """
    for misplaced in ("limits", "requests", "resource"):
        if container.get(misplaced).present:
            raise container.get(misplaced).refuse(found=f"{misplaced} is not under resources", hint="move it there")
    resources = container.get("resources").only("limits", "requests", "claims")
    amounts = quantities(resources)
    name = container.get("name").text()
    limits, counts = resources.get("limits"), _extended(resources)
    requests = tuple(
        msgspec.structs.replace(request, container=name)
        for read in (_exact, _share, _need)
        for request in read(limits, counts, rules)
    )
    # A network card or a cached model beside a GPU is no second request for one.
    of_gpus = [request for request in requests if request.form is not Form.EXACT or names_gpu(request.resource)]
    if len({request.form for request in of_gpus}) > 1:
        forms = " and ".join(sorted({request.resource for request in of_gpus}))
        raise resources.refuse(
            found=f"a container requests GPUs by {forms} at once",
            hint=f"choose one of nvidia.com/..., {SHARE_MEMORY}, {GPU_MEMORY}",
        )
    zero = Fraction(0)
    return ContainerNeed(
        cpu=amounts.get("cpu", zero), memory=amounts.get("memory", zero), requests=requests, sidecar=sidecar
    )


def names_gpu(resource: str) -> bool:
    """Return whether a resource requested by an exact name is a GPU or accelerator, including other systems'."""
    return names_device(resource) or names_foreign(resource)


def quantities(resources: Field) -> dict[str, Fraction]:
    """Return the effective requests of cpu and memory in `resources`, checked against the limits."""
    requests: dict[str, Fraction] = {}
    for name in ("cpu", "memory"):
        limit, request = _amount(resources.get("limits", name)), _amount(resources.get("requests", name))
        if limit is not None and request is not None and request > limit:
            expected = f"at most the limit of {resources.get('limits', name).value}"
            raise resources.get("requests", name).refuse(expected)
        amount = limit if request is None else request
        if amount is not None:
            requests[name] = amount
    return requests


def _amount(field: Field) -> Fraction | None:
    if not field.present:
        return None
    amount = field.read(units.quantity)
    if amount < 0:
        raise field.refuse("a quantity of zero or more")
    return amount


def _extended(resources: Field) -> dict[str, int]:
    """Return the counts of the extended resources, whose request and limit must be equal, zeros left out.

    Source: kubernetes `pkg/apis/core/validation` (`ValidateResourceRequirements`).
    """
    counts: dict[str, int] = {}
    for name, limit in resources.get("limits").members():
        if _is_extended(limit, name):
            counts[name] = limit.read(units.count)
    for name, request in resources.get("requests").members():
        if not _is_extended(request, name):
            continue
        count = request.read(units.count)
        if name not in counts:
            raise request.refuse(f"a limit of {name}, as every extended resource needs")
        if count != counts[name]:
            raise request.refuse(f"the same amount as the limit, {counts[name]}")
    return {name: count for name, count in counts.items() if count}


def refuse_zeros(container: Field) -> None:
    """Reject an amount of zero in a pod that requests no GPU.

    A kubelet without a healthy device of that name fails such a pod, without the reason.
    Source: kubernetes `pkg/kubelet/cm/devicemanager/manager.go` (`devicesToAllocate`).

    Raises:
        InvalidInput: there is one.

    """
    limits = container.get("resources", "limits")
    zero = next((limits.get(name) for name in (*_TESSERA, SHARE_MEMORY) if limits.get(name).present), None)
    if zero is not None:
        raise zero.refuse("1 or more", "leave the limit out, in a pod without a GPU")


def refuse_share_counts(container: Field) -> None:
    """Reject a request for several GPUs by the resource that counts a node's GPUs.

    gpushare's extender ignores it in a pod, and kube-scheduler counts it: neither gives a share of more than one
    GPU. Source: AliyunContainerService/gpushare-scheduler-extender `pkg/utils/pod.go`.

    Raises:
        InvalidInput: there is one.

    """
    count = container.get("resources", "limits", SHARE_COUNT)
    if count.present:
        raise count.refuse(
            found=f"{SHARE_COUNT} is a number of nodes, and {SHARE_MEMORY} is of one GPU",
            hint=f"leave it out, and request several GPUs by {GPU_MEMORY} and {GPU_COUNT}",
        )


def _is_extended(field: Field, name: str) -> bool:
    """Return whether a resource is extended: named with a domain that is not Kubernetes' own."""
    if name in _PLAIN or name.startswith(("hugepages-", "attachable-volumes-")):
        return False
    if not is_qualified(name):
        raise field.refuse(
            "a resource name", "use cpu, memory, or a name with a domain, as nvidia.com/gpu", found=shown(name)
        )
    domain = name.partition("/")[0]
    if domain == "tessera.dev" and name not in _TESSERA:
        raise field.refuse("a resource Tessera knows", ", ".join(_TESSERA), found=name)
    return domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


def _exact(limits: Field, counts: dict[str, int], rules: RequestRules) -> list[DeviceRequest]:
    """Return the requests by name; an unknown one is kept, so that its pod is pending where no node offers it."""
    requests = []
    for name, count in counts.items():
        if name in {*_TESSERA, SHARE_MEMORY}:
            continue
        spoken = names_device(name)
        if spoken and count > _MAX_DEVICES:
            raise limits.get(name).refuse(f"at most {_MAX_DEVICES} devices")
        if name.startswith(mig_resource("")) and not is_profile(name.removesuffix(".shared")):
            expected, accepted = "a MIG profile that some GPU model has", "`tessera profiles MODEL` lists them"
            raise limits.get(name).refuse(expected, accepted, found=name)
        isolation = rules.isolation or Isolation.NONE if spoken else Isolation.NONE
        requests.append(DeviceRequest(resource=name, count=count, isolation=isolation))
    return requests


def _share(limits: Field, counts: dict[str, int], rules: RequestRules) -> list[DeviceRequest]:
    if SHARE_MEMORY not in counts:
        return []
    field = limits.get(SHARE_MEMORY)
    if rules.isolation is Isolation.HARDWARE:
        found = f"{SHARE_MEMORY} with isolation hardware"
        fix = f"request isolation driver or none, or {GPU_MEMORY} in its place"
        raise field.refuse(found=f"{found}, which no memory share has", hint=fix)
    memory_mib = _memory_mib(field, counts[SHARE_MEMORY], rules.share_unit_mib)
    isolation = rules.isolation or Isolation.NONE
    return [DeviceRequest(resource=SHARE_MEMORY, form=Form.SHARE, memory_mib=memory_mib, isolation=isolation)]


def _need(limits: Field, counts: dict[str, int], rules: RequestRules) -> list[DeviceRequest]:
    if GPU_MEMORY not in counts:
        for name in (n for n in (GPU_COMPUTE, GPU_COUNT) if n in counts):
            raise limits.get(name).refuse(
                found=f"{GPU_MEMORY} is not set", hint="set it as well, the memory of each GPU"
            )
        return []
    compute_percent, gpus = counts.get(GPU_COMPUTE, 0), counts.get(GPU_COUNT, 1)
    if compute_percent > _WHOLE_PERCENT:
        raise limits.get(GPU_COMPUTE).refuse("a percentage from 1 to 100")
    if gpus > _MAX_GPUS:
        raise limits.get(GPU_COUNT).refuse(f"at most {_MAX_GPUS} GPUs")
    return [
        DeviceRequest(
            resource=GPU_MEMORY,
            form=Form.NEED,
            count=gpus,
            memory_mib=_memory_mib(limits.get(GPU_MEMORY), counts[GPU_MEMORY], rules.unit_mib),
            compute_percent=compute_percent,
            isolation=rules.isolation or Isolation.DRIVER,
        )
    ]


def _memory_mib(field: Field, units_requested: int, unit_mib: int) -> int:
    memory_mib = units_requested * unit_mib
    if memory_mib > _MAX_GPU_MEMORY_MIB:
        unit = "GiB" if unit_mib > 1 else "MiB"
        raise field.refuse(f"a number of {unit} that some GPU has", f"6 for 6 {unit}; no suffix")
    return memory_mib
