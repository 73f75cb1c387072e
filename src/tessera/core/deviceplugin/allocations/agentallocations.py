"""The agent's record of each container's devices: by UUID, as `Allocate` knows no pod and no share.

The kubelet can forget what it allocated and allocate it again (docs/kubelet-races.md), so its record alone does not
keep a device from two pods. This record does: it is written before `Allocate` or `PreStartContainer` is answered, and
an entry stays until its pod has ended and none of its processes is left.
"""

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import msgspec

from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.allocations.kubeletallocations import RequestKey
from tessera.core.deviceplugin.offers.advertise import NodeOffer, PluginDevice, Resource
from tessera.core.gpu.deviceids import DeviceId, devices_by_uuid, overlap
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.mig import placement_at
from tessera.core.gpu.sharing import MPS_MODES, Mode
from tessera.core.node.nodesharing import ListStrategy
from tessera.core.workload.need import Isolation
from tessera.core.workload.resources import SHARE_RESOURCES

__all__ = [
    "AgentAllocation",
    "AllocatedDevice",
    "Assigned",
    "AssignedDevices",
    "Exclusivity",
    "SignedAssignment",
    "StartedPod",
    "latest",
    "replaces",
    "started_pod",
    "uses_of_devices",
    "uses_of_ids",
    "uses_of_shares",
    "with_assignment",
    "with_assignments",
    "without_other_forms",
]


class Exclusivity(enum.StrEnum):
    """How a device is shared with others."""

    EXCLUSIVE = "exclusive"
    """A whole GPU or a MIG instance for one pod."""
    REPLICA = "replica"
    """Other replicas of the same device, each with an id of its own."""
    MEMORY = "memory"
    """Amounts of its memory, as long as there is enough."""


_EXCLUSIVITY = {
    Mode.WHOLE: Exclusivity.EXCLUSIVE,
    Mode.MIG: Exclusivity.EXCLUSIVE,
    Mode.MPS: Exclusivity.MEMORY,
    Mode.MEMORY_SHARE: Exclusivity.MEMORY,
}


class AllocatedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that a container is allocated, or its part of one."""

    device: DeviceId
    exclusivity: Exclusivity = Exclusivity.EXCLUSIVE
    memory_mib: int = 0
    """Memory that the container may use, if memory is counted."""
    mps: bool | None = None
    """Of a shared device, whether by an MPS daemon, which excludes others; None where unknown."""
    clients: int = 0
    """Of a replica by MPS, into how many the device's memory is divided; 0 for other uses, and where unknown."""
    absent: bool = False
    """Whether its MIG instance does not exist any more, and another is in its place: nobody uses the device here."""

    def excludes(self, other: "AllocatedDevice") -> bool:
        """Return whether two containers can never have these at once, however much memory there is."""
        if self.device.gpu != other.device.gpu or self.absent or other.absent:
            return False
        same = self.device == other.device and self.exclusivity is other.exclusivity is not Exclusivity.EXCLUSIVE
        if same and {self.mps, other.mps} != {True, False} and len({self.clients, other.clients} - {0}) <= 1:
            return False
        return overlap(self.device, other.device)

    @property
    def isolation(self) -> Isolation | None:
        """How far it is isolated from others on the device; None where unknown."""
        if self.exclusivity is Exclusivity.EXCLUSIVE:
            return Isolation.HARDWARE
        if self.mps is None:
            return None
        return Isolation.DRIVER if self.mps else Isolation.NONE

    @property
    def keeps_mps_out(self) -> bool:
        """Whether no MPS daemon may start on the device: its compute mode would keep new processes out."""
        return self.exclusivity is Exclusivity.EXCLUSIVE or self.mps is False


