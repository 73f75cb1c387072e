"""A server on the loopback that answers what a test says, byte by byte."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec


class Asked(msgspec.Struct, frozen=True):
    """A request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


Play = Callable[[Asked], Awaitable[bytes | None] | bytes | None]
"""Returns the bytes to answer; None ends the connection without any."""


class Server:
    """Counts connections and keeps what it was asked."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self.connections = 0
        self.requested: list[Asked] = []
        self.port = 0
        self.waits = False
        """Whether connections stay open after answers that do not say where they end."""
        self.hang_up_after_s = 0.0
        """When connections end after such an answer, if not at once."""
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def hang_up(self) -> None:
        """End every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().strip().split("\r\n")
                method, target, _ = first.split(" ")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                requested = Asked(method, target, headers, body)
                self.requested.append(requested)
                answer = self._play(requested)
                if isinstance(answer, Awaitable):
                    answer = await answer
                if answer is None:
                    return
                writer.write(answer)
                await writer.drain()
                if self.hang_up_after_s:
                    asyncio.get_running_loop().call_later(self.hang_up_after_s, self.hang_up)
                if not self.waits and b"content-length" not in answer.lower() and b"chunked" not in answer.lower():
                    return
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()
            self._writers.discard(writer)


@asynccontextmanager
async def serving(play: Play) -> AsyncIterator[Server]:
    server = Server(play)
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        server.port = listening.sockets[0].getsockname()[1]
        yield server
        server.hang_up()


def answer(body: bytes = b"{}", status: str = "200 OK", content_type: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def chunked(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    chunks = b"".join(f"{len(piece):x};note=1\r\n".encode() + piece + b"\r\n" for piece in pieces)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + end
