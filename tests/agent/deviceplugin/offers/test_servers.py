"""Servers of device plugins: what goes wrong with one keeps none of the others from the kubelet."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from builders.deviceplugins import gate
from builders.gpunodes import facts, offered
from builders.nodeviews import RecordedPods
from builders.offeredresources import IdsHandover
from tessera.agent.deviceplugin import OfferedResource
from tessera.agent.deviceplugin.offers.servers import PluginServers
from tessera.clients.kubelet import MemoryKubelet, OptionalCalls
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.core.deviceplugin.offers.advertise import Resource
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.log import logger

pytestmark = pytest.mark.anyio

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb"
WHOLE = offered((facts(0, "T4"), Sharing(modes=(Mode.WHOLE,))))[GPU]


class Shares:
    """Decides about nothing: these resources go by name."""

    async def forget_former(self) -> None:
        return None

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> ContainerResponse:
        raise AssertionError((resource, ids))

    async def pre_start(self, resource: str, ids: tuple[str, ...]) -> None:
        raise AssertionError((resource, ids))


class Defective(OfferedResource):
    """One that nobody thought of."""

    broken = True

    @property
    def options(self) -> OptionalCalls:
        if self.broken:
            raise KeyError("options")
        return super().options


async def allocatable() -> Mapping[str, frozenset[str]]:
    return {}


async def test_a_defect_in_one_resource_is_logged_once_and_keeps_no_other_from_the_kubelet(socket_folder: Path) -> None:
    own = gate(RecordedPods())

    def make(resource: Resource) -> OfferedResource:
        return (Defective if resource.name == MIG else OfferedResource)(resource, IdsHandover(), own, Shares())

    async with MemoryKubelet(socket_folder) as kubelet:
        servers = PluginServers(kubelet.plugins, make, allocatable, logger())
        resources = (Resource(name=MIG, devices=WHOLE.devices, by_assignment=False), WHOLE)
        with capture_logs() as logs:
            await servers.offer(resources, policy="distributed")
            await servers.tend()
        await kubelet.until_allocatable(GPU, 1)
        assert list(servers.problems) == [f"resource {MIG}: 'options'"]
        (told,) = (each for each in logs if each["event"] == "resource_not_advertised")
        assert isinstance(told["exc_info"], KeyError)
        Defective.broken = False
        await servers.tend()
        await kubelet.until_allocatable(MIG, 1)
        assert list(servers.problems) == []
        await servers.close()


async def test_who_offers_while_the_servers_end_or_after_takes_no_resource_from_the_next_agent(
    socket_folder: Path,
) -> None:
    own = gate(RecordedPods())

    def make(resource: Resource) -> OfferedResource:
        return OfferedResource(resource, IdsHandover(), own, Shares())

    async with MemoryKubelet(socket_folder) as kubelet:
        servers = PluginServers(kubelet.plugins, make, allocatable, logger())
        assert await servers.offer((WHOLE,), policy="distributed")
        await kubelet.restart()
        async with asyncio.TaskGroup() as group:
            # The kubelet has forgotten the resource, so each of these would register it.
            group.create_task(servers.close())
            during = group.create_task(servers.offer((WHOLE,), policy="distributed"))
            group.create_task(servers.tend())
        after = await servers.offer((WHOLE,), policy="distributed")
        await servers.tend()
        assert (during.result(), after) == (False, False)
        assert kubelet.registrations == []
        assert [each.name for each in kubelet.plugins.iterdir() if each.is_socket()] == [kubelet.socket.name]


async def test_a_restart_of_the_kubelet_ends_the_wait_for_it(socket_folder: Path) -> None:
    async with MemoryKubelet(socket_folder) as kubelet:
        servers = PluginServers[Resource](
            kubelet.plugins, lambda _: pytest.fail("nothing is offered"), allocatable, logger()
        )
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            waiting = group.create_task(servers.until_restarted(600))
            await servers.until_restarted(0.1)
            await kubelet.stop()
            await servers.until_restarted(0.1)
            assert not waiting.done()
            await kubelet.start()
        await servers.close()


async def test_the_end_does_not_wait_for_what_is_still_to_be_registered(socket_folder: Path) -> None:
    own = gate(RecordedPods())
    ending: list[asyncio.Task[None]] = []

    class Ending(OfferedResource):
        @property
        def options(self) -> OptionalCalls:
            ending.append(asyncio.create_task(servers.close()))
            return super().options

    def make(resource: Resource) -> OfferedResource:
        return (Ending if not servers.listed else OfferedResource)(resource, IdsHandover(), own, Shares())

    async with MemoryKubelet(socket_folder) as kubelet:
        servers = PluginServers(kubelet.plugins, make, allocatable, logger())
        second = Resource(name=MIG, devices=WHOLE.devices, by_assignment=False)
        assert not await servers.offer((WHOLE, second), policy="distributed")
        await asyncio.gather(*ending)
        assert kubelet.registrations == [GPU], "the one that was being registered"
