"""The MPS control daemons of a node on disk and in `/proc`, and the control protocol.

ROOT/KEY/daemon.json    what runs, and the compute mode to restore
ROOT/KEY/pipe           CUDA_MPS_PIPE_DIRECTORY, mounted into containers
ROOT/KEY/log            CUDA_MPS_LOG_DIRECTORY; daemon.log is what the daemon prints
"""

import contextlib
import os
import shutil
from pathlib import Path

import msgspec

from tessera.agent.nodefiles import write_through
from tessera.agent.sharing.detachedprocesses import belongs, identity, launch, ran, same_files, variable
from tessera.api.tessera.node.settingsfiles import read_daemon, write_daemon
from tessera.core.cluster.mpstargets import MpsTarget
from tessera.core.gpu.inventory import ComputeMode
from tessera.core.node.doctor import Daemon
from tessera.core.node.mpslifecycle import DaemonRecord, unlimited
from tessera.errors import InvalidInput, Unavailable

__all__ = ["DaemonStatus", "MpsDaemons", "MpsSettings", "recorded_daemons", "running"]

_RECORD = "daemon.json"
_LOG_TAIL = 300
"""Characters of a daemon's log quoted in an error."""


class MpsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Paths and timeouts of daemons."""

    program: str = "nvidia-cuda-mps-control"
    root: Path = Path("/run/tessera/mps")
    answer_s: float = 5.0
    """Longest wait for the answer to one command."""
    start_s: float = 10.0
    """Longest wait for a daemon to answer after its start, and to end after a request to."""


class DaemonStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What was observed of one daemon."""

    record: DaemonRecord | None
    alive: bool = False
    clients: int | None = None
    """None where it does not answer."""
    processes: frozenset[int] = frozenset()
    """Process ids of its servers and clients."""
    problem: str = ""
    """Why it does not serve; empty where it does."""
    foreign: bool = False
    """Whether it has other files than this process: those of the agent's former container."""


def recorded_daemons(root: Path) -> frozenset[str]:
    """Return the keys of the daemons on record below a folder, by this agent or one before."""
    return frozenset(path.parent.name for path in root.glob(f"*/{_RECORD}"))


