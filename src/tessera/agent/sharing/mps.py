"""MPS control daemons: one for each device that needs one, supervised, and left alone while anybody uses them.

A daemon runs in a session of its own and outlives the agent; the next agent finds it by the record beside its pipes:

    ROOT/KEY/daemon.json    what runs, and the compute mode to restore
    ROOT/KEY/pipe           CUDA_MPS_PIPE_DIRECTORY, mounted into containers
    ROOT/KEY/log            CUDA_MPS_LOG_DIRECTORY; daemon.log is what the daemon prints
"""

import asyncio
import contextlib
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from tessera.agent.sharing.processes import end, gone, identity, launch, ran
from tessera.clients.gpu import GpuDriver
from tessera.core.doctor import Daemon
from tessera.core.inventory import ComputeMode, GpuFacts, Inventory
from tessera.core.mps import MpsTarget
from tessera.core.mpsdaemon import DaemonRecord, DaemonSeen, DaemonState, Phase, Step, next_step
from tessera.errors import TesseraError, Unavailable
from tessera.log import Logger

__all__ = ["MpsSettings", "MpsSupervisor"]

_RECORD = "daemon.json"
_POLL_S = 0.1
_LOG_TAIL = 300
"""Characters of a daemon's log that an error repeats."""


class MpsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where daemons live and how long they may take."""

    program: str = "nvidia-cuda-mps-control"
    root: Path = Path("/run/tessera/mps")
    answer_s: float = 5.0
    """Longest wait for the answer to one command."""
    start_s: float = 10.0
    """Longest wait for a daemon to answer after its start, and to end after it was told to."""


class MpsSupervisor:
    """Starts, watches, adopts and ends the control daemons of one node.

    There is nothing to start or stop: call `apply` at every round of the agent. Daemons stay when the agent goes.

    Args:
        driver: sets compute modes.
        settings: where daemons live.
        log: where each step is logged.
        clock: seconds that never go back.

    """

    def __init__(
        self, driver: GpuDriver, settings: MpsSettings, log: Logger, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._driver = driver
        self._settings = settings
        self._log = log
        self._clock = clock
        self._silent = defaultdict[str, int](int)
        self._starts = defaultdict[str, int](int)
        """Starts since the daemon last answered."""
        self._started_at: dict[str, float] = {}
        self._reasons: dict[str, str] = {}

    @property
    def program(self) -> str:
        """The path of the control program; empty where it is not on PATH."""
        return shutil.which(self._settings.program) or ""

    def unavailable(self) -> str:
        """Return why no daemon can be started on this node; empty where one can."""
        return "" if self.program else f"{self._settings.program} is not installed or not on PATH"

    async def inspect(self) -> tuple[Daemon, ...]:
        """Return the daemons there are records of, sorted by key, and change nothing."""
        found = []
        for key in sorted(self._recorded()):
            seen = await self._look(key)
            if seen.record is None:
                problem = "its record cannot be read"
            elif not seen.alive:
                problem = "its process has ended"
            else:
                problem = self._reasons[key] if seen.clients is None else ""
            target = seen.record.target if seen.record else None
            gpu, exclusive = (target.gpu, target.exclusive) if target else ("", False)
            found.append(Daemon(key=key, gpu=gpu, exclusive=exclusive, problem=problem))
        return tuple(found)

    async def apply(
        self, targets: Iterable[MpsTarget], inventory: Inventory, used: Collection[str] = ()
    ) -> tuple[DaemonState, ...]:
        """Take the next step for each daemon and return their states, sorted by key.

        Args:
            targets: the daemons that must run, `core.mps.mps_targets`.
            inventory: what the driver shows.
            used: keys of devices that pods hold by the kubelet's record; their daemons are not ended.

        """
        wanted = {target.key: target for target in targets}
        keys = sorted(wanted.keys() | self._recorded())
        facts = {each.uuid: each for each in inventory.gpus}
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._advance(key, wanted.get(key), facts, used=key in used)) for key in keys]
        return tuple(state for state in (task.result() for task in tasks) if state is not None)

    async def _advance(
        self, key: str, wanted: MpsTarget | None, facts: Mapping[str, GpuFacts], *, used: bool
    ) -> DaemonState | None:
        seen = await self._look(key)
        step = next_step(wanted, seen, used=used)
        try:
            await self._take(step, key, wanted, seen, facts)
        except TesseraError as error:
            self._reasons[key] = str(error)
            self._log.warning("mps_step_failed", key=key, step=step, reason=str(error))
            return DaemonState(key=key, phase="failed", reason=str(error), clients=seen.clients)
        if wanted is None and step is not Step.WAIT:
            return None
        return self._state(key, wanted, step, seen)

    def _state(self, key: str, wanted: MpsTarget | None, step: Step, seen: DaemonSeen) -> DaemonState:
        phase: Phase = "running"
        reason = ""
        if step in {Step.WAIT, Step.QUIT, Step.KILL}:
            phase, reason = "failed", self._reasons.get(key, "it does not answer")
            if seen.alive and (wanted is None or seen.clients is not None):
                phase, reason = "draining", "its configuration has gone; it ends when nobody uses it"
        return DaemonState(key=key, phase=phase, reason=reason, clients=seen.clients)

    async def _take(
        self, step: Step, key: str, wanted: MpsTarget | None, seen: DaemonSeen, facts: Mapping[str, GpuFacts]
    ) -> None:
        gpu = facts.get(wanted.gpu if wanted else seen.record.target.gpu if seen.record else "")
        match step:
            case Step.START if wanted is not None:
                await self._start(wanted, seen.record, gpu)
            case Step.KEEP | Step.SET_LIMITS if wanted is not None and seen.record is not None:
                self._starts[key] = 0
                await self._exclusive(wanted, gpu)
                if step is Step.SET_LIMITS:
                    await self._limit(wanted)
                    self._write(msgspec.structs.replace(seen.record, target=wanted))
            case Step.QUIT | Step.KILL if seen.record is not None:
                await self._end(key, seen.record, asked=step is Step.QUIT)
                await self._forget(key, seen.record, gpu)
            case Step.FORGET:
                await self._forget(key, seen.record, gpu)

    # Seeing

    def _recorded(self) -> set[str]:
        root = self._settings.root
        return {path.parent.name for path in root.glob(f"*/{_RECORD}")}

    async def _look(self, key: str) -> DaemonSeen:
        record = self._read(key)
        alive = record is not None and bool(record.started) and identity(record.pid) == record.started
        clients = await self._clients(key) if alive else None
        self._silent[key] = self._silent[key] + 1 if alive and clients is None else 0
        return DaemonSeen(
            record=record,
            alive=alive,
            clients=clients,
            silent=self._silent[key],
            failures=self._starts[key],
            idle_s=self._clock() - self._started_at.get(key, float("-inf")),
        )

    async def _clients(self, key: str) -> int | None:
        """Return how many clients a daemon's servers have; None where it does not answer."""
        try:
            servers = (await self._command(key, "get_server_list")).split()
            lists = [await self._command(key, f"get_client_list {server}") for server in servers if server.isdecimal()]
        except Unavailable as error:
            self._reasons[key] = str(error)
            return None
        return sum(len(each.split()) for each in lists)

    # Acting

    async def _start(self, target: MpsTarget, former: DaemonRecord | None, gpu: GpuFacts | None) -> None:
        self._starts[target.key] += 1
        self._started_at[target.key] = self._clock()
        reason = self.unavailable()
        if reason or gpu is None:
            found = reason or "no such GPU"
            raise Unavailable(f"MPS of {target.visible}", found=found, wanted="a daemon", accepted="see tessera doctor")
        mode = former.former_mode if former else gpu.compute_mode if target.exclusive else ""
        record = DaemonRecord(target=target, pid=0, started="", former_mode=mode)
        folder = self._folder(target.key)
        self._write(record)
        await self._exclusive(target, gpu)
        env = {**self._env(target.key), "CUDA_VISIBLE_DEVICES": target.visible}
        output = folder / "log" / "daemon.log"
        pid = await launch((self._settings.program, "-f"), env, output, self._settings.answer_s)
        record = msgspec.structs.replace(record, pid=pid, started=identity(pid))
        self._write(record)
        await self._answers(record, output)
        await self._limit(target)
        self._log.info("mps_daemon_started", gpu=target.gpu, key=target.key, pid=pid)

    async def _answers(self, record: DaemonRecord, output: Path) -> None:
        """Wait until a started daemon answers.

        Raises:
            Unavailable: it ended, or does not answer in time.

        """
        until = self._clock() + self._settings.start_s
        while True:
            try:
                await self._command(record.target.key, "get_server_list")
            except Unavailable as error:
                if not record.started or identity(record.pid) != record.started:
                    raise Unavailable(
                        f"MPS of {record.target.visible}", found=f"it ended: {_tail(output)}", wanted="a running daemon"
                    ) from error
                if self._clock() > until:
                    raise
            else:
                return
            await asyncio.sleep(_POLL_S)

    async def _exclusive(self, target: MpsTarget, gpu: GpuFacts | None) -> None:
        if target.exclusive and gpu is not None and gpu.compute_mode is not ComputeMode.EXCLUSIVE_PROCESS:
            await self._driver.set_compute_mode(target.gpu, ComputeMode.EXCLUSIVE_PROCESS)

    async def _limit(self, target: MpsTarget) -> None:
        await self._command(target.key, f"set_default_active_thread_percentage {target.thread_percent}")
        if target.memory_limit_mib:
            limit = f"set_default_device_pinned_mem_limit 0 {target.memory_limit_mib}M"
            await self._command(target.key, limit)

    async def _end(self, key: str, record: DaemonRecord, *, asked: bool) -> None:
        if asked:
            await self._command(key, "quit")
        if not asked or not await gone(record.pid, record.started, self._settings.start_s):
            await end(record.pid, record.started, self._settings.answer_s)
        self._log.info("mps_daemon_ended", gpu=record.target.gpu, key=key, asked=asked)

    async def _forget(self, key: str, record: DaemonRecord | None, gpu: GpuFacts | None) -> None:
        """Restore the compute mode and remove what is left of a daemon."""
        uncut = gpu is not None and (gpu.mig is None or not gpu.mig.current)
        if record is not None and record.former_mode and gpu is not None and uncut:
            await self._driver.set_compute_mode(gpu.uuid, ComputeMode(record.former_mode))
        folder = self._folder(key)
        for name in ("pipe", "log"):
            shutil.rmtree(folder / name, ignore_errors=True)
        with contextlib.suppress(OSError):
            (folder / _RECORD).unlink(missing_ok=True)
            folder.rmdir()
        for memory in (self._silent, self._starts, self._started_at, self._reasons):
            memory.pop(key, None)

    async def _command(self, key: str, command: str) -> str:
        return await ran((self._settings.program,), f"{command}\n", self._env(key), self._settings.answer_s)

    # Files

    def _folder(self, key: str) -> Path:
        return self._settings.root / key

    def _env(self, key: str) -> dict[str, str]:
        folder = self._folder(key)
        return {
            **os.environ,
            "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
        }

    def _read(self, key: str) -> DaemonRecord | None:
        try:
            return msgspec.json.decode((self._folder(key) / _RECORD).read_bytes(), type=DaemonRecord)
        except (OSError, msgspec.DecodeError):
            return None

    def _write(self, record: DaemonRecord) -> None:
        folder = self._folder(record.target.key)
        path = folder / _RECORD
        try:
            for name in ("pipe", "log"):
                (folder / name).mkdir(parents=True, exist_ok=True)
            new = path.with_suffix(".new")
            new.write_bytes(msgspec.json.encode(record))
            new.replace(path)
        except OSError as error:
            raise Unavailable(str(path), found=error.strerror or "an error", wanted="a folder to write to") from error


def _tail(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[-_LOG_TAIL:].strip() or "it said nothing"
    except OSError:
        return "its log cannot be read"
