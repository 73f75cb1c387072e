"""A plugin and a kubelet in one process, over real sockets."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from harness.plugins import RESOURCE, ScriptedPlugin, connect, devices
from tessera.clients.kubelet import Container, MemoryKubelet, PluginOptions, PodResources, register, serve
from tessera.errors import Conflict, InvalidInput, Unavailable

pytestmark = pytest.mark.anyio
ONE = Container(name="main", limits=((RESOURCE, 1),))


@pytest.fixture
async def kubelet(socket_folder: Path) -> AsyncIterator[MemoryKubelet]:
    async with MemoryKubelet(socket_folder) as running:
        yield running


async def test_a_registered_plugin_s_devices_become_allocatable(kubelet: MemoryKubelet) -> None:
    plugin = ScriptedPlugin("a", "b")
    server = await connect(plugin, kubelet.plugins)
    await kubelet.until_allocatable(RESOURCE, 2)
    plugin.push(*devices("a", "b", "c", sick=("b",), numa=1))
    await kubelet.until_allocatable(RESOURCE, 2)
    assert kubelet.capacity(RESOURCE) in {2, 3}
    plugin.push(*devices("a", "b", "c", sick=("a", "b")))
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
    grant = await kubelet.create("default", "p", "main")
    assert dict(grant.env) == {"IDS": "a,b"}
    assert (grant.annotations, grant.cdi_devices) == ((("a", "b"),), ("tessera.dev/gpu=0",))
    assert plugin.asked == [("prefer", 2), ("allocate", ("a", "b")), ("pre_start", ("a", "b"))]
    held = await PodResources(kubelet.pod_resources).list()
    assert [(each.namespace, each.pod, each.container, each.resource, each.device_ids) for each in held] == [
        ("default", "p", "main", RESOURCE, ("a", "b"))
    ]
    with pytest.raises(Conflict, match="1 available devices"):
        await kubelet.admit("default", "q", Container(name="main", limits=((RESOURCE, 2),)))
    kubelet.remove("default", "p")
    assert await PodResources(kubelet.pod_resources).list() == ()
    await server.stop()


async def test_a_plugin_without_wishes_is_not_asked(socket_folder: Path) -> None:
    async with MemoryKubelet(socket_folder, random.Random(1)) as kubelet:
        plugin = ScriptedPlugin(*"abcdef", options=PluginOptions(preferred=False))
        server = await connect(plugin, kubelet.plugins)
        await kubelet.until_allocatable(RESOURCE, 6)
        await kubelet.admit("default", "p", ONE)
        await kubelet.create("default", "p", "main")
        assert [call for call, _ in plugin.asked] == ["allocate"]
        await server.stop()


async def test_a_refused_pod_holds_nothing(kubelet: MemoryKubelet) -> None:
    plugin = ScriptedPlugin("a", "b")
    server = await connect(plugin, kubelet.plugins)
    await kubelet.until_allocatable(RESOURCE, 2)
    plugin.refusal = Conflict("pod", found="none assigned here", wanted="an assignment")
    with pytest.raises(Conflict, match="pod: found none assigned here, wanted an assignment"):
        await kubelet.admit("default", "p", ONE)
    assert await PodResources(kubelet.pod_resources).list() == ()
    plugin.refusal = None
    await kubelet.admit("default", "p", ONE)
    plugin.refusal = Conflict("container", found="another GPU", wanted="this one")
    with pytest.raises(Conflict, match="another GPU"):
        await kubelet.create("default", "p", "main")
    await server.stop()


async def test_what_nobody_registered_is_refused(kubelet: MemoryKubelet) -> None:
    with pytest.raises(Conflict, match="no healthy device"):
        await kubelet.admit("default", "p", ONE)
    with pytest.raises(Unavailable, match=r"0 healthy devices after 0\.05 s"):
        await kubelet.until_allocatable(RESOURCE, 1, deadline_s=0.05)


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


async def test_too_many_questions_are_asked_again_until_the_deadline(kubelet: MemoryKubelet) -> None:
    kubelet.refused_lists = 3
    assert await PodResources(kubelet.pod_resources).list() == ()
    kubelet.refused_lists = 1000
    with pytest.raises(Unavailable, match="no answer"):
        await PodResources(kubelet.pod_resources, deadline_s=0.2).list()


async def test_one_connection_serves_many_calls_and_is_renewed(kubelet: MemoryKubelet) -> None:
    async with PodResources(kubelet.pod_resources) as record:
        assert await record.list() == await record.list() == ()
        await kubelet.restart()
        assert await record.list() == ()
        await kubelet.stop()
        with pytest.raises(Unavailable):
            await record.list()
        await kubelet.start()
        assert await record.list() == ()


async def test_questions_at_the_same_time_are_all_answered(kubelet: MemoryKubelet) -> None:
    """The end of one must not cancel another: a cancelled loop of the agent would end without a word."""
    resources = PodResources(kubelet.pod_resources)
    assert await asyncio.gather(*(resources.list() for _ in range(20))) == [()] * 20
    async with resources:
        assert await asyncio.gather(*(resources.list() for _ in range(20))) == [()] * 20


async def test_a_kubelet_that_is_not_there(socket_folder: Path) -> None:
    with pytest.raises(Unavailable, match="PodResources within 5 s"):
        await PodResources(socket_folder / "kubelet.sock").list()
    with pytest.raises(Unavailable, match=RESOURCE):
        await register(socket_folder / "kubelet.sock", "x.sock", RESOURCE, PluginOptions())


async def test_a_kubelet_that_does_not_answer(socket_folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(socket_folder / "kubelet.sock"))
        silent.listen()
        with pytest.raises(Unavailable, match=r"no answer in 0\.2 s"):
            await register(socket_folder / "kubelet.sock", "x.sock", RESOURCE, PluginOptions(), deadline_s=0.2)
        with pytest.raises(Unavailable, match="no answer"):
            await PodResources(socket_folder / "kubelet.sock", deadline_s=0.2).list()


# sentence: (endpoint, resource, what the kubelet says)
REFUSED = {
    "a socket that is not there": ("absent.sock", RESOURCE, "failed to dial device plugin"),
    "a name without a domain": ("p.sock", "gpu", "the ResourceName 'gpu' is invalid"),
    "a name of Kubernetes itself": ("p.sock", "kubernetes.io/gpu", "is invalid"),
    "an empty name": ("p.sock", "", "is invalid"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_registrations_that_a_kubelet_refuses(kubelet: MemoryKubelet, case: str) -> None:
    endpoint, resource, want = REFUSED[case]
    server = await serve(ScriptedPlugin("a"), kubelet.plugins / "p.sock")
    with pytest.raises(Unavailable, match=want):
        await register(kubelet.socket, endpoint, resource, PluginOptions())
    await server.stop()


async def test_a_stale_socket_is_replaced(socket_folder: Path) -> None:
    path = socket_folder / "p.sock"
    first = await serve(ScriptedPlugin("a"), path)
    second = await serve(ScriptedPlugin("a"), path)
    assert (first.reachable, second.reachable) == (False, True)
    await first.stop()
    assert second.reachable
    await second.stop()
    path.write_text("not a socket")
    third = await serve(ScriptedPlugin("a"), path)
    assert third.reachable
    await third.stop()


# sentence: (path, error, what it says)
UNUSABLE: dict[str, tuple[str, type[Exception], str]] = {
    "a path of more bytes than a socket has": (f"/tmp/{'é' * 60}.sock", InvalidInput, "130 bytes"),
    "a folder that is not there": ("/tmp/tessera-absent/p.sock", Unavailable, "No such file or directory"),
    "a folder that cannot be written": ("/sys/p.sock", Unavailable, "writ"),
    "a file in place of the folder": ("/etc/passwd/p.sock", Unavailable, "Not a directory"),
    "a folder in place of the socket": ("/tmp/..", Unavailable, "directory"),
}


@pytest.mark.parametrize("case", UNUSABLE)
async def test_where_no_socket_can_be(case: str) -> None:
    path, error, want = UNUSABLE[case]
    with pytest.raises(error, match=want):
        await serve(ScriptedPlugin("a"), Path(path))


async def test_the_code_tells_what_kind_of_error_it_was(socket_folder: Path) -> None:
    plugin = ScriptedPlugin("a")
    server = await serve(plugin, socket_folder / "p.sock")
    plugin.refusal = Conflict("pod", found="x", wanted="y")
    async with grpc.aio.insecure_channel(f"unix:{socket_folder / 'p.sock'}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/v1beta1.DevicePlugin/PreStartContainer"
        )
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call(b"", timeout=5)
    assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    await server.stop()


async def test_calls_at_the_same_time_do_not_disturb_each_other(kubelet: MemoryKubelet) -> None:
    record = PodResources(kubelet.pod_resources)
    assert await asyncio.gather(*(record.list() for _ in range(8))) == [()] * 8
