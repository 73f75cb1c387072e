"""What is given twice on a node, judged from what can be seen there: plain Python, no code of Tessera.

Written from the documentation alone (docs/device-plugin.md, docs/sharing.md, docs/requests.md): what the driver shows,
what containers find in their environment and their /dev, what the kubelet keeps in its checkpoint. No annotation and no
object of Tessera is believed. Faults have a key, so that one that lasts is counted once.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

__all__ = ["Container", "Entry", "Fault", "Gpu", "Instance", "Node", "Use", "doubled", "judged", "uses_of"]

SHARED = {"memory-share", "mps", "time-slicing", "mig-mps", "mig-time-slicing"}
"""`TESSERA_GPU_MODE` of devices that several containers may have. Source: docs/sharing.md, what is enforced."""
COUNTED = {"memory-share", "mps"}
"""Those in which a container is given an amount of memory, not a replica."""
DRIVER_ONLY = {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"}


class Instance(NamedTuple):
    """A MIG device of the driver."""

    uuid: str
    gpu: str
    memory_mib: int


class Gpu(NamedTuple):
    """A GPU of the driver, and how much of its memory is usable."""

    uuid: str
    minor: int
    memory_mib: int


class Node(NamedTuple):
    """What the driver reports on a node; `capabilities` has the MIG device behind each file of /dev/nvidia-caps."""

    name: str
    gpus: tuple[Gpu, ...]
    instances: tuple[Instance, ...]
    capabilities: Mapping[str, str]


class Container(NamedTuple):
    """A container that lives: a process of it runs."""

    node: str
    pod: str
    id: str
    environment: Mapping[str, str] = {}
    files: frozenset[str] = frozenset()
    """Names of NVIDIA's device files in its /dev and /dev/nvidia-caps."""
    asked_mib: int | None = None
    """The memory that it requests as an amount; None where it requests devices by name, 0 where for nothing."""
    asked_devices: int = 0
    """How many devices it requests; 0 where that is not known, or is none."""
    forged: bool = False
    """Whether its pod says itself what it gets, and so must get nothing."""
    deleted: bool = False
    """Whether the API has no such pod any more: it was deleted by force."""
    name: str = ""
    """Its name in its pod, where that has several."""

    @property
    def who(self) -> str:
        """Return how faults name it."""
        return f"{self.pod}/{self.name}" if self.name else self.pod


class Entry(NamedTuple):
    """What the kubelet's checkpoint says of one container and resource."""

    pod: str
    container: str
    resource: str
    ids: tuple[str, ...]
    initial: bool = False
    """Whether it is an init container, whose devices its pod's other containers have after it."""


class Use(NamedTuple):
    """A device that a container has."""

    device: str
    gpu: str
    exclusive: bool
    memory_mib: int


class Fault(NamedTuple):
    """Something that must not be."""

    kind: str
    where: str
    who: tuple[str, ...]
    text: str = ""

    @property
    def key(self) -> tuple[str, str, tuple[str, ...]]:
        """Return what stays the same while it lasts."""
        return self.kind, self.where, self.who


def uses_of(container: Container, node: Node) -> tuple[Use, ...]:
    """Return the devices of a container by its environment and by its device files, sorted; unknown ones too."""
    known = {each.uuid: each.gpu for each in node.instances} | {each.uuid: each.uuid for each in node.gpus}
    listed = [tuple(_listed(container, name)) for name in ("TESSERA_GPU_UUIDS", "NVIDIA_VISIBLE_DEVICES")]
    named = {each for uuids in listed for each in uuids}
    instances = {node.capabilities[name] for name in container.files if name in node.capabilities}
    parents = {known[each] for each in (*instances, *named) if each in known and known[each] != each}
    whole = {each.uuid for each in node.gpus if f"nvidia{each.minor}" in container.files} - parents
    modes = set(container.environment.get("TESSERA_GPU_MODE", "").split(",")) - {""}
    exclusive = not modes <= SHARED if modes else not container.asked_mib
    amounts = [int(each) for each in container.environment.get("TESSERA_GPU_MEMORY_MIB", "").split(",") if each]
    by_device = next((dict(zip(each, amounts, strict=True)) for each in listed if len(each) == len(amounts)), {})
    most = max(amounts, default=container.asked_mib or 0)
    devices = sorted({*named, *instances, *whole})
    return tuple(Use(each, known.get(each, ""), exclusive, by_device.get(each, most)) for each in devices)


