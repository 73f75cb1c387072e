"""Reconciles a node's local disks, reports them on the Node, and offers a part of them as local volumes.

It keeps no state for its decisions: the disks' content is on the disks, and a volume's state is that of its
PersistentVolume and its folder. One volume's error is that volume's: it is in the condition, and the others go on.
"""

import asyncio
from pathlib import Path
from typing import Literal, assert_never

import msgspec

from tessera.agent.nodestate.noderecord import NodeRecord
from tessera.agent.storage.disks.preparing import observe_plan, prepare
from tessera.agent.storage.disks.volumefolders import VolumeFolders
from tessera.api.kubernetes.localvolumes import names_folder, persistent_volume, read_volume, volume_labels
from tessera.api.tessera.node.nodereports import Report
from tessera.api.tessera.storage.nodedisks import CONDITION, LABEL, disks_label, disks_report
from tessera.clients.disks import Disks
from tessera.clients.kube import PERSISTENT_VOLUMES, Kube, Object, Selection, labels_of, name_of
from tessera.core.storage.disks.localvolumes import (
    CreateVolume,
    DeleteVolume,
    EraseFolder,
    MakeFolder,
    VolumeAction,
    VolumeSpec,
    plan_volumes,
)
from tessera.core.storage.disks.plan import DiskPlan, DiskSpec, DiskState
from tessera.core.storage.disks.steps import Step
from tessera.core.workload.kubernetesnames import HOSTNAME
from tessera.errors import Conflict, TesseraError, Unavailable, Unsupported
from tessera.log import RepeatedError, logger
from tessera.loops import one_turn

__all__ = ["DisksKeeper", "KeeperSettings"]


class KeeperSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one node's disks."""

    node: str
    """Name of the Node object."""
    disks: DiskSpec = DiskSpec()
    volumes: VolumeSpec = VolumeSpec()
    interval_s: float = 30.0
    """Longest pause between two passes."""