class MpsDaemons:
    """Finds daemons by their records, and sends them commands."""

    def __init__(self, settings: MpsSettings) -> None:
        self.settings = settings

    @property
    def program(self) -> str:
        """The path of the control program; empty where it is not on PATH."""
        return shutil.which(self.settings.program) or ""

    def unavailable(self) -> str:
        """Return why no daemon can be started on this node; empty where one can."""
        return "" if self.program else f"{self.settings.program} is not installed or not on PATH"

    def recorded(self) -> frozenset[str]:
        """Return the keys of all recorded daemons."""
        return recorded_daemons(self.settings.root)

    async def inspect(self) -> tuple[Daemon, ...]:
        """Return the recorded daemons, sorted by key; read-only."""
        found = []
        for key in sorted(self.recorded()):
            sight = await self.observe(key)
            gpu, exclusive = (sight.record.target.gpu, sight.record.target.exclusive) if sight.record else ("", False)
            found.append(
                Daemon(key=key, gpu=gpu, exclusive=exclusive, problem=sight.problem, processes=sight.processes)
            )
        return tuple(found)

    async def observe(self, key: str) -> DaemonStatus:
        """Observe a daemon."""
        record = self._found(key, self._read(key))
        if record is None:
            return DaemonStatus(record=None, problem="there is no readable record of it")
        if not running(record):
            return DaemonStatus(record=record, problem="its process has ended")
        try:
            servers = _numbers(await self.command(key, "get_server_list"))
            lists = [_numbers(await self.command(key, f"get_client_list {server}")) for server in servers]
        except Unavailable as error:
            return DaemonStatus(record=record, alive=True, problem=str(error))
        clients = [number for each in lists for number in each]
        processes = frozenset(int(number) for number in (*servers, *clients))
        foreign = not same_files(record.pid)
        return DaemonStatus(record=record, alive=True, clients=len(clients), processes=processes, foreign=foreign)

    def _found(self, key: str, record: DaemonRecord | None) -> DaemonRecord | None:
        """Return the record of the running daemon, also if its process id is missing there or it is unreadable.

        The daemon writes its process id beside its pipes, where containers can write as well.
        """
        if record is not None and running(record):
            return record
        name = Path(self.settings.program).name
        try:
            pid = int((self._folder(key) / "pipe" / f"{name}.pid").read_text())
        except (OSError, ValueError):
            return record
        if pid <= 0 or not belongs(pid, name, f"CUDA_MPS_PIPE_DIRECTORY={self._folder(key) / 'pipe'}"):
            return record
        found = _recovered(key, pid) if record is None else record
        return msgspec.structs.replace(found, pid=pid, started=identity(pid))

    async def command(self, key: str, command: str) -> str:
        """Return a daemon's answer to a command.

        Raises:
            Unavailable: it does not answer in time.

        """
        return await ran((self.settings.program,), f"{command}\n", self._env(key), self.settings.answer_s)

    async def launch(self, record: DaemonRecord) -> DaemonRecord:
        """Start the process of a daemon and return its record, which is kept on disk.

        Raises:
            Unavailable: no process could be started, or no record written.

        """
        target = record.target
        env = {**self._env(target.key), "CUDA_VISIBLE_DEVICES": target.visible}
        pid = await launch((self.settings.program, "-f"), env, self._log(target.key), self.settings.answer_s)
        record = msgspec.structs.replace(record, pid=pid, started=identity(pid))
        self.write(record)
        return record

    async def limit(self, target: MpsTarget) -> None:
        """Set the limits of future clients: of servers that run, and of later ones.

        Source: NVIDIA MPS documentation: a default is for servers that are started after it is set.

        Raises:
            Unavailable: the daemon does not answer in time.

        """
        key, memory_mib = target.key, target.memory_limit_mib
        await self.command(key, f"set_default_active_thread_percentage {target.thread_percent}")
        if memory_mib:
            await self.command(key, f"set_default_device_pinned_mem_limit 0 {memory_mib}M")
        for server in _numbers(await self.command(key, "get_server_list")):
            await self.command(key, f"set_active_thread_percentage {server} {target.thread_percent}")
            if memory_mib:
                await self.command(key, f"set_device_pinned_mem_limit {server} 0 {memory_mib}M")

    # Files

    def write(self, record: DaemonRecord) -> None:
        """Write a record to disk, and create the daemon's folders.

        Raises:
            Unavailable: the folder cannot be written to.

        """
        folder = self._folder(record.target.key)
        path = folder / _RECORD
        try:
            for name in ("pipe", "log"):
                (folder / name).mkdir(parents=True, exist_ok=True)
            write_through(path, write_daemon(record))
        except OSError as error:
            raise Unavailable(
                str(path),
                found=error.strerror or "an error",
                hint="give --mps-dir, a folder that the agent may write to",
            ) from error

    def remove(self, key: str) -> None:
        """Remove the files of a daemon."""
        folder = self._folder(key)
        for name in ("pipe", "log"):
            shutil.rmtree(folder / name, ignore_errors=True)
        with contextlib.suppress(OSError):
            (folder / _RECORD).unlink(missing_ok=True)
            folder.rmdir()

    def printed(self, key: str) -> str:
        """Return the end of a daemon's log."""
        try:
            return self._log(key).read_text(errors="replace")[-_LOG_TAIL:].strip() or "it printed nothing"
        except OSError as error:
            return f"its log cannot be read: {error.strerror}"

    def _folder(self, key: str) -> Path:
        return self.settings.root / key

    def _log(self, key: str) -> Path:
        return self._folder(key) / "log" / "daemon.log"

    def _env(self, key: str) -> dict[str, str]:
        folder = self._folder(key)
        return {
            **os.environ,
            "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
        }

    def _read(self, key: str) -> DaemonRecord | None:
        try:
            path = self._folder(key) / _RECORD
            return read_daemon(path.read_bytes(), str(path))
        except (OSError, InvalidInput):
            return None


def _recovered(key: str, pid: int) -> DaemonRecord:
    """Return a reconstructed record of a running daemon; its limits are unknown and set again."""
    visible = variable(pid, "CUDA_VISIBLE_DEVICES")
    whole = visible == key
    gpu = key if whole else key.rsplit("-", 2)[0]
    target = MpsTarget(key=key, gpu=gpu, visible=visible, exclusive=whole)
    former = ComputeMode.DEFAULT if whole else ""
    return DaemonRecord(target=unlimited(target), pid=pid, started="", former_mode=former)


def _numbers(answer: str) -> list[str]:
    """Return the process ids in an answer, one a line; other lines are text."""
    return [line.strip() for line in answer.splitlines() if line.strip().isdecimal()]


def running(record: DaemonRecord) -> bool:
    """Return whether the process of a record still runs."""
    return bool(record.started) and identity(record.pid) == record.started
