"""Keeps the devices that the kubelet has of this node as they should be: declared, enforced, healthy, and its own."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from tessera.agent.declarations.declared import Declarations, Declared
from tessera.agent.deviceplugin import Plugins
from tessera.agent.deviceplugin.offers.deviceoffers import DeviceOffers, MoveProgress, OfferableDevices
from tessera.agent.nodestate.health import HealthWatch
from tessera.agent.nodestate.noderecord import NodeRecord
from tessera.agent.pods.nodepods import NodePods
from tessera.agent.sharing.enforcer import Enforcer
from tessera.agent.strategychoice import StrategyChoice
from tessera.agent.watchednode import WatchedNode
from tessera.core.cluster.gpunodestate import Impairment
from tessera.core.cluster.snapshot import Gpu
from tessera.core.deviceplugin.allocations.agentallocations import without_other_forms
from tessera.core.deviceplugin.allocations.allocateddevices import devices_by_name
from tessera.core.deviceplugin.allocations.poddevices import assigned_instances
from tessera.core.deviceplugin.offers.advertise import (
    NodeOffer,
    ObservedResources,
    OfferOptions,
    Resource,
    healthy_counts,
    offer,
    refused_resources,
)
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.mig import Layout
from tessera.core.node.desired import offered_devices
from tessera.core.node.nodesharing import NodeSharing, PluginOptions, withheld
from tessera.core.node.reported import withheld_resources
from tessera.core.workload.tesseranames import RENAMED_RESOURCES
from tessera.errors import TesseraError, Unavailable
from tessera.loops import Joint

__all__ = ["Advertiser", "DevicePublisher", "Enforced"]

_RETRY_S = 0.2
"""Interval of checks whether the kubelet has dropped a device."""
_OFFER_TRIES = 5
"""Passes after which the kubelet must have the new list; pods that are bound for a device get it before it goes."""
_OBSERVE_S = 5.0
"""Timeout for reading what would be advertised, before the agent has started."""
_USUAL = PluginOptions()
_NO_GPU = "the driver lists no GPU"
"""A node that has none any more cannot be told from one that has lost them: so the node's resources are kept."""
_BLIND = (
    "processes of other pods are not visible (set hostPID: true): "
    "the agent relies on the API server for the end of a pod"
)


class Enforced(NamedTuple):
    """What was last advertised, before it was split into devices."""

    declared: Declared
    node_sharing: NodeSharing
    """The declared sharing in force."""
    gpus: tuple[Gpu, ...]
    """The GPUs, with the sharing that could be enforced."""


