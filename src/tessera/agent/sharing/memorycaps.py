"""Memory limits of pods' cgroups, set in the driver as soon as the cgroup exists."""

from collections.abc import Iterable
from pathlib import Path

from tessera.clients.gpu import GpuDriver
from tessera.core.node.memorycaps import MemoryCap
from tessera.errors import TesseraError
from tessera.log import Logger

__all__ = ["MemoryCaps", "systemd_cgroups"]

_ROOT = Path("/sys/fs/cgroup")


def systemd_cgroups(root: Path = _ROOT) -> bool:
    """Return whether the kubelet uses the systemd cgroup driver on this node; also where it has no cgroups yet."""
    return (root / "kubepods.slice").exists() or not (root / "kubepods").exists()


class MemoryCaps:
    """Sets the limits; nothing runs in the background.

    Call `apply` in every pass, and before a container starts with its pod's limits included: a limit
    set after the program has allocated its memory takes nothing back.

    Args:
        driver: sets them.
        log: for changes.
        root: the cgroup tree.

    """

    def __init__(self, driver: GpuDriver, log: Logger, root: Path = _ROOT) -> None:
        self._driver = driver
        self._log = log
        self._root = root
        self._set: set[tuple[str, str]] = set()

    async def apply(self, caps: Iterable[MemoryCap]) -> tuple[str, ...]:
        """Set the limits that differ and return what could not be set, one sentence each.

        A cgroup that does not exist yet waits for the next call; a deleted one took its limit along.
        """
        problems = []
        desired = {(cap.gpu, cap.cgroup): cap.hard_mib for cap in caps}
        for (gpu, cgroup), hard_mib in [*desired.items(), *((stale, None) for stale in self._set - desired.keys())]:
            try:
                await self._limit(gpu, cgroup, hard_mib)
            except TesseraError as error:
                problems.append(str(error))
        return tuple(problems)

    async def _limit(self, gpu: str, cgroup: str, hard_mib: int | None) -> None:
        if (self._root / cgroup.removeprefix("/")).exists():
            if (await self._driver.memory_limit(gpu, cgroup)).hard_mib != hard_mib:
                await self._driver.set_memory_limit(gpu, cgroup, hard_mib)
                self._log.info("memory_limit_set", gpu=gpu, cgroup=cgroup, hard_mib=hard_mib)
            self._set.add((gpu, cgroup))
        if hard_mib is None:
            self._set.discard((gpu, cgroup))
