"""What the page is made from: the server's view of the cluster, images and models of nodes, what metrics are known."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from tessera.api.tessera.clusters import PodMemory, as_fields, read_cluster
from tessera.api.tessera.imagewarmups import read_node_images
from tessera.api.tessera.modelcaches import read_node_models
from tessera.clients.kube import NODE_IMAGES, NODE_MODELS, Kube, Object, Store
from tessera.core.explain.fleetview import FleetView, Observation, Service, fleet_view
from tessera.core.usage.rightsizing import Recommendation
from tessera.core.workload.need import PodKey
from tessera.errors import InvalidInput, Unsupported
from tessera.log import Complaint, Logger
from tessera.server.view import View

__all__ = ["NO_METRICS", "PageMetrics", "PageSources", "Source"]


_Read = TypeVar("_Read")


class PageMetrics(Protocol):
    """What is measured, where anything is."""

    async def refresh(self) -> None:
        """Measure again, where that is due; before the others are called."""
        ...

    def activity(self) -> Mapping[PodKey, float]:
        """Return how much of its compute each pod uses, in percent; without those of whom nobody knows."""
        ...

    def throttled(self) -> Mapping[str, tuple[str, ...]]:
        """Return why GPUs lower their clocks, by UUID."""
        ...

    def services(self) -> tuple[Service, ...]:
        """Return the model servers that are scaled, with their last hours."""
        ...

    def recommendations(self) -> tuple[Recommendation, ...]:
        """Return what is recommended for containers, by what they used; the most urgent first."""
        ...


class _NoMetrics:
    async def refresh(self) -> None:
        pass

    def activity(self) -> Mapping[PodKey, float]:
        return {}

    def throttled(self) -> Mapping[str, tuple[str, ...]]:
        return {}

    def services(self) -> tuple[Service, ...]:
        return ()

    def recommendations(self) -> tuple[Recommendation, ...]:
        return ()


NO_METRICS: PageMetrics = _NoMetrics()


class PageSources(msgspec.Struct, frozen=True, kw_only=True):
    """Where the page's facts come from."""

    view: View
    """The cluster as the server sees it."""
    kube: Kube
    metrics: PageMetrics = NO_METRICS
    waiting_for: Callable[[], str] = str
    """Why the cluster is not known yet; empty when it is."""


class Source:
    """Observes the fleet for the page.

    Args:
        sources: where its facts come from.
        changed: called when images or models changed.
        log: records trouble.

    """

    def __init__(self, sources: PageSources, changed: Callable[[], None], log: Logger) -> None:
        self._view = sources.view
        self._metrics = sources.metrics
        self._memory = PodMemory()
        images, models = Complaint(log, "images_not_read"), Complaint(log, "models_not_read")
        self._images = Store(sources.kube, NODE_IMAGES, wake=changed, on_trouble=partial(_unless_absent, images))
        self._models = Store(sources.kube, NODE_MODELS, wake=changed, on_trouble=partial(_unless_absent, models))

    async def run(self) -> None:
        """Follow what the server does not follow anyway, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._images.run())
            group.create_task(self._models.run())

    async def observe(self) -> FleetView:
        """Return the fleet as it is now, for who sees everything."""
        await self._metrics.refresh()
        objects, authority = self._view.objects(), self._view.keys.authority
        images = {each.name: each.observed for each in _readable(self._images, read_node_images)}
        models = {each.name: each.observed for each in _readable(self._models, read_node_models)}
        metrics = self._metrics
        activity, services, advice = metrics.activity(), metrics.services(), metrics.recommendations()
        throttled = metrics.throttled()

        def read() -> FleetView:
            seen = Observation(
                cluster=read_cluster(as_fields(objects), memory=self._memory, authority=authority),
                activity=activity,
                throttled=throttled,
                images=images,
                models=models,
                services=services,
                recommendations=advice,
            )
            return fleet_view(seen)

        return await asyncio.to_thread(read)


def _unless_absent(complain: Complaint, error: Exception) -> None:
    """Complain of what keeps objects from being read; a cluster may be without their kind."""
    if not isinstance(error, Unsupported):
        complain(error)


def _readable(store: Store, read: Callable[[Object], _Read]) -> Iterator[_Read]:
    """Yield what can be read; of what cannot the agent says so in its log."""
    for each in store.objects.values():
        with contextlib.suppress(InvalidInput):
            yield read(each)
