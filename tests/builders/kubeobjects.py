"""Objects of a cluster as the API server has them, for tests that read a whole cluster."""

import json
from collections.abc import Mapping
from typing import Any

from builders.shares import amount, mig_share, share
from tessera.api.tessera.pods.assignments import write_shares
from tessera.api.tessera.v1alpha1.gpunodes import claims_field, desired_field, new_object, offered_field, status_fields
from tessera.core.cluster.gpunodestate import GpuNodeState
from tessera.core.cluster.snapshot import Gpu, NodeName, Share
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.mig import Layout, Placement
from tessera.core.gpu.sharing import AUTO, Sharing

__all__ = ["Object", "amount", "containers", "gpu", "gpunode", "kubectl", "mig_share", "node", "place", "pod", "share"]

Object = dict[str, Any]


def place(kind: str, profile: str, start: int) -> Placement:
    """Return a MIG instance's place on a GPU of this model."""
    return Placement(start, next(each.size for each in model(kind).profiles if each.name == profile), profile)


def gpu(
    index: int, kind: str = "A100-40GB", sharing: Sharing = AUTO, layout: Layout | None = None, *, node: str = "a"
) -> Gpu:
    """Return a GPU, managed unless told otherwise."""
    known = model(kind)
    shared = Sharing(modes=sharing.modes, layout=layout) if layout is not None else sharing
    uuid = f"GPU-{node}-{index}"
    return Gpu(index=index, model=known, memory_mib=known.memory_mib, sharing=shared, uuid=uuid)


def node(name: str = "a", allocatable: dict[str, str] | None = None, **labels: str) -> Object:
    """Return a Node that shows GPUs by labels alone where it has any."""
    capacity = {"cpu": "64", "memory": "256Gi", "pods": "110"} | (allocatable or {})
    addresses = [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": f"10.0.0.{len(name)}"}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels},
        "status": {
            "allocatable": capacity,
            "addresses": addresses,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def gpunode(name: str, *gpus: Gpu, **more: Any) -> Object:
    """Return the GPUNode of a node; `more` are fields of its state."""
    state = GpuNodeState(name=NodeName(name), gpus=gpus, **more)
    spec: Object = {"desired": desired_field(state.desired), "claims": claims_field(state.claims)}
    if state.policy:
        spec["policy"] = {"name": state.policy, "document": {}}
    status = status_fields(state) | {"offered": offered_field(state.offered)}
    return new_object(name, f"uid-{name}") | {"spec": spec, "status": status}


def containers(limits: Mapping[str, Mapping[str, str | int]]) -> list[Object]:
    """Return a container for each name in `limits`."""
    return [
        {"name": name, "resources": {"limits": {key: str(value) for key, value in each.items()}}}
        for name, each in limits.items()
    ]


def pod(
    name: str, limits: Mapping[str, str | int] | None = None, *shares: Share, node: str | None = "a", **more: Any
) -> Object:
    """Return a pod, running where it has a node; `more` are `phase`, `annotations`, `spec`, `metadata`, `status`."""
    annotations = dict(more.pop("annotations", {}))
    if shares:
        annotations["tessera.dev/assignment"] = write_shares(shares)
    spec = {"containers": containers({"main": limits or {}}), "schedulerName": "tessera-scheduler"} | more.pop(
        "spec", {}
    )
    if node:
        spec["nodeName"] = node
    phase = more.pop("phase", "Running" if node else "Pending")
    metadata = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "annotations": annotations}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata | more.pop("metadata", {}),
        "spec": spec,
        "status": {"phase": phase} | more.pop("status", {}),
    }


def kubectl(*items: Object) -> str:
    """Return what `kubectl get ... -o json` prints of these objects."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)}, indent=1)
