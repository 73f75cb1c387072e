"""What Tessera asks of a node's local disks."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from tessera.core.storage.disks.blockdevices import ObservedDisks
from tessera.core.storage.disks.plan import DiskSpec
from tessera.core.storage.disks.steps import Step

__all__ = ["Disks"]


class Disks(Protocol):
    """The block devices of one node.

    Raised are `Unsupported` where a program or a part of the kernel is missing, `Unavailable` when a program fails or
    does not end in time, and then the next observation shows how far it came.
    """

    async def observe(self, spec: DiskSpec) -> ObservedDisks:
        """Return all block devices as they are now; the content of those that the spec selects, and of arrays on them.

        A disk that cannot be read is no error: it is returned with its problem.
        """
        ...

    async def apply(self, step: Step) -> None:
        """Do one step, and return when its result is on the disk."""
        ...

    def hold(self) -> AbstractAsyncContextManager[None]:
        """Be the only one on this node who changes disks.

        Raises:
            Conflict: another process does, or a program that one started still runs.

        """
        ...
