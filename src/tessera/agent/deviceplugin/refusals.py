"""Who was refused what: pods that cannot start, ids that the kubelet gave twice, devices that nobody can be sent to."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tessera.agent.deviceplugin.allocationrecord import AllocationRecord
from tessera.agent.pods.podsview import PodsInView, by_uid, is_ended, is_ending
from tessera.core.cluster.gpunodestate import UnhealthyDevice
from tessera.core.deviceplugin import lastgate
from tessera.core.deviceplugin.allocations import Allocation, Clash, double_allocations
from tessera.core.gpu.deviceids import DeviceId

__all__ = ["Refusals"]

_BLOCKED_S = 60.0
"""After so long a container that is refused again and again waits for what will not come by itself."""


class _Refused(NamedTuple):
    """A pod that cannot start."""

    pod: str
    text: str
    since_s: float
    rival: str
    """UID of the pod that has what it needs; empty where that is not why."""


class Refusals:
    """What the gate refused, as long as it matters.

    Args:
        record: what is allocated.
        view: the pods of this node.
        capacity: returns the memory in MiB that can be allocated of each device.
        clock_s: a monotonic clock: the time of day may jump.

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
        self._refused: dict[tuple[str, str], _Refused] = {}
        """Containers that could not start, by UID of the pod and name."""
        self._survived = frozenset[str]()
        """UIDs of the pods that were in the way of others."""
        self._duplicates: dict[tuple[str, tuple[str, ...]], tuple[tuple[Allocation, Clash], ...]] = {}
        """Containers whose ids the kubelet gave to a pod that came before theirs as well, by resource and ids."""

    def refuse(self, holder: Allocation, text: str, rival: str = "") -> None:
        """Remember that a container may not start, and why, as long as that goes on."""
        key = holder.uid, holder.container
        before = self._refused.get(key)
        since_s = self._clock_s() if before is None else before.since_s
        self._refused[key] = _Refused(pod=holder.pod, text=text, since_s=since_s, rival=rival)

    def forget(self, holder: Allocation) -> None:
        """Remember no more that a container could not start: it did."""
        self._refused.pop((holder.uid, holder.container), None)

    def note_survivor(self, clash: Clash) -> None:
        """Remember the pod that was in the way of another."""
        self._survived |= set() if clash.other is None else {clash.other.uid}

    def note_duplicates(self, resource: str, ids: tuple[str, ...], later: Iterable[tuple[Allocation, Clash]]) -> None:
        """Remember which containers have ids of a pod that came before; none is remembered of before."""
        self._duplicates[resource, ids] = tuple(later)

    def blocked_pods(self) -> dict[str, tuple[str, str]]:
        """Return the pods that were refused for a minute, by UID, each with why.

        Who waits for a pod that is being deleted waits for what will come by itself; but not who waits for processes
        that a pod left behind when it was gone.
        """
        find = self._view.find
        self._refused = {
            key: each
            for key, each in self._refused.items()
            if not is_ending(find(key[0])) and (is_ended(find(each.rival)) or not is_ending(find(each.rival)))
        }
        late_s = self._clock_s() - _BLOCKED_S
        return {uid: (each.pod, each.text) for (uid, _), each in self._refused.items() if each.since_s < late_s}

    @property
    def devices_of_orphans(self) -> tuple[UnhealthyDevice, ...]:
        """The devices for which a pod was refused since processes of one that is gone use them."""
        entries = self._record.entries
        self._survived &= {each.uid for each in entries}
        return lastgate.devices_of_orphans(entries, {uid for uid in self._survived if is_ended(self._view.find(uid))})

    def double_allocations(self) -> tuple[tuple[Allocation, Clash], ...]:
        """Return what two pods have and cannot both have, each time the later one.

        The same ids are a conflict, also where they stand for units, when one of the pods is to start: nobody can tell
        which of them the kubelet asks for.
        """
        living = {uid for uid, pod in by_uid(self._view.pods()).items() if not is_ending(pod)}
        ending = {each.uid for each in self._record.entries} - living
        self._duplicates = {
            key: left
            for key, each in self._duplicates.items()
            if (left := tuple((later, clash) for later, clash in each if _both_live(later, clash, living)))
        }
        duplicates = (each for those in self._duplicates.values() for each in those)
        return (*duplicates, *double_allocations(self._record.entries, self._capacity(), ending))


def _both_live(later: Allocation, clash: Clash, living: set[str]) -> bool:
    return later.uid in living and clash.other is not None and clash.other.uid in living
