"""GPU usage in the format of gpushare's scheduler extender: `GET /gpushare-scheduler/inspect` and `.../inspect/NODE`.

Amounts are in the node's units of `aliyun.com/gpu-mem`; other allocations (MIG instances, whole GPUs, shares by
Tessera's own resource) count with their memory, rounded up, so that nothing in use appears free.

Source: AliyunContainerService/gpushare-scheduler-extender `pkg/scheduler/gpushare-inspect.go`, `inspect.go`.
"""

import msgspec

from tessera.core.explain.inspection import GpuInspection, Inspection

__all__ = ["gpushare_inspect"]


class _Pod(msgspec.Struct, frozen=True, rename={"used": "usedGPU"}):
    name: str
    namespace: str
    used: int


class _Device(msgspec.Struct, frozen=True, rename={"total": "totalGPU", "used": "usedGPU"}):
    id: int
    total: int
    used: int
    pods: tuple[_Pod, ...]


class _Node(msgspec.Struct, frozen=True, rename={"total": "totalGPU", "used": "usedGPU"}):
    name: str
    total: int
    used: int
    devs: tuple[_Device, ...]


class _Result(msgspec.Struct, frozen=True, omit_defaults=True):
    nodes: tuple[_Node, ...] | None
    error: str = ""


def gpushare_inspect(inspection: Inspection, node: str = "") -> bytes:
    """Return the body of the answer; for one node if a name is given, with an `error` if it does not exist.

    The status is 200 in any case, as gpushare's is.
    """
    chosen = [each for each in inspection.nodes if node in ("", each.name)]
    if node and not chosen:
        return msgspec.json.encode(_Result(nodes=None, error=f'node "{node}" not found'))
    nodes = []
    for each in chosen:
        devices = tuple(_device(gpu, each.unit_mib) for gpu in each.gpus)
        total, used = sum(device.total for device in devices), sum(device.used for device in devices)
        nodes.append(_Node(name=each.name, total=total, used=used, devs=devices))
    return msgspec.json.encode(_Result(nodes=tuple(nodes)))


def _device(gpu: GpuInspection, unit_mib: int) -> _Device:
    by_pod: dict[str, int] = {}
    for holder in gpu.pods:
        by_pod[holder.pod] = by_pod.get(holder.pod, 0) + gpu.in_units(holder.share.memory_mib, unit_mib)
    names = ((key.partition("/"), used) for key, used in by_pod.items())
    pods = tuple(_Pod(namespace=namespace, name=name, used=used) for (namespace, _, name), used in names)
    total, used = gpu.memory_mib // unit_mib, sum(pod.used for pod in pods)
    fits = gpu.allocated_mib <= gpu.memory_mib
    return _Device(id=gpu.index, total=total, used=min(used, total) if fits else used, pods=pods)
