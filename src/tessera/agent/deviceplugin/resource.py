"""One resource as the kubelet sees it: its list of devices, and what its calls are answered."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Container, Iterator
from typing import Protocol

from tessera.agent.deviceplugin.gate import Gate
from tessera.clients.kubelet import PluginOptions
from tessera.core.cluster.advertise import PluginDevice, Resource
from tessera.core.deviceplugin.allocations import uses_of_devices
from tessera.core.deviceplugin.grant import Grant
from tessera.core.deviceplugin.listing import (
    Withdrawn,
    asked_for,
    known_unhealthy,
    listed,
    staying,
    withdrawn,
)
from tessera.core.deviceplugin.prefer import AllocationPolicy, PreferenceRequest, prefer
from tessera.core.gpu.deviceids import DeviceId
from tessera.errors import Conflict, InvalidInput, shown

__all__ = ["OfferedResource", "Shares"]

GiveDevices = Callable[[Resource, tuple[PluginDevice, ...]], Grant]
"""Returns what a container with these devices gets."""


class Shares(Protocol):
    """Who decides about resources that go by assignment."""

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> Grant:
        """Return what the container gets."""

    async def pre_start(self, resource: str, ids: tuple[str, ...]) -> None:
        """Make ready what the container's assignment says."""


class OfferedResource:
    """A `DevicePlugin` for one resource; its devices change by `update`, and `end` takes it back.

    What is not offered any more stays listed, as unhealthy, until the kubelet cannot have chosen it
    (`core.deviceplugin.listing`): it is to be `settle`d from time to time, and ends when nothing is `unsettled`.
    """

    def __init__(
        self,
        resource: Resource,
        give: GiveDevices,
        gate: Gate,
        shares: Shares,
        *,
        policy: AllocationPolicy = "distributed",
    ) -> None:
        self._give = give
        self._gate = gate
        self._shares = shares
        self.resource = resource
        self._streams: dict[object, int] = {}
        """Version that each open stream has been given."""
        self._version = 0
        self._ended = False
        self._changed = asyncio.Event()
        self._policy: AllocationPolicy = policy
        self._leaving: dict[str, PluginDevice] = {}
        """Devices that were taken back, and that the kubelet may have chosen just before."""
        self._listed: tuple[PluginDevice, ...] = ()
        """What streams of the kubelet are given: what is offered, and what was and must not be missing yet."""
        self._withdrawn: tuple[Withdrawn, ...] = ()
        self._calls: list[frozenset[str]] = []
        """Ids of calls of the kubelet that are not answered yet."""
        self._set(resource, frozenset())

    def _set(self, resource: Resource, leaving: frozenset[DeviceId]) -> None:
        known = {**self._leaving, **{device.id: device for device in self.resource.devices}}
        self.resource = resource
        self._devices = {device.id: device for device in resource.devices}
        gone = known.keys() - self._devices.keys()
        self._leaving = {name: known[name] for name in gone if known[name].device in leaving}
        self._withdrawn = withdrawn(self._listed, self._withdrawn, resource.devices, _now_s())
        self._list()

    def _list(self) -> None:
        """Let streams get what is to be listed now, where that has changed."""
        devices = listed(self.resource.devices, self._withdrawn, self._listed)
        if devices != self._listed:
            self._listed = devices
            self._version += 1
            self._wake()

    @property
    def options(self) -> PluginOptions:
        """No container is created before it has passed the gate."""
        return PluginOptions(pre_start=True, preferred=True)

    @property
    def streams(self) -> int:
        """Number of kubelet streams that are open; it opens one when the plugin is registered."""
        return len(self._streams)

    def update(
        self,
        resource: Resource,
        *,
        policy: AllocationPolicy = "distributed",
        leaving: frozenset[DeviceId] = frozenset(),
    ) -> None:
        """Offer other devices under the same name; streams get the whole list when anything changed.

        Those taken back that are `leaving` are allocated still to whom the kubelet chose them for before it knew.
        """
        self._policy = policy
        self._set(resource, leaving)

    @property
    def unsettled(self) -> bool:
        """Whether something is listed that is not offered any more."""
        return bool(self._withdrawn)

    @property
    def awaits_kubelet(self) -> bool:
        """Whether it matters now which devices the kubelet knows as healthy: it was sent the present list."""
        return self._is_sent() and any(each.known_s is None for each in self._withdrawn)

    def settle(self, allocatable: Container[str] | None, asked_s: float) -> None:
        """List no more what the kubelet cannot have chosen.

        Args:
            allocatable: ids that the kubelet has as healthy; None where that is not known.
            asked_s: when it was asked, on the loop's clock.

        """
        if not self._withdrawn:
            return
        if allocatable is not None:
            self._withdrawn = known_unhealthy(self._withdrawn, allocatable, asked_s, _now_s())
        busy = self._gate.unclaimed(self.resource.name).union(*self._calls)
        self._withdrawn = staying(self._withdrawn, busy, _now_s())
        self._list()

    @contextlib.contextmanager
    def _call(self, ids: tuple[str, ...]) -> Iterator[None]:
        """Let nothing that a call of the kubelet names be missing before it has been answered for a while."""
        call = frozenset(ids)
        self._calls.append(call)
        try:
            yield
        finally:
            self._calls.remove(call)
            self._withdrawn = asked_for(self._withdrawn, call, _now_s())

    def offers(self, keys: frozenset[DeviceId]) -> bool:
        """Return whether one of these devices is offered by name, or was and is leaving."""
        devices = (*self.resource.devices, *self._leaving.values())
        return not self.resource.by_assignment and any(each.device in keys for each in devices)

    def end(self) -> None:
        """Take all devices back: streams get an empty list, and end."""
        self._ended = True
        nothing = Resource(name=self.resource.name, devices=(), by_assignment=self.resource.by_assignment)
        self.resource, self._devices, self._leaving, self._withdrawn, self._listed = nothing, {}, {}, (), ()
        self._version += 1
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def sent(self, deadline_s: float) -> bool:
        """Return when every open stream was given the present list; whether that was within the deadline."""
        try:
            async with asyncio.timeout(deadline_s):
                while not self._is_sent():
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _is_sent(self) -> bool:
        return all(each == self._version for each in self._streams.values())

    async def watch(self) -> AsyncGenerator[tuple[PluginDevice, ...], None]:
        """Give all devices now and after each change, to one stream of the kubelet."""
        stream = object()
        try:
            while True:
                version, ended = self._version, self._ended
                self._streams.setdefault(stream, -1)
                yield self._listed
                self._streams[stream] = version
                self._wake()
                if ended:
                    return
                while self._version == version:
                    await self._changed.wait()
        finally:
            self._streams.pop(stream, None)
            self._wake()

    async def prefer(self, desired: PreferenceRequest) -> tuple[str, ...]:
        """Return the ids that are preferred: on distinct GPUs, unless replicas are to be packed.

        None that a pod has: a kubelet that offers such a one has forgotten it. Where too few are left, the kubelet adds
        what it likes, and `allocate` refuses.
        """
        with self._call(desired.available):
            must = frozenset(desired.must_include)
            free = tuple(each for each in desired.available if each in must or self._is_free(each))
            size = min(desired.size, len(must.union(free)))
            sound = PreferenceRequest(available=free, must_include=desired.must_include, size=size)
            return prefer(self.resource, sound, self._policy, distinct=self._policy == "distributed")

    def _is_free(self, name: str) -> bool:
        device = self._devices.get(name)
        if device is None or self.resource.by_assignment:
            return name not in self._gate.taken(self.resource.name)
        return self._gate.is_free(self.resource.name, device)

    async def allocate(self, ids: tuple[str, ...]) -> Grant:
        """Return what a container with these devices gets.

        Raises:
            InvalidInput: no ids, an id twice, one that is not offered, or more than one where one is the most.
            Conflict: a device is unhealthy, or no assignment says what is meant.

        """
        with self._call(ids):
            return await self._allocate(ids)

    async def _allocate(self, ids: tuple[str, ...]) -> Grant:
        devices = self._known(ids)
        if self.resource.single_request and len(ids) > 1:
            raise InvalidInput(
                f"a container's limit of {self.resource.name}",
                found=str(len(ids)),
                expected="1: more replicas of a shared GPU give a container no more of it",
                hint="1, or failRequestsGreaterThanOne: false in the sharing configuration",
            )
        unhealthy = next((device for device in devices if not device.healthy), None)
        if unhealthy is not None:
            raise Conflict(
                f"device {unhealthy.id} of {self.resource.name}", found="an unhealthy device", expected="a healthy one"
            )
        if self.resource.by_assignment:
            return await self._shares.allocate(self.resource.name, ids)
        await self._gate.admit(self.resource.name, ids, uses_of_devices(devices))
        return self._give(self.resource, devices)

    async def pre_start(self, ids: tuple[str, ...]) -> None:
        """Make ready what a container with these devices was allocated, unless another pod that lives has it.

        Raises:
            Conflict: another pod that lives has one of the devices.
            Unavailable: the kubelet's record does not show the container.

        """
        if self.resource.by_assignment:
            await self._shares.pre_start(self.resource.name, ids)
            return
        holder = await self._gate.holder(self.resource.name, ids)
        # A container that starts again keeps its devices, whatever is offered by now.
        uses = self._gate.recorded(holder) or uses_of_devices(self._known(ids))
        await self._gate.start(holder, uses, ids=True)

    def _known(self, ids: tuple[str, ...]) -> tuple[PluginDevice, ...]:
        subject = f"devices of {self.resource.name}"
        if not ids:
            raise InvalidInput(subject, found="no device ids", expected="at least one")
        if len(set(ids)) < len(ids):
            raise InvalidInput(subject, found="an id twice", expected="each id once")
        there = {each.device.id for each in self._withdrawn}
        left = {name: device for name, device in self._leaving.items() if name in there}
        known = {**left, **self._devices}
        unknown = next((each for each in ids if each not in known), None)
        if unknown is not None:
            desired = f"one of the {len(self._devices)} ids that are offered"
            raise InvalidInput(subject, found=shown(unknown), expected=desired)
        return tuple(known[each] for each in ids)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
