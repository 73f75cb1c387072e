"""How many more replicas of model servers fit on the cluster now."""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from tessera.api.kubernetes.modelpods import more_pods
from tessera.api.tessera.cluster.clusters import as_fields, read_cluster
from tessera.clients.kube import GPU_NODES, NODES, PODS, Kube, Object, name_of
from tessera.core.cluster.cluster import Cluster
from tessera.core.packing.room import room
from tessera.core.workload.need import Pod, PodKey
from tessera.errors import TesseraError, Unavailable

__all__ = ["ReplicaRoom"]

_LIST_S: Final = 5.0
"""For all lists together: measurements of all model servers wait for them."""
_COUNT_S: Final = 2.0
"""After this long no further server is counted in a pass, for the same reason."""


class ReplicaRoom:
    """The room of the cluster in one pass, read at most once.

    Args:
        kube: the Kubernetes API.
        now_s: the seconds since 1970, which bound how long is counted.

    """

    def __init__(self, kube: Kube, now_s: Callable[[], float]) -> None:
        self._kube = kube
        self._now_s = now_s
        self._cluster: Cluster | None = None
        self._unread: TesseraError | None = None
        self._until_s = 0.0
        self._replicas: dict[tuple[str, str], Pod] = {}
        """A further replica of each Deployment that was counted."""
        self._promised: list[Pod] = []

    async def count(self, deployment: Object, count: int) -> int | None:
        """Return how many of `count` more replicas fit beside those promised to others; None where that is unknown.

        Assignments are not verified here: a forged one only makes a server grow one replica at a time.

        Raises:
            TesseraError: the cluster cannot be read in time, or others took the time for counting.

        """
        cluster = await self._read()
        if self._now_s() >= self._until_s:
            raise Unavailable(
                "model servers that grow",
                found=f"room was not counted for all within {_COUNT_S:.0f} s",
                hint="wait: they are counted in turn, and grow by one replica until then",
            )
        promised = tuple(self._promised)

        def count_places() -> int | None:
            read = read_cluster(as_fields(more_pods(deployment, 1)), unit_mib=cluster.share_unit_mib).snapshot.pending
            if not read:
                return None
            self._replicas[name_of(deployment)] = read[0]
            pods = (*promised, *_copies(read[0], count))
            snapshot = msgspec.structs.replace(cluster.snapshot, pending=(*cluster.snapshot.pending, *pods))
            return room(snapshot, (each.key for each in pods))

        found = await asyncio.to_thread(count_places)
        return None if found is None else max(found - len(promised), 0)

    def promise(self, deployment: Object, count: int) -> None:
        """Keep places for so many more replicas, which were counted, from servers counted after this one."""
        self._promised += _copies(self._replicas[name_of(deployment)], count)

    async def _read(self) -> Cluster:
        if self._unread is not None:
            raise self._unread
        if self._cluster is None:
            try:
                listed = await self._list()
            except TesseraError as error:
                self._unread = error
                raise
            self._cluster = await asyncio.to_thread(lambda: read_cluster(as_fields(listed)))
            self._until_s = self._now_s() + _COUNT_S
        return self._cluster

    async def _list(self) -> list[Object]:
        try:
            async with asyncio.timeout(_LIST_S):
                listings = await asyncio.gather(*(self._kube.list(kind) for kind in (NODES, PODS, GPU_NODES)))
        except TimeoutError as error:
            raise Unavailable(
                "the cluster's nodes and pods", found=f"not listed within {_LIST_S:.0f} s", hint="see the API server"
            ) from error
        return [each for listing in listings for each in listing.objects]


def _copies(pod: Pod, count: int) -> tuple[Pod, ...]:
    """Return so many of a pod, by keys that no pod of a cluster has."""
    return tuple(msgspec.structs.replace(pod, key=PodKey(f"{pod.key}+{number}")) for number in range(count))
