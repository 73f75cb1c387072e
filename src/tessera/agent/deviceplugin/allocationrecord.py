"""The agent's record of what each container was allocated: on disk before a call is answered.

An entry is made when `Allocate` or `PreStartContainer` is answered, and stays until its pod has ended with its last
process (docs/decisions/0014-last-gate.md).
"""

import contextlib
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from tessera.agent.deviceplugin.allocationsfile import read_allocations, write_allocations
from tessera.agent.pods.observing import PodObserver
from tessera.api.kubernetes.containerlimits import was_created
from tessera.api.kubernetes.podstates import created_ns
from tessera.core.deviceplugin import lastgate
from tessera.core.deviceplugin.advertise import PluginDevice
from tessera.core.deviceplugin.allocations import (
    Allocation,
    Assigned,
    AssignedUses,
    StartedPod,
    Use,
    clashes,
    completed,
    replaces,
    started_pod,
    uses_of_devices,
)
from tessera.core.deviceplugin.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.lastgate import ObservedPods, named
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.workload.resources import SHARE_RESOURCES
from tessera.errors import Unavailable
from tessera.log import Logger

__all__ = ["AllocationRecord"]

_UNCLAIMED_S = 60.0
"""An answer to `Allocate` that no container has used for so long was for a pod that the kubelet refused."""


