"""GPUNode objects (tessera.dev/v1alpha1): one for each GPU node, where agent, controller and server meet.

The status is the agent's: GPUs, layouts, health. `spec.wanted` and `spec.policy` are the controller's, `spec.claims`
the servers'; see docs/decisions/0010-claims-on-the-gpunode.md.
"""

from tessera.api.gpunodes.fields import Spec, Status
from tessera.api.gpunodes.reading import read_gpu_node
from tessera.api.gpunodes.writing import API_VERSION, KIND, claims_field, new_object, status_fields, wanted_field

__all__ = [
    "API_VERSION",
    "KIND",
    "Spec",
    "Status",
    "claims_field",
    "new_object",
    "read_gpu_node",
    "status_fields",
    "wanted_field",
]
