"""The last gate before a container gets a device: keeps the record of what was allocated, and looks at the pods.

What may be allocated and what may start is decided by `core.deviceplugin.lastgate`; here the pods in the way are looked
at, and the record is on disk before an answer is given (docs/decisions/0014-last-gate.md).
"""

import asyncio
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from tessera.agent.deviceplugin.allocationsfile import read_allocations, write_allocations
from tessera.agent.deviceplugin.refusals import Refusals
from tessera.agent.pods.nodeview import PodsInView, by_uid, created_ns, evidence_of, is_ended, is_ending
from tessera.clients.kube import name_of, uid_of
from tessera.core.cluster.advertise import SHARE_RESOURCES, PluginDevice
from tessera.core.cluster.gpunodestate import UnhealthyDevice
from tessera.core.deviceplugin import lastgate
from tessera.core.deviceplugin.allocations import (
    Allocation,
    Assigned,
    AssignedUses,
    Clash,
    StartedPod,
    Use,
    clashes,
    completed,
    conflicts,
    replaces,
    started_pod,
    uses_of_devices,
)
from tessera.core.deviceplugin.lastgate import Evidence, PodEvidence, Verdict, named
from tessera.core.deviceplugin.matching import Held
from tessera.core.gpu.deviceids import DeviceId
from tessera.errors import Conflict, TesseraError, Unavailable
from tessera.log import Logger

__all__ = ["Gate"]

_TERMINATION_WAIT_S = 5.0
"""How long a container waits for the processes of one that is ending; the kubelet kills them after two seconds at
least, and tries again what was refused."""
_RETRY_S = 0.1
_UNCLAIMED_S = 60.0
"""An answer to `Allocate` that no container has used for so long was for a pod that the kubelet refused."""


