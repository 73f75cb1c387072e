"""All device plugins of a node: what is offered, how it is handed over, and the one task that keeps them registered."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from tessera.agent.cdisupport import DRIVER_SPECS, first_file
from tessera.agent.deviceplugin.assignedpods import AssignedPods
from tessera.agent.deviceplugin.cdifolder import CdiFolder
from tessera.agent.deviceplugin.gate import Gate
from tessera.agent.deviceplugin.resource import OfferedResource
from tessera.agent.deviceplugin.servers import PluginServers
from tessera.agent.deviceplugin.shares import Prepared, ShareAllocator
from tessera.agent.nodefiles import LARGEST_SPEC, read_file
from tessera.agent.pods.nodeview import PodsInView
from tessera.api import documents
from tessera.api.nvidia import cdi, migminors
from tessera.core.cluster.advertise import SHARE_RESOURCES, NodeOffer, PluginDevice, Resource
from tessera.core.cluster.instances import placement_of
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.allocations import Use, uses_of_ids, uses_of_shares
from tessera.core.deviceplugin.edits import Place, ShareEdits, edits
from tessera.core.deviceplugin.grant import Grant
from tessera.core.deviceplugin.injection import GPU_KIND, VOID, by_cdi, driver_mount, grant
from tessera.core.deviceplugin.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.matching import AssignedRequest, misfit
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import GpuFacts, Inventory
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Mode
from tessera.core.node.liststrategies import DeviceInjection
from tessera.core.node.nodesharing import ListStrategy, PluginOptions
from tessera.errors import Conflict, TesseraError, Unavailable
from tessera.log import Logger, defect
from tessera.loops import one_turn
from tessera.measures import Measures

__all__ = ["GpuChanges", "Paths", "Plugins"]

_TEND_S = 0.2
"""A kubelet that starts again must find its plugins before it looks at its pods (docs/kubelet-races.md)."""
_TIDY_S = 30.0
_OPTIONAL_NODES = ("nvidia-modeset", "nvidia-uvm-tools")


class Paths(msgspec.Struct, frozen=True, kw_only=True):
    """Where things are on the node."""

    plugins: Path = Path("/var/lib/kubelet/device-plugins")
    cdi: Path = Path("/var/run/cdi")
    driver_specs: tuple[Path, ...] = DRIVER_SPECS
    """Made by `nvidia-ctk`; the edits for all devices of the first that is there, the driver's libraries, are ours."""
    driver_folder: str = ""
    """The host's folder with these libraries, which containers get where there is none; empty for none."""
    minors: Path = Path("/proc/driver/nvidia-caps/mig-minors")
    memory: Path | None = Path("/run/tessera/shares.json")
    """Keeps what was answered for shares and not used yet, for a restart of the agent; None keeps nothing."""
    allocations: Path | None = Path("/run/tessera/allocations.json")
    """The record of what is allocated to which container; None keeps nothing."""
    mps_root: Path = Path("/run/tessera/mps")
    dev: Path = Path("/dev")
    """The host's device nodes, to leave out what this driver has not loaded."""


class GpuChanges(Protocol):
    """Who changes GPUs for the containers that are about to start."""

    async def create_instance(self, gpu: str, placement: Placement) -> Inventory:
        """Make the MIG instance of a GPU exist; return what the driver shows then."""

    async def disable_mig(self, gpu: str) -> Inventory:
        """Let MIG be off on a GPU, of which an amount or all is assigned; return what the driver shows then."""

    async def enforce(self, shares: tuple[Share, ...]) -> None:
        """Let what holds shares to their size be in force before a container with them starts; raise otherwise."""


