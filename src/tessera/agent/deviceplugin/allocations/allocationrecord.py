"""The agent's record of each container's allocation: on disk before a call is answered.

An entry is created when `Allocate` or `PreStartContainer` is answered, and stays until the pod's last process has
ended (docs/allocation.md).
"""

import asyncio
import contextlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from tessera.agent.agenttimes import AgentTimes
from tessera.agent.deviceplugin.allocations.allocationsfile import (
    ReadAllocations,
    read_allocations,
    require_room_for_more,
    write_allocations,
)
from tessera.agent.pods.observing import PodObserver
from tessera.core.deviceplugin.allocations import lastgate
from tessera.core.deviceplugin.allocations.adoption import (
    adopted,
    initial_by_name,
    unassigned,
    unrecorded,
    without_known,
)
from tessera.core.deviceplugin.allocations.agentallocations import (
    AgentAllocation,
    AllocatedDevice,
    Assigned,
    AssignedDevices,
    StartedPod,
    completed,
    latest,
    started_pod,
)
from tessera.core.deviceplugin.allocations.earlierversions import (
    assigned_uses,
    is_vague,
    supplemented,
    with_answers,
    with_strategies,
)
from tessera.core.deviceplugin.allocations.gateobservation import GateObservation, GatePod
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.allocations.lastgate import named, of_pod
from tessera.core.deviceplugin.allocations.relocation import moved, relocated
from tessera.core.deviceplugin.allocations.unreadableentries import (
    UnknownUse,
    is_idle,
    still_unrecorded,
    unknown_uses,
    uses_unknown,
)
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import Inventory
from tessera.core.node.liststrategies import DeviceInjection
from tessera.core.node.nodesharing import ListStrategy
from tessera.errors import Unavailable
from tessera.log import Logger

__all__ = ["AllocationRecord"]

_TIMES = AgentTimes()
_UNCLAIMED_S = 60.0
"""An answer to `Allocate` that no container uses for this long was for a pod that the kubelet rejected."""


