"""Allocation of shares by assignment: the pod that an `Allocate` call is for, and what its container gets.

With CDI, `Allocate` returns a device name, and its specification is written when the kubelet has recorded the
holder of the device ids: before the container is created. Without CDI `Allocate` has to guess among equal
requests, and the assignments are exchanged afterwards. docs/decisions/0009-pod-identity-at-prestart.md says why.
"""

import asyncio
import contextlib
import math
from pathlib import Path
from typing import Protocol

from tessera.agent.deviceplugin.allocations.gate import Gate
from tessera.agent.deviceplugin.containers.assignedpods import AssignedPods
from tessera.agent.deviceplugin.containers.cdifolder import CdiFolder
from tessera.agent.deviceplugin.containers.exchanges import Exchanges
from tessera.agent.deviceplugin.containers.sharespecifications import Prepared, ShareSpecifications
from tessera.agent.deviceplugin.containers.unassignedpods import UnassignedPods
from tessera.agent.pods.nodepods import MissingFromRecord
from tessera.api.kubernetes.podstates import was_created
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.allocations.agentallocations import (
    AgentAllocation,
    AllocatedDevice,
    SignedAssignment,
    latest,
    with_assignment,
)
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation, RequestKey
from tessera.core.deviceplugin.allocations.matching import (
    ASSIGNED_HINT,
    Answer,
    AssignedRequest,
    Units,
    unserved,
)
from tessera.core.deviceplugin.allocations.readmission import (
    admits_again,
    by_processes,
    continued,
    forgotten,
    passed_over,
)
from tessera.core.deviceplugin.allocations.relocation import device_mismatch
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.core.deviceplugin.containers.injection import (
    SHARE_KIND,
    answered,
    by_cdi,
    container_response,
    share_name,
)
from tessera.core.gpu.inventory import Inventory
from tessera.core.node.liststrategies import DeviceInjection
from tessera.core.workload.resources import SHARE_RESOURCES
from tessera.errors import Conflict, TesseraError, Unavailable
from tessera.log import Logger

__all__ = ["DevicePreparer", "ShareAllocator"]

_RETRY_S = 0.05


class DevicePreparer(Protocol):
    """Prepares devices."""

    inventory: Inventory
    """The driver's last inventory."""

    async def prepare(self, shares: tuple[Share, ...]) -> Prepared:
        """Create the devices of shares, and return what a container with them gets."""

    def uses(self, shares: tuple[Share, ...]) -> tuple[AllocatedDevice, ...]:
        """Return the devices named by shares."""

    def mismatch(self, request: AssignedRequest) -> str:
        """Return why a GPU of a request does not match the pod's request; empty where all do."""

    def absent(self, request: AssignedRequest) -> str:
        """Return which GPU of a request is not there; empty where all are."""


