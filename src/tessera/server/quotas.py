"""The quotas of a cluster, for the server's metrics: Kubernetes' ResourceQuotas and Kueue's ClusterQueues."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from tessera.api.kubernetes.quota import read_cluster_queue, read_resource_quota
from tessera.clients.kube import CLUSTER_QUEUES, RESOURCE_QUOTAS, Kind, Kube, Object, follow, name_of
from tessera.core.usage.families import Labels, Metric
from tessera.core.usage.quotas import QuotaUsage, quota_metrics
from tessera.errors import InvalidInput, Unsupported
from tessera.log import Logger
from tessera.measures import Measures

__all__ = ["Quotas"]

_READERS: Final[Mapping[Kind, Callable[[Object], Iterable[QuotaUsage]]]] = {
    RESOURCE_QUOTAS: read_resource_quota,
    CLUSTER_QUEUES: read_cluster_queue,
}
_REMEMBERED: Final = 256
"""Errors that are logged only once."""


class Quotas:
    """The observed quotas. Nothing waits for them: without the RBAC rules to read them there are none.

    Args:
        kube: the Kubernetes API.
        measures: has the ages of its watches.
        log: records each error once.

    """

    def __init__(self, kube: Kube, measures: Measures, log: Logger) -> None:
        self._kube = kube
        self._measures = measures
        self._log = log
        self._uses: dict[tuple[Kind, tuple[str, str]], tuple[QuotaUsage, ...]] = {}
        self._complaints: set[str] = set()

    async def run(self) -> None:
        """Watch them until canceled."""
        async with asyncio.TaskGroup() as tasks:
            for kind in _READERS:
                tasks.create_task(self._follow(kind))

    def metrics(self) -> Mapping[Metric, Mapping[Labels, float]]:
        """Return guaranteed, used and borrowed quota."""
        return quota_metrics(use for uses in self._uses.values() for use in uses)

    async def _follow(self, kind: Kind) -> None:
        answered = partial(self._measures.turned, f"watch-{kind.plural}")
        async for change in follow(self._kube, kind, on_error=self._log_error, on_answer=answered):
            if change.object is None:
                continue
            key = kind, name_of(change.object)
            self._uses.pop(key, None)
            try:
                if not change.gone:
                    self._uses[key] = tuple(_READERS[kind](change.object))
            except InvalidInput as error:
                self._log_error(error)

    def _log_error(self, error: Exception) -> None:
        if isinstance(error, Unsupported) or str(error) in self._complaints:
            return  # Kueue is not installed
        if len(self._complaints) == _REMEMBERED:
            self._complaints.clear()
        self._complaints.add(str(error))
        self._log.warning("quotas_not_read", reason=str(error))
