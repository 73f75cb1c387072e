"""The device plugin of one GPU resource: what it advertises, and how it answers the kubelet."""

import contextlib
from typing import Protocol

from tessera.agent.deviceplugin.allocations.gate import Gate
from tessera.agent.deviceplugin.offers.listed import ListedResource
from tessera.clients.kube import annotations_of
from tessera.clients.kubelet import OptionalCalls
from tessera.core.deviceplugin.allocations import lastgate
from tessera.core.deviceplugin.allocations.agentallocations import (
    AgentAllocation,
    AllocatedDevice,
    latest,
    uses_of_devices,
)
from tessera.core.deviceplugin.allocations.allocateddevices import is_free, unclaimed_ids
from tessera.core.deviceplugin.allocations.relocation import absent_device, uuids_of
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.core.deviceplugin.offers.advertise import PluginDevice, Resource
from tessera.core.deviceplugin.offers.prefer import AllocationPolicy, PreferenceRequest, prefer
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import Inventory
from tessera.core.node.liststrategies import DeviceInjection
from tessera.core.workload.need import Isolation
from tessera.core.workload.tesseranames import ISOLATION
from tessera.errors import Conflict, InvalidInput, Unavailable, shown

__all__ = ["Handover", "OfferedResource", "ShareAllocations"]

_CHOOSE = "set schedulerName: tessera-scheduler, which chooses a suitable device, and recreate the pod"


class Handover(Protocol):
    """Hands devices over to containers."""

    @property
    def injection(self) -> DeviceInjection:
        """How devices are handed over now."""

    @property
    def inventory(self) -> Inventory:
        """The driver's last inventory."""

    def give(self, resource: Resource, devices: tuple[PluginDevice, ...]) -> ContainerResponse:
        """Return what a container with these devices gets."""

    def indices(self, uses: tuple[AllocatedDevice, ...]) -> tuple[str, ...]:
        """Return the driver's present indices of devices."""


class ShareAllocations(Protocol):
    """Answers the kubelet for pods with an assignment."""

    async def forget_former(self) -> None:
        """Forget what containers had before a kubelet without its record admits them again."""

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> ContainerResponse:
        """Return what the container gets."""

    async def pre_start(self, resource: str, ids: tuple[str, ...]) -> None:
        """Prepare the devices of the container's assignment."""


