"""Pods that a ReplicaSet would replace, and the PodDisruptionBudget over them."""

from typing import Any

from builders.kubeobjects import Object, pod

NEED = {"tessera.dev/gpu-memory": 10}
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}


def owned(name: str, *shares: Any, place: str | None = "a", **more: Any) -> Object:
    metadata = {"ownerReferences": [OWNER], "labels": {"app": "web"}}
    return pod(name, NEED, *shares, node=place, metadata=metadata, **more)


def budget(allowed: int) -> Object:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web", "namespace": "ns"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {"disruptionsAllowed": allowed},
    }