class Gate:
    """The record of what was allocated, and its keeper.

    Args:
        view: the pods of this node.
        capacity: returns the memory in MiB that can be granted of each device.
        log: where refusals are logged.
        file: keeps the record over a restart of the agent; None keeps nothing.
        now_ns: the time, in nanoseconds since 1970.
        clock_s: a monotonic clock, for how long something lasts.

    """

    def __init__(
        self,
        view: PodsInView,
        capacity: Callable[[], Mapping[DeviceId, int]],
        log: Logger,
        *,
        file: Path | None = None,
        now_ns: Callable[[], int] = time.time_ns,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.view = view
        self._capacity = capacity
        self._log = log
        self._file = file
        self._now_ns = now_ns
        self._clock_s = clock_s
        self.refusals = Refusals(view, clock_s)
        """Containers that could not start."""
        self._unclaimed_s: dict[Allocation, float] = {}
        """Answers for which no pod is known, and since when they are seen."""
        self._entries = () if file is None else read_allocations(file, log)
        self._admitting: list[Allocation] = []
        """What `Allocate` is asked for and is not on record yet: it must not look free meanwhile."""
        self._survived = frozenset[str]()
        """UIDs of the pods that were in the way of others."""
        self._contested: tuple[tuple[Allocation, Clash], ...] = ()
        """Containers whose ids the kubelet gave to a pod that came before theirs as well."""

    @property
    def _given(self) -> tuple[Allocation, ...]:
        """What pods have, and what they are being given at this moment."""
        return (*self._entries, *self._admitting)

    @property
    def entries(self) -> tuple[Allocation, ...]:
        """What is allocated."""
        return self._entries

    def taken(self, resource: str) -> frozenset[str]:
        """Return the ids of a resource that pods have or are being given.

        A kubelet that offers one of them has forgotten it, or never used it.
        """
        return frozenset(name for each in self._given if each.resource == resource for name in each.ids)

    def unclaimed(self, resource: str) -> frozenset[str]:
        """Return the ids of a resource that `Allocate` was answered with, and for which no pod is known yet.

        They were for a pod that was refused if that is so for a minute.
        """
        pending = (each for each in self._entries if each.resource == resource and not each.uid)
        return frozenset(name for each in pending for name in each.ids)

    @property
    def by_name(self) -> frozenset[DeviceId]:
        """The devices that pods were allocated by name, or are being allocated, until their last process has ended."""
        named = (each for each in self._given if each.resource not in SHARE_RESOURCES)
        return frozenset(use.device for each in named for use in each.uses)

    @property
    def by_assignment(self) -> frozenset[DeviceId]:
        """The devices of which pods use what a server assigned, by this record and whatever is written on the pods."""
        assigned = (each for each in self._given if each.resource in SHARE_RESOURCES)
        return frozenset(use.device for each in assigned for use in each.uses)

    @property
    def left_behind(self) -> tuple[UnhealthyDevice, ...]:
        """The devices for which a pod was refused since processes of one that is gone use them."""
        self._survived &= {each.uid for each in self._entries}
        return lastgate.left_behind(self._entries, {uid for uid in self._survived if is_ended(self.view.find(uid))})

    def is_free(self, resource: str, device: PluginDevice) -> bool:
        """Return whether no pod has a device that is offered by name, under whatever name, nor one that overlaps it."""
        (use,) = uses_of_devices((device,))
        return not any(
            (each.resource == resource and device.id in each.ids) or any(use.excludes(other) for other in each.uses)
            for each in self._given
        )

    def recorded(self, holder: Allocation) -> tuple[Use, ...]:
        """Return what a container uses that was started with these ids, or what `Allocate` answered for them."""
        return next((each.uses for each in self._entries if each.ids == holder.ids and replaces(holder, each)), ())

    def started_pod(self, uid: str) -> StartedPod | None:
        """Return what a pod's containers were started with that goes by assignment; None where nothing was."""
        return started_pod(self._entries, uid)

    @property
    def resources(self) -> frozenset[str]:
        """The resources of which pods have something; their plugins are asked before each start of a container."""
        return frozenset(each.resource for each in self._entries)

    def knows(self, held: Held) -> bool:
        """Return whether it is known, and not guessed, what a container uses of what it holds."""
        pod = f"{held.namespace}/{held.pod}"
        return any(
            each.uses and not each.guessed
            for each in self._entries
            if (each.pod, each.container, each.resource) == (pod, held.container, held.resource)
        )

    def held(self) -> tuple[Held, ...]:
        """Return what containers have by this record."""
        return tuple(
            Held(namespace=namespace, pod=pod, container=each.container, resource=each.resource, device_ids=each.ids)
            for each in self._entries
            for namespace, slash, pod in [each.pod.partition("/")]
            if slash
        )

    async def admit(self, resource: str, ids: Iterable[str], uses: tuple[Use, ...] = ()) -> None:
        """Record the allocation that `Allocate` is about to answer, or refuse it.

        Raises:
            Conflict: a pod that lives has one of them, or a device that overlaps.
            Unavailable: the record cannot be written.

        """
        guessed = resource in SHARE_RESOURCES
        new = Allocation(resource=resource, ids=tuple(sorted(ids)), uses=uses, at_ns=self._next_ns(), guessed=guessed)
        self._admitting.append(new)
        try:
            seen = await self._evidence_about(new, ids=True)
            self._follow(lastgate.admit(self._entries, new, seen, self._capacity()), new)
        finally:
            self._admitting.remove(new)

    async def holder(self, resource: str, ids: Iterable[str]) -> Allocation:
        """Return for which container `PreStartContainer` is called with these ids, without what it uses.

        Raises:
            Conflict: the kubelet allocated them to two pods that live.
            Unavailable: its record does not show them.

        """
        desired = tuple(sorted(ids))
        loop = asyncio.get_running_loop()
        last_s = loop.time() + _TERMINATION_WAIT_S
        found = lastgate.holders(resource, desired, await self._evidence())
        while len({each.uid for each in found}) != 1:
            await self._refresh()
            found = lastgate.holders(resource, desired, await self._evidence())
            if not found or loop.time() > last_s:
                break
            await asyncio.sleep(_RETRY_S)  # the one that ends is soon seen to have ended
        created = {uid: created_ns(pod) for uid, pod in by_uid(self.view.pods()).items()}
        later = lastgate.contested(found, self._entries, created)
        others = (each for each in self._contested if (each[0].resource, each[0].ids) != (resource, desired))
        self._contested = (*others, *later)
        if not found:
            raise Unavailable(
                f"{len(desired)} devices of {resource}",
                found="the kubelet's record has no container with these device ids yet",
                hint="the kubelet tries again",
            )
        if later:
            raise Conflict(
                f"device {desired[0]} of {resource}",
                found=f"the kubelet allocated it to pods {' and '.join(sorted({each.pod for each in found}))}",
                hint=f"delete {' and '.join(sorted({each.pod for each, _ in later}))}, created later",
            )
        return found[0]

    async def start(self, holder: Allocation, uses: tuple[Use, ...], *, ids: bool) -> None:
        """Record what a container is about to use, or refuse it; waits a little for pods that are terminating.

        Args:
            holder: as `holder` gave it, with the pod's assignment where it goes by one.
            uses: the devices.
            ids: whether ids of others matter, which stand for devices and not for units.

        Raises:
            Conflict: a pod that lives has what it would use.
            Unavailable: the record cannot be written.

        """
        # What starts again is not later than before.
        before_ns = (each.at_ns for each in self._entries if replaces(holder, each))
        new = msgspec.structs.replace(holder, uses=uses, at_ns=min(before_ns, default=self._next_ns()))
        loop = asyncio.get_running_loop()
        last_s = loop.time() + _TERMINATION_WAIT_S
        while True:
            seen = await self._evidence_about(new, ids=ids)
            verdict = lastgate.start(self._entries, new, seen, self._capacity(), ids=ids)
            if not verdict.wait or loop.time() > last_s:
                break
            await asyncio.sleep(_RETRY_S)
        if verdict.refused is not None:
            rival = "" if verdict.refused.other is None else verdict.refused.other.uid
            self.refusals.add(holder, f"{verdict.refused.text} is used by {verdict.refused.holder}", rival)
        self._follow(verdict, new)
        self.refusals.remove(holder)

    async def _evidence_about(self, new: Allocation, *, ids: bool) -> Evidence:
        """Return what is seen of the pods that are in the way of an allocation; nothing where none is.

        Nobody else may be in its way when this returns: what was not looked for is not there.
        """
        seen, looked = Evidence(), frozenset[Allocation]()
        while not (rivals := self._rivals(new, ids=ids)) <= looked:
            uids = frozenset(each.uid for each in rivals)
            running = await asyncio.to_thread(self.view.running, uids)
            if not uids <= running:  # a running process is proof enough that a pod lives
                await self._refresh()
            seen, looked = await self._evidence(running), rivals
        return seen

    def _rivals(self, new: Allocation, *, ids: bool) -> frozenset[Allocation]:
        found = clashes(self._entries, new, self._capacity(), ids=ids)
        return frozenset(each.other for each in found if each.other is not None)

    async def _refresh(self) -> bool:
        """Read the pods anew, and return whether that was answered; if not, what was seen last counts."""
        try:
            await self.view.refresh()
        except (TesseraError, TimeoutError) as error:
            self._log.warning("pods_not_read", reason=str(error))
            return False
        return True

    async def _evidence(self, running: frozenset[str] = frozenset()) -> Evidence:
        """Return what is seen of the pods now.

        Args:
            running: UIDs of those that are seen to have processes, as far as that matters.

        """
        recorded = await self.view.allocated()
        uids = {each.uid for each in recorded} | {each.uid for each in self._entries}
        return Evidence(pods=self._pods(uids), running=running, blind=self.view.blind, recorded=recorded)

    def _pods(self, uids: Container[str]) -> dict[str, PodEvidence]:
        return {uid: evidence_of(pod) for uid, pod in by_uid(self.view.pods()).items() if uid in uids}

    def _follow(self, verdict: Verdict, new: Allocation) -> None:
        """Keep the record as it is to be, on disk before an answer is given.

        Raises:
            Conflict: the allocation is refused.
            Unavailable: the record cannot be written; it stays as it was.

        """
        clash = verdict.refused
        if clash is None:
            self._keep(verdict.record)
            return
        self._entries = verdict.record
        self._survived |= set() if clash.other is None else {clash.other.uid}
        holder, device = clash.holder, clash.text
        self._log.warning("allocation_refused", pod=new.pod, resource=new.resource, device=device, holder=holder)
        raise Conflict(
            f"{new.resource} for {new.pod or 'a pod'}",
            found=f"{device} is used by {holder}",
            hint="the kubelet tries again, or a Job or Deployment replaces the pod that failed",
        )

    # The record

    def release(self, *, complete: bool = False) -> None:
        """Let go of what pods had that have ended, and none of whose processes is left.

        A record on disk that cannot be written has more than is allocated, which a later agent lets go of.

        Args:
            complete: whether the view has just been refreshed.

        """
        uids = frozenset(each.uid for each in self._entries if each.uid)
        pods = self._pods(uids)
        ended = frozenset(uid for uid in uids if uid not in pods or pods[uid].ended)
        if ended:
            seen = Evidence(pods=pods, running=self.view.running(ended), blind=self.view.blind)
            left = lastgate.release(self._entries, seen, complete=complete)
            try:
                self._keep(left)
            except Unavailable as error:
                self._log.warning("release_not_kept", reason=str(error))
                self._entries = left

    async def tidy(self, uses_of: Callable[[Held], tuple[Use, ...]]) -> None:
        """Drop what ended pods had, and record what pods have of which nothing is recorded.

        Args:
            uses_of: returns what a container uses by the ids it holds; nothing where that is not known yet.

        Raises:
            Unavailable: the kubelet's record cannot be read, or this one not be written.

        """
        # Where no processes can be seen, what the API server has is all there is to go by.
        complete = self.view.blind and await self._refresh()
        held = await self.view.held()
        self.release(complete=complete)
        seen = await self._evidence()
        # An answer that the kubelet has recorded is for a pod, though the watch be late to show it.
        late = self._unclaimed()
        if any(map(seen.is_of_a_pod_unseen, late)):
            if not await self._refresh():
                return
            seen = await self._evidence()
        known = tuple(named(each, seen) if each in late else each for each in self._entries)
        kept = tuple(each for each in known if each.uid or each not in late)
        self._keep((*kept, *self._adopted(held, uses_of, kept)))

    def _unclaimed(self) -> frozenset[Allocation]:
        """Return the answers for which no pod has been known for a minute."""
        now_s, nameless = self._clock_s(), [each for each in self._entries if not each.uid]
        self._unclaimed_s = {each: self._unclaimed_s.get(each, now_s) for each in nameless}
        return frozenset(each for each, since_s in self._unclaimed_s.items() if now_s - since_s >= _UNCLAIMED_S)

    def _next_ns(self) -> int:
        """Return the time of an allocation: later than all on record, though the clock was set back since."""
        return max(self._now_ns(), 1 + max((each.at_ns for each in self._given), default=0))

    def _adopted(
        self, held: Iterable[Held], uses_of: Callable[[Held], tuple[Use, ...]], record: tuple[Allocation, ...]
    ) -> Iterator[Allocation]:
        """Yield entries for what containers have of which the record has nothing."""
        known = {(each.uid, each.container, each.resource) for each in record}
        pending = {(each.resource, each.ids) for each in record if not each.uid}
        pods = {name_of(pod): pod for pod in self.view.pods()}
        for each in held:
            pod = pods.get((each.namespace, each.pod), {})
            uid = uid_of(pod)
            if not uid or (uid, each.container, each.resource) in known or (each.resource, each.device_ids) in pending:
                continue
            uses = uses_of(each)
            if uses:
                entry = Allocation(
                    resource=each.resource,
                    ids=each.device_ids,
                    uses=uses,
                    uid=uid,
                    pod=f"{each.namespace}/{each.pod}",
                    container=each.container,
                    at_ns=created_ns(pod) or self._now_ns(),
                )
                self._log.info("allocation_adopted", pod=entry.pod, resource=entry.resource, ids=entry.ids)
                # Who is in the record already was first, however old the other pod is.
                late = any(clashes(record, entry, self._capacity(), ids=each.resource not in SHARE_RESOURCES))
                at_ns = max(entry.at_ns, self._next_ns()) if late else entry.at_ns
                yield msgspec.structs.replace(entry, at_ns=at_ns)

    def complete(self, assigned: Assigned, uses: AssignedUses, revoked: Callable[[str], bool]) -> None:
        """Record what started containers are assigned (`core.deviceplugin.allocations.completed`).

        Raises:
            Unavailable: the record cannot be written.

        """
        self._keep(completed(self._entries, assigned, uses, revoked))

    def clear_guessed_uses(self, resource: str, ids: Iterable[str], unassigned: Container[str]) -> None:
        """Let nothing be counted as used of what a container was allocated that nothing was assigned to.

        What a container was started with stays counted, whatever became of its pod's assignment since. What is only
        guessed is safe to let go: `start` records what it is before a container is started with it.

        Args:
            resource: of the ids.
            ids: what the kubelet gave it.
            unassigned: pods (`namespace/name`) that were refused to start.

        Raises:
            Unavailable: the record cannot be written.

        """
        own = (resource, tuple(sorted(ids)))
        self._keep(
            tuple(
                msgspec.structs.replace(each, uses=())
                if (each.resource, each.ids) == own
                and not each.started
                and (not each.uid or each.guessed or each.pod in unassigned)
                else each
                for each in self._entries
            )
        )

    def conflicts(self) -> tuple[tuple[Allocation, Clash], ...]:
        """Return what two pods have and cannot both have, each time the later one.

        The same ids are a conflict, also where they stand for units, when one of the pods is to start: nobody can tell
        which of them the kubelet asks for.
        """
        living = {uid for uid, pod in by_uid(self.view.pods()).items() if not is_ending(pod)}
        ending = {each.uid for each in self._entries} - living
        contested = (
            (later, clash)
            for later, clash in self._contested
            if later.uid in living and clash.other is not None and clash.other.uid in living
        )
        return (*contested, *conflicts(self._entries, self._capacity(), ending))

    def _keep(self, record: tuple[Allocation, ...]) -> None:
        """Take a record, once it is on disk.

        Raises:
            Unavailable: it cannot be written; the one before stays.

        """
        if record == self._entries:
            return
        if self._file is not None:
            write_allocations(self._file, record)
        self._entries = record
