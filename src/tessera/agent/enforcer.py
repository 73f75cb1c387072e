"""What stands behind the sharing that is declared: MPS daemons, memory limits, power; and what is offered without."""

from collections.abc import Iterable
from pathlib import Path

from tessera.agent.nodepods import NodePods
from tessera.agent.sharing import MemoryKeeper, MpsSettings, MpsSupervisor, PowerKeeper, systemd_cgroups
from tessera.clients.gpu import GpuDriver
from tessera.core.holdings import used_keys
from tessera.core.inventory import Inventory
from tessera.core.memorycaps import memory_caps
from tessera.core.mps import enforceable, mps_key, mps_targets
from tessera.core.mpsdaemon import DaemonState, ready_keys
from tessera.core.nodesharing import NodeSharing
from tessera.core.sharing import Mode
from tessera.core.snapshot import Gpu, Share
from tessera.errors import Unavailable
from tessera.log import Logger

__all__ = ["Enforcer"]

_MPS = frozenset({Mode.MPS, Mode.MIG_MPS})


class Enforcer:
    """Keeps daemons, limits and power as they must be; call `apply` at every round.

    Args:
        driver: the node's GPU driver.
        mps: where MPS daemons live.
        state: folder of what must outlive the agent.
        log: where each change is logged.

    """

    def __init__(self, driver: GpuDriver, mps: MpsSettings, state: Path, log: Logger) -> None:
        self._mps = MpsSupervisor(driver, mps, log)
        self._memory = MemoryKeeper(driver, log)
        self._power = PowerKeeper(driver, state / "power.json", log)
        self._daemons: dict[str, DaemonState] = {}
        self.problems: tuple[str, ...] = ()
        """What of the declared sharing does not hold, one sentence each."""

    async def apply(
        self, gpus: Iterable[Gpu], inventory: Inventory, said: NodeSharing, pods: NodePods
    ) -> tuple[Gpu, ...]:
        """Do what is needed and return the GPUs without the shares behind which nothing stands."""
        wanted = tuple(gpus)
        used = used_keys(await pods.held(inventory), inventory)
        states = await self._mps.apply(mps_targets(wanted, inventory, pods.shares), inventory, used)
        self._daemons = {each.key: each for each in states}
        unable = self._mps.unavailable()
        self.problems = (
            *(f"MPS of {each.key}: {each.reason}" for each in states if each.reason),
            *await self._memory.apply(memory_caps(pods.by_pod, inventory, systemd=systemd_cgroups())),
            *await self._power.apply(said.policies, inventory),
        )
        return enforceable(wanted, ready_keys(wanted, states, available=not unable))

    def check(self, shares: Iterable[Share], inventory: Inventory) -> None:
        """Return when the MPS daemons of these shares ran at the last `apply`.

        Raises:
            Unavailable: one did not; says which and why.

        """
        gpus = {gpu.index: gpu for gpu in inventory.gpus}
        for share in shares:
            if share.mode not in _MPS or share.gpu not in gpus:
                continue
            facts = gpus[share.gpu]
            placement = next((each for each in facts.layout or () if each.start == share.start), None)
            state = self._daemons.get(mps_key(facts.uuid, placement))
            if state is None or state.phase != "running":
                found = (state.reason if state else self._mps.unavailable()) or "no daemon"
                wanted = "a running MPS daemon, which limits its memory and compute"
                raise Unavailable(f"MPS share of GPU {share.gpu}", found=found, wanted=wanted)
