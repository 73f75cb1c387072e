"""Compares revisions on the disk with their digests in the background: one at a time, at a limited rate."""

import asyncio
import threading
from collections.abc import Callable

from tessera.agent.storage.modelcache.disk import ModelDisk
from tessera.agent.storage.models.chunkreads import PacedReads, ReadsEnded
from tessera.core.storage.models.cacheplan import VerifyRevision
from tessera.errors import TesseraError
from tessera.log import Logger

__all__ = ["DEFAULT_BYTES_PER_S", "Rechecks"]

DEFAULT_BYTES_PER_S = 64 * 2**20
"""A terabyte in five hours, by a few percent of a local disk and of a core."""


class Rechecks:
    """The background comparisons of a node.

    Args:
        disk: the models' folder.
        bytes_per_second: how fast the disk is read.
        wake: called when one has ended.
        log: for damage.

    """

    def __init__(
        self,
        disk: ModelDisk,
        bytes_per_second: float,
        *,
        wake: Callable[[], None],
        log: Logger,
    ) -> None:
        self._disk = disk
        self._rate = bytes_per_second
        self._wake = wake
        self._log = log
        self._stop = threading.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether one is running."""
        return self._task is not None and not self._task.done()

    def begin(self, step: VerifyRevision) -> None:
        """Start one in the background, unless one is running."""
        if not self.is_busy:
            self._task = asyncio.create_task(self._run(step.model, step.revision))

    async def _run(self, model: str, revision: str) -> None:
        reads = PacedReads(self._rate, self._stop)
        try:
            damaged = await asyncio.to_thread(self._disk.verify, model, revision, reads)
        except ReadsEnded:
            return
        except (TesseraError, OSError) as error:  # it was removed meanwhile, or its manifest is broken
            self._log.warning("model_not_verified", model=model, revision=revision[:12], reason=str(error))
        else:
            if damaged:
                self._log.error("model_damaged", model=model, revision=revision[:12], files=sorted(damaged)[:10])
            else:
                self._log.info("model_verified", model=model, revision=revision[:12])
        self._wake()

    async def close(self) -> None:
        """End at once."""
        self._stop.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
