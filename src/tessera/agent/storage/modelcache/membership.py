"""Which nodes share the model that is being fetched: read from their NodeModels, again and again while it lasts."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

from tessera.agent.storage.models.peers.peerchunks import PeerChunks
from tessera.api.tessera.v1alpha1.modelcaches import read_node_models
from tessera.clients.kube import NODE_MODELS, Kube
from tessera.core.storage.models.nodemodels import DesiredModel
from tessera.core.storage.models.peers.members import peers_of, refresh_interval_s
from tessera.core.usage.ownmetrics import MODEL_BYTES_READ, MODEL_BYTES_SERVED, PEERS_BANNED
from tessera.errors import InvalidInput, TesseraError
from tessera.measures import Measures

__all__ = ["Membership", "membership"]

_FIRST_REFRESH_S, _REFRESH_S = 1.0, 30.0
"""Between two reads of which nodes fetch the same model: soon after the start, because not all learn of it at once."""


class Membership(Protocol):
    """The peers of a node."""

    @property
    def address(self) -> str:
        """Its own address for peers; empty if it serves none."""

    async def refresh(self, model: DesiredModel) -> None:
        """Read which nodes fetch this model, too."""

    async def follow(self, fetched: Callable[[], DesiredModel | None]) -> None:
        """Keep the peers up to date while a model is fetched; `fetched` returns it, or None."""

    def report(self, measures: Measures) -> None:
        """Count what comes from peers and goes to them."""


def membership(peers: PeerChunks | None, kube: Kube) -> Membership:
    """Return the membership of a node; without peers it does nothing."""
    return _Alone() if peers is None else _Peers(peers, kube)


class _Alone:
    """A node that fetches everything from the source."""

    address = ""

    async def refresh(self, model: DesiredModel) -> None:
        """Do nothing."""

    async def follow(self, fetched: Callable[[], DesiredModel | None]) -> None:
        """Do nothing."""

    def report(self, measures: Measures) -> None:
        """Do nothing."""


class _Peers:
    """A node among others.

    Args:
        peers: gets the addresses.
        kube: has the NodeModels of all nodes.

    """

    def __init__(self, peers: PeerChunks, kube: Kube) -> None:
        self._peers = peers
        self._kube = kube
        self._listed = 0
        """Number of nodes when they were last read."""

    @property
    def address(self) -> str:
        """Its own address for peers."""
        return self._peers.me

    async def refresh(self, model: DesiredModel) -> None:
        """Read which nodes fetch this model, too; if the API server does not answer, the node fetches it alone."""
        nodes = []
        with contextlib.suppress(TesseraError):
            found = (await self._kube.list(NODE_MODELS)).objects
            self._listed = len(found)
            for each in found:
                with contextlib.suppress(InvalidInput):  # an agent of another version must not stop this one
                    nodes.append(read_node_models(each))
        await asyncio.to_thread(self._peers.set_peers, peers_of(model, nodes))

    async def follow(self, fetched: Callable[[], DesiredModel | None]) -> None:
        """Keep the peers up to date while a model is fetched, until canceled."""
        pause = _FIRST_REFRESH_S
        while True:
            await asyncio.sleep(refresh_interval_s(pause, self._listed))
            model = fetched()
            pause = _FIRST_REFRESH_S if model is None else min(2 * pause, _REFRESH_S)
            if model is not None:
                await self.refresh(model)

    def report(self, measures: Measures) -> None:
        """Count what comes from peers and goes to them."""
        read = {"peers": self._peers.bytes_from_peers, "stores": self._peers.bytes_from_stores}
        measures.set(MODEL_BYTES_READ, {(("source", each),): count for each, count in read.items()})
        measures.set(MODEL_BYTES_SERVED, {(): self._peers.bytes_served})
        measures.set(PEERS_BANNED, {(): len(self._peers.banned)})
