"""Where a Job's pod would run now, by the planner."""

from typing import Any

from tessera.cli.livecluster import observe
from tessera.clients.kube import Kube, Object
from tessera.core.explain.podexplanation import explain_pod
from tessera.core.packing.reasons import summarize
from tessera.core.workload.need import PodKey

__all__ = ["describe_placement"]


async def describe_placement(kube: Kube, job: Object) -> str:
    """Return where a Job's pod would run now, or why it would be pending.

    Raises:
        TesseraError: the cluster cannot be read.

    """
    template: dict[str, Any] = job["spec"]["template"]
    named = {"name": "this", "namespace": job["metadata"]["namespace"], "uid": "this"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], **named},
        "spec": template["spec"],
        "status": {"phase": "Pending"},
    }
    found = explain_pod(await observe(kube, pod), PodKey(f"{named['namespace']}/this"))
    assert found is not None  # the pod is among those observed
    if any(each.obstacle is None for each in found.nodes):
        return "; ".join(found.sentences)
    return "; ".join((f"it would be pending: {summarize(found.nodes)[1]}", *found.sentences))
