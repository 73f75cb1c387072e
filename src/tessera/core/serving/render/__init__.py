"""Kubernetes objects of a model server, as a function of its spec.

Where replicas start one by one, they are also a function of the replicas that are ready.

`engines` is the program, `pods` the pod around it, `objects` everything else, `job` a batch Job. `vllmprogram` is the
text that starts vLLM: `vllmdevice` and `vllmstart` give it its share of memory, `connections` renews clients'
connections.
"""

from tessera.core.serving.render.job import job
from tessera.core.serving.render.objects import render

__all__ = ["job", "render"]
