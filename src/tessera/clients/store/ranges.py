"""Reads a range over HTTP, and checks that the answer is that range of the listed object."""

import contextlib
from collections.abc import Iterator, Mapping

from tessera.clients.store.http1 import Endpoint, Head, Response
from tessera.clients.store.protocol import Changed, Refused, Temporary
from tessera.core.storage.models.revisions import StoredObject

__all__ = ["check_range", "condition", "read_range"]

_PARTIAL, _PRECONDITION_FAILED, _LEAST_REDIRECT = 206, 412, 300
_DISCARDED = 2**20


def condition(found: StoredObject, start: int, stop: int) -> dict[str, str]:
    """Return the headers that request a range of this version of the object."""
    headers = {"Accept-Encoding": "identity"}
    if found.ranges and (start, stop) != (0, found.size):
        headers["Range"] = f"bytes={start}-{stop - 1}"
    if found.etag and not found.etag.startswith(("W/", "time:")):
        headers["If-Match"] = f'"{found.etag}"'
    return headers


@contextlib.contextmanager
def read_range(
    endpoint: Endpoint, target: str, headers: Mapping[str, str], found: StoredObject, bounds: tuple[int, int]
) -> Iterator[Response]:
    """Open a range; preceding bytes are skipped if the server sends the whole object.

    Raises:
        Changed: another size or ETag, or the server says so.

    """
    start, stop = bounds
    try:
        with endpoint.request("GET", target, headers) as response:
            partial = check_range(response.head, found, start, stop)
            if not partial and start:
                _discard(response, start)
            yield response
    except Refused as error:
        if error.status == _PRECONDITION_FAILED:
            raise Changed("the object has changed") from error
        raise


def _discard(response: Response, size: int) -> None:
    buffer = memoryview(bytearray(min(size, _DISCARDED)))
    while size:
        count = response.readinto(buffer[:size])
        if count == 0:
            raise Temporary("the body ended too early")
        size -= count


def check_range(response: Head, found: StoredObject, start: int, stop: int) -> bool:
    """Return whether a response has a part of the listed object; it has all of it otherwise.

    Raises:
        Changed: another object, or another part of it.
        Refused: it leads elsewhere.

    """
    if response.status >= _LEAST_REDIRECT:
        raise Refused(f"status {response.status}, which leads elsewhere: {response.headers.get('location')}")
    etag = response.headers.get("etag", "").strip('"')
    if found.etag and etag and not found.etag.startswith("time:") and etag != found.etag:
        raise Changed("another ETag")
    if found.etag.startswith("time:") and f"time:{response.headers.get('last-modified')}" != found.etag:
        raise Changed("another Last-Modified")
    partial = response.status == _PARTIAL
    if partial and response.headers.get("content-range") != f"bytes {start}-{stop - 1}/{found.size}":
        raise Changed(f"range {response.headers.get('content-range')} of {found.size} bytes")
    expected = stop - start if partial else found.size
    if response.length is not None and response.length != expected:
        raise Changed(f"{response.length} bytes where {expected} are expected")
    return partial
