"""The last gate before a container gets a device: may it be allocated, and may the container start?

`core.deviceplugin.allocations.lastgate` decides; here the conflicting pods are observed, and the record is written to
disk before a call is answered (docs/allocation.md).
"""

import asyncio
from collections.abc import Iterable
from typing import Protocol

import msgspec

from tessera.agent.agenttimes import AgentTimes
from tessera.agent.deviceplugin.allocations.allocationrecord import AllocationRecord
from tessera.agent.deviceplugin.allocations.refusals import Refusals
from tessera.agent.pods.podsview import is_ended
from tessera.api.kubernetes.podstates import created_ns
from tessera.core.deviceplugin.allocations import lastgate
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice, latest, replaces
from tessera.core.deviceplugin.allocations.clashes import clashes
from tessera.core.deviceplugin.allocations.gateobservation import GateObservation, GatePod
from tessera.core.deviceplugin.allocations.lastgate import GateDecision
from tessera.core.deviceplugin.allocations.leftovers import DeviceProcess, leftovers
from tessera.core.deviceplugin.allocations.matching import AssignedRequest
from tessera.core.node.nodesharing import ListStrategy
from tessera.core.workload.resources import SHARE_RESOURCES
from tessera.errors import Conflict, Unavailable
from tessera.log import Logger

__all__ = ["Gate", "GpuProcesses"]

_TIMES = AgentTimes()
_RETRY_S = 0.1


class GpuProcesses(Protocol):
    """The processes of pods that the driver lists on GPUs; `DeviceProcesses` is one."""

    async def on(self, gpus: Iterable[str]) -> tuple[DeviceProcess, ...]:
        """Return the processes of pods on GPUs, by UUID."""


