"""What all device plugins share: the kubelet's ListAndWatch streams, and the withdrawal of devices."""

import abc
import asyncio
import contextlib
from collections.abc import AsyncGenerator, Container, Iterator
from typing import Generic, Protocol, TypeVar

import msgspec

from tessera.clients.kubelet import OptionalCalls
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.core.deviceplugin.offers.advertise import ListedDevice
from tessera.core.deviceplugin.offers.listing import (
    Withdrawn,
    asked_for,
    known_unhealthy,
    listed,
    staying,
    withdrawn,
)
from tessera.core.deviceplugin.offers.prefer import AllocationPolicy, PreferenceRequest
from tessera.core.gpu.deviceids import DeviceId

__all__ = ["ListedResource", "Offered", "now_s"]


class Offered(Protocol):
    """An advertised resource: a record with a name and its devices."""

    @property
    def name(self) -> str:
        """Return the resource's name."""

    @property
    def devices(self) -> tuple[ListedDevice, ...]:
        """Return the devices that are advertised now."""


OfferT = TypeVar("OfferT", bound=Offered)


class ListedResource(abc.ABC, Generic[OfferT]):
    """A `DevicePlugin` for one resource; its devices change by `update`, and `end` withdraws it.

    Withdrawn devices stay listed as unhealthy until the kubelet cannot have chosen them
    (`core.deviceplugin.offers.listing`): call `drop_unchosen` at intervals; the plugin ends when none is `unsettled`.

    Args:
        resource: advertised at first, a msgspec record.

    """

    def __init__(self, resource: OfferT) -> None:
        self.resource = resource
        self._streams: dict[object, int] = {}
        """Version of the list last sent to each open stream."""
        self._version = 0
        self._ended = False
        self._changed = asyncio.Event()
        self._listed: tuple[ListedDevice, ...] = ()
        """The list for streams: advertised devices, and withdrawn ones that must not be missing yet."""
        self._withdrawn: tuple[Withdrawn, ...] = ()
        self._calls: list[frozenset[str]] = []
        """Ids of kubelet calls in progress."""
        self._set(resource, frozenset())

    def _set(self, resource: OfferT, leaving: frozenset[DeviceId]) -> None:  # noqa: ARG002 - subclasses do
        self.resource = resource
        self._withdrawn = withdrawn(self._listed, self._withdrawn, resource.devices, now_s())
        self._list()

    def _list(self) -> None:
        """Send streams the current list if it changed."""
        devices = listed(self.resource.devices, self._withdrawn, self._listed)
        if devices != self._listed:
            self._listed = devices
            self._version += 1
            self._wake()

    @property
    def listed(self) -> tuple[ListedDevice, ...]:
        """The devices that the kubelet may choose, or may have chosen before it got the current list."""
        return self._listed

    @property
    def streams(self) -> int:
        """Number of open kubelet streams; the kubelet opens one when the plugin is registered."""
        return len(self._streams)

    def update(
        self,
        resource: OfferT,
        *,
        policy: AllocationPolicy = "distributed",  # noqa: ARG002 - for those that prefer by it
        leaving: frozenset[DeviceId] = frozenset(),
    ) -> None:
        """Advertise other devices under the same name; streams get the whole list if anything changed.

        Withdrawn devices in `leaving` are still allocated to pods that the kubelet chose them for before.
        """
        self._set(resource, leaving)

    @property
    def unsettled(self) -> bool:
        """Whether a withdrawn device is still listed."""
        return bool(self._withdrawn)

    @property
    def awaits_kubelet(self) -> bool:
        """Whether the kubelet's healthy devices matter now: it was sent the current list."""
        return self._is_sent() and any(each.known_s is None for each in self._withdrawn)

    def drop_unchosen(self, allocatable: Container[str] | None, asked_s: float) -> None:
        """Stop listing devices that the kubelet cannot have chosen.

        Args:
            allocatable: ids that the kubelet has as healthy; None where unknown.
            asked_s: when it was read, on the loop's clock.

        """
        if not self._withdrawn:
            return
        if allocatable is not None:
            self._withdrawn = known_unhealthy(self._withdrawn, allocatable, asked_s, now_s())
        self._withdrawn = staying(self._withdrawn, self._unclaimed().union(*self._calls), now_s())
        self._list()

    def _unclaimed(self) -> frozenset[str]:
        """Return allocated ids for which the kubelet has recorded no pod yet."""
        return frozenset()

    @contextlib.contextmanager
    def _call(self, ids: tuple[str, ...]) -> Iterator[None]:
        """Keep devices of a kubelet call listed until it has been answered for a while."""
        call = frozenset(ids)
        self._calls.append(call)
        try:
            yield
        finally:
            self._calls.remove(call)
            self._withdrawn = asked_for(self._withdrawn, call, now_s())

    def offers(self, keys: frozenset[DeviceId]) -> bool:  # noqa: ARG002 - subclasses do
        """Return whether one of these devices is advertised by name, or withdrawn and leaving."""
        return False

    def end(self) -> None:
        """Withdraw all devices: streams get an empty list, and end."""
        self._ended = True
        self.resource = msgspec.structs.replace(self.resource, devices=())  # type: ignore[type-var]
        self._withdrawn, self._listed = (), ()
        self._version += 1
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def sent(self, deadline_s: float) -> bool:
        """Return when every open stream was sent the current list; whether that was before the deadline."""
        try:
            async with asyncio.timeout(deadline_s):
                while not self._is_sent():
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _is_sent(self) -> bool:
        return all(each == self._version for each in self._streams.values())

    async def watch(self) -> AsyncGenerator[tuple[ListedDevice, ...], None]:
        """Yield all devices now and after each change, to one stream of the kubelet."""
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

    @property
    @abc.abstractmethod
    def options(self) -> OptionalCalls:
        """Which optional calls are used."""

    @abc.abstractmethod
    async def prefer(self, request: PreferenceRequest) -> tuple[str, ...]:
        """Return the preferred device ids of one container."""

    @abc.abstractmethod
    async def allocate(self, ids: tuple[str, ...]) -> ContainerResponse:
        """Return what one container with these devices gets."""

    @abc.abstractmethod
    async def pre_start(self, ids: tuple[str, ...]) -> None:
        """Prepare the devices of a container before it is created."""


def now_s() -> float:
    """Return the time of the loop's clock."""
    return asyncio.get_running_loop().time()
