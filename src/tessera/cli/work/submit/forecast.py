"""Where a Job's pod would run now, by the planner."""

import asyncio
from typing import Any

from tessera.clients.kube import NODES, Forbidden, Kube, Object, Selection
from tessera.core.workload.need import PodKey
from tessera.errors import TesseraError

__all__ = ["forecast_job"]

_NO_NODE = Selection(fields=(("metadata.name", "none"),))
"""What may be read is known by reading nothing."""
_READING_S = 3.0
"""How long a submission waits for the cluster to be read, all requests together."""


async def forecast_job(kube: Kube, job: Object, within_s: float = _READING_S) -> str:
    """Return where a Job's pod would run now, or why it would be pending, or why that is not known."""
    try:
        async with asyncio.timeout(within_s) as deadline:
            await kube.list(NODES, _NO_NODE)
            return await _placement(kube, job, deadline)
    except Forbidden:
        return "no forecast: you may not read the nodes and pods of the cluster; ask for ClusterRole tessera-viewer"
    except TimeoutError:
        return f"no forecast: the cluster was not read within {within_s:g} s"
    except TesseraError as error:
        return f"no forecast: {error}"


async def _placement(kube: Kube, job: Object, deadline: asyncio.Timeout) -> str:
    """Return where a Job's pod would run now, or why it would be pending.

    The planner is imported here, as that takes longer than all else before a Job is submitted, and only for those who
    may read nodes. It is no wait for the cluster, so the deadline moves: the first import on a machine takes seconds.

    Raises:
        TesseraError: the cluster cannot be read.

    """
    clock_s = asyncio.get_running_loop().time
    began_s = clock_s()
    from tessera.cli.livecluster import observe  # noqa: PLC0415 - slow to import
    from tessera.core.explain.podexplanation import explain_pod  # noqa: PLC0415 - slow to import
    from tessera.core.packing.reasons import summarize  # noqa: PLC0415 - slow to import

    deadline.reschedule((deadline.when() or began_s) + clock_s() - began_s)
    template: dict[str, Any] = job["spec"]["template"]
    named = {"name": "this", "namespace": job["metadata"]["namespace"], "uid": "this"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], **named},
        "spec": template["spec"],
        "status": {"phase": "Pending"},
    }
    observed = await observe(kube, pod)
    found = explain_pod(observed, PodKey(f"{named['namespace']}/this"))
    assert found is not None  # the pod is among those observed
    if any(each.obstacle is None for each in found.nodes):
        return "; ".join(found.sentences)
    return "; ".join((f"it would be pending: {summarize(found.nodes)[1]}", *found.sentences))