class Gate:
    """Decides each allocation and each start of a container.

    Args:
        record: the allocations on this node.
        processes: on the devices that a container is about to use.
        log: for refusals.
        times: the clock for durations, and how long to wait for pods that terminate.

    """

    def __init__(
        self, record: AllocationRecord, processes: GpuProcesses, log: Logger, *, times: AgentTimes = _TIMES
    ) -> None:
        self.record = record
        self.view = record.observer.view
        self.times = times
        self.refusals = Refusals(record, self.view, record.capacity, times.clock_s)
        self._observer = record.observer
        self._capacity = record.capacity
        self._processes = processes
        self._log = log

    async def admit(
        self,
        resource: str,
        ids: Iterable[str],
        uses: tuple[AllocatedDevice, ...] = (),
        strategies: tuple[ListStrategy, ...] = (),
        indices: tuple[str, ...] = (),
        meant: AssignedRequest | None = None,
    ) -> None:
        """Record the allocation that `Allocate` is about to return, or refuse it.

        Args:
            resource: of the ids.
            ids: those that the kubelet chose.
            uses: the devices that the answer names.
            strategies: how it names them.
            indices: the driver's indices of the devices, where it names them by these.
            meant: the request whose shares the answer has (`lastgate.admit`).

        Raises:
            Conflict: a living pod has one of the devices, or an overlapping one.
            Unavailable: the record cannot be written.

        """
        presumed = resource in SHARE_RESOURCES
        new = AgentAllocation(
            resource=resource,
            ids=tuple(sorted(ids)),
            uses=uses,
            at_ns=self.record.next_ns(),
            presumed=presumed,
            strategies=strategies,
            indices=indices,
            answer_known=True,
        )
        # 1. Count it from now on: observing pods takes time.
        with self.record.admitting(new):
            # 2. Observe the conflicting pods.
            observed = await self._observe_rivals(new, ids=True, admitting=True)
            # 3. Decide, and write the record.
            own = None if meant is None else self._container_of(meant)
            verdict = lastgate.admit(self.record.entries, new, observed, self._capacity(), own)
            self._follow(verdict, new)

    def _container_of(self, request: AssignedRequest) -> AgentAllocation:
        """Return the container of a request as the record names it, without devices."""
        key, pod = request.key, self._observer.pods({request.uid}).get(request.uid, GatePod(name=""))
        return AgentAllocation(
            resource=key.resource,
            ids=(),
            uid=request.uid,
            pod=f"{key.namespace}/{key.pod}",
            container=key.container,
            initial=request.initial,
            order=pod.place(key.container),
        )

    async def holder(self, resource: str, ids: Iterable[str]) -> AgentAllocation:
        """Return the container that `PreStartContainer` is called for with these ids, without what it uses.

        Raises:
            Conflict: the kubelet allocated them to two living pods.
            Unavailable: its record does not show them, or nothing tells what the container was answered.

        """
        requested = tuple(sorted(ids))
        # 1. Find the containers with these ids; of two pods one may be terminating.
        found = await self._holders(resource, requested)
        # 2. Remember created later: the call does not say which pod it is for.
        pods = self.view.by_uid()
        created = {each.uid: created_ns(pods[each.uid]) for each in found if each.uid in pods}
        later = lastgate.later_holders(found, self.record.entries, created)
        self.refusals.note_duplicates(resource, requested, later)
        # 3. Answer if there is exactly one.
        if not found:
            listed = (
                each
                for each in await self.view.allocated()
                if (each.resource, each.device_ids) == (resource, requested)
            )
            absent = min((each.uid for each in listed if each.uid not in pods), default="")
            why = "the kubelet's checkpoint does not list these devices for any container yet"
            if absent:
                why = f"the API server does not have pod {absent}, for which the kubelet's checkpoint lists them"
            raise Unavailable(f"{len(requested)} devices of {resource}", found=why, hint="the kubelet retries")
        if later:
            raise Conflict(
                f"device {requested[0]} of {resource}",
                found=f"the kubelet allocated it to pods {' and '.join(sorted({each.pod for each in found}))}",
                hint=f"delete {' and '.join(sorted({each.pod for each, _ in later}))}, created later",
            )
        self.record.know_answer(found[0])
        return found[0]

    async def require_holder(self, holder: AgentAllocation) -> None:
        """Check that ids are still a container's: a kubelet may give them to the next pod while this one waits.

        Raises:
            Conflict: another pod has them.
            Unavailable: as `holder`.

        """
        now = await self.holder(holder.resource, holder.ids)
        if now.uid != holder.uid:
            found = f"the kubelet gave its devices of {holder.resource} to {now.pod} while they were created"
            raise Conflict(f"pod {holder.pod}, container {holder.container}", found=found, hint="recreate the pod")

    async def forget_former(self, starting: AgentAllocation | None = None) -> bool:
        """Forget what containers had before the kubelet lost its record, once they have ended.

        It has admitted them again since, with other ids, or admits them later: then they must not be in the way of
        others or of themselves, nor be held to what they had.

        Args:
            starting: a container that is about to start, so that it does not run, with the ids that it has now.

        Returns:
            Whether there were any.

        Raises:
            Unavailable: the record cannot be written, or the kubelet's cannot be read.

        """
        found = await self._former_entries()
        if found:
            pods = self._observer.pods({each.uid for each in found})
            users = lastgate.possible_users(found, pods, starting)
            running = await self._observer.running_containers(frozenset().union(*users.values()))
            # One that was admitted and started meanwhile is in the kubelet's record by now.
            found &= await self._former_entries()
            found = frozenset(each for each in found if running.isdisjoint(users[each]))
        self.record.keep(tuple(each for each in self.record.entries if each not in found))
        return bool(found)

    async def _former_entries(self) -> frozenset[AgentAllocation]:
        ids = {each.container_key: each.device_ids for each in await self.view.allocated()}
        named = (each.container_key for each in self.record.entries if each.pod)
        lost = frozenset(key for key in named if key not in ids and self.view.has_lost(*key))
        return lastgate.former_entries(self.record.entries, ids, lost)

    async def start(self, holder: AgentAllocation, uses: tuple[AllocatedDevice, ...], *, ids: bool) -> None:
        """Record what a container is about to use, or refuse it; waits briefly for terminating pods.

        Args:
            holder: as returned by `holder`, with the pod's assignment if it has one.
            uses: the devices.
            ids: whether ids stand for devices, not for units, so that ids of other pods matter.

        Raises:
            Conflict: a living pod has what it would use.
            Unavailable: the record cannot be written, or it is not known what processes of deleted pods use.

        """
        known = latest(self.record.entries, holder)
        if known is None or not known.started:
            await self._require_known_uses(holder)
            await self._record_leftovers(msgspec.structs.replace(holder, uses=uses))
        # 1. A restarted container is not later than before.
        before_ns = (each.at_ns for each in self.record.entries if replaces(holder, each))
        at_ns, own = min(before_ns, default=self.record.next_ns()), latest(self.record.entries, holder)
        answered = ("strategies", "indices", "uuids", "answer_known")
        answer = {} if own is None else {name: getattr(own, name) for name in answered}
        new = msgspec.structs.replace(holder, uses=uses, at_ns=at_ns, **answer)
        # 2. Decide, a little later if a conflicting pod is terminating.
        loop = asyncio.get_running_loop()
        last_s = loop.time() + self.times.termination_s
        while True:
            observed = await self._observe_rivals(new, ids=ids)
            record, moved = self.record.entries, self.record.moved
            verdict = lastgate.start(record, new, observed, self._capacity(), ids=ids, moved=moved)
            if not verdict.wait or loop.time() > last_s:
                break
            await asyncio.sleep(_RETRY_S)
        # 3. Write the record, without an await since the decision.
        if verdict.refused is not None:
            rival = "" if verdict.refused.other is None else verdict.refused.other.uid
            self.refusals.refuse(holder, verdict.refused.cause, rival)
        self._follow(verdict, new)

    async def _require_known_uses(self, holder: AgentAllocation) -> None:
        """Refuse while it is not known what processes of deleted pods use, and for a share what another pod uses.

        Nobody is admitted meanwhile, and a device by name was free when its pod was admitted. Memory is compared at a
        container's start alone: one that started before had it. A pod whose other containers run is not evicted.

        Raises:
            Unavailable: there are such pods.

        """
        unknown = await self.record.observe_unknown_uses()
        pod = self._observer.pods({holder.uid}).get(holder.uid, GatePod(name=holder.pod))
        first = holder.resource in SHARE_RESOURCES and holder.container not in pod.created
        rivals = [each for uid, each in unknown.items() if each.deleted or (first and uid != holder.uid)]
        if rivals:
            found = f"pod {min(rivals).pod} {min(rivals).cause}"
            if min(rivals).deleted or not pod.created & pod.lasting:
                self.refusals.refuse(holder, found)
            raise Unavailable(
                f"{holder.resource} for {holder.pod}", found=found, hint="the kubelet retries; it starts when that ends"
            )

    async def _record_leftovers(self, new: AgentAllocation) -> None:
        """Record processes of ended pods on devices that a container is about to use, where the record lacks them.

        Raises:
            Unavailable: the driver or the API server does not answer, or the record cannot be written.

        """
        processes = await self._processes.on({use.device.gpu for use in new.uses})
        if not leftovers(self.record.entries, new, processes, ()):
            return
        # The watch may be late: only a list of all pods tells which of them have ended.
        if not await self._observer.refresh():
            raise Unavailable(
                f"{new.resource} for {new.pod}",
                found="processes use its device, and the API server does not say whether their pods have ended",
                hint="the kubelet retries",
            )
        if found := self._unrecorded(new, processes):
            self.record.keep((*self.record.entries, *found))
            self._log.warning("leftovers_found", pods={each.uid: each.container for each in found})

    def _unrecorded(self, new: AgentAllocation, processes: Iterable[DeviceProcess]) -> tuple[AgentAllocation, ...]:
        living = {uid for uid, pod in self.view.by_uid().items() if not is_ended(pod)}
        return leftovers(self.record.entries, new, processes, living)

    async def _holders(self, resource: str, ids: tuple[str, ...]) -> tuple[AgentAllocation, ...]:
        """Return the containers with these ids; of several pods those that are not terminating."""
        loop = asyncio.get_running_loop()
        last_s = loop.time() + self.times.termination_s
        found = lastgate.holders(resource, ids, await self._observe())
        while len({each.uid for each in found}) != 1:
            await self._observer.refresh()
            found = lastgate.holders(resource, ids, await self._observe())
            if len({each.uid for each in found}) <= 1 or loop.time() > last_s:
                break
            await asyncio.sleep(_RETRY_S)  # the terminating pod is soon observed to have ended
        return found

    async def _observe_rivals(self, new: AgentAllocation, *, ids: bool, admitting: bool = False) -> GateObservation:
        """Return the observed pods that conflict with an allocation; nothing where none does.

        When this returns no other pod can conflict: pods that were not observed do not exist.
        """
        observed, checked = GateObservation(), frozenset[AgentAllocation]()
        while not (rivals := self._rivals(new, ids=ids)) <= checked:
            running = await self._observer.running(frozenset(each.uid for each in rivals), admitting=admitting)
            observed, checked = await self._observe(running), rivals
        return observed

    def _rivals(self, new: AgentAllocation, *, ids: bool) -> frozenset[AgentAllocation]:
        found = clashes(self.record.entries, new, self._capacity(), ids=ids)
        return frozenset(each.other for each in found if each.other is not None)

    async def _observe(self, running: frozenset[str] = frozenset()) -> GateObservation:
        return await self._observer.observe({each.uid for each in self.record.entries}, running)

    def _follow(self, verdict: GateDecision, new: AgentAllocation) -> None:
        """Replace the record, on disk before a call is answered.

        Raises:
            Conflict: the allocation is refused.
            Unavailable: the record cannot be written; the former one stays.

        """
        clash = verdict.refused
        if clash is None:
            self.record.keep(verdict.record)
            return
        self.record.learn(verdict.record)
        self.refusals.note_survivor(clash)
        self._log.warning(
            "allocation_refused", pod=new.pod, resource=new.resource, device=clash.text, holder=clash.holder
        )
        raise Conflict(
            f"{new.resource} for {new.pod or 'a pod'}",
            found=clash.cause,
            hint="the kubelet retries a container; a pod that failed admission must be recreated",
        )
