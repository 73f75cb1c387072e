"""The data of the page: the server's view of the cluster, images and models of nodes, and metrics."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from tessera.api.tessera.cluster.clusters import PodMemory, as_fields, read_cluster
from tessera.api.tessera.v1alpha1.imagewarmups import read_node_images
from tessera.api.tessera.v1alpha1.modelcaches import read_node_models
from tessera.clients.kube import NODE_IMAGES, NODE_MODELS, Kube, Object, Store
from tessera.core.explain.fleetpage import PageObservation, fleet_view
from tessera.core.explain.fleetview import FleetView, ModelServerHistory
from tessera.core.usage.neighbors import Contention
from tessera.core.usage.rightsizing import Recommendation
from tessera.core.workload.need import PodKey
from tessera.errors import InvalidInput, Unsupported
from tessera.log import Complaint, Logger
from tessera.server.view import View

__all__ = ["NO_METRICS", "PageMetrics", "PageSources", "Source"]


_Read = TypeVar("_Read")


class PageMetrics(Protocol):
    """Measurements for the page, if there is a source of them."""

    def refresh(self, changed: Callable[[], None]) -> None:
        """Begin to measure again if it is due, and call `changed` when there are other values."""
        ...

    def activity(self) -> Mapping[tuple[str, PodKey], float]:
        """Return how much of its compute each pod uses, in percent, by node and pod; unknown pods are left out."""
        ...

    def contention(self) -> Mapping[tuple[str, str], tuple[Contention, ...]]:
        """Return what slows down the pods of GPUs, by node and UUID."""
        ...

    def model_servers(self) -> tuple[ModelServerHistory, ...]:
        """Return the model servers that are scaled, with their last hours."""
        ...

    def recommendations(self) -> tuple[Recommendation, ...]:
        """Return recommendations for containers, by their usage; the most urgent first."""
        ...


class _NoMetrics:
    def refresh(self, changed: Callable[[], None]) -> None:
        pass

    def activity(self) -> Mapping[tuple[str, PodKey], float]:
        return {}

    def contention(self) -> Mapping[tuple[str, str], tuple[Contention, ...]]:
        return {}

    def model_servers(self) -> tuple[ModelServerHistory, ...]:
        return ()

    def recommendations(self) -> tuple[Recommendation, ...]:
        return ()


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
        images, models = Complaint(log, "images_not_read"), Complaint(log, "models_not_read")
        self._images = Store(sources.kube, NODE_IMAGES, wake=changed, on_trouble=partial(_unless_absent, images))
        self._models = Store(sources.kube, NODE_MODELS, wake=changed, on_trouble=partial(_unless_absent, models))

    async def run(self) -> None:
        """Watch what the server does not watch anyway, until canceled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._images.run())
            group.create_task(self._models.run())

    async def observe(self) -> FleetView:
        """Return the current fleet, unfiltered."""
        self._metrics.refresh(self._changed)
        objects, authority = self._view.objects(), self._view.keys.authority
        images = {each.name: each.observed for each in _readable(self._images, read_node_images)}
        models = {each.name: each.observed for each in _readable(self._models, read_node_models)}
        metrics = self._metrics
        activity, model_servers, advice = metrics.activity(), metrics.model_servers(), metrics.recommendations()
        contention = metrics.contention()

        def read() -> FleetView:
            observed = PageObservation(
                cluster=read_cluster(as_fields(objects), memory=self._memory, authority=authority),
                activity=activity,
                contention=contention,
                images=images,
                models=models,
                model_servers=model_servers,
                recommendations=advice,
            )
            return fleet_view(observed)

        return await asyncio.to_thread(read)


def _unless_absent(complain: Complaint, error: Exception) -> None:
    """Log an error that keeps objects from being read; a CRD may be missing."""
    if not isinstance(error, Unsupported):
        complain(error)


def _readable(store: Store, read: Callable[[Object], _Read]) -> Iterator[_Read]:
    """Yield what can be parsed; for the rest see the agents' logs."""
    for each in store.objects.values():
        with contextlib.suppress(InvalidInput):
            yield read(each)