class DevicePublisher:
    """Shows the planned devices to kubelet and scheduler.

    Args:
        plugins: advertise devices to the kubelet.
        device_offers: moves devices between kubelet and scheduler.
        strategies: how devices are handed to containers.
        record: the Node object, on which fewer devices are announced.
        watched: the last observed Node object.
        wake: called when devices should be published again soon.

    """

    def __init__(
        self,
        plugins: Plugins,
        device_offers: DeviceOffers,
        strategies: StrategyChoice,
        record: NodeRecord,
        watched: WatchedNode,
        wake: Callable[[], None],
    ) -> None:
        self._plugins = plugins
        self._device_offers = device_offers
        self._strategies = strategies
        self._record = record
        self._watched = watched
        self._wake = wake
        self._refused: tuple[Resource, ...] = ()
        """Registered resources of which the kubelet refuses pods until devices are published."""
        self._names = frozenset[str]()
        """Resource names of the configuration, by `keep_names`."""
        self.withheld: tuple[tuple[str, str], ...] = ()
        """Resources that the Node has and of which nothing is published, with the reason."""

    def promised(self, gpu: str) -> bool:
        """Return whether the kubelet may still allocate something of a GPU: it has not dropped all of it."""
        return self._device_offers.promised(gpu)

    async def withdraw(self, inventory: Inventory, why: str) -> bool:
        """Withdraw all devices, and refuse pods that request them; containers that are on record start again.

        Running containers keep their device list strategy.

        Args:
            inventory: the driver's.
            why: the cause, for refusals.

        Raises:
            TesseraError: kubelet or API server do not answer; call again.

        """
        node = self._watched.node()
        await self._find_refused((), every=True, lost=why)
        options = self._strategies.choose(_USUAL, node)
        done = await self._plugins.offer(NodeOffer(resources=self._refused), inventory, options)
        await self._record.announce(node, healthy_counts(self._refused))
        return done

    async def register_refused(self, resources: Iterable[Resource], *, every: bool, lost: str) -> None:
        """Have the kubelet refuse pods that request these resources, until devices are published.

        Args:
            resources: what would be advertised.
            every: as in `core.deviceplugin.offers.advertise.refused_resources`.
            lost: as there.

        Raises:
            TesseraError: kubelet or API server do not answer; call again.

        """
        await self._find_refused(resources, every=every, lost=lost)
        if self._refused:
            await self._plugins.register_refused(self._refused)
            await self._record.announce(self._watched.node(), healthy_counts(self._refused))

    async def _find_refused(self, resources: Iterable[Resource], *, every: bool, lost: str = "") -> None:
        view = self._plugins.gate.view
        allocated, uids = defaultdict[str, frozenset[str]](frozenset), set[str]()
        for each in await view.devices_of_all_containers():
            allocated[each.resource] |= frozenset(each.device_ids)
            uids.add(each.uid)
        admitted = self._plugins.admitted(uids)
        node, known = view.node(), view.kubelet_resources
        observed = ObservedResources(
            node=node.resources, gpus=node.gpu_resources, kubelet=known, admitted=admitted, allocated=allocated
        )
        self._refused = refused_resources(resources, observed, self._refused, every=every, lost=lost)

    async def keep_names(self, names: frozenset[str]) -> bool:
        """Keep resource names of the configuration on the Node object: it remains where both records are lost.

        No name is dropped as long as that object exists: pods that request it may run. The kubelet does the same.

        Args:
            names: those that are advertised from now on.

        Returns:
            Whether the watch shows them.

        Raises:
            TesseraError: the API server does not answer; call again.

        """
        shown = self._plugins.gate.view.node().renamed
        self._names |= names | shown
        if not names <= shown:
            await self._record.annotate({RENAMED_RESOURCES: ",".join(sorted(self._names))})
        return names <= shown

    async def publish(self, offered: NodeOffer, declared: Declared, configured: PluginOptions) -> MoveProgress:
        """Advertise the kubelet's devices, one step at a time where devices move between kubelet and scheduler.

        While the driver lists no GPU, no pod starts without the one that it requests.
        """
        node = self._watched.node()
        options = self._strategies.choose(configured, node)
        if not declared.inventory.gpus:
            await self._find_refused((), every=True, lost=_NO_GPU)
        refused = () if declared.inventory.gpus else self._refused
        self.withheld = tuple((each.name, _NO_GPU) for each in refused)

        async def advertise(now: NodeOffer, leaving: frozenset[DeviceId]) -> bool:
            every = msgspec.structs.replace(now, resources=(*now.resources, *refused))
            return await self._plugins.offer(every, declared.inventory, options, leaving=leaving)

        observed = OfferableDevices(offered=offered, gpus=declared.gpus, inventory=declared.inventory, node=node)
        done = await self._device_offers.move(observed, advertise)
        await self._record.announce(node, healthy_counts(refused))
        if done.unfinished:
            asyncio.get_running_loop().call_later(_RETRY_S, self._wake)
        return done

    async def announce_closed(self, offered: NodeOffer) -> tuple[Impairment, ...]:
        """Return the resources of which nothing is offered, because the record cannot be written, or lacks something.

        The Node shows it at once: until the kubelet does, each pod that is bound here fails.
        """
        closed = self._plugins.gate.record.closed
        if not closed:
            return ()
        try:
            await self._record.announce(
                self._watched.node(), healthy_counts(self._plugins.without_free_devices(offered.resources))
            )
        except (TesseraError, TimeoutError):
            self._wake()
        return withheld_resources((resource.name, closed) for resource in offered.resources)


