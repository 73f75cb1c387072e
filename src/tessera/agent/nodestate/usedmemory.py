"""The memory in use of each GPU and MIG instance, measured as often as the metrics and when pods come or go."""

import asyncio
import contextlib
from collections.abc import Collection, Iterable

from tessera.clients.gpu import GpuDriver
from tessera.core.cluster.gpunodestate import Used
from tessera.core.cluster.snapshot import Gpu
from tessera.core.gpu.inventory import GpuFacts, Inventory
from tessera.core.node.reported import use_to_report
from tessera.errors import TesseraError

__all__ = ["UsedMemory"]

_EVERY_S = 15.0


class UsedMemory:
    """The last measurement.

    Args:
        driver: the node's GPU driver.
        every_s: interval of measurements.

    """

    def __init__(self, driver: GpuDriver, *, every_s: float = _EVERY_S) -> None:
        self._driver = driver
        self._every_s = every_s
        self._measured_s: float | None = None
        self._about: object = None
        self._used: tuple[Used, ...] = ()

    async def read(self, gpus: Iterable[Gpu], inventory: Inventory, pods: Collection[str]) -> tuple[Used, ...]:
        """Return the memory in use; small changes are left out, and missing values keep the former ones.

        Args:
            gpus: of the node.
            inventory: of the driver.
            pods: UIDs of the node's pods: with others, or another layout, the last measurement is of former ones.

        """
        now_s = asyncio.get_running_loop().time()
        about = frozenset(pods), tuple((each.uuid, each.layout) for each in inventory.gpus)
        if self._measured_s is None or now_s - self._measured_s >= self._every_s or about != self._about:
            self._measured_s, self._about = now_s, about
            measured = [used for facts in inventory.gpus if not facts.lost for used in await self._of(facts)]
            self._used = use_to_report(self._used, measured, gpus)
        return self._used

    async def _of(self, facts: GpuFacts) -> list[Used]:
        """Return the memory in use of a GPU and of each of its instances."""
        found = []
        for placement in (None, *(each.placement for each in facts.instances)):
            with contextlib.suppress(TesseraError):
                use = await self._driver.use(facts.uuid, placement)
                found.append(Used(gpu=facts.uuid, placement=placement, memory_mib=use.memory_used_mib))
        return found
