"""The interface of a node's local disks."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from tessera.core.storage.disks.blockdevices import ObservedDisks
from tessera.core.storage.disks.plan import DiskSpec
from tessera.core.storage.disks.steps import Step

__all__ = ["Disks"]


class Disks(Protocol):
    """The block devices of one node.

    Raises `Unsupported` if a program or a part of the kernel is missing, `Unavailable` when a program fails or
    times out; the next observation then shows how far it came.
    """

    async def observe(self, spec: DiskSpec) -> ObservedDisks:
        """Return all block devices, probed if the spec selects them, or they are arrays on selected ones.

        An unreadable disk is no error: it is returned with its problem.
        """
        ...

    async def apply(self, step: Step) -> None:
        """Do one step, and return when its result is on the disk."""
        ...

    def hold(self) -> AbstractAsyncContextManager[None]:
        """Lock the disks of this node.

        Raises:
            Conflict: another process has the lock, or a program that one started still runs.

        """
        ...
