"""GPU changes needed before a container starts: requested by the device plugins, made by the agent's own loop.

So calls go down only: `Allocate` waits for an answer and does not know who changes layouts.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from tessera.core.cluster.snapshot import Share
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.mig import Placement

__all__ = ["ChangeRequest", "ChangeRequests", "CreateInstance", "DisableMig", "Enforce"]


class CreateInstance(msgspec.Struct, frozen=True):
    """Create a MIG instance."""

    gpu: str
    """UUID."""
    placement: Placement


class DisableMig(msgspec.Struct, frozen=True):
    """Switch MIG off on a GPU that is assigned as a whole or by an amount of memory."""

    gpu: str
    """UUID."""


class Enforce(msgspec.Struct, frozen=True):
    """Enforce the limits of shares."""

    shares: tuple[Share, ...]


ChangeRequest = CreateInstance | DisableMig | Enforce


class ChangeRequests:
    """Requests of containers that are about to start, and their answers."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[ChangeRequest, asyncio.Future[Inventory]]] = asyncio.Queue()

    async def change(self, request: ChangeRequest) -> Inventory:
        """Return the inventory once a request is done, or raise why it was not.

        It is completed even if the caller no longer waits: the kubelet gives up after 30 s, and a
        half-changed layout must not be left behind.
        """
        answer: asyncio.Future[Inventory] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((request, answer))
        return await answer

    async def serve(self, execute: Callable[[ChangeRequest], Awaitable[Inventory]]) -> None:
        """Make requests concurrently, until canceled; their callers are canceled too."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(_answer(*await self._queue.get(), execute))


async def _answer(
    request: ChangeRequest,
    answer: asyncio.Future[Inventory],
    execute: Callable[[ChangeRequest], Awaitable[Inventory]],
) -> None:
    try:
        inventory = await execute(request)
    except asyncio.CancelledError:
        answer.cancel()
        raise
    except Exception as error:  # noqa: BLE001 - raised to whoever waits, whatever it is
        if not answer.done():
            answer.set_exception(error)
    else:
        if not answer.done():
            answer.set_result(inventory)
