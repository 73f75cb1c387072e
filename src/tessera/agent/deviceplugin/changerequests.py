"""What GPUs must become before a container starts: the device plugins ask for it, the agent's own loop carries it out.

So calls go down only: `Allocate` waits for an answer, and knows nothing of who changes layouts and what that takes.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from tessera.core.cluster.snapshot import Share
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.mig import Placement

__all__ = ["ChangeRequest", "ChangeRequests", "CreateInstance", "DisableMig", "Enforce"]


class CreateInstance(msgspec.Struct, frozen=True):
    """Make a MIG instance exist."""

    gpu: str
    """UUID."""
    placement: Placement


class DisableMig(msgspec.Struct, frozen=True):
    """Let MIG be off on a GPU, of which an amount or all is assigned."""

    gpu: str
    """UUID."""


class Enforce(msgspec.Struct, frozen=True):
    """Let what holds shares to their size be in force."""

    shares: tuple[Share, ...]


ChangeRequest = CreateInstance | DisableMig | Enforce


class ChangeRequests:
    """Requests for containers that are about to start, and their answers."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[ChangeRequest, asyncio.Future[Inventory]]] = asyncio.Queue()

    async def change(self, request: ChangeRequest) -> Inventory:
        """Return what the driver shows once a request is carried out, or raise why it was not.

        It is carried out to its end, also when whoever asked waits no longer: the kubelet gives up after 30 s, and a
        GPU whose layout is being changed must not be left so.
        """
        answer: asyncio.Future[Inventory] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((request, answer))
        return await answer

    async def serve(self, carry_out: Callable[[ChangeRequest], Awaitable[Inventory]]) -> None:
        """Carry out requests as they come, beside each other, for ever; who waits for one that is cut off is too."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(_answer(*await self._queue.get(), carry_out))


async def _answer(
    request: ChangeRequest,
    answer: asyncio.Future[Inventory],
    carry_out: Callable[[ChangeRequest], Awaitable[Inventory]],
) -> None:
    try:
        inventory = await carry_out(request)
    except asyncio.CancelledError:
        answer.cancel()
        raise
    except Exception as error:  # noqa: BLE001 - raised to whoever waits, whatever it is
        if not answer.done():
            answer.set_exception(error)
    else:
        if not answer.done():
            answer.set_result(inventory)
