"""The resources and device ids that a node advertises to the kubelet.

Source: NVIDIA/k8s-device-plugin `internal/rm/{devices,device_map}.go` for names, ids of replicas, and the rule that
strategy `single` requires equal MIG instances on a node; gpushare-device-plugin `pkg/gpu/nvidia/nvidia.go` for units.
"""

from collections.abc import Container, Iterable, Iterator, Mapping

import msgspec

from tessera.core.cluster.snapshot import Gpu
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import ComputeMode, GpuFacts, Inventory
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import AMOUNT_MODES, Device, Mode, Sharing, devices
from tessera.core.workload.resources import GPU_MEMORY, SHARE_RESOURCES

__all__ = [
    "LONGEST_ID",
    "MOST_DEVICES",
    "STARTING",
    "ListedDevice",
    "NodeOffer",
    "ObservedResources",
    "OfferOptions",
    "PluginDevice",
    "Resource",
    "by_name",
    "healthy_counts",
    "offer",
    "refused_resources",
    "restricted",
    "with_former",
    "without_free_devices",
]

LONGEST_ID = 63
"""Characters. Source: kubelet device plugin API v1beta1, `Device.ID`."""
MOST_DEVICES = 40_000
"""Devices of one resource that fit into the 4 MiB that the kubelet accepts in one message, at 100 bytes a device."""

STARTING = "the agent is starting, and does not know yet which of them are free"
"""Why calls of the kubelet are refused before an agent knows what to advertise, those to start a container too."""

_DEVICES = (Mode.WHOLE, Mode.MIG)


class ListedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device in the kubelet's list."""

    id: str
    healthy: bool = True
    numa: int | None = None


class PluginDevice(ListedDevice, frozen=True, kw_only=True):
    """What it is on its GPU: a device, a replica of one, or a unit of memory."""

    gpu_uuid: str
    uuid: str
    """CUDA's name of the device: UUID of the GPU or of its MIG instance; replicas share it."""
    placement: Placement | None = None
    """The MIG instance; None for the whole GPU and for units of memory."""
    mode: Mode
    memory_mib: int = 0
    """Memory allocated; 0 where no amount is known."""
    compute_percent: int = 0
    """Percent of the GPU's compute allocated."""
    clients: int = 1
    """How many replicas there are of the device."""

    @property
    def device(self) -> DeviceId:
        """The GPU or the MIG instance of this replica or unit."""
        return DeviceId(self.gpu_uuid, self.placement)


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """A resource name and its devices, in order of GPU, start and number."""

    name: str
    devices: tuple[PluginDevice, ...]
    single_request: bool = False
    """Whether a container that requests more than one is refused (`failRequestsGreaterThanOne`)."""
    by_assignment: bool = False
    """Whether a pod's assignment says what its devices are, and their ids only how many units it takes."""
    refused: str = ""
    """Why nothing of it is allocated, whatever the kubelet asks for; empty where it is."""
    starting: bool = False
    """Whether no container starts with it either, as it is not known yet what others have."""


class ObservedResources(msgspec.Struct, frozen=True, kw_only=True):
    """What Node, kubelet and pods have of resources, by their names."""

    node: frozenset[str]
    """Those that the Node object has, if only with 0."""
    gpus: frozenset[str]
    """Those of them that are of GPUs."""
    kubelet: frozenset[str]
    """Those that the kubelet admits no pod without."""
    admitted: Mapping[str, int]
    """How many devices the pods request that the kubelet has admitted."""
    allocated: Mapping[str, frozenset[str]]
    """Ids that the kubelet's record has for these pods."""


def without_free_devices(resource: Resource, allocated: Container[str], admitted: int) -> Resource:
    """Return a resource with the same devices, of which no more are healthy than are allocated or pods request.

    With fewer healthy ones than pods request a kubelet that restarts ends the pods that its record lacks (`OutOf...`).
    Which devices these pods have is unknown, so any healthy ones count for them. An unhealthy one counts for none.

    Args:
        resource: what would be advertised.
        allocated: ids of devices that containers are known to have.
        admitted: how many devices the pods request that the kubelet has admitted.

    """
    healthy = [each.id for each in resource.devices if each.healthy]
    known = [each for each in healthy if each in allocated]
    others = [each for each in healthy if each not in allocated]
    kept = {*known, *others[: max(0, admitted - len(known))]}
    devices = tuple(
        each if each.id in kept or not each.healthy else msgspec.structs.replace(each, healthy=False)
        for each in resource.devices
    )
    return msgspec.structs.replace(resource, devices=devices)


