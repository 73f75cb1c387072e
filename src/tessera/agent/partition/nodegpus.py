"""The GPUs of a node, for changing their layouts: the driver, their users, and what is advertised to pods."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from tessera.core.gpu.inventory import GpuProcess, Instance, Inventory, MigMode
from tessera.core.gpu.mig import Layout, Placement
from tessera.core.node.layouts import DeviceUser, users_of
from tessera.errors import TesseraError

__all__ = ["AdvertisedLayouts", "DeviceUsers", "Driver", "NodeGpus", "Timing"]


class Driver(Protocol):
    """The part of `clients.gpu.GpuDriver` that changes layouts."""

    async def inventory(self) -> Inventory:
        """Return all GPUs as they are now."""
        ...

    async def processes(self, gpu: str) -> tuple[GpuProcess, ...]:
        """Return the processes with a context on a GPU or its instances."""
        ...

    async def create_instance(self, gpu: str, placement: Placement) -> Instance:
        """Create an instance."""
        ...

    async def destroy_instance(self, gpu: str, placement: Placement) -> None:
        """Destroy an instance, complete or not."""
        ...

    async def set_mig(self, gpu: str, *, enabled: bool) -> MigMode:
        """Switch MIG, and return its current mode and the mode after a reset."""
        ...


class DeviceUsers(Protocol):
    """The pods that use devices of a node; `agent.pods.nodepods.NodePods` is one."""

    async def devices_by_pod(self, inventory: Inventory) -> Iterable[tuple[str, Sequence[str]]]:
        """Return the pods in the kubelet's record, `namespace/name`, each with its device ids."""
        ...


class AdvertisedLayouts(Protocol):
    """What the kubelet has of a node's GPUs; `agent.advertiser.Advertiser` is one."""

    async def advertise(self, gpu: str, layout: Layout | None) -> None:
        """Advertise exactly these instances of a GPU (UUID) from now on; with none of them not the whole GPU either.

        None advertises all that the GPU has. Returns when the kubelet has the new list. Pods keep their devices.
        """

    def promised(self, gpu: str) -> bool:
        """Return whether the kubelet may still allocate something of a withdrawn GPU (UUID)."""
        ...


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts of actions."""

    drain_s: float = 60.0
    """Until no pod uses an instance that must go."""
    settle_s: float = 2.0
    """How long withdrawn instances must be observed unused, if the kubelet may have allocated one just before."""
    poll_s: float = 1.0
    """Between two reads of the users."""
    step_s: float = 60.0
    """To create or destroy one instance; the driver's own timeout."""
    switch_s: float = 180.0
    """To switch MIG mode, which may reset the GPU."""
    observe_s: float = 30.0
    """For one read of driver and kubelet."""
    restore_s: float = 180.0
    """To restore the former layout, in all."""


class NodeGpus(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of a node: the driver, their users, and what is advertised to pods."""

    driver: Driver
    users: DeviceUsers
    advertised: AdvertisedLayouts
    timing: Timing = Timing()

    def settle_s(self, gpu: str) -> float:
        """Return how long a withdrawn GPU must be observed unused before its instances may be destroyed."""
        return self.timing.settle_s if self.advertised.promised(gpu) else 0.0

    async def observe(self) -> tuple[Inventory, tuple[DeviceUser, ...]]:
        """Return the GPUs and their users, by the kubelet's record and by the processes on them.

        Raises:
            TesseraError: driver or kubelet returns an error.
            TimeoutError: they did not answer in time.

        """
        async with asyncio.timeout(self.timing.observe_s):
            inventory = await self.driver.inventory()
            allocated = await self.users.devices_by_pod(inventory)
            processes = {gpu.uuid: await self.driver.processes(gpu.uuid) for gpu in inventory.gpus if not gpu.lost}
            return inventory, users_of(inventory, allocated, processes)

    async def offer_only(self, gpu: str, layout: Layout | None) -> bool:
        """Advertise only these instances of a GPU from now on; return whether that succeeded in time."""
        try:
            async with asyncio.timeout(self.timing.observe_s):
                await self.advertised.advertise(gpu, layout)
        except (TesseraError, TimeoutError):
            return False
        return True
