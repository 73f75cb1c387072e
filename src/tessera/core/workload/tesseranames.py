"""Tessera's names in the Kubernetes API that are written and read: the version of its kinds, annotations of pods."""

from typing import Final

__all__ = ["API_VERSION", "GPU_MODEL", "ISOLATION"]

API_VERSION: Final = "tessera.dev/v1alpha1"
"""Of Tessera's kinds."""
ISOLATION: Final = "tessera.dev/isolation"
"""Annotation of a pod: the least isolation of its GPU, `hardware`, `driver` or `none`. Set by users; read by the
server, the agent, the controller and the planner."""
GPU_MODEL: Final = "tessera.dev/gpu-model"
"""Annotation of a pod: GPU models that it may run on, separated by commas. Set by users; read by the server, the
controller and the planner."""
