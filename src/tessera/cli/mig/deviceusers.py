"""Which pod uses which device of this node: by the kubelet's record, and by assignments for units of memory.

The kubelet allocates units of memory of any GPU and records their ids; the assignment on a pod names its GPU.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from tessera.api.tessera.pods.assignedrequests import read_assigned_requests
from tessera.api.tessera.v1alpha1.gpunodes import read_gpu_node
from tessera.cli.livecluster import authority_of
from tessera.clients.kube import GPU_NODES, PODS, HttpKube, Kube, Selection
from tessera.core.cluster.gpunodestate import GpuNodeState
from tessera.core.cluster.snapshot import NodeName
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.allocations.matching import AssignedRequest
from tessera.core.deviceplugin.allocations.poddevices import pod_devices
from tessera.core.gpu.inventory import Inventory
from tessera.core.workload.resources import SHARE_RESOURCES
from tessera.errors import TesseraError, Unsupported

__all__ = ["NodeCluster", "PodDevicesReader", "Record"]

_PATIENCE_S = 10.0
"""How long the API server may take to list a node's pods."""

Record: TypeAlias = Callable[[], Awaitable[Sequence[KubeletAllocation]]]
"""Returns the kubelet's record."""


class NodeCluster(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster of this node, to read and evict pods."""

    kubeconfig: Path | None
    node: str
    """Name of this node's object; empty if not given."""


class PodDevicesReader:
    """Reads which devices of this node pods use.

    Args:
        record: the kubelet's record; None without a kubelet.
        cluster: of the pods.
        kube: a Kubernetes API instead of that cluster's; None on a real node.

    """

    def __init__(self, record: Record | None, cluster: NodeCluster, kube: Kube | None = None) -> None:
        self._record = record
        self._cluster = cluster
        self._kube = kube
        self.note = ""
        """Why pods with units of memory are shown on every GPU of their ids; else empty."""

    async def devices_by_pod(self, inventory: Inventory) -> Sequence[tuple[str, Sequence[str]]]:
        """Return pods, `namespace/name`, each with its device ids.

        Raises:
            TesseraError: the kubelet does not answer.

        """
        record = await self._record() if self._record is not None else ()
        plain = [(f"{each.namespace}/{each.pod}", each.device_ids) for each in record]
        if not any(each.resource in SHARE_RESOURCES for each in record):
            return plain
        try:
            async with asyncio.timeout(_PATIENCE_S):
                requests = await self._requests()
        except TimeoutError:
            self.note = _note(f"the API server did not respond within {_PATIENCE_S:g} s")
            return plain
        except TesseraError as error:
            self.note = _note(str(error))
            return plain
        return [(each.pod, each.devices) for each in pod_devices(record, requests, inventory)]

    async def _requests(self) -> tuple[AssignedRequest, ...]:
        if not self._cluster.node:
            self.note = _note("no node name, from --node or NODE_NAME")
            return ()
        if self._kube is not None:
            return await _assigned(self._kube, self._cluster.node)
        async with HttpKube.connect(self._cluster.kubeconfig) as kube:
            return await _assigned(kube, self._cluster.node)


def _note(reason: str) -> str:
    return f"a pod with a memory share is shown on every GPU that it may use, because {reason}"


async def _assigned(kube: Kube, node: str) -> tuple[AssignedRequest, ...]:
    listing = await kube.list(PODS, Selection(fields=(("spec.nodeName", node),)))
    state, authority = await _state(kube, node), await authority_of(kube)
    keys = authority.keys(state) if authority else None
    return read_assigned_requests(listing.objects, share_unit_mib=state.unit_mib, keys=keys).requests


async def _state(kube: Kube, node: str) -> GpuNodeState:
    """Return the node's GPUNode; the defaults if there is none."""
    try:
        found = await kube.get(GPU_NODES, node)
    except Unsupported:
        found = None
    return GpuNodeState(name=NodeName(node)) if found is None else read_gpu_node(found)
