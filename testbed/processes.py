"""Processes that outlive the command that started them: started with a pid file, found again, stopped by pid alone.

A pid file holds the process id and when the process started, so that a number given to another process meanwhile is not
taken for ours.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from tessera.errors import Unavailable

__all__ = ["Process", "Processes", "find_process", "sharing_mounts", "until"]

_POLL_S = 0.05
_STARTED_FIELD = 19
"""`starttime` counted from the field after the program's name. Source: proc(5), /proc/pid/stat."""
_PARENT_FIELD = 1
_STATE_FIELD = 0
_PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024
_TAIL_LINES = 8


class Process(msgspec.Struct, frozen=True):
    """A process of this machine, told from a later one with the same number by when it started."""

    pid: int
    started: int
    """Clock ticks since the machine started."""

    @property
    def alive(self) -> bool:
        """Whether it still runs; one that has ended and is not yet reaped does not."""
        fields = _stat(self.pid)
        return bool(fields) and int(fields[_STARTED_FIELD]) == self.started and fields[_STATE_FIELD] not in "ZX"

    @property
    def parent(self) -> "Process | None":
        """The process that started it, or took it in; None when it has ended."""
        fields = _stat(self.pid)
        return find_process(int(fields[_PARENT_FIELD])) if fields else None

    @property
    def memory_mib(self) -> int:
        """Its resident memory; 0 when it has ended."""
        try:
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE_KIB // 1024
        except (OSError, IndexError):
            return 0

    @property
    def inside_pid(self) -> int:
        """Its number as the processes of its own namespace see it."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens when it has ended."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):  # ended since
                os.kill(self.pid, number)


def sharing_mounts(process: Process) -> tuple[Process, ...]:
    """Return every process that sees the same mounts as this one, itself too."""
    desired = _mounts(process.pid)
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    found = (find_process(pid) for pid in pids if desired and _mounts(pid) == desired)
    return tuple(one for one in found if one)


def _mounts(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/mnt").readlink())
    except OSError:
        return ""


def find_process(pid: int) -> Process | None:
    """Return the process that has this number now; None when there is none."""
    fields = _stat(pid)
    return Process(pid, int(fields[_STARTED_FIELD])) if fields else None


def until(
    what: str, ready: Callable[[], bool], *, timeout_s: float, found: Callable[[], str] = lambda: "not yet"
) -> None:
    """Return when `ready` says so.

    Raises:
        Unavailable: it did not within `timeout_s`; `found` tells what was there instead.

    """
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            raise Unavailable(what, found=f"not ready within {timeout_s:g} s: {found()}", hint="see its log")
        time.sleep(_POLL_S)


class Processes:
    """The processes of one run folder: `pids/NAME.pid` and `logs/NAME.log`."""

    def __init__(self, folder: Path) -> None:
        self._pids = folder / "pids"
        self._logs = folder / "logs"

    def names(self) -> tuple[str, ...]:
        """Return what was started and not stopped, in order of start."""
        return tuple(path.stem for path in sorted(self._pids.glob("*.pid"), key=lambda path: path.stat().st_mtime_ns))

    def get(self, name: str) -> Process | None:
        """Return a process that runs; None when it was not started or has ended."""
        process = self._recorded(name)
        return process if process is not None and process.alive else None

    def _recorded(self, name: str) -> Process | None:
        """Return the process that a pid file names, also when it has ended."""
        try:
            pid, started = map(int, (self._pids / f"{name}.pid").read_text().split())
        except (OSError, ValueError):
            return None
        return Process(pid, started)

    def log(self, name: str) -> Path:
        """Return where a process writes what it says."""
        return self._logs / f"{name}.log"

    def last_words(self, name: str) -> str:
        """Return the end of what a process wrote, for an error."""
        try:
            lines = self.log(name).read_text(errors="replace").splitlines()
        except OSError:
            return "nothing"
        return f"{self.log(name)} ends: " + "\n".join(lines[-_TAIL_LINES:])

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        inside: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> Process:
        """Start a process in its own session; the one that runs under this name is returned when there is one.

        Args:
            name: what its pid file and its log are called.
            command: the program and its arguments.
            inside: a program before it that runs it as its child, such as nsenter; the child's pid is what counts.
            environment: the whole environment; the caller's where it is left out.
            pass_fds: open files that it inherits.

        Raises:
            Unavailable: it ended at once; tells the end of its log.

        """
        running = self.get(name)
        if running:
            return running
        self.forget(name)
        self._pids.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        # The shell ends at once, so nobody in this process has to wait for the one it started.
        shell = ["sh", "-c", 'log=$1; shift; setsid "$@" </dev/null >>"$log" 2>&1 & echo $!', "sh", str(self.log(name))]
        started = subprocess.run(
            [*shell, *inside, *command],
            stdout=subprocess.PIPE,
            check=True,
            text=True,
            pass_fds=pass_fds,
            env=environment,
        )
        first = int(started.stdout)
        process = self._child(name, first) if inside else find_process(first)
        if process is None:
            raise self._ended(name)
        (self._pids / f"{name}.pid").write_text(f"{process.pid} {process.started}\n")
        return process

    def pause(self, name: str) -> None:
        """Stop a process from running without ending it; nothing happens when it has ended."""
        process = self.get(name)
        if process:
            process.signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Let a process run on that was paused."""
        self._resume_parent(name)
        process = self.get(name)
        if process:
            process.signal(signal.SIGCONT)

    def resume_parents(self) -> None:
        """Let all processes' parents run on, also of those that have ended."""
        for name in self.names():
            self._resume_parent(name)

    def _resume_parent(self, name: str) -> None:
        """Let the parent of a process run on, also of one that has ended.

        A parent that entered namespaces for it stops with it (nsenter does). One that is stopped buries no child, and
        namespaces end only when all in them are buried.
        """
        process = self._recorded(name)
        if process is not None and find_process(process.pid) == process:
            parent = process.parent
            if parent is not None and parent.pid > 1:
                parent.signal(signal.SIGCONT)

    def forget(self, name: str) -> None:
        """Remove the pid file of a process that has ended; nobody else would have its parent bury it."""
        self._resume_parent(name)
        (self._pids / f"{name}.pid").unlink(missing_ok=True)

    def stop(self, name: str, *, number: signal.Signals = signal.SIGTERM, timeout_s: float = 20) -> None:
        """Stop a process and wait until it is gone; past `timeout_s` it is killed. Nothing happens when it has ended.

        One that was paused runs on, to hear the signal.

        Raises:
            Unavailable: it was killed and is still there.

        """
        process = self.get(name)
        if process:
            process.signal(number)
            self.resume(name)
            try:
                until(f"stop of {name}", lambda: not process.alive, timeout_s=timeout_s)
            except Unavailable:
                process.signal(signal.SIGKILL)
                until(f"end of {name}, which was killed", lambda: not process.alive, timeout_s=timeout_s)
        self.forget(name)

    def _child(self, name: str, parent: int) -> Process | None:
        """Return the child that a program such as nsenter made; None when that ended."""
        found: list[Process] = []

        def there() -> bool:
            found.extend(_children(parent))
            return bool(found) or not _running(parent)

        until(f"start of {name}", there, timeout_s=10, found=lambda: self.last_words(name))
        return found[0] if found else None

    def _ended(self, name: str) -> Unavailable:
        return Unavailable(f"start of {name}", found=f"it ended; {self.last_words(name)}", hint="see its log")


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat behind the program's name, which may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _running(pid: int) -> bool:
    process = find_process(pid)
    return process is not None and process.alive


def _children(parent: int) -> list[Process]:
    children = []
    for path in Path("/proc").glob("[0-9]*"):
        fields = _stat(int(path.name))
        if fields and int(fields[_PARENT_FIELD]) == parent:
            children.append(Process(int(path.name), int(fields[_STARTED_FIELD])))
    return children
