"""Carries connections from a port of the machine's loopback to an address inside a network namespace.

Run inside the namespace with a listening socket that was opened outside: `python -m testbed.relay FD HOST PORT`.
A socket belongs to the namespace in which it was opened, wherever the process that uses it runs.
"""

import asyncio
import contextlib
import socket
import sys

_CHUNK = 1 << 16


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry one direction until its sender ends it."""
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    with contextlib.suppress(OSError):
        if writer.can_write_eof():
            writer.write_eof()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    with contextlib.suppress(OSError), contextlib.closing(writer):
        far_reader, far_writer = await asyncio.open_connection(host, port)
        with contextlib.closing(far_writer):
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))


async def _serve(listener: socket.socket, host: str, port: int) -> None:
    server = await asyncio.start_server(lambda reader, writer: _carry(reader, writer, host, port), sock=listener)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], int(sys.argv[3])))