def refused_resources(
    offered: Iterable[Resource],
    observed: ObservedResources,
    former: Iterable[Resource] = (),
    *,
    every: bool = False,
    lost: str = "",
) -> tuple[Resource, ...]:
    """Return the resources that an agent registers while it can advertise none of their devices, sorted by name.

    A kubelet that lost its record starts pods without a resource that it does not know, whatever the Node counts. Once
    it knows the resource it refuses them by itself: it has none healthy since the last agent ended. Only where its
    record lacks some of the admitted pods are there devices for it nevertheless. Their ids stand for no device, because
    it is not known yet which are free. There are as many as `without_free_devices` leaves healthy, so never more than
    would be advertised: a pod that was started without the resource may request any number.

    Args:
        offered: what would be advertised.
        observed: what Node, kubelet and pods have.
        former: what was registered before; it stays so, with as many devices as pods request now, also if it would
            not be advertised any more: which of them are healthy is not known then.
        every: whether it is not known what would be advertised: then each resource of GPUs that the Node has counts,
            with as many devices as pods request, whatever `offered` has of it.
        lost: why nothing of them is there; empty while the agent is starting, when no container starts either. An agent
            that has started registers those that the kubelet knows, too: it may lose its record while the agent runs.

    """
    registered, possible = {each.name for each in former}, healthy_counts(offered)
    if every:
        possible = dict.fromkeys((*possible, *observed.gpus), MOST_DEVICES)
    found = list[Resource]()
    for name in sorted(registered | possible.keys()):
        admitted = observed.admitted.get(name, 0)
        lacks = len(observed.allocated.get(name, ())) < admitted
        if name in registered or (name in observed.node and (lost or name not in observed.kubelet or lacks)):
            count = min(admitted, possible.get(name, MOST_DEVICES))
            found.append(
                Resource(
                    name=name,
                    devices=tuple(
                        PluginDevice(id=f"refused-{number}", gpu_uuid="", uuid="", mode=Mode.WHOLE)
                        for number in range(count)
                    ),
                    by_assignment=name in SHARE_RESOURCES,
                    refused=lost or STARTING,
                    starting=not lost,
                )
            )
    return tuple(found)


def healthy_counts(resources: Iterable[Resource]) -> dict[str, int]:
    """Return how many devices of each resource are healthy: so many the Node counts."""
    return {each.name: sum(device.healthy for device in each.devices) for each in resources}


class NodeOffer(msgspec.Struct, frozen=True, kw_only=True):
    """What a node advertises, and what it withholds."""

    resources: tuple[Resource, ...]
    """Sorted by name; none of them empty."""
    withheld: tuple[str, ...] = ()
    """What is configured and not advertised, and why; one sentence each."""
    impossible: tuple[tuple[str, str], ...] = ()
    """Of these the resources of which no device is advertised until the configuration changes, each with the reason."""


class OfferOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of an offer besides GPUs and driver."""

    unit_mib: int = 1024
    """Memory of one unit."""
    unhealthy: frozenset[DeviceId] = frozenset()
    """An unhealthy GPU makes its instances and replicas unhealthy."""
    assigned_instances: frozenset[DeviceId] = frozenset()
    """MIG instances that pods use by assignment; they are not advertised as devices as well."""
    chosen: Mapping[str, frozenset[DeviceId]] = {}
    """By UUID of managed GPUs, the only devices to advertise; other GPUs advertise all they have."""
    enforced: frozenset[Mode] = frozenset(Mode)
    """Modes whose isolation the node can enforce now."""


def offer(gpus: Iterable[Gpu], inventory: Inventory, options: OfferOptions) -> NodeOffer:
    """Return what is advertised to the kubelet, of GPUs shared as in `gpus` and in the inventory.

    A device is advertised only if both agree; when in doubt less is advertised. Units of memory are a number for the
    scheduler, which also counts what a pod gets that is assigned a MIG instance or the whole GPU for an amount. So each
    managed GPU has units of all its memory, whatever its layout; assignments say what of it is free. So has a GPU
    whose devices the scheduler allocates, none of which is advertised by name.
    """
    facts_of = {facts.uuid: facts for facts in inventory.gpus}
    found: dict[str, list[PluginDevice]] = {}
    single: set[str] = set()
    withheld: list[str] = []
    impossible: list[tuple[str, str]] = []
    counted: dict[str, list[tuple[Gpu, GpuFacts]]] = {}
    # 1. Take the devices of each GPU by name, and count GPUs whose memory is advertised in units.
    for gpu in gpus:
        facts = facts_of.get(gpu.uuid)
        reason = _why_not(gpu, facts)
        if facts is None or reason:
            withheld.append(f"GPU {gpu.index} ({gpu.uuid or 'without UUID'}): {reason}")
            continue
        desired = _chosen(gpu, options)
        able = [device for device in desired if _offered(device, facts, options)]
        withheld += _missing(gpu, facts, [device for device in desired if device not in able], options)
        for resource in _counted(gpu, able, options):
            counted.setdefault(resource, []).append((gpu, facts))
        by_name = () if gpu.sharing.allocator == "scheduler" else able
        single |= {device.resource for device in by_name if device.single_request}
        for device in by_name:
            found.setdefault(device.resource, []).extend(_clients(device, facts, options))
    # 2. Add the units.
    for resource, sharing in counted.items():
        too_many = _too_many_units(sharing, options.unit_mib)
        if too_many:
            withheld.append(f"resource {resource}: {too_many}")
            impossible.append((resource, too_many))
        else:
            units = (unit for gpu, facts in sharing for unit in _units(gpu, facts, options))
            found.setdefault(resource, []).extend(units)
    # 3. Keep the resources that the kubelet can have.
    problems = {name: problem for name, members in sorted(found.items()) if (problem := _problem(members))}
    withheld += [f"resource {name}: {problem}" for name, problem in problems.items()]
    kept = tuple(
        Resource(
            name=name, devices=tuple(members), single_request=name in single, by_assignment=name in SHARE_RESOURCES
        )
        for name, members in sorted(found.items())
        if members and name not in problems
    )
    return NodeOffer(resources=kept, withheld=tuple(withheld), impossible=(*impossible, *problems.items()))


def by_name(offer: NodeOffer) -> frozenset[DeviceId]:
    """Return the devices advertised by name: not units of memory, whose meaning is in an assignment."""
    named = (resource for resource in offer.resources if not resource.by_assignment)
    return frozenset(device.device for resource in named for device in resource.devices)


def restricted(offer: NodeOffer, keys: frozenset[DeviceId]) -> NodeOffer:
    """Return the offer without the devices by name that are not in `keys`; empty resources are dropped."""
    kept = (
        resource
        if resource.by_assignment
        else msgspec.structs.replace(resource, devices=tuple(each for each in resource.devices if each.device in keys))
        for resource in offer.resources
    )
    return msgspec.structs.replace(offer, resources=tuple(resource for resource in kept if resource.devices))


def with_former(offer: NodeOffer, former: NodeOffer, keys: frozenset[DeviceId]) -> NodeOffer:
    """Return the offer and, of a former one, the devices by name that are in `keys` and no longer advertised."""
    resources = {resource.name: resource for resource in offer.resources}
    missing = keys - by_name(offer)
    for each in former.resources:
        kept = tuple(device for device in each.devices if device.device in missing)
        if kept and not each.by_assignment:
            now = resources.get(each.name, msgspec.structs.replace(each, devices=()))
            resources[each.name] = msgspec.structs.replace(now, devices=(*now.devices, *kept))
    return msgspec.structs.replace(offer, resources=tuple(resources[name] for name in sorted(resources)))


def _why_not(gpu: Gpu, facts: GpuFacts | None) -> str:
    """Return why nothing of a GPU is advertised; empty when something may be."""
    if facts is None:
        return "the driver does not report it"
    if facts.compute_mode is ComputeMode.PROHIBITED:
        return "its compute mode is prohibited; set another with nvidia-smi -c"
    if facts.layout is None and gpu.sharing.layout is not None:
        return "MIG is off, and its configuration requires MIG"
    if facts.layout is not None and gpu.sharing.layout is None and not facts.instances:
        return "MIG is on without instances, so nothing can run on it; switch MIG off or create instances"
    return ""


def _chosen(gpu: Gpu, options: OfferOptions) -> tuple[Device, ...]:
    """Return the devices of a GPU to advertise."""
    chosen = options.chosen.get(gpu.uuid)
    if chosen is None:
        return gpu.devices
    if gpu.sharing.layout is None and DeviceId(gpu.uuid) in chosen and Mode.WHOLE in gpu.sharing.modes:
        return devices(gpu.model, gpu.memory_mib, Sharing(modes=(Mode.WHOLE,)))
    return tuple(device for device in gpu.devices if DeviceId(gpu.uuid, device.placement) in chosen)


def _offered(device: Device, facts: GpuFacts, options: OfferOptions) -> bool:
    if device.mode not in options.enforced or DeviceId(facts.uuid, device.placement) in options.assigned_instances:
        return False
    return device.placement is None or any(each.placement == device.placement for each in facts.instances)


def _missing(gpu: Gpu, facts: GpuFacts, missing: list[Device], options: OfferOptions) -> Iterator[str]:
    """Return why devices of a GPU are not advertised; those in use by assignment need no reason."""
    for device in missing:
        if DeviceId(facts.uuid, device.placement) in options.assigned_instances:
            continue
        name = device.placement.profile if device.placement else "the GPU"
        place = f" at {device.placement.start}" if device.placement else ""
        unable = device.mode not in options.enforced
        reason = f"the node cannot enforce {device.mode.value} now" if unable else "the driver reports no such instance"
        yield f"GPU {gpu.index} ({gpu.uuid}), {name}{place}: {reason}"


def _clients(device: Device, facts: GpuFacts, options: OfferOptions) -> Iterator[PluginDevice]:
    """Return a device once, or once for each of its clients."""
    placement = device.placement
    uuid = facts.uuid if placement is None else next(i.uuid for i in facts.instances if i.placement == placement)
    unhealthy = {DeviceId(facts.uuid), DeviceId(facts.uuid, placement)} & options.unhealthy
    for number in range(device.clients):
        yield PluginDevice(
            id=uuid if device.clients == 1 else f"{uuid}::{number}",
            healthy=not (facts.lost or unhealthy),
            numa=facts.numa,
            gpu_uuid=facts.uuid,
            uuid=uuid,
            placement=placement,
            mode=device.mode,
            memory_mib=device.memory_mib,
            compute_percent=device.compute_percent,
            clients=device.clients,
        )


def _counted(gpu: Gpu, able: list[Device], options: OfferOptions) -> tuple[str, ...]:
    """Return the resources that count a GPU's memory: both for amounts, that of needs for devices alone."""
    if gpu.sharing.creates_devices and any(_is_enforced(gpu, mode, options) for mode in AMOUNT_MODES):
        return SHARE_RESOURCES
    made = gpu.sharing.managed and any(_is_enforced(gpu, mode, options) for mode in _DEVICES)
    return (GPU_MEMORY,) if made or (able and gpu.sharing.allocator == "scheduler") else ()