class Advertiser:
    """Reconciles the advertised devices; nothing is advertised before `begin`, except by `reconcile`.

    Args:
        declarations: the sharing declared for this node.
        health: of its devices.
        enforcer: enforces the declared sharing.
        pods: of this node.
        plugins: whose devices they are.
        publisher: shows the planned devices to kubelet and scheduler.

    """

    def __init__(
        self,
        declarations: Declarations,
        health: HealthWatch,
        enforcer: Enforcer,
        pods: NodePods,
        plugins: Plugins,
        publisher: DevicePublisher,
    ) -> None:
        self._declarations = declarations
        self._health = health
        self._enforcer = enforcer
        self._pods = pods
        self._plugins = plugins
        self._publisher = publisher
        self._gate = plugins.gate
        self._retained: dict[str, Layout] = {}
        """The only instances of a GPU that are advertised while its layout changes."""
        self._begun = False
        self._unwritten = ""
        """Why devices that should be advertised by name are not; empty where all are."""
        self.enforced: Enforced | None = None
        """The declared and enforced sharing last advertised; None for nothing."""
        self.advertised = NodeOffer(resources=())
        """The devices last advertised, and those that were withheld."""
        self.impaired: tuple[Impairment, ...] = ()
        """The declarations for devices that are not in force."""
        self.notes: dict[str, tuple[str, ...]] = {}
        """What is impaired, by what it is about; one sentence each."""
        self._reconciled = Joint(self._reconcile)

    async def begin(self) -> None:
        """Record what containers have, and start to advertise: the layouts from before a reboot are restored.

        Raises:
            TesseraError: driver, kubelet or API server do not answer; call again.

        """
        declared = await self._declarations.observe()
        names = frozenset[str]() if declared.node_sharing is None else declared.node_sharing.renamed
        if not await self._publisher.keep_names(names):
            found = f"its annotation {RENAMED_RESOURCES} is written, and not observed yet"
            raise Unavailable("the Node object", found=found, hint="the agent tries again")
        await self._adopt(declared)
        self._begun = True

    async def register_refused(self, *, gpunode_known: bool) -> None:
        """Let no pod start without what it requests before `begin`.

        Args:
            gpunode_known: whether the GPUNode was read.

        Raises:
            TesseraError: kubelet or API server do not answer; call again.

        """
        resources, known, lost = tuple[Resource, ...](), False, ""
        with contextlib.suppress(TesseraError, TimeoutError):  # `begin` says why the driver does not answer
            async with asyncio.timeout(_OBSERVE_S):
                found = await self._declarations.observe()
            if found.node_sharing is not None:
                options = OfferOptions(unit_mib=found.node_sharing.unit_mib)
                resources, known = offer(found.gpus, found.inventory, options).resources, gpunode_known
            if not found.inventory.gpus:
                known, lost = False, _NO_GPU if self._gate.record.is_read else ""
        await self._publisher.register_refused(resources, every=not known, lost=lost)

    def waiting_for(self) -> str:
        """Return why devices are not advertised as declared; empty where they are."""
        if not self._begun:
            return "reading the node, its pods and its GPUNode, and restoring layouts"
        return self._unwritten if self.enforced is not None else "reading the GPUs and what is declared for them"

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs, with the sharing that could be enforced."""
        return () if self.enforced is None else self.enforced.gpus

    async def advertise(self, gpu: str, layout: Layout | None) -> None:
        """Advertise only these instances of a GPU, or all again; return when the kubelet has the list.

        Raises:
            Unavailable: it has not taken it.

        """
        if layout is None:
            self._retained.pop(gpu, None)
        else:
            self._retained[gpu] = layout
        for _ in range(_OFFER_TRIES if self._begun else 0):
            if await self.reconcile():
                return
        if self._begun:
            raise Unavailable("kubelet", found="it does not show the new devices yet", hint="the agent tries again")

    def promised(self, gpu: str) -> bool:
        """Return whether the kubelet may still allocate something of a GPU: it has not dropped all of it."""
        return self._publisher.promised(gpu)

    async def reconcile(self) -> bool:
        """Observe everything, reconcile the advertised devices; return whether the kubelet has them and no others."""
        return await self._reconciled()

    async def close(self) -> None:
        """End the calls in progress, and refuse new ones."""
        await self._reconciled.close()

    async def _reconcile(self) -> bool:
        plugins = self._plugins
        # 1. Observe the declarations for this node and the driver's inventory.
        declared = await self._declarations.observe()
        inventory, node_sharing = declared.inventory, declared.node_sharing
        self._health.observe(inventory)
        self.notes["configuration"] = declared.notes
        self.enforced = None if node_sharing is None else Enforced(declared, node_sharing, declared.gpus)
        if node_sharing is None:
            self.impaired = declared.impaired
            why = "; ".join(each.message for each in declared.impaired)
            return await self._publisher.withdraw(inventory, f"no configuration was ever valid: {why}")
        # 2. Enforce: MPS daemons, memory limits; what cannot be enforced is not advertised.
        await self._adopt(declared)
        gpus = await self._enforcer.apply(
            withheld(declared.gpus, self._retained), inventory, node_sharing, self._pods, self._gate.record
        )
        self.notes["enforcement"] = self._enforcer.problems
        # 3. Plan what to advertise.
        orphaned = (each.device for each in self._gate.refusals.devices_of_orphans)
        options = OfferOptions(
            unit_mib=node_sharing.unit_mib,
            assigned_instances=assigned_instances(plugins.shares.assigned_requests(), inventory),
            unhealthy=self._health.unhealthy.union(orphaned),
            chosen=await self._chosen(declared),
        )
        offered, other_forms = without_other_forms(offer(gpus, inventory, options), self._gate.record.allocated)
        self.notes |= {"offer": offered.withheld, "other-form": other_forms}
        # 4. Advertise it; its names are kept first.
        await self._publisher.keep_names(node_sharing.renamed)
        done = await self._publisher.publish(offered, declared, node_sharing.plugin)
        unwritten = withheld_resources(done.unwritten)
        lost = withheld_resources(self._publisher.withheld)
        self.notes |= {
            "by-name": tuple(each.message for each in (*unwritten, *lost)),
            "plugins": plugins.problems,
            "processes": (_BLIND,) if self._gate.view.blind else (),
        }
        # 5. Keep what the report needs.
        unwritten += await self._publisher.announce_closed(offered)
        self.advertised = offered
        self._unwritten = "; ".join(each.message for each in unwritten)
        self.impaired = (*declared.impaired, *withheld_resources(offered.impossible), *lost, *unwritten)
        self.enforced = Enforced(declared, node_sharing, gpus)
        return done.withdrawn

    async def _adopt(self, declared: Declared) -> None:
        """Record allocations made before this agent kept a record."""
        if declared.node_sharing is not None:
            self._plugins.count_in(declared.node_sharing.unit_mib)
        await self._plugins.adopt(declared.inventory)

    async def _chosen(self, declared: Declared) -> Mapping[str, frozenset[DeviceId]]:
        """Return the advertised part of managed GPUs; without GPUNodes everything is advertised."""
        desired = declared.request.desired
        if desired is None or not any(gpu.sharing.managed for gpu in declared.gpus):
            return {}
        pods = self._pods
        by_name = await pods.by_name(declared.inventory) | devices_by_name(self._gate.record.allocated)
        return offered_devices(declared.gpus, desired, by_name, pods.assigned_devices(declared.inventory))
