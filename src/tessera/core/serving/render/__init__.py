"""Kubernetes objects of a model server, as a function of its spec.

`engines` is the program, `pods` the pod around it, `objects` everything else.
"""

from tessera.core.serving.render.objects import KIND, StartedReplicas, job, render

__all__ = ["KIND", "StartedReplicas", "job", "render"]
