"""What the published `kubectl inspect gpushare` shows of a cluster, by its own rules of reading, for comparison.

The program itself is no Go module, and its dependencies are in `vendor`, which archives of modules leave out: tests
cannot build it. `TESSERA_GPUSHARE` gives one that was built elsewhere to the walk-through of memory shares.

The program looks at Node and Pod objects alone. Source: AliyunContainerService/gpushare-device-plugin `cmd/inspect/
{nodeinfo,podinfo,display}.go`: totals are what a node allocates of `aliyun.com/gpu-mem`, divided by `aliyun.com/
gpu-count`; a pod lies where `scheduler.framework.gpushare.allocation` says, else where `ALIYUN_COM_GPU_MEM_IDX` says,
else on GPU -1, which is the column PENDING.
"""

import json
import re
from typing import Any, NamedTuple

Object = dict[str, Any]
PENDING = -1


class Row(NamedTuple):
    """One node's line."""

    name: str
    address: str
    gpus: tuple[tuple[int, int], ...]
    """Allocated and total of each GPU."""
    pending: int
    allocated: int
    total: int


class Shown(NamedTuple):
    """The table and what is below it."""

    rows: tuple[Row, ...]
    unit: str
    allocated: int
    total: int
    percent: int


def shown(objects: list[Object]) -> Shown:
    """Return what the program shows, nodes by name (it has no order of its own)."""
    nodes = [each for each in objects if each["kind"] == "Node" and _allocatable(each, "aliyun.com/gpu-mem") > 0]
    pods = [each for each in objects if each["kind"] == "Pod" and _phase(each) not in {"Succeeded", "Failed"}]
    most = max((_allocatable(node, "aliyun.com/gpu-count") for node in nodes), default=0)
    rows = tuple(sorted(_row(node, pods, most) for node in nodes))
    allocated, total = sum(row.allocated for row in rows), sum(row.total for row in rows)
    per_gpu = [row.total // len(row.gpus) for row in rows if row.gpus]
    unit = "MiB" if per_gpu and per_gpu[0] > 100 else "GiB"
    return Shown(rows, unit, allocated, total, int(100 * allocated / total) if total else 0)


def _row(node: Object, pods: list[Object], most: int) -> Row:
    count, total = (_allocatable(node, f"aliyun.com/gpu-{name}") for name in ("count", "mem"))
    used: dict[int, int] = {}
    for pod in pods:
        if pod["spec"].get("nodeName") == node["metadata"]["name"] and _requested(pod) > 0:
            for gpu, amount in _devices(pod).items():
                used[gpu] = used.get(gpu, 0) + amount
    of_one = total // count if count else 0
    gpus = tuple((used.get(gpu, 0), of_one) if gpu < count else (0, 0) for gpu in range(most))
    addresses = node["status"]["addresses"]
    address = next((each["address"] for each in addresses if each["type"] == "InternalIP"), "unknown")
    pending = used.get(PENDING, 0)
    allocated = pending + sum(amount for amount, _ in gpus)
    return Row(node["metadata"]["name"], address, gpus, pending, allocated, total)


def _allocatable(node: Object, name: str) -> int:
    return int(node["status"].get("allocatable", {}).get(name, 0))


def _phase(pod: Object) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def _requested(pod: Object) -> int:
    limits = (each.get("resources", {}).get("limits", {}) for each in pod["spec"]["containers"])
    return sum(int(each.get("aliyun.com/gpu-mem", 0)) for each in limits)


def _devices(pod: Object) -> dict[int, int]:
    annotations = pod["metadata"].get("annotations") or {}
    found: dict[int, int] = {}
    if "scheduler.framework.gpushare.allocation" in annotations:
        for by_gpu in json.loads(annotations["scheduler.framework.gpushare.allocation"]).values():
            for gpu, amount in by_gpu.items():
                found[int(gpu)] = found.get(int(gpu), 0) + amount
    if found:
        return found
    index = annotations.get("ALIYUN_COM_GPU_MEM_IDX", "")
    return {int(index) if re.fullmatch(r"[+-]?[0-9]+", index) else PENDING: _requested(pod)}
