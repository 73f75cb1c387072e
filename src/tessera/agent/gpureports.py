"""Reports this node's GPUs: events of devices, labels and counts on the Node object, the status of the GPUNode."""

import asyncio
import time

import msgspec

from tessera.agent.advertiser import Advertiser, Enforced
from tessera.agent.declarations.configuration import APPLIED
from tessera.agent.deviceplugin import Gate, Plugins
from tessera.agent.nodefiles import first_line
from tessera.agent.nodestate.deviceevents import DeviceEvents
from tessera.agent.nodestate.gpunode import GpuNodeLink
from tessera.agent.nodestate.health import HealthWatch
from tessera.agent.nodestate.noderecord import NodeRecord
from tessera.agent.nodestate.usedmemory import UsedMemory
from tessera.agent.pods.assignmentkeys import AssignmentKeys
from tessera.agent.pods.ownpods import OwnPods
from tessera.agent.settings import AgentSettings
from tessera.agent.strategychoice import StrategyChoice
from tessera.agent.watchednode import WatchedNode
from tessera.api.nvidia.gpulabels import Labeling, gpu_labels, owns, stamped
from tessera.api.tessera.node.nodereports import DEVICE_LIST, ENFORCEMENT, REVISION, enforcement_text, gpu_revision
from tessera.clients.kube import labels_of, uid_of
from tessera.core.cluster.enforcement import enforcements
from tessera.core.cluster.gpunodestate import Impairment, UnhealthyDevice
from tessera.core.cluster.protocols.allocators import devices_by_gpu
from tessera.core.deviceplugin.gpucount import gpus_to_count
from tessera.core.node.reported import reported

__all__ = ["GpuNodeReport", "GpuReports", "NodeDescription"]


class NodeDescription:
    """Describes the GPUs on the Node object: labels, annotations, counts.

    Args:
        settings: of the agent.
        record: the Node object.
        watched: it as last observed.
        advertiser: what is advertised.
        plugins: the assignments.
        strategies: how devices are handed to containers.

    """

    def __init__(
        self,
        settings: AgentSettings,
        record: NodeRecord,
        watched: WatchedNode,
        advertiser: Advertiser,
        plugins: Plugins,
        strategies: StrategyChoice,
    ) -> None:
        self._settings = settings
        self._record = record
        self._watched = watched
        self._advertiser = advertiser
        self._plugins = plugins
        self._strategies = strategies

    async def describe(self, enforced: Enforced) -> None:
        """Write what is in force; doing it again changes nothing."""
        declared, node_sharing, gpus = enforced
        inventory = declared.inventory
        if self._settings.labels:
            machine = await asyncio.to_thread(first_line, self._settings.paths.machine)
            labels = gpu_labels(
                inventory, declared.gpus, Labeling(strategy=node_sharing.strategy or "mixed", machine=machine)
            )
            labels = stamped(labels, labels_of(self._watched.node()), now_s=int(time.time()))
            await self._record.set_labels(labels, owned=owns)
        levels = enforcement_text(enforcements(gpus, inventory))
        handed_over = ",".join(self._strategies.strategies)
        noted = {APPLIED: declared.generation or None, ENFORCEMENT: levels, DEVICE_LIST: handed_over or None}
        await self._record.annotate(noted)
        assigned = self._plugins.shares.assigned_requests()
        await self._record.count_gpus(
            self._watched.node(), gpus_to_count(self._advertiser.advertised.resources, assigned)
        )

    async def show_revision(self, revision: str) -> None:
        """Show that the GPUNode has changed."""
        if labels_of(self._watched.node()).get(REVISION) != revision:
            await self._record.set_labels({REVISION: revision}, owned=lambda key: key == REVISION)


class GpuNodeReport:
    """Reports the status of the GPUNode.

    Args:
        gpunode: the object.
        watched: the Node that owns it.
        health: of the devices.
        used: memory of the devices.
        pods: of this node.
        keys: whose public ones are published.

    """

    def __init__(
        self,
        gpunode: GpuNodeLink,
        watched: WatchedNode,
        health: HealthWatch,
        used: UsedMemory,
        pods: OwnPods,
        keys: AssignmentKeys,
    ) -> None:
        self._gpunode = gpunode
        self._watched = watched
        self._health = health
        self._used = used
        self._pods = pods
        self._keys = keys

    async def report(
        self, enforced: Enforced, impaired: tuple[Impairment, ...], orphaned: tuple[UnhealthyDevice, ...]
    ) -> str:
        """Report the GPUs; return the revision of what they are.

        Args:
            enforced: what was last advertised.
            impaired: the declarations that are not in force.
            orphaned: devices that no pod can be sent to.

        Raises:
            TesseraError: the API server or the driver does not answer.

        """
        declared = enforced.declared
        self._keys.keep(self._gpunode.assignment_keys or ())
        pods = [uid_of(each) for each in self._pods.pods()]
        used = await self._used.read(declared.gpus, declared.inventory, pods)
        state = reported(
            self._gpunode.node,
            declared.gpus,
            declared.inventory,
            self._health.health,
            used=used,
            unit_mib=enforced.node_sharing.unit_mib,
        )
        state = msgspec.structs.replace(
            state,
            unhealthy=(*state.unhealthy, *orphaned),
            impaired=impaired,
            assignment_keys=self._keys.published,
        )
        await self._gpunode.report(state, self._watched.node(), generation=declared.request.generation)
        return gpu_revision(state, devices_by_gpu(self._gpunode.offered()))


class GpuReports:
    """Reports what was last advertised; doing it again changes nothing.

    Args:
        gate: knows the devices that no pod can be sent to.
        device_events: what happened to devices.
        description: of the GPUs on the Node object.
        status: of the GPUNode.

    """

    def __init__(
        self, gate: Gate, device_events: DeviceEvents, description: NodeDescription, status: GpuNodeReport
    ) -> None:
        self._gate = gate
        self._device_events = device_events
        self._description = description
        self._status = status

    async def report(self, enforced: Enforced, impaired: tuple[Impairment, ...]) -> None:
        """Report the GPUs, and the declarations that are not in force.

        Raises:
            TesseraError: the API server or the driver does not answer.

        """
        # 1. Report what happened to devices, by events.
        orphaned = self._gate.refusals.devices_of_orphans
        await self._device_events.write(enforced.declared.inventory, orphaned)
        # 2. Describe the GPUs on the Node object.
        await self._description.describe(enforced)
        # 3. Report them in the GPUNode.
        revision = await self._status.report(enforced, impaired, orphaned)
        # 4. Show on the Node object that the GPUNode has changed: after it, by which servers answer then.
        await self._description.show_revision(revision)
