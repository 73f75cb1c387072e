"""The gate's refusals: pods that cannot start, ids allocated twice, devices that no pod can be sent to."""

from collections.abc import Callable, Iterable, Mapping

from tessera.agent.deviceplugin.allocations.allocationrecord import AllocationRecord
from tessera.agent.pods.podsview import PodsInView, is_ended, is_ending
from tessera.api.kubernetes.podstates import waiting_messages
from tessera.core.cluster.gpunodestate import UnhealthyDevice
from tessera.core.deviceplugin.allocations import lastgate
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation
from tessera.core.deviceplugin.allocations.clashes import Clash, double_allocations
from tessera.core.deviceplugin.allocations.gateobservation import in_use
from tessera.core.deviceplugin.allocations.refusals import (
    ContainerKey,
    DoubleAllocation,
    RefusedContainer,
    blocked_pods,
    lasting_conflicts,
    refused_again,
    with_lost,
    without_ended,
)
from tessera.core.gpu.deviceids import DeviceId

__all__ = ["Refusals"]


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
        self._refused: dict[ContainerKey, RefusedContainer] = {}
        """Containers that could not start."""
        self._survived = frozenset[str]()
        """UIDs of the pods that blocked others."""
        self._duplicates: dict[tuple[str, tuple[str, ...]], tuple[DoubleAllocation, ...]] = {}
        """Containers whose ids were also allocated to an earlier pod, by resource and ids."""
        self._moved_s: dict[frozenset[ContainerKey], float] = {}
        """Conflicts of containers whose devices moved, whichever is the later, and since when without a break."""

    def refuse(self, holder: AgentAllocation, text: str, rival: str = "", *, final: bool = False) -> None:
        """Remember that a container may not start, and why, as long as it is refused; for good if that is final."""
        key, now_s = holder.container_key, self._clock_s()
        new = RefusedContainer(pod=holder.pod, text=text, since_s=now_s, last_s=now_s, rival=rival, final=final)
        self._refused[key] = refused_again(self._refused.get(key), new)

    def forget(self, holder: AgentAllocation) -> None:
        """Forget a refused container: it started."""
        self._refused.pop(holder.container_key, None)

    def note_survivor(self, clash: Clash) -> None:
        """Remember the pod that blocked another."""
        self._survived |= set() if clash.other is None else {clash.other.uid}

    def note_duplicates(self, resource: str, ids: tuple[str, ...], later: Iterable[DoubleAllocation]) -> None:
        """Remember the containers whose ids an earlier pod has; replaces former entries."""
        self._duplicates[resource, ids] = tuple(later)

    def blocked_pods(self) -> dict[str, tuple[str, str]]:
        """Return the pods that cannot start and are to be evicted, by UID, each with its name and the reason."""
        present = self._view.by_uid()
        pods = self._record.observer.pods(present)
        messages = {uid: found for uid, pod in present.items() if (found := waiting_messages(pod))}
        refused = with_lost(self._refused, pods, messages, self._view.has_lost, self._view.node(), self._clock_s())
        self._refused = without_ended(refused, pods)
        return blocked_pods(self._refused)

    @property
    def devices_of_orphans(self) -> tuple[UnhealthyDevice, ...]:
        """The devices for which a pod was refused because processes of a deleted pod use them."""
        entries = self._record.entries
        self._survived &= {each.uid for each in entries}
        return lastgate.devices_of_orphans(entries, {uid for uid in self._survived if is_ended(self._view.find(uid))})

    def double_allocations(self) -> tuple[DoubleAllocation, ...]:
        """Return what two pods cannot both have, each time with the later pod.

        Equal ids are a conflict, even if they stand for units, when one of the pods is to start: the kubelet's call
        does not say which of them it is for.
        """
        living = {uid for uid, pod in self._view.by_uid().items() if not is_ending(pod)}
        uids = {each.uid for each in self._record.entries}
        self._duplicates = {
            key: left
            for key, each in self._duplicates.items()
            if (left := tuple((later, clash) for later, clash in each if _both_live(later, clash, living)))
        }
        duplicates = (each for those in self._duplicates.values() for each in those)
        used = in_use(self._record.entries, self._record.observer.pods(uids))
        conflicts = double_allocations(used, self._capacity(), uids - living)
        lasting, self._moved_s = lasting_conflicts(conflicts, self._record.moved, self._moved_s, self._clock_s())
        return (*duplicates, *lasting)


def _both_live(later: AgentAllocation, clash: Clash, living: set[str]) -> bool:
    return later.uid in living and clash.other is not None and clash.other.uid in living
