"""Which resources of a node are of its GPUs, and which one a pod runs without, by the Node object."""

import math

import msgspec

from tessera.core.deviceplugin.allocations.gateobservation import GatePod
from tessera.core.gpu.sharing import names_device
from tessera.core.workload.resources import SHARE_RESOURCES

__all__ = ["RegisteredNode", "was_left_out"]


class RegisteredNode(msgspec.Struct, frozen=True, kw_only=True):
    """The Node object of the agent's node."""

    resources: frozenset[str] = frozenset()
    """The names that it has, also with 0; none where there is no object, or its kubelet has not reported yet."""
    renamed: frozenset[str] = frozenset()
    """The names of the sharing configuration under which its agent has ever advertised GPUs."""
    created_s: float = math.inf
    """When it was created, in seconds since 1970 of the API server's clock; infinite if unknown."""

    @property
    def gpu_resources(self) -> frozenset[str]:
        """The resources of GPUs that it has."""
        return frozenset(filter(self.is_of_gpus, self.resources))

    def is_of_gpus(self, resource: str) -> bool:
        """Return whether its agent advertises GPUs, MIG instances or units under this name, or did so before."""
        return names_device(resource) or resource in SHARE_RESOURCES or resource in self.renamed


def was_left_out(pod: GatePod, resource: str, node: RegisteredNode) -> bool:
    """Return whether a kubelet runs a pod without a resource that it requests, as its node never had it.

    A kubelet leaves such a resource out of a pod that names its node itself. A Node keeps the names of all resources
    that a device plugin ever registered, with 0 of them; a user can write neither those nor the pod's status. It is no
    proof where the pod may be older than the Node object, whose names are lost when it is deleted (a static pod's
    status is then written anew), nor where a driver for DRA serves the resource.
    Source: Kubernetes `pkg/kubelet/lifecycle/predicate.go`, `removeMissingExtendedResources`, and
    `pkg/kubelet/nodestatus/setters.go`, `MachineInfo`.

    Args:
        pod: which runs.
        resource: that a container of it requests.
        node: its Node object.

    """
    if not node.resources or resource in node.resources or pod.static or pod.has_resource_claim:
        return False
    return pod.started_s > node.created_s