class OfferedResource(ListedResource[Resource]):
    """The device plugin of a GPU resource: its allocations pass the gate."""

    def __init__(
        self,
        resource: Resource,
        handover: Handover,
        gate: Gate,
        shares: ShareAllocations,
        *,
        policy: AllocationPolicy = "distributed",
    ) -> None:
        self._handover = handover
        self._gate = gate
        self._shares = shares
        self._policy: AllocationPolicy = policy
        self._devices: dict[str, PluginDevice] = {}
        self._leaving: dict[str, PluginDevice] = {}
        """Withdrawn devices that the kubelet may have chosen just before."""
        super().__init__(resource)

    def _set(self, resource: Resource, leaving: frozenset[DeviceId]) -> None:
        known = {**self._leaving, **{device.id: device for device in self.resource.devices}}
        self._devices = {device.id: device for device in resource.devices}
        gone = known.keys() - self._devices.keys()
        self._leaving = {name: known[name] for name in gone if known[name].device in leaving}
        super()._set(resource, leaving)

    @property
    def options(self) -> OptionalCalls:
        """Every container passes the gate before it is created."""
        return OptionalCalls(pre_start=True, preferred=True)

    def update(
        self,
        resource: Resource,
        *,
        policy: AllocationPolicy = "distributed",
        leaving: frozenset[DeviceId] = frozenset(),
    ) -> None:
        """Advertise other devices under the same name, and prefer replicas by this policy."""
        self._policy = policy
        super().update(resource, policy=policy, leaving=leaving)

    def _unclaimed(self) -> frozenset[str]:
        return unclaimed_ids(self._gate.record.entries, self.resource.name)

    def offers(self, keys: frozenset[DeviceId]) -> bool:
        """Return whether one of these devices is advertised by name, or withdrawn and leaving."""
        devices = (*self.resource.devices, *self._leaving.values())
        return not self.resource.by_assignment and any(each.device in keys for each in devices)

    def end(self) -> None:
        """Withdraw all devices: streams get an empty list, and end."""
        self._devices, self._leaving = {}, {}
        super().end()

    async def prefer(self, request: PreferenceRequest) -> tuple[str, ...]:
        """Return the preferred ids: on distinct GPUs, unless replicas are to be packed.

        Never one that a pod has: a kubelet that offers it has forgotten the allocation. If too few are left, the
        kubelet adds any, and `allocate` refuses.
        """
        self._refuse_all()
        with self._call(request.available):
            with contextlib.suppress(Unavailable):  # `allocate` says why
                await self._shares.forget_former()
            must = frozenset(request.must_include)
            free = tuple(each for each in request.available if each in must or self._is_free(each))
            size = min(request.size, len(must.union(free)))
            sound = PreferenceRequest(available=free, must_include=request.must_include, size=size)
            return prefer(self.resource, sound, self._policy, distinct=self._policy == "distributed")

    def _is_free(self, name: str) -> bool:
        device = self._devices.get(name)
        if device is None or self.resource.by_assignment:
            return name not in self._gate.record.allocated_ids(self.resource.name)
        return is_free(self._gate.record.allocated, device)

    async def allocate(self, ids: tuple[str, ...]) -> ContainerResponse:
        """Return what a container with these devices gets.

        Raises:
            InvalidInput: no ids, an id twice, an unknown id, or more than one where one is the most.
            Conflict: a device is unhealthy, or no assignment matches.
            Unavailable: it is not known which devices are free.

        """
        self._refuse_all()
        with self._call(ids):
            return await self._allocate(ids)

    async def _allocate(self, ids: tuple[str, ...]) -> ContainerResponse:
        devices = self._known(ids)
        self._refuse_closed(ids)
        if self.resource.single_request and len(ids) > 1:
            raise InvalidInput(
                f"a container's limit of {self.resource.name}",
                found=f"{len(ids)} replicas of a shared GPU give a container no more of the GPU than 1",
                hint="request 1, or set failRequestsGreaterThanOne: false in the sharing configuration",
            )
        unhealthy = next((device for device in devices if not device.healthy), None)
        if unhealthy is not None:
            raise Conflict(
                f"device {unhealthy.id} of {self.resource.name}",
                found="it is unhealthy",
                hint="request another; the kubelet offers healthy ones",
            )
        if self.resource.by_assignment:
            return await self._shares.allocate(self.resource.name, ids)
        await self._shares.forget_former()
        # The strategies may change while the gate looks at pods: answer and record have those of now.
        handover, uses = self._handover, _uses(devices)
        given, injection = handover.give(self.resource, devices), handover.injection
        indices = handover.indices(uses) if injection.names_by_index else ()
        await self._gate.admit(self.resource.name, ids, uses, injection.strategies, indices)
        return given

    async def pre_start(self, ids: tuple[str, ...]) -> None:
        """Prepare the devices of a container, unless another living pod has one.

        Raises:
            Conflict: another living pod has one of the devices, one isolates less than the pod requests, or one has
                another index than the container was allocated.
            Unavailable: the kubelet's record does not show the container, or it is not known yet what others have.

        """
        if self.resource.starting:
            self._refuse_all()
        if self.resource.by_assignment:
            await self._shares.pre_start(self.resource.name, ids)
            return
        holder = await self._gate.holder(self.resource.name, ids)
        # A container keeps the devices it was allocated, by UUID, whatever is advertised by now.
        self._gate.record.follow(self._handover.inventory)
        own = latest(self._gate.record.entries, holder)
        uses = (own.uses if own else ()) or _uses(self._known(ids))
        self._refuse_renumbered(holder, own.indices if own else (), uses)
        self._refuse_absent(holder, uses)
        if own is None or not own.started:
            self._refuse_weaker(holder, ids, uses)
        await self._gate.start(holder, uses, ids=True)
        self._gate.refusals.forget(holder)

    def _refuse_all(self) -> None:
        """Refuse all calls while it is not known which devices are free, or there are none.

        Raises:
            Unavailable: it is not.

        """
        if self.resource.refused:
            raise Unavailable(
                f"devices of {self.resource.name}",
                found=self.resource.refused,
                hint="the kubelet tries to start a container again; recreate a pod that failed",
            )

    def _refuse_closed(self, ids: tuple[str, ...]) -> None:
        """Refuse devices that no container has on record as long as it is not known what a pod uses.

        Raises:
            Unavailable: one is not.

        """
        record = self._gate.record
        if record.closed and not record.unkept and not record.allocated_ids(self.resource.name).issuperset(ids):
            raise Unavailable(
                f"devices of {self.resource.name}",
                found=f"none is free: {record.closed}",
                hint="recreate the pod when that has ended",
            )

    def _refuse_renumbered(
        self, holder: AgentAllocation, allocated: tuple[str, ...], uses: tuple[AllocatedDevice, ...]
    ) -> None:
        """Refuse a container whose devices have other indices than at `Allocate`: it would get others' devices.

        Raises:
            Conflict: they have.

        """
        if allocated and sorted(allocated) != sorted(now := self._handover.indices(uses)):
            indices = ", ".join(allocated)
            found = f"it was allocated the devices of index {indices}, which now have index {', '.join(now)}"
            self._gate.refusals.refuse(holder, found)
            hint = "delete and recreate the pod, or use deviceIDStrategy uuid"
            raise Conflict(f"{self.resource.name} for {holder.pod}", found=found, hint=hint)

    def _refuse_absent(self, holder: AgentAllocation, uses: tuple[AllocatedDevice, ...]) -> None:
        """Refuse a container one of whose devices is gone, or another under its UUID: that is what it was allocated.

        Raises:
            Conflict: one is.

        """
        if found := absent_device(uuids_of(holder), uses, self._handover.inventory):
            self._gate.refusals.refuse(holder, found)
            raise Conflict(f"{self.resource.name} for {holder.pod}", found=found, hint="delete and recreate the pod")

    def _refuse_weaker(self, holder: AgentAllocation, ids: tuple[str, ...], uses: tuple[AllocatedDevice, ...]) -> None:
        """Refuse a device that isolates less than its pod requests: its scheduler knows only the resource name.

        Raises:
            Conflict: there is one, or the pod's annotation is invalid.

        """
        text = annotations_of(self._gate.view.find(holder.uid) or {}).get(ISOLATION, Isolation.NONE)
        offered = [each for each in map({**self._leaving, **self._devices}.get, ids) if each is not None]
        if text not in frozenset(Isolation):
            found, hint = f"its annotation {ISOLATION} is {shown(text)}", f"write {', '.join(Isolation)}"
        elif weaker := lastgate.weaker_device(Isolation(text), offered):
            found = f"it requests isolation {text}; {weaker.mode.value} of {weaker.device} has {weaker.mode.isolation}"
            hint = _CHOOSE
        elif use := lastgate.weaker_use(Isolation(text), uses, offered=len(offered) == len(ids)):
            # What is offered has changed since `Allocate`.
            has = use.isolation or "perhaps none"
            found, hint = f"it requests isolation {text}; its {use.exclusivity} of {use.device} has {has}", _CHOOSE
        else:
            return
        self._gate.refusals.refuse(holder, found)
        raise Conflict(f"{self.resource.name} for {holder.pod}", found=found, hint=hint)

    def _known(self, ids: tuple[str, ...]) -> tuple[PluginDevice, ...]:
        subject = f"devices of {self.resource.name}"
        if not ids:
            raise InvalidInput(subject, found="the call has no device ids", hint="name at least one")
        if len(set(ids)) < len(ids):
            raise InvalidInput(subject, found="the call has an id twice", hint="name each once")
        there = {each.device.id for each in self._withdrawn}
        left = {name: device for name, device in self._leaving.items() if name in there}
        known = {**left, **self._devices}
        unknown = next((each for each in ids if each not in known), None)
        if unknown is not None:
            expected = f"one of the {len(self._devices)} advertised ids"
            raise InvalidInput(subject, found=shown(unknown), expected=expected)
        return tuple(known[each] for each in ids)


def _uses(devices: tuple[PluginDevice, ...]) -> tuple[AllocatedDevice, ...]:
    """Return what a container uses of devices, in the order of its sorted ids: by these the record finds them again."""
    return uses_of_devices(sorted(devices, key=lambda each: each.id))
