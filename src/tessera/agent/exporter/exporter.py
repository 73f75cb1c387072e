"""Observes this node's GPUs at intervals, so that a scrape waits for no driver and blocks no loop of the agent."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Protocol

import msgspec

from tessera.agent.exporter.containers import NodeContainers
from tessera.api.prometheus.exposition import exposition
from tessera.api.tessera.usage.usagejson import write_usage
from tessera.clients.gpu import GpuDriver
from tessera.core.cluster.enforcement import enforcements
from tessera.core.cluster.snapshot import Gpu
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import GpuEvent, GpuFacts, Inventory
from tessera.core.gpu.mig import Layout
from tessera.core.gpu.readings import GpuReading
from tessera.core.node.health import Health, xid_class
from tessera.core.usage.attribution import GpuUsage, attribute_usage
from tessera.core.usage.containerhistory import Histories, update_histories
from tessera.core.usage.families import Family, MetricSample
from tessera.core.usage.nodemetrics import node_families
from tessera.core.usage.observation import DeviceStatus, GpuCounts, NodeUsage
from tessera.core.usage.ownmetrics import EXPORTER_AGE, EXPORTER_FAILURES, EXPORTER_TIME
from tessera.core.usage.usagereport import usage_report
from tessera.errors import TesseraError
from tessera.log import Logger, defect
from tessera.loops import one_turn, until_done

__all__ = ["Exporter"]

_MOST_GPUS = 128
"""GPUs whose XIDs are counted, whatever UUIDs the driver's events name."""
_STALE_S = 60.0
"""Older observations are not exported: a driver that hangs has no values."""


class EnforcedSharing(Protocol):
    """The sharing in force; `agent.advertiser.Advertiser` knows it."""

    @property
    def gpus(self) -> Iterable[Gpu]:
        """The GPUs with their current sharing."""


class KnownHealth(Protocol):
    """The health of devices; `agent.nodestate.health.HealthWatch` knows it."""

    @property
    def health(self) -> Health:
        """The known problems of devices."""


