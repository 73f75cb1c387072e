"""Kubernetes objects of a model server, as a function of its spec.

Where replicas start one by one, they are also a function of the replicas that are ready.

`engines` is the program, `pods` the pod around it, `objects` everything else, batch Jobs too. `vllmprogram` is the text
that starts vLLM: `vllmstart` gives it its share of memory, `connections` renews clients' connections.
"""

from tessera.core.serving.render.objects import KIND, StartedReplicas, job, render

__all__ = ["KIND", "StartedReplicas", "job", "render"]
