"""The gRPC servers of this node's device plugins: listening and registered, again after a restart of the kubelet."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from tessera.agent.deviceplugin.offers.listed import ListedResource, Offered
from tessera.clients.kubelet import PluginServer, register, serve
from tessera.clients.kubelet.sockets import SocketIdentity, identity
from tessera.core.deviceplugin.offers.prefer import AllocationPolicy
from tessera.core.gpu.deviceids import DeviceId
from tessera.errors import TesseraError
from tessera.log import Logger, RepeatedError
from tessera.loops import one_turn

__all__ = ["PluginServers"]

_EMPTY_S = 2.0
"""How long the kubelet may take to read the empty list of a withdrawn resource."""
_STREAM_S = 3.0
"""A registered plugin without a kubelet stream for this long registers again: the kubelet forgets a plugin that
registers while it notices that an earlier stream ended (kubernetes v1.36 `plugin/v1beta1/handler.go`)."""

_LOOK_S = 0.02
"""How often `until_restarted` looks: about 0.1 s after its socket a kubelet reports what has not registered as 0."""
_LONGEST_NAME = 64
"""Characters of a resource in the name of its socket, whose path has at most 107."""

OfferT = TypeVar("OfferT", bound=Offered)


class _Server(Generic[OfferT]):
    """A resource's plugin, and the state of its registration."""

    def __init__(self, plugin: ListedResource[OfferT], complain: RepeatedError) -> None:
        self.plugin = plugin
        self.desired = True
        """Whether the resource is advertised; if not, it ends as soon as the kubelet cannot have chosen any of it."""
        self.server: PluginServer | None = None
        self.registered: SocketIdentity | None = None
        """The kubelet it registered with, by its socket."""
        self.checked_s = 0.0
        """When it registered, or last had a stream of the kubelet, on the loop's clock."""
        self.complain = complain


