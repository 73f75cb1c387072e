"""How many more replicas of model servers fit on the cluster now."""

import asyncio
from typing import Final

from tessera.api.kubernetes.modelpods import more_pods
from tessera.api.tessera.cluster.clusters import as_fields, read_cluster
from tessera.clients.kube import GPU_NODES, NODES, PODS, Kube, Object, name_of
from tessera.core.packing.room import room
from tessera.core.workload.need import PodKey
from tessera.errors import Unavailable

__all__ = ["FreePlaces"]

_LIST_S: Final = 5.0
"""For all lists together: measurements of all model servers wait for them."""


class FreePlaces:
    """The free places of the cluster in one pass, listed at most once.

    Args:
        kube: the Kubernetes API.

    """

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._listed: list[Object] | None = None
        self._promised: list[Object] = []

    async def count(self, deployment: Object, count: int) -> int | None:
        """Return how many of `count` more replicas fit beside those promised to others; None where that is unknown.

        Assignments are not verified here: a forged one only makes a server grow one replica at a time.

        Raises:
            TesseraError: the cluster cannot be read in time.

        """
        if self._listed is None:
            self._listed = await self._list()
        listed, promised, more = self._listed, tuple(self._promised), more_pods(deployment, count)

        def read() -> int | None:
            cluster = read_cluster(as_fields([*listed, *promised, *more]))
            return room(cluster.snapshot, (PodKey("/".join(name_of(each))) for each in (*promised, *more)))

        found = await asyncio.to_thread(read)
        return None if found is None else max(found - len(promised), 0)

    def promise(self, deployment: Object, count: int) -> None:
        """Keep places for so many more replicas, which were counted, from servers counted after this one."""
        self._promised += more_pods(deployment, count)

    async def _list(self) -> list[Object]:
        try:
            async with asyncio.timeout(_LIST_S):
                listings = await asyncio.gather(*(self._kube.list(kind) for kind in (NODES, PODS, GPU_NODES)))
        except TimeoutError as error:
            raise Unavailable(
                "the cluster's nodes and pods", found=f"not listed within {_LIST_S:.0f} s", hint="see the API server"
            ) from error
        return [each for listing in listings for each in listing.objects]
