"""Channels and servers on unix sockets, and their errors as ours."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Never, TypeAlias

import grpc

from tessera.errors import Conflict, InvalidInput, TesseraError, Unavailable, Unsupported

__all__ = ["SocketIdentity", "abort", "bind", "channel", "identity", "in_our_terms", "preserved", "socket_path"]

SocketIdentity: TypeAlias = tuple[int, int, int]
"""Device and inode, which a file system may use again, and the time at which the socket was made, in ns."""
LONGEST_PATH = 107
"""Bytes of a unix socket's path, without the zero at its end. Source: Linux unix(7), `sun_path`."""
_MESSAGE_BYTES = 16 << 20
"""Source: kubernetes `pkg/kubelet/apis/podresources/constants.go`, largest message of PodResources."""
_CODES: dict[type[TesseraError], grpc.StatusCode] = {
    InvalidInput: grpc.StatusCode.INVALID_ARGUMENT,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    Conflict: grpc.StatusCode.FAILED_PRECONDITION,
    Unsupported: grpc.StatusCode.FAILED_PRECONDITION,
}


def socket_path(path: Path) -> Path:
    """Return the path if it is valid for a unix socket.

    Raises:
        InvalidInput: it is too long for the operating system.

    """
    length = len(os.fsencode(path))
    if length > LONGEST_PATH:
        raise InvalidInput(
            f"socket {path}",
            found=f"its path has {length} bytes, more than {LONGEST_PATH}",
            hint="choose a shorter folder",
        )
    return path


def identity(path: Path) -> SocketIdentity | None:
    """Return the identity of a socket at a path; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


@contextlib.contextmanager
def preserved(path: Path, *, foreign: bool) -> Iterator[None]:
    """Restore the present file at a path at the end, if it is gone and `foreign`."""
    spare = path.with_name(f".{path.name}.kept")
    if foreign:
        with contextlib.suppress(OSError):
            spare.unlink(missing_ok=True)
            os.link(path, spare)
    yield
    if foreign:
        with contextlib.suppress(OSError):
            if path.exists():
                spare.unlink(missing_ok=True)
            else:
                spare.rename(path)


def channel(path: Path) -> grpc.aio.Channel:
    """Return a channel to a unix socket.

    The authority is fixed because Go and Rust servers reject gRPC's default (grpc/grpc#34305).
    Each channel has connections of its own: a socket recreated under the same path is another server.
    """
    options = [
        ("grpc.default_authority", "localhost"),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", _MESSAGE_BYTES),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]
    return grpc.aio.insecure_channel(f"unix:{socket_path(path)}", options=options)


def bind(server: grpc.aio.Server, path: Path) -> None:
    """Bind a server that is not started yet to a unix socket; one left by an earlier server is removed.

    Raises:
        InvalidInput: the path is too long.
        Unavailable: the socket cannot be made there.

    """
    socket_path(path)
    try:
        path.unlink(missing_ok=True)
        with contextlib.suppress(RuntimeError):
            server.add_insecure_port(f"unix:{path}")
            return
        _try(path)
    except OSError as error:
        raise Unavailable(
            f"socket {path}",
            found=error.strerror or str(error),
            hint="name a folder that exists and that this user may write; in a pod, a host path without readOnly",
        ) from error


def _try(path: Path) -> None:
    """Create the socket without gRPC, which does not report why it fails."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.bind(os.fsencode(path))
    path.unlink()
    raise OSError(0, "gRPC cannot listen here, though a socket can be made")


def in_our_terms(error: grpc.aio.AioRpcError, path: Path, call: str) -> TesseraError:
    """Return a failed call as our error."""
    found = f"{call} failed, {error.code().name}: {error.details()}"
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidInput(f"socket {path}", found=found, hint="see `tessera doctor`")
    if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
        return Conflict(f"socket {path}", found=found, hint="see `tessera doctor`")
    return Unavailable(f"socket {path}", found=found, hint="call again when the kubelet runs")


async def abort(context: "grpc.aio.ServicerContext[Any, Any]", error: TesseraError) -> Never:
    """End a call with an error; its text is in the pod's events."""
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
    await context.abort(code, str(error))
