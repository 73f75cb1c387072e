"""The peer port of a node, while the agent runs: serves chunks, and reloads renewed certificates."""

import asyncio
import socket
from collections.abc import Callable
from functools import partial

import msgspec

from tessera.agent.storage.models.peers.peerchunks import PeerChunks
from tessera.agent.storage.models.peers.peerserver import PeerServer
from tessera.agent.storage.models.peers.peersharing import PeerSharing
from tessera.certificates import Certificates, Tls, asking_context_of, context_of
from tessera.clients.store.peers import PeerConnections
from tessera.core.storage.models.peers.owners import PeerPatience
from tessera.errors import Unavailable
from tessera.log import Logger
from tessera.measures import Measures

__all__ = ["PeerService", "PeerSettings"]

_RELOAD_S, _RETRY_S = 60.0, 10.0


class PeerSettings(msgspec.Struct, frozen=True):
    """Address and certificates for sharing chunks with peers.

    Args:
        host: address of the pod; the port listens only there.
        port: number.
        tls: certificate, key and the CA of all agents.

    """

    host: str
    port: int
    tls: Tls

    @property
    def address(self) -> str:
        """Address and port for peers."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class PeerService:
    """The port, and the known peers.

    Args:
        settings: address and certificates.
        log: records banned peers.

    Raises:
        InvalidInput: the TLS files.

    """

    def __init__(self, settings: PeerSettings, log: Logger) -> None:
        self._settings = settings
        self._log = log
        patience = PeerPatience()
        self._answering, self._asking = context_of(settings.tls), asking_context_of(settings.tls)
        connections = PeerConnections(self._asking, patience)
        self.peers = PeerChunks(settings.address, connections, patience, self._banned)
        self.sharing = PeerSharing(self.peers)

    def _banned(self, peer: str, what: str) -> None:
        self._log.error("peer_banned", peer=peer, wrong=what)

    async def run(self, measures: Measures | None = None) -> None:
        """Serve chunks until canceled; while the port cannot be opened, that is logged and retried.

        The age of loop `peers` is that of the last check of the certificates while the port is open.
        """
        while True:
            try:
                await self.serve(partial(measures.turned, "peers") if measures else lambda: None)
            except Unavailable as error:
                self._log.error("peers_not_served", reason=str(error))
            await asyncio.sleep(_RETRY_S)

    async def serve(self, checked: Callable[[], None] = lambda: None) -> None:
        """Serve chunks until canceled.

        Raises:
            Unavailable: the port is in use, or the address is not this pod's.

        """
        settings = self._settings
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        try:
            listener = socket.create_server((settings.host, settings.port), family=family, backlog=128)
        except OSError as error:
            found, fix = error.strerror or str(error), "free it, or choose another with --peer-port"
            raise Unavailable(f"port of peers {settings.address}", found=found, hint=fix) from error
        server = PeerServer(listener, self._answering, self.peers.served, self.peers.patience, self.peers.count_served)
        server.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                for context in (self._answering, self._asking):
                    tasks.create_task(Certificates(settings.tls, context, self._log).follow(_RELOAD_S, checked))
        finally:
            await asyncio.to_thread(server.close)
            self.peers.close()
