"""Prepares devices for containers that are about to start, and returns what each container gets."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from tessera.agent.cdisupport import DRIVER_SPECS
from tessera.agent.deviceplugin.containers.changerequests import ChangeRequest, CreateInstance, DisableMig, Enforce
from tessera.agent.deviceplugin.containers.sharespecifications import Prepared
from tessera.api.nvidia import migminors
from tessera.core.cluster.instances import placement_of
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.allocations.agentallocations import AllocatedDevice, uses_of_shares
from tessera.core.deviceplugin.allocations.matching import AssignedRequest, absent, mismatch
from tessera.core.deviceplugin.containers.edits import HostPlaces, ShareEdits
from tessera.core.deviceplugin.containers.edits import edits as share_edits
from tessera.core.deviceplugin.containers.injection import VOID
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import GpuFacts, Inventory
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import MPS_MODES, Mode
from tessera.errors import Conflict, TesseraError, Unavailable

__all__ = ["DeviceMaker", "GpuChanges", "PluginPaths", "naming"]

_ENFORCED = MPS_MODES | {Mode.MEMORY_SHARE}
"""Shares enforced by daemons and limits; whole devices and time-slices need none."""
_OPTIONAL_NODES = ("nvidia-modeset", "nvidia-uvm-tools")


class PluginPaths(msgspec.Struct, frozen=True, kw_only=True):
    """Paths on the node."""

    plugins: Path = Path("/var/lib/kubelet/device-plugins")
    cdi: Path = Path("/var/run/cdi")
    driver_specs: tuple[Path, ...] = DRIVER_SPECS
    """Written by `nvidia-ctk`; of the first that exists we take the edits for all devices, the driver's libraries."""
    driver_folder: str = ""
    """The host folder with these libraries, mounted into containers without a specification; empty for none."""
    minors: Path = Path("/proc/driver/nvidia-caps/mig-minors")
    answers_file: Path | None = Path("/run/tessera/shares.json")
    """Keeps unused answers for shares across a restart of the agent; None keeps them in memory."""
    allocations: Path | None = Path("/run/tessera/allocations.json")
    """The record of allocations; None keeps it in memory."""
    mps_root: Path = Path("/run/tessera/mps")
    dev: Path = Path("/dev")
    """The host's device nodes, to leave out those that this driver has not loaded."""


class GpuChanges(Protocol):
    """Takes requests to change GPUs, for containers that are about to start."""

    async def change(self, request: ChangeRequest) -> Inventory:
        """Return the inventory once a request is done, or raise why it was not."""


