"""Moves devices between the kubelet and the scheduler, one step at a time, so that each has exactly one owner.

To the kubelet: devices to advertise by name are written to `status.offered` of the GPUNode first, on a version without
a claim or pod on them; servers claim none of them from then on. Then they are advertised.

To the scheduler: the Node shows fewer devices, so that no more pods are bound for them; then they are no longer
advertised; once the kubelet has dropped them and no pod has them, they are removed from `status.offered`.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from tessera.agent.deviceplugin.allocations.gate import Gate
from tessera.agent.nodestate.gpunode import GpuNodeLink
from tessera.agent.nodestate.noderecord import NodeRecord
from tessera.agent.pods.nodepods import NodePods
from tessera.api.kubernetes.containerlimits import awaiting_amounts
from tessera.clients.kube import Object
from tessera.clients.kubelet import PodResources
from tessera.core.cluster.gpunodestate import Claim
from tessera.core.cluster.protocols.allocators import (
    OfferPlan,
    claimed_keys,
    devices_one_by_one,
    plan_offer,
    released_devices,
    still_needed,
)
from tessera.core.cluster.snapshot import Gpu
from tessera.core.deviceplugin.allocations.allocateddevices import (
    awaited_counts,
    devices_by_assignment,
    devices_by_name,
)
from tessera.core.deviceplugin.offers.advertise import NodeOffer, by_name, healthy_counts, restricted, with_former
from tessera.core.gpu.deviceids import DeviceId, devices_of_ids, existing_devices, overlap
from tessera.core.gpu.inventory import Inventory
from tessera.errors import Conflict, TesseraError, Unavailable
from tessera.log import Logger

__all__ = ["Advertise", "DeviceOffers", "MoveProgress", "OfferableDevices"]

Advertise = Callable[[NodeOffer, frozenset[DeviceId]], Awaitable[bool]]
"""Sends the kubelet new device lists, and serves leaving devices to pods they were already chosen for.

It returns whether the kubelet has the lists.
"""

_SCHEDULER_S = 0.5
"""How long the scheduler may take to observe that a node has fewer devices."""
_TRIES = 4
"""Retries of a write: servers write claims to the same object."""


class OfferableDevices(msgspec.Struct, frozen=True, kw_only=True):
    """One observation of the node, for decisions."""

    offered: NodeOffer
    """What would be advertised if everything were the kubelet's."""
    gpus: tuple[Gpu, ...]
    inventory: Inventory
    node: Object


class MoveProgress(NamedTuple):
    """How far devices have moved between kubelet and scheduler."""

    known: bool
    """Whether the kubelet has all devices to advertise by name, and no others."""
    withdrawn: bool
    """Whether it has all devices that can be advertised now, and no others."""
    unfinished: bool
    """Whether the kubelet or a pod still has a device that is to become the scheduler's."""
    unwritten: tuple[tuple[str, str], ...] = ()
    """Resources with devices not advertised because `status.offered` cannot be written, with the reason."""


