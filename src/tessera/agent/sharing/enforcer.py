"""Enforces the declared sharing: MPS daemons, memory limits, power; and returns what can be advertised."""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from tessera.agent.pods.nodepods import NodePods
from tessera.agent.sharing import MemoryCaps, MpsSettings, MpsSupervisor, PowerKeeper, systemd_cgroups
from tessera.clients.gpu import GpuDriver
from tessera.core.cluster.enforcement import enforceable
from tessera.core.cluster.mpstargets import mps_key, mps_targets
from tessera.core.cluster.snapshot import Gpu, Share
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, uses_of_shares
from tessera.core.deviceplugin.allocations.allocateddevices import clients_by_mps, devices_without_mps
from tessera.core.deviceplugin.allocations.poddevices import used_keys
from tessera.core.gpu.inventory import Inventory
from tessera.core.node.memorycaps import memory_caps
from tessera.core.node.mpslifecycle import DaemonState, check_daemons, ready_keys
from tessera.core.node.nodesharing import NodeSharing
from tessera.log import Logger

__all__ = ["Enforcer"]


class UsedDevices(Protocol):
    """The devices that pods use; `agent.deviceplugin.allocations` has a record of them."""

    @property
    def allocated(self) -> Iterable[AgentAllocation]:
        """What containers have now, or are about to have."""


class Enforcer:
    """Reconciles daemons, limits and power; call `apply` in every pass.

    Args:
        driver: the node's GPU driver.
        mps: settings of the MPS daemons.
        state: folder for state that must outlive the agent.
        log: for changes.

    """

    def __init__(self, driver: GpuDriver, mps: MpsSettings, state: Path, log: Logger) -> None:
        self._mps = MpsSupervisor(driver, mps, log)
        self._memory = MemoryCaps(driver, log)
        self._power = PowerKeeper(driver, state / "power.json", log)
        self._daemons: tuple[DaemonState, ...] = ()
        self.problems: tuple[str, ...] = ()
        """The declared sharing that is not in force, one sentence each."""

    def no_mps(self) -> str:
        """Return why the node cannot run MPS; empty where it can."""
        return self._mps.unavailable()

    async def apply(
        self,
        gpus: Iterable[Gpu],
        inventory: Inventory,
        node_sharing: NodeSharing,
        pods: NodePods,
        used: UsedDevices,
    ) -> tuple[Gpu, ...]:
        """Enforce the sharing and return the GPUs without the shares that could not be enforced.

        Args:
            gpus: with the desired sharing.
            inventory: of the driver.
            node_sharing: the declarations for the node.
            pods: those of the node.
            used: the devices in use, by the agent's record.

        """
        desired = tuple(gpus)
        keys = used_keys(await pods.pod_devices(inventory), inventory)
        targets = mps_targets(desired, inventory, pods.shares, clients_by_mps(used.allocated))
        # A daemon's compute mode would keep new processes of these pods off the GPU.
        assigned = (each.device for each in uses_of_shares(pods.shares, inventory) if each.keeps_mps_out)
        kept_out = {mps_key(*device) for device in devices_without_mps(used.allocated).union(assigned)}
        taken = kept_out & {each.key for each in targets}
        states = await self._mps.apply((each for each in targets if each.key not in taken), inventory, keys)
        self._daemons = tuple(states)
        unable = self._mps.unavailable()
        self.problems = (
            *(f"MPS of {each.key}: {each.reason}" for each in states if each.reason),
            *(f"MPS of {each}: pods still use the GPU in another mode" for each in sorted(taken)),
            *await self._memory.apply(memory_caps(pods.by_pod, inventory, systemd=systemd_cgroups())),
            *await self._power.apply(node_sharing.policies, inventory),
        )
        return enforceable(desired, ready_keys(desired, states, available=not unable))

    def check(self, shares: Iterable[Share], inventory: Inventory) -> None:
        """Return when the MPS daemons of these shares ran at the last `apply`.

        Raises:
            InvalidInput: a share of a MIG instance that its GPU cannot have.
            Unavailable: a daemon did not run; which and why.

        """
        check_daemons(shares, inventory, self._daemons, unable=self._mps.unavailable())
