"""The node agent: observe the node, plan by `core`, apply; level-triggered, with no state that cannot be rebuilt.

Loops: layouts for label, policy and pods; the advertised devices and the report; the kubelet's calls; GPU changes for
containers that are about to start; annotations with the kubelet's allocations; the driver's events; measurements.
Each reconciles when something changed, and every few seconds in any case, and continues after any error.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from tessera.agent.declarations.configuration import APPLIED, ConfigurationFiles
from tessera.agent.declarations.declared import Declarations, Declared
from tessera.agent.deviceplugin import AssignedPods, PluginPaths, Plugins
from tessera.agent.deviceplugin.changerequests import (
    ChangeRequest,
    ChangeRequests,
    CreateInstance,
    DisableMig,
    Enforce,
)
from tessera.agent.deviceplugin.conflicts import Conflicts
from tessera.agent.deviceplugin.deviceoffers import DeviceOffers, HandOver, ObservedNode
from tessera.agent.exporter import Exporter, NodeContainers
from tessera.agent.nodefiles import first_line
from tessera.agent.nodestate.deviceevents import DeviceEvents
from tessera.agent.nodestate.gpunode import GpuNodeLink
from tessera.agent.nodestate.health import HealthWatch
from tessera.agent.nodestate.noderecord import NodeRecord
from tessera.agent.nodestate.usedmemory import UsedMemory
from tessera.agent.partition import NodeGpus, NodeLocks
from tessera.agent.partition.layouts import Layouts
from tessera.agent.pods.assignmentkeys import AssignmentKeys
from tessera.agent.pods.nodepods import NodePods
from tessera.agent.pods.ownpods import OwnPods
from tessera.agent.pods.podsview import PodsView
from tessera.agent.pods.recorded import Recorder
from tessera.agent.settings import Settings
from tessera.agent.sharing.enforcer import Enforcer
from tessera.agent.strategychoice import StrategyChoice
from tessera.api.nvidia.gpulabels import Labelling, gpu_labels, owns, stamped
from tessera.api.tessera.nodereports import (
    DEVICE_LIST,
    ENFORCEMENT,
    REVISION,
    enforcement_text,
    gpu_revision,
)
from tessera.clients.gpu import GpuDriver
from tessera.clients.kube import NODES, PODS, Kind, Kube, Listing, Object, Selection, Store, labels_of
from tessera.clients.kubelet import DeviceCheckpoint, PodResources
from tessera.core.cluster.byname import shares_by_id
from tessera.core.cluster.gpunodestate import Impairment
from tessera.core.cluster.mps import enforcements
from tessera.core.cluster.protocols.allocators import devices_by_gpu
from tessera.core.cluster.snapshot import Gpu, Share
from tessera.core.deviceplugin.advertise import NodeOffer, OfferOptions, offer
from tessera.core.deviceplugin.allocations import without_other_forms
from tessera.core.deviceplugin.gpushare import gpus_to_count
from tessera.core.deviceplugin.holdings import given
from tessera.core.deviceplugin.kubeletallocations import KubeletAllocation
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.mig import Layout
from tessera.core.node.desired import offered_devices
from tessera.core.node.health import HealthChange
from tessera.core.node.nodelabels import MIG_CONFIG
from tessera.core.node.nodesharing import NodeSharing, PluginOptions, withheld
from tessera.core.node.reported import reported, unenforced, withheld_resources
from tessera.errors import Unavailable
from tessera.log import defect, logger
from tessera.loops import Joint, one_turn, until_done
from tessera.measures import Measures
from tessera.wakeup import WakeUp

__all__ = ["Agent", "Beside"]

_RELIST_S = 5.0
"""Timeout of a list of this node's pods; the kubelet waits for it."""
_RETRY_S = 0.2
"""Interval of checks whether the kubelet has dropped a device."""
_OFFER_TRIES = 5
"""Passes after which the kubelet must have the new list; pods that are bound for a device get it before it goes."""
_SIGN_TRIES = 5
Beside = Callable[[PodsView, Measures], Coroutine[Any, Any, None]]
"""A loop beside those of the agent, called with the pods of the node and the measures."""
_BLIND = "processes of other pods cannot be seen (hostPID: true): a pod has ended when the API server says so"


class _Enforced(NamedTuple):
    """What was last advertised, before it was split into devices."""

    declared: Declared
    said: NodeSharing
    """The declared sharing in force."""
    gpus: tuple[Gpu, ...]
    """The GPUs, with the sharing that could be enforced."""


