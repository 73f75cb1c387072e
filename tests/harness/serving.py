"""Servers and loops that run while a test does."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import HTTPServer
from typing import Any, TypeVar

S = TypeVar("S", bound=HTTPServer)


@contextmanager
def served(server: S) -> Iterator[S]:
    """Serve in a thread of its own, on the address that the server has."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def free_port() -> int:
    """Return a port of the loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def until_listening(port: int, name: str, within_s: float) -> None:
    """Wait until a program accepts connections on the loopback."""
    until = time.monotonic() + within_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < until, f"{name} does not start"
            time.sleep(0.05)
        else:
            return


@asynccontextmanager
async def running(*loops: Coroutine[Any, Any, Any]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Run loops that end only when they are canceled."""
    tasks = [asyncio.create_task(each) for each in loops]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