class PluginServers(Generic[OfferT]):
    """Servers of device plugins in the kubelet's folder.

    Args:
        folder: the kubelet's folder of plugins, with its `kubelet.sock`.
        make: returns the plugin of a resource.
        allocatable: returns the ids that the kubelet has as healthy, by resource.
        log: for registrations and failures.

    """

    def __init__(
        self,
        folder: Path,
        make: Callable[[OfferT], ListedResource[OfferT]],
        allocatable: Callable[[], Awaitable[Mapping[str, frozenset[str]]]],
        log: Logger,
    ) -> None:
        self._folder = folder
        self._kubelet = folder / "kubelet.sock"
        self._make = make
        self._allocatable = allocatable
        self._log = log
        self._servers: dict[str, _Server[OfferT]] = {}
        self.registered = asyncio.Event()
        """Set after each registration."""
        self._turn = asyncio.Lock()
        self._ending = False
        """Whether nothing may be registered any more: the resources belong to the next agent."""

    @property
    def problems(self) -> tuple[str, ...]:
        """What keeps resources from being advertised; one sentence each, none when all are."""
        reasons = ((name, each.complain.reason) for name, each in self._servers.items())
        return tuple(f"resource {name}: {reason}" for name, reason in reasons if reason)

    @property
    def listed(self) -> dict[str, frozenset[str]]:
        """The devices that the kubelet may choose, or may have chosen before it got the current list, by resource."""
        return {name: frozenset(one.id for one in each.plugin.listed) for name, each in self._servers.items()}

    @property
    def resources(self) -> tuple[OfferT, ...]:
        """What is advertised."""
        return tuple(each.plugin.resource for each in self._servers.values())

    @property
    def unsettled(self) -> frozenset[str]:
        """Resources with a withdrawn device that is still listed."""
        return frozenset(name for name, each in self._servers.items() if each.plugin.unsettled)

    async def offer(
        self,
        resources: Iterable[OfferT],
        *,
        policy: AllocationPolicy,
        leaving: frozenset[DeviceId] = frozenset(),
        deadline_s: float = 5.0,
    ) -> bool:
        """Advertise exactly these resources; return whether all streams of the kubelet got the lists in time.

        Advertises nothing and returns False once `close` is called.

        Args:
            resources: to advertise.
            policy: which replicas are preferred.
            leaving: withdrawn devices that are still allocated to pods the kubelet chose them for before.
            deadline_s: for the kubelet to take the lists.

        """
        async with self._turn:
            if self._ending:
                return False
            desired = {resource.name: resource for resource in resources}
            for name, each in self._servers.items():
                each.desired = name in desired or each.plugin.offers(leaving)
                if name not in desired:
                    # Withdraw first: the same devices may come under other names.
                    nothing = msgspec.structs.replace(each.plugin.resource, devices=())  # type: ignore[type-var]
                    each.plugin.update(nothing, policy=policy, leaving=leaving)
                    await each.plugin.sent(_EMPTY_S)
            for name, resource in desired.items():
                if name in self._servers:
                    self._servers[name].plugin.update(resource, policy=policy, leaving=leaving)
                else:
                    complain = RepeatedError(self._log, "resource_not_advertised", resource=name)
                    self._servers[name] = _Server(self._make(resource), complain)
            await self._tend()
            async with asyncio.TaskGroup() as group:
                sent = [group.create_task(each.plugin.sent(deadline_s)) for each in self._servers.values()]
            return all(task.result() for task in sent) and not self._ending

    async def tend(self) -> None:
        """Serve and register where needed: at first, after a restart of the kubelet, after a failure.

        Withdrawn devices leave the lists, and resources the kubelet, when that is safe.
        """
        asked_s, known = asyncio.get_running_loop().time(), await self._known()
        async with self._turn:
            for name, each in self._servers.items():
                each.plugin.drop_unchosen(known.get(name), asked_s)
            await self._tend()

    async def until_restarted(self, longest_s: float) -> None:
        """Return when the kubelet has a new socket, or after the timeout."""
        before = identity(self._kubelet)
        for _ in range(round(longest_s / _LOOK_S)):
            if identity(self._kubelet) not in (before, None):
                return
            await asyncio.sleep(_LOOK_S)

    async def _known(self) -> Mapping[str, frozenset[str]]:
        """Return the kubelet's healthy devices of resources that need to know; nothing where it does not answer."""
        awaited = [name for name, each in self._servers.items() if each.plugin.awaits_kubelet]
        if not awaited:
            return {}
        try:
            found = await self._allocatable()
        except TesseraError:
            return {}  # withdrawn devices stay unhealthy until it answers
        return {name: found.get(name, frozenset()) for name in awaited}

    async def close(self) -> None:
        """Stop all servers for good; the kubelet keeps the resources for five minutes, without healthy devices.

        A registration in progress ends first, and none follows it: it would replace that of the next agent.
        """
        self._ending = True
        async with self._turn:
            for each in self._servers.values():
                if each.server is not None:
                    await each.server.stop()
            self._servers.clear()

    async def _tend(self) -> None:
        for name in [name for name, each in self._servers.items() if not each.desired and not each.plugin.unsettled]:
            each = self._servers.pop(name)
            await one_turn(partial(self._withdraw, each), each.complain)
        for name, each in self._servers.items():
            if self._ending:
                return
            # A defect in one resource does not stop the others.
            await one_turn(partial(self._keep_up, name, each), each.complain)

    async def _keep_up(self, name: str, entry: _Server[OfferT]) -> None:
        await self._listen(name, entry)
        await self._register(name, entry)

    async def _listen(self, name: str, entry: _Server[OfferT]) -> None:
        if entry.server is not None and entry.server.reachable:
            return
        if entry.server is not None:
            # The old one first: the kubelet disconnects the registered plugin when an old stream ends.
            await entry.server.stop()
            entry.server = None
        entry.registered = None
        entry.server = await serve(entry.plugin, self._folder / _endpoint(name))

    async def _register(self, name: str, entry: _Server[OfferT]) -> None:
        kubelet, now_s = identity(self._kubelet), asyncio.get_running_loop().time()
        if entry.plugin.streams:
            entry.checked_s = now_s
        if kubelet is not None and entry.registered == kubelet and now_s - entry.checked_s < _STREAM_S:
            return
        await register(self._kubelet, _endpoint(name), name, entry.plugin.options)
        entry.registered, entry.checked_s = kubelet, now_s
        entry.complain.clear()
        self.registered.set()
        self._log.info("resource_advertised", resource=name, devices=len(entry.plugin.resource.devices))

    async def _withdraw(self, entry: _Server[OfferT]) -> None:
        entry.plugin.end()
        try:
            await entry.plugin.sent(_EMPTY_S)
        finally:
            if entry.server is not None:
                await entry.server.stop()
        self._log.info("resource_withdrawn", resource=entry.plugin.resource.name)


def _endpoint(resource: str) -> str:
    """Return the file name of a resource's socket; names are unique, and a long one is its digest."""
    name = resource.replace("/", "_")
    if len(name) > _LONGEST_NAME:
        name = hashlib.sha256(resource.encode()).hexdigest()[:32]
    return f"tessera-{name}.sock"
