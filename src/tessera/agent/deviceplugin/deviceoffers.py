"""Devices that change hands between the kubelet and the scheduler, one step at a time, so that one has each.

To the kubelet: what is to be offered by name is written to `status.offered` of the GPUNode first, on a version on which
no claim and no pod has it; servers claim nothing of it from then on. Then it is advertised.

To the scheduler: the Node shows fewer devices, so that nobody is bound for them; then the kubelet is offered them no
more; when it does not know them any more and no pod has them, they are taken out of `status.offered`.
"""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from tessera.agent.deviceplugin import Gate
from tessera.agent.nodestate.gpunode import GpuNodeLink
from tessera.agent.nodestate.noderecord import NodeRecord
from tessera.agent.pods.nodepods import NodePods
from tessera.agent.pods.podsview import is_ended
from tessera.api.kubernetes.containerlimits import asks_of, lasting_containers
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
from tessera.core.deviceplugin.advertise import NodeOffer, by_name, restricted, with_former
from tessera.core.gpu.deviceids import DeviceId, devices_of_ids, existing_devices, overlap
from tessera.core.gpu.inventory import Inventory
from tessera.errors import Conflict, TesseraError, Unavailable
from tessera.log import Logger

__all__ = ["Advertise", "DeviceOffers", "HandOver", "ObservedNode"]

Advertise = Callable[[NodeOffer, frozenset[DeviceId]], Awaitable[bool]]
"""Gives the kubelet new lists of devices, and serves those that leave to pods they were chosen for already.

It returns whether the kubelet knows.
"""

_SCHEDULER_S = 0.5
"""How long the scheduler may take to see that a node has fewer devices."""
_TRIES = 4
"""Servers write claims to the same object."""


class ObservedNode(msgspec.Struct, frozen=True, kw_only=True):
    """What is offered, and decided from, in one observation."""

    offered: NodeOffer
    """What the node would offer if all of it were the kubelet's."""
    gpus: tuple[Gpu, ...]
    inventory: Inventory
    node: Object


class HandOver(NamedTuple):
    """How far devices have changed hands."""

    known: bool
    """Whether the kubelet knows all that is to be offered by name, and nothing that it shall not have."""
    withdrawn: bool
    """Whether it knows what can be offered now, and nothing that it shall not have."""
    unfinished: bool
    """Whether the kubelet or a pod has a device still that is to be the scheduler's."""
    unwritten: tuple[tuple[str, str], ...] = ()
    """Resources of which devices are not offered since that cannot be written down, each with the reason."""


