"""The node agent: observe the node, plan by `core`, apply; level-triggered.

docs/allocation.md says what is done where its record of allocations is lost.

Loops: layouts for label, policy and pods; the advertised devices and the report; the kubelet's calls; GPU changes for
containers that are about to start; annotations with the kubelet's allocations; the driver's events; measurements.
Each reconciles when something changed, and every few seconds in any case, and continues after any error.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from tessera.agent.advertiser import Advertiser, DevicePublisher
from tessera.agent.agenttimes import AgentTimes
from tessera.agent.boundcounts import BoundCounts
from tessera.agent.declarations.configuration import ConfigurationFiles
from tessera.agent.declarations.declared import Declarations
from tessera.agent.deviceplugin import AssignedPods, CdiFolder, Gate, PluginPaths, Plugins, ShareAllocator
from tessera.agent.deviceplugin.allocations.allocationrecord import AllocationRecord
from tessera.agent.deviceplugin.allocations.deviceprocesses import DeviceProcesses
from tessera.agent.deviceplugin.conflicts import Conflicts
from tessera.agent.deviceplugin.containers.changerequests import (
    ChangeRequest,
    ChangeRequests,
    CreateInstance,
    DisableMig,
    Enforce,
)
from tessera.agent.deviceplugin.containers.devicemaker import DeviceMaker
from tessera.agent.deviceplugin.offers.deviceoffers import DeviceOffers
from tessera.agent.exporter import Exporter, NodeContainers
from tessera.agent.gpureports import GpuNodeReport, GpuReports, NodeDescription
from tessera.agent.nodestate.deviceevents import DeviceEvents
from tessera.agent.nodestate.gpunode import GpuNodeLink
from tessera.agent.nodestate.health import HealthWatch
from tessera.agent.nodestate.noderecord import NodeRecord
from tessera.agent.nodestate.usedmemory import UsedMemory
from tessera.agent.partition import NodeGpus, NodeLocks
from tessera.agent.partition.layouts import Layouts
from tessera.agent.pods.assignmentkeys import AssignmentKeys
from tessera.agent.pods.nodepods import NodePods
from tessera.agent.pods.observing import PodObserver
from tessera.agent.pods.ownpods import OwnPods
from tessera.agent.pods.podsview import PodsView
from tessera.agent.pods.recorded import Recorder
from tessera.agent.settings import AgentSettings
from tessera.agent.sharing.enforcer import Enforcer
from tessera.agent.strategychoice import StrategyChoice
from tessera.agent.watchednode import WatchedNode
from tessera.clients.gpu import GpuDriver
from tessera.clients.kube import Kube, labels_of
from tessera.clients.kubelet import DeviceCheckpoint, PodResources
from tessera.core.gpu.inventory import Inventory
from tessera.core.node.health import HealthChange
from tessera.core.node.nodelabels import MIG_CONFIG
from tessera.core.node.reported import unenforced
from tessera.core.usage.ownmetrics import REPARTITIONS
from tessera.errors import Unavailable
from tessera.log import RepeatedError, RepeatedErrors, defect, logger
from tessera.loops import one_turn, until_done
from tessera.measures import Measures
from tessera.wakeup import WakeUp

__all__ = ["Agent", "ExtraLoop"]

_SIGN_TRIES = 5
_TIMES = AgentTimes()
ExtraLoop = Callable[[PodsView, Measures], Coroutine[Any, Any, None]]
"""A further loop of the agent, called with the pods of the node and the measures."""


class Agent:
    """The agent of one node; `run` ends when it is canceled, and leaves all devices in use as they are.

    Args:
        settings: names, folders and intervals.
        driver: the node's GPU driver.
        kube: the Kubernetes API.
        extra_loops: loops that start once this is the node's agent, and end with it.
        times: its clock, and how long calls of the kubelet wait.

    """

    def __init__(
        self,
        settings: AgentSettings,
        driver: GpuDriver,
        kube: Kube,
        extra_loops: Iterable[ExtraLoop] = (),
        *,
        times: AgentTimes = _TIMES,
    ) -> None:
        self._settings = settings
        self._extra_loops = tuple(extra_loops)
        self._times = times
        self._driver = driver
        self._kube = kube
        self._log = logger(node=settings.node)
        self._layout_wakeup, self._offer_wakeup, self._record_wakeup = WakeUp(), WakeUp(), WakeUp()
        self._register_wakeup, self._gpunode_known = WakeUp(), False
        self._not_started = ""
        """Why the last try to start failed."""
        self.measures = Measures()
        self._watched = WatchedNode(kube, settings.node, wake=self._wake_loops, on_error=self._log_error)
        self._record = NodeRecord(kube, settings.node, self._log)
        self._kubelet = PodResources(settings.paths.pod_resources)
        self._view = self._build_view()
        self._own_pods = OwnPods(kube, self._view)
        self._gpunode = GpuNodeLink(kube, settings.node, self._log, wake=self._wake_loops)
        key = settings.paths.assignment_key
        self._keys = AssignmentKeys(kube, settings.node, key, self._log, wake=self._wake_loops, clock_s=times.clock_s)
        self._enforcer = Enforcer(driver, settings.mps, settings.paths.state, self._log)
        files = ConfigurationFiles(settings.sources)
        self._declarations = Declarations(driver, files, self._watched, self._gpunode, self._enforcer)
        self._health = HealthWatch(driver, settings.health, on_change=self._judged)
        self._device_events = DeviceEvents(self._record)
        self._sign_tries = 0
        self._strategies = StrategyChoice(settings.paths, settings.list_strategies, self._log)
        self._changes = ChangeRequests()
        """GPU changes for containers that are about to start."""
        self._plugins = self._build_plugins()
        self._gate, self._shares = self._plugins.gate, self._plugins.shares
        self._pods = NodePods(self._view, self._gate.record, self._shares, self._watched, clock_s=times.clock_s)
        uncounted = RepeatedError(self._log, "bound_pods_not_counted")
        self._bound_counts = BoundCounts(self._plugins, self._record, self._watched.node, uncounted)
        self._advertiser = self._build_advertiser()
        gpus = NodeGpus(driver=driver, users=self._pods, advertised=self._advertiser)
        evict = self._own_pods.evict
        self._layouts = Layouts(settings, gpus, self._record, self._declarations, self._pods, evict)
        self._recorder = Recorder(kube, self._view, self._declarations, self._keys, self._log)
        self._reports = self._build_reports()
        self._conflicts = Conflicts(kube, settings.node, self._gate, self._log)
        containers = NodeContainers(self._gate.record, self._view, settings.paths.proc, self._gate.refusals)
        self.exporter = Exporter(settings.node, driver, containers, self._advertiser, self._health, self._log)

    def _build_view(self) -> PodsView:
        paths = self._settings.paths
        checkpoint = DeviceCheckpoint(paths.plugins)
        return PodsView(self._watched, checkpoint, self._kubelet, proc=paths.proc, clock_s=self._times.clock_s)

    def _build_plugins(self) -> Plugins:
        paths = PluginPaths(
            plugins=self._settings.paths.plugins,
            cdi=self._settings.paths.cdi,
            driver_specs=self._settings.paths.driver_specs,
            driver_folder=self._settings.paths.driver_folder,
            minors=self._settings.paths.mig_minors,
            answers_file=self._settings.paths.state / "shares.json",
            allocations=self._settings.paths.state / "allocations.json",
            mps_root=self._settings.mps.root,
        )
        devices = DeviceMaker(paths, self._changes, RepeatedErrors(self._log, "device_handover_impaired"))
        record = AllocationRecord(
            PodObserver(self._view, self._log),
            devices.capacity,
            self._log,
            wake=self._offer_wakeup.set,
            file=paths.allocations,
            times=self._times,
        )
        processes = DeviceProcesses(self._driver.processes, self._view, lambda: devices.inventory)
        gate = Gate(record, processes, self._log, times=self._times)
        assigned = AssignedPods(self._own_pods, self._keys, record)
        cdi = CdiFolder(paths.cdi, driver_specs=paths.driver_specs, driver_folder=paths.driver_folder)
        shares = ShareAllocator(gate, devices, assigned, cdi, self._log, answers_file=paths.answers_file)
        return Plugins(paths, devices, gate, shares, cdi, self._log)

    def _build_advertiser(self) -> Advertiser:
        device_offers = DeviceOffers(self._gpunode, self._record, self._kubelet, self._gate, self._pods, self._log)
        publisher = DevicePublisher(
            self._plugins, device_offers, self._strategies, self._record, self._watched, self._offer_wakeup.set
        )
        return Advertiser(self._declarations, self._health, self._enforcer, self._pods, self._plugins, publisher)

    def _build_reports(self) -> GpuReports:
        description = NodeDescription(
            self._settings, self._record, self._watched, self._advertiser, self._plugins, self._strategies
        )
        used = UsedMemory(self._driver, every_s=self._settings.measure_s)
        status = GpuNodeReport(self._gpunode, self._watched, self._health, used, self._own_pods, self._keys)
        return GpuReports(self._gate, self._device_events, description, status)

    def waiting_for(self) -> str:
        """Return why devices are not advertised as declared; empty where they are."""
        return ": ".join(filter(None, (self._advertiser.waiting_for(), self._not_started)))

    async def run(self) -> None:
        """Run until canceled; while another agent runs on this node, wait for its end."""
        locks = NodeLocks(self._settings.paths.locks)
        async with locks.hold_agent(self._settings.paths.plugins, self._log):
            await self._run()

    async def _run(self) -> None:
        self._log.info("agent_started")
        self.measures.started("start")
        try:
            async with self._kubelet, asyncio.TaskGroup() as tasks:
                # 1. Watch the node, its pods, its GPUNode and the keys.
                tasks.create_task(self._watched.run(self.measures))
                tasks.create_task(self._gpunode.store.run(self.measures))
                tasks.create_task(self._keys.store.run(self.measures))
                # 2. Wait for the first state of each.
                await self._watched.synced()
                tasks.create_task(self._bound_counts.run())
                async with self._refused_until_started():
                    await self._gpunode.known()
                    self._gpunode_known = True
                    await self._keys.synced()
                    # 3. Start what needs the pods alone.
                    for each in self._extra_loops:
                        tasks.create_task(each(self._view, self.measures))
                    # 4. Get a signing key, and restore the layouts of before a reboot.
                    await until_done(self._begin, self._on_failed_start, self._settings.interval_s)
                self._not_started = ""
                self.measures.stopped("start")
                # 5. Serve the kubelet's calls and the GPU changes that they need; measure.
                tasks.create_task(self._changes.serve(self._change))
                tasks.create_task(self._plugins.run(self.measures))
                tasks.create_task(self.exporter.run(self._settings.measure_s))
                # 6. Reconcile layouts, offers and annotations; follow the driver's events.
                tasks.create_task(self._forever("layout", self._layout_wakeup, self._follow))
                tasks.create_task(self._forever("offer", self._offer_wakeup, self._offer))
                tasks.create_task(self._forever("record", self._record_wakeup, self._write_pods))
                tasks.create_task(self._listen())
        finally:
            await self._advertiser.close()  # after the loops, because they advertise
            await self._plugins.close()  # those of a start that did not succeed, too; the next agent may start after it
            self._log.info("agent_stopped")

    async def _forever(self, what: str, wakeup: WakeUp, act: Callable[[], Awaitable[None]]) -> None:
        """Repeat an action, whatever errors come; ends only when this agent is canceled."""
        self.measures.started(what)
        while True:
            await one_turn(act, partial(self._log_error, what=what), partial(self.measures.turned, what))
            await wakeup.wait(self._settings.interval_s)

    def _wake_loops(self) -> None:
        for wakeup in (self._layout_wakeup, self._offer_wakeup, self._record_wakeup):
            wakeup.set()

    def _log_error(self, error: BaseException, what: str = "follow") -> None:
        self._log.warning("turn_failed", what=what, reason=str(error) or type(error).__name__, exc_info=defect(error))

    async def _write_pods(self) -> None:
        """Write the kubelet's allocations on pods, and restore spoiled assignments."""
        try:
            await self._recorder.record(self._plugins.unit_mib)
        finally:
            await self._shares.repair()

    # Start

    @contextlib.asynccontextmanager
    async def _refused_until_started(self) -> AsyncIterator[None]:
        """Let no pod start without the devices that it requests, once the body has failed, or takes longer."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each()) for each in (self._register_refused, self._plugins.keep_registered)]
            yield
            for each in tasks:
                each.cancel()

    async def _register_refused(self) -> None:
        while True:
            await self._register_wakeup.wait(self._settings.interval_s)
            register = partial(self._advertiser.register_refused, gpunode_known=self._gpunode_known)
            await one_turn(register, partial(self._log_error, what="register"))

    def _on_failed_start(self, error: BaseException) -> None:
        self._not_started = str(error) or type(error).__name__
        self._log_error(error, what="start")
        self._register_wakeup.set()

    async def _begin(self) -> None:
        """Read the record, get a signing key, restore the layouts of before a reboot, record what containers have."""
        # 1. Read what former agents allocated; nothing is changed before.
        self._gate.record.read()
        # 2. Get a signing key, and publish it.
        self._keys.open(self._gpunode.assignment_keys or ())
        if self._gpunode.unsigned:
            await self._sign()
        await self._gpunode.publish_keys(self._keys.published)
        # 3. Restore the layouts of before a reboot; nothing is advertised before.
        await self._layouts.begin(labels_of(await self._record.read()))
        # 4. Record what containers have; no instance is destroyed before.
        await self._advertiser.begin()

    async def _sign(self) -> None:
        """Sign running pods; one that cannot be written in several tries is skipped, and the others are served."""
        self._sign_tries += 1
        try:
            await self._recorder.sign(self._plugins.unit_mib)
        except Unavailable as error:
            if self._sign_tries < _SIGN_TRIES:
                raise
            self._log.error("assignment_not_signed", reason=str(error))

    # Layouts

    async def _follow(self) -> None:
        try:
            await self._layouts.follow(labels_of(self._watched.node()).get(MIG_CONFIG, ""))
        finally:
            outcomes = self._layouts.outcomes.items()
            self.measures.set(REPARTITIONS, {(("outcome", stage.value),): count for stage, count in outcomes})
        self._offer_wakeup.set()

    # Offers

    async def _offer(self) -> None:
        try:
            await self._advertiser.reconcile()
            if self._advertiser.enforced is not None:
                evict = self._advertiser.enforced.node_sharing.evict_conflicts
                shares = self._shares
                conflicts = await self._conflicts.end(shares.unassigned, evict=evict, why=shares.why)
                self._record.note("conflicts", conflicts)
        finally:
            for about, sentences in self._advertiser.notes.items():
                self._record.note(about, sentences)
            await self._record.report_notes()
        impaired = self._advertiser.impaired
        if self._advertiser.enforced is not None:
            impaired += unenforced((*self._layouts.unmet, *self._enforcer.problems))
            self._record.note("assignments", self._shares.refused)
            await self._reports.report(self._advertiser.enforced, impaired)
        await self._record.report_impaired(self._watched.node(), impaired)

    async def _change(self, request: ChangeRequest) -> Inventory:
        """Make a GPU change for a container that is about to start; return the inventory after it."""
        match request:
            case CreateInstance(gpu=gpu, placement=placement):
                await self._layouts.create_instance(gpu, placement)
                self._offer_wakeup.set()
            case DisableMig(gpu=gpu):
                await self._layouts.disable_mig(gpu, await self._driver.inventory())
            case Enforce(shares=shares):
                await self._advertiser.reconcile()
                self._enforcer.check(shares, await self._driver.inventory())
        return await self._driver.inventory()

    async def _listen(self) -> None:
        """Follow the driver's events; unhealthy devices are no longer advertised."""
        while True:
            await one_turn(self._health.run, partial(self._log_error, what="events"))
            await asyncio.sleep(self._settings.interval_s)

    def _judged(self, changes: tuple[HealthChange, ...]) -> None:
        self._device_events.judged(changes)
        self._wake_loops()
