"""The interface of a node's GPU driver."""

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from tessera.core.gpu.inventory import ComputeMode, GpuEvent, GpuProcess, Instance, Inventory, MigMode
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.readings import GpuReading

__all__ = ["GpuDriver", "GpuUtilization", "MemoryLimit"]


class GpuUtilization(msgspec.Struct, frozen=True, kw_only=True):
    """Utilization of a GPU or a MIG instance."""

    memory_used_mib: int
    gpu_percent: int | None = None
    """Percent of the last sample period in which a kernel ran; None where the driver reports none, as under MIG."""


class MemoryLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The memory limit of one cgroup on one GPU, for all its processes together."""

    hard_mib: int | None
    """None without a limit."""
    used_mib: int


class GpuDriver(Protocol):
    """The driver of one node's GPUs.

    Calls that change something name a GPU by its UUID and a MIG instance by its placement. Every call has a deadline.
    Raises `InvalidInput` for an unknown GPU, `Unsupported` for what this GPU or driver does not support, `Conflict` if
    it is in use or its place is taken, `Unavailable` when the driver does not answer in time or has lost the GPU. Each
    names the GPU, the driver's message, and the fix. After `Unavailable` the inventory shows what was done.
    """

    async def inventory(self) -> Inventory:
        """Return all GPUs; a lost one with its last known facts, and marked."""
        ...

    async def set_mig(self, gpu: str, *, enabled: bool) -> MigMode:
        """Switch MIG on or off and return the mode in force and the one pending until a reset of the GPU.

        Raises:
            Conflict: the GPU is in use; its mode stays and none is pending.

        """
        ...

    async def create_instance(self, gpu: str, placement: Placement) -> Instance:
        """Create a GPU instance at a placement, and the compute instance that fills it; both or neither.

        If the second cannot be created and the first not destroyed, the inventory shows it as incomplete.

        Raises:
            Conflict: the place is taken, or MIG is off.
            InvalidInput: the GPU does not support the profile, or not there.

        """
        ...

    async def destroy_instance(self, gpu: str, placement: Placement) -> None:
        """Destroy the instance at a placement, complete or not, its compute instances first.

        Raises:
            Conflict: a process runs on it, or there is none.

        """
        ...

    async def processes(self, gpu: str) -> tuple[GpuProcess, ...]:
        """Return the processes with a context on a GPU, of its MIG instances where MIG is on; those that it lists."""
        ...

    async def use(self, gpu: str, placement: Placement | None = None) -> GpuUtilization:
        """Return the utilization of a GPU, or of one MIG instance of it."""
        ...

    async def measure(self, gpu: str) -> GpuReading:
        """Return the driver's measurements of a GPU, of its MIG instances and of its processes.

        Instances are those of the last inventory that still exist; missing values are None.
        """
        ...

    async def set_compute_mode(self, gpu: str, mode: ComputeMode) -> None:
        """Set the compute mode of a GPU: who may open contexts on it."""
        ...

    async def set_power_limit(self, gpu: str, watts: int | None) -> None:
        """Set a GPU's power limit; None restores the default limit.

        Raises:
            InvalidInput: a limit outside the GPU's range, which the error names.

        """
        ...

    async def lock_clocks(self, gpu: str, mhz: tuple[int, int] | None) -> None:
        """Lock the graphics clock between two frequencies; None leaves it to the driver."""
        ...

    async def set_memory_limit(self, gpu: str, cgroup: str, hard_mib: int | None) -> None:
        """Limit the memory that all processes of a cgroup use of a GPU together; None removes the limit.

        Raises:
            Unsupported: the driver is older than 615, or the GPU is in MIG mode.

        """
        ...

    async def memory_limit(self, gpu: str, cgroup: str) -> MemoryLimit:
        """Return the limit of a cgroup on a GPU, and its usage."""
        ...

    def events(self) -> AsyncIterator[GpuEvent]:
        """Yield the driver's events from this call on, all of them to each caller: XIDs, GPUs lost, MIG changed.

        Ends when the driver is closed. A driver that does not answer yields nothing; the inventory says so.
        """
        ...

    async def close(self) -> None:
        """Close the driver and end all events; its settings stay. Later calls fail."""
        ...
