"""The openb traces: 1,213 GPU nodes of a production cluster and the pods that ran on them.

Source: cluster-trace-gpu-v2023 of alibaba/clusterdata, the data of "Beware of Fragmentation" (Weng et al., USENIX ATC
2023). The files are read from a folder the user names; they are no part of Tessera.
"""

import re
from functools import cache
from pathlib import Path

from tessera.core.cluster.snapshot import Gpu, Node, NodeName
from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.gpu.sharing import GPU_RESOURCE, Mode, Sharing
from tessera.core.workload.need import DeviceRequest, Form, Need
from tessera.errors import InvalidInput
from tessera.sim.workloads.records import MILLI, Trace
from tessera.sim.workloads.table import Bounds, Row, rows

__all__ = ["NODE_FILE", "SHARE_RESOURCE", "read", "read_nodes", "read_pods", "traces"]

NODE_FILE = "openb_node_list_gpu_node.csv"
_POD_FILE = "openb_pod_list_{trace}.csv"

SHARE_RESOURCE = "alibabacloud.com/gpu-milli"
"""Thousandths of one GPU, as the trace's cluster names it. Source: pkg/type/open-gpu-share/utils/const.go of
hkust-adsl/kubernetes-scheduler-simulator at 8f3d6417."""

_SHARING = Sharing(modes=(Mode.WHOLE, Mode.MEMORY_SHARE))
_MAX_PODS = 1001
"""The artifact's limit of pods on a node, which never binds."""

# What the trace calls its GPU models; it states no memory for them. Source: SOURCE.md of the trace, README of
# cluster-trace-gpu-v2023; G2 and G3 are undisclosed there.
_ARCH = {
    "A10": "Ampere",
    "P100": "Pascal",
    "T4": "Turing",
    "V100M16": "Volta",
    "V100M32": "Volta",
}

_NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_CPU = Bounds(0, 10_000_000, "milli")
_MEMORY = Bounds(0, 1 << 30, "MiB")
_GPUS = Bounds(0, 64, "GPUs")
_MILLI = Bounds(0, MILLI, "milli")


def traces(folder: Path) -> tuple[str, ...]:
    """Return the names of the traces a folder holds, sorted: `default`, `cpu050`, ..."""
    prefix, suffix = _POD_FILE.split("{trace}")
    return tuple(sorted(path.name[len(prefix) : -len(suffix)] for path in folder.glob(f"{prefix}*{suffix}")))


def read(folder: Path, trace: str) -> Trace:
    """Return one trace of a folder: its nodes, and its pods sorted by name.

    Raises:
        InvalidInput: no such folder or trace, or a file that is not as the schema says; names file, line and column.

    """
    if not folder.is_dir():
        raise InvalidInput(
            str(folder), found="there is no such folder", hint="name the folder with the openb CSV files"
        )
    known = traces(folder)
    if trace not in known:
        hint = f"name one of {', '.join(known)}" if known else f"name a folder with {_POD_FILE.format(trace='*')}"
        raise InvalidInput(f"trace of {folder}", found=f'the folder has no trace "{trace}"', hint=hint)
    nodes = read_nodes(folder / NODE_FILE)
    return Trace.of(trace, nodes, read_pods(folder / _POD_FILE.format(trace=trace)))


def read_nodes(path: Path) -> tuple[Node, ...]:
    """Return the nodes of a node list, in its order."""
    nodes = {}
    for row in rows(path, _NODE_COLUMNS):
        node = _node(row)
        if node.name in nodes:
            raise row.wrong("sn", "a name no other node has")
        nodes[node.name] = node
    if not any(node.gpus for node in nodes.values()):
        raise InvalidInput(str(path), found="it has no GPUs", hint="give at least one node with GPUs")
    return tuple(nodes.values())


def _node(row: Row) -> Node:
    count = row.number("gpu", _GPUS)
    gpus: tuple[Gpu, ...] = ()
    if count:
        name = row.text("model", "the name of a GPU model")
        gpus = tuple(Gpu(index=index, model=_model(name), memory_mib=0, sharing=_SHARING) for index in range(count))
    return Node(
        name=NodeName(row.text("sn", "the name of a node")),
        cpu_milli=row.number("cpu_milli", _CPU),
        memory_mib=row.number("memory_mib", _MEMORY),
        gpus=gpus,
        max_pods=_MAX_PODS,
    )


@cache
def _model(name: str) -> GpuModel:
    return GpuModel(name=name, arch=_ARCH.get(name, "undisclosed"), memory_mib=0)


def read_pods(path: Path) -> tuple[tuple[str, Need], ...]:
    """Return the names and needs of a pod list, in its order."""
    pods: dict[str, Need] = {}
    for row in rows(path, _POD_COLUMNS, ("gpu_spec",)):
        name = row.text("name", "the name of a pod")
        if name in pods:
            raise row.wrong("name", "a name no other pod has")
        pods[name] = _need(row)
    return tuple(pods.items())


def _need(row: Row) -> Need:
    return Need(
        cpu_milli=row.number("cpu_milli", _CPU),
        memory_mib=row.number("memory_mib", _MEMORY),
        requests=_requests(row),
        models=_models(row),
    )


def _requests(row: Row) -> tuple[DeviceRequest, ...]:
    count, milli = row.number("num_gpu", _GPUS), row.number("gpu_milli", _MILLI)
    if (count == 0) != (milli == 0):
        raise row.wrong("gpu_milli", f"{'0' if count == 0 else 'at least 10'} for {count} GPUs")
    if count == 0:
        return ()
    if milli == MILLI:
        return (DeviceRequest(resource=GPU_RESOURCE, count=count),)
    if count > 1:
        raise row.wrong("gpu_milli", f"{MILLI} for {count} GPUs", accepted="a part of a GPU for one GPU only")
    if milli % 10:
        raise row.wrong("gpu_milli", "a multiple of 10", accepted="whole percents of a GPU")
    return (DeviceRequest(resource=SHARE_RESOURCE, form=Form.SHARE, compute_percent=milli // 10),)


def _models(row: Row) -> tuple[str, ...]:
    spec = row.values["gpu_spec"]
    if not spec:
        return ()
    models = tuple(spec.split("|"))
    if not all(re.fullmatch(r"\S+", model) for model in models):
        raise row.wrong("gpu_spec", "names of GPU models joined by |, or nothing for any")
    if row.values["num_gpu"] == "0":
        raise row.wrong("gpu_spec", "nothing for a pod without GPU")
    return models
