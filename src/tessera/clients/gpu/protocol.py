"""What Tessera asks of a node's GPU driver."""

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from tessera.core.gpu.inventory import ComputeMode, GpuEvent, GpuProcess, Instance, Inventory, MigMode
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.readings import GpuReading

__all__ = ["GpuDriver", "MemoryLimit", "Use"]


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a GPU or a MIG instance is."""

    memory_used_mib: int
    gpu_percent: int | None = None
    """Percent of the last sample period in which a kernel ran; None where the driver reports none, as under MIG."""


class MemoryLimit(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver lets the processes of one cgroup hold of one GPU, together."""

    hard_mib: int | None
    """None without a limit."""
    used_mib: int


class GpuDriver(Protocol):
    """The driver of one node's GPUs.

    Calls that act name a GPU by its UUID and a MIG instance by its placement. Every call has a deadline. Raised are
    `InvalidInput` for a GPU that is not there, `Unsupported` for what this GPU or driver cannot do, `Conflict` when
    somebody uses what would be changed or another holds the place, `Unavailable` when the driver does not answer in
    time or has lost the GPU. Each names the GPU, what the driver said, and what to do. After `Unavailable` the
    inventory shows what was done.
    """

    async def inventory(self) -> Inventory:
        """Return all GPUs as they are now; a lost one as it was last seen, and marked."""
        ...

    async def set_mig(self, gpu: str, *, enabled: bool) -> MigMode:
        """Switch MIG on or off and return what is in force and what waits for a reset of the GPU.

        Raises:
            Conflict: the GPU is in use; its mode stays and none is pending.

        """
        ...

    async def create_instance(self, gpu: str, placement: Placement) -> Instance:
        """Create a GPU instance at a placement, and the compute instance that fills it; both or neither.

        Should neither the second be made nor the first be taken back, the inventory shows it as incomplete.

        Raises:
            Conflict: the place is taken, or MIG is off.
            InvalidInput: the GPU has no such profile, or not there.

        """
        ...

    async def destroy_instance(self, gpu: str, placement: Placement) -> None:
        """Destroy the instance at a placement, complete or not, its compute instances first.

        Raises:
            Conflict: a process runs on it, or there is none.

        """
        ...

    async def processes(self, gpu: str) -> tuple[GpuProcess, ...]:
        """Return the processes with a context on a GPU, of its MIG instances where MIG is on."""
        ...

    async def use(self, gpu: str, placement: Placement | None = None) -> Use:
        """Return how busy a GPU, or one MIG instance of it, is."""
        ...

    async def measure(self, gpu: str) -> GpuReading:
        """Return what the driver measures of a GPU, of its MIG instances and of its processes.

        Instances are those of the last inventory that are still there; what is not reported is None.
        """
        ...

    async def set_compute_mode(self, gpu: str, mode: ComputeMode) -> None:
        """Say who may open contexts on a GPU."""
        ...

    async def set_power_limit(self, gpu: str, watts: int | None) -> None:
        """Cap a GPU's power; None restores the default limit.

        Raises:
            InvalidInput: a limit outside the GPU's range, which the error names.

        """
        ...

    async def lock_clocks(self, gpu: str, mhz: tuple[int, int] | None) -> None:
        """Keep the clock of the graphics engine between two frequencies; None leaves it to the driver."""
        ...

    async def set_memory_limit(self, gpu: str, cgroup: str, hard_mib: int | None) -> None:
        """Limit the memory all processes of a cgroup hold of a GPU together; None takes the limit away.

        Raises:
            Unsupported: the driver is older than 615, or the GPU is in MIG mode.

        """
        ...

    async def memory_limit(self, gpu: str, cgroup: str) -> MemoryLimit:
        """Return the limit of a cgroup on a GPU, and what it holds."""
        ...

    def events(self) -> AsyncIterator[GpuEvent]:
        """Yield what the driver reports from this call on, all of it to each caller: XIDs, GPUs lost, MIG changed.

        Ends when the driver is closed. A driver that does not answer yields nothing; the inventory says so.
        """
        ...

    async def close(self) -> None:
        """Let go of the driver and end all events; nothing it was asked to set is undone. Later calls fail."""
        ...
