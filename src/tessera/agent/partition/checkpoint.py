"""The checkpoint on disk: the node's MIG layout, restored after a reboot."""

import asyncio
from pathlib import Path

from tessera.agent.nodefiles import read_file, write_through
from tessera.api.tessera.node import checkpoints
from tessera.core.node.layouts import Recorded
from tessera.errors import InvalidInput, Unavailable

__all__ = ["Checkpoint"]


class Checkpoint:
    """A checkpoint file; its folder is created if missing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[Recorded, ...]:
        """Return the checkpoint; nothing where there is no file.

        Raises:
            InvalidInput: the file cannot be read, or is not a checkpoint; the fix is to move it away.

        """
        try:
            text = read_file(self.path)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise InvalidInput(
                str(self.path), found=error.strerror or type(error).__name__, hint="name a checkpoint that can be read"
            ) from error
        return checkpoints.read(str(self.path), text)

    async def write(self, recorded: tuple[Recorded, ...]) -> None:
        """Replace the file atomically; after a crash it has either its former content or all of this.

        Raises:
            Unavailable: it cannot be written.

        """
        await asyncio.to_thread(self.replace, recorded)

    def replace(self, recorded: tuple[Recorded, ...]) -> None:
        """Write in a thread."""
        try:
            write_through(self.path, checkpoints.write(recorded))
        except OSError as error:
            raise Unavailable(
                str(self.path),
                found=error.strerror or type(error).__name__,
                hint="name a folder that this process may write to; without it a reboot loses the MIG layout",
            ) from error