class AgentAllocation(msgspec.Struct, frozen=True, kw_only=True):
    """A container's allocation of one resource, as the agent records it."""

    resource: str
    ids: tuple[str, ...]
    """Device ids of the kubelet, sorted."""
    uses: tuple[AllocatedDevice, ...] = ()
    """Empty while unknown: ids of units name no device until the pod is known."""
    uid: str = ""
    """Of the pod; empty after `Allocate` alone, which names no pod."""
    pod: str = ""
    """`namespace/name`; empty of a pod with a UID of which only processes are left (`leftovers`)."""
    container: str = ""
    initial: bool = False
    """Whether the container ends before the pod's others start, which get its devices then."""
    order: int = -1
    """Its place among the pod's containers in the order in which they start; -1 while unknown."""
    at_ns: int = 0
    """When it was allocated, in nanoseconds since 1970; the later of two gives way."""
    presumed: bool = False
    """Whether it was answered for the presumed pod, and no container was started with it yet."""
    started: bool = False
    """Whether a container was started with it: running containers count, whatever happens to their assignment."""
    assignment: str = ""
    """The text of the pod's assignment at the last start of a container, if it has one. Its signature was
    valid then."""
    key: str = ""
    """Id of the key that signed it; without an assignment that key was revoked."""
    signature: str = ""
    """The text of its signature; empty in records of former versions."""
    strategies: tuple[ListStrategy, ...] = ()
    """The device list strategies by which `Allocate` answered: whatever is configured later, the container's runtime
    is handed that answer. Empty while unknown."""
    indices: tuple[str, ...] = ()
    """The driver's indices of `uses`, where that answer named them so; empty where it named UUIDs."""
    uuids: tuple[str, ...] = ()
    """The UUIDs of its devices, of a share that the answer named; those by name are in `ids`."""
    answer_known: bool = False
    """Whether the entry has what `Allocate` answered; those of former agents lack some of it."""

    @property
    def container_key(self) -> tuple[str, str, str]:
        """UID of the pod, container and resource."""
        return self.uid, self.container, self.resource

    @property
    def request_key(self) -> RequestKey:
        """The container and the resource, by the pod's name."""
        namespace, _, pod = self.pod.partition("/")
        return RequestKey(namespace, pod, self.container, self.resource)

    @property
    def holder(self) -> str:
        """The container, for people."""
        if not self.uid:
            return "a pod that was just admitted"
        if not self.pod:
            return f"{self.container} of pod {self.uid}, which has ended,"
        return f"container {self.container} of pod {self.pod}"


class SignedAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """An assignment that counts or did; its fields as in `AgentAllocation`."""

    assignment: str = ""
    key: str = ""
    signature: str = ""


class StartedPod(msgspec.Struct, frozen=True, kw_only=True):
    """What the containers of a pod with an assignment were started with."""

    signed: SignedAssignment
    """Without an assignment where its key was revoked."""
    containers: frozenset[tuple[str, str]]
    """The started containers, and their resource."""


def started_pod(record: Iterable[AgentAllocation], uid: str) -> StartedPod | None:
    """Return what a pod's containers were started with; None if none was started with a recorded assignment."""
    own = [each for each in record if each.started and (each.assignment or each.key) and each.uid == uid]
    if not uid or not own:
        return None
    containers = frozenset((each.container, each.resource) for each in own)
    last = own[-1]
    signed = SignedAssignment(assignment=last.assignment, key=last.key, signature=last.signature)
    return StartedPod(signed=signed, containers=containers)


Assigned: TypeAlias = Mapping[str, SignedAssignment]
"""Assignments that count, by UID of the pod."""
AssignedDevices: TypeAlias = Mapping[tuple[str, str, str], tuple[AllocatedDevice, ...]]
"""The devices of containers by them, by UID of the pod, container and resource."""


def with_assignments(
    record: Iterable[AgentAllocation], assigned: Assigned, uses: AssignedDevices, revoked: Callable[[str], bool]
) -> tuple[AgentAllocation, ...]:
    """Return the record with the assignments of started containers, which former agents did not record.

    Assignments signed by a revoked key are removed, so that they stay invalid when the revocation is forgotten. The
    key's id stays: later annotations of the pod do not replace them, under any signature.

    Args:
        record: the allocations.
        assigned: the pods' current assignments.
        uses: what their containers use by them; taken only if the record agrees.
        revoked: returns whether a key, by id, was revoked.

    """
    found = []
    for each in record:
        lacks = each.started and each.uses and not each.assignment and not each.key and each.uid in assigned
        if lacks and uses.get(each.container_key) == each.uses:
            found.append(with_assignment(each, assigned[each.uid]))
        elif each.assignment and revoked(each.key):
            found.append(with_assignment(each, SignedAssignment(key=each.key)))
        else:
            found.append(each)
    return tuple(found)


def with_assignment(allocation: AgentAllocation, signed: SignedAssignment) -> AgentAllocation:
    """Return an allocation with the assignment of its container."""
    return msgspec.structs.replace(allocation, **msgspec.structs.asdict(signed))


