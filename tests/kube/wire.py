"""A wire between a client and the API server that a test can cut and mend."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


class Wire:
    """Carries connections to a port of the loopback, while it is whole."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connections: set[asyncio.Task[None]] = set()
        self.whole = True

    def cut(self) -> None:
        """Break every connection, and carry no new one."""
        self.whole = False
        for each in self._connections:
            each.cancel()

    def mend(self) -> None:
        self.whole = True

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if self.whole:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
                with contextlib.closing(far_writer):
                    await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        except (asyncio.CancelledError, OSError):
            writer.transport.abort()
        finally:
            writer.close()
            self._connections.discard(task)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(1 << 16):
        writer.write(chunk)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def wired(kubeconfig: Path, folder: Path) -> AsyncIterator[tuple[Wire, Path]]:
    """Give a wire to the server of a kubeconfig, and the kubeconfig that leads through it."""
    server, wire = _server(kubeconfig)
    async with await asyncio.start_server(wire.carry, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        path = folder / "wired.kubeconfig"
        _redirect(kubeconfig, path, server, f"https://127.0.0.1:{port}")
        yield wire, path
        wire.cut()


def _server(kubeconfig: Path) -> tuple[str, Wire]:
    found = re.search(r"https://127\.0\.0\.1:(\d+)", kubeconfig.read_text())
    assert found is not None
    return found[0], Wire(int(found[1]))


def _redirect(kubeconfig: Path, copy: Path, old: str, new: str) -> None:
    copy.write_text(kubeconfig.read_text().replace(old, new))


@asynccontextmanager
async def proxying() -> AsyncIterator[tuple[str, list[str]]]:
    """Give the address of an HTTP proxy that carries what it is asked to CONNECT, and where it was asked to."""
    asked: list[str] = []

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, _ = head.split(" ", 2)
        assert method == "CONNECT"
        asked.append(target)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await Wire(int(target.rpartition(":")[2])).carry(reader, writer)

    async with await asyncio.start_server(carry, "127.0.0.1", 0) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", asked
