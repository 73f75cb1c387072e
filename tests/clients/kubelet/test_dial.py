"""The kubelet's connection to a device plugin."""

import random
from pathlib import Path

import pytest

from harness.plugins import RESOURCE, ScriptedPlugin, connect
from tessera.clients.kubelet import Container, MemoryKubelet, OptionalCalls, register, serve

pytestmark = pytest.mark.anyio


ONE = Container(name="main", limits=((RESOURCE, 1),))


async def test_a_plugin_without_wishes_is_not_asked(socket_folder: Path) -> None:
    async with MemoryKubelet(socket_folder, random.Random(1)) as kubelet:
        plugin = ScriptedPlugin(*"abcdef", options=OptionalCalls(preferred=False))
        server = await connect(plugin, kubelet.plugins)
        await kubelet.until_allocatable(RESOURCE, 6)
        await kubelet.admit("default", "p", ONE)
        await kubelet.create("default", "p", "main")
        assert [call for call, _ in plugin.requested] == ["allocate"]
        await server.stop()


async def test_the_end_of_the_stream_makes_all_devices_unhealthy(kubelet: MemoryKubelet) -> None:
    plugin = ScriptedPlugin("a")
    server = await connect(plugin, kubelet.plugins)
    await kubelet.until_allocatable(RESOURCE, 1)
    plugin.end()
    await kubelet.until_allocatable(RESOURCE, 0)
    assert kubelet.capacity(RESOURCE) == 1
    await server.stop()


async def test_a_dead_plugin_s_devices_become_unhealthy(kubelet: MemoryKubelet) -> None:
    server = await connect(ScriptedPlugin("a"), kubelet.plugins)
    await kubelet.until_allocatable(RESOURCE, 1)
    await server.stop()
    await kubelet.until_allocatable(RESOURCE, 0)
    assert not server.socket.exists()


async def test_the_end_of_an_old_stream_disconnects_the_plugin_that_registered_since(kubelet: MemoryKubelet) -> None:
    """As the real one does: it looks up by resource name whom to disconnect."""
    old, new = ScriptedPlugin("a"), ScriptedPlugin("a", "b")
    first = await connect(old, kubelet.plugins)
    await kubelet.until_allocatable(RESOURCE, 1)
    second = await serve(new, kubelet.plugins / "second.sock")
    await register(kubelet.socket, "second.sock", RESOURCE, new.options)
    await kubelet.until_allocatable(RESOURCE, 2)
    old.end()
    await kubelet.until_allocatable(RESOURCE, 0)
    await first.stop()
    await second.stop()
