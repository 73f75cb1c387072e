"""Registration of a device plugin, and what its errors say to the kubelet."""

from pathlib import Path

import grpc
import pytest

from harness.plugins import RESOURCE, ScriptedPlugin
from tessera.clients.kubelet import MemoryKubelet, OptionalCalls, PluginServer, register, serve, sockets
from tessera.errors import Conflict, Unavailable

pytestmark = pytest.mark.anyio


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
        await register(kubelet.socket, endpoint, resource, OptionalCalls())
    await server.stop()


async def test_the_code_tells_what_kind_of_error_it_was(socket_folder: Path) -> None:
    plugin = ScriptedPlugin("a")
    server = await serve(plugin, socket_folder / "p.sock")
    plugin.refusal = Conflict("pod", found="x", expected="y")
    async with grpc.aio.insecure_channel(f"unix:{socket_folder / 'p.sock'}") as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/v1beta1.DevicePlugin/PreStartContainer"
        )
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call(b"", timeout=5)
    assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    await server.stop()


async def test_a_socket_that_a_starting_kubelet_removes_at_once_is_not_reachable(socket_folder: Path) -> None:
    """Else the plugin would never listen again, and the kubelet could not dial it."""
    server, path = grpc.aio.server(), socket_folder / "p.sock"
    sockets.bind(server, path)
    await server.start()
    path.unlink()
    plugin = PluginServer(server, path)
    assert not plugin.reachable
    await plugin.stop()
