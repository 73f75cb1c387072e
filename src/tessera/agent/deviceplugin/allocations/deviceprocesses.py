"""The processes of pods on GPUs: the driver lists processes, and their control groups tell the pods."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from tessera.agent.pods.podsview import PodsInView
from tessera.core.deviceplugin.allocations.leftovers import DeviceProcess, on_devices
from tessera.core.gpu.inventory import GpuProcess, Inventory
from tessera.errors import InvalidInput, Unsupported

__all__ = ["DeviceProcesses", "ListedProcesses"]

ListedProcesses: TypeAlias = Callable[[str], Awaitable[tuple[GpuProcess, ...]]]
"""Returns the processes that the driver lists on a GPU, by its UUID."""


class DeviceProcesses:
    """The processes of pods on GPUs.

    Args:
        listed: asks the driver.
        view: the pods of this node.
        inventory: returns the last inventory, which says where the instances are.

    """

    def __init__(self, listed: ListedProcesses, view: PodsInView, inventory: Callable[[], Inventory]) -> None:
        self._listed = listed
        self._view = view
        self._inventory = inventory

    async def on(self, gpus: Iterable[str]) -> tuple[DeviceProcess, ...]:
        """Return the processes of pods on GPUs; none of a GPU that the driver does not have, or lists none of.

        Raises:
            Unavailable: the driver does not answer.

        """
        found = list[DeviceProcess]()
        for gpu in sorted(gpus):
            found += await self._on(gpu)
        return tuple(found)

    async def _on(self, gpu: str) -> tuple[DeviceProcess, ...]:
        try:
            listed = await self._listed(gpu)
        except (InvalidInput, Unsupported):
            return ()
        if not listed:
            return ()
        pods = await asyncio.to_thread(self._view.pods_of, [each.pid for each in listed])
        return on_devices(gpu, listed, pods, self._inventory())