class DeviceOffers:
    """Keeps `status.offered` and what is advertised in step.

    Args:
        gpunode: the node's GPUNode.
        record: the Node object.
        kubelet: which devices the kubelet has.
        gate: what pods were allocated by name; observes the pods of this node.
        pods: which devices assignments of pods name.
        log: where it is logged what could not be done.

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
        """What was advertised last."""
        self.problem = ""
        """Why `status.offered` could not be written the last time that it had to be; empty where it was."""

    async def hand_over(self, observed: ObservedNode, advertise: Advertise) -> HandOver:
        """Let devices change hands, as far as they can in one look.

        Raises:
            TesseraError: the kubelet or the API server does not answer, or somebody wrote meanwhile; call again.

        """
        # 1. Write down what becomes the kubelet's.
        now, plan = await self.plan_advertisement(observed)
        # 2. Advertise; devices that are withdrawn still serve pods that the kubelet chose them for.
        known = await advertise(now, plan.withdrawing)
        # 3. Refuse those that the kubelet has let go of, and only then release them to the scheduler.
        released = await self.devices_let_go(observed, plan) if known else frozenset[DeviceId]()
        if released:
            await advertise(now, plan.withdrawing - released)
            await self.release(observed, released)
        unwritten = tuple(self._unwritten(observed)) if self.problem else ()
        withdrawn = known and by_name(now) <= by_name(observed.offered)
        return HandOver(
            known=withdrawn and not unwritten,
            withdrawn=withdrawn,
            unfinished=bool(plan.withdrawing - released),
            unwritten=unwritten,
        )

    def _unwritten(self, observed: ObservedNode) -> Iterator[tuple[str, str]]:
        """Yield the resources of which devices could not be written down, with the reason."""
        offered = self._gpunode.offered()
        for resource in observed.offered.resources:
            lacking = {device.device for device in resource.devices} - offered
            if lacking and not resource.by_assignment:
                count = f"{len(lacking)} device{'s' if len(lacking) > 1 else ''}"
                yield resource.name, f"{count} cannot be written to status.offered of the GPUNode: {self.problem}"

    async def plan_advertisement(self, observed: ObservedNode) -> tuple[NodeOffer, OfferPlan]:
        """Return what to advertise now and what changes hands, with everything written down that must be before.

        What cannot be written down is not advertised, until the next observation.
        """
        if self._gpunode.absent:
            return observed.offered, OfferPlan(advertise=by_name(observed.offered))
        offered = with_former(observed.offered, self._last, await self._bound_for(observed))
        desired = by_name(offered)
        taken = self._taken(observed, desired, claims=())
        self.problem = ""
        if self._gpunode.lost or desired - self._gpunode.offered() - taken:
            try:
                await self._commit(observed, desired)
            except (TesseraError, TimeoutError) as error:  # what is advertised already goes on
                self.problem = str(error) or type(error).__name__
                self._log.warning("offer_not_written", reason=self.problem)
        plan = plan_offer(desired, self._gpunode.offered(), self._gate.record.by_name, taken)
        self._last = restricted(offered, plan.advertise)
        return self._last, plan

    async def devices_let_go(self, observed: ObservedNode, plan: OfferPlan) -> frozenset[DeviceId]:
        """Return the devices of which the kubelet has let go; call it when the kubelet was given the new lists.

        Raises:
            TesseraError: the kubelet does not answer; call again.

        """
        if not plan.withdrawing:
            return frozenset()
        allocatable = (await self._kubelet.allocatable()).values()
        known = devices_of_ids(itertools.chain.from_iterable(allocatable), observed.inventory)
        desired, held = by_name(self._last), self._gate.record.by_name
        return released_devices(desired, self._gpunode.offered(), held, known)

    async def release(self, observed: ObservedNode, keys: frozenset[DeviceId]) -> None:
        """Take devices out of `status.offered`; call it when whoever still comes for one of them is refused.

        What a pod was allocated in the last moment stays.

        Raises:
            TesseraError: the API server does not answer, or somebody wrote meanwhile; call again.

        """
        state = await self._gpunode.fresh(observed.node)
        committed = devices_one_by_one(state.offered) | self._gpunode.lost
        await self._gpunode.write_offered(committed - (keys - self._gate.record.by_name), state.version)

    # To the kubelet

    async def _commit(self, observed: ObservedNode, desired: frozenset[DeviceId]) -> None:
        """Write down what is the kubelet's from now on: of what is desired all that no claim and no pod has.

        What was the kubelet's when somebody deleted the object is still.

        Raises:
            TesseraError: the API refuses or does not answer, or servers write at every try.

        """
        for _ in range(_TRIES):
            state = await self._gpunode.fresh(observed.node)
            lost = self._gpunode.lost
            await self._pods.refresh()  # after it: the pod of a claim that is gone from it is bound by now
            committed = devices_one_by_one(state.offered) | lost
            taken = self._taken(observed, desired, state.claims)
            add = plan_offer(desired, committed, self._gate.record.by_name, taken).add
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

    def _taken(
        self, observed: ObservedNode, desired: frozenset[DeviceId], claims: Iterable[Claim]
    ) -> frozenset[DeviceId]:
        """Return which of the desired devices overlap what claims and assignments name, or containers use."""
        models = {gpu.uuid: gpu.model for gpu in observed.gpus}
        names = (
            claimed_keys(claims, observed.gpus)
            | self._pods.assigned(observed.inventory)
            | self._gate.record.by_assignment
        )
        return frozenset(key for key in desired if any(overlap(key, name, models) for name in names))

    # To the scheduler

    async def _bound_for(self, observed: ObservedNode) -> frozenset[DeviceId]:
        """Return which devices stay for pods that are bound to this node for them already.

        Where devices are about to go the Node shows that first, so that after a moment no more such pods come.
        """
        resources = {each.device: named.name for named in self._last.resources for each in named.devices}
        gone = by_name(self._last) - by_name(observed.offered) - self._gate.record.by_name
        existing = existing_devices(observed.inventory)
        leaving = {device: resources[device] for device in sorted(gone & existing.keys(), key=DeviceId.order)}
        if not leaving:
            return frozenset()
        left = {resource.name: len(resource.devices) for resource in observed.offered.resources}
        try:
            if await self._record.announce(observed.node, {name: left.get(name, 0) for name in leaving.values()}):
                await asyncio.sleep(_SCHEDULER_S)
            await self._view.refresh()
        except (TesseraError, TimeoutError) as error:  # then nobody binds pods either
            self._log.warning("not_announced", reason=str(error) or type(error).__name__)
        allocated = {
            each.name: self._gate.record.allocated_ids(each.name)
            for each in (*observed.offered.resources, *self._last.resources)
        }
        free = {
            resource.name: sum(device.id not in allocated[resource.name] for device in resource.devices)
            for resource in observed.offered.resources
        }
        awaited = {name: self._bound()[name] - len(ids) for name, ids in allocated.items()}
        return still_needed(
            {device: resources[device] for device in sorted(leaving, key=DeviceId.order)}, free, awaited
        )

    def _bound(self) -> Counter[str]:
        """Return how many devices of each resource the pods ask that are bound to this node."""
        bound = Counter[str]()
        for pod in self._view.pods():
            for container, resource, quantity in () if is_ended(pod) else asks_of(pod):
                if quantity.isdecimal() and container in lasting_containers(pod):
                    bound[resource] += int(quantity)
        return bound