class AllocationRecord:
    """The allocations on this node.

    Args:
        observer: observes the pods of this node.
        capacity: returns the allocatable memory of each device, in MiB.
        log: for changes.
        wake: called when nothing more is offered, for the reason in `closed`, or everything again.
        file: keeps the record across restarts of the agent; None keeps it in memory.
        times: the clocks.

    """

    def __init__(
        self,
        observer: PodObserver,
        capacity: Callable[[], Mapping[DeviceId, int]],
        log: Logger,
        *,
        wake: Callable[[], None],
        file: Path | None = None,
        times: AgentTimes = _TIMES,
    ) -> None:
        self.observer = observer
        self.capacity = capacity
        self._view = observer.view
        self._log = log
        self._file = file
        self._wake = wake
        self._times = times
        self._unkept = self._unknown = ""
        self._unclaimed_s: dict[AgentAllocation, float] = {}
        """Answers without a known pod, and when they were first observed."""
        read = ReadAllocations(()) if file is None else read_allocations(file, log)
        self._entries = read.entries
        self._unreadable = read.unreadable
        """Unreadable entries of pods with processes when that was last observed."""
        self._complete = read.complete
        """Whether the record has all that this node's pods were allocated."""
        self._on_disk = frozenset(self._entries)
        """What the file has at least."""
        self.moved = frozenset[tuple[str, str, str]]()
        """Containers (`container_key`) whose MIG instances the driver has shown elsewhere since this agent started."""
        self._admitting: list[AgentAllocation] = []
        """Pending `Allocate` calls, not on record yet: their devices must not count as free."""

    # Queries

    @property
    def unkept(self) -> str:
        """Why the record could not be written, so that nothing is offered until `retry` finds room; empty else."""
        return self._unkept

    @property
    def closed(self) -> str:
        """Why nothing more is offered: the record cannot be written, or what a pod uses is lost; empty else."""
        return self._unkept or self._unknown

    @property
    def entries(self) -> tuple[AgentAllocation, ...]:
        """The recorded allocations."""
        return self._entries

    @property
    def allocated(self) -> tuple[AgentAllocation, ...]:
        """The recorded allocations, and those in progress."""
        return (*self._entries, *self._admitting)

    def allocated_ids(self, resource: str) -> frozenset[str]:
        """Return the ids of a resource that are allocated or being allocated.

        A kubelet that allocates one of them again has forgotten the first allocation, or never used it.
        """
        return frozenset(name for each in self.allocated if each.resource == resource for name in each.ids)

    @property
    def by_cdi(self) -> bool:
        """Whether the runtime is handed CDI names at the next start of some container."""
        return any(DeviceInjection(strategies=each.strategies).cdi for each in self.allocated)

    def started_pod(self, uid: str) -> StartedPod | None:
        """Return the shares that a pod's containers were started with; None for none."""
        return started_pod(self._entries, uid)

    @property
    def resources(self) -> frozenset[str]:
        """The resources with allocations; their plugins are called before each start of a container."""
        return frozenset(each.resource for each in self._entries)

    def next_ns(self) -> int:
        """Return the time of an allocation: later than all on record, even if the clock was set back."""
        return max(self._times.now_ns(), 1 + max((each.at_ns for each in self.allocated), default=0))

    # Changes

    async def observe_unknown_uses(self) -> Mapping[str, UnknownUse]:
        """Observe and return the pods of which it is not known what they use, by UID; `closed` names them from then on.

        They are unknown as long as their processes run: their entries were unreadable when this agent started; not
        those that were recorded anew, nor of pods that the API server still has: what these use is adopted from the
        kubelet's record. Or neither record had them. Entries of containers that use nothing, yet or any more, are
        removed.
        """
        self._unreadable = still_unrecorded(self._unreadable, self._entries)
        unnamed = tuple(each for each in self._entries if uses_unknown(each))
        uids = frozenset(each.uid for each in self._unreadable).union(each.uid for each in unnamed)
        running = await self.observer.running(uids) if uids else uids
        self._unreadable = frozenset(each for each in self._unreadable if each.uid in running)
        living = {uid: pod for uid, pod in self.observer.pods(uids).items() if not pod.ended}
        unknown = {uid: UnknownUse(uid, deleted=True) for uid in running.difference(living)}
        unnamed = await self._without_idle(unnamed, living)
        known = living if self._view.blind else living.keys() & running
        unknown |= {each.uid: UnknownUse(each.pod, deleted=False) for each in unnamed if each.uid in known}
        before, self._unknown = self._unknown, unknown_uses(unknown.values())
        if self._unknown != before:
            self._log.warning("allocations_unknown", reason=self._unknown, pods=sorted(unknown))
            self._wake()
        return unknown

    async def _without_idle(
        self, unnamed: tuple[AgentAllocation, ...], pods: Mapping[str, GatePod]
    ) -> tuple[AgentAllocation, ...]:
        """Return these entries but those whose containers use nothing yet or any more, which are removed."""
        asked = frozenset((each.uid, each.container) for each in unnamed)
        processes = None if self._view.blind else await self.observer.running_containers(asked)
        idle = frozenset(each for each in unnamed if each.uid in pods and is_idle(each, pods[each.uid], processes))
        if idle:
            self._keep_in_memory(tuple(each for each in self._entries if each not in idle))
        return tuple(each for each in unnamed if each not in idle)

    @contextlib.contextmanager
    def admitting(self, new: AgentAllocation) -> Iterator[None]:
        """Count an allocation while it is decided."""
        self._admitting.append(new)
        try:
            yield
        finally:
            self._admitting.remove(new)

    def keep(self, record: tuple[AgentAllocation, ...]) -> None:
        """Replace the record, after writing it to disk.

        A container that is restarted on a full disk needs nothing written: the file has its entry.

        Raises:
            Unavailable: it cannot be written; the former one stays.

        """
        if record != self._entries:
            try:
                self._write(record)
            except Unavailable:
                if not self._on_disk.issuperset(record):
                    raise
            self._entries = record

    def retry(self) -> None:
        """Write the record again where that failed; see `unkept`.

        It must leave room for more: where it alone can be written, the next pod would fail, and the one after it.
        """
        if self._unkept and self._file is not None:
            with contextlib.suppress(Unavailable):
                self._write(self._entries)
                require_room_for_more(self._file)
                self._unkept = ""

    def _write(self, record: tuple[AgentAllocation, ...]) -> None:
        if self._file is None:
            return
        try:
            write_allocations(self._file, record)
        except Unavailable as error:
            before, self._unkept = self._unkept, str(error)
            if not before:
                self._log.error("allocations_not_kept", reason=self._unkept)
                self._wake()
            raise
        self._on_disk = frozenset(record)

    def _keep_in_memory(self, record: tuple[AgentAllocation, ...]) -> None:
        """Replace the record, also where it cannot be written: the file has entries too many, or older ones, then."""
        with contextlib.suppress(Unavailable):
            self.keep(record)
        self._entries = record

    def learn(self, record: tuple[AgentAllocation, ...]) -> None:
        """Take a record that differs only in the pods of its entries; it is written with the next change."""
        self._entries = record

    def follow(self, inventory: Inventory) -> None:
        """Record where the driver has the MIG instances now that containers were given by UUID (`relocated`)."""
        after = relocated(self._entries, inventory, self.next_ns())
        self.moved = (self.moved | moved(self._entries, after)) & {each.container_key for each in after}
        self._keep_in_memory(after)

    def note_uuids(self, resource: str, ids: Iterable[str], uuids: tuple[str, ...]) -> None:
        """Record the UUIDs by which an `Allocate` call that is in progress will name the devices of a share.

        Raises:
            Unavailable: the record cannot be written.

        """
        own = (resource, tuple(sorted(ids)))
        self.keep(
            tuple(
                msgspec.structs.replace(each, uuids=uuids)
                if each.presumed and (each.resource, each.ids) == own
                else each
                for each in self._entries
            )
        )

    def complete(self, assigned: Assigned, uses: AssignedDevices, revoked: Callable[[str], bool]) -> None:
        """Record the shares of started containers (`core.deviceplugin.allocations.agentallocations.completed`).

        Raises:
            Unavailable: the record cannot be written.

        """
        self.keep(completed(self._entries, assigned, uses, revoked))

    def clear_presumed_uses(self, resource: str, ids: Iterable[str], unassigned: Container[str]) -> None:
        """Count nothing as used of the allocations of pods without an assignment (`lastgate.without_unassigned`).

        Guessed entries are safe to drop: `Gate.start` records the real ones before a container starts.

        Args:
            resource: of the ids.
            ids: those that the kubelet allocated.
            unassigned: pods (`namespace/name`) that were not allowed to start.

        Raises:
            Unavailable: the record cannot be written.

        """
        self.keep(lastgate.without_unassigned(self._entries, resource, tuple(sorted(ids)), unassigned))

    def void_presumed(self, resource: str, ids: tuple[str, ...]) -> None:
        """Count nothing as used of a container that was answered with another's devices (`lastgate.without_presumed`).

        Raises:
            Unavailable: the record cannot be written.

        """
        self.keep(lastgate.without_presumed(self._entries, resource, ids))

    def release(self, *, complete: bool = False) -> None:
        """Release the allocations of ended pods without any process left.

        If the disk cannot be written the file has too many entries, which the next agent releases.

        Args:
            complete: whether the view was just refreshed.

        """
        uids = frozenset(each.uid for each in self._entries if each.uid)
        pods = self.observer.pods(uids)
        ended = frozenset(uid for uid in uids if uid not in pods or pods[uid].ended)
        if ended or not all(each.pod for each in self._entries):
            observed = GateObservation(pods=pods, running=self._view.running(ended), blind=self._view.blind)
            left = lastgate.release(self._entries, observed, complete=complete)
            self._keep_in_memory(left)

    async def clean_up(
        self,
        uses_of: Callable[[KubeletAllocation], tuple[AllocatedDevice, ...]],
        daemons: Container[str] = (),
        strategies: tuple[ListStrategy, ...] = (),
    ) -> None:
        """Release the allocations of ended pods, record unrecorded ones of the others, and complete former entries.

        Args:
            uses_of: returns what a container uses by its ids; nothing where that is not known yet.
            daemons: keys of the MPS daemons on record.
            strategies: the device list strategies now; empty while they are not known.

        Raises:
            Unavailable: the kubelet's record cannot be read.

        """
        # 1. Release the allocations of ended pods; where processes cannot be observed, the API server decides.
        complete = self._view.blind and await self.observer.refresh()
        allocated = await self._view.devices_of_lasting_containers()
        self.release(complete=complete)
        if not self._complete:
            of_all = await self._view.devices_of_all_containers()
            pods = self.observer.pods({each.uid for each in of_all})
            allocated += tuple(initial_by_name(of_all, pods))
            allocated += await self._unrecorded((*allocated, *of_all))
        # 2. Find the pods of unclaimed answers; one in the kubelet's record is for an existing pod.
        running = await self._running_vague(allocated)
        observed, late = await self._observed(), self._unclaimed()
        if any(map(observed.recorded_for_unobserved_pod, late)):
            if not await self.observer.refresh():
                return
            observed = await self._observed()
        known = tuple(named(each, observed) if each in late else each for each in self._entries)
        kept = tuple(each for each in known if each.uid or each not in late)
        kept = without_known(kept, allocated, uses_of)
        if not self._complete:
            kept += await self._unassigned(kept, await self._view.devices_of_all_containers(), uses_of)
        # 3. Adopt allocations made before there was a record, and complete entries of former versions.
        pods = self.observer.pods({each.uid for each in allocated})
        new = tuple(adopted(kept, allocated, uses_of, pods, self.capacity(), self.next_ns()))
        for each in new:
            self._log.info("allocation_adopted", pod=each.pod, resource=each.resource, ids=each.ids)
        every = (*kept, *new)
        pods = self.observer.pods({each.uid for each in every})
        every = self._with_answers(every)
        found = supplemented(every, pods, assigned_uses(every, allocated, uses_of), running, daemons)
        self._keep_in_memory(with_strategies(found, strategies))
        if not self._complete:
            # A file without entries, too, says from now on that nothing else was allocated.
            with contextlib.suppress(Unavailable):
                self._write(self._entries)
                self._complete = True

    def know_answer(self, holder: AgentAllocation) -> None:
        """Record what `Allocate` answered for a container that is about to start, where its entry lacks that.

        Raises:
            Unavailable: the kubelet's checkpoint does not tell it now, so that the container may get another's devices.

        """
        own = latest(self._entries, holder)
        if own is None or own.answer_known:
            return
        (new,) = self._with_answers((of_pod(own, holder),))
        if not new.answer_known:
            raise Unavailable(
                holder.holder,
                found="it is not recorded what it was answered, and the kubelet's checkpoint does not tell it now",
                hint="the kubelet retries",
            )
        self._keep_in_memory(tuple(new if each is own else each for each in self._entries))

    def _with_answers(self, record: tuple[AgentAllocation, ...]) -> tuple[AgentAllocation, ...]:
        if all(each.answer_known or not each.pod for each in record):
            return record
        return with_answers(record, self._view.responses(), self.capacity())

    async def _unrecorded(self, allocated: tuple[KubeletAllocation, ...]) -> tuple[KubeletAllocation, ...]:
        """Return the containers with devices that both records lack while they run, without ids."""
        pods, view = self.observer.pods(self._view.by_uid()), self._view
        found = unrecorded(self._entries, allocated, pods, view.has_lost, view.node(), blind=view.blind)
        running = await self.observer.running_containers((each.uid, each.container) for each in found)
        return tuple(each for each in found if (each.uid, each.container) in running)

    async def _unassigned(
        self,
        record: tuple[AgentAllocation, ...],
        allocated: tuple[KubeletAllocation, ...],
        uses_of: Callable[[KubeletAllocation], tuple[AllocatedDevice, ...]],
    ) -> tuple[AgentAllocation, ...]:
        """Return entries for containers with units that run, and whose assignment does not count any more."""
        pods, view = self.observer.pods({each.uid for each in allocated}), self._view
        found = unassigned(record, allocated, uses_of, pods, self.next_ns(), blind=view.blind)
        running = await self.observer.running_containers((each.uid, each.container) for each in found)
        return tuple(each for each in found if (each.uid, each.container) in running)

    async def _running_vague(self, allocated: Iterable[KubeletAllocation]) -> frozenset[str]:
        """Return the pods with processes of which it may be unknown whether an MPS daemon serves them."""
        known = {each.uid for each in self._entries if not is_vague(each)}
        uids = {each.uid for each in self._entries}.union(each.uid for each in allocated) - known
        return await asyncio.to_thread(self._view.running, uids) if uids else frozenset()

    async def _observed(self) -> GateObservation:
        return await self.observer.observe({each.uid for each in self._entries})

    def _unclaimed(self) -> frozenset[AgentAllocation]:
        """Return the answers without a known pod for a minute."""
        now_s, nameless = self._times.clock_s(), [each for each in self._entries if not each.uid]
        self._unclaimed_s = {each: self._unclaimed_s.get(each, now_s) for each in nameless}
        return frozenset(each for each, since_s in self._unclaimed_s.items() if now_s - since_s >= _UNCLAIMED_S)