def _listed(container: Container, variable: str) -> Iterator[str]:
    """Give the UUIDs in a variable; words such as `all`, `void` and indices name no device of their own."""
    for each in container.environment.get(variable, "").split(","):
        if each.startswith(("GPU-", "MIG-")):
            yield each


def judged(node: Node, containers: Iterable[Container]) -> list[Fault]:
    """Return what is wrong with what the containers have that live at one time on a node."""
    uses = [(each, uses_of(each, node)) for each in containers if each.node == node.name]
    faults = [fault for container, used in uses for fault in _of_one(container, used)]
    by_device, by_gpu = (
        defaultdict[str, list[tuple[Container, Use]]](list),
        defaultdict[str, list[tuple[Container, Use]]](list),
    )
    for container, used in uses:
        for use in used:
            by_device[use.device].append((container, use))
            by_gpu[use.gpu].append((container, use))
    faults += [_fault("twice", device, held) for device, held in by_device.items() if _twice(held)]
    for gpu in node.gpus:
        held = by_gpu[gpu.uuid]
        on_gpu = [each for each in held if each[1].device == gpu.uuid]
        on_instances = [each for each in held if each[1].device != gpu.uuid]
        if on_gpu and on_instances:
            faults.append(_fault("overlap", gpu.uuid, held))
        faults += _too_much(gpu.uuid, gpu.memory_mib, on_gpu)
    for instance in node.instances:
        faults += _too_much(instance.uuid, instance.memory_mib, by_device[instance.uuid])
    return faults


def _of_one(container: Container, used: tuple[Use, ...]) -> Iterator[Fault]:
    """Give what is wrong with one container whatever others have."""
    for use in used:
        if container.forged:
            yield _fault("forged pod served", use.device, [(container, use)])
        elif not use.gpu:
            yield _fault("device gone", use.device, [(container, use)])
        if container.asked_mib == 0 and not container.forged:
            yield _fault("not asked for", use.device, [(container, use)])
    modes, asked_mib = set(container.environment.get("TESSERA_GPU_MODE", "").split(",")), container.asked_mib
    given = [use.memory_mib for use in used] + _limits(container)
    if modes <= COUNTED and asked_mib and max(given, default=0) > asked_mib:
        yield Fault("more than asked", container.node, (container.who,), f"{max(given)} MiB, asked {asked_mib}")
    if 0 < container.asked_devices < len(used):
        text = f"{[each.device for each in used]}, asked {container.asked_devices}"
        yield Fault("more devices than asked", container.node, (container.who,), text)


def _limits(container: Container) -> list[int]:
    """Return the MiB of a container's MPS limits: `0=3072M` or `GPU-...=3G`, several with commas."""
    text = container.environment.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "")
    factors = {"M": 1, "G": 1024}
    amounts = [each.rpartition("=")[2] for each in text.split(",") if each]
    return [int(each[:-1]) * factors[each[-1]] for each in amounts]


def _twice(held: list[tuple[Container, Use]]) -> bool:
    return len(held) > 1 and any(use.exclusive for _, use in held)


def _too_much(device: str, memory_mib: int, held: list[tuple[Container, Use]]) -> list[Fault]:
    amounts = [each for each in held if not each[1].exclusive]
    total = sum(use.memory_mib for _, use in amounts)
    return [_fault("memory", device, amounts, f"{total} of {memory_mib} MiB; ")] if total > memory_mib else []


def _fault(kind: str, device: str, held: list[tuple[Container, Use]], text: str = "") -> Fault:
    """Return a fault of a device; one that only a container on its way out takes part in is another kind."""
    who = sorted({container.who for container, _ in held})
    living = {container.id for container, _ in held if not container.deleted}
    dying = len(living) < len({container.id for container, _ in held}) and len(living) < 2
    had = [(container.who, use.exclusive, use.memory_mib, container.deleted) for container, use in held]
    return Fault(f"{kind}, one deleted by force" if dying else kind, device, tuple(who), f"{text}{had}")


def doubled(entries: Iterable[Entry]) -> list[Fault]:
    """Return the device ids that the kubelet's checkpoint has for more than one container.

    An init container and those that run after it in its pod may have the same.
    """
    holders = defaultdict[tuple[str, str], list[Entry]](list)
    for entry in entries:
        for each in entry.ids:
            holders[entry.resource, each].append(entry)
    return [
        Fault("checkpoint", f"{resource} {each}", tuple(sorted(one.pod for one in held)))
        for (resource, each), held in holders.items()
        if len({one.pod for one in held}) > 1 or sum(not one.initial for one in held) > 1
    ]
