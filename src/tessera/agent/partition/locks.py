"""Locks of a node: one process at a time changes the layout of a GPU, and one is the node's agent."""

import asyncio
import contextlib
import fcntl
import os
import shlex
import socket
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from tessera.agent.nodefiles import UNREADABLE
from tessera.errors import Conflict
from tessera.log import Logger

__all__ = ["NodeLocks"]

_POLL_S = 0.2
_LONGEST_COMMAND = 200


class _Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The process with a lock, from the file."""

    pid: int
    host: str
    command: str
    since: str

    def __str__(self) -> str:
        """Return the process for messages; a process id of another container means nothing here."""
        where = "" if self.host == socket.gethostname() else f" on {self.host}"
        return f"`{self.command}` (pid {self.pid}{where}, since {self.since})"


class NodeLocks:
    """The locks of a node: one for each GPU, and one for its agent.

    Args:
        folder: of the lock files, the same for all processes of the node; created if missing.

    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.problem = ""
        """Why GPUs cannot be locked, for people; empty where they can."""

    @contextlib.asynccontextmanager
    async def hold(self, gpu: str, by_s: float) -> AsyncIterator[None]:
        """Lock a GPU (UUID), waiting for another process until `by_s` in loop time.

        Where locking is impossible, as on a read-only disk, nothing is locked, and `problem` says why.

        Raises:
            Conflict: another process changes its layout; the message names it.

        """
        loop = asyncio.get_running_loop()
        while isinstance(descriptor := self._take(gpu), str):
            if loop.time() >= by_s:
                raise Conflict(
                    f"GPU {gpu}",
                    found=f"{descriptor} is changing its layout",
                    hint="run the command again when it has ended",
                )
            await asyncio.sleep(_POLL_S)
        try:
            yield
        finally:
            _release(descriptor)

    @contextlib.asynccontextmanager
    async def hold_agent(self, plugins: Path, log: Logger) -> AsyncIterator[None]:
        """Become the only agent of the node; waits for another to end.

        Args:
            plugins: the kubelet's folder of device plugins, which agents with other state folders share.
            log: for the other agent's name, or why there can be no lock.

        """
        with contextlib.ExitStack() as stack:
            reported = False
            for take in (partial(self._take, "agent"), partial(self._take_folder, plugins)):
                while isinstance(descriptor := take(), str):
                    if not reported:
                        log.error("another_agent_runs", reason=descriptor)
                    reported = True
                    await asyncio.sleep(_POLL_S)
                stack.callback(_release, descriptor)
            if self.problem:
                log.error("agent_not_locked", reason=self.problem)
            yield

    def _take_folder(self, folder: Path) -> int | str | None:
        """Like `_take`, with a lock on a folder itself: it leaves no file there."""
        try:
            number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            self.problem = f"{folder}: {error.strerror}, so nothing keeps another agent from using the same kubelet"
            return None
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(number)
            return f"another process, which has locked {folder}: an agent with another --state-dir"
        return number

    def _take(self, name: str) -> int | str | None:
        """Return the locked file; the owner, in words; None where there can be no lock."""
        path = self._folder / f"{name}.lock"
        try:
            # Only its owner may open it: a reader of a file may lock it.
            self._folder.mkdir(parents=True, exist_ok=True)
            number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self.problem = f"{path}: {error.strerror}, so nothing keeps other processes from changing the same GPU"
            return None
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _read(path)
            os.close(number)
            return holder
        with contextlib.suppress(OSError):  # the lock counts, even if a full disk loses its owner's name
            os.ftruncate(number, 0)
            os.pwrite(number, msgspec.json.encode(_this_process()), 0)
        return number


def _release(descriptor: int | None) -> None:
    if descriptor is not None:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
        os.close(descriptor)


def _this_process() -> _Holder:
    command = f"{Path(sys.argv[0]).name} {shlex.join(sys.argv[1:])}".strip()
    return _Holder(
        pid=os.getpid(),
        host=socket.gethostname(),
        command=command[:_LONGEST_COMMAND],
        since=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _read(path: Path) -> str:
    try:
        return str(msgspec.json.decode(path.read_bytes(), type=_Holder))
    except UNREADABLE:
        return "another process"
