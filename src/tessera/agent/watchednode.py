"""This node as the API server has it: its Node object, and the pods that are bound to it."""

import asyncio
from collections.abc import Callable

from tessera.api.kubernetes.registerednode import registered_node
from tessera.clients.kube import NODES, PODS, Kind, Kube, Listing, Object, Selection, Store
from tessera.measures import Measures

__all__ = ["WatchedNode"]

_RELIST_S = 5.0


class WatchedNode:
    """The Node object of a node and its pods, watched while `run` runs.

    Args:
        kube: the Kubernetes API.
        name: of the Node object.
        wake: called after each change.
        on_error: called with what keeps the watches from going on.
        relist_s: timeout of a list of this node's pods; the kubelet waits for it.

    """

    def __init__(
        self,
        kube: Kube,
        name: str,
        *,
        wake: Callable[[], None],
        on_error: Callable[[Exception], None],
        relist_s: float = _RELIST_S,
    ) -> None:
        def store(kind: Kind, selection: Selection) -> Store:
            return Store(kube, kind, selection, wake=wake, on_error=on_error)

        self._kube = kube
        self._name = name
        self._relist_s = relist_s
        bound = (("spec.nodeName", name),)
        self._living = Selection(fields=bound, other_fields=(("status.phase", "Failed"), ("status.phase", "Succeeded")))
        self._node_store = store(NODES, Selection(fields=(("metadata.name", name),)))
        self._pod_store = store(PODS, Selection(fields=bound))

    async def run(self, measures: Measures) -> None:
        """Watch until canceled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._node_store.run(measures))
            tasks.create_task(self._pod_store.run(measures))

    async def synced(self) -> None:
        """Return once the node and all its pods are known."""
        await self._node_store.synced()
        await self._pod_store.synced()

    def node(self) -> Object:
        """Return the Node object, as of the watch; empty where there is none."""
        return self._node_store.objects.get(("", self._name), {})

    @property
    def gpu_resources(self) -> frozenset[str]:
        """The resources of GPUs that the kubelet knows."""
        return registered_node(self.node()).gpu_resources

    def pods(self) -> tuple[Object, ...]:
        """Return the pods that are bound to this node, as of the watch."""
        return tuple(self._pod_store.objects.values())

    async def relist(self) -> Listing:
        """Return the pods that are bound to this node and have not ended, read from the API server.

        Those that have ended are left out: there may be thousands, and the kubelet waits for each list.

        Raises:
            TesseraError: it does not answer.
            TimeoutError: nor within a few seconds.

        """
        async with asyncio.timeout(self._relist_s):
            return await self._kube.list(PODS, self._living)