class Plugins:
    """The device plugins of this node: `offer` says what is advertised, `run` keeps it so until it is cancelled.

    Args:
        paths: where things are.
        view: the pods of this node.
        assigned: what assignments of these pods say.
        changes: creates devices and enforces shares.
        log: where what was applied is logged.
        strategies: how devices are handed over where the node's configuration does not say.

    """

    def __init__(
        self,
        paths: Paths,
        view: PodsInView,
        assigned: AssignedPods,
        changes: GpuChanges,
        log: Logger,
        *,
        strategies: tuple[ListStrategy, ...] = ("envvar",),
    ) -> None:
        self._paths = paths
        self._changes = changes
        self._log = log
        self._strategies = strategies
        self._inventory = Inventory(gpus=())
        self._options = PluginOptions()
        self._place = Place()
        self._unit_mib = self._place.unit_mib
        self._driver = cdi.NOTHING
        self._injection = DeviceInjection(strategies=strategies)
        self._complained: set[str] = set()
        self._unwritten = ""
        """Why what containers are handed is not written as it is now; empty where it is."""
        self._adopted = False
        """Whether the record has what pods were allocated before there was one."""
        self._folder = CdiFolder(paths.cdi)
        self.gate = Gate(view, self._capacity, log, file=paths.allocations)
        self.shares = ShareAllocator(self.gate, self, assigned, self._folder, log, memory=paths.memory)
        self._servers = PluginServers(paths.plugins, self._plugin, view.allocatable, log)

    @property
    def problems(self) -> tuple[str, ...]:
        """What keeps resources from being advertised, or containers from getting what is; one sentence each."""
        return (*self._servers.problems, *filter(None, (self._unwritten,)))

    @property
    def unit_mib(self) -> int:
        """Memory of one unit of the resources that are amounts of memory."""
        return self._unit_mib

    def count_in(self, unit_mib: int) -> None:
        """Count the resources that are amounts of memory in units of so many MiB."""
        self._unit_mib = unit_mib
        self.shares.count_in(unit_mib)

    async def adopt(self, inventory: Inventory) -> None:
        """Record, once, what pods were allocated before there was one; nothing is offered before.

        Raises:
            Unavailable: the kubelet's record cannot be read, or ours not be written.

        """
        if not self._adopted:
            self._see(inventory)
            await self.gate.record.tidy(self._uses_of)
            self._adopted = True

    async def offer(
        self,
        offered: NodeOffer,
        inventory: Inventory,
        options: PluginOptions,
        *,
        leaving: frozenset[DeviceId] = frozenset(),
    ) -> bool:
        """Advertise what is offered; return whether every stream of the kubelet got its new list in time.

        Args:
            offered: of `core.cluster.advertise.offer`.
            inventory: what the driver shows, the same that the offer was made from.
            options: how devices are handed over.
            leaving: devices that are taken back, and allocated still to whom the kubelet chose them for already.

        """
        self._options = options
        self._injection = DeviceInjection(
            strategies=options.list_strategies or self._strategies,
            pass_device_specs=options.pass_device_specs,
            annotation_prefix=options.cdi_annotation_prefix,
            dev_root=options.driver_root,
            driver_folder=self._paths.driver_folder,
        )
        self._see(inventory)
        self.shares.injection, self.shares.driver = self._injection, self._driver
        self._unwritten = ""
        if self._injection.cdi:
            self._write_devices()
        await self.adopt(inventory)
        policy = options.allocation_policy or "distributed"
        # The kubelet asks before each start of a container, also where nothing of its resource is offered any more.
        names = self.gate.record.resources - {resource.name for resource in offered.resources}
        kept = (Resource(name=name, devices=(), by_assignment=name in SHARE_RESOURCES) for name in sorted(names))
        return await self._servers.offer((*offered.resources, *kept), policy=policy, leaving=leaving)

    async def run(self, measures: Measures) -> None:
        """Listen and register again when the kubelet starts anew, and remove what is stale; for ever."""
        loop = asyncio.get_running_loop()
        tidied_s = loop.time()
        try:
            while True:
                await asyncio.sleep(_TEND_S)
                await one_turn(self._servers.tend, self._complain, partial(measures.turned, "plugins"))
                if loop.time() - tidied_s >= _TIDY_S:
                    tidied_s = loop.time()
                    await one_turn(self._tidy, self._complain)
        finally:
            await self.close()

    async def close(self) -> None:
        """Stop all servers, as the end of `run` does; the kubelet holds their devices as unhealthy then."""
        await self._servers.close()

    async def _tidy(self) -> None:
        await self.gate.record.tidy(self._uses_of)
        await self.shares.tidy()

    def _uses_of(self, held: KubeletAllocation) -> tuple[Use, ...]:
        """Return what a container uses by the ids it holds: by its assignment, or by the devices of these names."""
        if held.resource in SHARE_RESOURCES:
            request = next((each for each in self.shares.assigned_requests() if each.key == held.key), None)
            return () if request is None else self.uses(request.shares)
        return uses_of_ids(held.device_ids, self._inventory)

    # What is handed over

    def _plugin(self, resource: Resource) -> OfferedResource:
        policy = self._options.allocation_policy or "distributed"
        return OfferedResource(resource, self._give, self.gate, self.shares, policy=policy)

    def _give(self, resource: Resource, devices: tuple[PluginDevice, ...]) -> Grant:
        gpus = {facts.uuid: facts for facts in self._inventory.gpus}
        shares = [_share(resource, device, gpus) for device in devices]
        uuids = tuple(dict.fromkeys(device.uuid for device in devices))
        made = self._edits(shares, {facts.index: facts for facts in self._inventory.gpus})
        visible = uuids
        if self._options.id_strategy == "index":
            visible = tuple(dict.fromkeys(_index(device, gpus) for device in devices))
        named = by_cdi(self._injection, GPU_KIND, uuids)
        return grant(self._injection, named, visible, _naming(uuids, made))

    def uses(self, shares: tuple[Share, ...]) -> tuple[Use, ...]:
        """Return the devices that shares name."""
        return uses_of_shares(shares, self._inventory)

    def misfit(self, request: AssignedRequest) -> str:
        """Return why a GPU of a request is not what its pod asked for."""
        return misfit(request, self._inventory)

    async def prepare(self, shares: tuple[Share, ...]) -> Prepared:
        """Make the devices of shares exist, and return what a container with them gets."""
        uuids: dict[str, None] = {}
        for share in shares:
            facts = self._gpu(share.gpu)
            placement = placement_of(share, facts)
            if placement is None and facts.mig is not None:
                self._see(await self._changes.disable_mig(facts.uuid))
                facts = self._gpu(share.gpu)
            elif placement is not None and placement not in {each.placement for each in facts.instances}:
                self._see(await self._changes.create_instance(facts.uuid, placement))
                facts = self._gpu(share.gpu)
            uuids[_uuid(facts, placement)] = None
        await self._changes.enforce(shares)
        gpus = {facts.index: facts for facts in self._inventory.gpus}
        return Prepared(visible=tuple(uuids), edits=_naming(uuids, self._edits(shares, gpus)))

    def _capacity(self) -> dict[DeviceId, int]:
        """Return the memory of each GPU and instance; an instance's is its profile's, where the driver shows less."""
        found: dict[DeviceId, int] = {}
        for facts in self._inventory.gpus:
            found[DeviceId(facts.uuid)] = facts.memory_mib
            profiles = {profile.name: profile.memory_mib for profile in facts.model.profiles}
            for each in facts.instances:
                found[DeviceId(facts.uuid, each.placement)] = max(each.memory_mib, profiles[each.placement.profile])
        return found

    def _gpu(self, index: int) -> GpuFacts:
        facts = next((each for each in self._inventory.gpus if each.index == index), None)
        if facts is None or facts.lost:
            state = "no such GPU" if facts is None else "a GPU that the driver has lost"
            raise Unavailable(f"GPU {index}", found=state, expected="the GPU that the pod's assignment names")
        return facts

    # What the node has

    def _see(self, inventory: Inventory) -> None:
        self._inventory = inventory
        caps = self._place.caps
        try:
            text = self._paths.minors.read_text(errors="replace") if self._paths.minors.exists() else ""
            caps = migminors.capabilities(inventory, migminors.read(str(self._paths.minors), text))
        except (OSError, TesseraError) as error:
            self._complain(error)
        self._place = Place(mps_root=str(self._paths.mps_root), unit_mib=self._unit_mib, caps=caps)

    def _write_devices(self) -> None:
        """Write the specification of all whole GPUs and MIG instances; one that cannot be written leaves the former."""
        try:
            driver_spec = first_file(self._paths.driver_specs)
            if driver_spec is not None:
                found = documents.read(str(driver_spec), read_file(driver_spec, LARGEST_SPEC))
                self._driver = cdi.read_driver_edits(found[0]) if found else cdi.NOTHING
            elif self._paths.driver_folder:
                self._driver = cdi.mounted_driver(driver_mount(self._paths.driver_folder))
            text = cdi.write(GPU_KIND, dict(self._devices()), self._driver, dev_root=self._injection.dev_root)
            self._folder.write("gpu", text)
        except (OSError, TesseraError) as error:
            self._complain(error)
            self._unwritten = f"the CDI specification by which containers are handed GPUs is not written: {error}"

    def _devices(self) -> Iterable[tuple[str, ShareEdits]]:
        """Yield what a container gets with each GPU and each instance, by UUID: the device nodes."""
        gpus = {facts.index: facts for facts in self._inventory.gpus}
        for facts in self._inventory.gpus:
            yield facts.uuid, ShareEdits(env=VOID, device_nodes=self._edits([_whole(facts)], gpus).device_nodes)
            for instance in facts.instances:
                nodes = self._edits([_whole(facts, instance.placement)], gpus).device_nodes
                yield instance.uuid, ShareEdits(env=VOID, device_nodes=nodes)

    def _edits(self, shares: Sequence[Share], gpus: Mapping[int, GpuFacts]) -> ShareEdits:
        """Return what shares add, without device nodes that a GPU works without and this host has not."""
        made = edits(shares, gpus, self._place)
        seen = (self._paths.dev / "nvidiactl").exists()
        absent = {f"/dev/{name}" for name in _OPTIONAL_NODES if seen and not (self._paths.dev / name).exists()}
        nodes = tuple(node for node in made.device_nodes if node not in absent)
        return msgspec.structs.replace(made, device_nodes=nodes)

    def _complain(self, problem: object) -> None:
        """Log a problem once, and a defect each time it is met."""
        reason = str(problem) or type(problem).__name__
        unexpected = defect(problem) if isinstance(problem, BaseException) else None
        if unexpected is not None:
            self._log.error("device_handover_impaired", reason=reason, exc_info=unexpected)
        elif reason not in self._complained:
            self._complained.add(reason)
            self._log.warning("device_handover_impaired", reason=reason)


