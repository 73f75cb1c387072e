"""All device plugins of a node: what they advertise, how devices are handed over, and their registration."""

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial

from tessera.agent.deviceplugin.allocations.gate import Gate
from tessera.agent.deviceplugin.containers.cdifolder import CdiFolder
from tessera.agent.deviceplugin.containers.devicemaker import DeviceMaker, PluginPaths
from tessera.agent.deviceplugin.containers.handover import DeviceHandover
from tessera.agent.deviceplugin.containers.shares import ShareAllocator
from tessera.agent.deviceplugin.offers.resource import OfferedResource
from tessera.agent.deviceplugin.offers.servers import PluginServers
from tessera.agent.sharing.mpsprocesses import recorded_daemons
from tessera.api.kubernetes.containerlimits import admitted_amounts
from tessera.clients.kube import uid_of
from tessera.core.deviceplugin.allocations.agentallocations import AllocatedDevice, uses_of_ids
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.allocations.relocation import is_elsewhere
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.core.deviceplugin.offers.advertise import NodeOffer, Resource, healthy_counts, without_free_devices
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import Inventory
from tessera.core.node.liststrategies import DeviceInjection
from tessera.core.node.nodesharing import ListStrategy, PluginOptions
from tessera.core.workload.resources import SHARE_RESOURCES
from tessera.errors import TesseraError
from tessera.log import Logger, RepeatedErrors
from tessera.loops import one_turn
from tessera.measures import Measures

__all__ = ["Plugins"]

_TEND_S = 0.2
_CLEAN_UP_S = 30.0
_STRATEGIES: tuple[ListStrategy, ...] = ("envvar",)
"""Device list strategies where the node's configuration sets none."""


