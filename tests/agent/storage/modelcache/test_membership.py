"""Which nodes a node shares a model with, by their NodeModels."""

import ssl
from typing import Any

import pytest

from tessera.agent.storage.modelcache.membership import membership
from tessera.agent.storage.models.peers.peerchunks import PeerChunks
from tessera.api.tessera.v1alpha1.modelcaches import API_VERSION, node_spec, node_status
from tessera.clients.kube import NODE_MODELS, MemoryKube
from tessera.clients.store.peers import PeerConnections
from tessera.core.storage.models.nodemodels import DesiredModel
from tessera.core.storage.models.peers.owners import PeerPatience
from tessera.measures import Measures

pytestmark = pytest.mark.anyio

MODEL = DesiredModel(name="llama", source="s3://models/llama")


async def reported(kube: MemoryKube, node: str, peer: str, **spec: Any) -> None:
    body = {"apiVersion": API_VERSION, "kind": NODE_MODELS.name, "metadata": {"name": node}}
    await kube.apply(NODE_MODELS, {**body, "spec": spec}, manager="tessera-controller")
    status = node_status((), folder="/m", free_bytes=0, reason="", peer=peer)
    await kube.apply(NODE_MODELS, {**body, "status": status}, manager="tessera-agent", subresource="status")


async def test_nodes_with_the_same_source_are_peers_and_one_of_another_version_stops_none() -> None:
    patience = PeerPatience()
    kube = MemoryKube()
    peers = PeerChunks("10.0.0.1:9443", PeerConnections(ssl.create_default_context(), patience), patience)
    one = membership(peers, kube)
    await reported(kube, "n2", "10.0.0.2:9443", **node_spec([MODEL]))
    await reported(kube, "n3", "10.0.0.3:9443", **node_spec([DesiredModel(name="llama", source="s3://other/llama")]))
    await reported(kube, "n4", "10.0.0.4:9443", models=[{"name": "llama", "source": 7}])
    await one.refresh(MODEL)
    assert (one.address, peers.members) == ("10.0.0.1:9443", 2)
    kube.stop()
    await one.refresh(MODEL)
    assert peers.members == 1, "while the API server does not answer, it fetches alone"
    measures = Measures()
    one.report(measures)
    assert "tessera_node_models_peers_banned 0" in measures.render().decode()


async def test_a_node_without_peers_fetches_alone_and_counts_nothing() -> None:
    measures, one = Measures(), membership(None, MemoryKube())
    await one.refresh(MODEL)
    await one.follow(lambda: MODEL)
    one.report(measures)
    assert (one.address, "peers" in measures.render().decode()) == ("", False)
