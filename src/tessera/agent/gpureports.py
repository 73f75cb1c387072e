"""Reports this node's GPUs: events of devices, labels and counts on the Node object, the status of the GPUNode."""

import asyncio
import time
from typing import NamedTuple

import msgspec

from tessera.agent.advertiser import Advertiser, Enforced
from tessera.agent.declarations.configuration import APPLIED
from tessera.agent.deviceplugin import Plugins
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
from tessera.core.cluster.gpunodestate import GpuNodeState, Impairment
from tessera.core.cluster.mps import enforcements
from tessera.core.cluster.protocols.allocators import devices_by_gpu
from tessera.core.deviceplugin.gpushare import gpus_to_count
from tessera.core.node.reported import reported

__all__ = ["GpuReports", "ReportSources", "ReportTargets"]


class ReportSources(NamedTuple):
    """What is reported."""

    advertiser: Advertiser
    plugins: Plugins
    strategies: StrategyChoice
    health: HealthWatch
    used: UsedMemory
    pods: OwnPods
    watched: WatchedNode


class ReportTargets(NamedTuple):
    """Where it is reported."""

    record: NodeRecord
    device_events: DeviceEvents
    gpunode: GpuNodeLink


class GpuReports:
    """Reports what was last advertised; doing it again changes nothing.

    Args:
        settings: of the agent.
        sources: what is reported.
        targets: where.
        keys: whose public ones are published in the GPUNode.

    """

    def __init__(
        self, settings: AgentSettings, sources: ReportSources, targets: ReportTargets, keys: AssignmentKeys
    ) -> None:
        self._settings = settings
        self._sources = sources
        self._targets = targets
        self._keys = keys

    async def report(self, enforced: Enforced, impaired: tuple[Impairment, ...]) -> None:
        """Report the GPUs, and the declarations that are not in force.

        Raises:
            TesseraError: the API server or the driver does not answer.

        """
        # 1. Report what happened to devices, by events.
        orphaned = self._sources.plugins.gate.refusals.devices_of_orphans
        await self._targets.device_events.write(enforced.declared.inventory, orphaned)
        # 2. Describe the GPUs on the Node object: labels, annotations, counts.
        await self._describe(enforced)
        # 3. Report them in the GPUNode.
        declared = enforced.declared
        self._keys.keep(self._targets.gpunode.assignment_keys or ())
        pods = [uid_of(each) for each in self._sources.pods.pods()]
        used = await self._sources.used.read(declared.gpus, declared.inventory, pods)
        health, node = self._sources.health.health, self._settings.node
        state = reported(
            node, declared.gpus, declared.inventory, health, used=used, unit_mib=enforced.node_sharing.unit_mib
        )
        state = msgspec.structs.replace(
            state,
            unhealthy=(*state.unhealthy, *orphaned),
            impaired=impaired,
            assignment_keys=self._keys.published,
        )
        self._targets.record.note("assignments", self._sources.plugins.shares.refused)
        await self._targets.gpunode.report(state, self._sources.watched.node(), generation=declared.request.generation)
        # 4. Show on the Node object that the GPUNode has changed: after it, by which servers answer then.
        await self._show_revision(state)

    async def _describe(self, enforced: Enforced) -> None:
        declared, node_sharing, gpus = enforced
        inventory, record, watched = declared.inventory, self._targets.record, self._sources.watched
        if self._settings.labels:
            machine = await asyncio.to_thread(first_line, self._settings.paths.machine)
            labels = gpu_labels(
                inventory, declared.gpus, Labeling(strategy=node_sharing.strategy or "mixed", machine=machine)
            )
            labels = stamped(labels, labels_of(watched.node()), now_s=int(time.time()))
            await record.set_labels(labels, owned=owns)
        levels = enforcement_text(enforcements(gpus, inventory))
        handed_over = ",".join(self._sources.strategies.strategies)
        noted = {APPLIED: declared.generation or None, ENFORCEMENT: levels, DEVICE_LIST: handed_over or None}
        await record.annotate(noted)
        assigned = self._sources.plugins.shares.assigned_requests()
        await record.count_gpus(watched.node(), gpus_to_count(self._sources.advertiser.advertised.resources, assigned))

    async def _show_revision(self, state: GpuNodeState) -> None:
        revision = gpu_revision(state, devices_by_gpu(self._targets.gpunode.offered()))
        if labels_of(self._sources.watched.node()).get(REVISION) != revision:
            await self._targets.record.set_labels({REVISION: revision}, owned=lambda key: key == REVISION)
