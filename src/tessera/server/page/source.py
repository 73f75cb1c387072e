"""The data of the page: the server's view of the cluster, images and models of nodes, and metrics."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from tessera.api.tessera.cluster.clusters import PodMemory, as_fields, read_cluster
from tessera.api.tessera.v1alpha1.imagewarmups import read_node_images
from tessera.api.tessera.v1alpha1.modelcaches import read_node_models
from tessera.clients.kube import NODE_IMAGES, NODE_MODELS, Kube, Object, Store
from tessera.core.explain.fleetview import FleetView
from tessera.core.explain.observedfleet import MeasuredUsage, PageObservation, fleet_view
from tessera.errors import InvalidInput, Unsupported
from tessera.log import Logger, RepeatedError
from tessera.server.view import View

__all__ = ["NO_METRICS", "PageMetrics", "PageSources", "Source"]


_Read = TypeVar("_Read")


class PageMetrics(Protocol):
    """Measurements for the page, if there is a source of them."""

    def refresh(self, changed: Callable[[], None]) -> None:
        """Begin to measure again if it is due, and call `changed` when there are other values."""
        ...

    @property
    def measured(self) -> MeasuredUsage:
        """The last measurements that are not too old."""
        ...


class _NoMetrics:
    measured = MeasuredUsage()

    def refresh(self, changed: Callable[[], None]) -> None:
        pass


NO_METRICS: PageMetrics = _NoMetrics()


class PageSources(msgspec.Struct, frozen=True, kw_only=True):
    """The sources of the page's data."""

    view: View
    """The cluster as the server sees it."""
    kube: Kube
    metrics: PageMetrics = NO_METRICS
    waiting_for: Callable[[], str] = str
    """Why the cluster is not known yet; empty when it is."""


class Source:
    """Observes the fleet for the page.

    Args:
        sources: of the data.
        changed: called when images, models or measurements changed.
        log: records errors.

    """

    def __init__(self, sources: PageSources, changed: Callable[[], None], log: Logger) -> None:
        self._view = sources.view
        self._metrics = sources.metrics
        self._changed = changed
        self._memory = PodMemory()
        images, models = RepeatedError(log, "images_not_read"), RepeatedError(log, "models_not_read")
        self._images = Store(sources.kube, NODE_IMAGES, wake=changed, on_error=partial(_unless_absent, images))
        self._models = Store(sources.kube, NODE_MODELS, wake=changed, on_error=partial(_unless_absent, models))

    async def run(self) -> None:
        """Watch what the server does not watch anyway, until canceled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._images.run())
            group.create_task(self._models.run())

    async def observe(self) -> FleetView:
        """Return the current fleet, unfiltered."""
        self._metrics.refresh(self._changed)
        objects, authority = self._view.objects(), self._view.keys.authority
        images, models = (tuple(each.objects.values()) for each in (self._images, self._models))
        measured = self._metrics.measured

        def read() -> FleetView:
            observed = PageObservation(
                cluster=read_cluster(as_fields(objects), memory=self._memory, authority=authority),
                measured=measured,
                images={each.name: each.observed for each in _readable(images, read_node_images)},
                models={each.name: each.observed for each in _readable(models, read_node_models)},
            )
            return fleet_view(observed)

        return await asyncio.to_thread(read)


def _unless_absent(complain: RepeatedError, error: Exception) -> None:
    """Log an error that keeps objects from being read; a CRD may be missing."""
    if not isinstance(error, Unsupported):
        complain(error)


def _readable(objects: Iterable[Object], read: Callable[[Object], _Read]) -> Iterator[_Read]:
    """Yield what can be parsed; for the rest see the agents' logs."""
    for each in objects:
        with contextlib.suppress(InvalidInput):
            yield read(each)