def uses_of_devices(devices: Iterable[PluginDevice]) -> tuple[AllocatedDevice, ...]:
    """Return what a container uses of devices that the kubelet allocated by name, each device once."""
    return tuple(
        dict.fromkeys(
            AllocatedDevice(
                device=DeviceId(each.gpu_uuid, each.placement),
                exclusivity=_exclusivity(each.mode, replica="::" in each.id),
                mps=_by_mps(each.mode),
                clients=each.clients if each.mode in MPS_MODES and "::" in each.id else 0,
            )
            for each in devices
        )
    )


def _exclusivity(mode: Mode, *, replica: bool) -> Exclusivity:
    found = _EXCLUSIVITY.get(mode, Exclusivity.REPLICA)
    return Exclusivity.REPLICA if replica and found is Exclusivity.MEMORY else found


def _by_mps(mode: Mode) -> bool | None:
    return None if mode in {Mode.WHOLE, Mode.MIG} else mode in MPS_MODES


def uses_of_ids(ids: Iterable[str], inventory: Inventory) -> tuple[AllocatedDevice, ...]:
    """Return what a container uses by ids of devices advertised by name; none for unknown ids."""
    devices, parts = devices_by_uuid(inventory), (name.partition("::") for name in ids)
    return tuple(
        dict.fromkeys(
            AllocatedDevice(
                device=devices[uuid],
                exclusivity=Exclusivity.REPLICA if replica else Exclusivity.EXCLUSIVE,
            )
            for uuid, replica, _ in parts
            if uuid in devices
        )
    )


def uses_of_shares(shares: Iterable[Share], inventory: Inventory) -> tuple[AllocatedDevice, ...]:
    """Return what a container uses by its assignment, whether the instance exists already or not.

    Shares of GPUs that the driver does not show are left out: they cannot be prepared.
    """
    gpus = {each.index: each for each in inventory.gpus}
    return tuple(
        AllocatedDevice(
            device=DeviceId(
                gpus[each.gpu].uuid,
                None if each.start is None else placement_at(gpus[each.gpu].model, each.profile or "", each.start),
            ),
            exclusivity=_exclusivity(each.mode, replica=False),
            mps=_by_mps(each.mode),
            memory_mib=each.memory_mib,
        )
        for each in shares
        if each.gpu in gpus
    )


def without_other_forms(offer: NodeOffer, record: Iterable[AgentAllocation]) -> tuple[NodeOffer, tuple[str, ...]]:
    """Return the offer without devices that pods have by name in another form, and their holders.

    A whole GPU and its replicas have different ids, or another name, and so have replicas by MPS of another number. The
    kubelet, which considers these free, would allocate them to pods that cannot have them.
    """
    named = [each for each in record if each.resource not in SHARE_RESOURCES]
    kept, reasons = list[Resource](), dict[str, None]()
    for resource in offer.resources:
        own = {name for each in named if each.resource == resource.name for name in each.ids}
        others = {name: each.holder for each in named if each.resource != resource.name for name in each.ids}
        devices = list[PluginDevice]()
        for device in resource.devices:
            free = resource.by_assignment or device.id in own
            holder = "" if free else others.get(device.id) or _holder(device, named)
            if holder:
                text = f"{device.device}: {holder} still uses it in another form than the present {resource.name}"
                reasons[text] = None
            else:
                devices.append(device)
        if devices:
            kept.append(msgspec.structs.replace(resource, devices=tuple(devices)))
    return msgspec.structs.replace(offer, resources=tuple(kept)), tuple(reasons)


def _holder(device: PluginDevice, record: Iterable[AgentAllocation]) -> str:
    """Return the users that conflict with a device; empty where there are none."""
    (use,) = uses_of_devices((device,))
    return next((each.holder for each in record if any(use.excludes(other) for other in each.uses)), "")


def replaces(new: AgentAllocation, old: AgentAllocation) -> bool:
    """Return whether an entry replaces that of the same container, or the answer to its `Allocate`."""
    if old.uid:
        return old.container_key == new.container_key
    return bool(new.uid) and (old.resource, old.ids) == (new.resource, new.ids)


def latest(record: Iterable[AgentAllocation], holder: AgentAllocation) -> AgentAllocation | None:
    """Return what was recorded last for a container and its ids: a new answer to `Allocate`, else its last start."""
    own = (each for each in record if each.ids == holder.ids and replaces(holder, each))
    return max(own, key=lambda each: each.at_ns, default=None)
