"""GPUs whose layouts change, and what is seen of it."""

from collections.abc import Callable

from builders.gpufacts import at
from harness.machines import Machine
from harness.virtualtime import run
from tessera.agent.partition import Partitioner
from tessera.clients.gpu import MemoryDriver
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.inventory import GpuFacts
from tessera.core.gpu.mig import Layout, Placement
from tessera.core.node.layouts import LayoutTarget
from tessera.errors import Unavailable

A100 = model("A100-40GB")


SEVEN = at(A100, *(("1g.5gb", start) for start in range(7)))


TWO = LayoutTarget(gpu="GPU-0", index=0, mig=True, counts=(("3g.20gb", 2),))


FAULT = Unavailable("GPU 0", found="a fault", expected="no fault")


def machine_of(*gpus: GpuFacts) -> Machine:
    return Machine(MemoryDriver(gpus))


def driver_of(machine: Machine) -> MemoryDriver:
    assert isinstance(machine.driver, MemoryDriver)
    return machine.driver


def apply(
    machine: Machine, *targets: LayoutTarget, by_s: float = 200
) -> tuple[tuple[str, ...], dict[str, Layout | None]]:
    """Return what failed, and the layouts afterwards."""

    async def once() -> tuple[tuple[str, ...], dict[str, Layout | None]]:
        failures = await Partitioner(machine.gpus).apply(targets, by_s)
        return failures, await machine.layouts()

    return run(once())


UNRESTORED = "; the previous layout could not be restored; until it is, only devices in use are advertised"


FORMER = "; the previous layout is in force, except where used instances prevent it"


class Between(Machine):
    """A node on which something happens once the first instance has been destroyed."""

    def __init__(self, driver: MemoryDriver, event: Callable[["Between"], None]) -> None:
        super().__init__(driver)
        self.event = event

    async def destroy_instance(self, gpu: str, placement: Placement) -> None:
        await super().destroy_instance(gpu, placement)
        self.event(self)