def _is_enforced(gpu: Gpu, mode: Mode, options: OfferOptions) -> bool:
    return mode in gpu.sharing.modes and mode in options.enforced


def _unit_count(gpu: Gpu, facts: GpuFacts, unit_mib: int) -> int:
    return min(gpu.memory_mib, facts.memory_mib) // unit_mib


def _too_many_units(sharing: Iterable[tuple[Gpu, GpuFacts]], unit_mib: int) -> str:
    """Return why units of the memory of these GPUs cannot be advertised; empty when they can.

    Checked before they are created: a node of eight GPUs has a million of a MiB each.
    """
    count = sum(_unit_count(gpu, facts, unit_mib) for gpu, facts in sharing)
    cause = f"{count} units of {unit_mib} MiB exceed the kubelet's limit of {MOST_DEVICES} a node"
    return f"{cause}; set unit: GiB" if count > MOST_DEVICES else ""


def _units(gpu: Gpu, facts: GpuFacts, options: OfferOptions) -> Iterator[PluginDevice]:
    """Return the units of one GPU's own memory, whatever its neighbors have; a fraction of a unit is lost."""
    able = (mode for mode in AMOUNT_MODES if _is_enforced(gpu, mode, options))
    mode = next(able, gpu.sharing.modes[0])
    for number in range(_unit_count(gpu, facts, options.unit_mib)):
        yield PluginDevice(
            id=f"{facts.uuid}-_-{number}",
            healthy=not (facts.lost or DeviceId(facts.uuid) in options.unhealthy),
            numa=facts.numa,
            gpu_uuid=facts.uuid,
            uuid=facts.uuid,
            mode=mode,
            memory_mib=options.unit_mib,
        )


def _problem(members: list[PluginDevice]) -> str:
    """Return why a resource cannot be advertised as it is; empty when it can."""
    if len(members) > MOST_DEVICES:
        return f"{len(members)} devices exceed the kubelet's limit of {MOST_DEVICES} a node; choose fewer replicas"
    kinds = sorted({member.placement.profile if member.placement else "whole GPUs" for member in members})
    if len(kinds) > 1:
        return f"{' and '.join(kinds)} under one name; give all GPUs one layout, or choose MIG strategy mixed"
    long = next((member.id for member in members if len(member.id) > LONGEST_ID), None)
    return f"id {long} has more than {LONGEST_ID} characters" if long else ""