class Agent:
    """The agent of one node; `run` ends when it is cancelled, and leaves all devices in use as they are.

    Args:
        settings: names, folders and intervals.
        driver: the node's GPU driver.
        kube: the Kubernetes API.
        beside: loops that start once this is the node's agent, and end with it.

    """

    def __init__(self, settings: Settings, driver: GpuDriver, kube: Kube, beside: Iterable[Beside] = ()) -> None:
        self._settings = settings
        self._beside = tuple(beside)
        self._driver = driver
        self._kube = kube
        self._log = logger(node=settings.node)
        self._layout_wakeup, self._offer_wakeup, self._record_wakeup = WakeUp(), WakeUp(), WakeUp()
        self.measures = Measures()
        self._node_store = self._own_store(NODES, "metadata.name")
        self._pod_store = self._own_store(PODS, "spec.nodeName")
        self._record = NodeRecord(kube, settings.node, self._log)
        self._kubelet = PodResources(settings.paths.pod_resources)
        self._view = self._own_view()
        self._own_pods = OwnPods(kube, self._view)
        self._gpunode = GpuNodeLink(kube, settings.node, self._log, wake=self._ring)
        self._keys = AssignmentKeys(kube, settings.node, settings.paths.assignment_key, self._log, wake=self._ring)
        self._used = UsedMemory(driver)
        self._enforcer = Enforcer(driver, settings.mps, settings.paths.state, self._log)
        files, asked, no_mps = ConfigurationFiles(settings.sources), self._gpunode.asked, self._enforcer.no_mps
        self._declarations = Declarations(driver, files, node=self._node, asked=asked, no_mps=no_mps)
        self._health = HealthWatch(driver, settings.health, on_change=self._judged)
        self._device_events = DeviceEvents(self._record)
        self._kept: dict[str, Layout] = {}
        """The only instances of a GPU that are advertised while its layout changes."""
        self._begun = False
        """Whether the layouts of before a reboot are restored; nothing is advertised before."""
        self._sign_tries = 0
        self._enforced: _Enforced | None = None
        """The declared and enforced sharing last advertised; None for nothing."""
        self._unwritten = ""
        """Why devices that should be advertised by name are not; empty where all are."""
        self._advertised = NodeOffer(resources=())
        self._impaired: tuple[Impairment, ...] = ()
        """The declarations that are not in force."""
        self._offered = Joint(self._offer_all)
        """Reconciles the advertised devices once, and returns whether the kubelet has no others."""
        self._strategies = StrategyChoice(settings.paths, settings.list_strategies, self._log)
        self._changes = ChangeRequests()
        """GPU changes for containers that are about to start."""
        self._plugins = self._own_plugins()
        gate, self._shares = self._plugins.gate, self._plugins.shares
        self._pods = self._own_node_pods()
        self._layouts = self._own_layouts()
        self._recorder = Recorder(kube, self._view, self._devices, self._keys, self._log)
        self._conflicts = Conflicts(kube, settings.node, gate, self._log)
        self.exporter = self._own_exporter()
        self._device_offers = DeviceOffers(self._gpunode, self._record, self._kubelet, gate, self._pods, self._log)

    def _own_store(self, kind: Kind, field: str) -> Store:
        selection = _of_node(field, self._settings.node)
        return Store(self._kube, kind, selection, wake=self._ring, on_trouble=self._trouble)

    def _own_view(self) -> PodsView:
        paths = self._settings.paths
        checkpoint = DeviceCheckpoint(paths.plugins)
        return PodsView(self._watched, self._relist, checkpoint, self._kubelet, proc=paths.proc)

    def _own_plugins(self) -> Plugins:
        paths = PluginPaths(
            plugins=self._settings.paths.plugins,
            cdi=self._settings.paths.cdi,
            driver_specs=self._settings.paths.driver_specs,
            driver_folder=self._settings.paths.driver_folder,
            minors=self._settings.paths.mig_minors,
            memory=self._settings.paths.state / "shares.json",
            allocations=self._settings.paths.state / "allocations.json",
            mps_root=self._settings.mps.root,
        )
        assigned = AssignedPods(self._view.pods, self._own_pods.annotate, self._keys)
        return Plugins(paths, self._view, assigned, self._changes, self._log)

    def _own_exporter(self) -> Exporter:
        gate, proc = self._plugins.gate, self._settings.paths.proc
        containers = NodeContainers(
            lambda: gate.record.entries, self._view, proc, lambda: gate.refusals.devices_of_orphans
        )
        return Exporter(
            self._settings.node, self._driver, containers, self._shared_gpus, lambda: self._health.health, self._log
        )

    def _own_node_pods(self) -> NodePods:
        gate, assigned, refresh = self._plugins.gate, self._shares.assigned_requests, self._shares.refresh
        return NodePods(self._view.pods, self._recorded, assigned, self._known, lambda: gate.record.entries, refresh)

    def _own_layouts(self) -> Layouts:
        gpus = NodeGpus(driver=self._driver, held=self._held, offer=self._keep, promised=self._promised)
        evict = self._own_pods.evict
        return Layouts(self._settings, gpus, self._record, self._declarations, self._pods, evict)

    def waiting_for(self) -> str:
        """Return why devices are not advertised as declared; empty where they are."""
        if not self._begun:
            return "reading the node, its pods and its GPUNode, and restoring layouts"
        return self._unwritten if self._enforced is not None else "reading the GPUs and what is declared for them"

    async def run(self) -> None:
        """Run until cancelled; while another agent runs on this node, wait for its end."""
        locks = NodeLocks(self._settings.paths.locks)
        async with locks.hold_agent(self._settings.paths.plugins, self._log):
            await self._run()

    async def _run(self) -> None:
        self._log.info("agent_started")
        try:
            async with self._kubelet, asyncio.TaskGroup() as tasks:
                tasks.create_task(self._node_store.run(self.measures))
                tasks.create_task(self._pod_store.run(self.measures))
                tasks.create_task(self._gpunode.run(self.measures))
                tasks.create_task(self._keys.run(self.measures))
                await self._node_store.synced()
                await self._pod_store.synced()
                await self._gpunode.known()
                await self._keys.synced()
                for each in self._beside:
                    tasks.create_task(each(self._view, self.measures))
                await until_done(self._begin, partial(self._trouble, what="start"), self._settings.interval_s)
                tasks.create_task(self._changes.serve(self._change))
                tasks.create_task(self._plugins.run(self.measures))
                tasks.create_task(self.exporter.run())
                tasks.create_task(self._forever("layout", self._layout_wakeup, self._follow))
                tasks.create_task(self._forever("offer", self._offer_wakeup, self._offer))
                tasks.create_task(self._forever("record", self._record_wakeup, self._write_pods))
                tasks.create_task(self._listen())
        finally:
            await self._offered.close()  # last, because the loops advertise; the next agent may start after it
            self._log.info("agent_stopped")

    async def _forever(self, what: str, wakeup: WakeUp, act: Callable[[], Awaitable[None]]) -> None:
        """Repeat an action, whatever errors come; ends only when this agent is cancelled."""
        while True:
            await one_turn(act, partial(self._trouble, what=what), partial(self.measures.turned, what))
            await wakeup.wait(self._settings.interval_s)

    def _ring(self) -> None:
        for wakeup in (self._layout_wakeup, self._offer_wakeup, self._record_wakeup):
            wakeup.set()

    def _trouble(self, error: BaseException, what: str = "follow") -> None:
        self._log.warning("turn_failed", what=what, reason=str(error) or type(error).__name__, exc_info=defect(error))

    async def _write_pods(self) -> None:
        """Write the kubelet's allocations on pods, and restore spoiled assignments."""
        try:
            await self._recorder.record(self._plugins.unit_mib)
        finally:
            await self._shares.repair()

    # Layouts

    async def _begin(self) -> None:
        """Get a signing key, and restore the layouts of before a reboot."""
        # 1. Get a signing key, and publish it.
        self._keys.open(self._gpunode.assignment_keys or ())
        if self._gpunode.unsigned:
            await self._sign()
        await self._gpunode.publish_keys(self._keys.published)
        # 2. Restore the layouts of before a reboot; nothing is advertised before.
        await self._layouts.begin(labels_of(await self._record.read()))
        self._begun = True

    async def _sign(self) -> None:
        """Sign running pods; one that cannot be written in several tries is skipped, and the others are served."""
        self._sign_tries += 1
        try:
            await self._recorder.sign(self._plugins.unit_mib)
        except Unavailable as error:
            if self._sign_tries < _SIGN_TRIES:
                raise
            self._log.error("assignment_not_signed", reason=str(error))

    async def _follow(self) -> None:
        await self._layouts.follow(labels_of(self._node()).get(MIG_CONFIG, ""))
        self._offer_wakeup.set()

    async def _keep(self, gpu: str, layout: Layout | None) -> None:
        """Advertise only these instances of a GPU, or all again; return when the kubelet has the list."""
        if layout is None:
            self._kept.pop(gpu, None)
        else:
            self._kept[gpu] = layout
        for _ in range(_OFFER_TRIES if self._begun else 0):
            if await self._offered():
                return
        if self._begun:
            raise Unavailable("kubelet", found="it does not show the new devices yet", hint="the agent tries again")

    def _promised(self, gpu: str) -> bool:
        """Return whether the kubelet may still allocate something of a GPU: it has not dropped all of it."""
        if self._gpunode.absent:
            return True
        return any(gpu == device.gpu for device in self._gpunode.offered())

    async def _held(self) -> Iterable[tuple[str, Sequence[str]]]:
        held = await self._pods.held(await self._driver.inventory())
        return [(each.pod, each.devices) for each in held]

    # Offers

    async def _offer(self) -> None:
        try:
            await self._offered()
            if self._enforced is not None:
                evict = self._enforced.said.evict_conflicts
                shares = self._shares
                conflicts = await self._conflicts.end(shares.unassigned, evict=evict, why=shares.why)
                self._record.note("conflicts", conflicts)
        finally:
            await self._record.report_notes()
        if self._enforced is not None:
            await self._report_gpus(self._enforced)
        await self._record.report_impaired(self._node(), self._impaired)

    async def _offer_all(self) -> bool:
        """Observe everything, reconcile the advertised devices; return whether the kubelet has them and no others."""
        # 1. Observe the declarations for this node and the driver's inventory.
        declared = await self._declarations.observe()
        inventory, said = declared.inventory, declared.said
        self._health.observe(inventory)
        self._record.note("configuration", declared.notes)
        self._enforced = None if said is None else _Enforced(declared, said, declared.gpus)
        if said is None:
            self._impaired = declared.impaired
            # Running containers keep their device list strategy.
            usual = self._strategies.choose(PluginOptions(), self._node())
            return await self._plugins.offer(NodeOffer(resources=()), inventory, usual)
        # 2. Enforce: MPS daemons, memory limits; what cannot be enforced is not advertised.
        self._plugins.count_in(said.unit_mib)
        await self._plugins.adopt(inventory)  # allocations made before this agent kept a record
        used = self._plugins.gate.record.without_mps
        gpus = await self._enforcer.apply(withheld(declared.gpus, self._kept), inventory, said, self._pods, used)
        self._record.note("enforcement", self._enforcer.problems)
        # 3. Plan what to advertise.
        options = OfferOptions(
            unit_mib=said.unit_mib,
            given=given(self._shares.assigned_requests(), inventory),
            unhealthy=self._health.unhealthy.union(
                each.device for each in self._plugins.gate.refusals.devices_of_orphans
            ),
            chosen=await self._chosen(declared),
        )
        offered, held = without_other_forms(offer(gpus, inventory, options), self._plugins.gate.record.allocated)
        self._record.note("offer", offered.withheld)
        self._record.note("other-form", held)
        # 4. Advertise it, one step at a time where devices move between kubelet and scheduler.
        observed = ObservedNode(offered=offered, gpus=declared.gpus, inventory=inventory, node=self._node())
        done = await self._hand_over(observed, self._strategies.choose(said.plugin, self._node()))
        unwritten = withheld_resources(done.unwritten)
        self._record.note("by-name", (each.message for each in unwritten))
        self._record.note("plugins", self._plugins.problems)
        self._record.note("processes", (_BLIND,) if self._view.blind else ())
        # 5. Keep what the report needs.
        self._advertised = offered
        self._unwritten = "; ".join(each.message for each in unwritten)
        unmet = unenforced((*self._layouts.unmet, *self._enforcer.problems))
        self._impaired = (*declared.impaired, *withheld_resources(offered.impossible), *unwritten, *unmet)
        self._enforced = _Enforced(declared, said, gpus)
        return done.withdrawn

    async def _hand_over(self, observed: ObservedNode, options: PluginOptions) -> HandOver:
        """Advertise the kubelet's devices."""

        async def advertise(now: NodeOffer, leaving: frozenset[DeviceId]) -> bool:
            return await self._plugins.offer(now, observed.inventory, options, leaving=leaving)

        done = await self._device_offers.hand_over(observed, advertise)
        if done.unfinished:
            asyncio.get_running_loop().call_later(_RETRY_S, self._offer_wakeup.set)
        return done

    def _shared_gpus(self) -> tuple[Gpu, ...]:
        return () if self._enforced is None else self._enforced.gpus

    async def _chosen(self, declared: Declared) -> Mapping[str, frozenset[DeviceId]]:
        """Return the advertised part of managed GPUs; without GPUNodes everything is advertised."""
        desired = declared.asked.desired
        if desired is None or not any(gpu.sharing.managed for gpu in declared.gpus):
            return {}
        held = await self._pods.by_name(declared.inventory) | self._plugins.gate.record.by_name
        return offered_devices(declared.gpus, desired, held, self._pods.assigned(declared.inventory))

    async def _change(self, request: ChangeRequest) -> Inventory:
        """Make a GPU change for a container that is about to start; return the inventory after it."""
        match request:
            case CreateInstance(gpu=gpu, placement=placement):
                await self._layouts.instance(gpu, placement)
                self._offer_wakeup.set()
            case DisableMig(gpu=gpu):
                await self._layouts.whole(gpu, await self._driver.inventory())
            case Enforce(shares=shares):
                await self._offered()
                self._enforcer.check(shares, await self._driver.inventory())
        return await self._driver.inventory()

    # Reports

    async def _report_gpus(self, enforced: _Enforced) -> None:
        declared, said, gpus = enforced
        inventory = declared.inventory
        orphaned = self._plugins.gate.refusals.devices_of_orphans
        await self._device_events.write(inventory, orphaned)
        if self._settings.labels:
            machine = await asyncio.to_thread(first_line, self._settings.paths.machine)
            labels = gpu_labels(inventory, declared.gpus, Labelling(strategy=said.strategy or "mixed", machine=machine))
            labels = stamped(labels, labels_of(self._node()), now_s=int(time.time()))
            await self._record.set_labels(labels, owned=owns)
        levels = enforcement_text(enforcements(gpus, inventory))
        handed_over = ",".join(self._strategies.strategies)
        noted = {APPLIED: declared.generation or None, ENFORCEMENT: levels, DEVICE_LIST: handed_over or None}
        await self._record.annotate(noted)
        counted = gpus_to_count(self._advertised.resources, self._shares.assigned_requests())
        await self._record.count_gpus(self._node(), counted)
        used, health = await self._used.read(declared.gpus, inventory), self._health.health
        node = self._settings.node
        state = reported(node, declared.gpus, inventory, health, used=used, unit_mib=said.unit_mib)
        self._keys.keep(self._gpunode.assignment_keys or ())
        state = msgspec.structs.replace(
            state,
            unhealthy=(*state.unhealthy, *orphaned),
            impaired=self._impaired,
            assignment_keys=self._keys.published,
        )
        self._record.note("assignments", self._shares.refused)
        await self._gpunode.report(state, self._node(), generation=declared.asked.generation)
        revision = gpu_revision(state, devices_by_gpu(self._gpunode.offered()))
        if labels_of(self._node()).get(REVISION) != revision:  # after the GPUNode, by which servers answer then
            await self._record.set_labels({REVISION: revision}, owned=lambda key: key == REVISION)

    async def _devices(self) -> Mapping[str, Share]:
        """Return the share of each device id."""
        declared = await self._declarations.observe()
        return shares_by_id(declared.gpus, declared.inventory)

    async def _listen(self) -> None:
        """Follow the driver's events; unhealthy devices are no longer advertised."""
        while True:
            await one_turn(self._health.run, partial(self._trouble, what="events"))
            await asyncio.sleep(self._settings.interval_s)

    def _judged(self, changes: tuple[HealthChange, ...]) -> None:
        self._device_events.judged(changes)
        self._ring()

    # Observing

    def _watched(self) -> tuple[Object, ...]:
        """Return the pods that are bound to this node, as of the watch."""
        return tuple(self._pod_store.objects.values())

    async def _relist(self) -> Listing:
        """Return the pods that are bound to this node, read from the API server."""
        async with asyncio.timeout(_RELIST_S):
            return await self._kube.list(PODS, _of_node("spec.nodeName", self._settings.node))

    async def _recorded(self) -> tuple[KubeletAllocation, ...]:
        """Return the containers' devices: by the kubelet's record, and by ours where the kubelet has forgotten one."""
        self._plugins.gate.record.release()
        found = {each.key: each for each in (*self._plugins.gate.record.held(), *await self._view.held())}
        return tuple(found[key] for key in sorted(found))

    def _known(self) -> Container[str]:
        """Return the resources that the kubelet knows."""
        names: Container[str] = (self._node().get("status") or {}).get("allocatable") or ()
        return names

    def _node(self) -> Object:
        return self._node_store.objects.get(("", self._settings.node), {})


def _of_node(field: str, node: str) -> Selection:
    return Selection(fields=((field, node),))
