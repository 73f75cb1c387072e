"""Which GPUs and MIG instances need an MPS control daemon, and with which limits."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from tessera.core.cluster.snapshot import Gpu, Share
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import GpuFacts, Inventory
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import MPS_MODES, Device, Mode

__all__ = ["MpsTarget", "mps_key", "mps_targets"]


class MpsTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU or MIG instance whose clients one MPS control daemon serves."""

    key: str
    """Name of the daemon's directory; stable when an instance is recreated."""
    gpu: str
    """UUID of the GPU."""
    visible: str
    """UUID of the device: the GPU's, or the MIG instance's."""
    memory_limit_mib: int = 0
    """Memory limit of each client; 0 where each container sets its own."""
    thread_percent: int = 100
    """Thread limit of each client, in percent of the device."""
    exclusive: bool = True
    """Whether the GPU's compute mode excludes processes that are not clients; cannot be set while MIG is on."""


def mps_key(gpu: str, placement: Placement | None = None) -> str:
    """Return the name of the daemon of a GPU or of one of its MIG instances."""
    return gpu if placement is None else f"{gpu}-{placement.start}-{placement.size}"


def mps_targets(
    gpus: Iterable[Gpu],
    inventory: Inventory,
    shares: Iterable[Share] = (),
    former: Mapping[DeviceId, int] = MappingProxyType({}),
) -> tuple[MpsTarget, ...]:
    """Return the desired daemons: for devices with MPS replicas, and for GPUs where a pod's share uses MPS.

    Args:
        gpus: the node's GPUs with the desired sharing.
        inventory: of the driver.
        shares: of the pods that are bound to the node.
        former: into how many replicas devices are divided that pods use: their processes to come have the same limits.

    """
    facts = {each.uuid: each for each in inventory.gpus}
    amounts = {share.gpu for share in shares if share.mode is Mode.MPS}
    found = []
    for gpu in gpus:
        replicated = [device for device in gpu.devices if device.mode in MPS_MODES]
        found += [_target(facts[gpu.uuid], device, former) for device in replicated]
        if not replicated and gpu.index in amounts and gpu.sharing.layout is None:
            found.append(MpsTarget(key=mps_key(gpu.uuid), gpu=gpu.uuid, visible=gpu.uuid))
    return tuple(found)


def _target(facts: GpuFacts, device: Device, former: Mapping[DeviceId, int]) -> MpsTarget:
    clients = former.get(DeviceId(facts.uuid, device.placement), device.clients)
    uuids = {each.placement: each.uuid for each in facts.instances}
    return MpsTarget(
        key=mps_key(facts.uuid, device.placement),
        gpu=facts.uuid,
        visible=facts.uuid if device.placement is None else uuids[device.placement],
        memory_limit_mib=device.memory_mib * device.clients // clients,
        thread_percent=100 // clients,
        exclusive=device.placement is None,
    )
