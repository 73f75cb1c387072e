"""What a container gets with devices that it requests by name, in the way that the node hands devices over now."""

from collections.abc import Mapping

from tessera.agent.deviceplugin.containers.devicemaker import DeviceMaker, naming
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.allocations.agentallocations import AllocatedDevice, uses_of_devices
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.core.deviceplugin.containers.injection import GPU_KIND, by_cdi, container_response
from tessera.core.deviceplugin.offers.advertise import PluginDevice, Resource
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import GpuFacts, Inventory
from tessera.core.node.liststrategies import DeviceInjection
from tessera.errors import Unavailable

__all__ = ["DeviceHandover"]


class DeviceHandover:
    """Hands advertised devices over to containers.

    Args:
        maker: has the driver's last inventory, and the edits for devices.
        injection: how devices are handed over, until it is set again.

    """

    def __init__(self, maker: DeviceMaker, injection: DeviceInjection) -> None:
        self._maker = maker
        self.injection = injection

    @property
    def inventory(self) -> Inventory:
        """The driver's last inventory."""
        return self._maker.inventory

    def give(self, resource: Resource, devices: tuple[PluginDevice, ...]) -> ContainerResponse:
        """Return what a container with these devices gets.

        Raises:
            Unavailable: the driver has stopped to list one; the kubelet does not have the new list yet.

        """
        gpus = {facts.uuid: facts for facts in self._maker.inventory.gpus}
        gone = sorted({device.gpu_uuid for device in devices} - gpus.keys())
        if gone:
            raise Unavailable(
                f"{resource.name} on GPU {gone[0]}",
                found="the driver does not list this GPU any more",
                hint="recreate the pod; see `tessera doctor`",
            )
        shares = [_share(resource, device, gpus) for device in devices]
        uuids = tuple(dict.fromkeys(device.uuid for device in devices))
        made = self._maker.edits(shares, {facts.index: facts for facts in gpus.values()})
        visible = self.indices(uses_of_devices(devices)) if self.injection.names_by_index else uuids
        named = by_cdi(self.injection, GPU_KIND, uuids)
        return container_response(self.injection, named, visible, naming(uuids, made))

    def indices(self, uses: tuple[AllocatedDevice, ...]) -> tuple[str, ...]:
        """Return the driver's present indices of devices; `none` for one that is not there."""
        gpus = {facts.uuid: facts for facts in self._maker.inventory.gpus}
        return tuple(_index(use.device, gpus) for use in uses)


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


def _index(device: DeviceId, gpus: Mapping[str, GpuFacts]) -> str:
    """Return the driver's index of a device: `0`, or `0:1` for a MIG instance, by id of GPU and compute instance.

    `none` for a device that is not there.
    """
    facts = gpus.get(device.gpu)
    if facts is None:
        return "none"
    if device.placement is None:
        return str(facts.index)
    order = sorted(facts.instances, key=lambda each: (each.gpu_instance, each.compute_instance))
    places = [each.placement for each in order]
    return f"{facts.index}:{places.index(device.placement)}" if device.placement in places else "none"
