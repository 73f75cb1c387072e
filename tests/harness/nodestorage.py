"""The models and images of one node: the agent's own loops, with kubelet, runtime, registry and sources here."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from builders.nodepods import ListedPods
from harness.peernodes import peer_tls
from harness.serving import free_port, running
from tessera.agent.pods.podsview import PodsView
from tessera.agent.storage.modelcache import ModelDisk, ModelSources, Places
from tessera.agent.storage.modelcache.peers import PeerService, PeerSettings
from tessera.api.tessera.v1alpha1 import imagewarmups, modelcaches
from tessera.cli.processes.agent import storage_loops
from tessera.clients.kube import NODE_IMAGES, NODE_MODELS, NODES, PODS, MemoryKube
from tessera.clients.kubelet import DeviceCheckpoint, MemoryKubelet, PodResources
from tessera.clients.runtime import MemoryRuntime
from tessera.core.storage.images.warmup import DesiredImage
from tessera.core.storage.models.nodemodels import DesiredModel
from tessera.log import logger
from tessera.measures import Measures

__all__ = ["storing"]

_IMAGE = "registry.example/vllm:1"


@asynccontextmanager
async def storing(node: str, folder: Path, sockets: Path, pki: Path) -> AsyncIterator[Callable[[], bytes]]:
    """Let a node get one model and one image; give what the agent exposes of them.

    Args:
        node: its name.
        folder: of its disk, and of the model's source.
        sockets: of its kubelet.
        pki: as the fixture: certificates for peers.

    """
    kube, measures, runtime = MemoryKube(), Measures(), MemoryRuntime()
    runtime.offered = {_IMAGE: (f"sha256:{'1' * 64}", 7)}
    source, disk = folder / "bucket/llama", folder / "disk"
    for made, file in ((source, "weights"), (disk, "not-empty")):
        made.mkdir(parents=True)
        (made / file).write_bytes(b"w" * 100)
    await kube.create(NODES, {"metadata": {"name": node}})
    image = DesiredImage(image=_IMAGE, attempt=1)
    model = DesiredModel(name="llama", source=f"file://{source}")
    for kind, api, spec in (
        (NODE_IMAGES, imagewarmups.API_VERSION, imagewarmups.node_spec([image])),
        (NODE_MODELS, modelcaches.API_VERSION, modelcaches.node_spec([model])),
    ):
        body = {"apiVersion": api, "kind": kind.name, "metadata": {"name": node}, "spec": spec}
        await kube.apply(kind, body, manager="tessera-controller", force=True)

    async def pods() -> Any:
        return await kube.list(PODS)

    peers = PeerService(PeerSettings("127.0.0.1", free_port(), peer_tls(pki)), logger())
    models = ModelDisk(disk / "models", most_percent=99, sharing=peers.sharing)
    async with MemoryKubelet(sockets) as kubelet:
        view = PodsView(ListedPods(tuple, pods), DeviceCheckpoint(kubelet.plugins), PodResources(kubelet.pod_resources))
        places = Places(models, ModelSources((folder / "bucket",)), kubelet.plugins)
        loops = storage_loops(node, kube, runtime, places, peers)
        async with running(*(each(view, measures) for each in loops)):
            yield measures.render