class DisksKeeper:
    """Reconciles the disks of one node; `run` ends when it is canceled, and leaves everything mounted.

    Args:
        settings: what is desired.
        disks: the node's block devices.
        kube: the Kubernetes API.

    """

    def __init__(self, settings: KeeperSettings, disks: Disks, kube: Kube) -> None:
        self._settings = settings
        self._disks = disks
        self._kube = kube
        self._log = logger(node=settings.node)
        self._record = NodeRecord(kube, settings.node, self._log)
        self._folders = VolumeFolders(Path(settings.disks.mount))
        self._complain = RepeatedError(self._log, "disks_not_kept")
        self._reconciled = False
        self._notes: tuple[str, ...] = ()
        """What is reported about the volumes."""

    def waiting_for(self) -> str:
        """Return why the node does not report its disks yet; empty once it does."""
        return "" if self._reconciled else "observing the disks"

    async def run(self) -> None:
        """Run until canceled; continues after any error."""
        while True:
            await one_turn(self.reconcile, self._complain)
            await asyncio.sleep(self._settings.interval_s)

    async def reconcile(self) -> None:
        """Reconcile disks and volumes once, and report.

        Raises:
            TesseraError: a step for the disks failed, or the API server does not answer.

        """
        # 1. Prepare the disks, or report why not.
        spec = self._settings.disks
        try:
            plan = await observe_plan(self._disks, spec)
            if plan.steps:
                plan = await prepare(self._disks, spec, self._done)
        except TesseraError as error:
            await self._report("pending", "False", Report(reason="DisksFailed", message=str(error), warning=True))
            raise
        # 2. Report them. While they are not mounted, another is at the path, and nothing is known of the volumes.
        is_ready = plan.state is DiskState.READY
        self._notes = self._notes if is_ready else ()
        await self._report(disks_label(plan), *disks_report(plan, self._notes))
        # 3. Reconcile the volumes, and report what is wrong.
        notes = await self._keep_volumes(plan) if is_ready else ()
        self._record.note("volumes", notes)
        if notes != self._notes:
            await self._report(disks_label(plan), *disks_report(plan, notes))
            self._notes = notes
        self._complain.clear()

    def _done(self, step: Step) -> None:
        self._log.info("disks_step", step=type(step).__name__)

    async def _report(self, label: str | None, status: Literal["True", "False"], report: Report) -> None:
        """Write label and condition, and an event where the condition changed."""
        desired = {LABEL: label} if label else {}
        await self._record.set_labels(desired, owned=lambda key: key == LABEL)
        if await self._record.set_condition(status, report, CONDITION):
            await self._record.report(report)
        self._reconciled = True

    async def _keep_volumes(self, plan: DiskPlan) -> tuple[str, ...]:
        """Take one step for each volume; return what is wrong with them.

        Raises:
            Unavailable: the API server does not answer.

        """
        node, spec = self._settings.node, self._settings.volumes
        # 1. Observe the volumes and their folders.
        listing = await self._kube.list(PERSISTENT_VOLUMES, Selection(labels=volume_labels(node)))
        found = {name_of(each)[1]: read_volume(each, node) for each in listing.objects}
        volumes = {each.number: name for name, each in found.items() if each is not None}
        if not spec.count and not volumes:
            return ()
        try:
            folders = await asyncio.to_thread(self._folders.found)
        except TesseraError as error:
            return (str(error),)
        known = [each for each in found.values() if each is not None]
        needed = plan_volumes(spec, plan.size_bytes, folders, known)
        # 2. Before a folder is erased, list all volumes.
        erased = [each.number for each in needed.actions if isinstance(each, EraseFolder)]
        if erased:
            named = await self._named(erased, {*volumes.values()})
            needed = plan_volumes(spec, plan.size_bytes, folders, known, named)
        # 3. Do one step for each; its consequences are planned after the next observation.
        problems = [await self._act(each, volumes) for each in needed.actions]
        return tuple(dict.fromkeys((*needed.notes, *filter(None, problems))))

    async def _named(self, numbers: list[int], known: set[str]) -> dict[int, str]:
        """Return the PersistentVolumes beside the known ones, whatever their labels, that name these folders."""
        listing = await self._kube.list(PERSISTENT_VOLUMES)
        node, mount = self._settings.node, self._settings.disks.mount
        return {
            number: name_of(each)[1]
            for number in numbers
            for each in listing.objects
            if name_of(each)[1] not in known and names_folder(each, node, mount, number)
        }

    async def _act(self, action: VolumeAction, names: dict[int, str]) -> str:
        """Take a step for a volume; return why that is not possible, empty where it is.

        Raises:
            Unavailable: the API server does not answer.

        """
        try:
            match action:
                case MakeFolder(number):
                    await asyncio.to_thread(self._folders.make, number)
                case EraseFolder(number):
                    await asyncio.to_thread(self._folders.erase, number)
                    self._log.info("volume_erased", number=number)
                case CreateVolume():
                    await self._create(action)
                case DeleteVolume(number):
                    await self._kube.delete(PERSISTENT_VOLUMES, names[number])
                case _:
                    assert_never(action)
        except TesseraError as error:
            if isinstance(error, Unavailable) and not isinstance(action, MakeFolder | EraseFolder):
                raise
            return str(error)
        return ""

    async def _create(self, action: CreateVolume) -> None:
        node = self._settings.node
        hostname = labels_of(await self._record.read()).get(HOSTNAME, "")
        if hostname != node:
            found = f"label {HOSTNAME}={hostname}"
            raise Unsupported(
                f"local volumes of node {node}",
                found=found,
                hint=f"set its label {HOSTNAME} to the node's name",
            )
        body: Object = persistent_volume(action, node, self._settings.disks.mount)
        try:
            await self._kube.create(PERSISTENT_VOLUMES, body)
        except Conflict as error:
            self._log.info("volume_not_created", number=action.number, reason=str(error))