class DeviceMaker:
    """The devices of this node, by the last inventory.

    Args:
        paths: on the node.
        changes: takes requests to create devices and enforce shares.
        complain: gets errors that hide device nodes.

    """

    def __init__(self, paths: PluginPaths, changes: GpuChanges, complain: Callable[[BaseException], None]) -> None:
        self._paths = paths
        self._changes = changes
        self._complain = complain
        self.inventory = Inventory(gpus=())
        """The last inventory."""
        self._place = HostPlaces()
        self.unit_mib = self._place.unit_mib
        """Unit of the resources that are amounts of memory, in MiB."""

    def observe(self, inventory: Inventory) -> None:
        """Set the inventory, unless it is older than the last one: a pass lasts seconds, and containers do not wait."""
        if inventory.asked_ns < self.inventory.asked_ns:
            return
        self.inventory = inventory
        caps = self._place.caps
        try:
            text = self._paths.minors.read_text(errors="replace") if self._paths.minors.exists() else ""
            caps = migminors.capabilities(inventory, migminors.read(str(self._paths.minors), text))
        except (OSError, TesseraError) as error:
            self._complain(error)
        self._place = HostPlaces(mps_root=str(self._paths.mps_root), unit_mib=self.unit_mib, caps=caps)

    def uses(self, shares: tuple[Share, ...]) -> tuple[AllocatedDevice, ...]:
        """Return the devices named by shares."""
        return uses_of_shares(shares, self.inventory)

    def mismatch(self, request: AssignedRequest) -> str:
        """Return why a GPU of a request does not match the pod's request."""
        return mismatch(request, self.inventory)

    def absent(self, request: AssignedRequest) -> str:
        """Return which GPU of a request is not there."""
        return absent(request, self.inventory)

    async def prepare(self, shares: tuple[Share, ...]) -> Prepared:
        """Create the devices of shares, and return what a container with them gets."""
        uuids: dict[str, None] = {}
        for share in shares:
            facts = self._gpu(share.gpu)
            placement = placement_of(share, facts)
            if placement is None and facts.mig is not None:
                self.observe(await self._changes.change(DisableMig(facts.uuid)))
                facts = self._gpu(share.gpu)
            elif placement is not None and placement not in {each.placement for each in facts.instances}:
                self.observe(await self._changes.change(CreateInstance(facts.uuid, placement)))
                facts = self._gpu(share.gpu)
            uuids[_uuid(facts, placement)] = None
        if any(share.mode in _ENFORCED for share in shares):
            await self._changes.change(Enforce(shares))
        gpus = {facts.index: facts for facts in self.inventory.gpus}
        return Prepared(visible=tuple(uuids), edits=naming(uuids, self.edits(shares, gpus)))

    def capacity(self) -> dict[DeviceId, int]:
        """Return the memory of each GPU and instance; an instance's is its profile's, where the driver shows less."""
        found: dict[DeviceId, int] = {}
        for facts in self.inventory.gpus:
            found[DeviceId(facts.uuid)] = facts.memory_mib
            profiles = {profile.name: profile.memory_mib for profile in facts.model.profiles}
            for each in facts.instances:
                found[DeviceId(facts.uuid, each.placement)] = max(each.memory_mib, profiles[each.placement.profile])
        return found

    def _gpu(self, index: int) -> GpuFacts:
        facts = next((each for each in self.inventory.gpus if each.index == index), None)
        if facts is None or facts.lost:
            state = "there is no such GPU" if facts is None else "it is a GPU that the driver has lost"
            raise Unavailable(
                f"GPU {index}", found=f"{state}, and the pod's assignment names it", hint="delete and recreate the pod"
            )
        return facts

    def edits_by_uuid(self) -> Iterable[tuple[str, ShareEdits]]:
        """Yield what a container gets with each GPU and each instance, by UUID: the device nodes."""
        gpus = {facts.index: facts for facts in self.inventory.gpus}
        for facts in self.inventory.gpus:
            yield facts.uuid, ShareEdits(env=VOID, device_nodes=self.edits([_whole(facts)], gpus).device_nodes)
            for instance in facts.instances:
                nodes = self.edits([_whole(facts, instance.placement)], gpus).device_nodes
                yield instance.uuid, ShareEdits(env=VOID, device_nodes=nodes)

    def edits(self, shares: Sequence[Share], gpus: Mapping[int, GpuFacts]) -> ShareEdits:
        """Return the edits for shares, without device nodes that are optional and missing on this host."""
        made = share_edits(shares, gpus, self._place)
        has_nodes = (self._paths.dev / "nvidiactl").exists()
        absent = {f"/dev/{name}" for name in _OPTIONAL_NODES if has_nodes and not (self._paths.dev / name).exists()}
        nodes = tuple(node for node in made.device_nodes if node not in absent)
        return msgspec.structs.replace(made, device_nodes=nodes)


def naming(uuids: Iterable[str], unnamed: ShareEdits) -> ShareEdits:
    """Return what a container gets, with GPUs and MIG instances named for every device list strategy."""
    return msgspec.structs.replace(unnamed, env=(("TESSERA_GPU_UUIDS", ",".join(uuids)), *unnamed.env))


def _whole(facts: GpuFacts, placement: Placement | None = None) -> Share:
    """Return a share of a whole device, of which only the device nodes matter."""
    mode = Mode.WHOLE if placement is None else Mode.MIG
    return Share(
        gpu=facts.index,
        mode=mode,
        profile=placement.profile if placement else None,
        start=placement.start if placement else None,
        memory_mib=0,
        compute_percent=0,
        isolation=mode.isolation,
        resource="",
    )


def _uuid(facts: GpuFacts, placement: Placement | None) -> str:
    if placement is None:
        return facts.uuid
    found = next((each.uuid for each in facts.instances if each.placement == placement), None)
    if found is None:
        raise Conflict(
            f"GPU {facts.index} ({facts.uuid})",
            found=f"it has no MIG instance {placement.profile} at {placement.start}, which the pod's assignment names",
            hint="recreate the pod",
        )
    return found
