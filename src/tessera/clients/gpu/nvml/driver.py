"""The GPU driver by NVML."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import pynvml

from tessera.clients.gpu.feed import EventFeed
from tessera.clients.gpu.nvml import changing
from tessera.clients.gpu.nvml.faults import optional, translated
from tessera.clients.gpu.nvml.measuring import Measuring
from tessera.clients.gpu.nvml.node import NvmlNode
from tessera.clients.gpu.nvml.reading import parts, processes, used_mib
from tessera.clients.gpu.protocol import GpuUtilization, MemoryLimit
from tessera.clients.gpu.refusals import (
    bounded_clocks,
    bounded_memory,
    bounded_power,
    check_compute_mode,
    instance_at,
    named,
)
from tessera.clients.gpu.thread import DriverThread
from tessera.core.gpu.inventory import ComputeMode, GpuEvent, GpuFacts, GpuProcess, Instance, Inventory, MigMode
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.readings import GpuReading
from tessera.errors import TesseraError, Unavailable, Unsupported
from tessera.log import RepeatedError, logger
from tessera.loops import one_turn

__all__ = ["Deadlines", "NvmlDriver"]

Answer = TypeVar("Answer")

_SYSFS = Path("/sys")


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts of calls, including the wait for earlier ones."""

    read_s: float = 20.0
    """Of a read, usually a fraction of a second; seconds without a process that keeps the driver's state in memory."""
    act_s: float = 60.0
    """Of a change. Creating and destroying instances takes up to some seconds each."""
    switch_s: float = 180.0
    """Of a change of the MIG mode, which may reset the GPU."""
    events_s: float = 0.5
    """Interval of polling events."""


_DEADLINES = Deadlines()


