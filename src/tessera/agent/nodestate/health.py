"""Follows the GPUs' health: driver events and inventories, judged by `core.node.health`."""

from collections.abc import Callable
from time import monotonic

from tessera.clients.gpu import GpuDriver
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import GpuEvent, Inventory
from tessera.core.node import health as core
from tessera.core.node.health import Health, HealthChange, HealthPhase, HealthPolicy
from tessera.errors import TesseraError
from tessera.log import logger

__all__ = ["HealthWatch"]

_POLICY = HealthPolicy()


class HealthWatch:
    """The health of one node's devices since this process started; healthy and unknown devices are advertised.

    Nothing is stored: after a restart every device that the driver reaches starts healthy, until its next
    error.

    Args:
        driver: its events are followed.
        policy: how errors are judged.
        on_change: called when a device changed phase, so that the agent advertises and reports it.
        clock: a monotonic clock.

    """

    def __init__(
        self,
        driver: GpuDriver,
        policy: HealthPolicy = _POLICY,
        *,
        on_change: Callable[[tuple[HealthChange, ...]], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._driver = driver
        self._policy = policy
        self._on_change = on_change
        self._clock = clock
        self._last: Inventory | None = None
        self._events = driver.events()
        self.health = Health()

    @property
    def unhealthy(self) -> frozenset[DeviceId]:
        """The GPUs and instances that must not be advertised."""
        return self.health.unhealthy

    @property
    def wait_s(self) -> float | None:
        """How long until a device may recover, to reconcile by then; None where none may."""
        return None if self.health.wake_s is None else max(self.health.wake_s - self._clock(), 0.0)

    def observe(self, inventory: Inventory) -> None:
        """Judge health by an inventory; call it with every inventory, and after `wait_s`."""
        self._last = inventory
        self._take(*core.observed(self.health, inventory, self._clock(), self._policy))

    async def run(self) -> None:
        """Follow the driver's events until it is closed.

        Only a fresh inventory shows which instance an event is about; where the driver gives none, the last
        is used, and an event about an instance that it lacks counts against the whole GPU.
        """
        async for event in self._events:
            if not core.counts(event, self._policy):
                continue
            try:
                inventory = await self._driver.inventory()
            except TesseraError as error:
                logger().warning("health_event_without_inventory", gpu=event.gpu, reason=str(error))
                self._apply_event(_of_the_gpu(event, self._last), self._last or Inventory(gpus=()))
            else:
                self._apply_event(event, inventory)
                self.observe(inventory)

    def _apply_event(self, event: GpuEvent, inventory: Inventory) -> None:
        self._take(*core.reported(self.health, event, inventory, self._clock(), self._policy))

    def _take(self, health: Health, changes: tuple[HealthChange, ...]) -> None:
        self.health = health
        for change in changes:
            gpu, placement = change.device
            where = None if placement is None else f"{placement.profile} at {placement.start}"
            write = logger().info if change.after is HealthPhase.HEALTHY else logger().warning
            write("health_changed", gpu=gpu, instance=where, phase=change.after.value, reason=change.reason)
        if changes:
            self._on_change(changes)


def _of_the_gpu(event: GpuEvent, last: Inventory | None) -> GpuEvent:
    """Return the event, about the whole GPU where its instance is not known."""
    known = {(facts.uuid, each.gpu_instance) for facts in (last.gpus if last else ()) for each in facts.instances}
    if (event.gpu, event.gpu_instance) in known:
        return event
    return GpuEvent(gpu=event.gpu, xid=event.xid, lost=event.lost)
