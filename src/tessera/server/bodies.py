"""The bodies of requests, read with a limit on each and on all that are being read."""

import asyncio
import math

from starlette.requests import Request

from tessera.errors import InvalidInput, Unavailable

__all__ = ["BodyReader", "BodyTooLarge"]


class BodyTooLarge(InvalidInput):
    """A body above the limit."""


class BodyReader:
    """Reads bodies of requests, with a limit on the memory of each and of all.

    Where all together would exceed theirs, the largest is refused: a client that sends many large bodies loses its own,
    and small ones of others are read.

    Args:
        each_bytes: of one body.
        all_bytes: of all that are being read.

    """

    def __init__(self, each_bytes: int, all_bytes: float = math.inf) -> None:
        self._each_bytes = each_bytes
        self._all_bytes = all_bytes
        self._sizes = dict[asyncio.Timeout, int]()
        """Bytes read of each body, oldest first; not of those that are refused."""

    async def read(self, request: Request) -> bytes:
        """Return the body of a request.

        Raises:
            BodyTooLarge: it is above the limit.
            Unavailable: all are, and it was the largest.

        """
        parts, size, turn = list[bytes](), 0, asyncio.timeout(None)
        self._sizes[turn] = 0
        try:
            async with turn:
                async for part in request.stream():
                    size += len(part)
                    if size > self._each_bytes:
                        raise BodyTooLarge(
                            f"request {request.url.path}",
                            found=f"its body has more than {self._each_bytes} bytes",
                            hint="send less, or raise --body-mib",
                        )
                    self._count(turn, size)
                    parts.append(part)
        except TimeoutError as error:
            found = f"bodies of more than {self._all_bytes} bytes are sent at once, and this one is the largest"
            raise Unavailable(f"request {request.url.path}", found=found, hint="try again") from error
        finally:
            self._sizes.pop(turn, None)
        return b"".join(parts)

    def _count(self, turn: asyncio.Timeout, size: int) -> None:
        """Note the size of a body; where all have too much, the largest ends.

        Raises:
            TimeoutError: it is this one, or this one was it before.

        """
        if turn in self._sizes:
            self._sizes[turn] = size
        if sum(self._sizes.values()) > self._all_bytes:
            largest = max(self._sizes, key=self._sizes.__getitem__)
            del self._sizes[largest]
            largest.reschedule(0)  # its task is canceled before anything more is received
        if turn not in self._sizes:
            raise TimeoutError