def _naming(uuids: Iterable[str], made: ShareEdits) -> ShareEdits:
    """Return what a container gets, its GPUs and MIG instances named whichever way they are handed over."""
    return msgspec.structs.replace(made, env=(("TESSERA_GPU_UUIDS", ",".join(uuids)), *made.env))


def _share(resource: Resource, device: PluginDevice, gpus: Mapping[str, GpuFacts]) -> Share:
    return Share(
        gpu=gpus[device.gpu_uuid].index,
        mode=device.mode,
        profile=device.placement.profile if device.placement else None,
        start=device.placement.start if device.placement else None,
        memory_mib=device.memory_mib,
        compute_percent=device.compute_percent,
        isolation=device.mode.isolation,
        resource=resource.name,
    )


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


def _index(device: PluginDevice, gpus: Mapping[str, GpuFacts]) -> str:
    """Return a device as the driver numbers it: `0`, or `0:1` for a MIG instance, by id of GPU and compute instance."""
    facts = gpus[device.gpu_uuid]
    if device.placement is None:
        return str(facts.index)
    order = sorted(facts.instances, key=lambda each: (each.gpu_instance, each.compute_instance))
    return f"{facts.index}:{[each.uuid for each in order].index(device.uuid)}"


def _uuid(facts: GpuFacts, placement: Placement | None) -> str:
    if placement is None:
        return facts.uuid
    found = next((each.uuid for each in facts.instances if each.placement == placement), None)
    if found is None:
        raise Conflict(
            f"GPU {facts.index} ({facts.uuid})",
            found=f"no MIG instance {placement.profile} at {placement.start}",
            expected="the instance that the pod's assignment names",
        )
    return found