class AllocationRecord:
    """What is allocated on this node.

    Args:
        observer: the pods of this node.
        capacity: returns the memory in MiB that can be allocated of each device.
        log: where changes are logged.
        file: keeps the record over a restart of the agent; None keeps nothing.
        now_ns: the time, in nanoseconds since 1970.
        clock_s: a monotonic clock, for how long something lasts: the time of day may jump.

    """

    def __init__(
        self,
        observer: PodObserver,
        capacity: Callable[[], Mapping[DeviceId, int]],
        log: Logger,
        *,
        file: Path | None = None,
        now_ns: Callable[[], int] = time.time_ns,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._observer = observer
        self._view = observer.view
        self._capacity = capacity
        self._log = log
        self._file = file
        self._now_ns = now_ns
        self._clock_s = clock_s
        self._unclaimed_s: dict[Allocation, float] = {}
        """Answers for which no pod is known, and since when they are seen."""
        self._entries = () if file is None else read_allocations(file, log)
        self._admitting: list[Allocation] = []
        """What `Allocate` is asked for and is not on record yet: it must not look free meanwhile."""

    # What it says

    @property
    def entries(self) -> tuple[Allocation, ...]:
        """What is allocated."""
        return self._entries

    @property
    def allocated(self) -> tuple[Allocation, ...]:
        """What is allocated, and what is being allocated at this moment."""
        return (*self._entries, *self._admitting)

    def allocated_ids(self, resource: str) -> frozenset[str]:
        """Return the ids of a resource that pods have or are being allocated.

        A kubelet that offers one of them has forgotten it, or never used it.
        """
        return frozenset(name for each in self.allocated if each.resource == resource for name in each.ids)

    def unclaimed(self, resource: str) -> frozenset[str]:
        """Return the ids of a resource that `Allocate` was answered with, and for which no pod is known yet.

        They were for a pod that was refused if that is so for a minute.
        """
        pending = (each for each in self._entries if each.resource == resource and not each.uid)
        return frozenset(name for each in pending for name in each.ids)

    @property
    def by_name(self) -> frozenset[DeviceId]:
        """The devices that pods were allocated by name, or are being allocated, until their last process has ended."""
        named = (each for each in self.allocated if each.resource not in SHARE_RESOURCES)
        return frozenset(use.device for each in named for use in each.uses)

    @property
    def without_mps(self) -> frozenset[DeviceId]:
        """The devices that pods use, or are going to, on which no MPS daemon may start."""
        known = (each for each in self.allocated if not each.guessed)
        return frozenset(use.device for each in known for use in each.uses if use.keeps_mps_out)

    @property
    def by_assignment(self) -> frozenset[DeviceId]:
        """The devices of which pods use what a server assigned, by this record and whatever is written on the pods."""
        assigned = (each for each in self.allocated if each.resource in SHARE_RESOURCES)
        return frozenset(use.device for each in assigned for use in each.uses)

    def is_free(self, resource: str, device: PluginDevice) -> bool:
        """Return whether no pod has a device that is offered by name, under whatever name, nor one that overlaps it."""
        (use,) = uses_of_devices((device,))
        return not any(
            (each.resource == resource and device.id in each.ids) or any(use.excludes(other) for other in each.uses)
            for each in self.allocated
        )

    def uses_of(self, holder: Allocation) -> tuple[Use, ...]:
        """Return what a container uses that was started with these ids, or what `Allocate` answered for them."""
        return next((each.uses for each in self._entries if each.ids == holder.ids and replaces(holder, each)), ())

    def has_started(self, holder: Allocation) -> bool:
        """Return whether a container was started with these ids before."""
        return any(each.started and each.ids == holder.ids and replaces(holder, each) for each in self._entries)

    def started_pod(self, uid: str) -> StartedPod | None:
        """Return what a pod's containers were started with that goes by assignment; None where nothing was."""
        return started_pod(self._entries, uid)

    @property
    def resources(self) -> frozenset[str]:
        """The resources of which pods have something; their plugins are asked before each start of a container."""
        return frozenset(each.resource for each in self._entries)

    def knows(self, held: KubeletAllocation) -> bool:
        """Return whether it is known, and not guessed, what a container uses of what it holds."""
        pod = f"{held.namespace}/{held.pod}"
        return any(
            each.uses and not each.guessed
            for each in self._entries
            if (each.pod, each.container, each.resource) == (pod, held.container, held.resource)
        )

    def held(self) -> tuple[KubeletAllocation, ...]:
        """Return what containers have by this record, as the kubelet's record would say it."""
        return tuple(
            KubeletAllocation(
                uid=each.uid,
                namespace=namespace,
                pod=pod,
                container=each.container,
                resource=each.resource,
                device_ids=each.ids,
            )
            for each in self._entries
            for namespace, slash, pod in [each.pod.partition("/")]
            if slash
        )

    def next_ns(self) -> int:
        """Return the time of an allocation: later than all on record, though the clock was set back since."""
        return max(self._now_ns(), 1 + max((each.at_ns for each in self.allocated), default=0))

    # What is written

    @contextlib.contextmanager
    def admitting(self, new: Allocation) -> Iterator[None]:
        """Let an allocation count while it is decided."""
        self._admitting.append(new)
        try:
            yield
        finally:
            self._admitting.remove(new)

    def keep(self, record: tuple[Allocation, ...]) -> None:
        """Take a record, once it is on disk.

        Raises:
            Unavailable: it cannot be written; the one before stays.

        """
        if record == self._entries:
            return
        if self._file is not None:
            write_allocations(self._file, record)
        self._entries = record

    def learn(self, record: tuple[Allocation, ...]) -> None:
        """Take a record that is the same but for whose its entries are; it is on disk with the next change."""
        self._entries = record

    def complete(self, assigned: Assigned, uses: AssignedUses, revoked: Callable[[str], bool]) -> None:
        """Record what started containers are assigned (`core.deviceplugin.allocations.completed`).

        Raises:
            Unavailable: the record cannot be written.

        """
        self.keep(completed(self._entries, assigned, uses, revoked))

    def clear_guessed_uses(self, resource: str, ids: Iterable[str], unassigned: Container[str]) -> None:
        """Let nothing be counted as used of what a container was allocated that nothing was assigned to.

        What a container was started with stays counted, whatever became of its pod's assignment since. What is only
        guessed is safe to let go: `Gate.start` records what it is before a container is started with it.

        Args:
            resource: of the ids.
            ids: what the kubelet gave it.
            unassigned: pods (`namespace/name`) that were refused to start.

        Raises:
            Unavailable: the record cannot be written.

        """
        own = (resource, tuple(sorted(ids)))
        self.keep(
            tuple(
                msgspec.structs.replace(each, uses=())
                if (each.resource, each.ids) == own
                and not each.started
                and (not each.uid or each.guessed or each.pod in unassigned)
                else each
                for each in self._entries
            )
        )

    def release(self, *, complete: bool = False) -> None:
        """Let go of what pods had that have ended, and none of whose processes is left.

        A record on disk that cannot be written has more than is allocated, which a later agent lets go of.

        Args:
            complete: whether the view has just been refreshed.

        """
        uids = frozenset(each.uid for each in self._entries if each.uid)
        pods = self._observer.pods(uids)
        ended = frozenset(uid for uid in uids if uid not in pods or pods[uid].ended)
        if ended:
            observed = ObservedPods(pods=pods, running=self._view.running(ended), blind=self._view.blind)
            left = lastgate.release(self._entries, observed, complete=complete)
            try:
                self.keep(left)
            except Unavailable as error:
                self._log.warning("release_not_kept", reason=str(error))
                self._entries = left

    async def tidy(self, uses_of: Callable[[KubeletAllocation], tuple[Use, ...]]) -> None:
        """Drop what ended pods had, and record what pods have of which nothing is recorded.

        Args:
            uses_of: returns what a container uses by the ids it holds; nothing where that is not known yet.

        Raises:
            Unavailable: the kubelet's record cannot be read, or this one not be written.

        """
        # 1. Let go of what ended pods had; where no processes can be seen, what the API server has is all there is.
        complete = self._view.blind and await self._observer.refresh()
        held = await self._view.held()
        self.release(complete=complete)
        # 2. Find the pods of answers that nobody claimed; one that the kubelet has recorded is for a pod that is there.
        observed, late = await self._observed(), self._unclaimed()
        if any(map(observed.is_of_a_pod_unseen, late)):
            if not await self._observer.refresh():
                return
            observed = await self._observed()
        known = tuple(named(each, observed) if each in late else each for each in self._entries)
        kept = tuple(each for each in known if each.uid or each not in late)
        # 3. Adopt what was allocated before there was a record.
        self.keep((*kept, *self._adopted(held, uses_of, kept)))

    async def _observed(self) -> ObservedPods:
        return await self._observer.observe({each.uid for each in self._entries})

    def _unclaimed(self) -> frozenset[Allocation]:
        """Return the answers for which no pod has been known for a minute."""
        now_s, nameless = self._clock_s(), [each for each in self._entries if not each.uid]
        self._unclaimed_s = {each: self._unclaimed_s.get(each, now_s) for each in nameless}
        return frozenset(each for each, since_s in self._unclaimed_s.items() if now_s - since_s >= _UNCLAIMED_S)

    def _adopted(
        self,
        held: Iterable[KubeletAllocation],
        uses_of: Callable[[KubeletAllocation], tuple[Use, ...]],
        record: tuple[Allocation, ...],
    ) -> Iterator[Allocation]:
        """Yield entries for what containers have of which the record has nothing."""
        known = {(each.uid, each.container, each.resource) for each in record}
        pending = {(each.resource, each.ids) for each in record if not each.uid}
        for each in held:
            if (each.uid, each.container, each.resource) in known or (each.resource, each.device_ids) in pending:
                continue
            uses = uses_of(each)
            if uses:
                pod = self._view.find(each.uid) or {}
                entry = Allocation(
                    resource=each.resource,
                    ids=each.device_ids,
                    uses=uses,
                    uid=each.uid,
                    pod=f"{each.namespace}/{each.pod}",
                    container=each.container,
                    at_ns=created_ns(pod) or self._now_ns(),
                    # A container by name keeps what it ran with; what goes by assignment is checked at its next start.
                    started=each.resource not in SHARE_RESOURCES and was_created(pod, each.container),
                )
                self._log.info("allocation_adopted", pod=entry.pod, resource=entry.resource, ids=entry.ids)
                # Who is in the record already was first, however old the other pod is.
                late = any(clashes(record, entry, self._capacity(), ids=each.resource not in SHARE_RESOURCES))
                at_ns = max(entry.at_ns, self.next_ns()) if late else entry.at_ns
                yield msgspec.structs.replace(entry, at_ns=at_ns)
