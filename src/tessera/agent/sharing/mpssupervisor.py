"""MPS control daemons: one for each device that needs one, supervised, and left running while in use.

A daemon runs in a session and control groups of its own and outlives the agent; the next agent finds it by the record
beside its pipes.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from tessera.agent.sharing.detachedprocesses import end, gone
from tessera.agent.sharing.leavepod import leave_pod
from tessera.agent.sharing.mpsprocesses import MpsDaemons, MpsSettings, running
from tessera.clients.gpu import GpuDriver
from tessera.core.cluster.mpstargets import MpsTarget
from tessera.core.gpu.inventory import ComputeMode, GpuFacts, Inventory
from tessera.core.node.mpslifecycle import (
    DaemonPhase,
    DaemonRecord,
    DaemonState,
    DaemonStep,
    ObservedDaemon,
    next_step,
    unlimited,
)
from tessera.errors import TesseraError, Unavailable
from tessera.log import Logger

__all__ = ["MpsSupervisor"]

_POLL_S = 0.1


class MpsSupervisor:
    """Starts, supervises, adopts and ends the control daemons of one node.

    Nothing runs in the background: call `apply` in every pass of the agent. Daemons outlive the agent.

    Args:
        driver: sets compute modes.
        settings: paths and timeouts of the daemons.
        log: for steps.
        clock: a monotonic clock.

    """

    def __init__(
        self, driver: GpuDriver, settings: MpsSettings, log: Logger, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._driver = driver
        self._daemons = MpsDaemons(settings)
        self._log = log
        self._clock = clock
        self._silent = defaultdict[str, int](int)
        self._starts = defaultdict[str, int](int)
        """Starts since the daemon last answered."""
        self._started_at: dict[str, float] = {}
        self._reasons: dict[str, str] = {}

    def unavailable(self) -> str:
        """Return why no daemon can be started on this node; empty where one can."""
        return self._daemons.unavailable()

    async def apply(
        self, targets: Iterable[MpsTarget], inventory: Inventory, used: Collection[str] = ()
    ) -> tuple[DaemonState, ...]:
        """Take the next step for each daemon and return their states, sorted by key.

        Args:
            targets: the desired daemons, `core.cluster.mpstargets.mps_targets`.
            inventory: of the driver.
            used: keys of devices in use by the kubelet's record; their daemons are not ended.

        """
        desired = {target.key: target for target in targets}
        keys = sorted(desired.keys() | self._daemons.recorded())
        facts = {each.uuid: each for each in inventory.gpus}
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._advance(key, desired.get(key), facts, used=key in used)) for key in keys]
        return tuple(state for state in (task.result() for task in tasks) if state is not None)

    async def _advance(
        self, key: str, desired: MpsTarget | None, facts: Mapping[str, GpuFacts], *, used: bool
    ) -> DaemonState | None:
        observed = await self._observe(key)
        step = next_step(desired, observed, used=used)
        try:
            await self._take(step, key, desired, observed, facts)
        except TesseraError as error:
            self._reasons[key] = str(error)
            self._log.warning("mps_step_failed", key=key, step=step, reason=str(error))
            return DaemonState(key=key, phase="failed", reason=str(error), clients=observed.clients)
        if desired is None and step is not DaemonStep.WAIT:
            return None
        return self._state(key, desired, step, observed)

    def _state(self, key: str, desired: MpsTarget | None, step: DaemonStep, observed: ObservedDaemon) -> DaemonState:
        phase: DaemonPhase = "running"
        reason = ""
        if step in {DaemonStep.WAIT, DaemonStep.QUIT, DaemonStep.KILL}:
            phase, reason = "failed", self._reasons.get(key, "it does not respond")
            if observed.alive and (desired is None or observed.clients is not None):
                phase, reason = "draining", "its configuration was removed; it stops when no process uses it"
        return DaemonState(key=key, phase=phase, reason=reason, clients=observed.clients)

    async def _take(
        self,
        step: DaemonStep,
        key: str,
        desired: MpsTarget | None,
        observed: ObservedDaemon,
        facts: Mapping[str, GpuFacts],
    ) -> None:
        gpu = facts.get(desired.gpu if desired else observed.record.target.gpu if observed.record else "")
        match step:
            case DaemonStep.START if desired is not None:
                await self._start(desired, observed.record, gpu)
            case DaemonStep.KEEP | DaemonStep.SET_LIMITS if desired is not None and observed.record is not None:
                self._starts[key] = 0
                await self._exclusive(desired, gpu)
                if step is DaemonStep.SET_LIMITS:
                    await self._daemons.limit(desired)
                    self._daemons.write(msgspec.structs.replace(observed.record, target=desired))
            case DaemonStep.QUIT | DaemonStep.KILL if observed.record is not None:
                await self._end(key, observed.record, requested=step is DaemonStep.QUIT)
                await self._forget(key, observed.record, gpu)
            case DaemonStep.FORGET:
                await self._forget(key, observed.record, gpu)

    # Observing

    async def _observe(self, key: str) -> ObservedDaemon:
        sight = await self._daemons.observe(key)
        silent = sight.alive and sight.clients is None
        self._silent[key] = self._silent[key] + 1 if silent else 0
        if silent:
            self._reasons[key] = sight.problem
        return ObservedDaemon(
            record=sight.record,
            alive=sight.alive,
            clients=sight.clients,
            silent=self._silent[key],
            failures=self._starts[key],
            idle_s=self._clock() - self._started_at.get(key, float("-inf")),
            foreign=sight.foreign,
        )

    # Acting

    async def _start(self, target: MpsTarget, former: DaemonRecord | None, gpu: GpuFacts | None) -> None:
        self._starts[target.key] += 1
        self._started_at[target.key] = self._clock()
        reason = self.unavailable()
        if reason or gpu is None:
            found = reason or "no such GPU"
            raise Unavailable(f"MPS of {target.visible}", found=found, hint="see `tessera doctor`")
        mode = former.former_mode if former else gpu.compute_mode if target.exclusive else ""
        record = DaemonRecord(target=unlimited(target), pid=0, started="", former_mode=mode)
        self._daemons.write(record)
        await self._exclusive(target, gpu)
        record = await self._daemons.launch(record)
        bound = leave_pod(record.pid)
        if bound:
            self._log.warning("mps_daemon_ends_with_agent", gpu=target.gpu, key=target.key, reason=bound)
        await self._answers(record)
        await self._daemons.limit(target)
        self._daemons.write(msgspec.structs.replace(record, target=target))
        self._log.info("mps_daemon_started", gpu=target.gpu, key=target.key, pid=record.pid)

    async def _answers(self, record: DaemonRecord) -> None:
        """Wait until a started daemon answers.

        Raises:
            Unavailable: it ended, or does not answer in time.

        """
        clock = asyncio.get_running_loop().time
        until = clock() + self._daemons.settings.start_s
        while True:
            try:
                await self._daemons.command(record.target.key, "get_server_list")
            except Unavailable as error:
                if not running(record):
                    found = f"it ended: {self._daemons.printed(record.target.key)}"
                    subject = f"MPS of {record.target.visible}"
                    raise Unavailable(subject, found=found, hint="see `tessera doctor`") from error
                if clock() > until:
                    raise
            else:
                return
            await asyncio.sleep(_POLL_S)

    async def _exclusive(self, target: MpsTarget, gpu: GpuFacts | None) -> None:
        if target.exclusive and gpu is not None and gpu.compute_mode is not ComputeMode.EXCLUSIVE_PROCESS:
            await self._driver.set_compute_mode(target.gpu, ComputeMode.EXCLUSIVE_PROCESS)

    async def _end(self, key: str, record: DaemonRecord, *, requested: bool) -> None:
        if requested:
            await self._daemons.command(key, "quit")
        if not requested or not await gone(record.pid, record.started, self._daemons.settings.start_s):
            await end(record.pid, record.started, self._daemons.settings.answer_s)
        self._log.info("mps_daemon_ended", gpu=record.target.gpu, key=key, requested=requested)

    async def _forget(self, key: str, record: DaemonRecord | None, gpu: GpuFacts | None) -> None:
        """Restore the compute mode and remove a daemon's files."""
        uncut = gpu is not None and (gpu.mig is None or not gpu.mig.current)
        if record is not None and record.former_mode and gpu is not None and uncut:
            await self._driver.set_compute_mode(gpu.uuid, ComputeMode(record.former_mode))
        self._daemons.remove(key)
        for memory in (self._silent, self._starts, self._started_at, self._reasons):
            memory.pop(key, None)
