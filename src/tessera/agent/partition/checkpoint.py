"""The checkpoint on disk: the node's MIG layout, restored after a reboot."""

import asyncio
from pathlib import Path

from tessera.agent.nodefiles import read_file, write_through
from tessera.api.tessera import checkpoints
from tessera.core.node.layouts import Recorded
from tessera.errors import InvalidInput, Unavailable

__all__ = ["Checkpoint"]


class Checkpoint:
    """A checkpoint file; its folder is made where it is missing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[Recorded, ...]:
        """Return what is written down; nothing where there is no file.

        Raises:
            InvalidInput: the file cannot be read, or is no checkpoint; it says to move it away.

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
        """Replace the file as a whole; after a crash it holds either what it held before or all of this.

        Raises:
            Unavailable: it cannot be written.

        """
        await asyncio.to_thread(self.replace, recorded)

    def replace(self, recorded: tuple[Recorded, ...]) -> None:
        """Do what `write` does, while the caller waits."""
        try:
            write_through(self.path, checkpoints.write(recorded))
        except OSError as error:
            raise Unavailable(
                str(self.path),
                found=error.strerror or type(error).__name__,
                hint="name a folder that this process may write to; without it a reboot loses the MIG layout",
            ) from error
