"""A node with GPUs, pods and a kubelet that fail as configured, and check the rules."""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from tessera.agent.partition import Driver, NodeGpus, Timing
from tessera.clients.gpu import MemoryDriver
from tessera.core.gpu.inventory import GpuProcess, Instance, Inventory, MigMode
from tessera.core.gpu.mig import Layout, Placement
from tessera.errors import Unavailable

TIMING = Timing(drain_s=20, settle_s=2, poll_s=1, step_s=10, switch_s=15, observe_s=5, restore_s=60)
HANGS = 10_000.0


class Death(BaseException):
    """The agent's process ends, here and now."""


class Machine:
    """What the partitioner changes around a driver.

    Args:
        driver: carries out what does not fail.
        fate: decides about each call of the driver, the kubelet and the plugin by a number: 0 works, 1 is refused, 2
            is done and reported as failed, 3 does not answer, 4 lets a pod take a free instance first, 5 and 6 are the
            death of the agent, before and after the deed, 7 leaves an instance by half and is reported as failed.

    """

    def __init__(self, driver: Driver, fate: Callable[[], int] = lambda: 0) -> None:
        self.driver = driver
        self.fate = fate
        self.pods: dict[str, tuple[str, Placement | None]] = {}
        self.offered: dict[str, Layout | None] = {}
        self.destroyed: list[tuple[str, Placement]] = []
        self.hangs: set[str] = set()
        """Calls that never answer."""
        self.refuses: set[str] = set()
        """Calls that are refused."""
        self.eager = False
        """Whether a pod takes a free instance just before any offer changes."""

    @property
    def gpus(self) -> NodeGpus:
        return NodeGpus(driver=self, users=self, advertised=self, timing=TIMING)

    async def _suffer(self, call: str) -> int:
        fate = 3 if call in self.hangs else 1 if call in self.refuses else self.fate()
        if fate == 1:
            raise Unavailable(call, found="a fault", expected="no fault")
        if fate == 3:
            await asyncio.sleep(HANGS)
        if fate == 5:
            raise Death
        if fate == 7 and isinstance(self.driver, MemoryDriver) and call in {"create_instance", "destroy_instance"}:
            self.driver.fail(call, Unavailable(call, found="a fault half way", expected="no fault"), half_done=True)
        if fate == 4 or (self.eager and call == "offer"):
            await self.take()
        return fate

    @staticmethod
    def _tell(fate: int) -> None:
        if fate == 2:
            raise Unavailable("the driver", found="a fault after the deed", expected="no fault")
        if fate == 6:
            raise Death

    async def take(self) -> None:
        """Let a pod have a free instance that is offered, as the kubelet might at any moment."""
        inventory = await self.driver.inventory()
        taken = set(self.pods.values())
        for gpu in inventory.gpus:
            offer = self.offered.get(gpu.uuid)
            for each in gpu.instances:
                if (offer is None or each.placement in offer) and (gpu.uuid, each.placement) not in taken:
                    self.pods[f"ns/new-{len(self.pods)}"] = (gpu.uuid, each.placement)
                    return

    async def inventory(self) -> Inventory:
        await self._suffer("inventory")
        return await self.driver.inventory()

    async def processes(self, gpu: str) -> tuple[GpuProcess, ...]:
        return await self.driver.processes(gpu)

    async def create_instance(self, gpu: str, placement: Placement) -> Instance:
        fate = await self._suffer("create_instance")
        made = await self.driver.create_instance(gpu, placement)
        self._tell(fate)
        return made

    async def destroy_instance(self, gpu: str, placement: Placement) -> None:
        fate = await self._suffer("destroy_instance")
        assert (gpu, placement) not in self.pods.values(), "a used instance is destroyed"
        offer = self.offered.get(gpu)
        assert offer is not None, "an instance that is offered is destroyed"
        assert placement not in offer, "an instance that is offered is destroyed"
        await self.driver.destroy_instance(gpu, placement)
        self.destroyed.append((gpu, placement))
        self._tell(fate)

    async def set_mig(self, gpu: str, *, enabled: bool) -> MigMode:
        fate = await self._suffer("set_mig")
        before = next(each.mig for each in (await self.driver.inventory()).gpus if each.uuid == gpu)
        if before is not None and before.current != enabled:
            assert gpu not in {uuid for uuid, _ in self.pods.values()}, "MIG is switched on a used GPU"
            assert self.offered.get(gpu) == (), "MIG is switched on a GPU that is offered"
        mode = await self.driver.set_mig(gpu, enabled=enabled)
        self._tell(fate)
        return mode

    async def devices_by_pod(self, inventory: Inventory) -> Iterable[tuple[str, Sequence[str]]]:  # noqa: ARG002
        """Tell what the kubelet has given to pods, by the instances that there are now."""
        await self._suffer("held")
        ids: dict[tuple[str, Placement | None], str] = {}
        for gpu in (await self.driver.inventory()).gpus:
            ids[gpu.uuid, None] = gpu.uuid
            ids |= {(gpu.uuid, each.placement): each.uuid for each in gpu.instances}
        return [(pod, [ids[place]]) for pod, place in self.pods.items()]

    def promised(self, gpu: str) -> bool:  # noqa: ARG002
        """Tell that the kubelet may allocate something of every GPU."""
        return True

    async def advertise(self, gpu: str, layout: Layout | None) -> None:
        fate = await self._suffer("offer")
        self.offered[gpu] = layout
        self._tell(fate)

    async def layouts(self) -> dict[str, Layout | None]:
        """Return the MIG instances of the GPUs."""
        return {gpu.uuid: gpu.layout for gpu in (await self.driver.inventory()).gpus}
