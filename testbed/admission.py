"""The admission policies of the chart: put into force on a testbed, taken away again."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from tessera.api.kubernetes.podspecs import ASSIGNMENT
from tessera.api.scheduler.admission import AMOUNTS
from tessera.core.workload.resources import SCHEDULER_NAME
from tessera.errors import Unavailable
from testbed.deploy import NAMESPACE, objects
from testbed.processes import until

__all__ = ["FILES", "install", "remove"]

FILES = (
    "admission/scheduler-name.yaml",
    "admission/node-name.yaml",
    "admission/assignments.yaml",
    "admission/agents.yaml",
    "admission/requests.yaml",
)
"""What this Kubernetes can do by itself: no webhook."""
_IN_FORCE_S = 60


class Kubectl(Protocol):
    """The part of a cluster that is needed here."""

    def kubectl(self, *arguments: str, input_text: str | None = None) -> str:
        """Return what kubectl prints, as the administrator."""


def install(cluster: Kubectl, files: Sequence[str] = FILES) -> None:
    """Apply the policies, and return when the API server follows them, which takes it a second or two."""
    for each in objects(*files):
        cluster.kubectl("apply", "-f", "-", input_text=json.dumps(each))
    for file in files:
        until(f"{file} is in force", partial(_PROBES[file], cluster), timeout_s=_IN_FORCE_S)


def remove(cluster: Kubectl, files: Sequence[str] = FILES) -> None:
    """Delete the policies, and return when the API server has forgotten them."""
    for each in objects(*files):
        cluster.kubectl("delete", each["kind"], each["metadata"]["name"], "--ignore-not-found")
    for file in files:
        until(f"{file} is gone", partial(_lacks, cluster, file), timeout_s=_IN_FORCE_S)


def _lacks(cluster: Kubectl, file: str) -> bool:
    return not _PROBES[file](cluster)


def _probe(**more: Any) -> dict[str, Any]:
    """Return a pod that asks for memory of a GPU."""
    limits = more.pop("limits", {AMOUNTS[0]: "1"})
    container = {"name": "main", "image": "none", "resources": {"limits": limits}}
    metadata = {"name": "tessera-probe", "namespace": "default", "annotations": more.pop("annotations", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **more}}


def _created(cluster: Kubectl, pod: dict[str, Any], *who: str) -> dict[str, Any]:
    """Return a pod as the API server would store it; nothing is stored."""
    output = cluster.kubectl("create", "--dry-run=server", *who, "-o", "json", "-f", "-", input_text=json.dumps(pod))
    found: dict[str, Any] = json.loads(output)
    return found


def _routes(cluster: Kubectl) -> bool:
    return bool(_created(cluster, _probe())["spec"]["schedulerName"] == SCHEDULER_NAME)


def _refuses(*who: str, **more: Any) -> Callable[[Kubectl], bool]:
    def refused(cluster: Kubectl) -> bool:
        try:
            _created(cluster, _probe(**more), *who)
        except Unavailable:
            return True
        return False

    return refused


_PROBES: dict[str, Callable[[Kubectl], bool]] = {
    FILES[0]: _routes,
    FILES[1]: _refuses(nodeName="no-such-node", schedulerName=SCHEDULER_NAME),
    FILES[2]: _refuses(annotations={ASSIGNMENT: "[]"}),
    FILES[3]: _refuses(f"--as=system:serviceaccount:{NAMESPACE}:tessera-agent", "--as-group=system:masters"),
    FILES[4]: _refuses(limits={AMOUNTS[0]: "1", AMOUNTS[3]: "1"}),
}
