"""ModelServers as users write them."""

from typing import Any

from tessera.api.tessera.v1alpha1.modelservers import read_model_server
from tessera.core.serving.modelserver import ModelServer

__all__ = ["model_server", "model_servers_binding", "server"]


def model_server(spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """Return a ModelServer object; `spec` is over that of a Triton on a MIG instance, whose model a claim has."""
    base = {
        "engine": "triton",
        "image": "example.com/triton:1",
        "model": {"claim": "models"},
        "gpu": {"resource": "nvidia.com/mig-1g.10gb"},
        "autoscaling": {"slots": 8},
    }
    return {
        "apiVersion": "tessera.dev/v1alpha1",
        "kind": "ModelServer",
        "metadata": {"name": "ranker"} | metadata,
        "spec": base | (spec or {}),
    }


def server(spec: dict[str, Any] | None = None, **metadata: Any) -> ModelServer:
    """Return the same as what is asked."""
    return read_model_server(model_server(spec, **metadata))


def model_servers_binding(namespace: str) -> dict[str, Any]:
    """Return the RoleBinding by which an administrator lets the controller write in a namespace."""
    name = "tessera-model-servers"
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "tessera-controller", "namespace": "tessera-system"}],
    }
