"""The GPUs of a node for whoever changes their layouts: the driver, who uses them, and what is offered to pods."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from tessera.core.gpu.inventory import GpuProcess, Instance, Inventory, MigMode
from tessera.core.gpu.mig import Layout, Placement
from tessera.core.node.layouts import User, users_of
from tessera.errors import TesseraError

__all__ = ["Driver", "Held", "NodeGpus", "OfferLayout", "Timing"]


class Driver(Protocol):
    """The part of `clients.gpu.GpuDriver` that changes layouts."""

    async def inventory(self) -> Inventory:
        """Return all GPUs as they are now."""
        ...

    async def processes(self, gpu: str) -> tuple[GpuProcess, ...]:
        """Return the processes with a context on a GPU or its instances."""
        ...

    async def create_instance(self, gpu: str, placement: Placement) -> Instance:
        """Make an instance."""
        ...

    async def destroy_instance(self, gpu: str, placement: Placement) -> None:
        """Destroy an instance, complete or not."""
        ...

    async def set_mig(self, gpu: str, *, enabled: bool) -> MigMode:
        """Switch MIG, and return what it is now and after a reset."""
        ...


Held = Callable[[], Awaitable[Iterable[tuple[str, Sequence[str]]]]]
"""Returns the pods of the kubelet's record, `namespace/name`, each with the ids of the devices it holds."""

OfferLayout = Callable[[str, Layout | None], Awaitable[None]]
"""From now on offers exactly these instances of a GPU (UUID) to pods, so with none of them not the whole GPU either;
None offers all that the GPU has. Returns when the kubelet has the new list. What pods hold already stays theirs."""

Promised = Callable[[str], bool]
"""Whether the kubelet may still have promised a pod something of a GPU (UUID) that was withdrawn."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """How long one action may take."""

    drain_s: float = 60.0
    """Until no pod holds an instance that must go."""
    settle_s: float = 2.0
    """So long instances that were withdrawn must be seen unused where a pod may have been promised one just before."""
    poll_s: float = 1.0
    """Between two readings of who uses what."""
    step_s: float = 60.0
    """For one instance to be made or destroyed; as the driver allows itself."""
    switch_s: float = 180.0
    """For MIG to be switched, which may reset the GPU."""
    observe_s: float = 30.0
    """For a reading of driver and kubelet."""
    restore_s: float = 180.0
    """For the former layout to be brought back, in all."""


class NodeGpus(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of a node: how they are changed, who uses them, and what of them is offered to pods."""

    driver: Driver
    held: Held
    offer: OfferLayout
    promised: Promised = lambda _: True
    timing: Timing = Timing()

    def settle_s(self, gpu: str) -> float:
        """Return for how long what was withdrawn of a GPU must be seen unused before it may be destroyed."""
        return self.timing.settle_s if self.promised(gpu) else 0.0

    async def observe(self) -> tuple[Inventory, tuple[User, ...]]:
        """Return the GPUs and who uses them, by the kubelet's record and by the processes on them.

        Raises:
            TesseraError: driver or kubelet refuses.
            TimeoutError: they did not answer in time.

        """
        async with asyncio.timeout(self.timing.observe_s):
            inventory = await self.driver.inventory()
            held = await self.held()
            processes = {gpu.uuid: await self.driver.processes(gpu.uuid) for gpu in inventory.gpus if not gpu.lost}
            return inventory, users_of(inventory, held, processes)

    async def offer_only(self, gpu: str, layout: Layout | None) -> bool:
        """Offer these instances of a GPU from now on; return whether that was answered in time and not refused."""
        try:
            async with asyncio.timeout(self.timing.observe_s):
                await self.offer(gpu, layout)
        except (TesseraError, TimeoutError):
            return False
        return True
