"""Power limits and clocks of the node policy, restored when the policy is removed, also after a crash."""

from collections.abc import Sequence
from pathlib import Path

from tessera.agent.nodefiles import write_through
from tessera.api.tessera.node.settingsfiles import read_originals, write_originals
from tessera.clients.gpu import GpuDriver
from tessera.core.gpu.inventory import GpuFacts, Inventory
from tessera.core.node.nodesharing import GpuSettings
from tessera.core.node.power import LockClocks, Original, PowerAction, forgotten, power_actions, remembered
from tessera.errors import TesseraError, Unavailable, shown
from tessera.log import Logger

__all__ = ["PowerKeeper"]


class PowerKeeper:
    """Sets power limits and clocks; nothing runs in the background, call `apply` in every pass.

    Args:
        driver: sets them.
        record: file that keeps the GPUs' former settings.
        log: for changes.

    """

    def __init__(self, driver: GpuDriver, record: Path, log: Logger) -> None:
        self._driver = driver
        self._record = record
        self._log = log
        self._locked: dict[str, tuple[int, int]] = {}

    async def apply(self, policies: Sequence[GpuSettings], inventory: Inventory) -> tuple[str, ...]:
        """Apply the policies and return what could not be done, one sentence each."""
        try:
            originals = self._read()
        except TesseraError as error:
            return (str(error),)
        facts = {each.uuid: each for each in inventory.gpus}
        problems = []
        for action in power_actions(policies, inventory.gpus, originals, self._locked):
            try:
                await self._take(action, facts[action.gpu], originals)
            except TesseraError as error:
                problems.append(str(error))
        return tuple(problems)

    async def _take(self, action: PowerAction, facts: GpuFacts, originals: dict[str, Original]) -> None:
        before = remembered(action, facts, originals.get(action.gpu, Original(gpu=action.gpu)))
        self._write(originals, before.gpu, before)
        if isinstance(action, LockClocks):
            await self._driver.lock_clocks(action.gpu, action.mhz)
            self._locked.pop(action.gpu, None)
            if action.mhz is not None:
                self._locked[action.gpu] = action.mhz
            self._log.info("clocks_set", gpu=action.gpu, mhz=action.mhz)
        else:
            await self._driver.set_power_limit(action.gpu, action.watts)
            self._log.info("power_limit_set", gpu=action.gpu, watts=action.watts)
        self._write(originals, action.gpu, forgotten(action, before))

    def _read(self) -> dict[str, Original]:
        try:
            found = read_originals(self._record.read_bytes(), str(self._record))
        except FileNotFoundError:
            return {}
        except OSError as error:
            hint = "remove the file once power limits and clocks are correct"
            raise Unavailable(str(self._record), found=shown(error), hint=hint) from error
        return {each.gpu: each for each in found}

    def _write(self, originals: dict[str, Original], gpu: str, original: Original | None) -> None:
        former = dict(originals)
        originals.pop(gpu, None)
        if original is not None:
            originals[gpu] = original
        if originals == former:
            return
        try:
            write_through(self._record, write_originals(originals.values()))
        except OSError as error:
            originals.clear()
            originals.update(former)
            raise Unavailable(
                str(self._record), found=str(error), hint="give --state-dir, a folder that the agent may write to"
            ) from error