class NvmlDriver:
    """A `GpuDriver` by NVML, with one thread for all calls. Create it by `open` or `lazy`, and close it.

    GPUs keep the index they had when it was opened. After a timeout it recovers by itself as soon as NVML's call
    returns; until then every call raises `Unavailable` at once. The next inventory shows the result of the late call.
    """

    def __init__(self, sysfs: Path, deadlines: Deadlines, on_open: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = DriverThread("nvml")
        self._sysfs = sysfs
        self._feed = EventFeed()
        self._deadlines = deadlines
        self._on_open = on_open
        self._measuring = Measuring()
        self._node: NvmlNode | None = None
        """None until it is open; set in the thread."""
        self._following = self._loop.create_task(self._follow())
        self._publish = partial(_publish, self._loop, self._feed)

    @classmethod
    async def open(cls, *, sysfs: Path = _SYSFS, deadlines: Deadlines = _DEADLINES) -> Self:
        """Return a driver of this node's GPUs.

        Raises:
            Unavailable: the driver is not loaded, or does not answer.
            Unsupported: there is no driver.

        """
        driver = cls(sysfs, deadlines, lambda: None)
        try:
            await driver._thread.call("opening it", driver._opened, deadlines.act_s)
        except BaseException:
            await driver.close()
            raise
        return driver

    @classmethod
    def lazy(
        cls,
        *,
        sysfs: Path = _SYSFS,
        deadlines: Deadlines = _DEADLINES,
        on_open: Callable[[], None] = lambda: None,
    ) -> Self:
        """Return a driver that each call opens until that has succeeded; calls raise `Unavailable` until then.

        Args:
            sysfs: where the operating system shows its devices.
            deadlines: of calls; that of a read holds for opening, which may succeed later.
            on_open: called once, in the event loop, when it is open, also if no call waits for that any more.

        """
        return cls(sysfs, deadlines, on_open)

    def _opened(self) -> NvmlNode:
        """Return the GPUs, opened if they are not yet; in the thread.

        Raises:
            Unavailable, Unsupported: there is no driver, or it does not answer.

        """
        if self._node is None:
            self._node = NvmlNode(self._sysfs, self._publish)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._on_open)
        return self._node

    async def _call(self, what: str, act: Callable[[NvmlNode], Answer], deadline_s: float) -> Answer:
        node = self._node
        if node is None:
            try:
                node = await self._thread.call("opening it", self._opened, self._deadlines.read_s)
            except Unsupported as error:  # the library may be there later
                raise Unavailable(error.subject, found=error.found, hint=error.hint) from error
        return await self._thread.call(what, partial(act, node), deadline_s)

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the driver."""
        await self.close()

    # Reading

    async def inventory(self) -> Inventory:
        """Return all GPUs as they are now."""
        return await self._call("reading the inventory", NvmlNode.inventory, self._deadlines.read_s)

    async def processes(self, gpu: str) -> tuple[GpuProcess, ...]:
        """Return the processes on a GPU and on its instances, sorted; those that NVML lists."""

        def read(facts: GpuFacts, device: Any) -> tuple[GpuProcess, ...]:
            with translated(f"processes of {named(facts)}"):
                return processes(device)

        return await self._on("reading processes", gpu, read)

    async def use(self, gpu: str, placement: Placement | None = None) -> GpuUtilization:
        """Return the utilization of a GPU, or of one MIG instance of it."""

        def read(facts: GpuFacts, device: Any) -> GpuUtilization:
            with translated(f"use of {named(facts)}"):
                if placement is not None:
                    return GpuUtilization(memory_used_mib=used_mib(_mig_device(facts, device, placement)))
                rates = optional(pynvml.nvmlDeviceGetUtilizationRates, device)
                percent = None if rates is None or facts.layout is not None else rates.gpu
                return GpuUtilization(memory_used_mib=used_mib(device), gpu_percent=percent)

        return await self._on("reading use", gpu, read)

    async def measure(self, gpu: str) -> GpuReading:
        """Return NVML's measurements of a GPU, of its MIG instances and of its processes."""
        return await self._call(
            "measuring", lambda node: node.of_last(gpu, self._measuring.measure), self._deadlines.read_s
        )

    async def memory_limit(self, gpu: str, cgroup: str) -> MemoryLimit:
        """Return the limit of a cgroup on a GPU, and its usage."""
        return await self._on(
            "reading a memory limit", gpu, lambda facts, device: changing.limit_of(facts, device, cgroup)
        )

    def events(self) -> AsyncIterator[GpuEvent]:
        """Yield NVML's events from this call on."""
        return self._feed.stream()

    async def _follow(self) -> None:
        """Poll events; a driver that does not answer has none, and a defect ends no polling."""
        complain = RepeatedError(logger(), "gpu_events_not_read")

        async def poll(node: NvmlNode) -> None:
            with contextlib.suppress(TesseraError):
                await self._thread.call("reading events", node.report, self._deadlines.read_s)

        while True:
            if self._node is not None:
                await one_turn(partial(poll, self._node), complain, complain.clear)
            await asyncio.sleep(self._deadlines.events_s)

    # Changing

    async def set_mig(self, gpu: str, *, enabled: bool) -> MigMode:
        """Switch MIG on or off, at once or with the next reset."""

        def act(facts: GpuFacts, device: Any) -> MigMode:
            return changing.switch(facts, device, enabled=enabled)

        return await self._on("switching MIG", gpu, act, self._deadlines.switch_s)

    async def create_instance(self, gpu: str, placement: Placement) -> Instance:
        """Create a GPU instance at a placement, and the compute instance that fills it."""

        def act(facts: GpuFacts, device: Any) -> None:
            changing.create(facts, device, placement)

        def create(node: NvmlNode) -> Instance:
            node.on(gpu, act)
            return instance_at(node.renewed(gpu), placement)

        return await self._call("creating an instance", create, self._deadlines.act_s)

    async def destroy_instance(self, gpu: str, placement: Placement) -> None:
        """Destroy the instance at a placement, its compute instances first."""

        def act(facts: GpuFacts, device: Any) -> None:
            changing.destroy(facts, device, placement)

        await self._on("destroying an instance", gpu, act, self._deadlines.act_s)

    async def set_compute_mode(self, gpu: str, mode: ComputeMode) -> None:
        """Set the compute mode of a GPU."""

        def act(facts: GpuFacts, device: Any) -> None:
            check_compute_mode(facts, mode)
            changing.set_compute_mode(facts, device, mode)

        await self._on("setting the compute mode", gpu, act)

    async def set_power_limit(self, gpu: str, watts: int | None) -> None:
        """Set a GPU's power limit; None restores the default limit."""

        def act(facts: GpuFacts, device: Any) -> None:
            changing.cap(facts, device, bounded_power(facts, watts))

        await self._on("setting the power limit", gpu, act)

    async def lock_clocks(self, gpu: str, mhz: tuple[int, int] | None) -> None:
        """Lock the graphics clock between two frequencies; None leaves it to the driver."""

        def act(facts: GpuFacts, device: Any) -> None:
            changing.lock(facts, device, None if mhz is None else bounded_clocks(facts, mhz))

        await self._on("locking clocks", gpu, act)

    async def set_memory_limit(self, gpu: str, cgroup: str, hard_mib: int | None) -> None:
        """Limit the memory that all processes of a cgroup use of a GPU together; None removes the limit."""

        def act(facts: GpuFacts, device: Any) -> None:
            limit = None if hard_mib is None else bounded_memory(facts, cgroup, hard_mib)
            changing.limit(facts, device, cgroup, limit)

        await self._on("limiting memory", gpu, act)

    async def close(self) -> None:
        """Shut NVML down and end all events; its settings stay."""
        self._following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._following
        self._feed.close()
        # One that opens late is closed then.
        await self._thread.close(self._let_go, 0.0 if self._node is None else self._deadlines.read_s)

    def _let_go(self) -> None:
        if self._node is not None:
            self._measuring.close()
            self._node.close()

    async def _on(
        self, what: str, gpu: str, act: Callable[[GpuFacts, Any], Answer], deadline_s: float | None = None
    ) -> Answer:
        return await self._call(what, lambda node: node.on(gpu, act), deadline_s or self._deadlines.read_s)


def _publish(loop: asyncio.AbstractEventLoop, feed: EventFeed, event: GpuEvent) -> None:
    """Publish an event from another thread; once the loop is closed nobody reads it."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(feed.publish, event)


def _mig_device(facts: GpuFacts, device: Any, placement: Placement) -> Any:
    """Return NVML's handle of the MIG device at a placement."""
    uuid = instance_at(facts, placement).uuid
    found = (each for part in parts(device, facts.model) for each in part.devices)
    return next(each.handle for each in found if each.uuid == uuid)
