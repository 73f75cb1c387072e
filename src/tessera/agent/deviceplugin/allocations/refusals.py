"""The gate's refusals: pods that cannot start, ids allocated twice, devices that no pod can be sent to."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from tessera.agent.deviceplugin.allocations.allocationrecord import AllocationRecord
from tessera.agent.pods.podsview import PodsInView, is_ended, is_ending
from tessera.api.kubernetes.containerlimits import limits_of
from tessera.api.kubernetes.podstates import waiting_messages
from tessera.clients.kube import name_of
from tessera.core.cluster.gpunodestate import UnhealthyDevice
from tessera.core.deviceplugin.allocations import lastgate
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, Clash, double_allocations
from tessera.core.deviceplugin.allocations.gateobservation import in_use
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.sharing import names_device
from tessera.core.workload.resources import SHARE_RESOURCES

__all__ = ["Refusals"]

_BLOCKED_S = 60.0
"""After this a container that is refused again and again waits for something that will not happen by itself."""
_MOVED_S = 30.0
"""For how long a conflict stands whose devices the driver has shown elsewhere: it may be creating the others anew."""
_LOST = "no devices found allocated in local cache for pod {}, container {}, resource {}"
"""Of a container that the kubelet cannot start: it allocates nothing again for a pod that it has admitted, and asks no
plugin. Source: kubernetes `pkg/kubelet/cm/devicemanager/manager.go`, `callPreStartContainerIfNeeded`."""
_LOST_RECORD = "the kubelet has lost its record of the pod's devices, and cannot start a container with them again"


class _Refused(NamedTuple):
    """A pod that cannot start."""

    pod: str
    text: str
    since_s: float
    last_s: float
    """When it was refused for the first and for the last time."""
    rival: str
    """UID of the pod that has its devices; empty for another reason."""
    final: bool = False
    """Whether it will never start."""


class Refusals:
    """The gate's refusals, as long as they matter.

    Args:
        record: the allocations.
        view: the pods of this node.
        capacity: returns the allocatable memory of each device, in MiB.
        clock_s: a monotonic clock: the wall clock may jump.

    """

    def __init__(
        self,
        record: AllocationRecord,
        view: PodsInView,
        capacity: Callable[[], Mapping[DeviceId, int]],
        clock_s: Callable[[], float],
    ) -> None:
        self._record = record
        self._view = view
        self._capacity = capacity
        self._clock_s = clock_s
        self._refused: dict[tuple[str, str, str], _Refused] = {}
        """Containers that could not start, by UID of the pod, name and resource."""
        self._survived = frozenset[str]()
        """UIDs of the pods that blocked others."""
        self._duplicates: dict[tuple[str, tuple[str, ...]], tuple[tuple[AgentAllocation, Clash], ...]] = {}
        """Containers whose ids were also allocated to an earlier pod, by resource and ids."""
        self._moved_s: dict[frozenset[tuple[str, str, str]], float] = {}
        """Conflicts of containers whose devices moved, whichever is the later, and since when without a break."""

    def refuse(self, holder: AgentAllocation, text: str, rival: str = "", *, final: bool = False) -> None:
        """Remember that a container may not start, and why, as long as it is refused; for good if that is final."""
        key, now_s = holder.container_key, self._clock_s()
        before = self._refused.get(key)
        if before is None or not before.final:
            since_s = now_s if before is None else before.since_s
            self._refused[key] = _Refused(holder.pod, text, since_s, now_s, rival, final)

    def forget(self, holder: AgentAllocation) -> None:
        """Forget a refused container: it started."""
        self._refused.pop(holder.container_key, None)

    def note_survivor(self, clash: Clash) -> None:
        """Remember the pod that blocked another."""
        self._survived |= set() if clash.other is None else {clash.other.uid}

    def note_duplicates(
        self, resource: str, ids: tuple[str, ...], later: Iterable[tuple[AgentAllocation, Clash]]
    ) -> None:
        """Remember the containers whose ids an earlier pod has; replaces former entries."""
        self._duplicates[resource, ids] = tuple(later)

    def blocked_pods(self) -> dict[str, tuple[str, str]]:
        """Return the pods that were refused again after a minute, or for good, by UID, each with the reason.

        One whose container is not tried again, as the kubelet waits before it restarts one that crashed, may start the
        next time: what was in its way may be over. A pod that waits for a terminating pod is not among them: that
        resolves itself. One that waits for processes left behind by a deleted pod is, and one whose devices the kubelet
        has lost.

        """
        find = self._view.find
        self._note_lost()
        self._refused = {
            key: each
            for key, each in self._refused.items()
            if not is_ending(find(key[0])) and (is_ended(find(each.rival)) or not is_ending(find(each.rival)))
        }
        return {
            uid: (each.pod, each.text)
            for (uid, _, _), each in self._refused.items()
            if each.final or each.last_s - each.since_s > _BLOCKED_S
        }

    def _note_lost(self) -> None:
        """Remember containers whose devices the kubelet has lost, as it says, until they run again.

        Its words alone are no proof: a watch may show former ones, and a container may write them itself. The kubelet
        must also have a checkpoint that lacks the devices.
        """
        before = {key for key, each in self._refused.items() if each.text == _LOST_RECORD}
        for uid, pod in self._view.by_uid().items():
            messages = waiting_messages(pod)
            for container, resource, _ in limits_of(pod) if messages else ():
                key = uid, container, resource
                ours = container in messages and (names_device(resource) or resource in SHARE_RESOURCES)
                reported = ours and (key in before or messages[container] == _LOST.format(*key))
                if reported and self._view.has_lost(*key):
                    named = "/".join(name_of(pod))
                    lost = AgentAllocation(resource=resource, ids=(), uid=uid, pod=named, container=container)
                    self.refuse(lost, _LOST_RECORD)
                    before.discard(key)
        for key in before:
            del self._refused[key]

    @property
    def devices_of_orphans(self) -> tuple[UnhealthyDevice, ...]:
        """The devices for which a pod was refused because processes of a deleted pod use them."""
        entries = self._record.entries
        self._survived &= {each.uid for each in entries}
        return lastgate.devices_of_orphans(entries, {uid for uid in self._survived if is_ended(self._view.find(uid))})

    def double_allocations(self) -> tuple[tuple[AgentAllocation, Clash], ...]:
        """Return what two pods cannot both have, each time with the later pod.

        Equal ids are a conflict, even if they stand for units, when one of the pods is to start: the kubelet's call
        does not say which of them it is for. A conflict by where the driver shows instances now is one after half a
        minute: as long as it creates instances again, the next may end it.
        """
        living = {uid for uid, pod in self._view.by_uid().items() if not is_ending(pod)}
        uids = {each.uid for each in self._record.entries}
        entries = in_use(self._record.entries, self._record.observer.pods(uids))
        self._duplicates = {
            key: left
            for key, each in self._duplicates.items()
            if (left := tuple((later, clash) for later, clash in each if _both_live(later, clash, living)))
        }
        duplicates = (each for those in self._duplicates.values() for each in those)
        conflicts = double_allocations(entries, self._capacity(), uids - living)
        return (*duplicates, *self._lasting(conflicts))

    def _lasting(self, conflicts: Iterable[tuple[AgentAllocation, Clash]]) -> Iterator[tuple[AgentAllocation, Clash]]:
        """Yield conflicts of containers whose devices did not move, and those that stand long enough."""
        before, self._moved_s, now_s = self._moved_s, {}, self._clock_s()
        for later, clash in conflicts:
            key = frozenset(each.container_key for each in (later, clash.other) if each is not None)
            if self._record.moved.isdisjoint(key):
                yield later, clash
                continue
            self._moved_s[key] = since_s = before.get(key, now_s)
            if now_s - since_s >= _MOVED_S:
                yield later, clash


def _both_live(later: AgentAllocation, clash: Clash, living: set[str]) -> bool:
    return later.uid in living and clash.other is not None and clash.other.uid in living
