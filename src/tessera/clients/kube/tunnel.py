"""A connection to a port of a pod through the API server, as in `kubectl port-forward`."""

from tessera.clients.connections import Broken, WebSocket
from tessera.errors import Unavailable, shown

__all__ = ["PROTOCOL", "PodTunnel"]

PROTOCOL = "v4.channel.k8s.io"
"""Each message begins with its channel; 0 is the data of the first port, 1 its errors.

The first message of each channel is the port in two bytes. There is no way to say that one direction has ended.
Source: Kubernetes, `k8s.io/kubelet/pkg/cri/streaming/portforward/websocket.go`.
"""
_DATA, _ERROR = b"\0", b"\1"
_PORT_BYTES = 2


class PodTunnel:
    """A `Tunnel` over a WebSocket.

    Args:
        subject: its target, for errors.
        socket: the connection to the API server.

    """

    def __init__(self, subject: str, socket: WebSocket) -> None:
        self._subject = subject
        self._socket = socket
        self._begun: set[bytes] = set()

    async def send(self, content: bytes) -> None:
        """Send bytes to the pod."""
        try:
            await self._socket.send(_DATA + content)
        except Broken as error:
            raise self._broken(shown(error)) from error

    async def receive(self) -> bytes:
        """Return the next bytes of the pod; empty when it has ended the connection."""
        while True:
            try:
                message = await self._socket.receive()
            except Broken as error:
                raise self._broken(shown(error)) from error
            if message is None:
                return b""
            channel, content = message[:1], message[1:]
            if channel not in self._begun:
                self._begun.add(channel)
                content = content[_PORT_BYTES:]
            if content and channel == _ERROR:
                raise self._broken(shown(content.decode(errors="replace")))
            if content and channel == _DATA:
                return content

    def _broken(self, found: str) -> Unavailable:
        return Unavailable(self._subject, found=found, hint="check that a container listens there, on localhost too")
