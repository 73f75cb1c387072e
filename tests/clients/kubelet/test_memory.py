"""A plugin and a kubelet in one process, over real sockets."""

import functools
from pathlib import Path

import pytest

from harness.plugins import RESOURCE, ScriptedPlugin, connect, devices
from tessera.clients.kubelet import Container, DeviceCheckpoint, MemoryKubelet, PodResources
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.core.deviceplugin.offers.advertise import PluginDevice
from tessera.errors import Conflict, Unavailable

pytestmark = pytest.mark.anyio
ONE = Container(name="main", limits=((RESOURCE, 1),))


async def test_a_registered_plugin_s_devices_become_allocatable(kubelet: MemoryKubelet) -> None:
    plugin = ScriptedPlugin("a", "b")
    server = await connect(plugin, kubelet.plugins)
    await kubelet.until_allocatable(RESOURCE, 2)
    plugin.push(*devices("a", "b", "c", unhealthy=("b",), numa=1))
    await kubelet.until_allocatable(RESOURCE, 2)
    assert kubelet.capacity(RESOURCE) in {2, 3}
    plugin.push(*devices("a", "b", "c", unhealthy=("a", "b")))
    await kubelet.until_allocatable(RESOURCE, 1)
    assert kubelet.capacity(RESOURCE) == 3
    plugin.push()
    await kubelet.until_allocatable(RESOURCE, 0)
    assert kubelet.capacity(RESOURCE) == 0
    await server.stop()


async def test_a_pod_gets_what_the_plugin_prefers_and_answers(kubelet: MemoryKubelet) -> None:
    plugin = ScriptedPlugin("a", "b", "c")
    server = await connect(plugin, kubelet.plugins)
    await kubelet.until_allocatable(RESOURCE, 3)
    await kubelet.admit("default", "p", Container(name="main", limits=((RESOURCE, 2),)))
    response = await kubelet.create("default", "p", "main")
    assert dict(response.env) == {"IDS": "a,b"}
    assert (response.annotations, response.cdi_devices) == ((("a", "b"),), ("tessera.dev/gpu=0",))
    assert plugin.requested == [("prefer", 2), ("allocate", ("a", "b")), ("pre_start", ("a", "b"))]
    held = await PodResources(kubelet.pod_resources).list()
    assert [(each.namespace, each.pod, each.container, each.resource, each.device_ids) for each in held] == [
        ("default", "p", "main", RESOURCE, ("a", "b"))
    ]
    with pytest.raises(Conflict, match="1 available devices"):
        await kubelet.admit("default", "q", Container(name="main", limits=((RESOURCE, 2),)))
    kubelet.remove("default", "p")
    assert await PodResources(kubelet.pod_resources).list() == ()
    await server.stop()


async def test_a_refused_pod_holds_nothing(kubelet: MemoryKubelet) -> None:
    plugin = ScriptedPlugin("a", "b")
    server = await connect(plugin, kubelet.plugins)
    await kubelet.until_allocatable(RESOURCE, 2)
    plugin.refusal = Conflict("pod", found="none assigned here", expected="an assignment")
    with pytest.raises(Conflict, match="pod: none assigned here is not an assignment"):
        await kubelet.admit("default", "p", ONE)
    assert await PodResources(kubelet.pod_resources).list() == ()
    plugin.refusal = None
    await kubelet.admit("default", "p", ONE)
    plugin.refusal = Conflict("container", found="another GPU", expected="this one")
    with pytest.raises(Conflict, match="another GPU"):
        await kubelet.create("default", "p", "main")
    await server.stop()


class Forgetful(ScriptedPlugin):
    """Lists other devices by the time that it answers `Allocate`."""

    after: tuple[PluginDevice, ...] = ()

    async def allocate(self, ids: tuple[str, ...]) -> ContainerResponse:
        self.push(*self.after)
        await self.taken(len(self.after))
        return await super().allocate(ids)

    async def taken(self, count: int) -> None:
        raise AssertionError(count)


async def test_a_device_that_is_not_listed_when_its_allocate_is_answered_ends_the_kubelet(socket_folder: Path) -> None:
    kubelet, plugin = MemoryKubelet(socket_folder), Forgetful("a", "b", "c")
    plugin.taken = functools.partial(kubelet.until_capacity, RESOURCE)  # type: ignore[method-assign]
    await kubelet.start()
    server = await connect(plugin, kubelet.plugins)
    await kubelet.until_allocatable(RESOURCE, 3)
    plugin.after = devices("a", "c", unhealthy=("a",))
    await kubelet.admit("default", "sound", ONE)
    plugin.after = devices("a")
    with pytest.raises(Unavailable, match="panic"):
        await kubelet.admit("default", "p", ONE)
    await server.stop()
    with pytest.raises(Unavailable, match="panic: nil pointer dereference: c of nvidia"):
        await kubelet.__aexit__(None)
    assert len(kubelet.panics) == 1


async def test_what_nobody_registered_is_left_out(kubelet: MemoryKubelet) -> None:
    await kubelet.admit("default", "p", ONE)
    assert await kubelet.create("default", "p", "main") == ContainerResponse()
    assert await PodResources(kubelet.pod_resources).list() == ()
    with pytest.raises(Unavailable, match=r"0 healthy devices after 0\.05 s"):
        await kubelet.until_allocatable(RESOURCE, 1, deadline_s=0.05)


async def test_a_kubelet_without_its_record_knows_no_resource_of_before(kubelet: MemoryKubelet) -> None:
    server = await connect(ScriptedPlugin("a"), kubelet.plugins)
    await kubelet.until_allocatable(RESOURCE, 1)
    checkpoint = DeviceCheckpoint(kubelet.plugins)
    assert checkpoint.resources() == {RESOURCE}
    await kubelet.admit("default", "p", ONE)
    await kubelet.restart()
    with pytest.raises(Conflict, match="no healthy device"):
        await kubelet.admit("default", "q", ONE)
    await kubelet.restart(without_record=True)
    assert not checkpoint.is_readable()
    await kubelet.admit("default", "q", ONE)
    assert checkpoint.read() == ()
    await server.stop()


async def test_a_restart_removes_sockets_and_keeps_what_pods_hold(kubelet: MemoryKubelet) -> None:
    plugin = ScriptedPlugin("a", "b")
    server = await connect(plugin, kubelet.plugins)
    await kubelet.until_allocatable(RESOURCE, 2)
    await kubelet.admit("default", "p", ONE)
    (kubelet.plugins / "kubelet_internal_checkpoint").touch()
    before = kubelet.socket.stat().st_ino
    await kubelet.restart()
    assert sorted(path.name for path in kubelet.plugins.iterdir()) == ["kubelet.sock", "kubelet_internal_checkpoint"]
    assert (kubelet.socket.stat().st_ino, kubelet.registrations) != (before, [RESOURCE])
    assert not server.reachable
    assert (kubelet.allocatable(RESOURCE), len(await PodResources(kubelet.pod_resources).list())) == (0, 1)
    await server.stop()
    again = await connect(plugin, kubelet.plugins)
    await kubelet.until_allocatable(RESOURCE, 2)
    assert kubelet.registrations == [RESOURCE]
    await again.stop()
