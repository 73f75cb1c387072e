"""Reboots the node, and records that on disk, because a reboot ends the agent."""

import os
from pathlib import Path

from tessera.agent.nodefiles import write_through
from tessera.agent.sharing.detachedprocesses import ran
from tessera.errors import Unavailable

__all__ = ["RebootRecord", "reboot"]

_DEADLINE_S = 60.0
"""Timeout of the command; the reboot itself may begin before or after."""
_MOST_BYTES = 4096


class RebootRecord:
    """The configuration for which a reboot was requested; the file exists until that is settled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def holds(self, name: str) -> bool:
        """Return whether a reboot was requested for this configuration; also where the file cannot be read."""
        try:
            with self._path.open("rb") as file:
                return file.read(_MOST_BYTES) == name.encode()
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def write(self, name: str) -> None:
        """Record that a reboot is requested for a configuration.

        Raises:
            Unavailable: it cannot be recorded.

        """
        try:
            write_through(self._path, name.encode())
        except OSError as error:
            raise Unavailable(
                str(self._path),
                found=error.strerror or type(error).__name__,
                hint="name a folder that this process may write to; else the node might reboot again and again",
            ) from error

    def forget(self) -> None:
        """Remove the file; one that cannot be removed only prevents a reboot."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError:
            return


async def reboot(command: tuple[str, ...], *, deadline_s: float = _DEADLINE_S) -> None:
    """Run the command that reboots the node: a program and its arguments, without a shell.

    Raises:
        Unavailable: it cannot be run, fails, or does not end in time.

    """
    await ran(command, "", os.environ, deadline_s, session=True)