class Plugins:
    """The device plugins of this node: `offer` sets what is advertised, `run` keeps them registered until canceled.

    Args:
        paths: on the node.
        devices: of this node, prepared for containers.
        gate: decides each allocation, and records it.
        shares: allocates the resources whose pods carry an assignment.
        cdi: the CDI specifications of this node.
        log: for what was applied.

    """

    def __init__(
        self, paths: PluginPaths, devices: DeviceMaker, gate: Gate, shares: ShareAllocator, cdi: CdiFolder, log: Logger
    ) -> None:
        self.gate = gate
        self.shares = shares
        self._paths = paths
        self._maker = devices
        self._cdi = cdi
        self._complain = RepeatedErrors(log, "device_handover_impaired")
        self._options = PluginOptions()
        self._handover = DeviceHandover(devices, DeviceInjection(strategies=_STRATEGIES))
        self._unwritten = ""
        """Why CDI specifications are outdated; empty where they are not."""
        self._adopted = False
        """Whether allocations made before there was a record are recorded."""
        self._servers = PluginServers(paths.plugins, self._plugin, gate.view.allocatable, log)

    @property
    def problems(self) -> tuple[str, ...]:
        """What keeps resources from being advertised, or containers from getting devices; one sentence each."""
        return (*self._servers.problems, *filter(None, (self._unwritten, self.gate.record.closed)))

    @property
    def unit_mib(self) -> int:
        """Unit of the resources that are amounts of memory, in MiB."""
        return self._maker.unit_mib

    def count_in(self, unit_mib: int) -> None:
        """Set the unit of the resources that are amounts of memory, in MiB."""
        self._maker.unit_mib = unit_mib
        self.shares.count_in(unit_mib)

    async def adopt(self, inventory: Inventory) -> None:
        """Record where MIG instances are now, and allocations made before there was a record, or that it has lost.

        That is done once, and again when it is known what a container uses of which that was not. Nothing is advertised
        before.

        Raises:
            Unavailable: the kubelet's record cannot be read.

        """
        self._observe(inventory)
        if self.gate.record.know_uses(self._uses_of) or not self._adopted:
            await self._clean_up_record()
            self.gate.record.follow(self._maker.inventory)
            self._adopted = True

    def _observe(self, inventory: Inventory) -> None:
        self._maker.observe(inventory)
        self.gate.record.follow(self._maker.inventory)

    async def offer(
        self,
        offered: NodeOffer,
        inventory: Inventory,
        options: PluginOptions,
        *,
        leaving: frozenset[DeviceId] = frozenset(),
    ) -> bool:
        """Advertise devices; return whether every stream of the kubelet got its new list in time.

        Args:
            offered: of `core.deviceplugin.offers.advertise.offer`.
            inventory: the driver's inventory that `offered` was computed from.
            options: how devices are handed over.
            leaving: withdrawn devices that are still allocated to pods the kubelet chose them for before.

        """
        self._options = options
        injection = DeviceInjection(
            strategies=options.list_strategies or _STRATEGIES,
            pass_device_specs=options.pass_device_specs,
            by_index=options.id_strategy == "index",
            annotation_prefix=options.cdi_annotation_prefix,
            dev_root=options.driver_root,
            driver_folder=self._paths.driver_folder,
        )
        self._handover.injection = injection
        self._observe(inventory)
        self._unwritten = ""
        if injection.cdi or self.gate.record.by_cdi:
            try:
                self._cdi.write_gpus(self._maker.edits_by_uuid(), dev_root=injection.dev_root)
            except (OSError, TesseraError) as error:
                self._complain(error)
                self._unwritten = f"the CDI specification of the node's GPUs cannot be written: {error}"
        self.shares.inject(injection)
        await self.adopt(inventory)
        self.gate.record.retry()
        await self.gate.record.observe_unknown_uses()
        resources = self.without_free_devices(offered.resources) if self.gate.record.closed else offered.resources
        policy = options.allocation_policy or "distributed"
        # The kubelet calls before each start of a container, also of a resource without devices by now.
        names = self.gate.record.resources - {resource.name for resource in offered.resources}
        kept = (Resource(name=name, devices=(), by_assignment=name in SHARE_RESOURCES) for name in sorted(names))
        return await self._servers.offer((*resources, *kept), policy=policy, leaving=leaving)

    def without_free_devices(self, resources: Iterable[Resource]) -> tuple[Resource, ...]:
        """Return what `offer` advertises of resources while the record is closed: nothing more can be allocated."""
        record, admitted = self.gate.record, self.admitted()
        return tuple(
            without_free_devices(each, record.allocated_ids(each.name), admitted.get(each.name, 0))
            for each in resources
        )

    def admitted(self, uids: Iterable[str] = ()) -> Mapping[str, int]:
        """Return how many devices of each resource the pods request that the kubelet has admitted.

        It has admitted those of which the record has an allocation, and those with these UIDs, even if their status
        does not say so yet.
        """
        view = self.gate.view
        recorded = (view.find(each) for each in {*uids, *(each.uid for each in self.gate.record.entries)})
        return admitted_amounts(view.pods(), {uid_of(pod) for pod in recorded if pod is not None})

    async def until_registered(self) -> None:
        """Return after a registration since the last call."""
        await self._servers.registered.wait()
        self._servers.registered.clear()

    def counts_of_bound(self) -> Mapping[str, int]:
        """Return how many devices of each advertised resource bound pods request, of those that are healthy."""
        pods, healthy = self.gate.view.pods(), healthy_counts(self._servers.resources)
        requested = admitted_amounts(pods, {uid_of(pod) for pod in pods})
        return {name: min(count, requested[name]) for name, count in healthy.items()}

    async def register_refused(self, resources: Iterable[Resource]) -> None:
        """Register resources of which no call is answered until `offer` is called."""
        await self._servers.offer(resources, policy="distributed")

    async def keep_registered(self) -> None:
        """Register again when the kubelet restarts, before `run`; until canceled."""
        while True:
            await self._servers.until_restarted(_TEND_S)
            await one_turn(self._servers.tend, self._complain)

    async def run(self, measures: Measures) -> None:
        """Serve, register again when the kubelet restarts, and remove stale state; until canceled."""
        loop = asyncio.get_running_loop()
        tidied_s = loop.time()
        measures.started("plugins")
        try:
            while True:
                await self._servers.until_restarted(_TEND_S)
                await one_turn(self._servers.tend, self._complain, partial(measures.turned, "plugins"))
                if loop.time() - tidied_s >= _CLEAN_UP_S:
                    tidied_s = loop.time()
                    await one_turn(self._clean_up_record_and_shares, self._complain)
        finally:
            await self.close()

    async def close(self) -> None:
        """Stop all servers, as the end of `run` does; the kubelet then has their devices as unhealthy."""
        await self._servers.close()

    async def _clean_up_record_and_shares(self) -> None:
        await self._clean_up_record(self._handover.injection.strategies)
        await self.shares.clean_up()

    async def _clean_up_record(self, strategies: tuple[ListStrategy, ...] = ()) -> None:
        await self.gate.record.clean_up(self._uses_of, recorded_daemons(self._paths.mps_root), strategies)

    def _uses_of(self, allocated: KubeletAllocation) -> tuple[AllocatedDevice, ...] | None:
        """Return what a container uses by its ids: by its assignment, or the devices of these names (`UsesOf`).

        An assignment says nothing if it names a GPU that the driver does not list: its number may be another's, as the
        driver numbers GPUs anew if one is lost. Nor does one that a tenant restored: the kubelet's record has other
        devices.
        """
        if allocated.resource not in SHARE_RESOURCES:
            return uses_of_ids(allocated.device_ids, self._maker.inventory) if allocated.device_ids else None
        own = allocated.key, allocated.uid
        request = next((each for each in self.shares.assigned_requests() if (each.key, each.uid) == own), None)
        if request is None:
            return None
        uses = self._maker.uses(request.shares)
        if len(uses) < len(request.shares) or self._is_elsewhere(allocated, uses):
            return None
        return uses

    def _is_elsewhere(self, allocated: KubeletAllocation, uses: tuple[AllocatedDevice, ...]) -> bool:
        """Return whether a container that the record lacks was answered with other devices than these."""
        key = allocated.container_key
        if any(each.container_key == key and each.uses for each in self.gate.record.entries):
            return False
        answer = self.gate.view.responses().get(key, ContainerResponse())
        return is_elsewhere(answer, uses, self._maker.inventory)

    # What the plugin of a resource answers

    def _plugin(self, resource: Resource) -> OfferedResource:
        policy = self._options.allocation_policy or "distributed"
        return OfferedResource(resource, self._handover, self.gate, self.shares, policy=policy)
