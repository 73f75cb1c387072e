"""Kubernetes objects of a model server, as a function of what is asked of it.

`engines` says what runs, `pods` the pod around it, `objects` all else.
"""

from tessera.core.serving.render.objects import KIND, job, render
from tessera.core.serving.render.pods import SERVER_LABEL

__all__ = ["KIND", "SERVER_LABEL", "job", "render"]
