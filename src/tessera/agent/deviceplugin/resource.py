"""One resource as the kubelet sees it: its list of devices, and what its calls are answered."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from tessera.clients.kubelet import PluginOptions
from tessera.core.advertise import PluginDevice, Resource
from tessera.core.grant import Grant
from tessera.core.prefer import Policy, Wanted, prefer
from tessera.errors import Conflict, InvalidInput, shown

__all__ = ["OfferedResource", "ShareDoor"]

GiveDevices = Callable[[Resource, tuple[PluginDevice, ...]], Grant]
"""Returns what a container with these devices gets."""


class ShareDoor(Protocol):
    """Who decides about resources that go by assignment."""

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> Grant:
        """Return what the container gets."""

    async def pre_start(self, resource: str, ids: tuple[str, ...]) -> None:
        """Make ready what the container's assignment says."""


class OfferedResource:
    """A `DevicePlugin` for one resource; its devices change by `update`, and `end` takes it back."""

    def __init__(
        self, resource: Resource, give: GiveDevices, shares: ShareDoor, *, policy: Policy = "distributed"
    ) -> None:
        self._give = give
        self._shares = shares
        self._streams: dict[object, int] = {}
        """Version that each open stream has been given."""
        self._version = 0
        self._ended = False
        self._changed = asyncio.Event()
        self._policy: Policy = policy
        self._set(resource)

    def _set(self, resource: Resource) -> None:
        self.resource = resource
        self._devices = {device.id: device for device in resource.devices}

    @property
    def options(self) -> PluginOptions:
        """Shares are made ready before their container is created."""
        return PluginOptions(pre_start=self.resource.by_assignment, preferred=True)

    @property
    def streams(self) -> int:
        """Number of kubelet streams that are open; it opens one when the plugin is registered."""
        return len(self._streams)

    def update(self, resource: Resource, *, policy: Policy = "distributed") -> None:
        """Offer other devices under the same name; streams get the whole list when anything changed."""
        self._policy = policy
        if resource == self.resource:
            return
        self._set(resource)
        self._version += 1
        self._wake()

    def end(self) -> None:
        """Take all devices back: streams get an empty list, and end."""
        self._ended = True
        self._set(Resource(name=self.resource.name, devices=(), by_assignment=self.resource.by_assignment))
        self._version += 1
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def sent(self, deadline_s: float) -> bool:
        """Return when every open stream was given the present list; whether that was within the deadline."""
        try:
            async with asyncio.timeout(deadline_s):
                while any(each != self._version for each in self._streams.values()):
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def watch(self) -> AsyncGenerator[tuple[PluginDevice, ...], None]:
        """Give all devices now and after each change, to one stream of the kubelet."""
        stream = object()
        try:
            while True:
                version, ended = self._version, self._ended
                self._streams.setdefault(stream, -1)
                yield self.resource.devices
                self._streams[stream] = version
                self._wake()
                if ended:
                    return
                while self._version == version:
                    await self._changed.wait()
        finally:
            self._streams.pop(stream, None)
            self._wake()

    async def prefer(self, wanted: Wanted) -> tuple[str, ...]:
        """Return the ids one container had better get: on distinct GPUs, unless replicas are to be packed."""
        return prefer(self.resource, wanted, self._policy, distinct=self._policy == "distributed")

    async def allocate(self, ids: tuple[str, ...]) -> Grant:
        """Return what a container with these devices gets.

        Raises:
            InvalidInput: no ids, an id twice, one that is not offered, or more than one where one is the most.
            Conflict: a device is unhealthy, or no assignment says what is meant.

        """
        devices = self._known(ids)
        if self.resource.single_request and len(ids) > 1:
            raise InvalidInput(
                f"a container's limit of {self.resource.name}",
                found=str(len(ids)),
                wanted="1: more replicas of a shared GPU give a container no more of it",
                accepted="1, or failRequestsGreaterThanOne: false in the sharing configuration",
            )
        sick = next((device for device in devices if not device.healthy), None)
        if sick is not None:
            raise Conflict(
                f"device {sick.id} of {self.resource.name}", found="an unhealthy device", wanted="a healthy one"
            )
        if self.resource.by_assignment:
            return await self._shares.allocate(self.resource.name, ids)
        return self._give(self.resource, devices)

    async def pre_start(self, ids: tuple[str, ...]) -> None:
        """Make ready what a container with these devices was assigned."""
        if self.resource.by_assignment:
            await self._shares.pre_start(self.resource.name, ids)

    def _known(self, ids: tuple[str, ...]) -> tuple[PluginDevice, ...]:
        subject = f"devices of {self.resource.name}"
        if not ids:
            raise InvalidInput(subject, found="no device ids", wanted="at least one")
        if len(set(ids)) < len(ids):
            raise InvalidInput(subject, found="an id twice", wanted="each id once")
        unknown = next((each for each in ids if each not in self._devices), None)
        if unknown is not None:
            wanted = f"one of the {len(self._devices)} ids that are offered"
            raise InvalidInput(subject, found=shown(unknown), wanted=wanted)
        return tuple(self._devices[each] for each in ids)
