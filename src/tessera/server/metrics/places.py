"""How many more replicas of a model server fit on the cluster now."""

import asyncio

from tessera.api.kubernetes.modelpods import more_pods
from tessera.api.tessera.clusters import as_fields, read_cluster
from tessera.clients.kube import GPU_NODES, NODES, PODS, Kube, Object, name_of
from tessera.core.packing.room import room
from tessera.core.workload.need import PodKey

__all__ = ["count_places"]


async def count_places(kube: Kube, deployment: Object, count: int) -> int | None:
    """Return how many of `count` more replicas fit; None where that is unknown.

    Assignments are not verified here: a forged one only makes a server grow one replica at a time.

    Raises:
        TesseraError: the cluster cannot be read.

    """
    listings = await asyncio.gather(*(kube.list(kind) for kind in (NODES, PODS, GPU_NODES)))
    more = more_pods(deployment, count)

    def read() -> int | None:
        cluster = read_cluster(as_fields([*(each for listing in listings for each in listing.objects), *more]))
        return room(cluster.snapshot, (PodKey("/".join(name_of(each))) for each in more))

    return await asyncio.to_thread(read)
