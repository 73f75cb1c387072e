"""Tessera's names in the Kubernetes API that are written and read: of its kinds, its processes, and on objects."""

from typing import Final

__all__ = ["AGENT", "API_VERSION", "CONTROLLER", "GPUS_BY_LABELS", "GPU_MODEL", "ISOLATION", "RENAMED_RESOURCES"]

API_VERSION: Final = "tessera.dev/v1alpha1"
"""Of Tessera's kinds."""
AGENT: Final = "tessera-agent"
"""The agent as manager of fields and source of events."""
CONTROLLER: Final = "tessera-controller"
"""The controller as manager of fields and source of events; also its Lease."""
ISOLATION: Final = "tessera.dev/isolation"
"""Annotation of a pod: the least isolation of its GPU, `hardware`, `driver` or `none`. Set by users; read by the
server, the agent, the controller and the planner."""
GPU_MODEL: Final = "tessera.dev/gpu-model"
"""Annotation of a pod: GPU models that it may run on, separated by commas. Set by users; read by the server, the
controller and the planner.

Label of a node without an agent: the model of its GPUs, where no other label says it. Set by users; read by `tessera
plan` and the server."""
GPUS_BY_LABELS: Final = "tessera.dev/gpus-by-labels"
"""Annotation of a GPUNode: created for claims on a node without an agent, whose GPUs are read from labels. Set by the
server; read by the server."""
RENAMED_RESOURCES: Final = "tessera.dev/renamed-resources"
"""Annotation of a node: the resources under which its GPUs were ever advertised by a `rename` of its sharing
configuration, separated by commas. Set by the agent; read by the agent after its records are lost."""
