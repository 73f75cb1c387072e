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
    read_allocations,
    require_room_for_more,
    write_allocations,
)
from tessera.agent.pods.observing import PodObserver
from tessera.core.deviceplugin.allocations import lastgate
from tessera.core.deviceplugin.allocations.adoption import (
    UsesOf,
    adopted,
    in_neither_record,
    lasting_or_running,
    unknown_shares,
    with_known_uses,
    with_lost_starts,
)
from tessera.core.deviceplugin.allocations.agentallocations import (
    AgentAllocation,
    Assigned,
    AssignedDevices,
    StartedPod,
    latest,
    started_pod,
    with_assignments,
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
    UnreadableEntry,
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
        self._log, self._wake = log, wake
        self._file = file
        self._times = times
        self._unkept = self._unknown = ""
        self._unclaimed_s: dict[AgentAllocation, float] = {}
        """Answers without a known pod, and when they were first observed."""
        self._entries: tuple[AgentAllocation, ...] = ()
        self._unreadable = frozenset[UnreadableEntry]()
        """Unreadable entries of pods with processes when that was last observed."""
        self._lost = False
        """Whether entries were lost, and what containers have was not recorded anew yet."""
        self._on_disk = frozenset[AgentAllocation]()
        """What the file has at least."""
        self.is_read = file is None
        """Whether the file was read, so that what former agents allocated is known; nothing is written before."""
        with contextlib.suppress(Unavailable):  # until `read` says so
            self.read()
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

    def read(self) -> None:
        """Read the file where that has not succeeded yet.

        Raises:
            Unavailable: it cannot be read; call again before anything is allocated or destroyed.

        """
        if self._file is not None and not self.is_read:
            self._entries, self._unreadable, self._lost = read_allocations(self._file, self._log)
            self._on_disk, self.is_read = frozenset(self._entries), True

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
        unknown |= {each.uid: UnknownUse.of(each) for each in unnamed if each.uid in known}
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
        if not self.is_read:
            raise Unavailable(f"record {self._file}", found="it is not read yet", hint="the agent tries again")
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

    def know_uses(self, uses_of: UsesOf) -> bool:
        """Record what containers use of which that was not known, as far as it is now; return whether there are any.

        Args:
            uses_of: what a container uses.

        """
        before = self._entries
        self._keep_in_memory(with_known_uses(before, uses_of))
        return self._entries != before

    def record_assignments(self, assigned: Assigned, uses: AssignedDevices, revoked: Callable[[str], bool]) -> None:
        """Record the shares of started containers (`core.deviceplugin.allocations.agentallocations.with_assignments`).

        Raises:
            Unavailable: the record cannot be written.

        """
        self.keep(with_assignments(self._entries, assigned, uses, revoked))

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

    def release(self, *, all_listed: bool = False) -> None:
        """Release the allocations of ended pods without any process left.

        If the disk cannot be written the file has too many entries, which the next agent releases.

        Args:
            all_listed: whether all pods were just read from the API server.

        """
        uids = frozenset(each.uid for each in self._entries if each.uid)
        pods = self.observer.pods(uids)
        ended = frozenset(uid for uid in uids if uid not in pods or pods[uid].ended)
        if ended or not all(each.pod for each in self._entries):
            observed = GateObservation(pods=pods, running=self._view.running(ended), blind=self._view.blind)
            left = lastgate.release(self._entries, observed, all_listed=all_listed)
            self._keep_in_memory(left)

    async def clean_up(
        self, uses_of: UsesOf, daemons: Container[str] = (), strategies: tuple[ListStrategy, ...] = ()
    ) -> None:
        """Release the allocations of ended pods, record unrecorded ones of the others, and complete former entries.

        Args:
            uses_of: what a container uses.
            daemons: keys of the MPS daemons on record.
            strategies: the device list strategies now; empty while they are not known.

        Raises:
            Unavailable: the kubelet's record cannot be read.

        """
        # 1. Release the allocations of ended pods; where processes cannot be observed, the API server decides.
        self.release(all_listed=self._view.blind and await self.observer.refresh())
        # 2. Observe what containers have, which of them run, and whose the unclaimed answers are.
        allocated = await self._view.devices_of_all_containers()
        running, with_processes = await self._running(allocated), await self._running_vague(allocated)
        observed, late = await self._observed(), self._unclaimed()
        if any(map(observed.recorded_for_unobserved_pod, late)):
            if not await self.observer.refresh():
                return
            observed = await self._observed()
        # 3. Record all that; without an await, as calls of the kubelet change the record, too.
        record = self._with_claimed(observed, late)
        record = self._with_adopted(record, allocated, uses_of, running)
        record = self._supplemented(record, allocated, uses_of, with_processes, daemons)
        self._keep_in_memory(with_strategies(record, strategies))
        self.know_uses(uses_of)
        self._note_adopted()

    async def _running(self, allocated: Iterable[KubeletAllocation]) -> frozenset[tuple[str, str]] | None:
        """Return the containers that may have processes, of those that the record may lack; None if not observed."""
        known = {each.container_key for each in self._entries if not (self._lost and each.presumed)}
        pods = self.observer.pods(self._view.by_uid()) if self._lost else {}
        asked = {each.container_key for each in allocated}
        asked |= {(uid, *each) for uid, pod in pods.items() for each in pod.requests}
        found = await self.observer.running_containers((uid, name) for uid, name, _ in asked - known)
        return None if self._view.blind else found

    def _with_claimed(self, observed: GateObservation, late: frozenset[AgentAllocation]) -> tuple[AgentAllocation, ...]:
        """Return the record with the pods of answers that nobody has claimed for a minute, or without the answers."""
        claimed = tuple(named(each, observed) if each in late else each for each in self._entries)
        return tuple(each for each in claimed if each.uid or each not in late)

    def _with_adopted(
        self,
        record: tuple[AgentAllocation, ...],
        allocated: tuple[KubeletAllocation, ...],
        uses_of: UsesOf,
        running: Container[tuple[str, str]] | None,
    ) -> tuple[AgentAllocation, ...]:
        """Return the record with what containers have that it lacks."""
        pods, view, next_ns = self.observer.pods(self._view.by_uid()), self._view, self.next_ns()
        found = tuple(lasting_or_running(allocated, record, pods, running))
        if self._lost:
            found += in_neither_record(record, allocated, pods, view.has_lost, view.node(), running)
            record = with_lost_starts(record, pods, running)
            record += unknown_shares(record, allocated, uses_of, pods, next_ns, running)
        new = tuple(adopted(record, found, uses_of, pods, self.capacity(), next_ns))
        for each in new:
            self._log.info("allocation_adopted", pod=each.pod, resource=each.resource, ids=each.ids)
        return (*record, *new)

    def _supplemented(
        self,
        record: tuple[AgentAllocation, ...],
        allocated: tuple[KubeletAllocation, ...],
        uses_of: UsesOf,
        with_processes: Container[str],
        daemons: Container[str],
    ) -> tuple[AgentAllocation, ...]:
        """Return the record with what entries of former versions lack."""
        record, pods = self._with_answers(record), self.observer.pods({each.uid for each in record})
        return supplemented(record, pods, assigned_uses(record, allocated, uses_of), with_processes, daemons)

    def _note_adopted(self) -> None:
        """Write a record that was lost, also one without entries: from now on it has all that is allocated."""
        if self._lost:
            with contextlib.suppress(Unavailable):
                self._write(self._entries)
                self._lost = False

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

    def with_answer_of(self, holder: AgentAllocation) -> tuple[AgentAllocation, ...]:
        """Return the record; where it lacks a container, with the UUIDs that the kubelet's checkpoint has for it."""
        if latest(self._entries, holder) is not None:
            return self._entries
        found = self._with_answers((msgspec.structs.replace(holder, started=True),))
        return (*self._entries, *(each for each in found if each.uuids))

    def _with_answers(self, record: tuple[AgentAllocation, ...]) -> tuple[AgentAllocation, ...]:
        if all(each.answer_known or not each.pod for each in record):
            return record
        return with_answers(record, self._view.responses(), self.capacity())

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