class Exporter:
    """The metrics of one node.

    Args:
        node: name of the Node object.
        driver: the node's GPU driver.
        containers: the allocations, and the containers of processes.
        sharing: the GPUs with their current sharing.
        health: the known problems of devices.
        log: for failures.

    """

    def __init__(
        self,
        node: str,
        driver: GpuDriver,
        containers: NodeContainers,
        sharing: EnforcedSharing,
        health: KnownHealth,
        log: Logger,
    ) -> None:
        self._node = node
        self._driver = driver
        self._containers = containers
        self._sharing = sharing
        self._health = health
        self._log = log
        self._events = driver.events()
        self._xids: dict[str, Counter[str]] = defaultdict(Counter)
        self._last_xid: dict[str, int] = {}
        self._layouts: dict[str, Layout | None] = {}
        self._changes: Counter[str] = Counter()
        self._failures = 0
        self._took_s = 0.0
        self._began_s: float | None = None
        self._observed_s: float | None = None
        self._text = b""
        self._usage = NodeUsage(node=node)
        self._histories: Histories = {}

    async def run(self, every_s: float) -> None:
        """Observe at intervals until canceled."""
        self._began_s = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(until_done(self._count, partial(self._log_error, "gpu_event_not_counted"), every_s))
            while True:
                await one_turn(self.observe, partial(self._log_error, "gpus_not_observed"))
                await asyncio.sleep(every_s)

    def _log_error(self, event: str, error: BaseException) -> None:
        self._failures += 1
        self._log.warning(event, reason=str(error) or type(error).__name__, exc_info=defect(error))

    async def _count(self) -> None:
        """Count the driver's events until it is closed.

        Also before the first observation, when no GPU is known: those of GPUs that there are not have no series.
        """
        async for event in self._events:
            self._count_event(event)

    def _count_event(self, event: GpuEvent) -> None:
        if event.xid is not None and (event.gpu in self._xids or len(self._xids) < _MOST_GPUS):
            self._xids[event.gpu][xid_class(event.xid)] += 1
            self._last_xid[event.gpu] = event.xid

    async def observe(self) -> None:
        """Observe the GPUs once.

        Raises:
            TesseraError: the driver does not answer.

        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        # 1. The GPUs, and how they are shared.
        inventory = await self._driver.inventory()
        gpus = tuple(self._sharing.gpus)
        allocations = self._containers.allocations(inventory, gpus)
        # 2. Measurements of each, and the containers of its processes; a GPU lost meanwhile has no measurements.
        readings = {facts.uuid: await self._measured(facts) for facts in inventory.gpus}
        pids = {each.pid for reading in readings.values() for each in reading.processes or ()}
        owners = await self._containers.owners(pids)
        # 3. Usage by container.
        uses: tuple[GpuUsage, ...] = tuple(
            attribute_usage(
                facts,
                readings[facts.uuid],
                (each for each in allocations if each.device.gpu == facts.uuid),
                owners,
            )
            for facts in inventory.gpus
        )
        # 4. Counts, the text of the metrics, and the histories of containers.
        self._note_layouts(inventory)
        usage = NodeUsage(
            node=self._node,
            gpus=uses,
            statuses=tuple(self._statuses(inventory, gpus)),
            counts=tuple(self._counts(facts.uuid) for facts in inventory.gpus),
            unseen=inventory.unseen,
            sees_processes=self._containers.sees_processes,
        )
        self._observed_s = loop.time()
        self._took_s = self._observed_s - began_s
        self._usage, self._text = usage, exposition(node_families(usage))
        self._histories = update_histories(self._histories, uses, self._observed_s)

    async def _measured(self, facts: GpuFacts) -> GpuReading:
        if facts.lost:
            return GpuReading()
        try:
            return await self._driver.measure(facts.uuid)
        except TesseraError as error:
            self._log_error("gpus_not_observed", error)
            return GpuReading()

    def _note_layouts(self, inventory: Inventory) -> None:
        for facts in (each for each in inventory.gpus if not each.lost):
            if self._layouts.setdefault(facts.uuid, facts.layout) != facts.layout:
                self._layouts[facts.uuid] = facts.layout
                self._changes[facts.uuid] += 1

    def _statuses(self, inventory: Inventory, gpus: Iterable[Gpu]) -> Iterable[DeviceStatus]:
        orphaned = self._containers.orphaned
        failed = self._health.health.unhealthy
        for facts in inventory.gpus:
            whole = DeviceId(facts.uuid)
            for device in (whole, *(DeviceId(facts.uuid, each.placement) for each in facts.instances)):
                works = not facts.lost and failed.isdisjoint((device, whole))
                healthy = works and orphaned.isdisjoint((device, whole))
                yield DeviceStatus(device=device, healthy=healthy, orphaned=works and device in orphaned)
        for each in enforcements(gpus, inventory):
            device = DeviceId(each.gpu, each.placement)
            yield DeviceStatus(device=device, mode=each.mode.value, isolation=each.level.value)

    def _counts(self, uuid: str) -> GpuCounts:
        return GpuCounts(
            gpu=uuid,
            last_xid=self._last_xid.get(uuid, 0),
            xids=tuple(self._xids[uuid].items()),
            layout_changes=self._changes[uuid],
        )

    def render(self) -> bytes:
        """Return the last observation in Prometheus' text format; without GPUs where it is too old."""
        own = [Family(EXPORTER_FAILURES, (MetricSample((), self._failures),))]
        since_s = self._began_s if self._observed_s is None else self._observed_s
        if since_s is not None:
            own.append(Family(EXPORTER_AGE, (MetricSample((), asyncio.get_running_loop().time() - since_s),)))
        if self._observed_s is not None:
            own.append(Family(EXPORTER_TIME, (MetricSample((), self._took_s),)))
        return exposition(own) + (self._text if self._fresh else b"")

    def report(self) -> bytes:
        """Return the usage as JSON; without GPUs where the observation is too old."""
        usage = self._usage if self._fresh else NodeUsage(node=self._node)
        report = usage_report(usage, self._histories)
        return write_usage(msgspec.structs.replace(report, age_s=self._age_s))

    @property
    def _age_s(self) -> float | None:
        return None if self._observed_s is None else asyncio.get_running_loop().time() - self._observed_s

    @property
    def _fresh(self) -> bool:
        return self._age_s is not None and self._age_s <= _STALE_S