class DeviceOffers:
    """Keeps `status.offered` and the advertised devices consistent.

    Args:
        gpunode: the node's GPUNode.
        record: the Node object.
        kubelet: the devices that the kubelet has.
        gate: has the allocations by name; observes the pods of this node.
        pods: has the devices of assignments.
        log: for failed steps.

    """

    def __init__(
        self,
        gpunode: GpuNodeLink,
        record: NodeRecord,
        kubelet: PodResources,
        gate: Gate,
        pods: NodePods,
        log: Logger,
    ) -> None:
        self._gpunode = gpunode
        self._record = record
        self._kubelet = kubelet
        self._gate = gate
        self._view = gate.view
        self._pods = pods
        self._log = log
        self._last = NodeOffer(resources=())
        """The devices advertised last."""
        self.problem = ""
        """Why the last necessary write of `status.offered` failed; empty where it did not."""

    def promised(self, gpu: str) -> bool:
        """Return whether the kubelet may still allocate something of a GPU: it has not dropped all of it."""
        return self._gpunode.absent or any(gpu == device.gpu for device in self._gpunode.offered())

    async def move(self, observed: OfferableDevices, advertise: Advertise) -> MoveProgress:
        """Move devices as far as possible in one pass.

        Raises:
            TesseraError: the kubelet or the API server does not answer, or there was a concurrent write; call again.

        """
        # 1. Write the kubelet's devices to `status.offered`.
        now, plan = await self.plan_advertisement(observed)
        # 2. Advertise; withdrawn devices still serve pods that the kubelet chose them for.
        known = await advertise(now, plan.withdrawing)
        # 3. Refuse those that the kubelet has dropped, and only then release them to the scheduler.
        released = await self.devices_let_go(observed, plan) if known else frozenset[DeviceId]()
        if released:
            await advertise(now, plan.withdrawing - released)
            await self.release(observed, released)
        unwritten = tuple(self._unwritten(observed)) if self.problem else ()
        withdrawn = known and by_name(now) <= by_name(observed.offered)
        return MoveProgress(
            known=withdrawn and not unwritten,
            withdrawn=withdrawn,
            unfinished=bool(plan.withdrawing - released),
            unwritten=unwritten,
        )

    def _unwritten(self, observed: OfferableDevices) -> Iterator[tuple[str, str]]:
        """Yield the resources with devices that could not be written, with the reason."""
        offered = self._gpunode.offered()
        for resource in observed.offered.resources:
            lacking = {device.device for device in resource.devices} - offered
            if lacking and not resource.by_assignment:
                count = f"{len(lacking)} device{'s' if len(lacking) > 1 else ''}"
                yield resource.name, f"{count} cannot be written to status.offered of the GPUNode: {self.problem}"

    async def plan_advertisement(self, observed: OfferableDevices) -> tuple[NodeOffer, OfferPlan]:
        """Return what to advertise now and what is moving, after writing what must be written before.

        Devices that cannot be written are not advertised until the next observation.
        """
        if self._gpunode.absent:
            return observed.offered, OfferPlan(advertise=by_name(observed.offered))
        offered = with_former(observed.offered, self._last, await self._bound_for(observed))
        desired = by_name(offered)
        reserved = self._in_use(observed, desired, claims=())
        self.problem = ""
        if self._gpunode.lost or desired - self._gpunode.offered() - reserved:
            try:
                await self._commit(observed, desired)
            except (TesseraError, TimeoutError) as error:  # what is advertised already stays advertised
                self.problem = str(error) or type(error).__name__
                self._log.warning("offer_not_written", reason=self.problem)
        plan = plan_offer(desired, self._gpunode.offered(), devices_by_name(self._gate.record.allocated), reserved)
        self._last = restricted(offered, plan.advertise)
        return self._last, plan

    async def devices_let_go(self, observed: OfferableDevices, plan: OfferPlan) -> frozenset[DeviceId]:
        """Return the devices that the kubelet has dropped; call it after the kubelet got the new lists.

        Raises:
            TesseraError: the kubelet does not answer; call again.

        """
        if not plan.withdrawing:
            return frozenset()
        allocatable = (await self._kubelet.allocatable()).values()
        known = devices_of_ids(itertools.chain.from_iterable(allocatable), observed.inventory)
        desired, allocated = by_name(self._last), devices_by_name(self._gate.record.allocated)
        return released_devices(desired, self._gpunode.offered(), allocated, known)

    async def release(self, observed: OfferableDevices, keys: frozenset[DeviceId]) -> None:
        """Remove devices from `status.offered`; call it when requests for them are refused.

        A device allocated in the last moment stays.

        Raises:
            TesseraError: the API server does not answer, or there was a concurrent write; call again.

        """
        state = await self._gpunode.fresh(observed.node)
        committed = devices_one_by_one(state.offered) | self._gpunode.lost
        await self._gpunode.write_offered(
            committed - (keys - devices_by_name(self._gate.record.allocated)), state.version
        )

    # To the kubelet

    async def _commit(self, observed: OfferableDevices, desired: frozenset[DeviceId]) -> None:
        """Write the devices that are the kubelet's from now on: the desired ones without a claim or pod.

        Those of a deleted object are still the kubelet's.

        Raises:
            TesseraError: the API server rejects or does not answer, or servers write at every try.

        """
        for _ in range(_TRIES):
            state = await self._gpunode.fresh(observed.node)
            lost = self._gpunode.lost
            await self._pods.refresh()  # after the object: the pod of a vanished claim is bound by now
            committed = devices_one_by_one(state.offered) | lost
            reserved = self._in_use(observed, desired, state.claims)
            add = plan_offer(desired, committed, devices_by_name(self._gate.record.allocated), reserved).add
            if not add and not lost:
                return
            with contextlib.suppress(Conflict):
                await self._gpunode.write_offered(committed | add, state.version)
                return
        raise Unavailable(
            "status.offered of the GPUNode",
            found=f"servers wrote claims to it at each of {_TRIES} tries",
            hint="the agent tries again at its next observation",
        )

    def _in_use(
        self, observed: OfferableDevices, desired: frozenset[DeviceId], claims: Iterable[Claim]
    ) -> frozenset[DeviceId]:
        """Return the desired devices that overlap claims, assignments or allocations."""
        models = {gpu.uuid: gpu.model for gpu in observed.gpus}
        names = (
            claimed_keys(claims, observed.gpus)
            | self._pods.assigned_devices(observed.inventory)
            | devices_by_assignment(self._gate.record.allocated)
        )
        return frozenset(key for key in desired if any(overlap(key, name, models) for name in names))

    # To the scheduler

    async def _bound_for(self, observed: OfferableDevices) -> frozenset[DeviceId]:
        """Return the devices that stay for pods that are already bound to this node for them.

        Before devices leave, the Node shows fewer, so that soon no more such pods are bound.
        """
        resources = {each.device: named.name for named in self._last.resources for each in named.devices}
        gone = by_name(self._last) - by_name(observed.offered) - devices_by_name(self._gate.record.allocated)
        existing = existing_devices(observed.inventory)
        leaving = {device: resources[device] for device in sorted(gone & existing.keys(), key=DeviceId.order)}
        if not leaving:
            return frozenset()
        left = healthy_counts(observed.offered.resources)
        try:
            if await self._record.announce(observed.node, {name: left.get(name, 0) for name in leaving.values()}):
                await asyncio.sleep(_SCHEDULER_S)
            await self._view.refresh()
        except (TesseraError, TimeoutError) as error:  # then no pods are bound either
            self._log.warning("not_announced", reason=str(error) or type(error).__name__)
        allocated = {
            each.name: self._gate.record.allocated_ids(each.name)
            for each in (*observed.offered.resources, *self._last.resources)
        }
        free = {
            resource.name: sum(each.healthy and each.id not in allocated[resource.name] for each in resource.devices)
            for resource in observed.offered.resources
        }
        awaited = awaited_counts(awaiting_amounts(self._view.pods()), self._gate.record.entries)
        return still_needed(
            {device: resources[device] for device in sorted(leaving, key=DeviceId.order)}, free, awaited
        )
