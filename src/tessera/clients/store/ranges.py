"""Reads a range over HTTP, and checks that the answer is that range of the listed object."""

import contextlib
import re
from collections.abc import Iterator, Mapping

from tessera.clients.store.http1 import Endpoint, Head, Response
from tessera.clients.store.protocol import Changed, Refused, Temporary
from tessera.core.storage.models.revisions import StoredObject
from tessera.errors import shown

__all__ = ["check_range", "condition", "read_range"]

_OK, _PARTIAL, _LEAST_REDIRECT, _PRECONDITION_FAILED = 200, 206, 300, 412
_ETAG = re.compile(r"[\x21\x23-\x7e\x80-\xff]+")
"""As RFC 9110 has it; a header cannot carry others."""


def condition(stored: StoredObject, start: int, stop: int) -> dict[str, str]:
    """Return the headers that request a range of this version of the object."""
    headers = {"Accept-Encoding": "identity"}
    if stored.ranges and (start, stop) != (0, stored.size):
        headers["Range"] = f"bytes={start}-{stop - 1}"
    if _ETAG.fullmatch(stored.etag) and not stored.etag.startswith(("W/", "time:")):
        headers["If-Match"] = f'"{stored.etag}"'
    return headers


@contextlib.contextmanager
def read_range(
    endpoint: Endpoint, target: str, headers: Mapping[str, str], stored: StoredObject, bounds: tuple[int, int]
) -> Iterator[Response]:
    """Open a range; preceding bytes are skipped if the server sends the whole object.

    Raises:
        Changed: another size or ETag, or the server says so.

    """
    start, stop = bounds
    try:
        with endpoint.request("GET", target, headers) as response:
            partial = check_range(response.head, stored, start, stop)
            if not partial and start:
                response.skip(start)
            yield response
    except Refused as error:
        if error.status == _PRECONDITION_FAILED:
            raise Changed("the object has changed") from error
        raise


def check_range(response: Head, stored: StoredObject, start: int, stop: int) -> bool:
    """Return whether a response has a part of the listed object; it has all of it otherwise.

    Raises:
        Changed: another object, or another part of it.
        Refused: it leads elsewhere.
        Temporary: it has a status that says nothing of the object (`202 Accepted`).

    """
    if response.status >= _LEAST_REDIRECT:
        raise Refused(f"status {response.status}, which leads elsewhere: {shown(response.headers.get('location'))}")
    if response.status not in {_OK, _PARTIAL}:
        raise Temporary(f"status {response.status}")
    etag = response.headers.get("etag", "").strip('"')
    if stored.etag and etag and not stored.etag.startswith("time:") and etag != stored.etag:
        raise Changed("another ETag")
    if stored.etag.startswith("time:") and f"time:{response.headers.get('last-modified')}" != stored.etag:
        raise Changed("another Last-Modified")
    partial = response.status == _PARTIAL
    if partial and response.headers.get("content-range") != f"bytes {start}-{stop - 1}/{stored.size}":
        raise Changed(f"range {shown(response.headers.get('content-range'))} of {stored.size} bytes")
    expected = stop - start if partial else stored.size
    if response.length is not None and response.length != expected:
        raise Changed(f"{response.length} bytes where {expected} are expected")
    return partial
