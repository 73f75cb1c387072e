"""The agent's record of which container was allocated which device, and what may not be allocated beside it.

The kubelet can forget what it allocated and allocate it again (docs/kubelet-races.md), so that its word alone does not
keep a device from two pods. This record does: it is written before `Allocate` or `PreStartContainer` is answered, and
an entry stays until its pod has ended and none of its processes is left.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from tessera.core.advertise import DeviceKey, PluginDevice
from tessera.core.inventory import Inventory
from tessera.core.mig import Placement, placement_at
from tessera.core.sharing import Mode
from tessera.core.snapshot import Share

__all__ = [
    "Allocation",
    "Clash",
    "Sharer",
    "Use",
    "clashes",
    "conflicts",
    "uses_of_devices",
    "uses_of_ids",
    "uses_of_shares",
    "uuids_of_uses",
]


class Sharer(enum.StrEnum):
    """Who else may use a device."""

    EXCLUSIVE = "exclusive"
    """A whole GPU or a MIG instance for one pod."""
    REPLICA = "replica"
    """Other replicas of the same device, each with an id of its own."""
    MEMORY = "memory"
    """Others with an amount of its memory, as long as there is enough."""


_SHARERS = {
    Mode.WHOLE: Sharer.EXCLUSIVE,
    Mode.MIG: Sharer.EXCLUSIVE,
    Mode.MPS: Sharer.MEMORY,
    Mode.MEMORY_SHARE: Sharer.MEMORY,
}


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """One device that a container uses, or its part of one."""

    gpu: str
    """UUID."""
    placement: Placement | None = None
    """The MIG instance; None for the whole GPU."""
    sharer: Sharer = Sharer.EXCLUSIVE
    memory_mib: int = 0
    """Memory that the container may use, where that is what is counted."""

    @property
    def key(self) -> DeviceKey:
        """The device."""
        return self.gpu if self.placement is None else (self.gpu, self.placement)

    def overlaps(self, other: "Use") -> bool:
        """Return whether two devices are the same silicon, in part or all; one whose size nobody knows is all."""
        if self.gpu != other.gpu:
            return False
        own, beside = (0 if each.placement is None else each.placement.mask for each in (self, other))
        return not own or not beside or bool(own & beside)

    def excludes(self, other: "Use") -> bool:
        """Return whether two containers cannot have these at once, however much memory there is."""
        same = self.placement == other.placement and self.sharer is other.sharer is not Sharer.EXCLUSIVE
        return self.overlaps(other) and not same


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """What one container was allocated of one resource."""

    resource: str
    ids: tuple[str, ...]
    """Device ids as the kubelet has them, sorted."""
    uses: tuple[Use, ...] = ()
    """Empty where it is not known yet: ids of units name no device until the pod is known."""
    uid: str = ""
    """Of the pod; empty while only `Allocate` was answered, which names no pod."""
    pod: str = ""
    """`namespace/name`."""
    container: str = ""
    at_ns: int = 0
    """When it was allocated, in nanoseconds since 1970; who is later gives way."""

    @property
    def holder(self) -> str:
        """The container, for people."""
        return f"pod {self.pod}, container {self.container}" if self.uid else "a pod that is being started"


class Clash(msgspec.Struct, frozen=True, kw_only=True):
    """Why an allocation cannot be beside another."""

    other: Allocation | None
    """None where the new one alone is too large."""
    text: str
    """What both would have, in words."""


def uses_of_devices(devices: Iterable[PluginDevice]) -> tuple[Use, ...]:
    """Return what a container uses of devices that the kubelet gave by name, each device once."""
    return tuple(
        dict.fromkeys(
            Use(gpu=each.gpu_uuid, placement=each.placement, sharer=_sharer(each.mode, replica="::" in each.id))
            for each in devices
        )
    )


def _sharer(mode: Mode, *, replica: bool) -> Sharer:
    found = _SHARERS.get(mode, Sharer.REPLICA)
    return Sharer.REPLICA if replica and found is Sharer.MEMORY else found


def uses_of_ids(ids: Iterable[str], inventory: Inventory) -> tuple[Use, ...]:
    """Return what a container uses by ids that devices have which are offered by name; none of ids not known."""
    devices = {each.uuid: Use(gpu=each.uuid) for each in inventory.gpus}
    devices |= {
        each.uuid: Use(gpu=gpu.uuid, placement=each.placement) for gpu in inventory.gpus for each in gpu.instances
    }
    found = []
    for name in ids:
        uuid, replica, _ = name.partition("::")
        if uuid in devices:
            sharer = Sharer.REPLICA if replica else Sharer.EXCLUSIVE
            found.append(msgspec.structs.replace(devices[uuid], sharer=sharer))
    return tuple(dict.fromkeys(found))


def uses_of_shares(shares: Iterable[Share], inventory: Inventory) -> tuple[Use, ...]:
    """Return what a container uses by its assignment, whether the instance exists already or not.

    Shares of GPUs that the driver does not show are left out: nothing can be made ready for them.
    """
    gpus = {each.index: each for each in inventory.gpus}
    return tuple(
        Use(
            gpu=gpus[each.gpu].uuid,
            placement=None
            if each.start is None
            else placement_at(gpus[each.gpu].model, each.profile or "", each.start),
            sharer=_sharer(each.mode, replica=False),
            memory_mib=each.memory_mib,
        )
        for each in shares
        if each.gpu in gpus
    )


def uuids_of_uses(uses: Iterable[Use], inventory: Inventory) -> tuple[str, ...]:
    """Return the UUIDs of devices in use, of those that the driver shows: of the GPU where MIG is off."""
    uuids: dict[DeviceKey, str] = {gpu.uuid: gpu.uuid for gpu in inventory.gpus if gpu.layout is None}
    uuids |= {(gpu.uuid, each.placement): each.uuid for gpu in inventory.gpus for each in gpu.instances}
    return tuple(dict.fromkeys(uuids[use.key] for use in uses if use.key in uuids))


def clashes(
    record: Iterable[Allocation], new: Allocation, capacity_mib: Mapping[DeviceKey, int], *, ids: bool
) -> Iterator[Clash]:
    """Yield why an allocation cannot be beside those of other pods in the record; nothing where it can.

    Args:
        record: what was allocated.
        new: what is to be; an entry of the same pod, or one that it replaces because it is for the same ids and was
            not any pod's yet, is not in its way.
        capacity_mib: memory that can be granted of each device; a lost device, which is not in it, has any.
        ids: whether it also matters that the same ids are another pod's. For units of memory that matters only while
            the kubelet allocates: it counts ids, and devices are counted by their memory.

    """
    others = [each for each in record if not _same_pod(each, new)]
    for other in others:
        common = sorted(set(other.ids) & set(new.ids)) if ids and other.resource == new.resource else []
        if common:
            yield Clash(other=other, text=f"device {common[0]} of {new.resource}")
            continue
        found = next((use for use in new.uses for each in other.uses if use.excludes(each)), None)
        if found is not None:
            yield Clash(other=other, text=shown_use(found))
    own = [each for each in record if new.uid and each.uid == new.uid and not set(each.ids) & set(new.ids)]
    yield from _full(others, own, new, capacity_mib)


def _same_pod(each: Allocation, new: Allocation) -> bool:
    """Return whether an entry is of the same pod, or of none yet and for the same ids: it becomes the new one."""
    if each.uid:
        return each.uid == new.uid
    return bool(new.uid) and (each.resource, each.ids) == (new.resource, new.ids)


def _full(
    others: Iterable[Allocation], own: Iterable[Allocation], new: Allocation, capacity_mib: Mapping[DeviceKey, int]
) -> Iterator[Clash]:
    """Yield of which devices more memory would be allocated than they have.

    Args:
        others: entries of other pods.
        own: of the pod's other containers that run beside the new one; an init container's ids are its successors'.
        new: what is to be allocated.
        capacity_mib: as in `clashes`.

    """
    for use in new.uses:
        if use.sharer is not Sharer.MEMORY:
            continue
        beside = [(each, part) for each in (*others, *own) for part in each.uses if _beside(use, part)]
        most_mib = capacity_mib.get(use.key)
        if most_mib is not None and use.memory_mib + sum(part.memory_mib for _, part in beside) > most_mib:
            latest = max((each for each, _ in beside), key=lambda each: each.at_ns, default=None)
            yield Clash(other=latest, text=f"more memory than the {most_mib} MiB of {shown_use(use)}")


def _beside(use: Use, part: Use) -> bool:
    return part.sharer is Sharer.MEMORY and part.key == use.key


def shown_use(use: Use) -> str:
    """Return a device in words."""
    return (
        f"GPU {use.gpu}"
        if use.placement is None
        else f"{use.placement.profile} at {use.placement.start} of GPU {use.gpu}"
    )


def conflicts(
    record: Iterable[Allocation], capacity_mib: Mapping[DeviceKey, int]
) -> tuple[tuple[Allocation, Clash], ...]:
    """Return what two pods have been allocated and cannot both have: each time the later one, and why.

    Only entries of known pods count. There should be none; what is found comes from before this record was kept, or
    from a defect.
    """
    known = sorted((each for each in record if each.uid), key=lambda each: (each.at_ns, each.uid, each.container))
    found = []
    for i, each in enumerate(known):
        clash = next(clashes(known[:i], each, capacity_mib, ids=True), None)
        if clash is not None:
            found.append((each, clash))
    return tuple(found)
