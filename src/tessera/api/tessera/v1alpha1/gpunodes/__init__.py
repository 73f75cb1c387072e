"""GPUNode objects (tessera.dev/v1alpha1): one for each GPU node, shared by agent, controller and server.

The status is the agent's: GPUs, layouts, health, and in `offered` the devices that the kubelet allocates.
`spec.desired` and `spec.policy` are the controller's, `spec.claims` the servers'; see
docs/decisions/0010-claims-on-the-gpunode.md and 0013-one-allocator-for-a-device.md.
"""

from tessera.api.tessera.v1alpha1.gpunodes.fields import GpuNodeSpec, GpuNodeStatus
from tessera.api.tessera.v1alpha1.gpunodes.reading import read_gpu_node
from tessera.api.tessera.v1alpha1.gpunodes.writing import (
    API_VERSION,
    KIND,
    claims_field,
    desired_field,
    new_object,
    offered_field,
    status_fields,
)

__all__ = [
    "API_VERSION",
    "KIND",
    "GpuNodeSpec",
    "GpuNodeStatus",
    "claims_field",
    "desired_field",
    "new_object",
    "offered_field",
    "read_gpu_node",
    "status_fields",
]
