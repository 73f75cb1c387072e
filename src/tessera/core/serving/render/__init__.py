"""Kubernetes objects of a model server, as a function of its spec.

`engines` is the program, `pods` the pod around it, `objects` everything else.
"""

from tessera.core.serving.render.objects import API_VERSION, KIND, job, render
from tessera.core.serving.render.pods import SERVER_LABEL

__all__ = ["API_VERSION", "KIND", "SERVER_LABEL", "job", "render"]