class ShareAllocator:
    """Allocates resources whose pods carry an assignment.

    Args:
        gate: keeps two pods from the same device; observes the pods of this node.
        maker: prepares devices.
        pods: the valid assignments.
        folder: of the CDI specifications.
        log: for answers and exchanges.
        answers_file: keeps answers across a restart of the agent between the two calls; None keeps them in memory.

    """

    def __init__(
        self,
        gate: Gate,
        maker: DevicePreparer,
        pods: AssignedPods,
        folder: CdiFolder,
        log: Logger,
        *,
        answers_file: Path | None = None,
    ) -> None:
        self._injection = DeviceInjection()
        self._gate = gate
        self._view = gate.view
        self._maker = maker
        self._pods = pods
        self._specifications = ShareSpecifications(folder, log)
        self._log = log
        self._turn = asyncio.Lock()
        self._exchanges = Exchanges(self._view, pods, log, answers_file, gate.times.clock_s)
        self._missing = MissingFromRecord(gate.times.clock_s)
        self._unassigned = UnassignedPods(self._view, pods, gate.record)

    def count_in(self, share_unit_mib: int) -> None:
        """Set the unit of `aliyun.com/gpu-mem`, in MiB."""
        self._pods.count_in(share_unit_mib)

    def inject(self, injection: DeviceInjection) -> None:
        """Set how devices are injected."""
        self._injection = injection

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> ContainerResponse:
        """Return what the container of an unserved request of this size gets; with CDI a name, filled in later.

        Raises:
            Conflict: there is no unserved request of this size, or the ids are another pod's.
            Unavailable: the kubelet's record cannot be read, ours cannot be written, or GPUs are renumbered.

        """
        async with self._turn:
            injection = self._injection  # it may change meanwhile: answer and record have this one
            # 1. Choose a pod: the one that has waited longest for this many units.
            request = await self._pick((resource, frozenset(ids)), fixed=injection.fixed_at_allocate)
            # 2. Record the allocation, or refuse it; with CDI its devices are decided in `pre_start`.
            uses = self._maker.uses(request.shares) if injection.fixed_at_allocate else ()
            await self._gate.admit(resource, ids, uses, injection.strategies, meant=request)
            # 3. Without CDI the answer names the devices, so they must exist now.
            answer = Answer(
                ids=frozenset(ids),
                key=request.key,
                specification=request.specification,
                shares=request.shares,
                fixed=injection.fixed_at_allocate,
            )
            name = share_name(resource, ids)
            given = by_cdi(injection, SHARE_KIND, (name,))
            if injection.fixed_at_allocate:
                self._log.info("share_awaited", pod=str(request.key), resource=resource, call="Allocate")
                prepared = await self._maker.prepare(request.shares)
                self._require_same(request, uses)
                self._gate.record.note_uuids(resource, ids, prepared.visible)
                given = container_response(injection, given, prepared.visible, prepared.edits)
            # 4. Remember the chosen pod until the kubelet's record shows the holder.
            self._exchanges.remember(answer)
            self._log.info("share_allocated", resource=resource, units=len(ids), pod=str(request.key), share=name)
            return given

    async def pre_start(self, resource: str, ids: tuple[str, ...]) -> None:
        """Prepare the assigned devices of the container that holds these ids.

        Containers wait for their devices concurrently, and do not block `Allocate`.

        Raises:
            Conflict: it was answered with another pod's share, has no assignment of these units, another living pod
                has what it was assigned, or another pod has these ids by now.
            Unavailable: the kubelet's record does not show the holder, or GPUs are renumbered.

        """
        # 1. Find the container with these ids, and its assignment.
        holder = await self._gate.holder(resource, ids)
        await self.forget_former(holder)
        request = await self._assigned_request(holder, len(ids))
        # 2. If `Allocate` named the devices, correct the assignments to match.
        answer = self._exchanges.answer_for((resource, frozenset(ids)))
        named = answer is not None and answer.fixed
        injection = answered(self._gate.record.entries, holder, self._injection, named_at_allocate=named)
        fixed = injection.fixed_at_allocate
        if fixed:
            async with self._turn:
                request = await self._exchange(request, holder)
        self._check(holder, request, answer, fixed=fixed)
        # 3. Record what the container is about to use; no other living pod may have it.
        self._log.info("share_awaited", pod=str(request.key), resource=resource, call="PreStartContainer")
        holder = with_assignment(holder, self._pods.assignments(holder.uid).get(holder.uid, SignedAssignment()))
        uses = self._maker.uses(request.shares)
        await self._gate.start(holder, uses, ids=False)
        # 4. Create the devices, and write what the container runtime reads next, without an await since the checks.
        try:
            prepared = await self._maker.prepare(request.shares)
        except Conflict as error:  # not for want of an answer in time
            self._gate.refusals.refuse(holder, error.found)
            raise
        await self._gate.require_holder(holder)
        self._require_same(request, uses)
        if injection.cdi:
            self._specifications.write(share_name(resource, ids), prepared, dev_root=self._injection.dev_root)
        self._exchanges.use((resource, frozenset(ids)))
        self._gate.refusals.forget(holder)
        self._log.info("share_ready", pod=str(request.key), resource=resource, gpus=[s.gpu for s in request.shares])

    def _require_same(self, request: AssignedRequest, uses: tuple[AllocatedDevice, ...]) -> None:
        """Check that the GPUs of a request are those that were recorded for it: it names them by index.

        Raises:
            Unavailable: they are others by now.

        """
        if self._maker.uses(request.shares) != uses:
            found = "its GPUs were renumbered while they were prepared"
            raise Unavailable(str(request.key), found=found, hint="the kubelet tries again")

    def _check(self, holder: AgentAllocation, request: AssignedRequest, answer: Answer | None, *, fixed: bool) -> None:
        """Check that a container starts with what its pod requested, and with what `Allocate` answered.

        Raises:
            Conflict: GPUs were exchanged or renumbered since, which does not change the devices of a container; one is
                not there any more; or the answer is lost.

        """
        why = self._maker.mismatch(request) or self._maker.absent(request)
        if fixed:
            self._gate.record.follow(self._maker.inventory)
            now = {use.device for use in self._maker.uses(request.shares)}
            # A container that ran has its assignment written; of one that never did only this record knows the answer.
            never = not was_created(self._view.find(holder.uid) or {}, holder.container)
            record = self._gate.record.with_answer_of(holder)
            unanswered = never and answer is None
            why = device_mismatch(record, holder, now, self._maker.inventory, unanswered=unanswered) or why
        if why:
            self._gate.refusals.refuse(holder, why)
            raise Conflict(
                f"pod {holder.pod}, container {holder.container}", found=why, hint="delete and recreate the pod"
            )

    async def clean_up(self) -> None:
        """Remove unused specifications, forget unclaimed answers, and repair assignments.

        While a running pod may be missing from the kubelet's record (`MissingFromRecord`) nothing is removed.

        Raises:
            Unavailable: the kubelet's record or the API cannot be read.

        """
        self._unassigned.forget_ended()
        async with self._turn:
            allocated = await self._view.devices_of_lasting_containers()
            readable = self._view.checkpoint_is_readable
            if self._missing.pods(self._pods.objects(), allocated, SHARE_RESOURCES, is_checkpoint=readable):
                return
            await self.forget_former()
            await self._find_unassigned(allocated)
            requests = {each.container_key: each for each in self.assigned_requests()}
            uses = {key: self._maker.uses(each.shares) for key, each in requests.items()}
            self._gate.record.record_assignments(self._pods.assignments(), uses, self._pods.revoked)
            self._exchanges.forget_unheld(await self._exchanges.recorded())
            waiting = frozenset(share_name(each.key.resource, each.ids) for each in self._exchanges.answers)
            self._specifications.keep(waiting.union(share_name(each.resource, each.device_ids) for each in allocated))
            if self._injection.fixed_at_allocate:
                await self._repair(allocated)

    async def _find_unassigned(self, allocated: tuple[KubeletAllocation, ...]) -> None:
        """Find pods with units and without an assignment also before they start: their image may never be pulled.

        An assignment is written when a pod is bound, so a list read after the kubelet's record includes it.
        """
        if self._unassigned.among(allocated, self.assigned_requests()) and not await self._refreshed_s():
            self._unassigned.note(self._unassigned.among(allocated, self.assigned_requests()))

    async def repair(self) -> None:
        """Restore the assignments of running pods that were spoiled or whose keys are lost.

        Raises:
            TesseraError: the API server rejects it, or the kubelet's record cannot be read.

        """
        ids = (
            {each.key: each.device_ids for each in await self._view.devices_of_lasting_containers()}
            if self._pods.lapsed
            else {}
        )
        await self._pods.repair(lambda request: self._has_started(request, ids.get(request.key, ())))

    def _has_started(self, request: AssignedRequest, ids: tuple[str, ...]) -> bool:
        """Return whether by our record a container was started with its assignment, and with these ids."""
        own = request.container_key, ids, self._maker.uses(request.shares)
        entries = self._gate.record.entries
        return any(each.started and (each.container_key, each.ids, each.uses) == own for each in entries)

    async def _pick(self, units: Units, *, fixed: bool) -> AssignedRequest:
        """Return the request to answer.

        The kubelet admits one pod after the other. So a request that was answered and has no holder may be answered
        again: its first pod was rejected for another reason.

        Args:
            units: those that the kubelet chose.
            fixed: whether the answer will name the devices.

        """
        await self.forget_former()
        lost = self._admits_again and self._lost(await self._view.devices_of_all_containers())
        if fixed and (lost or await self._exchanges.unobserved()):
            await self._refreshed_s()  # a pod that was deleted is not admitted again
        allocated = await self._view.devices_of_lasting_containers()
        former = self._exchanges.answers
        self._exchanges.forget(await self._exchanges.recorded(), units)
        if fixed:
            # Shares answered to another pod than the chosen one must not count as free.
            await self._repair(allocated)
            self._clear_presumed_uses(allocated)
        request = await self._answerable(units, fixed=fixed)
        await self._exchanges.require_own(request, former)
        return request

    async def _answerable(self, units: Units, *, fixed: bool) -> AssignedRequest:
        """Return the request to answer; waits for a missing assignment, and falls back to an unlikely one."""
        loop, last_s = asyncio.get_running_loop(), math.inf
        while True:
            try:
                return await self._unserved(units, fixed=fixed)
            except Conflict as error:
                if loop.time() >= last_s:
                    with contextlib.suppress(Conflict):
                        return await self._unserved(units, fixed=fixed, again=True)
                    raise self._pods.with_refused(error) from None
            if last_s == math.inf:
                last_s = loop.time() + await self._refreshed_s()
            else:
                await asyncio.sleep(_RETRY_S)

    def _clear_presumed_uses(self, allocated: tuple[KubeletAllocation, ...]) -> None:
        """Count nothing as used of pods without an assignment, though they were answered with another pod's shares."""
        assigned = {request.key for request in self.assigned_requests()}
        for each in allocated:
            if each.resource in SHARE_RESOURCES and each.key not in assigned:
                self._gate.record.clear_presumed_uses(
                    each.resource, each.device_ids, frozenset(self.unassigned.values())
                )

    async def _unserved(self, units: Units, *, fixed: bool, again: bool = False) -> AssignedRequest:
        """Return the request of this size to answer (`core.deviceplugin.allocations.matching.unserved`).

        Args:
            units: those that the kubelet chose.
            fixed: whether the answer will name the devices.
            again: whether requests count too that the kubelet is not expected to make.

        """
        allocated, (resource, ids) = await self._view.devices_of_all_containers(), units
        requests, lost, observer = self.assigned_requests(), self._lost(allocated), self._gate.record.observer
        if self._admits_again:
            running = await observer.running_containers((each.uid, each.key.container) for each in lost)
            requests, unlikely = by_processes(requests, lost, running, allocated, again=again)
        else:
            requests, unlikely = passed_over(requests, lost, again=again)
        if fixed:
            requests = tuple(each for each in requests if not self._maker.mismatch(each))
            unlikely |= {each.key for each in requests if self._maker.absent(each)}
        own = tuple(each for each in continued(requests, units, allocated) if each.units == len(ids))
        return unserved(own or requests, (resource, len(ids)), allocated, self._exchanges.answers, unlikely)

    def _lost(self, allocated: tuple[KubeletAllocation, ...]) -> tuple[AssignedRequest, ...]:
        """Return the requests of started pods that the kubelet has lost; none where only their phases can tell."""
        if self._view.blind and self._admits_again:
            return ()
        requests, record = self.assigned_requests(), self._gate.record
        pods = record.observer.pods({each.uid for each in requests})
        created = {uid for uid, pod in pods.items() if pod.created}
        return forgotten(requests, allocated, created.union(each.uid for each in record.entries if each.started))

    @property
    def _admits_again(self) -> bool:
        """Whether the kubelet may still admit pods again that it found when it started."""
        return admits_again(self._view.kubelet_started_ns, self._gate.times.now_ns())

    async def refresh(self) -> None:
        """Read the pods of this node again, and the keys if assignments do not count.

        Raises:
            TesseraError: the API server does not answer.

        """
        await self._view.refresh()
        await self._pods.refresh()

    async def _refreshed_s(self) -> float:
        """Read the pods again, and return how long an assignment may be waited for.

        A pod that the kubelet allocates for is in the API server's list. So one without an assignment there will
        never have one, and waiting is useless: the kubelet admits no other pod meanwhile. Only if the API server
        does not answer may the watch still show it.
        """
        try:
            await self.refresh()
        except (TesseraError, TimeoutError) as error:
            self._log.warning("pods_not_read", reason=str(error))
            return self._gate.times.late_s
        return 0.0

    async def _assigned_request(self, holder: AgentAllocation, units: int) -> AssignedRequest:
        """Return the assigned allocation of a container."""
        request = self._request_of(holder)
        if request is None or request.units != units:
            late_s = await self._refreshed_s()
            last_s = asyncio.get_running_loop().time() + late_s
            while (request := self._request_of(holder)) is None or request.units != units:
                if asyncio.get_running_loop().time() >= last_s:
                    raise self._not_assigned(holder, units, request, final=not late_s)
                await asyncio.sleep(_RETRY_S)
        return request

    def _not_assigned(
        self, holder: AgentAllocation, units: int, request: AssignedRequest | None, *, final: bool
    ) -> Conflict:
        """Return why a container has no assignment, and remember it if that is final."""
        why = self.why(holder.pod)
        found = f"its assignment does not count: {why}" if why else "it was not scheduled by tessera-scheduler"
        if request is not None:
            found = f"it has an assignment to {request.units} units"
        if final and request is not None:
            self._gate.refusals.refuse(holder, f"{found}, and it requests {units}")
        elif final:
            self._unassigned.note({holder.uid: holder.request_key})
        return Conflict(
            f"pod {holder.pod}, container {holder.container}",
            found=f"{found}, and it needs an assignment to {units} units of {holder.resource}",
            hint=ASSIGNED_HINT,
        )

    def _request_of(self, holder: AgentAllocation) -> AssignedRequest | None:
        key = holder.request_key
        pod = key.namespace, key.pod
        found = next((each for each in self.assigned_requests() if (each.key, each.uid) == (key, holder.uid)), None)
        unproved = self._pods.by_record(pod) and found and not self._has_started(found, holder.ids)
        return None if unproved or self._pods.is_revoked(pod) else found

    def why(self, pod: str) -> str:
        """Return why the assignment of a pod (`namespace/name`) does not count, as its unknown key."""
        namespace, _, name = pod.partition("/")
        return self._pods.why((namespace, name)).partition(": ")[2]

    async def _exchange(self, request: AssignedRequest, holder: AgentAllocation) -> AssignedRequest:
        """Return the request with what its container was answered; assignments match when this returns."""
        refused = (await self._repair(await self._view.devices_of_lasting_containers())).get(request.key)
        if isinstance(refused, Unavailable):
            raise refused
        if refused is not None:
            self._gate.refusals.refuse(holder, refused.found)
            raise refused
        return self._request_of(holder) or request

    async def _repair(self, allocated: tuple[KubeletAllocation, ...]) -> dict[RequestKey, TesseraError]:
        """Correct assignments to match what holders were answered; return those that cannot be corrected, and why.

        A container that was answered with a share of another size or kind never starts: its pod is evicted, and the
        share is the one's that it is assigned to.
        """
        refused = await self._exchanges.repair(allocated)
        for each in allocated:
            pod = f"{each.namespace}/{each.pod}"
            holder = AgentAllocation(
                resource=each.resource, ids=each.device_ids, uid=each.uid, pod=pod, container=each.container
            )
            own = latest(self._gate.record.entries, holder)
            if each.key in self._exchanges.mistaken and not (own and own.started):
                self._gate.refusals.refuse(holder, refused[each.key].found, final=True)
                self._gate.record.void_presumed(each.resource, each.device_ids)
                self._exchanges.use((each.resource, frozenset(each.device_ids)))
        return refused

    async def forget_former(self, starting: AgentAllocation | None = None) -> None:
        """Forget what containers had before they were admitted again (`Gate.forget_former`)."""
        if await self._gate.forget_former(starting):
            self._pods.read_again()

    @property
    def unassigned(self) -> dict[str, str]:
        """Pods with units whose assignment does not count, by UID."""
        return self._unassigned.by_uid

    @property
    def refused(self) -> tuple[str, ...]:
        """Why assignments do not count, a sentence each."""
        return self._pods.refused

    def assigned_requests(self) -> tuple[AssignedRequest, ...]:
        """Return the assignments of this node's pods after all exchanges, written or not."""
        return self._exchanges.assigned_requests()
