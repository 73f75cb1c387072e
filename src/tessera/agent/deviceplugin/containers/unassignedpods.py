"""Pods that request units of GPU memory and have no assignment that counts: they cannot start."""

from collections.abc import Iterable

from tessera.agent.deviceplugin.allocations.allocationrecord import AllocationRecord
from tessera.agent.deviceplugin.containers.assignedpods import AssignedPods
from tessera.agent.pods.podsview import PodsInView
from tessera.api.kubernetes.podstates import was_created
from tessera.clients.kube import name_of, uid_of
from tessera.core.deviceplugin.allocations.allocateddevices import knows_devices
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation, RequestKey
from tessera.core.deviceplugin.allocations.matching import AssignedRequest
from tessera.core.workload.resources import SHARE_RESOURCES

__all__ = ["UnassignedPods"]


class UnassignedPods:
    """Remembers the pods that were found without an assignment, until one counts.

    Args:
        view: the pods of this node.
        pods: the assignments that count.
        record: the allocations on this node.

    """

    def __init__(self, view: PodsInView, pods: AssignedPods, record: AllocationRecord) -> None:
        self._view = view
        self._pods = pods
        self._record = record
        self._found: dict[str, RequestKey] = {}
        """Their containers, by UID of the pod."""

    @property
    def by_uid(self) -> dict[str, str]:
        """Their names (`namespace/name`), by UID.

        Another scheduler placed them, or they named their node. Assignments are written when a pod is bound.
        """
        left = {uid: key for uid, key in self._found.items() if not self._pods.counts(uid, key)}
        return {uid: f"{key.namespace}/{key.pod}" for uid, key in left.items()}

    def note(self, containers: dict[str, RequestKey]) -> None:
        """Remember containers, by UID of the pod; not while forged assignments cannot be recognized."""
        if self._pods.judges:
            self._found |= containers

    def forget_ended(self) -> None:
        """Forget the pods that are gone."""
        self._found = {uid: key for uid, key in self._found.items() if self._view.find(uid) is not None}

    def among(
        self, allocated: Iterable[KubeletAllocation], requests: Iterable[AssignedRequest]
    ) -> dict[str, RequestKey]:
        """Return containers of pods without an assignment that were not created with units, by UID of the pod.

        Args:
            allocated: the kubelet's record.
            requests: those of the assigned pods.

        """
        assigned = {(request.key.namespace, request.key.pod) for request in requests}
        pods, record = {name_of(pod): pod for pod in self._view.pods()}, self._record.entries
        return {
            uid_of(pods[name]): each.key
            for each in allocated
            if each.resource in SHARE_RESOURCES and (name := (each.namespace, each.pod)) not in assigned
            if name in pods and not was_created(pods[name], each.container) and not knows_devices(record, each)
        }
